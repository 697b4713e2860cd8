"""SIF files of CUTEst for FitBenchmarking: systems of nonlinear equations, whose residuals are fitted to zero.

FitBenchmarking's wheel has no reader for them, and that of its repository takes only files whose data are lists of X, Y
and E. Here PyCUTEst compiles the file as it is, and the residuals are those of its equations: all of CUTEst's
nonlinear least-squares problems have such a form. Needs pycutest, gfortran, SIFDecode and CUTEst, with CUTEST and
SIFDECODE naming where the last two are installed, and PYCUTEST_CACHE a folder for what is compiled.
"""

import hashlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from fitbenchmarking.parsing.base_parser import Parser  # pyright: ignore[reportMissingImports]
from fitbenchmarking.parsing.fitting_problem import FittingProblem  # pyright: ignore[reportMissingImports]
from fitbenchmarking.utils.exceptions import ParsingError  # pyright: ignore[reportMissingImports]

UNBOUNDED = 1e19
"""CUTEst's infinity is 1e20."""
MOST = {"unknowns": 60, "equations": 1100}
"""Larger ones are left out: all software here is dense, and differences take an evaluation for every unknown."""


class CutestParser(Parser):
    """Equations c(x) = b with bounds on x; FitBenchmarking finds the class by its name."""

    def parse(self) -> FittingProblem:
        """The problem, with its data all zero.

        Raises:
            ParsingError: it has an objective or inequalities, or is too large.
        """
        self._equations = equations = _compiled(Path(self._filename))
        if equations.m == 0 or not equations.is_eq_cons.all():
            raise ParsingError("This file is not a system of equations.")
        if equations.n > MOST["unknowns"] or equations.m > MOST["equations"]:
            raise ParsingError(f"{equations.n} unknowns and {equations.m} equations are too many.")
        names = [f"x{number}" for number in range(equations.n)]
        lower = np.where(equations.bl < -UNBOUNDED, -np.inf, equations.bl)
        upper = np.where(equations.bu > UNBOUNDED, np.inf, equations.bu)
        problem = FittingProblem(self.options)
        problem.name, problem.format = Path(self._filename).stem, "cutest"
        problem.data_x = np.arange(float(equations.m))
        problem.data_y, problem.data_e = np.zeros(equations.m), np.ones(equations.m)
        problem.function, problem.jacobian = self._values, self._jacobian
        problem.starting_values = [dict(zip(names, np.clip(equations.x0, lower, upper), strict=True))]
        if np.isfinite(lower).any() or np.isfinite(upper).any():
            problem.set_value_ranges(dict(zip(names, zip(lower, upper, strict=True), strict=True)))
        return problem

    def _values(self, x: Any, *parameters: float) -> Any:
        """c(x) − b at the equations that are asked for."""
        equations = self._equations
        return (equations.cons(np.asarray(parameters, dtype=float)) - equations.cl)[x.astype(int)]

    def _jacobian(self, x: Any, parameters: Any) -> Any:
        return self._equations.cons(np.asarray(parameters, dtype=float), gradient=True)[1][x.astype(int)]


def _compiled(file: Path) -> Any:
    """The problem by PyCUTEst, which keeps what it compiles by name; two files of one name are told apart."""
    import pycutest  # pyright: ignore[reportMissingImports]

    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    before = os.environ.get("MASTSIF")
    os.environ["MASTSIF"] = str(file.parent)
    try:
        return pycutest.import_problem(file.stem, destination=f"{file.stem.replace('-', '_')}_{digest}")
    finally:
        if before is not None:
            os.environ["MASTSIF"] = before


def register() -> None:
    """Let FitBenchmarking read such files where PyCUTEst is installed."""
    if "CUTEST" not in os.environ:
        return
    name = "fitbenchmarking.parsing.cutest_parser"
    module = ModuleType(name)
    vars(module)["CutestParser"] = CutestParser
    sys.modules[name] = module
