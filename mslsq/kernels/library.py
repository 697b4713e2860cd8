"""The compiled kernels, loaded when the first of them is called, and how Python hands arrays to them.

`loading.py` says where they come from. Where there are none, a warning says what to do, and `run_on` is False: PyTorch
and SciPy's SuperLU do the same, slowly.
"""

import ctypes
import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mslsq.kernels.loading import KernelsMissingError, load
from mslsq.private import forward_level_is_open, is_tracing_or_dispatching, transforms_are_active

REAL = {torch.float64: "f64", np.dtype(np.float64): "f64", torch.float32: "f32", np.dtype(np.float32): "f32"}
"""The types that kernels are compiled for, and how their names say so."""

ARRAYS = {
    "d": (torch.float64, np.dtype(np.float64)),
    "l": (torch.int64, np.dtype(np.int64)),
    "i": (torch.int32, np.dtype(np.int32)),
    "?": (torch.bool, np.dtype(np.bool_)),
}


class KernelsMissingWarning(UserWarning):
    """The compiled kernels are missing: SciPy and PyTorch do their work, slowly."""


class Kernel:
    """A function of the library, by its name and a letter for each argument.

    `n` an integer; arrays: `T` of the real type that the kernel is called for, `S` the same with strides of its own,
    `d` float64, `l` int64, `i` int32, `?` bool. Arrays are NumPy's or PyTorch's on the CPU, and contiguous but for `S`;
    the kernel reads and writes their memory, and sees no size but those it is given.

    >>> import numpy as np
    >>> parent, order = np.array([2, 2, -1], np.int32), np.empty(3, np.int32)
    >>> Kernel("postorder", "nii")(3, parent, order)
    >>> order
    array([0, 1, 2], dtype=int32)
    """

    def __init__(self, name: str, arguments: str):
        self.name, self.arguments = name, arguments
        self._real = next((k for k, kind in enumerate(arguments) if kind in "TS"), None)
        self._functions: dict[Any, Any] = {}

    def __call__(self, *arguments: Any) -> None:
        real = None if self._real is None else arguments[self._real].dtype
        (self._functions.get(real) or self._bound(real))(*arguments)

    def address(self, real: Any = None) -> int:
        """Where the function is, for a program of C++ that calls it: integers are `long`, arrays pointers."""
        return ctypes.cast(self._function(real), ctypes.c_void_p).value or 0

    def _bound(self, real: Any) -> Any:
        self._functions[real] = _handing_over(self._function(real), self.arguments, real)
        return self._functions[real]

    def _function(self, real: Any) -> Any:
        type_name = "any" if real is None else REAL.get(real)
        if type_name is None:
            raise TypeError(f"{self.name}: expected float64 or float32, got {real}")
        library, target = _library()
        function = getattr(library, f"mslsq_{self.name}_{type_name}_{target}")
        function.restype = None
        function.argtypes = [ctypes.c_int64 if kind == "n" else ctypes.c_void_p for kind in self.arguments]
        return function


def available() -> bool:
    """Can the kernels be called? Compiles them where they are missing; where that fails, says so once, in a warning."""
    return _missing() is None


def target() -> str:
    """The instruction set that the kernels are used with (baseline, avx2, avx512). KernelsMissingError without them."""
    return _library()[1]


def run_on(device: torch.device) -> bool:
    """Do kernels work on this device's tensors? Elsewhere the same is done in PyTorch's operations."""
    return device.type == "cpu" and available()


def may_read(*tensors: torch.Tensor) -> bool:
    """May a kernel read these tensors' memory? Not on another device, nor where kernels are missing, nor where an
    operation on them would be differentiated, mapped, traced or recorded: the memory does not tell."""
    if transforms_are_active() or is_tracing_or_dispatching() or forward_level_is_open():
        return False
    graded = torch.is_grad_enabled()
    for tensor in tensors:  # asked sixty times by a small alignment
        if not tensor.is_cpu or (graded and tensor.requires_grad):
            return False
    return available()


@functools.cache
def _missing() -> KernelsMissingError | None:
    try:
        _library()
    except KernelsMissingError as error:
        warnings.warn(
            f"{error}\nUntil then large sparse problems take ten times as long.", KernelsMissingWarning, stacklevel=3
        )
        return error
    return None


def _handing_over(function: Any, letters: str, real: Any) -> Callable[..., None]:
    """The function of C as one of arrays, each argument passed by an expression that is written out once: a step of a
    small graph calls ten kernels of fifteen arrays, of which it takes a third of the time to look at them in a loop."""
    bound: dict[str, Any] = {"function": function}
    for kind in set(letters) - {"n"}:
        bound[f"address_{ord(kind)}"] = _address_of(kind, real)
    names = [f"a{place}" for place in range(len(letters))]
    passed = [x if kind == "n" else f"address_{ord(kind)}({x})" for kind, x in zip(letters, names, strict=True)]
    return eval(f"lambda {', '.join(names)}: function({', '.join(passed)})", bound)


def _address_of(kind: str, real: Any) -> Callable[[Any], int]:
    """What gives C the address of an array of this kind."""
    expected, of_numpy = ARRAYS.get(kind, (real, None))
    strided = kind == "S"

    def address(array: Any) -> int:
        if type(array) is torch.Tensor:
            if array.dtype is expected and array.is_cpu and (strided or array.is_contiguous()):
                return array.data_ptr()
        elif type(array) is np.ndarray and array.dtype is of_numpy and (flags := array.flags).c_contiguous:
            # A quarter of the time of `ctypes.data`; a buffer of what is read only is not given.
            if not flags.writeable:
                return array.ctypes.data
            return ctypes.addressof(_NOTHING.from_buffer(array))  # pyright: ignore[reportArgumentType]
        return _passed(kind, array, real)

    return address


def _passed(kind: str, argument: Any, real: Any) -> int:
    """What C gets of an array that is as the kernel expects it: its address."""
    expected = ARRAYS.get(kind)
    if argument.dtype not in expected if expected else argument.dtype != real:
        raise TypeError(f"a kernel got an array of {argument.dtype} for '{kind}', called for {real}")
    if isinstance(argument, torch.Tensor):
        if argument.device.type != "cpu" or not (kind == "S" or argument.is_contiguous()):
            raise ValueError("a kernel got a tensor that is not contiguous in the CPU's memory")
        return argument.data_ptr()
    if not (kind == "S" or argument.flags.c_contiguous):
        raise ValueError("a kernel got an array that is not contiguous")
    return argument.ctypes.data


def _library() -> tuple[ctypes.CDLL, str]:
    """The library, and the instruction set it is used with."""
    with _ONE_AT_A_TIME:
        found = _outcome()
    if isinstance(found, KernelsMissingError):
        raise found.with_traceback(None)
    return found


@functools.cache
def _outcome() -> tuple[ctypes.CDLL, str] | KernelsMissingError:
    """What loading came to, tried once: a compiler that failed fails again, after as many seconds."""
    try:
        return load()
    except KernelsMissingError as error:
        return error


_NOTHING = ctypes.c_char * 0

_ONE_AT_A_TIME = threading.Lock()
