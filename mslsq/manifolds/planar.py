"""Rotations (and similarities) of the plane as complex numbers (real, imaginary), the storage of SO2, SE2 and Sim2."""

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds.components import cat
from mslsq.manifolds.lie_group import normalized
from mslsq.manifolds.series import THRESHOLD, sine_tail

Complex = Float[Tensor, "*batch 2"]
Scalar = Float[Tensor, "*batch 1"]


def product(a: Complex, b: Complex) -> Complex:
    """The product of two complex numbers; with |a| = 1: the point b turned by the angle of a."""
    return a[..., :1] * b + a[..., 1:] * cat([-b[..., 1:], b[..., :1]])


def conjugate(z: Complex) -> Complex:
    """The inverse of a rotation."""
    return cat([z[..., :1], -z[..., 1:]])


def angle(z: Complex) -> Scalar:
    """In [-pi, pi]; the same for all positive multiples of z."""
    return torch.atan2(z[..., 1:], z[..., :1])


def half(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """(cos x, sin x, sin(x)/x), with all derivatives right at x = 0."""
    x2 = x * x
    small = x2 < THRESHOLD
    sine = x.sin()
    x2 = x2.clamp(max=THRESHOLD)
    return x.cos(), sine, torch.where(small, 1.0 - x2 * sine_tail(x2), sine / x.masked_fill(small, 1.0))


def from_matrix(m: Float[Tensor, "*batch rows columns"]) -> Complex:
    """The (cos, sin) of the upper left 2 x 2 block of a matrix."""
    return normalized(torch.stack([m[..., 0, 0] + m[..., 1, 1], m[..., 1, 0] - m[..., 0, 1]], -1))
