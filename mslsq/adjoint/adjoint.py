"""How derivatives pass through a solve, as strategy objects that no solver knows of."""

from dataclasses import dataclass
from typing import Literal


class AdjointOptionError(ValueError):
    """An option of an adjoint has a value that makes no sense."""


@dataclass(frozen=True)
class Adjoint:
    """Base of the adjoints."""


@dataclass(frozen=True)
class Implicit(Adjoint):
    """The implicit function theorem on the full gradient of the cost: exact, also where residuals are not zero at the solution.

    At a minimum F(x, d) = ∇ₓ ½Σρ = 0, so dx/dd = −H⁻¹ ∂F/∂d with the exact Hessian H = ∂F/∂x. (Dropping the second
    derivatives of the residuals from H, as Theseus does, biases the derivative as soon as residuals are not zero.) All derivatives up to
    `order` come from `order` chord steps x ← x − H⁻¹F(x, d) that keep H's factor, in forward and in reverse mode.

    Memory does not depend on the number of solver steps. A problem that did not converge, or whose Hessian is not positive definite, has
    no such derivative: it gets NaN (`failed="nan"`) or zero (`failed="zero"`), and leaves all others alone.

    Args:
        order: highest derivative that will be taken.
        failed: what a derivative is where there is none.
    """

    order: int = 2
    failed: Literal["nan", "zero"] = "nan"

    def __post_init__(self) -> None:
        if not isinstance(self.order, int) or self.order < 1:
            raise AdjointOptionError(f"Implicit: order must be a positive integer, not {self.order!r}.")
        if self.failed not in ("nan", "zero"):
            raise AdjointOptionError(f"Implicit: failed must be 'nan' or 'zero', not {self.failed!r}.")
