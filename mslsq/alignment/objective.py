"""The alignment objective: a cost function like any user's, one block per sample of the reference.

r(u) = m(u) · [exp(α) · I(T u) + b - I_ref(u)]

All samples refer to one warp and one pair (α, b). The Jacobian is analytic: the spline's own gradient through
`Warp.pull_back`; nothing of size pixels x parameters is differentiated automatically.
"""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

import mslsq
import mslsq.losses
from mslsq.alignment.models import MODELS, Warp
from mslsq.alignment.sampling import sample, sample_with_gradient

LOSSES: dict[str, type[mslsq.losses.RobustLoss]] = {
    "cauchy": mslsq.Cauchy,
    "huber": mslsq.Huber,
    "tukey": mslsq.Tukey,
    "geman_mcclure": mslsq.GemanMcClure,
}
"""Robust losses by name; their scale is `tuning` times the noise's sigma, re-estimated before every solve."""


Jacobians = tuple[Float[Tensor, "channels tangent"], Float[Tensor, "channels 2"]]


class Photometric(mslsq.CostFunction):
    """The difference between a map, warped and corrected in value, and the reference, at one sample.

    Data per block: `point` (2,) in normalised coordinates, `target` (channels,), `valid` () 1 or 0, frozen during a
    solve. Shared: `coefficients` (channels, H, W) of the map's spline, `to_level` (3,): pixel of the level =
    to_level[0] · H n + to_level[1:], `freedom` (2,): 1 or 0, whether gain and bias are free.
    """

    chunk = 1 << 16

    def residual(
        self,
        warp: Warp,
        value: Float[Tensor, "2"],
        point: Float[Tensor, "2"],
        target: Float[Tensor, " channels"],
        valid: Float[Tensor, ""],
        coefficients: Float[Tensor, "channels height width"],
        to_level: Float[Tensor, "3"],
        freedom: Float[Tensor, "2"],
    ) -> Float[Tensor, " channels"]:
        value = value * freedom
        sampled = sample(coefficients, warp.act(point) * to_level[0] + to_level[1:])
        return valid * (value[0].exp() * sampled + value[1] - target)

    def residual_and_jacobians(
        self,
        warp: Warp,
        value: Float[Tensor, "2"],
        point: Float[Tensor, "2"],
        target: Float[Tensor, " channels"],
        valid: Float[Tensor, ""],
        coefficients: Float[Tensor, "channels height width"],
        to_level: Float[Tensor, "3"],
        freedom: Float[Tensor, "2"],
    ) -> tuple[Float[Tensor, " channels"], Jacobians]:
        """Both from one look at the map: its samples are what an alignment spends its time on."""
        log_gain, bias = value * freedom
        moved, depth = warp.act_and_depth(point)
        sampled, gradient = sample_with_gradient(coefficients, moved * to_level[0] + to_level[1:])
        corrected = log_gain.exp() * sampled
        by_warp = warp.pull_back((valid * log_gain.exp() * to_level[0]) * gradient, point, (moved, depth))
        by_value = torch.stack([corrected * freedom[0], torch.ones_like(sampled) * freedom[1]], -1)
        return valid * (corrected + bias - target), (by_warp, valid * by_value)

    def jacobians(self, warp: Warp, value: Float[Tensor, "2"], **data: Tensor) -> Jacobians:
        return self.residual_and_jacobians(warp, value, **data)[1]


class Held(mslsq.CostFunction):
    """Zero for a gain or bias that is free, itself for one that is not: with it the samples determine both.

    Shared: `freedom` (2,).
    """

    def residual(self, value: Float[Tensor, "2"], freedom: Float[Tensor, "2"]) -> Float[Tensor, "2"]:
        return (1 - freedom) * value


@lru_cache(maxsize=64)
def photometric_problem(
    model: str,
    blocks: int,
    shape: tuple[int, int, int],
    loss: str | None,
    dtype: torch.dtype,
    device: torch.device,
    held: bool = False,
) -> mslsq.Problem:
    """The problem for data of these shapes, with placeholders: what `solve` has traced for one pair serves every pair
    like it. With `held` it has a cost of that name, for a covariance, which needs all variables determined."""
    like = torch.zeros((), dtype=dtype, device=device)
    robust = None if loss is None else LOSSES[loss](like.new_ones(()))
    value = mslsq.Variable("value", mslsq.Euclidean(2))
    return mslsq.Problem(
        Photometric(
            mslsq.Variable("warp", MODELS[model]),
            value,
            # One zero, seen as often as there are entries: a cached problem holds no memory of its size.
            point=like.expand(blocks, 2),
            target=like.expand(blocks, shape[0]),
            valid=like.expand(blocks),
            coefficients=mslsq.Shared(like.expand(shape)),
            to_level=mslsq.Shared(like.new_ones(3)),
            freedom=mslsq.Shared(like.new_ones(2)),
            loss=robust,
            name="photometric",
        ),
        *([Held(value, freedom=mslsq.Shared(like.new_ones(2)), name="held")] if held else []),
    )
