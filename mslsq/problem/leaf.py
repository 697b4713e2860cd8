"""A leaf of a pytree as one block behind a flat storage vector: a tensor, or a batch of elements."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mslsq.manifolds import Manifold
from mslsq.manifolds.space import Space, space_of


@dataclass(frozen=True)
class LeafSpace(Space):
    """`inner` repeated over `shape`: a (3, 4) tensor is twelve scalars, an SE3 of shape (5,) five poses."""

    shape: tuple[int, ...]
    manifold: type[Manifold] | None

    @property
    def is_euclidean(self) -> bool:
        return self.manifold is None

    @property
    def is_of_library(self) -> bool:
        return self.manifold is None or space_of(self.manifold).is_of_library

    @property
    def turns(self) -> tuple[bool, ...]:
        if self.manifold is None:
            return super().turns
        inner = space_of(self.manifold)
        return inner.turns * (self.tangent_dim // inner.tangent_dim)

    def tangent_sizes(self, storage: Tensor) -> Tensor:
        if self.manifold is None:
            return self.storage_sizes(storage)
        sizes = space_of(self.manifold).tangent_sizes(self._elements(storage).storage)
        return sizes.reshape(*storage.shape[:-1], self.tangent_dim)

    @property
    def tangent_shape(self) -> tuple[int, ...]:
        """The shape of the leaf, with the tangent of an element in the place of its storage."""
        return self.shape if self.manifold is None else (*self.shape, space_of(self.manifold).tangent_dim)

    def _elements(self, storage: Tensor) -> Manifold:
        assert self.manifold is not None
        inner = space_of(self.manifold)
        return inner.wrap(storage.reshape((*storage.shape[:-1], *self.shape, inner.storage_dim)))

    def wrap(self, storage: Tensor) -> Any:
        if self.manifold is None:
            return storage.reshape((*storage.shape[:-1], *self.shape))  # a tuple: `reshape()` of a scalar leaf fails
        return self._elements(storage)

    def leaf_of(self, blocks: Tensor) -> Any:
        """The leaf of (..., 1, storage), by one operation where that does it: each is one more for `backward()`."""
        if self.manifold is None:
            return blocks.reshape((*blocks.shape[:-2], *self.shape))
        return self.wrap(blocks.squeeze(-2))

    def unwrap(self, value: Any) -> Tensor:
        tensor = value.storage if isinstance(value, Manifold) else value
        trailing = len(self.shape) + (0 if self.manifold is None else 1)
        return tensor.reshape(*tensor.shape[: tensor.ndim - trailing], self.storage_dim)

    def retract(self, storage: Tensor, delta: Tensor) -> Tensor:
        if self.manifold is None:
            return storage + delta
        inner = space_of(self.manifold)
        return self.unwrap(
            inner.wrap(
                inner.retract(
                    self._elements(storage).storage, delta.reshape(*delta.shape[:-1], *self.shape, inner.tangent_dim)
                )
            )
        )

    def local(self, a: Tensor, b: Tensor) -> Tensor:
        if self.manifold is None:
            return b - a
        inner = space_of(self.manifold)
        delta = inner.local(self._elements(a).storage, self._elements(b).storage)
        return delta.reshape(*delta.shape[: delta.ndim - len(self.shape) - 1], self.tangent_dim)

    def _random(self, batch_shape: tuple[int, ...], options: dict[str, Any]) -> Tensor:
        if self.manifold is None:
            return torch.randn((*batch_shape, self.storage_dim), **options)
        inner = space_of(self.manifold)
        return self.unwrap(inner.wrap(inner.random(*batch_shape, *self.shape, **options)))


def leaf_space(leaf: Any, name: str) -> LeafSpace:
    """The space of a leaf of `x0`."""
    if isinstance(leaf, Manifold):
        inner, shape, manifold = space_of(type(leaf)), tuple(leaf.shape), type(leaf)
        number = 1
        for size in shape:
            number *= size
        return LeafSpace(name, number * inner.storage_dim, number * inner.tangent_dim, shape, manifold)
    return LeafSpace(name, leaf.numel(), leaf.numel(), tuple(leaf.shape), None)
