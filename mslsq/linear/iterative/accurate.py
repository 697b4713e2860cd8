"""Solves that derivatives may rely on: conjugate gradients, begun again until their true residual is small.

Asking a device whether all entries are solved waits for all that it has been told to do. So there a solve makes as many
iterations as the ones before it took, and then asks once, for its true residual and for what it has taken; one that was
allowed too few goes on as on a CPU, where asking costs nothing.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.iterative.conjugate_gradients import always, conjugate_gradients
from mslsq.linear.iterative.linear_operators import Operator, Vectors

EXACT = {torch.float64: 1e-12, torch.float32: 1e-6}
"""Relative residual that is aimed at."""

ENOUGH = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Relative residual, recomputed from the matrix, above which a solve counts as failed: what recurrences lose to
rounding in badly conditioned systems is within it."""

ROUNDS = 4
"""How often a solve is begun again."""

SETTLED = 10.0
"""Times `EXACT`: the true residual with which a device is not asked for another round."""

MARGIN, EXTRA = 1.2, 2
"""In what is foreseen."""

FORGETTING = 0.98
"""What is left of a foreseen number after a solve that took less: right-hand sides and steps take different ones."""


@dataclass
class Foreseen:
    """How many iterations the next solve of a system of this structure makes without looking; changes from solve to
    solve."""

    iterations: int | None = None
    """None before the first."""

    def note(self, taken: int) -> None:
        """What a solve has taken."""
        self.iterations = max(math.ceil(MARGIN * taken) + EXTRA, math.ceil(FORGETTING * (self.iterations or 0)))


class Accurate(NamedTuple):
    """What a solve came to."""

    solution: Vectors
    residual: Float[Tensor, "entries"]
    """‖b − Ax‖ / ‖b‖ in the norm of the preconditioner, recomputed from the matrix."""
    converged: Bool[Tensor, "entries"]
    definite: Bool[Tensor, "entries"]
    """Did A look positive definite on the way?"""


def solve_accurately(
    operator: Operator, rhs: Vectors, max_iterations: int, foreseen: Foreseen | None = None, asks: bool = True
) -> Accurate:
    """A⁻¹ rhs as exactly as the dtype of `rhs` allows.

    Args:
        rhs: (entries, columns), the entries a multiple of the operator's batch: several for each matrix in turn.
        max_iterations: of every round.
        foreseen: by the solves before, of which this one takes note; of use on another device than a CPU.
        asks: may it look at its numbers? Otherwise another device makes all iterations of two rounds, and the residual
            tells what has come of it.
    """
    blind = rhs.device.type != "cpu" and not asks
    foreseen = None if blind or rhs.device.type == "cpu" else foreseen
    enough = EXACT[rhs.dtype] if foreseen is None else SETTLED * EXACT[rhs.dtype]
    repeat = len(rhs) // max(len(operator.definite), 1)
    length = (rhs * operator.precondition(rhs)).sum(-1)
    length = torch.where(length > 0, length, 1)
    x, left = torch.zeros_like(rhs), rhs
    definite = operator.definite.repeat_interleave(repeat)
    residual, taken = torch.full_like(length, torch.inf), rhs.new_zeros((), dtype=torch.int64)
    for number in range(2 if blind else ROUNDS):
        allowed, goes_on = max_iterations, always if blind else operator.is_wanted
        if number == 0 and foreseen is not None and foreseen.iterations is not None:
            allowed, goes_on = min(foreseen.iterations, max_iterations), always
        # A new round aims below the first by as much as is left.
        tolerance = (EXACT[rhs.dtype] / residual.clamp(max=1)).clamp(max=0.1)
        given = operator.multiply, left, operator.precondition, tolerance, allowed
        result = conjugate_gradients(*given, goes_on=goes_on)
        definite = definite & result.definite
        moved = x + result.solution
        left_after = rhs - operator.multiply(moved)
        after = ((left_after * operator.precondition(left_after)).sum(-1).clamp(min=0) / length).sqrt()
        better = after < residual
        x, left = torch.where(better[:, None], moved, x), torch.where(better[:, None], left_after, left)
        residual = torch.where(better, after, residual)
        if blind:
            continue
        again = (residual > enough) & better
        if foreseen is not None and len(rhs):
            taken = taken + result.iterations.amax()
            goes_again = _told(again, taken, foreseen)
        else:
            goes_again = operator.goes_on(again)
        if not goes_again:
            break
    return Accurate(x, residual, residual <= ENOUGH[rhs.dtype], definite)


def _told(again: Bool[Tensor, "entries"], taken: Tensor, foreseen: Foreseen) -> bool:
    """Is an entry to be begun again? With the answer comes what the solve has taken so far."""
    goes_on, iterations = torch.stack((again.any().to(torch.int64), taken)).tolist()
    foreseen.note(iterations)
    return bool(goes_on)


def random_rhs(columns: int, like: Tensor) -> Float[Tensor, "batch columns"]:
    """The same normal random right-hand side for every entry of a batch: it has a part in every direction."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(columns, generator=generator, dtype=like.dtype, device="cpu").to(like.device).expand(len(like), -1)
    )
