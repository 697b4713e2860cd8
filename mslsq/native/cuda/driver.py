"""The driver's own functions that load and launch kernels, by ctypes: no header, no runtime, no name of PyTorch's.

`libcuda` comes with the driver of the GPU. What it loads and launches belongs to the primary context of a device, in
which PyTorch works as well.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

from mslsq.kernels.build import CompilerError

NAMES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")


class Driver:
    """Loads and launches.

    Args:
        library: with the functions of `cuda.h`.
    """

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._call("cuInit", ctypes.c_uint(0))

    def load(self, image: bytes, device: torch.device) -> "Module":
        """The kernels of an image (cubin, or PTX) on a device."""
        module = ctypes.c_void_p()
        with self._in_context(device):
            self._call("cuModuleLoadData", ctypes.byref(module), image)
        return Module(self, module, device)

    def stream(self, device: torch.device) -> ctypes.c_void_p:
        """The stream in which PyTorch works now."""
        return ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)

    def _in_context(self, device: torch.device) -> "_Context":
        ordinal = device.index or 0
        if ordinal not in self._contexts:
            number, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(number), ordinal)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
            self._contexts[ordinal] = context
        return _Context(self, self._contexts[ordinal])

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DriverError(f"{name} failed: {self._words(code)}")

    def _words(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"").decode() or f"error {code}"


class DriverError(CompilerError):
    """A call of the CUDA driver failed; the text says which. Of a program that cannot be loaded PyTorch takes the
    place; a launch that fails has no other way."""


class _Context:
    """Makes a context that of this thread, and afterwards the one again that was."""

    def __init__(self, driver: Driver, context: ctypes.c_void_p):
        self._driver, self._context = driver, context

    def __enter__(self) -> None:
        self._driver._call("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *_: object) -> None:
        self._driver._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class Module:
    """Kernels that a driver has loaded on one device."""

    def __init__(self, driver: Driver, module: ctypes.c_void_p, device: torch.device):
        self._driver, self._module, self._device = driver, module, device
        self._kernels: dict[str, ctypes.c_void_p] = {}

    def launch(self, name: str, grid: tuple[int, int], threads: int, arguments: Sequence[Any]) -> None:
        """Launch a kernel in PyTorch's stream; it need not be done when this returns.

        Args:
            grid: blocks in x and y.
            threads: of a block.
            arguments: of the kernel, each as its own type of ctypes.
        """
        driver = self._driver
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        with driver._in_context(self._device):
            kernel = self._kernels.get(name) or self._kernel(name)
            shape = [ctypes.c_uint(n) for n in (*grid, 1, threads, 1, 1, 0)]  # blocks, threads, shared memory
            driver._call("cuLaunchKernel", kernel, *shape, driver.stream(self._device), places, None)

    def _kernel(self, name: str) -> ctypes.c_void_p:
        kernel = ctypes.c_void_p()
        self._driver._call("cuModuleGetFunction", ctypes.byref(kernel), self._module, name.encode())
        self._kernels[name] = kernel
        return kernel


@functools.cache
def driver() -> Driver:
    """The driver of this process. CompilerError where there is none."""
    for name in NAMES:
        try:
            return Driver(ctypes.CDLL(name))
        except OSError:
            continue
    raise CompilerError(f"no driver of a GPU was found ({', '.join(NAMES)})")
