"""How far finite differences move a variable: as far as SciPy's, but no large part of a small number."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

RELATIVE = {"2-point": 1 / 2, "3-point": 1 / 3, "cs": 1 / 2}
"""SciPy's relative steps, as powers of the rounding of the residuals."""

SHORT = 64
"""A number moves by at most this many relative steps: 9.5e-7 of it by forward differences, 3.9e-4 by central ones.
SciPy's steps are longer than that below 0.016; those of a number of 1e-7 are 15 % and 60 times of it."""


TOO_LONG = 8
"""A first Jacobian, of SciPy's steps, is taken again where one of them is as many times as long as it should be."""


@dataclass
class Steps:
    """The steps of one solve.

    SciPy moves x by h = ρ max(1, |x|), as if variables were of size one. The error of a derivative grows with h over
    the scale of x: in NIST's Hahn1 a coefficient of 1.2e-7 was moved by an eighth of itself, and solves wandered. Here
    h = ρ min(max(1, |x|), max(64 t, R / ‖J‖)): t is the larger of |x| at the start and now, R the largest |r| so far,
    and R / ‖J‖ how far the variable can matter, which keeps steps above rounding where a variable passes zero. A
    variable that is zero and began there has SciPy's.
    """

    start: Array | None = None
    largest: float = 0.0
    """R."""
    lengths: Array | None = None
    """‖J‖ of the columns, of the last Jacobian."""

    def meet(self, x: Array, residual: Array) -> None:
        """Be told of a point that a Jacobian is wanted at."""
        size = float(np.linalg.norm(residual.astype(float, copy=False)))
        self.largest = max(self.largest, size) if np.isfinite(size) else self.largest
        self.start = np.abs(x) if self.start is None else self.start

    def learn(self, jacobian: Any) -> None:
        """Keep the lengths of its columns."""
        from scipy.sparse import issparse

        squares = jacobian.multiply(jacobian) if issparse(jacobian) else jacobian * jacobian
        self.lengths = np.sqrt(np.asarray(squares.sum(axis=0), dtype=float)).reshape(-1)

    def at(self, x: Array, residual: Array, scheme: str) -> tuple[Array, float]:
        """|h|, and how many times SciPy's are as long at most."""
        relative = float(np.finfo(residual.dtype).eps) ** RELATIVE[scheme]
        usual = relative * np.maximum(1.0, np.abs(x))
        if self.lengths is None or self.start is None:
            return usual, 1.0
        t = np.maximum(np.abs(x), self.start)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            reach = self.largest / self.lengths
        own = relative * np.maximum(SHORT * t, reach)
        steps = np.where((t > 0) & (own < usual), own, usual)  # of a column that is no number, the usual
        return steps, float(np.max(usual / steps, initial=1.0))
