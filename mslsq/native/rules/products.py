"""Small matrix products, cross products and the like, written out."""

from typing import Any

import numpy as np

from mslsq.native.arrays import Array, each
from mslsq.native.rules.reductions import reduced, total
from mslsq.native.rules.registry import rule


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b of matrices or batches of them, each entry summed from left to right."""
    rows = a[..., :, None, :]
    columns = np.swapaxes(b, -1, -2)[..., None, :, :]
    terms = each(lambda x, y: x * y, rows, columns)
    result = np.empty(terms.shape[:-1], dtype=object)
    for place in np.ndindex(*result.shape):
        result[place] = total(list(terms[place]))
    return result


@rule("mm", "bmm", "matmul")
def _(rec: Any, a: Any, b: Any) -> Array:
    return rec.array(product(rec.scalars(a, rec.dtype), rec.scalars(b, rec.dtype)))


@rule("mv")
def _(rec: Any, a: Any, b: Any) -> Array:
    return rec.array(product(rec.scalars(a, rec.dtype), rec.scalars(b, rec.dtype)[:, None])[:, 0])


@rule("dot", "vdot", "inner")
def _(rec: Any, a: Any, b: Any) -> Array:
    return rec.array(product(rec.scalars(a, rec.dtype)[None], rec.scalars(b, rec.dtype)[:, None])[0, 0:1].reshape(()))


@rule("addmm", "baddbmm")
def _(rec: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Array:
    made = product(rec.scalars(a, rec.dtype), rec.scalars(b, rec.dtype))
    return rec.array(each(lambda x, y: _scaled(x, beta) + _scaled(y, alpha), rec.scalars(c, rec.dtype), made))


@rule("addmv")
def _(rec: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Array:
    made = product(rec.scalars(a, rec.dtype), rec.scalars(b, rec.dtype)[:, None])[:, 0]
    return rec.array(each(lambda x, y: _scaled(x, beta) + _scaled(y, alpha), rec.scalars(c, rec.dtype), made))


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


@rule("linalg_cross")
def _(rec: Any, a: Any, b: Any, *, dim: int = -1) -> Array:
    a, b = np.broadcast_arrays(rec.scalars(a, rec.dtype), rec.scalars(b, rec.dtype))
    a, b = np.moveaxis(a, dim, 0), np.moveaxis(b, dim, 0)
    parts = [each(lambda p, q, r, s: p * q - r * s, a[i], b[j], a[j], b[i]) for i, j in ((1, 2), (2, 0), (0, 1))]
    return rec.array(np.moveaxis(np.stack(parts), 0, dim))


@rule("_trilinear")
def _(rec: Any, a: Any, b: Any, c: Any, expand1: Any, expand2: Any, expand3: Any, summed: list[int], *_: Any) -> Array:
    parts = []
    for factor, expanded in ((a, expand1), (b, expand2), (c, expand3)):
        entries = rec.scalars(factor, rec.dtype)
        for axis in sorted(expanded):
            entries = np.expand_dims(entries, axis)
        parts.append(entries)
    products = each(lambda x, y, z: x * y * z, *parts)
    return rec.array(reduced(products, summed, False, total))


@rule("trace")
def _(rec: Any, x: Any) -> Array:
    return rec.array(np.asarray(total(list(np.diagonal(rec.scalars(x, rec.dtype)))), dtype=object))
