"""Largest and smallest entries: over axes, and running along one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mslsq.native.arrays import Array, each
from mslsq.native.rules.reductions import axes_of, reduced, reduction
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import NotScalarError, Scalar


def first_extreme(name: str) -> Callable[[list[Any]], tuple[Scalar, Scalar]]:
    """The extreme and its index, the first of equal ones; NaN before all."""

    def extreme(terms: list[Scalar]) -> tuple[Scalar, Scalar]:
        program = terms[0].program
        best, index = terms[0], program.constant(0, "integer")
        for number, term in enumerate(terms[1:], 1):
            better = term.is_above(best) if name == "max" else term.is_below(best)
            if term.kind == "real":
                better = better.apply("or", term.apply("ne", term)).apply("and", best.is_equal(best))
            best = better.choose(term, best)
            index = better.choose(program.constant(number, "integer"), index)
        return best, index

    return extreme


def shared_extreme(name: str) -> Callable[[list[Any]], Scalar]:
    """The extreme, with the derivative shared evenly among equal ones, as PyTorch does for amax and max()."""

    def extreme(terms: list[Scalar]) -> Scalar:
        best = first_extreme(name)(terms)[0]
        if best.kind != "real" or len(terms) == 1:
            return best
        return best.apply("shared", *terms)

    return extreme


@rule("amax", "amin")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Array:
    return reduction(rec, x, dim, keepdim, shared_extreme(rec.node.target.__name__[1:4]))


@rule("max", "min")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    name = rec.node.target.__name__[:3]
    if dim is None:
        return reduction(rec, x, None, False, shared_extreme(name))
    if isinstance(dim, Array | torch.Tensor):
        raise NotScalarError(f"{name} of two tensors")
    dtype = rec.node.args[0].meta["val"].dtype
    entries = rec.scalars(x, dtype)
    both = reduced(entries, axes_of(dim, entries.ndim), keepdim, first_extreme(name))
    return [
        rec.array(each(lambda pair: pair[0], both), dtype),
        rec.array(each(lambda pair: pair[1], both), torch.int64),
    ]


@rule("aminmax")
def _(rec: Any, x: Any, *, dim: int | None = None, keepdim: bool = False) -> list[Array]:
    dtype = rec.node.args[0].meta["val"].dtype
    entries = rec.scalars(x, dtype)
    axes = axes_of(dim, entries.ndim)
    return [rec.array(reduced(entries, axes, keepdim, shared_extreme(name)), dtype) for name in ("min", "max")]


@rule("argmax", "argmin")
def _(rec: Any, x: Any, dim: int | None = None, keepdim: bool = False) -> Array:
    entries = rec.scalars(x, rec.node.args[0].meta["val"].dtype)
    extreme = first_extreme(rec.node.target.__name__[3:6])
    return rec.array(reduced(entries, axes_of(dim, entries.ndim), keepdim, lambda terms: extreme(terms)[1]))


@rule("cummax", "cummin")
def _(rec: Any, x: Any, dim: int) -> list[Array]:
    name = rec.node.target.__name__[3:6]
    dtype = rec.node.args[0].meta["val"].dtype
    entries = rec.scalars(x, dtype)
    if not entries.ndim or not entries.size:
        return [rec.array(entries, dtype), rec.array(each(lambda a: rec.constant(0, "integer"), entries), torch.int64)]
    rows = np.moveaxis(entries, dim, 0)
    best, index = [rows[0]], [each(lambda a: rec.constant(0, "integer"), rows[0])]

    def better(term: Scalar, before: Scalar) -> Scalar:
        """The last of equal ones, as in PyTorch; NaN stays, and the last of those counts."""
        holds = term.is_at_least(before) if name == "max" else term.is_at_most(before)
        return holds.apply("or", term.apply("ne", term)) if term.kind == "real" else holds

    for number, row in enumerate(rows[1:], 1):
        is_better = each(better, row, best[-1])
        best.append(each(lambda c, a, b: c.choose(a, b), is_better, row, best[-1]))
        own = rec.constant(number, "integer")
        index.append(each(lambda c, b, own=own: c.choose(own, b), is_better, index[-1]))
    found = [np.moveaxis(np.stack(part), 0, dim) for part in (best, index)]
    return [rec.array(found[0], dtype), rec.array(found[1], torch.int64)]
