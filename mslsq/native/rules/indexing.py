"""Indices: constant ones choose nodes, computed ones look an entry of an input up."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.native.arrays import Array, Place, each, kind_of, looked_up
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import NotScalarError, Scalar

LARGEST_TABLE = 4096
"""Entries of a table that a program holds, or makes."""

LEAST = -(2**40)
"""A place that is outside of every table, whatever is added to it."""


@rule("index", "_unsafe_index")
def _(rec: Any, x: Any, indices: list[Any]) -> Array:
    if any(isinstance(index, Array) for index in indices):
        return _looked_up(rec, x, indices)
    entries = x.entries if isinstance(x, Array) else rec.scalars(x)
    places = torch.ops.aten.index.Tensor(torch.arange(entries.size, device="cpu").reshape(entries.shape), indices)
    if isinstance(x, Array):
        return x.viewed(lambda a: a.reshape(-1)[places.numpy()])
    return Array(entries.reshape(-1)[places.numpy()], x.dtype)


@rule("index_select")
def _(rec: Any, x: Any, dim: int, index: Any) -> Array:
    if isinstance(index, Array):
        return _looked_up(rec, x, [None] * (dim % len(x.shape)) + [index])
    return x.viewed(lambda a: np.take(a, index.numpy(), axis=dim))


@rule("gather")
def _(rec: Any, x: Any, dim: int, index: Any, **_: Any) -> Array:
    if isinstance(x, Array) and isinstance(index, Tensor):
        return x.viewed(lambda a: np.take_along_axis(a, index.numpy(), dim) if a.ndim else a)
    shape = index.shape
    grids = [
        torch.arange(n, device="cpu").reshape([-1 if k == d else 1 for k in range(len(shape))])
        for d, n in enumerate(shape)
    ]
    return _looked_up(rec, x, [index if d == dim % len(shape) else grid for d, grid in enumerate(grids)])


@rule("take")
def _(rec: Any, x: Any, index: Any) -> Array:
    if isinstance(x, Array) and isinstance(index, Tensor):
        return x.viewed(lambda a: a.reshape(-1)[index.numpy()])
    flat = x.viewed(lambda a: a.reshape(-1)) if isinstance(x, Array) else x.reshape(-1)
    return _looked_up(rec, flat, [index])


@rule("index_copy")
def _(rec: Any, x: Any, dim: int, index: Any, source: Any) -> Array:
    if isinstance(index, Array):
        raise NotScalarError("an index that depends on values, to write at")
    entries = rec.moved(x, rec.dtype).copy()
    at_front = entries[None] if entries.ndim == 0 else np.moveaxis(entries, dim, 0)
    given = rec.moved(source, rec.dtype)
    at_front[index.reshape(-1).numpy()] = given.reshape(1) if entries.ndim == 0 else np.moveaxis(given, dim, 0)
    return rec.array(entries)


def _looked_up(rec: Any, x: Any, indices: list[Any]) -> Array:
    """`x[indices]` at computed places: a lookup in the memory of an input, of which `x` is a view with strides, or in a
    table of what is known, gathered or computed."""
    x, table = _in_memory(rec, x)
    places = x.entries
    strides = _strides(places)
    chosen = [d for d, index in enumerate(indices) if index is not None]
    parts = [_wrapped(rec, indices[d], places.shape[d], strides[d]) for d in chosen]
    parts = np.broadcast_arrays(*parts) if len(parts) > 1 else parts
    flat = parts[0]
    for part in parts[1:]:
        flat = each(lambda a, b: a + b, flat, part)
    kept = [d for d in range(places.ndim) if d not in chosen]
    at_front = len(chosen) > 1 and chosen != list(range(chosen[0], chosen[-1] + 1))
    before = [] if at_front else [d for d in kept if d < chosen[0]]
    after = [d for d in kept if d not in before]
    rest = places.transpose([*before, *after, *chosen])[(..., *[0] * len(chosen))]
    rest = rest.reshape(*rest.shape[: len(before)], *[1] * flat.ndim, *rest.shape[len(before) :])
    kind, tensor, program, start = kind_of(x.dtype), x.tensor, rec.program, x.start
    if table is not None:
        flat = each(lambda place: place.within.choose(place.entry, place.entry.like(LEAST)), flat)
        flat = flat.reshape(*flat.shape, *[1] * len(after))
        return Array(each(lambda place, offset: program.pick(table, place + int(offset)), flat, rest), x.dtype)
    if start is not None:
        flat = each(lambda place: place + start, flat)
    if flat.size == 1:  # nothing is read yet: a row of an image is looked up, and then one of its pixels
        return Array(rest, x.dtype, tensor, flat.reshape(-1)[0])
    flat = flat.reshape(*flat.shape, *[1] * len(after))
    return Array(each(lambda place, offset: looked_up(program, tensor, place, int(offset), kind), flat, rest), x.dtype)


def _wrapped(rec: Any, index: Any, size: int, stride: int) -> np.ndarray:
    """The places that an index along one axis stands for, each with whether it is within: negative ones count from the
    end."""

    def place(i: Scalar) -> Place:
        within = i.is_at_least(-size).apply("and", i.is_below(size))
        return Place(i.is_below(0).choose(i + size, i) * stride, within)

    return each(place, rec.scalars(index, torch.int64))


def _in_memory(rec: Any, x: Any) -> tuple[Array, Scalar | None]:
    """Where the entries are: an array of places in an input; or in a table, with the table."""
    if isinstance(x, Array) and x.tensor is not None and x.entries.size and _is_strided(x.entries):
        return x, None
    entries = rec.moved(x, x.dtype)
    if entries.size > LARGEST_TABLE or not entries.size:
        raise NotScalarError(
            f"an index that depends on values, into {entries.size:,} numbers that are computed or constant"
        )
    if kind_of(x.dtype) == "boolean":
        raise NotScalarError("an index that depends on values, into booleans")
    table = rec.program.table(list(entries.reshape(-1)))
    return Array(np.arange(entries.size).reshape(entries.shape), x.dtype), table


def _strides(places: np.ndarray) -> list[int]:
    base = int(places.reshape(-1)[0])
    return [int(np.take(places, 1, d).reshape(-1)[0]) - base if n > 1 else 0 for d, n in enumerate(places.shape)]


def _is_strided(places: np.ndarray) -> bool:
    """Are these the places of a view with strides?"""
    expected = np.asarray(int(places.reshape(-1)[0]))
    for size, stride in zip(places.shape, _strides(places), strict=True):
        expected = expected[..., None] + np.arange(size) * stride
    return bool((expected == places).all())
