"""One face for every kind of manifold: what the engine needs of a Manifold class, of Euclidean(dim), of a dict of them.

Below this file the engine knows storage tensors (..., storage_dim) and tangent tensors (..., tangent_dim) only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds.base import Manifold, ManifoldError
from mslsq.manifolds.euclidean import Euclidean
from mslsq.manifolds.lie_group import LieGroup
from mslsq.manifolds.unit_vector import UnitVector
from mslsq.private import jacfwd
from mslsq.validation import made_a_tensor

Kind = type[Manifold] | Euclidean | Mapping[str, Any]
Storage = Float[Tensor, "*batch storage"]
Tangent = Float[Tensor, "*batch tangent"]
Jacobian = Float[Tensor, "*batch tangent tangent"]


@dataclass(frozen=True)
class Space:
    """Storage in, storage out; equal (and of equal hash) where the kinds are equal."""

    name: str
    storage_dim: int
    tangent_dim: int

    @property
    def is_euclidean(self) -> bool:
        """Is a step plainly added to the storage?"""
        return False

    @property
    def has_closed_form(self) -> bool:
        """Are the Jacobians of `local` known, in formulas that take any leading axes?"""
        return False

    @property
    def retracts_by_exponential(self) -> bool:
        """Is a step addition, or multiplication by the exponential of a group?"""
        return self.is_euclidean

    @property
    def is_of_library(self) -> bool:
        """Is its code the library's own? That of a user's manifold may change under its name."""
        return False

    @property
    def tangent_parts(self) -> dict[str, slice]:
        """The parts of the tangent that have a name."""
        return {}

    @property
    def turns(self) -> tuple[bool, ...]:
        """Which entries of the tangent are angles, of which a few radians lead everywhere; those that are known."""
        return (False,) * self.tangent_dim

    def tangent_sizes(self, storage: Storage) -> Tangent:
        """How large each entry of the tangent can be, squared: of an angle or the logarithm of a scale one, of a
        translation its own length, of all others as the storage is."""
        return self.storage_sizes(storage)

    def storage_sizes(self, storage: Storage) -> Tangent:
        """The squared length of the storage behind each entry of the tangent: one number's, where they match."""
        squared = storage * storage
        if self.storage_dim == self.tangent_dim:
            return squared
        return squared.sum(-1, keepdim=True).expand(*storage.shape[:-1], self.tangent_dim)

    def wrap(self, storage: Storage) -> Any:
        """What a residual receives: a tensor, a manifold element, a dict of them. Nothing is checked."""
        raise NotImplementedError

    def unwrap(self, value: Any) -> Storage:
        """The storage of such a value; a storage tensor is itself. Raises ManifoldError for another kind or size."""
        raise NotImplementedError

    def retract(self, storage: Storage, delta: Tangent) -> Storage:
        """The storage reached by the tangent vector `delta`."""
        raise NotImplementedError

    def local(self, a: Storage, b: Storage) -> Tangent:
        """The tangent vector that leads from a to b."""
        raise NotImplementedError

    def jacobian_at_start(self, start: Storage, end: Storage) -> Jacobian:
        """∂local(start ⊞ δ, end)/∂δ at δ = 0; of one block where there is no closed form."""
        return jacfwd(lambda delta: self.local(self.retract(start, delta), end))(start.new_zeros(self.tangent_dim))

    def jacobian_at_end(self, start: Storage, end: Storage) -> Jacobian:
        """∂local(start, end ⊞ δ)/∂δ at δ = 0."""
        return jacfwd(lambda delta: self.local(start, self.retract(end, delta)))(end.new_zeros(self.tangent_dim))

    def random(
        self,
        *batch_shape: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Storage:
        """Random storage in the given batch shape: standard normal, or what the manifold's `random` draws."""
        return self._random(batch_shape, {"generator": generator, "dtype": dtype, "device": device})

    def _random(self, batch_shape: tuple[int, ...], options: dict[str, Any]) -> Storage:
        raise NotImplementedError

    def check(self, value: Any) -> None:
        """Raises a ManifoldError where a plain tensor was given whose numbers are no storage; elements have been looked
        at when they were made."""

    def _checked(self, storage: Tensor) -> Storage:
        if storage.ndim == 0 or storage.shape[-1] != self.storage_dim:
            raise ManifoldError(
                f"{self.name} needs storage of shape (..., {self.storage_dim}), got {tuple(storage.shape)}"
            )
        return storage

    def _unexpected(self, value: Any) -> ManifoldError:
        return ManifoldError(
            f"expected {self.name} or its storage (..., {self.storage_dim}), got {type(value).__name__}."
            f"{made_a_tensor(value)}"
        )


@dataclass(frozen=True)
class EuclideanSpace(Space):
    """R^n: storage and value are the same tensor."""

    @property
    def is_euclidean(self) -> bool:
        return True

    @property
    def is_of_library(self) -> bool:
        return True

    @property
    def has_closed_form(self) -> bool:
        return True

    def wrap(self, storage: Storage) -> Tensor:
        return storage

    def unwrap(self, value: Any) -> Storage:
        if not isinstance(value, Tensor):
            raise self._unexpected(value)
        return self._checked(value)

    def retract(self, storage: Storage, delta: Tangent) -> Storage:
        return storage + delta

    def local(self, a: Storage, b: Storage) -> Tangent:
        return b - a

    def jacobian_at_start(self, start: Storage, end: Storage) -> Jacobian:
        return -self.jacobian_at_end(start, end)

    def jacobian_at_end(self, start: Storage, end: Storage) -> Jacobian:
        return torch.eye(self.tangent_dim, dtype=end.dtype, device=end.device)

    def _random(self, batch_shape: tuple[int, ...], options: dict[str, Any]) -> Storage:
        return torch.randn((*batch_shape, self.storage_dim), **options)


@dataclass(frozen=True)
class ManifoldSpace(Space):
    """The elements of a Manifold subclass."""

    manifold: type[Manifold]

    @property
    def is_of_library(self) -> bool:
        return self.manifold.__module__.startswith(f"{__package__}.")

    @property
    def has_closed_form(self) -> bool:
        return all(hasattr(self.manifold, name) for name in ("left_jacobian_inverse", "right_jacobian_inverse"))

    @property
    def retracts_by_exponential(self) -> bool:
        return issubclass(self.manifold, LieGroup) and self.manifold.retract is LieGroup.retract

    @property
    def tangent_parts(self) -> dict[str, slice]:
        unit = self.manifold._unit if issubclass(self.manifold, LieGroup) else None
        if unit is None:
            return {}
        turned = unit.start + (1 if unit.stop - unit.start == 2 else 3)
        parts = {"translation": slice(0, unit.start), "rotation": slice(unit.start, turned)}
        parts["scale"] = slice(turned, self.tangent_dim)
        return {name: part for name, part in parts.items() if part.start < part.stop}

    @property
    def turns(self) -> tuple[bool, ...]:
        everything = slice(0, self.tangent_dim if issubclass(self.manifold, UnitVector) else 0)
        turned = self.tangent_parts.get("rotation", everything)
        return tuple(turned.start <= place < turned.stop for place in range(self.tangent_dim))

    def tangent_sizes(self, storage: Storage) -> Tangent:
        if not any(self.turns):
            return self.storage_sizes(storage)
        sizes = torch.ones_like(storage[..., :1]).expand(*storage.shape[:-1], self.tangent_dim)
        moved = self.tangent_parts.get("translation")  # the first numbers of storage and tangent
        if moved is None:
            return sizes
        squared = (storage[..., moved] * storage[..., moved]).sum(-1, keepdim=True)
        return torch.cat([squared.expand(*storage.shape[:-1], moved.stop), sizes[..., moved.stop :]], -1)

    def wrap(self, storage: Storage) -> Manifold:
        return self.manifold._wrap(storage)

    def unwrap(self, value: Any) -> Storage:
        if isinstance(value, self.manifold):
            return value.storage
        if isinstance(value, Tensor):
            return self._checked(value)
        raise self._unexpected(value)

    def check(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self.manifold.check(value)

    def retract(self, storage: Storage, delta: Tangent) -> Storage:
        return self.manifold._wrap(storage).retract(delta).storage

    def local(self, a: Storage, b: Storage) -> Tangent:
        return self.manifold._wrap(a).local(self.manifold._wrap(b))

    def jacobian_at_start(self, start: Storage, end: Storage) -> Jacobian:
        if not self.has_closed_form:
            return super().jacobian_at_start(start, end)
        group: Any = self.manifold
        return -group.left_jacobian_inverse(self.local(start, end))

    def jacobian_at_end(self, start: Storage, end: Storage) -> Jacobian:
        if not self.has_closed_form:
            return super().jacobian_at_end(start, end)
        group: Any = self.manifold
        return group.right_jacobian_inverse(self.local(start, end))

    def _random(self, batch_shape: tuple[int, ...], options: dict[str, Any]) -> Storage:
        return self.manifold.random(*batch_shape, **options).storage


@dataclass(frozen=True)
class ProductSpace(Space):
    """A dict of spaces: storages and tangents are concatenated in the order of the dict."""

    parts: tuple[tuple[str, Space], ...]

    @property
    def is_euclidean(self) -> bool:
        return all(space.is_euclidean for _, space in self.parts)

    @property
    def is_of_library(self) -> bool:
        return all(space.is_of_library for _, space in self.parts)

    @property
    def retracts_by_exponential(self) -> bool:
        return all(space.retracts_by_exponential for _, space in self.parts)

    @property
    def tangent_parts(self) -> dict[str, slice]:
        stops = accumulate(space.tangent_dim for _, space in self.parts)
        return {
            name: slice(stop - space.tangent_dim, stop) for (name, space), stop in zip(self.parts, stops, strict=True)
        }

    @property
    def turns(self) -> tuple[bool, ...]:
        return tuple(turn for _, space in self.parts for turn in space.turns)

    def tangent_sizes(self, storage: Storage) -> Tangent:
        pieces = storage.split([space.storage_dim for _, space in self.parts], -1)
        return torch.cat([space.tangent_sizes(x) for (_, space), x in zip(self.parts, pieces, strict=True)], -1)

    def wrap(self, storage: Storage) -> dict[str, Any]:
        pieces = storage.split([space.storage_dim for _, space in self.parts], -1)
        return {name: space.wrap(piece) for (name, space), piece in zip(self.parts, pieces, strict=True)}

    def unwrap(self, value: Any) -> Storage:
        if isinstance(value, Tensor):
            return self._checked(value)
        if not isinstance(value, Mapping):
            raise self._unexpected(value)
        expected = [name for name, _ in self.parts]
        if set(value) != set(expected):
            raise ManifoldError(f"{self.name} has the parts {expected}, got {list(value)}")
        storages = [space.unwrap(value[name]) for name, space in self.parts]
        batch = torch.broadcast_shapes(*(storage.shape[:-1] for storage in storages))
        return torch.cat([storage.expand(*batch, -1) for storage in storages], -1)

    def check(self, value: Any) -> None:
        if isinstance(value, Tensor):
            pieces = value.split([space.storage_dim for _, space in self.parts], -1)
        else:
            pieces = [value[name] for name, _ in self.parts]
        for (_, space), piece in zip(self.parts, pieces, strict=True):
            space.check(piece)

    def retract(self, storage: Storage, delta: Tangent) -> Storage:
        if self.is_euclidean:
            return storage + delta
        pieces = storage.split([space.storage_dim for _, space in self.parts], -1)
        steps = delta.split([space.tangent_dim for _, space in self.parts], -1)
        moved = [space.retract(x, d) for (_, space), x, d in zip(self.parts, pieces, steps, strict=True)]
        return torch.cat(moved, -1)

    def local(self, a: Storage, b: Storage) -> Tangent:
        if self.is_euclidean:
            return b - a
        sizes = [space.storage_dim for _, space in self.parts]
        pairs = zip(self.parts, a.split(sizes, -1), b.split(sizes, -1), strict=True)
        return torch.cat([space.local(x, y) for (_, space), x, y in pairs], -1)

    def jacobian_at_start(self, start: Storage, end: Storage) -> Jacobian:
        return self._on_the_diagonal([space.jacobian_at_start for _, space in self.parts], start, end)

    def jacobian_at_end(self, start: Storage, end: Storage) -> Jacobian:
        return self._on_the_diagonal([space.jacobian_at_end for _, space in self.parts], start, end)

    def _on_the_diagonal(
        self, jacobians: Sequence[Callable[[Storage, Storage], Jacobian]], start: Storage, end: Storage
    ) -> Jacobian:
        """The parts do not mix."""
        sizes = [space.storage_dim for _, space in self.parts]
        rows, before = [], 0
        for jacobian, x, y in zip(jacobians, start.split(sizes, -1), end.split(sizes, -1), strict=True):
            part = jacobian(x, y)
            after = self.tangent_dim - before - part.shape[-1]
            rows.append(torch.nn.functional.pad(part, (before, after)))
            before += part.shape[-1]
        return torch.cat(rows, -2)

    def _random(self, batch_shape: tuple[int, ...], options: dict[str, Any]) -> Storage:
        return torch.cat([space._random(batch_shape, options) for _, space in self.parts], -1)


def space_of(kind: Kind) -> Space:
    """The space of a kind: a Manifold subclass, `Euclidean(dim)`, or a (nested) dict of kinds.

    Raises:
        ManifoldError: anything else, with what was given and what to write instead.
    """
    if isinstance(kind, Space):
        return kind
    if isinstance(kind, Euclidean):
        return EuclideanSpace(f"Euclidean({kind.dim})", kind.dim, kind.dim)
    if isinstance(kind, type) and issubclass(kind, Manifold):
        if not hasattr(kind, "storage_dim") or not hasattr(kind, "tangent_dim"):
            raise ManifoldError(
                f"{kind.__name__} has no storage_dim or no tangent_dim: define both as class attributes"
            )
        return ManifoldSpace(kind.__name__, kind.storage_dim, kind.tangent_dim, kind)
    if isinstance(kind, Mapping):
        return _product({name: space_of(part) for name, part in kind.items()})
    hint = f" Write mslsq.Euclidean({kind})." if isinstance(kind, int) and not isinstance(kind, bool) else ""
    raise ManifoldError(
        f"not a manifold: {_described(kind)}. Give a Manifold class, Euclidean(dim), or a dict of them.{hint}"
    )


def space_of_value(value: Any) -> Space:
    """The space of a value: of a manifold element, of a tensor (..., dim), of a dict of values."""
    if isinstance(value, Manifold):
        return space_of(type(value))
    if isinstance(value, Tensor):
        if value.ndim == 0:
            raise ManifoldError("a tensor without dimensions has no space: reshape it to (1,) for Euclidean(1)")
        return space_of(Euclidean(value.shape[-1]))
    if isinstance(value, Mapping):
        return _product({name: space_of_value(part) for name, part in value.items()})
    raise ManifoldError(f"neither a manifold element nor a tensor nor a dict of them: {type(value).__name__}")


def _product(spaces: dict[str, Space]) -> ProductSpace:
    if not spaces:
        raise ManifoldError("a product of no manifolds: the dict is empty")
    name = "{" + ", ".join(f"{key}: {space.name}" for key, space in spaces.items()) + "}"
    storage = sum(space.storage_dim for space in spaces.values())
    tangent = sum(space.tangent_dim for space in spaces.values())
    return ProductSpace(name, storage, tangent, tuple(spaces.items()))


def _described(kind: Any) -> str:
    if kind is Euclidean:
        return "Euclidean without a dimension (write Euclidean(3))"
    if isinstance(kind, Manifold):
        return f"an element of {type(kind).__name__} (write {type(kind).__name__}, the class)"
    return f"{kind!r} ({type(kind).__name__})"
