"""Programs for a GPU: written, compiled in parts, loaded, and called as the programs of a processor are."""

import ctypes
import functools
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from mslsq.kernels.build import CompilerError
from mslsq.native.building import AnyWritten, Making
from mslsq.native.cuda.driver import Driver, Module, driver
from mslsq.native.cuda.nvrtc import Compiled, Resources, nvrtc
from mslsq.native.cuda.splitting import UNKNOWN, Entries, Part, divided, whole
from mslsq.native.cuda.text import THREADS, source, written
from mslsq.native.operator import LoadedProgram, NativeFunctions, Placed
from mslsq.native.scalars import NotScalarError
from mslsq.native.text import Function

P = TypeVar("P", covariant=True)

MOST_ARGUMENTS = 128
"""Inputs and outputs of a kernel: their addresses and steps are given by value, of which there may be 4 KB."""

LARGEST_GRID = (2**31 - 1, 65_535)
"""Blocks in x and in y; where there are more lanes or problems, a thread has several."""


class Tools(Protocol):
    """What compiles and loads for a device."""

    def compiled(self, source: str) -> Compiled:
        """CompilerError where that fails."""
        ...

    def load(self, image: bytes) -> Module:
        """CompilerError where that fails."""
        ...


@dataclass(frozen=True)
class Cuda:
    """NVRTC and the driver, for one GPU."""

    device: torch.device

    def compiled(self, source: str) -> Compiled:
        major, minor = torch.cuda.get_device_capability(self.device)
        return nvrtc().compiled(source, 10 * major + minor)

    def load(self, image: bytes) -> Module:
        return self._driver.load(image, self.device)

    @property
    def _driver(self) -> Driver:
        return driver()


@dataclass(frozen=True)
class Kernels:
    """The kernels of several programs: of each its functions, and of those the parts, compiled."""

    source: str
    parts: list[dict[str, list[Part]]]
    compiled: Compiled

    @staticmethod
    def of(all_written: Sequence[AnyWritten[Any]], tools: Tools) -> "Kernels":
        """In parts where they would spill. CompilerError where the compiler fails."""
        parts = [{name: [whole(one.program, outputs)] for name, outputs in one.outputs.items()} for one in all_written]
        kernels = Kernels._of_parts(all_written, parts, tools)
        in_parts = [
            {name: _divided(one, name, kernels.told(k, name), tools) for name in one.outputs}
            for k, one in enumerate(all_written)
        ]
        is_whole = all(len(pieces) == 1 for of_one in in_parts for pieces in of_one.values())
        return replace(kernels, parts=in_parts) if is_whole else Kernels._of_parts(all_written, in_parts, tools)

    @staticmethod
    def _of_parts(
        all_written: Sequence[AnyWritten[Any]], parts: list[dict[str, list[Part]]], tools: Tools
    ) -> "Kernels":
        texts = [
            _text(one, name, part.entries, kernel_name(k, name, piece))
            for k, (one, of_one) in enumerate(zip(all_written, parts, strict=True))
            for name, pieces in of_one.items()
            for piece, part in enumerate(pieces)
        ]
        text = source(texts, all_written[0].program.dtype)
        return Kernels(text, parts, tools.compiled(text))

    def told(self, number: int, name: str) -> Resources:
        """What the first part of a function takes."""
        return self.compiled.resources.get(kernel_name(number, name, 0), UNKNOWN)

    def names(self, number: int) -> dict[str, list[str]]:
        """The kernels of a program, by function."""
        return {
            name: [kernel_name(number, name, piece) for piece in range(len(pieces))]
            for name, pieces in self.parts[number].items()
        }


def kernel_name(number: int, function: str, piece: int) -> str:
    """Of a part of a function of a program."""
    return f"{_prefix(number)}{function}_{piece}"


def making(all_written: Sequence[AnyWritten[P]], device: torch.device) -> "Making[P] | CudaMaking[P]":
    """Programs for a device, on their way. CompilerError where no program can be for it."""
    if device.type == "cpu":
        return Making(all_written)
    if device.type == "cuda":
        return CudaMaking(all_written, Cuda(device))
    raise CompilerError(f"no programs are written for the device {device.type!r}")


class CudaMaking(Generic[P]):
    """Programs of one dtype for a GPU, as `building.Making` has them for a processor. They are compiled when they are
    waited for, in the thread that waits."""

    def __init__(self, all_written: Sequence[AnyWritten[P]], tools: Tools):
        for one in all_written:
            count = len(one.inputs) + max(map(len, one.outputs.values()))
            if count > MOST_ARGUMENTS:
                raise NotScalarError(f"a kernel would have {count} inputs and outputs, more than {MOST_ARGUMENTS}")
        self._written: list[AnyWritten[P]] = list(all_written)
        self._tools, self._found, self.build = tools, list[P](), CudaBuild()

    def wait(self, patience: float = math.inf) -> None:
        """Compile, if that has not been done, however long it takes."""
        if self.is_settled:
            return
        started = time.perf_counter()
        try:
            kernels = Kernels.of(self._written, self._tools)
            module = self._tools.load(kernels.compiled.image)
        except (CompilerError, OSError) as error:
            self.build.why = " ".join(str(error).split()).removesuffix(".")
            return
        digest = hashlib.sha256(kernels.source.encode()).hexdigest()
        for k, one in enumerate(self._written):
            place = digest, _prefix(k), one.inputs, one.used, one.program.dtype
            self._found.append(one.form(LoadedKernels(*place, module, kernels.names(k))))
        self.build.seconds = time.perf_counter() - started
        self.build.resources = kernels.compiled.resources
        self._written.clear()  # megabytes

    @property
    def is_settled(self) -> bool:
        """Is it known whether there are programs?"""
        return bool(self._found or self.build.why)

    def programs(self) -> list[P] | None:
        """The programs; None as long as none has been waited for.

        Raises:
            CompilerError: there is no compiler or no driver, or one of them failed.
        """
        if self.build.why:
            raise CompilerError(self.build.why)
        return self._found or None


@dataclass
class CudaBuild:
    """What has become of a text."""

    why: str = ""
    """Why there is no program, in a clause; empty otherwise."""
    seconds: float = 0.0
    resources: Mapping[str, Resources] = field(default_factory=dict)
    """By kernel."""

    def sentence(self, what: str = "the residual") -> str:
        """What has become of it, for `verbose`; `what` the program computes."""
        if self.why:
            return f"The native program of {what} is not used: {self.why}."
        if not self.seconds:
            return f"The native program of {what} is compiled when a solve waits for it (native='wait')."
        taken = [f"{one.registers} registers, {one.spilled} bytes spilled" for one in self.resources.values()]
        return f"The native program of {what} was compiled in {self.seconds:.1f} s ({'; '.join(taken) or 'as PTX'})."


@dataclass(frozen=True)
class LoadedKernels(LoadedProgram):
    """Of a module on a GPU."""

    module: Module
    kernels: Mapping[str, Sequence[str]]
    """By function, those of its parts."""

    def functions(self, names: Sequence[str]) -> NativeFunctions:
        return KernelFunctions(self)


@dataclass(frozen=True)
class KernelFunctions(NativeFunctions):
    """Functions each of which is one kernel or several."""

    loaded: LoadedKernels

    def run(self, name: str, tensors: Sequence[Tensor], batched: Sequence[int], outputs: Sequence[Tensor]) -> None:
        outer, lanes = outputs[0].shape[0], outputs[0].shape[-1]
        if not outer * lanes:
            return
        device = outputs[0].device
        placed = self.loaded.placed([tensor.to(device) for tensor in tensors], batched)
        placed += [Placed(out, out.stride(0), lanes) for out in outputs]
        arguments = (given(placed), ctypes.c_long(outer), ctypes.c_long(lanes))
        grid = min(-(-lanes // THREADS), LARGEST_GRID[0]), min(outer, LARGEST_GRID[1])
        for kernel in self.loaded.kernels[name]:
            self.loaded.module.launch(kernel, grid, THREADS, arguments)


def given(placed: Sequence[Placed]) -> Any:
    """`Given` of `cuda.h`."""
    structure = _given_type(len(placed))()
    for k, one in enumerate(placed):
        structure.data[k] = one.tensor.data_ptr() if one.tensor is not None else None
        structure.outer_step[k], structure.step[k] = one.outer_step, one.step
    return structure


@functools.cache
def _given_type(count: int) -> type[Any]:
    fields = [("data", ctypes.c_void_p * count), ("outer_step", ctypes.c_long * count), ("step", ctypes.c_long * count)]
    return type("Given", (ctypes.Structure,), {"_fields_": fields})


def _prefix(number: int) -> str:
    return f"program{number}_"


def _divided(one: AnyWritten[Any], name: str, resources: Resources, tools: Tools) -> list[Part]:
    outputs = one.outputs[name]

    def compiled(pieces: Sequence[Entries]) -> list[Resources]:
        texts = [_text(one, name, entries, kernel_name(0, name, k)) for k, entries in enumerate(pieces)]
        found = tools.compiled(source(texts, one.program.dtype)).resources
        return [found.get(kernel_name(0, name, k), UNKNOWN) for k in range(len(pieces))]

    return divided(whole(one.program, outputs, resources), one.program, outputs, compiled)


def _text(one: AnyWritten[Any], name: str, entries: Entries, kernel: str) -> str:
    return written(one.program, one.inputs, Function(kernel, one.outputs[name]), entries)
