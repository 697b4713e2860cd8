"""The base of the adjoints: strategies for passing derivatives through a solve, that no solver knows of."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linearize.blocks import Values

if TYPE_CHECKING:
    from mslsq.adjoint.attachment import Attachment


class AdjointOptionError(ValueError):
    """An option of an adjoint has a value that is not valid."""


class DerivativeOrderError(RuntimeError):
    """A derivative was asked for that the adjoint does not provide; it would have been silently wrong."""


@dataclass(frozen=True)
class Adjoint:
    """Base of the adjoints.

    An adjoint is asked after the solve, if anybody differentiates at all: given the answer, without derivatives, it
    returns the same numbers with derivatives. It says beforehand what it needs of the solve.
    """

    keeps_trajectory: ClassVar[bool] = False
    """Does it need the steps of the solver?"""
    differentiates_start: ClassVar[bool] = False
    """Does the result have a derivative in the start?"""

    @property
    def factors(self) -> str | None:
        """Which Hessian the solve should factor at the solution: "exact", "gauss_newton" or None."""
        return None

    @property
    def highest_order(self) -> int | None:
        """The highest derivative that is right; None where there is no limit."""
        return None

    def inverse(self, linear: LinearSolver, factor: Tensor, vector: Tensor) -> Tensor:
        """H⁻¹ applied to (batch, columns), by the factor that the solve has returned."""
        return linear.solve_factored(factor, vector)

    def attach(self, attachment: "Attachment") -> tuple[Values, Tensor]:
        """Values (batch, count, storage) and cost (batch,) of the answer, with derivatives."""
        raise NotImplementedError(f"{type(self).__name__} must define attach(attachment).")


@dataclass(frozen=True)
class Detached(Adjoint):
    """No derivatives: the solution is a constant."""

    def attach(self, attachment: "Attachment") -> tuple[Values, Tensor]:
        return attachment.answer.values, attachment.answer.cost
