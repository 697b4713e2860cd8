"""Motion between times: a Gaussian process whose acceleration is white noise."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import space_of_value
from mslsq.problem import CostFunction, SqrtInformation


class ConstantVelocity(CostFunction):
    """The prior of a Gaussian process whose acceleration is white noise: the velocity stays as it is, but for that.

    With γ = a.local(b) the residual (2 tangent,) is

        (γ − dt velocity_a,  J_r⁻¹(γ) velocity_b − velocity_a)

    with the inverse right Jacobian of the group, one of Euclidean variables (Barfoot, Tong and Särkkä, "Batch
    continuous-time trajectory estimation as exactly sparse Gaussian process regression", 2014; Anderson and Barfoot,
    "Full STEAM ahead", 2015). `white_acceleration(dt, density)` is its weight.

    Args:
        a: a pose or a point at the first time: on a Lie group, Euclidean, or a product by dict.
        velocity_a: its velocity in the tangent of a, Euclidean(tangent): on a group the one in the frame of the body.
        b, velocity_b: those at the second time.
        dt: () or (1,), from the first time to the second.

    GTSAM: `WnoaMotionFactorPose3`, `WnoaMotionFactorPoint3` and so on.

    >>> dt, states = times.diff(), (pose[i], speed[i], pose[i + 1], speed[i + 1])
    >>> factors.ConstantVelocity(*states, dt=dt, weight=factors.white_acceleration(dt, density))
    """

    def residual(
        self,
        a: Any,
        velocity_a: Float[Tensor, "tangent"],
        b: Any,
        velocity_b: Float[Tensor, "tangent"],
        dt: Tensor,
    ) -> Float[Tensor, "twice"]:
        space = space_of_value(a)
        start, end = space.unwrap(a), space.unwrap(b)
        moved = space.local(start, end) - dt.reshape(1) * velocity_a
        turned = (space.jacobian_at_end(start, end) * velocity_b).sum(-1)
        return torch.cat((moved, turned - velocity_a))


def white_acceleration(dt: Float[Tensor, "*blocks"], density: Float[Tensor, "tangent"]) -> SqrtInformation:
    """The weight of `ConstantVelocity`: its residual has the covariance [[dt³/3, dt²/2], [dt²/2, dt]] ⊗ diag(density).

    Args:
        dt: (blocks,), or () for all of them; positive.
        density: power spectral density of the acceleration, for every component of the tangent, (tangent,).

    Raises:
        ValueError: a time or a density that is not positive.
    """
    if not bool((dt > 0).all()) or not bool((density > 0).all()):
        raise ValueError("white_acceleration: dt and density must be positive; give times in their order.")
    one = torch.diag_embed((1 / density).sqrt())
    dt = dt[..., None, None]
    upper = torch.cat(((12 / dt**3).sqrt() * one, -(3 / dt).sqrt() * one), -1)
    lower = (1 / dt).sqrt() * one
    return SqrtInformation(torch.cat((upper, torch.cat((torch.zeros_like(lower), lower), -1)), -2))
