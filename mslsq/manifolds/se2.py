"""SE(2): rigid motions of the plane, stored as (x, y, cos, sin)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import planar
from mslsq.manifolds.components import cat, stack
from mslsq.manifolds.lie_group import RigidGroup, normalized
from mslsq.manifolds.series import half_angle, sine_remainder
from mslsq.manifolds.so2 import SO2
from mslsq.manifolds.validation import check_element, check_points, check_tangent, check_xyt


class SE2(RigidGroup):
    """Rigid motions p -> R p + t of the plane. Storage (x, y, cos θ, sin θ); tangent (translation, angle).

    Example::

        T = mslsq.SE2.from_xyt(torch.tensor([1.0, 2.0, torch.pi / 2]))
        T.act(torch.tensor([1.0, 0.0]))          # (1, 3)
    """

    storage_dim = 4
    tangent_dim = 3
    _identity = (0.0, 0.0, 1.0, 0.0)
    _unit = slice(2, 4)

    @classmethod
    def _storage_hint(cls) -> str:
        return " (x, y, cos, sin); for (x, y, angle) use SE2.from_xyt, for 3 x 3 matrices SE2.from_matrix"

    @classmethod
    def from_xyt(cls, xyt: Float[Tensor, "*batch 3"], *others: Any) -> Self:
        """The motion of translation (x, y) and angle t: p -> R(t) p + (x, y). Not the exponential.

        Raises:
            ManifoldError: it is not given one tensor of shape (..., 3).
        """
        check_xyt(cls, xyt, others)
        angle = xyt[..., 2:]
        return cls._wrap(torch.cat([xyt[..., :2], angle.cos(), angle.sin()], -1))

    @classmethod
    def from_parts(cls, rotation: SO2, translation: Float[Tensor, "*batch 2"]) -> Self:
        """The motion p -> rotation p + translation."""
        batch = torch.broadcast_shapes(rotation.shape, translation.shape[:-1])
        return cls._wrap(torch.cat([translation.expand(*batch, 2), rotation.storage.expand(*batch, 2)], -1))

    def xyt(self) -> Float[Tensor, "*batch 3"]:
        """(x, y, angle), the inverse of `from_xyt` for angles in (-pi, pi]."""
        return torch.cat([self.storage[..., :2], planar.angle(self.storage[..., 2:])], -1)

    @property
    def translation(self) -> Float[Tensor, "*batch 2"]:
        return self.storage[..., :2]

    @property
    def rotation(self) -> SO2:
        return SO2._wrap(self.storage[..., 2:])

    def compose(self, other: Self) -> Self:
        check_element(self, "compose", other)
        # One complex product moves the translation and the rotation, both seen as points.
        moved = planar.product(self.storage[..., None, 2:], other.storage.unflatten(-1, (2, 2)))
        return self._wrap(torch.cat([self.storage[..., :2] + moved[..., 0, :], normalized(moved[..., 1, :])], -1))

    def between(self, other: Self) -> Self:
        check_element(self, "between", other)
        z = planar.conjugate(self.storage[..., 2:])
        offset = planar.product(z, other.storage[..., :2] - self.storage[..., :2])
        return self._wrap(cat([offset, normalized(planar.product(z, other.storage[..., 2:]))]))

    def inverse(self) -> Self:
        z = planar.conjugate(self.storage[..., 2:])
        return self._wrap(cat([-planar.product(z, self.storage[..., :2]), z]))

    def act(self, points: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        check_points(self, points, 2)
        return self.storage[..., :2] + planar.product(self.storage[..., 2:], points)

    @classmethod
    def exp(cls, tangent: Float[Tensor, "*batch 3"]) -> Self:
        check_tangent(cls, tangent)
        # V = sin(x)/x R(x) with x = θ/2: the chord of an arc of angle θ points along the middle of the arc
        x = 0.5 * tangent[..., 2:]
        cosine, sine, sinc = planar.half(x)
        chord = sinc * planar.product(cat([cosine, sine], like=tangent), tangent[..., :2])
        angle = tangent[..., 2:]
        return cls._wrap(cat([chord, angle.cos(), angle.sin()]))

    def log(self) -> Float[Tensor, "*batch 3"]:
        angle = planar.angle(self.storage[..., 2:])
        x = 0.5 * angle
        # V⁻¹ = x cot x - i x, as a complex number
        cosine, _, sinc = planar.half(x)
        inverse = cat([cosine / sinc, -x], like=self.storage)
        return cat([planar.product(inverse, self.storage[..., :2]), angle])

    def adjoint(self) -> Float[Tensor, "*batch 3 3"]:
        x, y, c, s = self.storage.unbind(-1)
        o = torch.zeros_like(c)
        return stack([c, -s, y, s, c, -x, o, o, o + 1.0], like=self.storage).unflatten(-1, (3, 3))

    def matrix(self) -> Float[Tensor, "*batch 3 3"]:
        x, y, c, s = self.storage.unbind(-1)
        o = torch.zeros_like(c)
        return stack([c, -s, x, s, c, y, o, o, o + 1.0], like=self.storage).unflatten(-1, (3, 3))

    @classmethod
    def _storage_of_matrix(cls, matrix: Tensor) -> Tensor:
        return torch.cat([matrix[..., :2, 2], planar.from_matrix(matrix)], -1)

    @classmethod
    def left_jacobian(cls, tangent: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
        """J with exp(x + dx) ≈ exp(J dx) exp(x): [[V, v], [0, 1]], as complex numbers V = sin(θ)/θ + i (1 - cos θ)/θ
        and v = ((θ - sin θ)/θ² - i (1 - cos θ)/θ²) ρ."""
        x = 0.5 * tangent[..., 2:]
        parts = half_angle(x * x)
        flat = 0.5 * parts.sinc * parts.sinc
        v = cat([parts.sinc * parts.cosine, 2.0 * x * flat], like=tangent)
        return _upper(v, planar.product(cat([2.0 * x * sine_remainder(parts), -flat], like=tangent), tangent[..., :2]))

    @classmethod
    def left_jacobian_inverse(cls, tangent: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
        """The inverse of `left_jacobian`, for angles below 2 pi: [[V⁻¹, -V⁻¹ v], [0, 1]]."""
        x = 0.5 * tangent[..., 2:]
        parts = half_angle(x * x)
        inverse = cat([parts.cosine / parts.sinc, -x], like=tangent)
        v = cat([2.0 * x * sine_remainder(parts), -0.5 * parts.sinc * parts.sinc], like=tangent)
        return _upper(inverse, -planar.product(inverse, planar.product(v, tangent[..., :2])))

    @classmethod
    def _random_storage(cls, normal: Callable[[int], Tensor]) -> Tensor:
        storage = normal(4)
        return torch.cat([storage[..., :2], normalized(storage[..., 2:])], -1)


def _upper(block: Tensor, column: Tensor) -> Tensor:
    """The matrix [[block, column], [0, 1]] of a complex number (as a 2 x 2 matrix) and a vector."""
    (a, b), (x, y) = block.unbind(-1), column.unbind(-1)
    o = torch.zeros_like(a)
    return stack([a, -b, x, b, a, y, o, o, o + 1.0], like=block).unflatten(-1, (3, 3))
