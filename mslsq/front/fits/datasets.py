"""Several sets of measurements fitted together: y is a pytree, whose leaves become one vector."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import shape_of_one, taken_apart
from mslsq.problem.errors import DtypeError, ProblemError, ShapeError


class Joined(NamedTuple):
    """The measurements of all sets in one vector per fit."""

    y: Tensor
    sigma: Any
    mask: Tensor | None
    in_dims: Any
    sets: "Sets"


class Sets(NamedTuple):
    """The sets of one fit."""

    key: Any
    """Of the pytree."""
    shapes: tuple[tuple[int, ...], ...]


def joined(t: Any, y: Any, p0: Any, sigma: Any, mask: Any, in_dims: Any) -> Joined:
    """The leaves of y one after the other, and those of sigma and mask, which are numbers or pytrees like y.

    Raises:
        ProblemError: leaves that are no tensors or differ in dtype; sigma or mask that do not fit y.
    """
    leaves, structure = pytree.flatten(y)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves):
        other = next((leaf for leaf in leaves if not isinstance(leaf, Tensor)), None)
        given = "" if other is None else type(other).__name__
        write = "torch.as_tensor(y)"
        if isinstance(other, np.ma.MaskedArray):  # as_tensor would take what is masked for data
            write = "torch.as_tensor(y.data), and mask=torch.as_tensor(~np.ma.getmaskarray(y))"
        raise DtypeError(
            "y must be a real floating-point tensor, or a pytree of them, one for each set of data"
            f"{given and f', not {given}: write {write}'}."
        )
    if len({leaf.dtype for leaf in leaves}) > 1:
        raise DtypeError(f"The sets of data have different dtypes: {', '.join(str(leaf.dtype) for leaf in leaves)}.")
    key = pytree.key_of(structure)
    number = sigma is None or isinstance(sigma, (int, float)) or (isinstance(sigma, Tensor) and sigma.ndim == 0)
    if isinstance(in_dims, int):
        in_dims = (in_dims, in_dims, in_dims, None if number else in_dims)
    elif in_dims is not None:
        in_dims = (*in_dims, None)[:4]
    arguments = taken_apart(t, y, p0, sigma)
    axes = arguments.axes(in_dims)
    t_dims, y_dims, p0_dims, sigma_dims = axes.of
    shapes = tuple(shape_of_one(leaf.shape, dim) for leaf, dim in zip(leaves, y_dims, strict=True))

    def vector(tree: Any, dims: list[int | None], name: str) -> tuple[Tensor, int | None]:
        parts, own = pytree.flatten(tree)
        if pytree.key_of(own) != key:
            raise ProblemError(f"{name} must be a pytree like y, with a tensor for each set of data.")
        for part, dim, shape in zip(parts, dims, shapes, strict=True):
            if shape_of_one(part.shape, dim) != shape:
                raise ShapeError(f"{name} of one set of data has shape {shape_of_one(part.shape, dim)}; y has {shape}.")
        if all(dim is None for dim in dims):
            return torch.cat([part.reshape(-1) for part in parts]), None
        rows = [
            part.expand(axes.size, *part.shape) if dim is None else part.movedim(dim, 0)
            for part, dim in zip(parts, dims, strict=True)
        ]
        return torch.cat([row.reshape(axes.size, -1) for row in rows], 1), 0

    flat, y_dim = vector(y, y_dims, "y")
    flat_sigma, sigma_dim = (sigma, None) if number else vector(sigma, sigma_dims, "sigma")
    flat_mask = None
    if mask is not None:
        parts = pytree.leaves(mask)
        alone = len(parts) == len(leaves) and all(tuple(m.shape) == s for m, s in zip(parts, shapes, strict=True))
        flat_mask, _ = vector(mask, [None] * len(leaves) if alone else y_dims, "mask")
    if in_dims is not None:
        trees = [
            pytree.unflatten(dims, own) for dims, own in zip((t_dims, p0_dims), arguments.structures[::2], strict=True)
        ]
        in_dims = (trees[0], y_dim, trees[1], sigma_dim)
    return Joined(flat, flat_sigma, flat_mask, in_dims, Sets(key, shapes))


def in_one_vector(model: Callable[[Any, Any], Any], sets: Sets) -> Callable[[Any, Any], Tensor]:
    """What the model predicts for all sets, one after the other."""

    def predicted(p: Any, t: Any) -> Tensor:
        parts, structure = pytree.flatten(model(p, t))
        if pytree.key_of(structure) != sets.key:
            raise ProblemError("model(p, t) must return a pytree like y, with a tensor for each set of data.")
        for part, shape in zip(parts, sets.shapes, strict=True):
            if tuple(part.shape) != shape:
                raise ShapeError(f"model(p, t) returned shape {tuple(part.shape)} for a set of data of shape {shape}.")
        return torch.cat([part.reshape(-1) for part in parts])

    return predicted
