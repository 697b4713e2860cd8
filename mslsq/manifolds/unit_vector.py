"""Unit vectors: the sphere of directions in R^n."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.levels import python_numbers
from mslsq.manifolds.base import Manifold, _batch
from mslsq.manifolds.lie_group import dot, normalized
from mslsq.manifolds.series import angle_ratios, half_angle
from mslsq.manifolds.validation import check_element, check_step, refuse, squared_norm_is_off
from mslsq.validation import integer


class UnitVector(Manifold):
    """Directions in space (storage 3, tangent 2); `UnitVector.of_dim(n)` is the class of those in R^n.

    `retract` walks along a great circle, `local` is its inverse (for all but the opposite point, from which all great
    circles lead back: one of them is chosen). The tangent basis at x are the first n - 1 columns of the Householder
    reflection that takes x to the last axis; it is smooth away from x_n = 0, where the reflection changes sides.

    Example::

        north = mslsq.UnitVector.identity()                      # (0, 0, 1)
        north.retract(torch.tensor([torch.pi / 2, 0.0]))         # (1, 0, 0)
    """

    storage_dim = 3
    tangent_dim = 2

    @staticmethod
    def of_dim(dim: int) -> type[UnitVector]:
        """The unit vectors of R^dim (dim ≥ 2), always the same class for the same dim."""
        integer("UnitVector.of_dim: dim", dim, 2)
        return _of_dim(dim)

    @classmethod
    def _storage_hint(cls) -> str:
        return f" of norm one; for directions in another dimension use UnitVector.of_dim(n), here n = {cls.storage_dim}"

    @classmethod
    def check(cls, storage: Float[Tensor, "*batch dim"]) -> None:
        """Raises a ManifoldError where a vector has not norm one (to 1e-3, numbers of four digits)."""

        def says(entry: str, first: int) -> str:
            row = storage.detach().reshape(-1, cls.storage_dim)[first]
            return (
                f"{cls.__name__}: {entry} is {python_numbers(row)}, of norm {float(row.norm()):.4g} instead of 1; "
                f"{cls.__name__}.from_vector divides by the norm"
            )

        refuse(storage, squared_norm_is_off, storage.ndim - 1, says)

    @classmethod
    def from_vector(cls, vector: Float[Tensor, "*batch dim"]) -> Self:
        """The direction of a vector that is not zero."""
        return cls(normalized(vector))

    def basis(self) -> Float[Tensor, "*batch dim tangent"]:
        """The orthonormal tangent vectors in which `retract` and `local` count."""
        unit = torch.eye(self.tangent_dim, dtype=self.dtype, device=self.device)
        return _reflect(self.storage[..., None, :], torch.nn.functional.pad(unit, (0, 1))).mT

    def retract(self, delta: Float[Tensor, "*batch tangent"]) -> Self:
        check_step(self, delta)
        half = half_angle(dot(delta, delta))  # here the whole angle: sin(a)/a and cos(a)
        x, flat = self.storage, torch.cat([half.sinc * delta, torch.zeros_like(delta[..., :1])], -1)
        return self._wrap(normalized(half.cosine * x + _reflect(x, flat)))

    def local(self, other: Self) -> Float[Tensor, "*batch tangent"]:
        check_element(self, "local", other)
        x, y = self.storage, other.storage
        along = dot(x, y)
        across = _reflect(x, y)[..., :-1]
        behind = along < 0.0
        # At the opposite point no direction is preferred: pi times the first. 1e-36 is a square that float32 still has.
        opposite = behind & (dot(across, across) < 1e-36)
        first = across[..., :1].masked_fill(opposite, 1.0)
        across = torch.cat([first, across[..., 1:].masked_fill(opposite, 0.0)], -1)
        length2 = dot(across, across)
        ratio = angle_ratios(length2, torch.where(behind, -along, along))[0].masked_fill(opposite, 0.0)
        rest = torch.pi * length2.masked_fill(~behind, 1.0).rsqrt() - ratio  # the angle is pi - x behind
        return torch.where(behind, rest, ratio) * across

    @classmethod
    def identity(
        cls, *batch_shape: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Self:
        """The last axis."""
        storage = torch.zeros(cls.storage_dim, dtype=dtype, device=device)
        storage[-1] = 1.0
        return cls._wrap(storage.repeat(*_batch(batch_shape), 1))

    @classmethod
    def _random_storage(cls, normal: Callable[[int], Tensor]) -> Tensor:
        return normalized(normal(cls.storage_dim))


@cache
def _of_dim(dim: int) -> type[UnitVector]:
    if dim == UnitVector.storage_dim:
        return UnitVector
    body: dict[str, Any] = {
        "storage_dim": dim,
        "tangent_dim": dim - 1,
        "__module__": __name__,
        "__doc__": UnitVector.__doc__,
    }
    return type(f"UnitVector{dim}", (UnitVector,), body)


def __getattr__(name: str) -> Any:
    """`UnitVector4` and so on by name, so that elements of these classes can be pickled."""
    if name.startswith("UnitVector") and name[len("UnitVector") :].isdigit():
        return UnitVector.of_dim(int(name[len("UnitVector") :]))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _reflect(x: Tensor, y: Tensor) -> Tensor:
    """The Householder reflection of y that takes the unit vector x to the last axis, or to minus it where x_n > 0.

    H = I - v vᵀ/(1 + |x_n|) with v = x ± e_n, the sign that of x_n so that nothing cancels.
    """
    last = x[..., -1:]
    sign = torch.ones_like(last).masked_fill(last < 0.0, -1.0)
    v = torch.cat([x[..., :-1], last + sign], -1)
    return y - (dot(v, y) / (1.0 + sign * last)) * v
