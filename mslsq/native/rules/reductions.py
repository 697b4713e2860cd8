"""Sums, products, extremes and norms over axes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mslsq.native.arrays import Array, each
from mslsq.native.rules.elementwise import logarithm_of_sum
from mslsq.native.rules.registry import RULES, rule
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
    return _sum(rec, x, dim, keepdim, _variance(rec, dim, args, correction))


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
    return _sum(rec, x, dim, keepdim, lambda terms: total([t.apply("ne", t).choose(0, t) for t in terms]))


# ---- exponentials that are divided by their sum


def _shifted(terms: list[Scalar]) -> tuple[list[Scalar], Scalar]:
    """Exponentials of the terms less the largest, which is a constant to derivatives; and that one."""
    largest = _first_extreme("max")(terms)[0].apply("detached")
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
        largest = _first_extreme("max")(terms)[0].apply("detached")
        largest = largest.apply("abs").is_equal(float("inf")).choose(0, largest)
        return total([(term - largest).apply("exp") for term in terms]).apply("log") + largest

    return _sum(rec, x, dim, keepdim, logsumexp)


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


@rule("aminmax")
def _(rec: Any, x: Any, *, dim: int | None = None, keepdim: bool = False) -> list[Array]:
    dtype = rec.node.args[0].meta["val"].dtype
    entries = rec.scalars(x, dtype)
    axes = axes_of(dim, entries.ndim)
    return [rec.array(reduced(entries, axes, keepdim, _shared_extreme(name)), dtype) for name in ("min", "max")]


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
        float("inf"): lambda terms: _shared_extreme("max")([term.apply("abs") for term in terms]),
        -float("inf"): lambda terms: _shared_extreme("min")([term.apply("abs") for term in terms]),
        0: lambda terms: total([term.apply("ne", 0).choose(1, 0) for term in terms]),
    }
    order = 2 if order is None else order
    if not isinstance(order, (int, float)):
        raise NotScalarError(f"the norm of order {order}")
    return _sum(rec, x, dim, keepdim, norms.get(order, lambda terms: _root_of_powers(terms, order)))


def _root_of_powers(terms: list[Scalar], order: float) -> Scalar:
    """(Σ|x|ᵖ)¹ᐟᵖ, with the derivative 0 in an entry that is 0, as in PyTorch."""

    def power(x: Scalar, exponent: float) -> Scalar:
        nothing = x.is_equal(0)
        return nothing.choose(0, nothing.choose(1, x).apply("pow", exponent))

    return power(total([power(term.apply("abs"), order) for term in terms]), 1 / order)


@rule("dist")
def _(rec: Any, a: Any, b: Any, order: float = 2) -> Array:
    difference = each(lambda x, y: x - y, rec.scalars(a, rec.dtype), rec.scalars(b, rec.dtype))
    return RULES["norm"](rec, rec.array(difference), order)
