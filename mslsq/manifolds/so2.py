"""SO(2): rotations of the plane, stored as (cos, sin)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import planar
from mslsq.manifolds.components import stack
from mslsq.manifolds.lie_group import RigidGroup, normalized
from mslsq.manifolds.validation import check_element, check_points, check_tangent


class SO2(RigidGroup):
    """Rotations of the plane. Storage (cos θ, sin θ); tangent: the angle, shape (..., 1).

    Example::

        R = mslsq.SO2.exp(torch.tensor([torch.pi / 2]))
        R.act(torch.tensor([1.0, 0.0]))          # (0, 1)
    """

    storage_dim = 2
    tangent_dim = 1
    _identity = (1.0, 0.0)
    _unit = slice(0, 2)

    @classmethod
    def _storage_hint(cls) -> str:
        return " (cos, sin); for angles of shape (..., 1) use SO2.exp, for 2 x 2 matrices SO2.from_matrix"

    def compose(self, other: Self) -> Self:
        check_element(self, "compose", other)
        return self._wrap(normalized(planar.product(self.storage, other.storage)))

    def inverse(self) -> Self:
        return self._wrap(planar.conjugate(self.storage))

    def act(self, points: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        check_points(self, points, 2)
        return planar.product(self.storage, points)

    @classmethod
    def exp(cls, tangent: Float[Tensor, "*batch 1"]) -> Self:
        check_tangent(cls, tangent)
        return cls._wrap(torch.cat([tangent.cos(), tangent.sin()], -1))

    def log(self) -> Float[Tensor, "*batch 1"]:
        return planar.angle(self.storage)

    def adjoint(self) -> Float[Tensor, "*batch 1 1"]:
        return torch.ones_like(self.storage[..., :1, None])

    def matrix(self) -> Float[Tensor, "*batch 2 2"]:
        c, s = self.storage.unbind(-1)
        return stack([c, -s, s, c], like=self.storage).unflatten(-1, (2, 2))

    @classmethod
    def _storage_of_matrix(cls, matrix: Tensor) -> Tensor:
        return planar.from_matrix(matrix)

    @classmethod
    def left_jacobian(cls, tangent: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch 1 1"]:
        """One: rotations of the plane commute. So are the other three Jacobians."""
        return torch.ones_like(tangent[..., None])

    left_jacobian_inverse = left_jacobian

    @classmethod
    def _random_storage(cls, normal: Callable[[int], Tensor]) -> Tensor:
        return normalized(normal(2))
