"""The same program run with the kernels of another instruction set."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest


def arrays_of_both(program: str, target: str, folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What a program that saves its arrays to `OUT` finds with the kernels of `target`, and with the best ones here."""
    if target == "avx2" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    found = []
    for name in (target, ""):
        file, environment = str(folder / f"{name}.npz"), dict(os.environ)
        if name:
            environment["MSLSQ_TARGET"] = name
        subprocess.run([sys.executable, "-c", program.replace("OUT", repr(file))], check=True, env=environment)
        found.append(np.load(file))
    assert found[0].files and found[0].files == found[1].files
    return ((found[0][name], found[1][name]) for name in found[0].files)
