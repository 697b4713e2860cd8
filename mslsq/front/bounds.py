"""Bounds as users state them (numbers, arrays, pytrees like the start) as one tensor per unknown and side."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import is_whole, sent
from mslsq.linearize.blocks import Values
from mslsq.manifolds.space import Space
from mslsq.problem.errors import DeviceError, ProblemError, ShapeError
from mslsq.problem.system import System, Unknown

SIDES = ("lower", "upper")


@dataclass(frozen=True, eq=False)
class Bound:
    """One side of an unknown: (count, tangent), with the batch in front where each problem has its own."""

    tensor: Tensor
    is_batched: bool = False


@dataclass(frozen=True, eq=False)
class StatedBounds:
    """Bounds of a statement, by the names of `Unknown.bounds`; empty where there are none."""

    of: dict[str, Bound]
    projects_start: bool = False
    """Is a start outside moved to the nearest point inside, instead of being an error?"""

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: bound.tensor for name, bound in self.of.items()}

    @property
    def batched(self) -> frozenset[str]:
        return frozenset(name for name, bound in self.of.items() if bound.is_batched)

    def projected(self, system: System, values: Values) -> Values:
        """The start that was asked for: as given, or the nearest point within the bounds."""
        if not self.projects_start:
            return values
        return tuple(
            torch.clamp(x, *(self.of[name].tensor for name in unknown.bounds)) if unknown.is_bounded else x
            for unknown, x in zip(system.unknowns, values, strict=True)
        )


NO_BOUNDS = StatedBounds({})


def bounded(
    unknowns: Sequence[Unknown], sides: Sequence[tuple[Any, Any]], to_bound: Callable[[int, Any, str], Bound | None]
) -> tuple[tuple[Unknown, ...], dict[str, Bound]]:
    """The unknowns, told which are bounded, and their bounds; a side that is not given is infinite.

    Args:
        sides: lower and upper bound of every unknown, as the user gave them.
        to_bound: makes a bound of what the user gave for an unknown and a side; None where that bounds nothing.
    """
    found, result = [], {}
    for number, (unknown, given) in enumerate(zip(unknowns, sides, strict=True)):
        bounds = [to_bound(number, value, side) for value, side in zip(given, SIDES, strict=True)]
        known = next((bound for bound in bounds if bound is not None), None)
        found.append(unknown if known is None else replace(unknown, is_bounded=True))
        if known is None:
            continue
        for name, bound, nothing in zip(unknown.bounds, bounds, (-math.inf, math.inf), strict=True):
            one = known.tensor[0] if known.is_batched else known.tensor
            result[name] = bound or Bound(torch.full_like(one, nothing, requires_grad=False))
    return tuple(found), result


def pair_of(bounds: Any, where: str, start: Any = None) -> tuple[Any, Any]:
    """Lower and upper bounds: a pair, or `scipy.optimize.Bounds`; of a start, where that is known."""
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        return bounds.lb, bounds.ub
    if isinstance(bounds, Sequence) and not isinstance(bounds, (str, tuple, list)):  # of a configuration
        bounds = tuple(bounds)
    if _is_list_of_pairs(bounds, start):
        lower = [-math.inf if low is None else low for low, _ in bounds]
        upper = [math.inf if high is None else high for _, high in bounds]
        raise ProblemError(
            f"{where} is a list of pairs, one for each entry, as scipy.optimize.minimize takes it. Here, as in "
            f"scipy.optimize.least_squares, it is a pair (lower, upper): bounds=({lower}, {upper})."
        )
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise ProblemError(
            f"{where} must be a pair (lower, upper), each a number, a tensor, None, or a structure like that of the "
            f"start; not {type(bounds).__name__}{f' of {len(bounds)}' if isinstance(bounds, (tuple, list)) else ''}."
        )
    return bounds[0], bounds[1]


def _is_list_of_pairs(bounds: Any, start: Any) -> bool:
    """Is it [(low, high), ...]? Of two entries the outer list tells it from lower and upper bounds in a tuple."""

    def is_number(x: Any) -> bool:
        return x is None or isinstance(x, (int, float))

    if not isinstance(bounds, (tuple, list)) or not all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 and all(map(is_number, pair)) for pair in bounds
    ):
        return False
    as_in_scipy = isinstance(bounds, list) and all(isinstance(pair, tuple) for pair in bounds)
    return len(bounds) != 2 or (as_in_scipy and isinstance(start, Tensor))


def by_leaf(side: Any, start: Any, which: str) -> list[Any]:
    """One side by the leaves of the start: one for all of them, or a structure like theirs."""
    paths = pytree.names(start, is_leaf=is_whole)
    if side is None or isinstance(side, (int, float)) or (len(paths) > 1 and _is_number(side)):
        return [side] * len(paths)
    if paths == [""]:
        if isinstance(side, dict):
            raise ProblemError(f"bounds: the start is one tensor, the {which} bound a dict. Give a number or a tensor.")
        return [side]

    def is_leaf(x: Any) -> bool:
        return x is None or is_whole(x)

    given = dict(zip(pytree.names(side, is_leaf), pytree.leaves(side, is_leaf), strict=True))
    if given.keys() != set(paths):
        raise ProblemError(
            f"bounds: the start has the parts {', '.join(paths)}, the {which} bound {', '.join(given) or 'none'}. Give "
            "a number for all entries, or a structure like that of the start with None where there is no bound."
        )
    return [given[path] for path in paths]


def tensor_like(given: Any, like: Tensor, what: str) -> Tensor | None:
    """A bound in the dtype of the start and on its device; None where it bounds nothing."""
    if given is None or (isinstance(given, (int, float)) and math.isinf(given)):
        return None
    if isinstance(given, str):
        raise ProblemError(f"{what} must be a number, an array or None, not the text {given!r}.")
    if isinstance(given, Tensor):
        if given.device != like.device and given.ndim:
            raise DeviceError(f"{what} is on {given.device}, the start on {like.device}.")
        if given.is_complex() or given.dtype == torch.bool:
            raise ProblemError(f"{what} must be real numbers, not {given.dtype}.")
        return sent(given, like.device, like.dtype)
    try:
        return sent(torch.as_tensor(np.asarray(given, dtype=np.float64), device="cpu"), like.device, like.dtype)
    except (TypeError, ValueError):
        raise ProblemError(
            f"{what} must be a number, an array or None, not {type(given).__name__}. Elements of manifolds have no "
            "bounds."
        ) from None


def refuse_manifold(space: Space, what: str) -> None:
    """Only what a step is added to plainly has bounds."""
    if not space.is_euclidean:
        raise ProblemError(
            f"{what}: {space.name} is a manifold, and its elements are not ordered. Bound Euclidean variables alone; a "
            "limit of a rotation or a pose is a cost, or a variable of its own (an angle)."
        )


def of_shape(tensor: Tensor, shape: tuple[int, ...], size: int | None, storage: tuple[int, int], what: str) -> Bound:
    """A tensor broadcast to one problem's shape, or to (batch, *shape), as (count, tangent)."""
    is_batched = tensor.ndim > len(shape)
    wanted = (size, *shape) if is_batched and size is not None else shape
    if tensor.ndim > len(wanted) or (is_batched and tensor.shape[0] != size):
        problems = f" or {(size, *shape)}, one for each problem" if size is not None else ""
        raise ShapeError(f"{what} has shape {tuple(tensor.shape)}; expected {shape}{problems}, or what broadcasts.")
    try:
        tensor = tensor.expand(wanted)
    except RuntimeError:
        raise ShapeError(f"{what} has shape {tuple(tensor.shape)}, which does not broadcast to {wanted}.") from None
    return Bound(tensor.reshape(*wanted[: len(wanted) - len(shape)], *storage), is_batched)


def _is_number(side: Any) -> bool:
    return isinstance(side, (Tensor, np.ndarray, np.generic)) and side.ndim == 0
