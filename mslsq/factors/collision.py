"""Keeping away from obstacles, by a field of signed distances."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.factors.places import place_of, pose_of
from mslsq.problem import CostFunction


class Collision(CostFunction):
    """A place keeps its distance from obstacles: the residual (1,) is max(margin − d, 0), d the signed distance there
    (Mukadam, Dong, Yan, Dellaert and Boots, "Continuous-time Gaussian process motion planning via probabilistic
    inference", 2018).

    The field is interpolated linearly between its nodes. Outside of it, d is that of the nearest place inside.

    Args:
        place: a point (2,) or (3,), or a pose.
        distance: `mslsq.Shared` field of signed distances, positive outside of obstacles, with the axes in the order of
            the coordinates: distance[i, j] belongs to origin + cell · (i, j).
        origin: (dim,), where the first node is, `Shared`.
        cell: the distance of two nodes, a number.
        margin: the distance that is wanted, with the radius of the body: a number, or () or (1,) per block.
        lever: (dim,), a point of the body in the frame of its pose; the origin by default.

    GTSAM has none; GPMP2 and Theseus have `ObstacleFactor`, `Collision2D`, whose fields have rows in y.

    >>> factors.Collision(pose[1:-1], distance=mslsq.Shared(field), origin=mslsq.Shared(corner), cell=0.1, margin=0.5)
    """

    def residual(
        self,
        place: Any,
        distance: Float[Tensor, "*nodes"],
        origin: Float[Tensor, "dim"],
        cell: float,
        margin: Tensor | float,
        lever: Float[Tensor, "dim"] | None = None,
    ) -> Float[Tensor, "1"]:
        at = place_of(place) if lever is None else pose_of(place).act(lever)
        margin = margin.reshape(1) if isinstance(margin, Tensor) else margin
        return torch.relu(margin - _interpolated(distance, (at - origin) / cell))


def _interpolated(field: Float[Tensor, "*nodes"], at: Float[Tensor, "dim"]) -> Float[Tensor, "1"]:
    """Linear in every coordinate, between the nodes around a place."""
    last = torch.tensor(field.shape, dtype=at.dtype, device=at.device) - 1
    at = torch.minimum(at.clamp(min=0), last)
    low = torch.minimum(at.floor(), last - 1)
    part, low = at - low, low.long()
    corners = [low.new_tensor([k >> d & 1 for d in range(len(at))]) for k in range(2 ** len(at))]
    total = at.new_zeros(())
    for corner in corners:
        share = torch.where(corner.bool(), part, 1 - part).prod()
        place = (low + corner)[:, None].unbind(0)  # one entry each: torch 2.9 reads indices without an axis under vmap
        total = total + share * field[place][0]
    return total.reshape(1)
