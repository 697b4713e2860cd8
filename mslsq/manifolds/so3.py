"""SO(3): rotations in space, stored as unit quaternions (qx, qy, qz, qw)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import quaternion
from mslsq.manifolds.components import cat
from mslsq.manifolds.lie_group import RigidGroup, dot, hat, hat_squared, normalized
from mslsq.manifolds.series import HalfAngle, cotangent_remainder, half_angle, sine_remainder
from mslsq.manifolds.validation import check_element, check_points, check_tangent


class SO3(RigidGroup):
    """Rotations in space. Storage (qx, qy, qz, qw), q and -q being the same rotation; tangent: the rotation vector.

    Example::

        R = mslsq.SO3.exp(torch.tensor([0.0, 0.0, torch.pi / 2]))
        R.act(torch.tensor([1.0, 0.0, 0.0]))     # (0, 1, 0)
    """

    storage_dim = 4
    tangent_dim = 3
    _identity = (0.0, 0.0, 0.0, 1.0)
    _unit = slice(0, 4)

    @classmethod
    def _storage_hint(cls) -> str:
        return " (qx, qy, qz, qw); for rotation matrices use SO3.from_matrix, for rotation vectors SO3.exp"

    def compose(self, other: Self) -> Self:
        check_element(self, "compose", other)
        return self._wrap(quaternion.product(self.storage, other.storage))

    def inverse(self) -> Self:
        return self._wrap(quaternion.conjugate(self.storage))

    def act(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        check_points(self, points, 3)
        return quaternion.rotate(self.storage, points)

    @classmethod
    def exp(cls, tangent: Float[Tensor, "*batch 3"]) -> Self:
        check_tangent(cls, tangent)
        half = 0.5 * tangent
        parts = half_angle(dot(half, half))
        return cls._wrap(cat([parts.sinc * half, parts.cosine]))

    def log(self) -> Float[Tensor, "*batch 3"]:
        return quaternion.logarithm(self.storage)[0]

    def adjoint(self) -> Float[Tensor, "*batch 3 3"]:
        return quaternion.matrix(self.storage)

    def matrix(self) -> Float[Tensor, "*batch 3 3"]:
        return quaternion.matrix(self.storage)

    @classmethod
    def _storage_of_matrix(cls, matrix: Tensor) -> Tensor:
        return quaternion.from_matrix(matrix)

    @staticmethod
    def hat(tangent: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
        """The skew matrix whose matrix exponential is `exp(tangent).matrix()`."""
        return hat(tangent)

    @classmethod
    def left_jacobian(cls, tangent: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
        """J with exp(x + dx) ≈ exp(J dx) exp(x): I + (1 - cos θ)/θ² [x] + (θ - sin θ)/θ³ [x]²."""
        half = half_angle(0.25 * dot(tangent, tangent))
        first, second = 0.5 * (half.sinc * half.sinc), sine_remainder(half)
        return _eye(tangent) + hat(first * tangent) + second[..., None] * hat_squared(tangent)

    @classmethod
    def left_jacobian_inverse(cls, tangent: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
        """The inverse of `left_jacobian`, for angles below 2 pi: I - [x]/2 + (1 - (θ/2) cot(θ/2))/θ² [x]²."""
        return cls._left_jacobian_inverse(tangent, half_angle(0.25 * dot(tangent, tangent)))

    @classmethod
    def _left_jacobian_inverse(cls, tangent: Tensor, half: HalfAngle) -> Tensor:
        second = 0.25 * cotangent_remainder(half)
        return _eye(tangent) + hat(-0.5 * tangent) + second[..., None] * hat_squared(tangent)

    @classmethod
    def _random_storage(cls, normal: Callable[[int], Tensor]) -> Tensor:
        return normalized(normal(4))


def _eye(like: Tensor) -> Tensor:
    return torch.eye(3, dtype=like.dtype, device=like.device)
