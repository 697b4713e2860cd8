"""SE(3): rigid motions in space, stored as (x, y, z, qx, qy, qz, qw)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import quaternion
from mslsq.manifolds.components import cat, cat_matrices, cross, matmul
from mslsq.manifolds.lie_group import RigidGroup, dot, hat, hat_squared, normalized, outer
from mslsq.manifolds.series import HalfAngle, half_angle, higher_remainders, sine_remainder
from mslsq.manifolds.so3 import SO3
from mslsq.manifolds.validation import check_element, check_points, check_tangent


class SE3(RigidGroup):
    """Rigid motions p -> R p + t. Storage (x, y, z, qx, qy, qz, qw); tangent (translation, rotation vector).

    Example::

        T = mslsq.SE3.exp(torch.randn(10, 6))
        T.act(points)                            # (10, 3) or broadcastable
        (T.inverse() @ T).log()                  # zeros
    """

    storage_dim = 7
    tangent_dim = 6
    _identity = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    _unit = slice(3, 7)

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
        check_element(self, "compose", other)
        q = self.storage[..., 3:]
        moved = self.storage[..., :3] + quaternion.rotate(q, other.storage[..., :3])
        return self._wrap(cat([moved, quaternion.product(q, other.storage[..., 3:])]))

    def between(self, other: Self) -> Self:
        check_element(self, "between", other)
        q = quaternion.conjugate(self.storage[..., 3:])
        offset = other.storage[..., :3] - self.storage[..., :3]
        return self._wrap(cat([quaternion.rotate(q, offset), quaternion.product(q, other.storage[..., 3:])]))

    def inverse(self) -> Self:
        q = quaternion.conjugate(self.storage[..., 3:])
        return self._wrap(cat([-quaternion.rotate(q, self.storage[..., :3]), q]))

    def act(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        check_points(self, points, 3)
        return self.storage[..., :3] + quaternion.rotate(self.storage[..., 3:], points)

    @classmethod
    def exp(cls, tangent: Float[Tensor, "*batch 6"]) -> Self:
        check_tangent(cls, tangent)
        rho, phi = tangent[..., :3], tangent[..., 3:]
        half = 0.5 * phi
        parts = half_angle(dot(half, half))
        sinc = parts.sinc
        # V rho = rho + (1 - cos θ)/θ² φ × rho + (θ - sin θ)/θ³ φ × (φ × rho), V the left Jacobian of SO(3)
        turn = cross(phi, rho)
        translation = rho + (0.5 * sinc * sinc) * turn + sine_remainder(parts) * cross(phi, turn)
        return cls._wrap(cat([translation, sinc * half, parts.cosine]))

    def log(self) -> Float[Tensor, "*batch 6"]:
        phi, remainder = quaternion.logarithm(self.storage[..., 3:])
        translation = self.storage[..., :3]
        # V⁻¹ t = t - φ/2 × t + (1 - x cot x)/x² φ/2 × (φ/2 × t), x = θ/2
        half = 0.5 * phi
        turn = cross(half, translation)
        return cat([translation - turn + remainder * cross(half, turn), phi])

    def adjoint(self) -> Float[Tensor, "*batch 6 6"]:
        rotation = quaternion.matrix(self.storage[..., 3:])
        return _blocks(rotation, matmul(hat(self.storage[..., :3]), rotation))

    def matrix(self) -> Float[Tensor, "*batch 4 4"]:
        top = torch.cat([quaternion.matrix(self.storage[..., 3:]), self.storage[..., :3, None]], -1)
        last = top.new_zeros(4)
        last = torch.cat([last[:3], last[3:] + 1.0]).expand(*top.shape[:-2], 1, 4)
        return torch.cat([top, last], -2)

    @classmethod
    def _storage_of_matrix(cls, matrix: Tensor) -> Tensor:
        return torch.cat([matrix[..., :3, 3], quaternion.from_matrix(matrix[..., :3, :3])], -1)

    @classmethod
    def left_jacobian(cls, tangent: Float[Tensor, "*batch 6"]) -> Float[Tensor, "*batch 6 6"]:
        """J with exp(x + dx) ≈ exp(J dx) exp(x): [[J, Q], [0, J]] with SO(3)'s J and `_coupling` Q."""
        half = half_angle(0.25 * dot(tangent[..., 3:], tangent[..., 3:]))
        return _blocks(SO3.left_jacobian(tangent[..., 3:]), _coupling(tangent, half))

    @classmethod
    def left_jacobian_inverse(cls, tangent: Float[Tensor, "*batch 6"]) -> Float[Tensor, "*batch 6 6"]:
        """The inverse of `left_jacobian`, for angles below 2 pi: [[J⁻¹, -J⁻¹ Q J⁻¹], [0, J⁻¹]]."""
        half = half_angle(0.25 * dot(tangent[..., 3:], tangent[..., 3:]))
        inverse = SO3._left_jacobian_inverse(tangent[..., 3:], half)
        return _blocks(inverse, -matmul(matmul(inverse, _coupling(tangent, half)), inverse))

    @classmethod
    def _random_storage(cls, normal: Callable[[int], Tensor]) -> Tensor:
        return torch.cat([normal(3), normalized(normal(4))], -1)


def _coupling(tangent: Float[Tensor, "*batch 6"], half: HalfAngle) -> Float[Tensor, "*batch 3 3"]:
    """Q of SE(3)'s left Jacobian (Barfoot, State Estimation for Robotics, eq. 7.86), with P = [ρ] and F = [φ]:

    P/2 + c3 (FP + PF + FPF) + c4 (FFP + PFF - 3 FPF) + (c4 - 3 c5)/2 (FPFF + FFPF),
    c3 = (θ - sin θ)/θ³, c4 = (1/2 - (1 - cos θ)/θ²)/θ², c5 = (1/6 - c3)/θ².

    With d = φ·ρ, FP + PF = ρφᵀ + φρᵀ - 2dI, FPF = -dF, FFP + PFF = -θ²P - dF and FPFF + FFPF = -2dFF, so that

    Q = [(1/2 - c4 θ²)ρ + (2c4 - c3) d φ] + c3 (ρφᵀ + φρᵀ - 2dI) - (c4 - 3 c5) d FF

    takes no product of matrices.
    """
    rho, phi = tangent[..., :3], tangent[..., 3:]
    theta2, d = dot(phi, phi), dot(phi, rho)
    c3, c4, c5 = higher_remainders(half)
    skew = hat((0.5 - c4 * theta2) * rho + ((2.0 * c4 - c3) * d) * phi)
    mixed = outer(rho, c3 * phi)
    square = (d * (c4 - 3.0 * c5))[..., None] * hat_squared(phi)
    eye = torch.eye(3, dtype=tangent.dtype, device=tangent.device)
    return skew + mixed + mixed.mT - (2.0 * (c3 * d))[..., None] * eye - square


def _blocks(diagonal: Tensor, corner: Tensor) -> Tensor:
    """The block matrix [[diagonal, corner], [0, diagonal]]."""
    top = cat_matrices([diagonal, corner], -1)
    bottom = cat_matrices([torch.zeros_like(diagonal), diagonal], -1)
    return cat_matrices([top, bottom], -2)
