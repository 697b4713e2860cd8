"""What is left of blocks that were marginalised: a linear prior on those that they were joined to."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import space_of_value
from mslsq.manifolds.space import Space
from mslsq.problem.cost import CostFunction


class MarginalPrior(CostFunction):
    """A Gaussian on several blocks together: the residual is factor · δ + offset, with δ the tangent vectors
    `target.local(x)` of all blocks one after the other.

    `mslsq.marginalized` makes it. factorᵀ factor is the information of the blocks, factorᵀ offset the gradient at the
    targets (G. Sibley, L. Matthies, G. Sukhatme, "Sliding window filter with application to planetary landing", 2010).

    Args:
        x: variables, `variable[[i]]` each, of any kinds.
        targets: a tuple, for each of them where it was linearised: an element, or a tensor where it is Euclidean,
            with an axis of one block in front.
        factor: (1, rows, tangents of all).
        offset: (1, rows).
    """

    def residual(
        self, *x: Any, targets: tuple[Any, ...], factor: Float[Tensor, "rows all"], offset: Float[Tensor, "rows"]
    ) -> Float[Tensor, "rows"]:
        moved = [space.local(start, end) for space, start, end in _pairs(x, targets)]
        return (factor * torch.cat(moved)).sum(-1) + offset

    def jacobians(
        self, *x: Any, targets: tuple[Any, ...], factor: Float[Tensor, "rows all"], offset: Float[Tensor, "rows"]
    ) -> tuple[Float[Tensor, "rows tangent"], ...]:
        pairs = _pairs(x, targets)
        parts = factor.split([space.tangent_dim for space, _, _ in pairs], -1)
        return tuple(
            part @ space.jacobian_at_end(start, end) for part, (space, start, end) in zip(parts, pairs, strict=True)
        )

    curvature = CostFunction.curvature_from_jacobians


def _pairs(x: tuple[Any, ...], targets: tuple[Any, ...]) -> list[tuple[Space, Tensor, Tensor]]:
    """Per variable its space, and the storages of the target and of the value."""
    spaces = [space_of_value(target) for target in targets]
    return [
        (space, space.unwrap(target), space.unwrap(value))
        for space, target, value in zip(spaces, targets, x, strict=True)
    ]
