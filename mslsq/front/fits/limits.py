"""Bounds of a fit, stated for all parameters by name: those of the ones that are free."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import is_whole, shape_of_one
from mslsq.front.bounds import SIDES, by_leaf, of_shape, pair_of, tensor_like
from mslsq.front.fits.scheme import Divided
from mslsq.front.statement import Statement
from mslsq.levels import at_the_bottom
from mslsq.problem.errors import ProblemError

ADVICE = "Bound what it is tied to, or state mslsq.Inequality in a mslsq.Problem."


def bounds_of_free(
    bounds: Any, start: Any, dims: Any, division: Divided, tied: Mapping[Any, Any] | None, size: int | None
) -> Any:
    """Bounds in the form of `division.free`.

    Args:
        bounds: in the form of all parameters; those of held ones must contain the value held, and may be missing.
        start: all parameters but those that are tied.
        dims: the tree of its batch axes.
        division: the start divided into what is free and what is held.
        tied: functions by name.
        size: of the batch.

    Raises:
        ProblemError: bounds do not fit the start, bound a tied parameter, or exclude a value that is held.
    """
    scheme = division.scheme
    if bounds is None or scheme is None:
        return bounds
    leaves, paths = pytree.leaves(start), pytree.names(start, is_leaf=is_whole)
    leaf_dims = pytree.leaves(dims) if dims is not None else [None] * len(leaves)
    result = []
    for given, which in zip(pair_of(bounds, "bounds"), SIDES, strict=True):
        side, held, found = by_leaf(_of_untied(given, start, tied or {}, which), start, which), iter(division.held), []
        for value, leaf, dim, part, path in zip(side, leaves, leaf_dims, scheme.leaves, paths, strict=True):
            what = f"The {which} bound of {path or 'p0'}"
            if part.held:
                tensor = tensor_like(value, leaf, what)
                shape = shape_of_one(leaf.shape, dim)
                storage = (1, math.prod(shape))
                of_one = None if tensor is None else of_shape(tensor, shape, size, storage, what).tensor[..., 0, :]
                own = next(held)
                if of_one is not None:
                    _check_held(own, of_one[..., part.held], which, path or "p0")
                value = None if of_one is None else of_one[..., part.free]
            if part.free:
                found.append(value)
        result.append(found)
    return tuple(result)


def limits_of(
    statement: Statement, like: Float[Tensor, "*batch n"], count: int
) -> tuple[Float[Tensor, "*batch n"], ...]:
    """Lower and upper bounds of the first `count` unknowns, one after the other; nothing where there are no bounds."""
    bounds = statement.bounds.of
    if not bounds:
        return ()
    sides = []
    for side, nothing in ((0, -math.inf), (1, math.inf)):
        parts = []
        for unknown in statement.system.unknowns[:count]:
            if unknown.is_bounded:
                parts.append(bounds[unknown.bounds[side]].tensor[..., 0, :].expand(*like.shape[:-1], -1))
            else:
                parts.append(like.new_full((*like.shape[:-1], unknown.space.storage_dim), nothing))
        sides.append(torch.cat(parts, -1))
    return tuple(sides)


def _of_untied(side: Any, start: Any, tied: Mapping[Any, Any], which: str) -> Any:
    """One side in the form of the start, which lacks what is tied; what a dict lacks has no bound where it may."""
    if not isinstance(side, Mapping) or not isinstance(start, Mapping):
        if tied and not _is_nothing(side):
            name = next(iter(tied))
            raise ProblemError(
                f"The {which} bound {side!r} for all parameters is one of the tied parameter {name!r}, too, which "
                "follows from others. Give a dict with the bounds of those that are not tied."
            )
        return side
    for key in tied:
        if key in side and not all(map(_is_nothing, pytree.leaves(side[key], is_leaf=lambda x: x is None))):
            raise ProblemError(f"The tied parameter {key!r} has a {which} bound, but it follows from others. {ADVICE}")
    own = {key: value for key, value in side.items() if key not in tied}
    return {**{key: pytree.map_leaves(lambda _: None, start[key]) for key in start if key not in own}, **own}


def _is_nothing(bound: Any) -> bool:
    """Does it bound nothing?"""
    return bound is None or (isinstance(bound, (int, float)) and math.isinf(bound))


def _check_held(held: Tensor, bound: Tensor, which: str, path: str) -> None:
    """Is the value held within the bound? Under transforms asked of all values that they map."""
    beyond = bound - held if which == "lower" else held - bound

    def check(beyond: Tensor) -> Tensor:
        if bool((beyond > 0).any()):
            raise ProblemError(
                f"The fixed parameter {path} is held outside of its {which} bound, by {float(beyond.max()):g}. Hold it "
                "within its bounds, or leave them out: those of a fixed parameter have no other effect."
            )
        return beyond

    at_the_bottom(beyond, check)
