"""The functions of cuDSS 1.0 that are used, by ctypes: its C interface, no header and no package around it.

https://docs.nvidia.com/cuda/cudss: signatures and numbers are those of `cudss.h` and `cudss_data_types.h` 1.0.0. What
does not need a GPU was compared with the library itself on a machine without one: its version, its options, and its
descriptions of matrices, which it reads back as they were given.
"""

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

VARIABLE = "MSLSQ_CUDSS"
"""Names the library, where it is not found by itself."""

MAJOR = 1
"""The version that the numbers below are of: they have moved between versions below 1."""

STATUSES = (
    "success",
    "not initialized",
    "out of memory",
    "invalid value",
    "not supported",
    "execution failed",
    "internal error",
    "iterative refinement failed",
)

INT32, FLOAT64 = 10, 1
"""Of `cudaDataType_t`."""
POSITIVE_DEFINITE, UPPER, FROM_ZERO, BY_COLUMNS = 3, 2, 0, 0
"""Kind of matrix, the triangle that is given, indices from 0, dense matrices column by column."""
BATCH_SIZE = 18
"""Of the options: how many matrices of one structure a solve has, their numbers one after the other."""
INFO = 0
"""Of what is known of a solve: not 0 where a pivot was not positive; stays until it is set to 0."""
ANALYSIS, FACTORIZATION, SOLVE = 3, 4, 0x3F0
"""Phases."""

_P, _I, _L, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
SIGNATURES = {
    "cudssCreate": (_P,),
    "cudssDestroy": (_P,),
    "cudssSetStream": (_P, _P),
    "cudssGetProperty": (_I, _P),
    "cudssConfigCreate": (_P,),
    "cudssConfigDestroy": (_P,),
    "cudssConfigSet": (_P, _I, _P, _SIZE),
    "cudssDataCreate": (_P, _P),
    "cudssDataDestroy": (_P, _P),
    "cudssDataSet": (_P, _P, _I, _P, _SIZE),
    "cudssDataGet": (_P, _P, _I, _P, _SIZE, _P),
    "cudssMatrixCreateCsr": (_P, _L, _L, _L, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I),
    "cudssMatrixCreateDn": (_P, _L, _L, _L, _P, _I, _I),
    "cudssMatrixDestroy": (_P,),
    "cudssExecute": (_P, _I, _P, _P, _P, _P, _P),
}


class Cudss:
    """The library.

    Raises:
        ImportError: it is of another version.
    """

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        for name, arguments in SIGNATURES.items():
            getattr(library, name).argtypes = arguments
        self.version = tuple(self._property(k) for k in range(3))
        if self.version[0] != MAJOR:
            found = ".".join(map(str, self.version))
            raise ImportError(f"cuDSS {found} was found, and {MAJOR}.0 or later of that number is needed")

    def call(self, name: str, *arguments: object) -> None:
        """RuntimeError where it fails, with the name of the function and what cuDSS says."""
        code = getattr(self._library, name)(*arguments)
        if code:
            words = STATUSES[code] if 0 <= code < len(STATUSES) else f"status {code}"
            raise RuntimeError(f"{name} of cuDSS failed: {words}")

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """What a function makes, of which it is given the place first..."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found

    def made_of(self, name: str, owner: ctypes.c_void_p) -> ctypes.c_void_p:
        """... or after an owner."""
        found = ctypes.c_void_p()
        self.call(name, owner, ctypes.byref(found))
        return found

    def _property(self, which: int) -> int:
        value = ctypes.c_int()
        self.call("cudssGetProperty", which, ctypes.byref(value))
        return value.value


@cache
def cudss() -> Cudss:
    """The library of this process. ImportError where there is none of the right version, or it cannot be loaded."""
    said = ""
    for path in _candidates():
        try:
            return Cudss(ctypes.CDLL(path))
        except OSError as error:
            said = f" ({error})"
    raise ImportError(f"cuDSS was not found{said}")


def _candidates() -> Iterator[str]:
    """Paths and names, the likeliest first: those that were compiled for the CUDA of PyTorch."""
    named = os.environ.get(VARIABLE, "").strip()
    if named:
        yield named
        return
    packages = importlib.util.find_spec("nvidia")
    ours = f"cu{(torch.version.cuda or '').partition('.')[0]}"
    for folder in (packages and packages.submodule_search_locations) or ():
        found = sorted(Path(folder).glob(f"*/lib/libcudss.so.{MAJOR}"))
        yield from map(str, sorted(found, key=lambda path: path.parts[-3] != ours))
    yield f"libcudss.so.{MAJOR}"
