"""Writes at constant and computed places: `scatter`, `index_add` and the like, each as what it does to every entry."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.native.arrays import Array
from mslsq.native.rules.registry import RULES, rule
from mslsq.native.scalars import NotScalarError, Scalar

LARGEST_WRITTEN = 1024
"""Entries times numbers that are written at computed places: each is compared with each."""

Join = Callable[[Scalar, Scalar], Scalar]


def _joined(rec: Any, x: Any, places: Any, source: Any, join: Join | None) -> Array:
    """`x` with each entry of `source` joined to, or put into, the one at its flat place."""
    entries = rec.moved(x, rec.dtype)
    flat, places = entries.reshape(-1).copy(), places.reshape(-1).tolist()
    given = rec.moved(source, rec.dtype).reshape(-1)
    for place, one in zip(places, given, strict=True):
        flat[place] = one if join is None else join(flat[place], one)
    return rec.array(flat.reshape(entries.shape))


def _joined_at(rec: Any, x: Any, axes: list[Array], source: np.ndarray, join: Join | None) -> Array:
    """The same at computed places, one index for each axis of `x`: each entry is compared with each place. A place
    outside, where PyTorch raises an error, makes NaN of all."""
    entries = rec.moved(x, rec.dtype)
    if not rec.dtype.is_floating_point or entries.size * source.size > LARGEST_WRITTEN:
        raise NotScalarError(
            f"an index that depends on values, to write {source.size:,} of {entries.size:,} numbers at"
        )
    indices = np.broadcast_arrays(*[rec.scalars(index, torch.int64) for index in axes])
    strides = [int(np.prod(entries.shape[d + 1 :])) for d in range(entries.ndim)]
    flat = list(entries.reshape(-1))
    for one, *at in zip(source.reshape(-1), *[index.reshape(-1) for index in indices], strict=True):
        place, within = None, None
        for i, size, stride in zip(at, entries.shape, strides, strict=True):
            part = i.is_below(0).choose(i + size, i) * stride
            fits = i.is_at_least(-size).apply("and", i.is_below(size))
            place, within = (part, fits) if place is None else (place + part, within.apply("and", fits))  # pyright: ignore
        assert place is not None and within is not None
        for k, entry in enumerate(flat):
            written = one if join is None else join(entry, one)
            flat[k] = within.choose(place.is_equal(k).choose(written, entry), np.nan)
    result = np.empty(len(flat), dtype=object)
    result[:] = flat
    return rec.array(result.reshape(entries.shape))


def _constant(index: Any) -> Tensor:
    if not isinstance(index, Tensor):
        raise NotScalarError("an index that depends on values, to write at")
    return index


def _numbered(shape: tuple[int, ...]) -> Tensor:
    """The flat place of every entry of a tensor of this shape."""
    return torch.arange(int(np.prod(shape)), device="cpu").reshape(shape)


@rule("scatter_add")
def _(rec: Any, x: Any, dim: int, index: Any, source: Any) -> Array:
    return _scattered(rec, x, dim, index, source, lambda a, b: a + b)


@rule("scatter")
def _(rec: Any, x: Any, dim: int, index: Any, source: Any, *, reduce: str | None = None) -> Array:
    joins: dict[str | None, Join | None] = {None: None, "add": lambda a, b: a + b, "multiply": lambda a, b: a * b}
    return _scattered(rec, x, dim, index, source, joins[reduce])


@rule("scatter_reduce")
def _(rec: Any, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Array:
    joins: dict[str, Join] = {"sum": lambda a, b: a + b, "prod": lambda a, b: a * b}
    if reduce not in joins or not include_self:
        raise NotScalarError(f"scatter_reduce by {reduce}{'' if include_self else ', without itself'}")
    return _scattered(rec, x, dim, index, source, joins[reduce])


def _scattered(rec: Any, x: Any, dim: int, index: Any, source: Any, join: Join | None) -> Array:
    if not rec.shape:
        raise NotScalarError("scatter into a scalar")
    if isinstance(index, Array):
        given = np.asarray(rec.moved(source, rec.dtype))
        given = given[tuple(slice(n) for n in index.shape)] if given.ndim else np.broadcast_to(given, index.shape)
        grids = [torch.arange(n, device="cpu") for n in index.shape]
        axes: list[Any] = list(torch.meshgrid(*grids, indexing="ij"))
        axes[dim % len(axes)] = index
        return _joined_at(rec, x, axes, given, join)
    given = rec.moved(source, rec.dtype)
    given = given[tuple(slice(n) for n in index.shape)] if given.ndim else np.broadcast_to(given, tuple(index.shape))
    places = _numbered(rec.shape).gather(dim, index)
    return _joined(rec, x, places, Array(np.asarray(given, dtype=object), rec.dtype), join)


@rule("index_add")
def _(rec: Any, x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Array:
    if not rec.shape:
        raise NotScalarError("index_add into a scalar")
    if isinstance(index, Array) and len(rec.shape) == 1:
        given = np.asarray(rec.moved(source, rec.dtype))
        return _joined_at(rec, x, [index], given, lambda a, b: a + (b if alpha == 1 else b * alpha))
    places = _numbered(rec.shape).index_select(dim, _constant(index))
    return _joined(rec, x, places, source, lambda a, b: a + (b if alpha == 1 else b * alpha))


@rule("index_put", "_unsafe_index_put")
def _(rec: Any, x: Any, indices: list[Any], values: Any, accumulate: bool = False) -> Array:
    if any(isinstance(index, Array) for index in indices) and len(indices) == len(rec.shape) and None not in indices:
        shape = np.broadcast_shapes(*[tuple(index.shape) for index in indices])
        own: Join | None = (lambda a, b: a + b) if accumulate else None
        return _joined_at(rec, x, indices, np.broadcast_to(rec.moved(values, rec.dtype), shape), own)
    for index in indices:
        if index is not None:
            _constant(index)
    places = torch.ops.aten.index.Tensor(_numbered(rec.shape), indices)
    given = np.broadcast_to(rec.moved(values, rec.dtype), tuple(places.shape))
    join: Join | None = (lambda a, b: a + b) if accumulate else None
    return _joined(rec, x, places, Array(np.asarray(given, dtype=object), rec.dtype), join)


@rule("embedding")
def _(rec: Any, weight: Any, index: Any, *_: Any, **__: Any) -> Array:
    if isinstance(index, Tensor) and isinstance(weight, Array):
        return weight.viewed(lambda a: a[index.numpy()])
    return RULES["index"](rec, weight, [index])


@rule("masked_scatter")
def _(rec: Any, x: Any, mask: Any, source: Any) -> Array:
    places = _numbered(rec.shape)[_constant(mask).expand(rec.shape)]
    given = rec.moved(source, rec.dtype).reshape(-1)[: len(places)]
    return _joined(rec, x, places, Array(given, rec.dtype), None)
