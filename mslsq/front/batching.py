"""`in_dims` at the front doors: arguments taken apart, which leaves have a batch axis, and how large it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mslsq import pytree
from mslsq.manifolds import Manifold
from mslsq.problem import Shared
from mslsq.problem.errors import ShapeError
from mslsq.validation import plain_number

PLAIN = (Tensor, nn.Parameter)
"""Tensors as they are: parameters are found by identity."""


@dataclass(frozen=True, eq=False)
class Axes:
    """The batch axis of every leaf, argument by argument."""

    of: tuple[list[int | None], ...]
    """Non-negative; None for a leaf that is not mapped."""
    size: int | None
    """The common size of the mapped axes; None where nothing is mapped."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """Arguments taken apart into leaves."""

    trees: tuple[Any, ...]
    leaves: tuple[list[Any], ...]
    structures: tuple[pytree.Structure, ...]

    def axes(self, in_dims: Any) -> Axes:
        """`in_dims` as in `torch.func.vmap`.

        Raises:
            ShapeError: it does not fit the arguments, or the mapped axes differ in size.
        """
        flat = [leaf for leaves in self.leaves for leaf in leaves]
        axes: list[int | None] = [None] * len(flat) if in_dims is None else self._mapped(in_dims, flat)
        rest = iter(axes)
        return Axes(tuple([next(rest) for _ in leaves] for leaves in self.leaves), _size(axes, flat))

    def _mapped(self, in_dims: Any, flat: list[Any]) -> list[int | None]:
        if isinstance(in_dims, Sequence) and type(in_dims) is not tuple and not isinstance(in_dims, str):
            in_dims = tuple(in_dims)
        dims = pytree.broadcast_prefix(in_dims, self.trees, is_leaf=is_whole)
        if dims is None:
            raise ShapeError(
                f"in_dims={in_dims!r} does not fit the arguments. As for torch.func.vmap it is an integer for all, or "
                f"a tuple with one entry per argument ({len(self.trees)} here), each an integer, None, or a structure "
                "like the argument's."
            )
        return [_checked_axis(leaf, dim) for leaf, dim in zip(flat, dims, strict=True)]


def taken_apart(*trees: Any) -> Arguments:
    """The arguments and their leaves."""
    flat = [pytree.flatten(tree, is_leaf=is_whole) for tree in trees]
    plain = tuple([plain_tensor(leaf) for leaf in leaves] for leaves, _ in flat)
    return Arguments(trees, plain, tuple(structure for _, structure in flat))


def plain_tensor(value: Any) -> Any:
    """A tensor of a subclass (an image with annotations) as a plain one, which it becomes under `vmap` anyway; anything
    else, and what intercepts its operations, as it is. Derivatives pass."""
    if type(value) in PLAIN or not isinstance(value, Tensor):
        return value
    own, usual = (getattr(kind, "__torch_dispatch__", None) for kind in (type(value), Tensor))
    return value.as_subclass(Tensor) if own is usual else value


def is_whole(value: Any) -> bool:
    """Manifold elements and `Shared` data are leaves of arguments: they are not taken apart."""
    return isinstance(value, (Manifold, Shared))


def tensor_of(leaf: Any) -> Any:
    """The storage of an element; of anything else itself."""
    return leaf.storage if isinstance(leaf, Manifold) else leaf


def element_like(leaf: Any, tensor: Tensor) -> Any:
    """A tensor as an element where the leaf is one. Nothing is validated: transforms put placeholders there."""
    return type(leaf)._wrap(tensor) if isinstance(leaf, Manifold) else tensor


def shape_of_one(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """What one problem sees of a shape with this batch axis."""
    return tuple(shape) if axis is None else (*shape[:axis], *shape[axis + 1 :])


def _checked_axis(leaf: Any, dim: Any) -> int | None:
    if dim is None or not isinstance(tensor_of(leaf), Tensor):
        return None
    ndim = len(leaf.shape)
    axis = plain_number(dim)
    if isinstance(axis, bool) or not isinstance(axis, int) or not -ndim <= axis < ndim:
        raise ShapeError(f"in_dims asks to map axis {dim!r} of an argument of shape {tuple(leaf.shape)}.")
    return axis % ndim


def _size(axes: list[int | None], leaves: list[Any]) -> int | None:
    sizes = {leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None}
    if len(sizes) > 1:
        raise ShapeError(
            f"The mapped axes have different sizes: {sorted(sizes)}. Each entry of the batch needs its own data."
        )
    if sizes == {0}:
        raise ShapeError("The batch is empty: the mapped axes have size 0.")
    return next(iter(sizes), None)


def sent(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor on a device. One of a CPU is sent without waiting for what the device is doing; the other way round
    its numbers must have come."""
    return tensor.to(device, dtype, non_blocking=tensor.is_cpu)
