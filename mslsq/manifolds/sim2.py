"""Sim(2): similarities of the plane, stored as (x, y, cos, sin, scale)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import planar
from mslsq.manifolds.lie_group import LieGroup, normalized
from mslsq.manifolds.series import half_angle
from mslsq.manifolds.similarity import translation_coefficients
from mslsq.manifolds.so2 import SO2
from mslsq.manifolds.validation import check_element, check_points, check_tangent


class Sim2(LieGroup):
    """Similarities p -> s R p + t of the plane. Storage (x, y, cos θ, sin θ, s) with the scale s > 0 itself; tangent
    (translation, angle, log scale).

    Example::

        S = mslsq.Sim2.exp(torch.tensor([0.0, 0.0, torch.pi / 2, 0.0]))
        S.act(torch.tensor([1.0, 0.0]))          # (0, 1)
    """

    storage_dim = 5
    tangent_dim = 4
    _identity = (0.0, 0.0, 1.0, 0.0, 1.0)
    _unit = slice(2, 4)

    @classmethod
    def _storage_hint(cls) -> str:
        return " (x, y, cos, sin, scale); for 3 x 3 matrices use Sim2.from_matrix, for tangent vectors Sim2.exp"

    @property
    def translation(self) -> Float[Tensor, "*batch 2"]:
        return self.storage[..., :2]

    @property
    def rotation(self) -> SO2:
        return SO2._wrap(self.storage[..., 2:4])

    @property
    def scale(self) -> Float[Tensor, "*batch 1"]:
        return self.storage[..., 4:]

    def compose(self, other: Self) -> Self:
        check_element(self, "compose", other)
        z, s = self.storage[..., 2:4], self.storage[..., 4:]
        moved = torch.addcmul(self.storage[..., :2], s, planar.product(z, other.storage[..., :2]))
        turned = normalized(planar.product(z, other.storage[..., 2:4]))
        return self._wrap(torch.cat([moved, turned, s * other.storage[..., 4:]], -1))

    def inverse(self) -> Self:
        z, s = planar.conjugate(self.storage[..., 2:4]), self.storage[..., 4:].reciprocal()
        return self._wrap(torch.cat([-s * planar.product(z, self.storage[..., :2]), z, s], -1))

    def act(self, points: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        check_points(self, points, 2)
        turned = planar.product(self.storage[..., 2:4], points)
        return torch.addcmul(self.storage[..., :2], self.storage[..., 4:], turned)

    @classmethod
    def exp(cls, tangent: Float[Tensor, "*batch 4"]) -> Self:
        check_tangent(cls, tangent)
        angle, sigma = tangent[..., 2:3], tangent[..., 3:]
        translation = planar.product(_mean_motion(sigma, angle), tangent[..., :2])
        return cls._wrap(torch.cat([translation, angle.cos(), angle.sin(), sigma.exp()], -1))

    def log(self) -> Float[Tensor, "*batch 4"]:
        angle, sigma = planar.angle(self.storage[..., 2:4]), self.storage[..., 4:].log()
        mean = _mean_motion(sigma, angle)
        inverse = planar.conjugate(mean) / (mean * mean).sum(-1, keepdim=True)
        return torch.cat([planar.product(inverse, self.storage[..., :2]), angle, sigma], -1)

    def adjoint(self) -> Float[Tensor, "*batch 4 4"]:
        x, y, c, s, scale = self.storage.unbind(-1)
        a, b, o = scale * c, scale * s, torch.zeros_like(c)
        entries = [a, -b, y, -x, b, a, -x, -y, o, o, o + 1.0, o, o, o, o, o + 1.0]
        return torch.stack(entries, -1).unflatten(-1, (4, 4))

    def matrix(self) -> Float[Tensor, "*batch 3 3"]:
        x, y, c, s, scale = self.storage.unbind(-1)
        a, b, o = scale * c, scale * s, torch.zeros_like(c)
        return torch.stack([a, -b, x, b, a, y, o, o, o + 1.0], -1).unflatten(-1, (3, 3))

    @classmethod
    def _storage_of_matrix(cls, matrix: Tensor) -> Tensor:
        linear = matrix[..., :2, :2]
        scale = (0.5 * (linear * linear).sum((-1, -2))).sqrt()[..., None]
        return torch.cat([matrix[..., :2, 2], planar.from_matrix(matrix), scale], -1)

    @classmethod
    def _random_storage(cls, normal: Callable[[int], Tensor]) -> Tensor:
        storage = normal(5)
        return torch.cat([storage[..., :2], normalized(storage[..., 2:4]), (0.3 * storage[..., 4:]).exp()], -1)


def _mean_motion(sigma: Tensor, angle: Tensor) -> Tensor:
    """(exp(z) - 1)/z of z = σ + iθ, as a complex number: the mean of exp(τ z) over τ in [0, 1]."""
    angle2 = angle * angle
    a, b, c = translation_coefficients(sigma, angle2, half_angle(0.25 * angle2))
    return torch.cat([a - angle2 * c, angle * b], -1)
