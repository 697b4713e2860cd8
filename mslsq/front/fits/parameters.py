"""Parameters of a fit: the tree that the model takes, the vector of those that are free, and a name for every entry."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import is_whole

ROOT = "p"
"""The name of parameters that are one tensor: its entries are p[0], p[1]."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """The parameters of one fit."""

    build: Callable[[list[Any]], Any]
    """The tree from its leaves."""
    shapes: tuple[torch.Size, ...]
    """Of the leaves, without batch axes."""

    @classmethod
    def of(cls, tree: Any, batch_axes: int) -> "Parameters":
        """Those of a tree whose leaves have that many batch axes in front."""
        if isinstance(tree, Tensor):
            return cls(_only, (tree.shape[batch_axes:],))
        return cls(pytree.Form(tree).tree, tuple(leaf.shape[batch_axes:] for leaf in pytree.leaves(tree)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of all entries, in the order of the flattened leaves."""
        paths = pytree.dotted_names(self.build(list(range(len(self.shapes)))), ROOT)
        return tuple(
            entry for path, shape in zip(paths, self.shapes, strict=True) for entry in entry_names(path, shape)
        )

    def __getstate__(self) -> Any:
        return self.shapes, self.build(list(range(len(self.shapes))))

    def __setstate__(self, state: Any) -> None:
        shapes, places = state  # what builds a tree is made again: it is no function that can be pickled
        self.__dict__.update(shapes=shapes, build=pytree.Form(places).tree)

    @property
    def count(self) -> int:
        """How many numbers they are."""
        return sum(shape.numel() for shape in self.shapes)

    def vector(self, tree: Any) -> Float[Tensor, "*batch n"]:
        """All entries in one vector, in memory of its own."""
        if isinstance(tree, Tensor) and len(self.shapes) == 1:
            return tree.flatten(tree.ndim - len(self.shapes[0])).clone() if self.shapes[0] else tree[..., None].clone()
        parts = [
            leaf.reshape((*leaf.shape[: leaf.ndim - len(shape)], shape.numel()))
            for leaf, shape in zip(pytree.leaves(tree), self.shapes, strict=True)
        ]
        return torch.cat(parts, -1)

    def tree(self, vector: Float[Tensor, "*batch n"]) -> Any:
        """The entries of a vector, each where it belongs."""
        if len(self.shapes) == 1:
            return self.build([vector.reshape((*vector.shape[:-1], *self.shapes[0]))])
        parts = vector.split([shape.numel() for shape in self.shapes], -1)
        leaves = [part.reshape((*part.shape[:-1], *shape)) for part, shape in zip(parts, self.shapes, strict=True)]
        return self.build(leaves)


def _only(leaves: list[Any]) -> Any:
    """The tree that is its one leaf."""
    return leaves[0]


def entry_names(path: str, shape: tuple[int, ...]) -> list[str]:
    """Of the entries of one leaf: `rate` of a number, `rate[0]` of a vector, `rate[0, 1]` of a matrix."""
    if not shape:
        return [path]
    return [f"{path}[{', '.join(map(str, index))}]" for index in product(*map(range, shape))]


def started(p0: Any, y: Tensor) -> Any:
    """The start with its Python numbers as tensors of the kind of y."""

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            return torch.full((), float(leaf), dtype=y.dtype, device=y.device)
        return leaf

    return p0 if isinstance(p0, Tensor) else pytree.map_leaves(tensor, p0, is_leaf=is_whole)
