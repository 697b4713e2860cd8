"""Ceres, where its headers and a compiler are installed (libceres-dev, g++): built once, then one process that solves
again and again when asked, so that it takes turns with the others in one run.

pyceres has no cost function for relative poses or for cameras of nine parameters, and one written in Python costs a
call of Python per block and step; so these are C++ programs, timed from inside.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
FLAGS = ("-O3", "-march=native", "-DNDEBUG", "-std=c++17", "-I/usr/include/eigen3", "-I/usr/local/include/eigen3")
"""-march=native: Ceres' automatic differentiation is 15 % faster with it."""


class CeresError(RuntimeError):
    """Ceres could not be built, or its program ended."""


class Solve(NamedTuple):
    """One solve, timed inside the program; milliseconds."""

    cpu: float
    wall: float
    build_cpu: float
    steps: int
    costs: list[float]
    """Of every step, as Ceres counts them (the first is the start's)."""
    values: np.ndarray
    """All parameters, in the order of the input."""


def build(name: str) -> Path:
    """Compile `peers/<name>.cc`, or find it compiled.

    Raises:
        CeresError: no compiler or no Ceres; the message says what to install.
    """
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise CeresError("no C++ compiler: install g++")
    sources = [HERE / f"{name}.cc", HERE / "serving.h"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + " ".join(FLAGS).encode()).hexdigest()
    folder = HERE / "build"
    program = folder / f"{name}-{digest[:12]}"
    if not program.exists():
        folder.mkdir(exist_ok=True)
        command = [compiler, *FLAGS, str(sources[0]), "-o", f"{program}.new", "-lceres", "-lglog"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise CeresError(f"{name}.cc does not compile (install libceres-dev): {first}")
        Path(f"{program}.new").replace(program)
    return program


class Ceres:
    """A program of `peers/`, started on one problem, solving it as often as asked."""

    def __init__(self, name: str, problem: str):
        program = build(name)
        self._folder = tempfile.TemporaryDirectory()
        given = Path(self._folder.name) / "problem.txt"
        given.write_text(problem)
        self._output = Path(self._folder.name) / "solved.txt"
        self._process = subprocess.Popen(
            [program, given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def solve(self, **options: Any) -> Solve:
        """One solve with these options (the programs' first lines list them)."""
        assert self._process.stdin and self._process.stdout and self._process.stderr
        line = " ".join(f"{key}={value}" for key, value in {**options, "output": self._output}.items())
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        while answer and not answer.startswith("{"):  # glog may speak first
            answer = self._process.stdout.readline()
        if not answer:
            raise CeresError(f"Ceres ended: {self._process.stderr.read().strip()[:300]}")
        told = json.loads(answer)
        values = np.loadtxt(self._output)  # written before the answer
        return Solve(told["cpu"], told["wall"], told["build_cpu"], told["steps"], told["costs"], values)

    def close(self) -> None:
        """End the program."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> "Ceres":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
