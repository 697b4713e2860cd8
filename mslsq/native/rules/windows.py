"""Pooling and resampling: the largest of a window, and linear maps whose weights PyTorch itself tells."""

import itertools
import math
from typing import Any

import numpy as np
import torch

from mslsq.native.arrays import Array
from mslsq.native.rules.extremes import first_extreme
from mslsq.native.rules.reductions import total
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import NotScalarError

LARGEST_RESAMPLED = 1024
"""Numbers of a plane that is resampled: its weights are found from as many planes."""


@rule("avg_pool1d", "upsample_linear1d", "_adaptive_avg_pool1d", "upsample_nearest1d", "_upsample_nearest_exact1d")
@rule("avg_pool2d", "upsample_bilinear2d", "_adaptive_avg_pool2d", "upsample_nearest2d", "_upsample_nearest_exact2d")
@rule("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
@rule("avg_pool3d", "upsample_trilinear3d", "_adaptive_avg_pool3d", "upsample_nearest3d", "_upsample_nearest_exact3d")
def _(rec: Any, x: Any, *args: Any, **kwargs: Any) -> Array:
    name = rec.node.target.__name__.partition(".")[0]
    entries, axes = rec.scalars(x, rec.dtype), next(k for k in (1, 2, 3) if f"{k}d" in name)
    shape = entries.shape[entries.ndim - axes :]
    size = math.prod(shape)
    if size > LARGEST_RESAMPLED or not size:
        raise NotScalarError(f"{name} of {size:,} numbers")
    unit = torch.eye(size, dtype=torch.float64, device="cpu").reshape(size, 1, *shape)
    weights = rec.node.target(unit, *args, **kwargs)
    planes, flat = entries.reshape(-1, size), weights.reshape(size, -1).T
    result = np.empty((len(planes), len(flat)), dtype=object)
    for out, of_entries in enumerate(flat):
        chosen = [(k, float(of_entries[k])) for k in of_entries.nonzero().reshape(-1).tolist()]
        for plane, own in enumerate(planes):
            terms = [own[k] * weight for k, weight in chosen]
            result[plane, out] = total(terms) if terms else rec.constant(0)
    return rec.array(result.reshape(rec.shape))


def _places(size: int, count: int, kernel: int, stride: int, padding: int, dilation: int) -> list[list[int]]:
    """Which entries of an axis each window holds."""
    starts = [k * stride - padding for k in range(count)]
    return [[at for at in range(start, start + kernel * dilation, dilation) if 0 <= at < size] for start in starts]


def _largest(rec: Any, x: Any, windows: list[list[list[int]]]) -> list[Array]:
    """The largest number of every window of the last axes, and its place in a plane: the first of equal ones."""
    value, index = rec.node.meta["val"]
    entries = rec.scalars(x, value.dtype)
    shape = entries.shape[entries.ndim - len(windows) :]
    planes = entries.reshape(-1, *shape)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    found = []
    for plane in planes:
        for axes in itertools.product(*windows):
            places = list(itertools.product(*axes))
            best, which = first_extreme("max")([plane[place] for place in places])
            flat = [rec.constant(int(numbers[place]), "integer") for place in places]
            chosen = flat[0]
            for number, place in enumerate(flat[1:], 1):
                chosen = which.is_equal(number).choose(place, chosen)
            found.append((best, chosen))
    results = []
    for part, dtype in enumerate((value.dtype, index.dtype)):
        array = np.empty(len(found), dtype=object)
        array[:] = [pair[part] for pair in found]
        results.append(rec.array(array.reshape(tuple(value.shape)), dtype))
    return results


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _(
    rec: Any, x: Any, kernel: list[int], stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> list[Array]:
    shape = rec.node.meta["val"][0].shape
    axes = 3 if "3d" in rec.node.target.__name__ else 2

    def each_axis(option: Any) -> list[int]:
        option = list(option) if isinstance(option, (list, tuple)) else [option]
        return option * axes if len(option) == 1 else option

    options = [each_axis(option) for option in (kernel, stride or kernel, padding, dilation)]
    sizes = zip(x.shape[-axes:], shape[-axes:], *options, strict=True)
    return _largest(rec, x, [_places(*of_axis) for of_axis in sizes])


@rule("adaptive_max_pool2d", "adaptive_max_pool3d")
def _(rec: Any, x: Any, size: list[int]) -> list[Array]:
    windows = []
    for entries, count in zip(x.shape[-len(size) :], size, strict=True):
        windows.append([list(range(k * entries // count, -(-(k + 1) * entries // count))) for k in range(count)])
    return _largest(rec, x, windows)
