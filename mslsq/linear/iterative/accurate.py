"""Solves that derivatives may rely on: conjugate gradients, begun again until their true residual is small."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.iterative.conjugate_gradients import conjugate_gradients
from mslsq.linear.iterative.linear_operators import Operator, Vectors

EXACT = {torch.float64: 1e-12, torch.float32: 1e-6}
"""Relative residual that is aimed at."""

ENOUGH = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Relative residual, recomputed from the matrix, above which a solve counts as failed: what recurrences lose to
rounding in badly conditioned systems is within it."""

ROUNDS = 4
"""How often a solve is begun again."""


class Accurate(NamedTuple):
    """What a solve came to."""

    solution: Vectors
    residual: Float[Tensor, "entries"]
    """‖b − Ax‖ / ‖b‖ in the norm of the preconditioner, recomputed from the matrix."""
    converged: Bool[Tensor, "entries"]
    definite: Bool[Tensor, "entries"]
    """Did A look positive definite on the way?"""


def solve_accurately(operator: Operator, rhs: Vectors, max_iterations: int) -> Accurate:
    """A⁻¹ rhs as exactly as the dtype of `rhs` allows.

    Args:
        rhs: (entries, columns), the entries a multiple of the operator's batch: several for each matrix in turn.
        max_iterations: of every round.
    """
    repeat = len(rhs) // max(len(operator.definite), 1)
    length = (rhs * operator.precondition(rhs)).sum(-1)
    length = torch.where(length > 0, length, 1)
    x, left = torch.zeros_like(rhs), rhs
    definite = operator.definite.repeat_interleave(repeat)
    residual = torch.full_like(length, torch.inf)
    for _ in range(ROUNDS):
        # A new round aims below the first by as much as is left.
        tolerance = (EXACT[rhs.dtype] / residual.clamp(max=1)).clamp(max=0.1)
        given = operator.multiply, left, operator.precondition, tolerance, max_iterations
        result = conjugate_gradients(*given, goes_on=operator.is_wanted)
        definite = definite & result.definite
        moved = x + result.solution
        left_after = rhs - operator.multiply(moved)
        after = ((left_after * operator.precondition(left_after)).sum(-1).clamp(min=0) / length).sqrt()
        better = after < residual
        x, left = torch.where(better[:, None], moved, x), torch.where(better[:, None], left_after, left)
        residual = torch.where(better, after, residual)
        if not operator.goes_on((residual > EXACT[rhs.dtype]) & better):
            break
    return Accurate(x, residual, residual <= ENOUGH[rhs.dtype], definite)


def random_rhs(columns: int, like: Tensor) -> Float[Tensor, "batch columns"]:
    """The same normal random right-hand side for every entry of a batch: it has a part in every direction."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(columns, generator=generator, dtype=like.dtype, device="cpu").to(like.device).expand(len(like), -1)
    )
