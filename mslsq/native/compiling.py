"""Compiles the source of a program and loads it, in the calling thread, once in a process."""

import ctypes
import subprocess
import tempfile
from functools import cache, lru_cache
from pathlib import Path

from mslsq.kernels import library
from mslsq.kernels.build import FLAGS, best_target, compiler, targets

WIDTHS = {"baseline": 16, "avx2": 32, "avx512": 64}
"""Bytes of a vector register, by the instruction set."""

OPTIONS = (
    *(flag for flag in FLAGS if not flag.startswith(("-ffp-contract", "-O"))),
    "-O2",
    "-ffp-contract=off",
    "-fwrapv",
)
"""Those of the kernels, but no product is fused with a sum where the source does not say so: √(a² − b²) with a = b must
not become the root of a negative number that PyTorch never sees. (Fused, an SE(3) between factor is no faster.) -O3
takes 1.6 times as long to compile straight-line code, which runs no faster either. Integers wrap around."""


@cache
def target() -> str:
    """The instruction set that programs are compiled for: that of the kernels, else the best that the processor has.

    Raises:
        CompilerError: there is no compiler.
    """
    if library.available():
        return library.target()
    with tempfile.TemporaryDirectory(prefix="mslsq-") as folder:
        return best_target(Path(folder))


@lru_cache(maxsize=256)
def compiled(source: str) -> ctypes.CDLL:
    """The library of a source. CompilerError where there is no compiler, RuntimeError where it refuses the source."""
    with tempfile.TemporaryDirectory(prefix="mslsq-") as folder:
        text, made = Path(folder) / "program.cpp", Path(folder) / "program.so"
        text.write_text(source)
        command = [*compiler(), *OPTIONS, *targets()[target()], "-shared", str(text), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the compiler refused a native program:\n{done.stderr[:2000]}")
        return ctypes.CDLL(str(made))
