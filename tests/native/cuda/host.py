"""The library's CUDA C run by the processor: its own text, driver calls and arguments; only the compiler is another."""

import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from mslsq.kernels.build import CompilerError, compiler
from mslsq.native.cuda.driver import Driver, Module
from mslsq.native.cuda.nvrtc import Compiled, Nvrtc, Resources, nvrtc

HERE = Path(__file__).parent
KERNEL = re.compile(r"__launch_bounds__\(THREADS\)\n(\w+)\((.*)\) \{")
"""Its name and its arguments."""


def found_nvrtc() -> Nvrtc | None:
    """NVRTC, where it is installed."""
    try:
        return nvrtc()
    except CompilerError:
        return None


@functools.cache
def _folder() -> Path:
    kept = tempfile.TemporaryDirectory(prefix="mslsq-host-")
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def library(name: str, source: str) -> Path:
    """A library of the processor, compiled as native programs are: no product is fused with a sum."""
    text, made = _folder() / f"{name}.cpp", _folder() / f"{name}.so"
    text.write_text(source)
    options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off", f"-I{HERE}"]
    done = subprocess.run([*compiler(), *options, str(text), "-o", str(made)], capture_output=True, text=True)
    if done.returncode:
        raise CompilerError(done.stderr)
    return made


class HostDriver(Driver):
    """The library's driver on `driver.cpp`."""

    def stream(self, device: torch.device) -> ctypes.c_void_p:
        return ctypes.c_void_p(7)


@functools.cache
def host_driver() -> HostDriver:
    return HostDriver(ctypes.CDLL(str(library("driver", (HERE / "driver.cpp").read_text()))))


class Host:
    """`Tools` for tensors of the CPU.

    Args:
        spilled: what the kernels of a text are said to spill, by name; none by default.
    """

    count = 0

    def __init__(self, spilled: Callable[[str], dict[str, int]] = lambda source: {}):
        self._spilled = spilled

    def compiled(self, source: str) -> Compiled:
        Host.count += 1
        path = library(
            f"kernels{Host.count}", "\n".join(['#include "host.h"', source, *map(_launch, KERNEL.findall(source))])
        )
        resources = {name: Resources(255, spilled, spilled) for name, spilled in self._spilled(source).items()}
        return Compiled(str(path).encode() + b"\0", resources)

    def load(self, image: bytes) -> Module:
        return host_driver().load(image, torch.device("cpu"))


def _launch(kernel: tuple[str, str]) -> str:
    name, arguments = kernel
    types = [argument.rpartition(" ")[0] for argument in arguments.split(", ")]
    passed = ", ".join(f"*({type_}*)a[{k}]" for k, type_ in enumerate(types))
    return f"""
extern "C" __attribute__((visibility("default")))
void launch_{name}(unsigned width, unsigned height, unsigned threads, void** a) {{
    over_grid(width, height, threads, [=] {{ {name}({passed}); }});
}}"""
