"""The user's residual and its Jacobian, called at one point at a time and counted."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mslsq.interop.scipy.steps import TOO_LONG, Steps

Array = NDArray[Any]
Workers = int | Callable[..., Any] | None
SCHEMES = ("2-point", "3-point", "cs")


@dataclass(frozen=True)
class Called:
    """A function with its further arguments; a class of a module, so that processes can be sent one."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, x: Array) -> Any:
        return self.function(x, *self.args, **self.kwargs)


@dataclass
class Opaque:
    """A residual r(x) of which nothing is known but its values, and its Jacobian.

    Args:
        residual: called with a copy of x, (n,); returns (m,) or a number.
        jac: one of `SCHEMES`, or a function that returns (m, n): an array, a sparse one, or a LinearOperator.
        bounds: (lower, upper), which differences do not leave.
        diff_step: relative steps of the differences; None for those of `Steps`.
        sparsity: which entries of the Jacobian can differ from zero, for the differences: (m, n); None for all.
        mapping: like `map`, takes the evaluations of one Jacobian at once; None for one after the other.
    """

    residual: Called
    jac: str | Called
    bounds: tuple[Array, Array]
    diff_step: Any = None
    sparsity: Any = None
    mapping: Any = None
    nfev: int = 0
    njev: int = 0
    _options: dict[str, Any] = field(default_factory=dict)
    _steps: Steps = field(default_factory=Steps)

    def at(self, x: Array) -> Array:
        """The residuals, in the user's own dtype: differences choose their steps by it."""
        self.nfev += 1
        found = np.array(self.residual(x.copy()), ndmin=1)  # a copy: the user may write into the same array again
        if np.iscomplexobj(found):
            raise ValueError("`fun` returned complex residuals: return real and imaginary parts one after the other.")
        return found if found.dtype.kind == "f" else found.astype(float)

    def jacobian(self, x: Array, residual: Array) -> Any:
        """The Jacobian: dense (m, n), a CSR array, or a LinearOperator.

        Args:
            residual: at x.
        """
        self.njev += 1
        found = self._differences(x, residual) if isinstance(self.jac, str) else self.jac(x.copy())
        if isinstance(found, np.ndarray):
            return np.array(found, dtype=float, ndmin=2)  # a copy, as in `at`
        from scipy.sparse import csr_array, issparse
        from scipy.sparse.linalg import LinearOperator

        if issparse(found):
            return csr_array(found, dtype=float)
        return found if isinstance(found, LinearOperator) else np.array(found, dtype=float, ndmin=2)

    def refine(self) -> bool:
        """Take central differences from now on, if forward ones were taken: their steps are 400 times as long, and the
        rounding of residuals that is left in a Jacobian smaller by as much."""
        if not isinstance(self.jac, str) or self.jac != "2-point":
            return False
        self.jac = "3-point"
        self._options = {}
        return True

    def gradient_noise(self, x: Array, residual: Array) -> Array | None:
        """What rounding of the residuals can make of each entry of a gradient by finite differences: 4 ε |r|² / h with
        steps h; None where the Jacobian is not by real differences."""
        if not isinstance(self.jac, str) or self.jac == "cs":
            return None
        eps = float(np.finfo(residual.dtype).eps)
        steps, _ = self._steps.at(x, residual, str(self.jac))
        if self.diff_step is not None:
            own = np.abs(np.asarray(self.diff_step, dtype=float) * x)
            steps = np.where(own > 0, own, steps)
        real = residual.astype(float, copy=False)
        return 4 * eps * float(real @ real) / steps

    def _differences(self, x: Array, residual: Array) -> Any:
        if self.diff_step is not None:
            return self._differences_by(x, residual, {"rel_step": self.diff_step})
        self._steps.meet(x, residual)
        found = self._differences_by(x, residual, self._own_steps(x, residual))
        if self._steps.lengths is None:  # only a Jacobian tells how long its steps should have been
            self._steps.learn(found)
            if self._steps.at(x, residual, str(self.jac))[1] > TOO_LONG:
                found = self._differences_by(x, residual, self._own_steps(x, residual))
        self._steps.learn(found)
        return found

    def _own_steps(self, x: Array, residual: Array) -> dict[str, Any]:
        """What SciPy is to be told of the steps; nothing where its own are right."""
        steps, longer = self._steps.at(x, residual, str(self.jac))
        return {"abs_step": np.where(x >= 0, steps, -steps)} if longer > 1 else {}

    def _differences_by(self, x: Array, residual: Array, steps: dict[str, Any]) -> Any:
        # SciPy has no public name for differences of vectors by all three schemes, with bounds and sparsity; this one
        # is documented there and has kept its arguments since 0.17.
        from scipy.optimize._numdiff import approx_derivative, group_columns

        if not self._options:
            self._options = {"method": self.jac, "bounds": self.bounds}
            if self.sparsity is not None:
                self._options["sparsity"] = self.sparsity, group_columns(self.sparsity)
            if self.mapping is not None:
                self._options["workers"] = self.mapping
        return approx_derivative(self.residual, x, f0=residual, **steps, **self._options)


@contextlib.contextmanager
def mapping_of(workers: Workers) -> Iterator[Any]:
    """A function like `map` for these workers: a number of processes (-1 for all processors), or such a function."""
    if workers is None or callable(workers) or workers in (0, 1):
        yield workers if callable(workers) else None
        return
    with multiprocessing.Pool(None if workers < 0 else workers) as pool:
        yield pool.map
