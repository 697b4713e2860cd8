"""Comparisons, booleans, and choices between numbers by them."""

from collections.abc import Callable
from typing import Any

import torch

from mslsq.native.arrays import Array, each
from mslsq.native.pairs import chosen
from mslsq.native.rules.elementwise import entrywise
from mslsq.native.rules.registry import RULES, rule
from mslsq.native.scalars import NotScalarError, Scalar

X = Scalar
LARGEST_SEARCHED = 4096
"""Limits of a search."""

LARGEST_COMPARED = 24
"""Limits each of which is compared; more are searched by halves."""


def number_of(condition: X) -> X:
    """A boolean as the integer 0 or 1."""
    one, zero = (condition.program.constant(value, "integer") for value in (1, 0))
    return condition.choose(one, zero)


def _comparison(function: Callable[[X, X], X]) -> Callable[..., Array]:
    def apply(rec: Any, a: Any, b: Any) -> Array:
        dtype = rec.common_dtype(0, 1)
        whole = dtype != torch.bool and not dtype.is_floating_point and not dtype.is_complex
        dtype = torch.int64 if whole else dtype  # which holds all others
        a, b = rec.scalars(a, dtype), rec.scalars(b, dtype)
        if dtype == torch.bool:
            a, b = (each(number_of, side) for side in (a, b))
        return rec.array(each(function, a, b))

    return apply


RULES["lt"] = RULES["less"] = _comparison(lambda a, b: a.is_below(b))
RULES["le"] = RULES["less_equal"] = _comparison(lambda a, b: a.is_at_most(b))
RULES["gt"] = RULES["greater"] = _comparison(lambda a, b: a.is_above(b))
RULES["ge"] = RULES["greater_equal"] = _comparison(lambda a, b: a.is_at_least(b))
RULES["eq"] = _comparison(lambda a, b: a.is_equal(b))
RULES["ne"] = RULES["not_equal"] = _comparison(lambda a, b: a.differs(b))

RULES["bitwise_and"] = entrywise(lambda a, b: a.apply("and", b), 2)
RULES["bitwise_or"] = entrywise(lambda a, b: a.apply("or", b), 2)
RULES["bitwise_xor"] = entrywise(lambda a, b: a.apply("xor", b), 2)
RULES["bitwise_not"] = entrywise(lambda a: a.apply("not"), 1)
RULES["logical_and"], RULES["logical_or"] = RULES["bitwise_and"], RULES["bitwise_or"]
RULES["logical_xor"], RULES["logical_not"] = RULES["bitwise_xor"], RULES["bitwise_not"]


def _test(function: Callable[[X], X]) -> Callable[..., Array]:
    def apply(rec: Any, x: Any) -> Array:
        dtype = rec.common_dtype(0)
        if not dtype.is_floating_point:
            raise NotScalarError(f"{rec.node.target} of integers")
        return rec.array(each(function, rec.scalars(x, dtype)))

    return apply


RULES["isnan"] = _test(lambda x: x.apply("ne", x))
RULES["isinf"] = _test(lambda x: x.apply("abs").is_equal(float("inf")))
RULES["isfinite"] = _test(lambda x: x.apply("abs").is_below(float("inf")))
RULES["signbit"] = _test(lambda x: x.like(1).apply("copysign", x).is_below(0))


@rule("where")
def _(rec: Any, condition: Any, yes: Any, no: Any) -> Array:
    conditions = rec.moved(condition, torch.bool)
    return rec.array(
        each(lambda c, a, b: chosen(c, a, b), conditions, rec.moved(yes, rec.dtype), rec.moved(no, rec.dtype))
    )


@rule("masked_fill")
def _(rec: Any, x: Any, mask: Any, value: Any) -> Array:
    mask = rec.moved(mask, torch.bool)
    return rec.array(each(lambda c, a, b: chosen(c, b, a), mask, rec.moved(x, rec.dtype), rec.moved(value, rec.dtype)))


@rule("nan_to_num")
def _(rec: Any, x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Array:
    limits = torch.finfo(rec.dtype)
    most, least = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf

    def finite(a: X) -> X:
        a_or_most = a.is_equal(float("inf")).choose(most, a)
        bounded = a.is_equal(-float("inf")).choose(least, a_or_most)
        return a.apply("ne", a).choose(nan or 0.0, bounded)

    return entrywise(finite, 1)(rec, x)


@rule("searchsorted", "bucketize")
def _(
    rec: Any, first: Any, second: Any, *, right: bool = False, side: str | None = None, sorter: Any = None, **_: Any
) -> Array:
    is_search = rec.node.target.__name__.startswith("searchsorted")
    limits, x = (first, second) if is_search else (second, first)
    kinds = [value.meta["val"].dtype for value in rec.node.args if hasattr(value, "meta")]
    dtype = max(kinds, key=lambda kind: (kind.is_floating_point, kind.itemsize))
    limits, x = rec.scalars(limits, dtype), rec.scalars(x, dtype)
    if sorter is not None or limits.ndim != 1 or len(limits) > LARGEST_SEARCHED:
        raise NotScalarError(f"{rec.node.target.__name__} of {limits.size} limits in {limits.ndim} dimensions")

    def is_below(limit: X, a: X) -> X:
        """All of them are below NaN."""
        return (limit.is_above(a) if right or side == "right" else limit.is_at_least(a)).apply("not")

    def counted(a: X) -> X:
        count = a.program.constant(0, "integer")
        for limit in limits:
            count = count + number_of(is_below(limit, a))
        return count

    def halved(a: X) -> X:
        """Among sorted limits: the place moves on by powers of two as long as the limit before it is below."""
        place = a.program.constant(0, "integer")
        for step in (1 << power for power in reversed(range(len(limits).bit_length()))):
            after = place + step
            moves = is_below(a.program.pick(table, after - 1), a).apply("and", after.is_at_most(len(limits)))
            place = moves.choose(after, place)
        return place

    if len(limits) <= LARGEST_COMPARED:
        return rec.array(each(counted, x))
    table = rec.program.table(list(limits))
    return rec.array(each(halved, x))
