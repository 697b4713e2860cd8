"""SE(3): rigid motions in space, stored as (x, y, z, qx, qy, qz, qw)."""

from __future__ import annotations

from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import quaternion
from mslsq.manifolds.base import _batch
from mslsq.manifolds.lie_group import LieGroup, cross, dot, hat, normalized
from mslsq.manifolds.series import cotangent_remainder, half_angle, sine_remainder
from mslsq.manifolds.so3 import SO3


class SE3(LieGroup):
    """Rigid motions p -> R p + t. Storage (x, y, z, qx, qy, qz, qw); tangent (translation, rotation vector).

    Example::

        T = mslsq.SE3.exp(torch.randn(10, 6))
        T.act(points)                            # (10, 3) or broadcastable
        (T.inverse() @ T).log()                  # zeros
    """

    storage_dim = 7
    tangent_dim = 6
    _identity = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)

    @classmethod
    def _storage_hint(cls) -> str:
        return " (x, y, z, qx, qy, qz, qw); for 4 x 4 matrices use SE3.from_matrix, for tangent vectors SE3.exp"

    @classmethod
    def from_parts(cls, rotation: SO3, translation: Float[Tensor, "*batch 3"]) -> Self:
        """The motion p -> rotation p + translation."""
        batch = torch.broadcast_shapes(rotation.shape, translation.shape[:-1])
        return cls._wrap(torch.cat([translation.expand(*batch, 3), rotation.storage.expand(*batch, 4)], -1))

    @property
    def translation(self) -> Float[Tensor, "*batch 3"]:
        return self.storage[..., :3]

    @property
    def rotation(self) -> SO3:
        return SO3._wrap(self.storage[..., 3:])

    def compose(self, other: Self) -> Self:
        q = self.storage[..., 3:]
        moved = self.storage[..., :3] + quaternion.rotate(q, other.storage[..., :3])
        return self._wrap(torch.cat([moved, quaternion.product(q, other.storage[..., 3:])], -1))

    def between(self, other: Self) -> Self:
        q = quaternion.conjugate(self.storage[..., 3:])
        offset = other.storage[..., :3] - self.storage[..., :3]
        return self._wrap(torch.cat([quaternion.rotate(q, offset), quaternion.product(q, other.storage[..., 3:])], -1))

    def inverse(self) -> Self:
        q = quaternion.conjugate(self.storage[..., 3:])
        return self._wrap(torch.cat([-quaternion.rotate(q, self.storage[..., :3]), q], -1))

    def act(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        return self.storage[..., :3] + quaternion.rotate(self.storage[..., 3:], points)

    @classmethod
    def exp(cls, tangent: Float[Tensor, "*batch 6"]) -> Self:
        rho, phi = tangent[..., :3], tangent[..., 3:]
        half = 0.5 * phi
        parts = half_angle(dot(half, half))
        sinc, cosine = parts[0], parts[1]
        # V rho = rho + (1 - cos θ)/θ² φ × rho + (θ - sin θ)/θ³ φ × (φ × rho), V the left Jacobian of SO(3)
        turn = cross(phi, rho)
        translation = rho + (0.5 * sinc * sinc) * turn + sine_remainder(parts) * cross(phi, turn)
        return cls._wrap(torch.cat([translation, sinc * half, cosine], -1))

    def log(self) -> Float[Tensor, "*batch 6"]:
        phi, ratio, w = quaternion.logarithm(self.storage[..., 3:])
        translation = self.storage[..., :3]
        # V⁻¹ t = t - φ × t / 2 + (1 - x cot x)/(4 x²) φ × (φ × t), x = θ/2; x cot x = (θ/|v|) w / 2
        half = 0.5 * phi
        turn = cross(half, translation)
        factor = cotangent_remainder(dot(half, half), 0.5 * ratio * w)
        return torch.cat([translation - turn + factor * cross(half, turn), phi], -1)

    def adjoint(self) -> Float[Tensor, "*batch 6 6"]:
        rotation = quaternion.matrix(self.storage[..., 3:])
        return _blocks(rotation, hat(self.storage[..., :3]) @ rotation)

    def matrix(self) -> Float[Tensor, "*batch 4 4"]:
        top = torch.cat([quaternion.matrix(self.storage[..., 3:]), self.storage[..., :3, None]], -1)
        last = top.new_zeros(4)
        last = torch.cat([last[:3], last[3:] + 1.0]).expand(*top.shape[:-2], 1, 4)
        return torch.cat([top, last], -2)

    @classmethod
    def from_matrix(cls, matrix: Float[Tensor, "*batch 4 4"]) -> Self:
        """The motion of a homogeneous matrix whose last row is (0, 0, 0, 1); (..., 3, 4) does too."""
        return cls._wrap(torch.cat([matrix[..., :3, 3], quaternion.from_matrix(matrix[..., :3, :3])], -1))

    def normalized(self) -> Self:
        """The same motions with quaternions of norm one, for storage read from files of few digits."""
        return self._wrap(torch.cat([self.storage[..., :3], normalized(self.storage[..., 3:])], -1))

    @classmethod
    def random(
        cls,
        *batch_shape: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Uniformly distributed rotations, standard normal translations."""
        batch = _batch(batch_shape)
        translation = torch.randn((*batch, 3), generator=generator, dtype=dtype, device=device)
        rotation = quaternion.random(*batch, generator=generator, dtype=dtype, device=device)
        return cls._wrap(torch.cat([translation, rotation], -1))


def _blocks(diagonal: Tensor, corner: Tensor) -> Tensor:
    """The block matrix [[diagonal, corner], [0, diagonal]]."""
    top = torch.cat([diagonal, corner], -1)
    bottom = torch.cat([torch.zeros_like(diagonal), diagonal], -1)
    return torch.cat([top, bottom], -2)
