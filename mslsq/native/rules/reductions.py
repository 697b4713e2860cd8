"""Sums, products, extremes and norms over axes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mslsq.native.arrays import Array, each
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import NotScalarError, Scalar


def axes_of(dims: Any, ndim: int) -> tuple[int, ...]:
    """The axes that `dim` of a reduction names: all where there are none."""
    if dims is None or dims == []:
        return tuple(range(ndim))
    return tuple(sorted(d % max(ndim, 1) for d in ([dims] if isinstance(dims, int) else dims)) if ndim else ())


def reduced(
    entries: np.ndarray, axes: Sequence[int], keepdim: bool, function: Callable[[list[Any]], Any]
) -> np.ndarray:
    """`function` of the list of entries along some axes."""
    kept = [d for d in range(entries.ndim) if d not in axes]
    rows = entries.transpose([*kept, *axes]).reshape(*(entries.shape[d] for d in kept), -1)
    result = np.empty(rows.shape[:-1], dtype=object)
    for place in np.ndindex(*rows.shape[:-1]):
        result[place] = function(list(rows[place]))
    return result.reshape([1 if d in axes else size for d, size in enumerate(entries.shape)]) if keepdim else result


def total(terms: list[Scalar]) -> Scalar:
    """The sum, from left to right."""
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def _sum(rec: Any, x: Any, dims: Any, keepdim: bool, function: Callable[[list[Any]], Any] = total) -> Array:
    entries = rec.scalars(x, rec.dtype)
    axes = axes_of(dims, entries.ndim)
    if entries.size == 0:
        raise NotScalarError("a reduction of no entries")
    return rec.array(reduced(entries, axes, keepdim, function))


@rule("sum")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return _sum(rec, x, dim, keepdim)


@rule("mean")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return _sum(rec, x, dim, keepdim, lambda terms: total(terms) / float(len(terms)))


@rule("prod")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    def product(terms: list[Scalar]) -> Scalar:
        result = terms[0]
        for term in terms[1:]:
            result = result * term
        return result

    return _sum(rec, x, dim, keepdim, product)


@rule("var", "std")
def _(rec: Any, x: Any, dim: Any = None, *args: Any, correction: Any = 1, keepdim: bool = False) -> Array:
    if args or isinstance(dim, bool):
        raise NotScalarError("var with unbiased")
    is_root = rec.node.target.__name__.startswith("std")

    def variance(terms: list[Scalar]) -> Scalar:
        mean = total(terms) / float(len(terms))
        squares = [(term - mean) * (term - mean) for term in terms]
        found = total(squares) / float(len(terms) - (1 if correction is None else correction))
        return found.apply("length") if is_root else found

    return _sum(rec, x, dim, keepdim, variance)


@rule("cumsum")
def _(rec: Any, x: Any, dim: int, *, dtype: Any = None) -> Array:
    entries = rec.scalars(x, rec.dtype)
    if not entries.ndim:
        return rec.array(entries)
    rows = np.moveaxis(entries, dim, 0)
    sums = [rows[0]]
    for row in rows[1:]:
        sums.append(each(lambda a, b: a + b, sums[-1], row))
    return rec.array(np.moveaxis(np.stack(sums), 0, dim))


# ---- extremes


def _first_extreme(name: str) -> Callable[[list[Any]], tuple[Scalar, Scalar]]:
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


def _shared_extreme(name: str) -> Callable[[list[Any]], Scalar]:
    """The extreme, with the derivative shared evenly among equal ones, as PyTorch does for amax and max()."""

    def extreme(terms: list[Scalar]) -> Scalar:
        best = _first_extreme(name)(terms)[0]
        if best.kind != "real" or len(terms) == 1:
            return best
        return best.apply("shared", *terms)

    return extreme


@rule("amax", "amin")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Array:
    return _sum(rec, x, dim, keepdim, _shared_extreme(rec.node.target.__name__[1:4]))


@rule("max", "min")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    name = rec.node.target.__name__[:3]
    if dim is None:
        return _sum(rec, x, None, False, _shared_extreme(name))
    if isinstance(dim, Array | torch.Tensor):
        raise NotScalarError(f"{name} of two tensors")
    dtype = rec.node.args[0].meta["val"].dtype
    entries = rec.scalars(x, dtype)
    both = reduced(entries, axes_of(dim, entries.ndim), keepdim, _first_extreme(name))
    return [
        rec.array(each(lambda pair: pair[0], both), dtype),
        rec.array(each(lambda pair: pair[1], both), torch.int64),
    ]


@rule("argmax", "argmin")
def _(rec: Any, x: Any, dim: int | None = None, keepdim: bool = False) -> Array:
    entries = rec.scalars(x, rec.node.args[0].meta["val"].dtype)
    extreme = _first_extreme(rec.node.target.__name__[3:6])
    return rec.array(reduced(entries, axes_of(dim, entries.ndim), keepdim, lambda terms: extreme(terms)[1]))


@rule("all", "any")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Array:
    name = "and" if rec.node.target.__name__.startswith("all") else "or"

    def together(terms: list[Scalar]) -> Scalar:
        result = terms[0]
        for term in terms[1:]:
            result = result.apply(name, term)
        return result

    entries = rec.scalars(x, torch.bool)
    return rec.array(reduced(entries, axes_of(dim, entries.ndim), keepdim, together))


# ---- norms


def _length(terms: list[Scalar]) -> Scalar:
    """√Σx², without overflow where there is one term, as in PyTorch."""
    return total([term * term for term in terms]).apply("length") if len(terms) > 1 else terms[0].apply("magnitude")


@rule("linalg_vector_norm", "norm")
def _(rec: Any, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    norms: dict[float, Callable[[list[Scalar]], Scalar]] = {
        2: _length,
        1: lambda terms: total([term.apply("abs") for term in terms]),
    }
    if order is not None and order not in norms:
        raise NotScalarError(f"the norm of order {order}")
    return _sum(rec, x, dim, keepdim, norms[2 if order is None else order])
