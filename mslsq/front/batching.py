"""`in_dims` at the front doors: which leaves have a batch axis, how large it is, and how results lose it again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from mslsq import pytree
from mslsq.manifolds import Manifold
from mslsq.problem.errors import ShapeError
from mslsq.solution import Solution


def mapped_dims(in_dims: Any, trees: tuple[Any, ...], is_leaf: Callable[[Any], bool]) -> list[int | None]:
    """The batch axis of every leaf, non-negative, None where it is not mapped; `in_dims` as in `torch.func.vmap`."""
    leaves = pytree.leaves(trees, is_leaf=is_leaf)
    if in_dims is None:
        return [None] * len(leaves)
    if isinstance(in_dims, list):
        in_dims = tuple(in_dims)
    dims = pytree.broadcast_prefix(in_dims, trees, is_leaf=is_leaf)
    if dims is None:
        raise ShapeError(
            f"in_dims={in_dims!r} does not fit the arguments. As for torch.func.vmap it is an integer for all, or a "
            "tuple with one entry "
            f"per argument ({len(trees)} here), each an integer, None, or a structure like the argument's."
        )
    result: list[int | None] = []
    for leaf, dim in zip(leaves, dims, strict=True):
        tensor = leaf.storage if isinstance(leaf, Manifold) else leaf
        if dim is None or not isinstance(tensor, Tensor):
            result.append(None)
            continue
        ndim = len(leaf.shape)
        if isinstance(dim, bool) or not isinstance(dim, int) or not -ndim <= dim < ndim:
            raise ShapeError(f"in_dims asks to map axis {dim!r} of an argument of shape {tuple(leaf.shape)}.")
        result.append(dim % ndim)
    return result


def batch_size(dims: list[int | None], leaves: list[Any]) -> int | None:
    """The common size of the mapped axes; None where nothing is mapped."""
    sizes = {leaf.shape[dim] for leaf, dim in zip(leaves, dims, strict=True) if dim is not None}
    if len(sizes) > 1:
        raise ShapeError(
            f"The mapped axes have different sizes: {sorted(sizes)}. Each entry of the batch needs its own data."
        )
    if sizes == {0}:
        raise ShapeError("The batch is empty: the mapped axes have size 0.")
    return next(iter(sizes), None)


def take(storage: Tensor, dim: int | None, size: int | None) -> Tensor:
    """A start with the batch axis first: as mapped, or the same for every entry."""
    if dim is not None:
        return storage.movedim(dim, 0)
    return storage.expand(size or 1, *storage.shape)


def unbatched(solution: Solution, value: Any, size: int | None) -> Solution:
    """The solution with this value, and without the batch axis where the user asked for one problem."""
    solution = replace(solution, value=value)
    return solution if size is not None else pytree.map_leaves(lambda t: t[0], solution)
