"""mslsq for FitBenchmarking (fitbenchmarking 1.5): what it asks of a software, answered by `mslsq.interop.scipy`.

`register()` makes "mslsq" a software of its options. Nothing is written into its folder.
"""

import sys
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from fitbenchmarking.controllers.base_controller import Controller  # pyright: ignore[reportMissingImports]
from fitbenchmarking.jacobian.scipy_jacobian import Scipy  # pyright: ignore[reportMissingImports]
from fitbenchmarking.utils.options import Options  # pyright: ignore[reportMissingImports]

from mslsq.interop.scipy import least_squares

MINIMIZERS = ["lm", "trf", "dogbox"]
OPTIONS = {"ftol": 1e-12, "xtol": 1e-12, "x_scale": "jac", "max_nfev": 1000}
"""The tolerances of this library's solvers; the test of the gradient is "lm"'s, which has no unit."""


class MslsqController(Controller):
    """One fit by one minimizer."""

    controller_name = "mslsq"
    algorithm_check: ClassVar = {
        kind: list(MINIMIZERS) if kind in ("all", "ls", "trust_region") else [] for kind in Controller.algorithm_check
    } | {"levenberg-marquardt": ["lm", "trf"]}
    jacobian_enabled_solvers: ClassVar = MINIMIZERS
    sparsity_enabled_solvers: ClassVar = ["trf", "dogbox"]
    no_bounds_minimizers: ClassVar = ["lm"]
    support_for_bounds = True

    def __init__(self, cost_func: Any):
        super().__init__(cost_func)
        self._result: Any = None
        self._arguments: dict[str, Any] = {}

    def setup(self) -> None:
        """What is not timed: the arguments of the call."""
        self._arguments = {"method": self.minimizer, "jac": self._jacobian(), **OPTIONS}
        self._arguments["gtol"] = 1e-12 if self.minimizer == "lm" else None
        if self.value_ranges is not None:
            lower, upper = np.array(self.value_ranges, dtype=float).T
            self._arguments["bounds"] = lower, upper

    def _jacobian(self) -> Any:
        """Differences by name: they have a noise, which is not that of a Jacobian."""
        jacobian = self.cost_func.jacobian
        if jacobian.use_default_jac:
            return "2-point"
        is_known = isinstance(jacobian, Scipy) and jacobian.method in ("2-point", "3-point")
        return jacobian.method if is_known else self.cost_func.jac_res

    def fit(self) -> None:
        """What is timed."""
        self._result = least_squares(self.cost_func.eval_r, self.initial_params, **self._arguments)

    def cleanup(self) -> None:
        """Flags: 0 converged, 1 too many evaluations, 2 stopped without."""
        self.flag = 0 if self._result.success else 1 if self._result.status == 0 else 2
        self.func_evals = self._result.nfev
        self.final_params = self._result.x


def register() -> None:
    """Make "mslsq" known to FitBenchmarking's options and to what imports its controllers."""
    module = ModuleType("fitbenchmarking.controllers.mslsq_controller")
    vars(module)["MslsqController"] = MslsqController
    sys.modules[module.__name__] = module
    if "mslsq" not in Options.VALID_FITTING["software"]:
        Options.VALID_FITTING["software"].append("mslsq")
    Options.VALID_MINIMIZERS["mslsq"] = MINIMIZERS
    Options.DEFAULT_MINIMZERS["mslsq"] = MINIMIZERS
