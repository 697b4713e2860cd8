"""Writes at constant places: `scatter`, `index_add` and the like, each as what it does to every entry."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.native.arrays import Array
from mslsq.native.rules.registry import RULES, rule
from mslsq.native.scalars import NotScalarError, Scalar

Join = Callable[[Scalar, Scalar], Scalar]


def _joined(rec: Any, x: Any, places: Any, source: Any, join: Join | None) -> Array:
    """`x` with each entry of `source` joined to, or put into, the one at its flat place."""
    entries = rec.moved(x, rec.dtype)
    flat, places = entries.reshape(-1).copy(), places.reshape(-1).tolist()
    given = rec.moved(source, rec.dtype).reshape(-1)
    for place, one in zip(places, given, strict=True):
        flat[place] = one if join is None else join(flat[place], one)
    return rec.array(flat.reshape(entries.shape))


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
    index = _constant(index)
    if not rec.shape:
        raise NotScalarError("scatter into a scalar")
    given = rec.moved(source, rec.dtype)
    given = given[tuple(slice(n) for n in index.shape)] if given.ndim else np.broadcast_to(given, tuple(index.shape))
    places = _numbered(rec.shape).gather(dim, index)
    return _joined(rec, x, places, Array(np.asarray(given, dtype=object), rec.dtype), join)


@rule("index_add")
def _(rec: Any, x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Array:
    if not rec.shape:
        raise NotScalarError("index_add into a scalar")
    places = _numbered(rec.shape).index_select(dim, _constant(index))
    return _joined(rec, x, places, source, lambda a, b: a + (b if alpha == 1 else b * alpha))


@rule("index_put", "_unsafe_index_put")
def _(rec: Any, x: Any, indices: list[Any], values: Any, accumulate: bool = False) -> Array:
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
