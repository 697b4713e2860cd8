"""The base of the adjoints: strategies for passing derivatives through a solve, that no solver knows of."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from mslsq.adjoint.outputs import Attached, Ended, Prepared
from mslsq.solution import Status

if TYPE_CHECKING:
    from mslsq.adjoint.attachment import Attachment


FAILED = ("nan", "zero")
"""What the derivatives of a problem that has none may be."""


class AdjointOptionError(ValueError):
    """An option of an adjoint has a value that is not valid."""


class DerivativeOrderError(RuntimeError):
    """A derivative was asked for that the adjoint does not provide; it would have been silently wrong."""


@dataclass(frozen=True)
class Adjoint:
    """Base of the adjoints.

    An adjoint is asked twice after the solve, if anybody differentiates at all: `prepare` looks at the plain tensors of
    its end, inside of all transforms; `attach` is given the answer without derivatives, and returns the same numbers
    with derivatives. It says beforehand what it needs of the solve.
    """

    keeps_trajectory: ClassVar[bool] = False
    """Does it need the steps of the solver?"""
    differentiates_start: ClassVar[bool] = False
    """Does the result have a derivative in the start?"""

    @property
    def highest_order(self) -> int | None:
        """The highest derivative that is right; None where there is no limit."""
        return None

    def prepare(self, ended: Ended) -> Prepared:
        """Which problems have a derivative, and what `attach` will need; gradients are off.

        Derivatives of the iteration itself exist wherever its numbers are finite.
        """
        values, status = ended.outcome.values, ended.outcome.status
        finite = torch.stack([torch.isfinite(x).all(-1).all(-1) for x in values]).all(0)
        return unprepared(ended)._replace(differentiable=finite & (status != Status.NON_FINITE))

    def attach(self, attachment: "Attachment") -> Attached:
        """Values and cost of the answer, with derivatives."""
        raise NotImplementedError(f"{type(self).__name__} must define attach(attachment).")


@dataclass(frozen=True)
class Detached(Adjoint):
    """No derivatives: the solution is a constant."""

    def attach(self, attachment: "Attachment") -> Attached:
        return Attached(attachment.answer.values, attachment.answer.cost)


def unprepared(ended: Ended) -> Prepared:
    """Where no derivatives are taken: a problem that has converged has a derivative, as far as is known."""
    cost, status = ended.outcome.cost, ended.outcome.status
    converged = (status >= Status.COST_TOLERANCE) & (status <= Status.STEP_TOLERANCE)
    return Prepared(converged, torch.full_like(cost, torch.nan), cost.new_zeros(0))
