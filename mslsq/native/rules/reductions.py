"""Sums, products and the like over axes, and running along one."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mslsq.native.arrays import Array, each
from mslsq.native.rules.elementwise import logarithm_of_sum
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


def reduction(rec: Any, x: Any, dims: Any, keepdim: bool, function: Callable[[list[Any]], Any] = total) -> Array:
    entries = rec.scalars(x, rec.dtype)
    axes = axes_of(dims, entries.ndim)
    if entries.size == 0:
        raise NotScalarError("a reduction of no entries")
    return rec.array(reduced(entries, axes, keepdim, function))


@rule("sum")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return reduction(rec, x, dim, keepdim)


@rule("mean")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return reduction(rec, x, dim, keepdim, lambda terms: total(terms) / float(len(terms)))


@rule("prod")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    def product(terms: list[Scalar]) -> Scalar:
        result = terms[0]
        for term in terms[1:]:
            result = result * term
        return result

    return reduction(rec, x, dim, keepdim, product)


@rule("var_mean", "std_mean")
def _(rec: Any, x: Any, dim: Any = None, *args: Any, correction: Any = 1, keepdim: bool = False) -> list[Array]:
    dtype = rec.node.meta["val"][0].dtype
    entries = rec.scalars(x, dtype)
    spread = _variance(rec, dim, args, correction)
    axes = axes_of(dim, entries.ndim)
    means = reduced(entries, axes, keepdim, lambda terms: total(terms) / float(len(terms)))
    return [rec.array(reduced(entries, axes, keepdim, spread), dtype), rec.array(means, dtype)]


@rule("var", "std")
def _(rec: Any, x: Any, dim: Any = None, *args: Any, correction: Any = 1, keepdim: bool = False) -> Array:
    return reduction(rec, x, dim, keepdim, _variance(rec, dim, args, correction))


def _variance(rec: Any, dim: Any, args: Any, correction: Any) -> Callable[[list[Any]], Scalar]:
    if args or isinstance(dim, bool):
        raise NotScalarError("var with unbiased")
    is_root = rec.node.target.__name__.startswith("std")

    def variance(terms: list[Scalar]) -> Scalar:
        mean = total(terms) / float(len(terms))
        squares = [(term - mean) * (term - mean) for term in terms]
        found = total(squares) / float(len(terms) - (1 if correction is None else correction))
        return found.apply("length") if is_root else found

    return variance


def _running(rec: Any, x: Any, dim: int, join: Callable[[Scalar, Scalar], Scalar]) -> Array:
    """Each entry joined with what those before it come to."""
    entries = rec.scalars(x, rec.dtype)
    if not entries.ndim or not entries.size:
        return rec.array(entries)
    rows = np.moveaxis(entries, dim, 0)
    found = [rows[0]]
    for row in rows[1:]:
        found.append(each(join, found[-1], row))
    return rec.array(np.moveaxis(np.stack(found), 0, dim))


@rule("cumsum")
def _(rec: Any, x: Any, dim: int, *, dtype: Any = None) -> Array:
    return _running(rec, x, dim, lambda a, b: a + b)


@rule("cumprod")
def _(rec: Any, x: Any, dim: int, *, dtype: Any = None) -> Array:
    return _running(rec, x, dim, lambda a, b: a * b)


@rule("logcumsumexp")
def _(rec: Any, x: Any, dim: int) -> Array:
    return _running(rec, x, dim, logarithm_of_sum)


@rule("nansum")
def _(rec: Any, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    return reduction(rec, x, dim, keepdim, lambda terms: total([t.apply("ne", t).choose(0, t) for t in terms]))


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
