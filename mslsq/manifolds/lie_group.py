"""What all matrix Lie groups share: right perturbations, and products of quaternions and planar rotations."""

from __future__ import annotations

from typing import Any, ClassVar, Never, Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.elsewhere.elements import group_knowing_words
from mslsq.levels import python_numbers
from mslsq.manifolds.base import Manifold, ManifoldError, _batch
from mslsq.manifolds.components import cat, stack
from mslsq.manifolds.validation import check_matrix, refuse, squared_norm_is_off


@group_knowing_words
class LieGroup(Manifold):
    """A group of transformations: `@` composes, `retract(delta)` is `self @ exp(delta)` (a perturbation on the right).

    Tangent vectors are ordered (translation, rotation[, log scale]), each part only where the group has it.
    """

    _identity: tuple[float, ...]
    _unit: ClassVar[slice | None] = None
    """The part of the storage that has norm one: the rotation."""

    @classmethod
    def check(cls, storage: Float[Tensor, "*batch storage"]) -> None:
        """Raises a ManifoldError where a rotation has not norm one (to 1e-3, numbers of four digits) or a scale is not
        positive."""
        unit = cls._unit
        if unit is None:
            return
        scaled = cls._is_scaled(unit)

        def is_wrong(flat: Tensor) -> Tensor:
            wrong = squared_norm_is_off(flat[:, unit])
            return wrong | (flat[:, -1] <= 0) if scaled else wrong

        def says(entry: str, first: int) -> str:
            row = storage.detach().reshape(-1, cls.storage_dim)[first]
            rotation = python_numbers(row[unit])
            if scaled and float(row[-1]) <= 0:
                return f"{cls.__name__}: {entry} has the scale {float(row[-1]):g}, which must be positive"
            return (
                f"{cls.__name__}{cls._storage_hint()}: {entry} has the rotation {rotation}, of norm "
                f"{float(row[unit].norm()):.4g} instead of 1. Are the numbers in this order? If they are, divide by "
                "the norm: torch.nn.functional.normalize(rotation, dim=-1)"
            )

        refuse(storage, is_wrong, storage.ndim - 1, says)

    def compose(self, other: Any) -> Self:
        """First `other`, then `self`; batches broadcast."""
        raise NotImplementedError

    def inverse(self) -> Self:
        """The transformation that undoes this one."""
        raise NotImplementedError

    def act(self, points: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """The points moved by this transformation; the batch shape of the element and of the points broadcast."""
        raise NotImplementedError

    @classmethod
    def exp(cls, tangent: Float[Tensor, "*batch tangent"]) -> Self:
        """The group exponential: the flow of the constant velocity `tangent` at time one."""
        raise NotImplementedError

    def log(self) -> Float[Tensor, "*batch tangent"]:
        """The tangent vector whose exponential this is, with its rotation angle in [0, pi]."""
        raise NotImplementedError

    def adjoint(self) -> Float[Tensor, "*batch tangent tangent"]:
        """The matrix Ad with `self @ exp(x) == exp(Ad x) @ self`."""
        raise NotImplementedError

    def matrix(self) -> Float[Tensor, "*batch rows columns"]:
        """The homogeneous matrix (the rotation matrix, for pure rotations)."""
        raise NotImplementedError

    @classmethod
    def from_matrix(cls, matrix: Float[Tensor, "*batch rows columns"]) -> Self:
        """The element of a rotation matrix (SO2, SO3), or of a homogeneous matrix [[s R, t], [0, 1]], with or without
        its last row.

        Raises:
            ManifoldError: a reflection, a matrix that is not orthogonal up to 1e-3, or of another shape; it is
                named.
        """
        unit = cls._unit
        if unit is None:
            raise NotImplementedError(f"{cls.__name__} does not define from_matrix(matrix)")
        dim = 2 if unit.stop - unit.start == 2 else 3
        check_matrix(matrix, dim, cls.__name__, homogeneous=unit.start > 0, scaled=cls._is_scaled(unit))
        return cls._wrap(cls._storage_of_matrix(matrix))

    @classmethod
    def _storage_of_matrix(cls, matrix: Tensor) -> Tensor:
        raise NotImplementedError

    @classmethod
    def _is_scaled(cls, unit: slice) -> bool:
        """Does a scale stand behind the rotation?"""
        return unit.stop < cls.storage_dim

    def __matmul__(self, other: Any) -> Self:
        if type(other) is not type(self):
            points = " To move points, use .act(points)." if isinstance(other, Tensor) else ""
            raise ManifoldError(
                f"@ composes two elements of one group, got {type(self).__name__} @ {type(other).__name__}.{points}"
            )
        return self.compose(other)

    def __mul__(self, other: Any) -> Never:
        raise ManifoldError("Elements are composed by a @ b, and points moved by a.act(points); there is no *.")

    __rmul__ = __mul__

    def between(self, other: Any) -> Self:
        """`self.inverse() @ other`: `other` as seen from `self`."""
        return self.inverse().compose(other)

    def retract(self, delta: Float[Tensor, "*batch tangent"]) -> Self:
        """`self @ exp(delta)`."""
        return self.compose(self.exp(delta))

    def local(self, other: Any) -> Float[Tensor, "*batch tangent"]:
        """`(self.inverse() @ other).log()`."""
        return self.between(other).log()

    def normalized(self) -> Self:
        """The same elements with rotations of norm one, for storage read from files of few digits."""
        unit = self._unit
        if unit is None:
            return self
        parts = [self.storage[..., : unit.start], normalized(self.storage[..., unit]), self.storage[..., unit.stop :]]
        return self._wrap(cat([part for part in parts if part.shape[-1]], like=self.storage))

    @classmethod
    def identity(
        cls, *batch_shape: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Self:
        """The neutral element in the given batch shape."""
        storage = torch.tensor(cls._identity, dtype=dtype or torch.get_default_dtype(), device=device)
        return cls._wrap(storage.repeat(*_batch(batch_shape), 1))


class RigidGroup(LieGroup):
    """Rotations and rigid motions: groups whose exponential has Jacobians in closed form.

    A subclass defines the left Jacobian and its inverse; the right ones are those at -x.
    """

    @classmethod
    def left_jacobian(cls, tangent: Float[Tensor, "*batch tangent"]) -> Float[Tensor, "*batch tangent tangent"]:
        """J with exp(x + dx) ≈ exp(J dx) exp(x)."""
        raise NotImplementedError

    @classmethod
    def left_jacobian_inverse(cls, tangent: Float[Tensor, "*batch tangent"]) -> Float[Tensor, "*batch tangent tangent"]:
        """The inverse of `left_jacobian`, for angles below 2 pi."""
        raise NotImplementedError

    @classmethod
    def right_jacobian(cls, tangent: Float[Tensor, "*batch tangent"]) -> Float[Tensor, "*batch tangent tangent"]:
        """J with exp(x + dx) ≈ exp(x) exp(J dx): the left Jacobian at -x."""
        return cls.left_jacobian(-tangent)

    @classmethod
    def right_jacobian_inverse(
        cls, tangent: Float[Tensor, "*batch tangent"]
    ) -> Float[Tensor, "*batch tangent tangent"]:
        """The inverse of `right_jacobian`: d log(T exp(dx)) / d dx at dx = 0, for x = log T."""
        return cls.left_jacobian_inverse(-tangent)


def dot(a: Float[Tensor, "*batch n"], b: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch 1"]:
    """The inner product along the last axis, which is kept."""
    return (a * b).sum(-1, keepdim=True)


def normalized(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """x / |x|: takes out the rounding that products gather; its derivative takes out the radial part of a change."""
    return x * dot(x, x).rsqrt()


def hat(w: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
    """The skew matrix of w: `hat(w) @ p == cross(w, p)`."""
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    return stack([o, -z, y, z, o, -x, -y, x, o], like=w).unflatten(-1, (3, 3))


def outer(a: Float[Tensor, "*batch 3"], b: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
    """a bᵀ."""
    return a[..., :, None] * b[..., None, :]


def hat_squared(w: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
    """[w]² = w wᵀ - |w|² I, without a product of matrices: those of 3 × 3 are what PyTorch is slowest at."""
    eye = torch.eye(3, dtype=w.dtype, device=w.device)
    return outer(w, w) - dot(w, w)[..., None] * eye
