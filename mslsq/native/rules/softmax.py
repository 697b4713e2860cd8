"""Exponentials that are divided by their sum, and the logarithm of that sum."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mslsq.native.arrays import Array, each
from mslsq.native.rules.extremes import first_extreme
from mslsq.native.rules.reductions import axes_of, reduced, reduction, total
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import Scalar


def _shifted(terms: list[Scalar]) -> tuple[list[Scalar], Scalar]:
    """Exponentials of the terms less the largest, which is a constant to derivatives; and that one."""
    largest = first_extreme("max")(terms)[0].apply("detached")
    return [(term - largest).apply("exp") for term in terms], largest


def _along(rec: Any, x: Any, dim: int, function: Callable[[list[Scalar]], list[Scalar]]) -> Array:
    """`function` of every line of entries along an axis, which has as many results."""
    entries = rec.scalars(x, rec.dtype)
    at_end = np.moveaxis(entries, dim, -1) if entries.ndim else entries[None]
    result = np.empty(at_end.shape, dtype=object)
    for place in np.ndindex(*at_end.shape[:-1]):
        result[place] = function(list(at_end[place]))
    return rec.array(np.moveaxis(result, -1, dim) if entries.ndim else result[0])


@rule("_softmax", "_safe_softmax")
def _(rec: Any, x: Any, dim: int, *_: Any, **__: Any) -> Array:
    is_safe = "safe" in rec.node.target.__name__

    def softmax(terms: list[Scalar]) -> list[Scalar]:
        powers, largest = _shifted(terms)
        whole = total(powers)
        shares = [power / whole for power in powers]
        nothing = largest.is_equal(-float("inf"))  # all of a line is masked
        return [nothing.choose(0, share) for share in shares] if is_safe else shares

    return _along(rec, x, dim, softmax)


@rule("_log_softmax")
def _(rec: Any, x: Any, dim: int, *_: Any) -> Array:
    def log_softmax(terms: list[Scalar]) -> list[Scalar]:
        powers, largest = _shifted(terms)
        logarithm = total(powers).apply("log")
        return [term - largest - logarithm for term in terms]

    return _along(rec, x, dim, log_softmax)


@rule("logsumexp")
def _(rec: Any, x: Any, dim: Any, keepdim: bool = False) -> Array:
    def logsumexp(terms: list[Scalar]) -> Scalar:
        largest = first_extreme("max")(terms)[0].apply("detached")
        largest = largest.apply("abs").is_equal(float("inf")).choose(0, largest)
        return total([(term - largest).apply("exp") for term in terms]).apply("log") + largest

    return reduction(rec, x, dim, keepdim, logsumexp)


@rule("_softmax_backward_data")
def _(rec: Any, grad: Any, y: Any, dim: int, *_: Any) -> Array:
    g, y = rec.scalars(grad, rec.dtype), rec.scalars(y, rec.dtype)
    products = each(lambda a, b: a * b, g, y)
    whole = reduced(products, axes_of(dim, products.ndim), True, total)
    return rec.array(each(lambda p, a, s: p - a * s, products, y, whole))


@rule("_log_softmax_backward_data")
def _(rec: Any, grad: Any, y: Any, dim: int, *_: Any) -> Array:
    g, y = rec.scalars(grad, rec.dtype), rec.scalars(y, rec.dtype)
    whole = reduced(g, axes_of(dim, g.ndim), True, total)
    return rec.array(each(lambda a, b, s: a - b.apply("exp") * s, g, y, whole))
