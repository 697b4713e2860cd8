"""Operations that move numbers: views, copies, concatenations, constants of a tensor's shape."""

from typing import Any

import numpy as np
import torch

from mslsq.native.arrays import Array, each
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import NotScalarError


@rule("view", "reshape", "_unsafe_view", "expand", "_reshape_alias")
def _(rec: Any, x: Array, size: Any, *_: Any, **__: Any) -> Array:
    if np.prod(rec.shape) == x.entries.size:
        return x.viewed(lambda a: a.reshape(rec.shape))
    return x.viewed(lambda a: np.broadcast_to(a, rec.shape))


@rule("alias", "clone", "contiguous", "lift_fresh", "lift", "positive")
def _(rec: Any, x: Array, **_: Any) -> Array:
    return x


@rule("detach")
def _(rec: Any, x: Array) -> Array:
    if not (x.dtype.is_complex or x.dtype.is_floating_point):
        return x
    return rec.array(each(lambda scalar: scalar.apply("detached"), rec.moved(x)), x.dtype)


@rule("nextafter")
def _(rec: Any, x: Array, towards: Array) -> Array:
    """Of a number towards itself, which makes it a constant (`tracing.replacements.special.constant`)."""
    here, there = rec.moved(x, rec.dtype), rec.moved(towards, rec.dtype)
    if here.shape != there.shape or any(a.number != b.number for a, b in zip(here.flat, there.flat, strict=True)):
        raise NotScalarError("nextafter of two tensors")
    return rec.array(each(lambda scalar: scalar.apply("detached"), here), rec.dtype)


@rule("_to_copy", "to")
def _(rec: Any, x: Array, *_: Any, **__: Any) -> Array:
    return x if rec.dtype == x.dtype else rec.array(rec.moved(x, rec.dtype))


@rule("permute")
def _(rec: Any, x: Array, dims: list[int]) -> Array:
    return x.viewed(lambda a: a.transpose([d % max(a.ndim, 1) for d in dims]))


@rule("transpose")
def _(rec: Any, x: Array, a: int, b: int) -> Array:
    return x.viewed(lambda entries: entries.swapaxes(a, b) if entries.ndim else entries)


@rule("t", "numpy_T", "mT", "adjoint")
def _(rec: Any, x: Array) -> Array:
    return x.viewed(lambda a: a.swapaxes(-1, -2) if a.ndim > 1 else a)


@rule("movedim")
def _(rec: Any, x: Array, source: Any, destination: Any) -> Array:
    return x.viewed(lambda a: np.moveaxis(a, source, destination))


@rule("squeeze", "unsqueeze", "flatten", "unflatten", "view_as", "reshape_as", "ravel")
def _(rec: Any, x: Array, *_: Any, **__: Any) -> Array:
    return x.viewed(lambda a: a.reshape(rec.shape))


@rule("select")
def _(rec: Any, x: Array, dim: int, index: int) -> Array:
    return x.viewed(lambda a: np.moveaxis(a, dim, 0)[index])


@rule("slice")
def _(rec: Any, x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x.viewed(lambda a: a[(*[slice(None)] * (dim % a.ndim), slice(start, end, step))])


@rule("narrow")
def _(rec: Any, x: Array, dim: int, start: int, length: int) -> Array:
    return x.viewed(lambda a: a[(*[slice(None)] * (dim % a.ndim), slice(start, start + length))])


@rule("split", "split_with_sizes", "chunk", "unbind", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")
def _(rec: Any, x: Array, *args: Any, **kwargs: Any) -> list[Array]:
    # The places are split by PyTorch itself.
    places = torch.arange(x.entries.size, device="cpu").reshape(x.shape)
    parts = rec.node.target(places, *args, **kwargs)
    return [x.viewed(lambda a, part=part: a.reshape(-1)[part.numpy()]) for part in parts]


@rule("diagonal", "flip", "roll", "tril", "triu", "unfold", "as_strided", "rot90", "repeat", "diag_embed")
@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "pixel_shuffle", "pixel_unshuffle", "im2col")
@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _(rec: Any, x: Array, *args: Any, **kwargs: Any) -> Array:
    # The places are moved by PyTorch itself, counted from 1: what it fills in is 0. Some move real numbers alone.
    numbers = torch.arange(1, x.entries.size + 1, device="cpu", dtype=torch.float64)
    places = rec.node.target(numbers.reshape(x.shape), *args, **kwargs).to(torch.int64).numpy()
    if (places > 0).all():
        return x.viewed(lambda a: a.reshape(-1)[places - 1])
    entries = np.append(rec.moved(x).reshape(-1), rec.moved(torch.zeros((), dtype=x.dtype, device="cpu")))
    return rec.array(entries[places - 1])


@rule("cat", "concatenate")
def _(rec: Any, parts: list[Any], dim: int = 0) -> Array:
    arrays = [rec.moved(part, rec.dtype) for part in parts]
    arrays = [a for a in arrays if a.shape != (0,)] or arrays[:1]
    return rec.array(np.concatenate(arrays, axis=dim))


@rule("stack")
def _(rec: Any, parts: list[Any], dim: int = 0) -> Array:
    return rec.array(np.stack([rec.moved(part, rec.dtype) for part in parts], axis=dim))


@rule("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "empty_like", "new_empty")
def _(rec: Any, x: Array, *args: Any, **kwargs: Any) -> torch.Tensor:
    # Of what is not initialised there are only zeros: a function cannot depend on it.
    name = rec.node.target.__name__
    value = 1 if "ones" in name else _filled(args[-1]) if "full" in name else 0
    return torch.full(rec.shape, value, dtype=rec.dtype, device="cpu")


def _filled(value: Any) -> Any:
    if isinstance(value, Array):
        raise NotScalarError("full of a computed value")
    return value


@rule("constant_pad_nd")
def _(rec: Any, x: Array, pad: list[int], value: float = 0) -> Array:
    widths = [(0, 0)] * (len(x.shape) - len(pad) // 2)
    widths += [(pad[k], pad[k + 1]) for k in range(len(pad) - 2, -1, -2)]
    if any(width < 0 for pair in widths for width in pair):
        raise NotScalarError("a negative padding")
    return rec.array(np.pad(rec.moved(x), widths, constant_values=rec.constant(value)))  # pyright: ignore


@rule("select_scatter")
def _(rec: Any, x: Any, source: Any, dim: int, index: int) -> Array:
    return _scattered(rec, x, source, lambda a: np.moveaxis(a, dim, 0)[index : index + 1 or None][0])


@rule("select_backward")
def _(rec: Any, grad: Any, sizes: list[int], dim: int, index: int) -> Array:
    return _spread(rec, grad, lambda a: np.moveaxis(a, dim, 0)[index])


@rule("slice_backward")
def _(rec: Any, grad: Any, sizes: list[int], dim: int, start: int, end: int, step: int) -> Array:
    return _spread(rec, grad, lambda a: a[(*[slice(None)] * (dim % a.ndim), slice(start, end, step))])


@rule("diagonal_backward")
def _(rec: Any, grad: Any, sizes: list[int], offset: int, dim1: int, dim2: int) -> Array:
    return _spread(rec, grad, lambda a: np.diagonal(a, offset, dim1, dim2))


@rule("slice_scatter")
def _(
    rec: Any, x: Any, source: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return _scattered(rec, x, source, lambda a: a[(*[slice(None)] * (dim % a.ndim), slice(start, end, step))])


@rule("diagonal_scatter")
def _(rec: Any, x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return _scattered(rec, x, source, lambda a: np.diagonal(a, offset, dim1, dim2))


@rule("as_strided_scatter")
def _(rec: Any, x: Any, source: Any, size: list[int], stride: list[int], offset: int | None = None) -> Array:
    def strided(places: np.ndarray) -> np.ndarray:
        return torch.from_numpy(places.copy()).as_strided(size, stride, offset).numpy()

    return _scattered(rec, x, source, strided)


def _spread(rec: Any, grad: Any, view: Any) -> Array:
    """`grad` in the place of a part of zeros."""
    return _scattered(rec, torch.zeros(rec.shape, dtype=rec.dtype, device="cpu"), grad, view)


def _scattered(rec: Any, x: Any, source: Any, view: Any) -> Array:
    """`x` with a part replaced; `view` takes that part of an array of places."""
    entries = rec.moved(x, rec.dtype)
    places = view(np.arange(entries.size).reshape(entries.shape))
    flat = entries.reshape(-1).copy()
    flat[np.asarray(places).reshape(-1)] = np.broadcast_to(rec.moved(source, rec.dtype), places.shape).reshape(-1)
    return rec.array(flat.reshape(entries.shape))


@rule("copy")
def _(rec: Any, x: Any, source: Any, *_: Any) -> Array:
    return rec.array(np.broadcast_to(rec.moved(source, rec.dtype), rec.shape))


@rule("fill")
def _(rec: Any, x: Any, value: Any) -> Array:
    return rec.array(np.broadcast_to(rec.moved(value, rec.dtype), rec.shape))
