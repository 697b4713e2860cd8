"""What goes along lines and planes of a tensor: convolutions, and sorting with what is made of it."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mslsq.native.arrays import Array
from mslsq.native.rules.choices import number_of
from mslsq.native.rules.reductions import total
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import NotScalarError, Scalar

LARGEST_SORTED = 32
"""Entries of a line that is sorted: each is compared with each."""


@rule("convolution")
def _(
    rec: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Array:
    if transposed:
        return _transposed(rec, x, weight, bias, stride, padding, dilation, groups)
    signal, taps = rec.scalars(x, rec.dtype), rec.scalars(weight, rec.dtype)
    offsets = None if bias is None else rec.scalars(bias, rec.dtype)
    channels, per_group = taps.shape[1], taps.shape[0] // groups
    result = np.empty(rec.shape, dtype=object)
    for place in np.ndindex(*rec.shape):
        sample, out, *at = place
        first = out // per_group * channels
        terms = [] if offsets is None else [offsets[out]]
        for channel, *tap in itertools.product(range(channels), *map(range, taps.shape[2:])):
            source = [a * s - p + t * d for a, s, p, t, d in zip(at, stride, padding, tap, dilation, strict=True)]
            if all(0 <= k < n for k, n in zip(source, signal.shape[2:], strict=True)):
                terms.append(signal[(sample, first + channel, *source)] * taps[(out, channel, *tap)])
        result[place] = total(terms) if terms else rec.constant(0)
    return rec.array(result)


def _transposed(
    rec: Any, x: Any, weight: Any, bias: Any, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Array:
    """Each entry of the signal times each tap, added where it belongs."""
    signal, taps = rec.scalars(x, rec.dtype), rec.scalars(weight, rec.dtype)
    channels, per_group = taps.shape[0] // groups, taps.shape[1]
    terms: dict[tuple[int, ...], list[Scalar]] = {}
    for sample, channel, *at in np.ndindex(*signal.shape):
        for own, *tap in itertools.product(range(per_group), *map(range, taps.shape[2:])):
            place = [a * s - p + t * d for a, s, p, t, d in zip(at, stride, padding, tap, dilation, strict=True)]
            out = (sample, channel // channels * per_group + own, *place)
            terms.setdefault(out, []).append(signal[(sample, channel, *at)] * taps[(channel, own, *tap)])
    offsets = None if bias is None else rec.scalars(bias, rec.dtype)
    result = np.empty(rec.shape, dtype=object)
    for place in np.ndindex(*rec.shape):
        parts = [*terms.get(place, ()), *([] if offsets is None else [offsets[place[1]]])]
        result[place] = total(parts) if parts else rec.constant(0)
    return rec.array(result)


# ---- sorting


def _order(terms: list[Scalar], descending: bool = False) -> list[Scalar]:
    """The place of every entry among all, equal ones in the order in which they stand, NaN as the largest."""
    if len(terms) > LARGEST_SORTED:
        raise NotScalarError(f"it sorts {len(terms)} numbers")
    places = [term.program.constant(0, "integer") for term in terms]
    for j, second in enumerate(terms):
        for i, first in enumerate(terms[:j]):
            # NaN is not below; so this is false where the first is NaN, true where the second alone is
            stays = first.is_at_least(second) if descending else first.is_at_most(second)
            if first.kind == "real":
                larger = first if descending else second
                stays = stays.apply("or", larger.apply("ne", larger))
            places[j] = places[j] + number_of(stays)
            places[i] = places[i] + number_of(stays.apply("not"))
    return places


Wanted = Callable[[list[Scalar], list[Scalar]], "list[list[Scalar]]"]
"""Of a line and the places of its entries, which entries are wanted: each as a condition by entry."""


def _all(terms: list[Scalar], places: list[Scalar]) -> list[list[Scalar]]:
    return [[place.is_equal(k) for place in places] for k in range(len(terms))]


def _at(number: int) -> Wanted:
    return lambda terms, places: [[place.is_equal(number) for place in places]]


def _middle(terms: list[Scalar], places: list[Scalar]) -> list[list[Scalar]]:
    """The lower one of two in the middle; the first NaN where there is one, as PyTorch's medians are."""
    [conditions] = _at((len(terms) - 1) // 2)(terms, places)
    if terms[0].kind != "real":
        return [conditions]
    missing = [term.apply("ne", term) for term in terms]
    known = missing[0].apply("not")
    for one in missing[1:]:
        known = known.apply("and", one.apply("not"))
    chosen, is_first = [], known.apply("not")
    for condition, nan in zip(conditions, missing, strict=True):
        chosen.append(known.apply("and", condition).apply("or", is_first.apply("and", nan)))
        is_first = is_first.apply("and", nan.apply("not"))
    return [chosen]


def _chosen(entries: list[Scalar], conditions: list[Scalar]) -> Scalar:
    """The entry whose condition holds."""
    found = entries[-1]
    for entry, condition in zip(entries[-2::-1], conditions[-2::-1], strict=True):
        found = condition.choose(entry, found)
    return found


def _sorted(rec: Any, x: Any, dim: int, wanted: Wanted, descending: bool = False) -> list[Array]:
    """The wanted entries of every line along an axis, in the place of that axis, and their indices."""
    dtype = rec.node.args[0].meta["val"].dtype
    entries = rec.scalars(x, dtype)
    at_end = np.moveaxis(entries, dim, -1) if entries.ndim else entries[None]
    values, indices = [], []
    for line in at_end.reshape(-1, at_end.shape[-1]):
        terms = list(line)
        conditions = wanted(terms, _order(terms, descending))
        numbers = [rec.constant(k, "integer") for k in range(len(terms))]
        values.append([_chosen(terms, one) for one in conditions])
        indices.append([_chosen(numbers, one) for one in conditions])
    results = []
    for found, kind in ((values, dtype), (indices, torch.int64)):
        array = np.array(found, dtype=object).reshape(*at_end.shape[:-1], len(found[0]))
        results.append(Array(np.moveaxis(array, -1, dim) if entries.ndim else array[0], kind))
    return results


@rule("sort")
def _(rec: Any, x: Any, *args: Any, stable: bool | None = None, **kwargs: Any) -> list[Array]:
    names = dict(zip(("dim", "descending"), args[-2:] if args and args[0] is None else args, strict=False)) | kwargs
    return _sorted(rec, x, names.get("dim", -1), _all, bool(names.get("descending")))


@rule("topk")
def _(rec: Any, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Array]:
    def first_ones(terms: list[Scalar], places: list[Scalar]) -> list[list[Scalar]]:
        return [[place.is_equal(number) for place in places] for number in range(k)]

    if not k or not x.shape:
        raise NotScalarError("topk of none, or of one number")
    return _sorted(rec, x, dim, first_ones, largest)


@rule("kthvalue")
def _(rec: Any, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> list[Array]:
    return _single(_sorted(rec, x, dim, _at(k - 1)), dim, keepdim)


@rule("median")
def _(rec: Any, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is not None:
        return _single(_sorted(rec, x, dim, _middle), dim, keepdim)
    terms = list(rec.scalars(x, rec.dtype).reshape(-1))
    middle = _chosen(terms, _middle(terms, _order(terms))[0])
    # of equal ones each has its share of the derivative
    return rec.array(np.asarray(middle.apply("shared", *terms) if len(terms) > 1 else middle, dtype=object))


def _single(found: list[Array], dim: int, keepdim: bool) -> list[Array]:
    if keepdim or not found[0].shape:
        return found
    return [part.viewed(lambda a: np.squeeze(a, dim)) for part in found]
