"""Many starts for one problem: given, or sampled within bounds and around a start."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import is_whole, sent, tensor_of
from mslsq.front.bounds import SIDES, by_leaf, pair_of, tensor_like
from mslsq.manifolds import Manifold
from mslsq.problem.errors import ProblemError, ShapeError


def sampled(x0: Any, count: int, bounds: Any, spread: float, seed: int, batched: bool) -> Any:
    """`count` starts in a new first axis: x0 itself, and the others from a Latin hypercube.

    An entry with both bounds is drawn uniformly between them, any other from a normal distribution about x0 with a
    standard deviation of `spread` times its size (of 1 where it is zero), within its bounds; an element of a manifold
    is moved by a tangent vector of standard deviation `spread`.

    Args:
        x0: the start; with the axis of problems first in every leaf where `batched`, whose problems have the same
            points of the hypercube.
    """
    leaves, structure = pytree.flatten(x0, is_leaf=is_whole)
    sides = (None, None) if bounds is None else pair_of(bounds, "bounds")
    lower, upper = (by_leaf(side, x0, which) for side, which in zip(sides, SIDES, strict=True))
    sizes = [_entries(leaf, batched) for leaf in leaves]
    columns = np.split(_hypercube(count - 1, sum(sizes), seed), np.cumsum(sizes)[:-1], axis=1)
    starts = []
    for leaf, low, high, column in zip(leaves, lower, upper, columns, strict=True):
        uniform = _on_device_of(tensor_of(leaf), column)
        normal = torch.special.ndtri(uniform)
        if isinstance(leaf, Manifold):
            starts.append(_moved(leaf, normal, spread, batched))
            continue
        sides = tensor_like(low, leaf, "The lower bound"), tensor_like(high, leaf, "The upper bound")
        starts.append(_drawn(leaf, *sides, uniform, normal, spread, batched))
    return pytree.unflatten(starts, structure)


def _hypercube(count: int, entries: int, seed: int) -> Any:
    """(count, entries) numbers in (0, 1), one of each column in each of `count` slices of equal width (M. D. McKay, R.
    J. Beckman, W. J. Conover, 1979). NumPy's: PyTorch's random numbers may not be drawn under a `vmap`."""
    random = np.random.default_rng(seed)
    slices = random.permuted(np.tile(np.arange(count)[:, None], (1, entries)), axis=0)
    return np.clip((slices + random.random((count, entries))) / max(count, 1), 1e-6, 1 - 1e-6)


def _entries(leaf: Any, batched: bool) -> int:
    """How many numbers move it, of one problem."""
    if isinstance(leaf, Manifold):
        return type(leaf).tangent_dim * (int(np.prod(leaf.storage.shape[int(batched) : -1])))
    return int(np.prod(leaf.shape[int(batched) :]))


def _drawn(
    leaf: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    uniform: Float[Tensor, "count entries"],
    normal: Float[Tensor, "count entries"],
    spread: float,
    batched: bool,
) -> Tensor:
    shape = (len(uniform), *(1 for _ in leaf.shape[: int(batched)]), *leaf.shape[int(batched) :])
    uniform, normal = uniform.reshape(shape), normal.reshape(shape)
    size = torch.where(leaf == 0, torch.ones_like(leaf), leaf.abs())
    drawn = leaf + spread * size * normal
    low = torch.full_like(leaf, -torch.inf) if lower is None else lower.expand_as(leaf)
    high = torch.full_like(leaf, torch.inf) if upper is None else upper.expand_as(leaf)
    boxed = torch.isfinite(low) & torch.isfinite(high)
    width = torch.where(boxed, high - low, 0)
    drawn = torch.where(boxed, torch.where(boxed, low, 0) + uniform * width, drawn)
    return torch.cat([leaf[None], torch.minimum(torch.maximum(drawn, low), high)])


def _moved(leaf: Any, normal: Float[Tensor, "count entries"], spread: float, batched: bool) -> Any:
    inner = leaf.storage.shape[int(batched) : -1]
    tangent = spread * normal.reshape(len(normal), *(1 for _ in range(int(batched))), *inner, type(leaf).tangent_dim)
    whole = leaf.storage.shape[:-1]
    tangent = tangent.expand(len(normal), *whole, type(leaf).tangent_dim)
    tangent = torch.cat([torch.zeros_like(tangent[:1]), tangent])
    repeated = type(leaf)._wrap(leaf.storage.expand(len(tangent), *leaf.storage.shape))
    return repeated.retract(tangent)


def given(starts: Any, x0: Any, batched: bool) -> Any:
    """Starts of the user, checked: every leaf as in x0, or as in one problem of it, behind an axis of starts.

    Raises:
        ShapeError: they do not fit.
        ProblemError: they are another structure than x0.
    """
    leaves, structure = pytree.flatten(x0, is_leaf=is_whole)
    found, own = pytree.flatten(starts, is_leaf=is_whole)
    if own != structure:
        raise ProblemError(
            "starts must be a number, or a structure like x0 whose tensors have one more axis, the first."
        )
    result = []
    for leaf, start in zip(leaves, found, strict=True):
        like, tensor = tensor_of(leaf), tensor_of(start)
        if not isinstance(tensor, Tensor):
            raise ProblemError(
                f"starts must be a positive integer, a structure like x0 whose tensors have one more axis, the first, "
                f"or a function of a torch.Generator that returns one; not {start!r}."
            )
        shape = tuple(like.shape)
        tensor = sent(tensor, like.device, like.dtype)
        if batched and tuple(tensor.shape[1:]) == shape[1:]:
            tensor = tensor[:, None].expand(len(tensor), *shape)
        if tuple(tensor.shape[1:]) != shape:
            raise ShapeError(f"starts has a leaf of shape {tuple(tensor.shape)}; expected (starts, *{shape}).")
        result.append(type(start)._wrap(tensor) if isinstance(start, Manifold) else tensor)
    counts = {len(tensor_of(start)) for start in result}
    if len(counts) != 1 or counts == {0}:
        raise ShapeError(f"The leaves of starts have {sorted(counts)} starts; expected one number, at least 1.")
    return pytree.unflatten(result, structure)


def _on_device_of(like: Tensor, numbers: np.ndarray) -> Tensor:
    """Numbers of NumPy in the dtype of a tensor and on its device."""
    return sent(torch.from_numpy(np.ascontiguousarray(numbers)), like.device, like.dtype)
