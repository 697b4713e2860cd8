"""NVRTC, NVIDIA's compiler as a library: from CUDA C to what a driver loads, with what each kernel takes.

It needs no GPU. PyTorch's builds for CUDA bring it; `pip install nvidia-cuda-nvrtc-cu12` does elsewhere.
"""

import ctypes
import ctypes.util
import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mslsq.kernels.build import CompilerError

VARIABLE = "MSLSQ_NVRTC"
"""Names the library, where it is not found by itself."""

FLAGS = ("--std=c++17", "--device-as-default-execution-space", "--fmad=false", "--ptxas-options=-v")
"""As on a processor no product is fused with a sum (`native.processor.FLAGS`); divisions and roots are rounded
correctly, and tiny numbers kept, by NVRTC's own defaults. The last option has ptxas tell what kernels take."""

LONGEST = 300
"""Characters of the compiler's own words that are repeated."""

_TOLD = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True)
class Resources:
    """What a thread of a kernel takes, as ptxas tells it."""

    registers: int
    """Of 32 bits each; a thread has at most 255."""
    spilled: int
    """Bytes that are stored in and loaded from memory because registers did not suffice."""
    stack: int
    """Bytes of memory of its own, spilled ones included."""


@dataclass(frozen=True)
class Compiled:
    """What a driver loads."""

    image: bytes
    """Machine code of one architecture ("cubin"), or PTX, which the driver translates when it loads it."""
    resources: dict[str, Resources]
    """By kernel; empty for PTX."""


class Nvrtc:
    """The library. CompilerError where it is not there."""

    def __init__(self) -> None:
        self.path, self._library = _found()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = f"{major.value}.{minor.value}"

    @functools.cached_property
    def architectures(self) -> tuple[int, ...]:
        """The compute capabilities that it compiles for, 90 for 9.0, rising."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found))
        return tuple(found)

    def compiled(self, source: str, capability: int, ptx: bool = False) -> Compiled:
        """Compile a text.

        Args:
            capability: of the GPU, 90 for 9.0. For one that is newer than the library PTX of the newest that it knows
                is made.
            ptx: make PTX anyway.

        Raises:
            CompilerError: the text is refused; with the first error.
        """
        known = [one for one in self.architectures if one <= capability]
        if not known:
            raise CompilerError(f"NVRTC {self.version} ({self.path}) knows no GPU as old as capability {capability}")
        ptx = ptx or known[-1] != capability
        options = [f"--gpu-architecture={'compute' if ptx else 'sm'}_{known[-1]}", *FLAGS]
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"program.cu", 0, None, None)
        )
        try:
            return self._compiled(program, options, "PTX" if ptx else "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _compiled(self, program: ctypes.c_void_p, options: Sequence[str], form: str) -> Compiled:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = self._library.nvrtcCompileProgram(program, len(options), given)
        log = self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if code:
            raise CompilerError(f"NVRTC {self.version} failed: {_first_error(log) or self._words(code)}")
        return Compiled(self._text(program, form), resources_of(log))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(max(size.value, 1))
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, text))
        return text.raw[: size.value]

    def _check(self, code: int) -> None:
        if code:
            raise CompilerError(f"NVRTC ({self.path}): {self._words(code)}")

    def _words(self, code: int) -> str:
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return self._library.nvrtcGetErrorString(code).decode()


@functools.cache
def nvrtc() -> Nvrtc:
    """The library of this process. CompilerError where there is none."""
    return Nvrtc()


def resources_of(log: str) -> dict[str, Resources]:
    """What ptxas told of each kernel."""
    return {
        found["name"]: Resources(
            int(found["registers"]), int(found["stores"]) + int(found["loads"]), int(found["stack"])
        )
        for found in _TOLD.finditer(log)
    }


def _first_error(log: str) -> str:
    errors = [" ".join(line.split()) for line in log.splitlines() if "error" in line.lower()]
    return errors[0][:LONGEST] if errors else ""


def _found() -> tuple[str, ctypes.CDLL]:
    said = ""
    for path in _candidates():
        try:
            return path, ctypes.CDLL(path)
        except OSError as error:
            said = f" ({error})"
    raise CompilerError(
        f"NVRTC was not found{said}: pip install nvidia-cuda-nvrtc-cu12 (PyTorch's builds for CUDA bring it), or name "
        f"libnvrtc.so in the variable {VARIABLE}"
    )


def _candidates() -> Iterator[str]:
    """Paths and names, the likeliest first."""
    named = os.environ.get(VARIABLE, "").strip()
    if named:
        yield named
        return
    packages = importlib.util.find_spec("nvidia")
    for folder in (packages and packages.submodule_search_locations) or ():
        found = Path(folder).glob("*/lib/libnvrtc.so.*")
        yield from (str(path) for path in sorted(found, reverse=True) if ".alt." not in path.name)
    system = ctypes.util.find_library("nvrtc")
    yield from filter(None, (system, "libnvrtc.so.13", "libnvrtc.so.12"))
