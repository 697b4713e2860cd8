"""Sim(3): similarities of space, stored as (x, y, z, qx, qy, qz, qw, scale)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import quaternion
from mslsq.manifolds.components import cross
from mslsq.manifolds.lie_group import LieGroup, dot, hat, normalized
from mslsq.manifolds.series import half_angle
from mslsq.manifolds.similarity import inverse_coefficients, translation_coefficients
from mslsq.manifolds.so3 import SO3
from mslsq.manifolds.validation import check_element, check_points, check_tangent


class Sim3(LieGroup):
    """Similarities p -> s R p + t of space. Storage (x, y, z, qx, qy, qz, qw, s) with the scale s > 0 itself; tangent
    (translation, rotation vector, log scale).

    Example::

        S = mslsq.Sim3.exp(torch.randn(10, 7))
        S.act(points), S.scale                   # (10, 3), (10, 1)
    """

    storage_dim = 8
    tangent_dim = 7
    _identity = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    _unit = slice(3, 7)

    @classmethod
    def _storage_hint(cls) -> str:
        return (
            " (x, y, z, qx, qy, qz, qw, scale); for 4 x 4 matrices use Sim3.from_matrix, for tangent vectors Sim3.exp"
        )

    @property
    def translation(self) -> Float[Tensor, "*batch 3"]:
        return self.storage[..., :3]

    @property
    def rotation(self) -> SO3:
        return SO3._wrap(self.storage[..., 3:7])

    @property
    def scale(self) -> Float[Tensor, "*batch 1"]:
        return self.storage[..., 7:]

    def compose(self, other: Self) -> Self:
        check_element(self, "compose", other)
        q, s = self.storage[..., 3:7], self.storage[..., 7:]
        moved = torch.addcmul(self.storage[..., :3], s, quaternion.rotate(q, other.storage[..., :3]))
        turned = quaternion.product(q, other.storage[..., 3:7])
        return self._wrap(torch.cat([moved, turned, s * other.storage[..., 7:]], -1))

    def inverse(self) -> Self:
        q, s = quaternion.conjugate(self.storage[..., 3:7]), self.storage[..., 7:].reciprocal()
        return self._wrap(torch.cat([-s * quaternion.rotate(q, self.storage[..., :3]), q, s], -1))

    def act(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        check_points(self, points, 3)
        turned = quaternion.rotate(self.storage[..., 3:7], points)
        return torch.addcmul(self.storage[..., :3], self.storage[..., 7:], turned)

    @classmethod
    def exp(cls, tangent: Float[Tensor, "*batch 7"]) -> Self:
        check_tangent(cls, tangent)
        rho, phi, sigma = tangent[..., :3], tangent[..., 3:6], tangent[..., 6:]
        angle2 = dot(phi, phi)
        half = half_angle(0.25 * angle2)
        translation = _apply(translation_coefficients(sigma, angle2, half), phi, rho)
        return cls._wrap(torch.cat([translation, 0.5 * half.sinc * phi, half.cosine, sigma.exp()], -1))

    def log(self) -> Float[Tensor, "*batch 7"]:
        phi, _ = quaternion.logarithm(self.storage[..., 3:7])
        sigma = self.storage[..., 7:].log()
        angle2 = dot(phi, phi)
        coefficients = inverse_coefficients(sigma, angle2, half_angle(0.25 * angle2))
        rho = _apply(coefficients, phi, self.storage[..., :3])
        return torch.cat([rho, phi, sigma], -1)

    def adjoint(self) -> Float[Tensor, "*batch 7 7"]:
        rotation = quaternion.matrix(self.storage[..., 3:7])
        translation = self.storage[..., :3]
        column = torch.zeros_like(translation)[..., None]
        first = torch.cat(
            [self.storage[..., 7:, None] * rotation, hat(translation) @ rotation, -translation[..., None]], -1
        )
        second = torch.cat([torch.zeros_like(rotation), rotation, column], -1)
        last = torch.cat([column.mT, column.mT, torch.ones_like(self.storage[..., :1, None])], -1)
        return torch.cat([first, second, last], -2)

    def matrix(self) -> Float[Tensor, "*batch 4 4"]:
        linear = self.storage[..., 7:, None] * quaternion.matrix(self.storage[..., 3:7])
        top = torch.cat([linear, self.storage[..., :3, None]], -1)
        zeros = torch.zeros_like(self.storage[..., None, :3])
        return torch.cat([top, torch.cat([zeros, zeros[..., :1] + 1.0], -1)], -2)

    @classmethod
    def _storage_of_matrix(cls, matrix: Tensor) -> Tensor:
        linear = matrix[..., :3, :3]
        scale = ((linear * linear).sum((-1, -2)) / 3.0).sqrt()[..., None]  # |s R|² = 3 s² in Frobenius' norm
        q = quaternion.from_matrix(linear / scale[..., None])
        return torch.cat([matrix[..., :3, 3], q, scale], -1)

    @classmethod
    def _random_storage(cls, normal: Callable[[int], Tensor]) -> Tensor:
        rest, rotation = normal(4), normalized(normal(4))
        return torch.cat([rest[..., :3], rotation, (0.3 * rest[..., 3:]).exp()], -1)


def _apply(coefficients: tuple[Tensor, Tensor, Tensor], phi: Tensor, vector: Tensor) -> Tensor:
    """(a + b [φ] + c [φ]²) applied to a vector."""
    a, b, c = coefficients
    turn = cross(phi, vector)
    return a * vector + b * turn + c * cross(phi, turn)
