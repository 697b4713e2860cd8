"""The masked correlation of two rasters for every shift at once.

Everything works on one level and in its pixels.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.fft import next_fast_len
from torch import Tensor

from mslsq.alignment.grids import inside, pixel_grid, similarity_about, translation
from mslsq.alignment.measures import project
from mslsq.alignment.pyramid import Level, masked_blur
from mslsq.kernels import Kernel, may_read

_WHITENED = Kernel("whitened", "nTT?T")
_SOLID_BOX = Kernel("solid_box", "nnTl")
_BOX_SUMS = Kernel("box_sums", "nnnTlnnnnnT")
_SCORES_OF_SUMS = Kernel("scores_of_sums", "nnnSnSnSdT")

BAND_SIGMA = 4.0
"""Pixels of the level: the search looks at structures finer than this."""


def whitened(level: Level) -> Float[Tensor, "height width"]:
    """The detail of the channels' mean, of unit variance over the mask, zero outside.

    Detail is what a Gaussian of `BAND_SIGMA` takes away, cut at three standard deviations: at wrong shifts of real
    maps the whole correlates up to 0.6 (skies, slopes), the detail hardly, and a foreign object counts with its
    outline only.
    """
    image = level.raster[0] if len(level.raster) == 1 else level.raster.mean(0)
    known = level.mask
    smooth, _ = masked_blur(image[None], known, BAND_SIGMA)
    if may_read(image, known) and image.dtype in (torch.float32, torch.float64):
        out = torch.empty_like(image)
        _WHITENED(image.numel(), image.contiguous(), smooth, known.contiguous(), out)
        return out
    count = known.sum().clamp(min=1)
    detail = torch.where(known, image - smooth[0], torch.zeros_like(image))
    spread = detail.new_zeros(())
    for _ in range(2):
        mean = detail.sum() / count
        spread = (torch.where(known, detail - mean, torch.zeros_like(image)).square().sum() / count).sqrt()
        detail = torch.where(known, detail - mean, torch.zeros_like(image)).clamp(-3 * spread, 3 * spread)
    return detail / torch.where(spread > 0, spread, torch.ones_like(spread))


def whitened_once(level: Level) -> Float[Tensor, "height width"]:
    """The same in single precision, kept by the level: scores are compared, never differentiated."""
    if "whitened" not in level.kept:
        level.kept["whitened"] = whitened(Level(level.raster.float(), level.mask, level.factor))
    return level.kept["whitened"]


class Sums(NamedTuple):
    """Of every shift of some images, over the samples that both know: of the images how many, their values, their
    squares; of the reference its values, their squares; and of the products."""

    others: Float[Tensor, "k 3 height width"]
    ones: Float[Tensor, "k 2 height width"]
    products: Float[Tensor, "k height width"]


def shift_scores(
    reference: Level,
    images: Float[Tensor, "k height width"],
    masks: Float[Tensor, "k height width"],
    min_overlap: float,
) -> Float[Tensor, "k padded_height padded_width"]:
    """Fisher's z · √overlap of the masked correlation for EVERY integer shift at once (Padfield, 2012), -1 where too
    little.

    Entry [k, dy, dx] (negative shifts wrap) compares reference pixel u with pixel u + d of image k. Most masks are a
    rectangle, and sums over a rectangle need no Fourier transform (`_sums_over_boxes`).
    """
    known = reference.mask.to(images.dtype)
    fixed = whitened_once(reference) if images.dtype == torch.float32 else whitened(reference)
    smaller = torch.minimum(known.sum(), masks.sum((-2, -1)).clamp(min=1.0))
    readable = may_read(images, masks) and images.dtype in (torch.float32, torch.float64)
    least = min_overlap * float(smaller.min()) if readable else 0.0
    shape = _lengths(fixed.shape, images.shape[1:], least)
    box = _solid_box(known) if readable else None
    if box is not None:
        sums_of = _sums_over_boxes(fixed, box, shape, masks)
    else:
        one = torch.fft.rfft2(torch.stack([known, fixed, fixed.square()]), s=shape).conj()[FACTORS[0]]
        sums_of = partial(_sums_by_transforms, one, shape)
    together = max(1, SUMS_TOGETHER // (shape[0] * shape[1]))
    found = []
    for first in range(0, len(images), together):
        image, mask = (part[first : first + together] for part in (images, masks))
        found.append(_scores(sums_of(image, mask), smaller[first : first + together], min_overlap))
    return found[0] if len(found) == 1 else torch.cat(found)


def _sums_by_transforms(
    one: Float[Tensor, "6 height half"],
    shape: Sequence[int],
    image: Float[Tensor, "k height width"],
    mask: Float[Tensor, "k height width"],
) -> Sums:
    """From the transforms `FACTORS[0]` of the reference."""
    other = torch.fft.rfft2(torch.stack([mask, image, image.square()], 1), s=shape)
    sums = torch.fft.irfft2(one * other[:, FACTORS[1]], s=shape)
    return Sums(sums[:, :3], sums[:, 3:5], sums[:, 5])


def _sums_over_boxes(
    fixed: Float[Tensor, "rows columns"],
    box: Int[np.ndarray, "4"],
    shape: Sequence[int],
    masks: Float[Tensor, "k height width"],
) -> Callable[[Tensor, Tensor], Sums]:
    """The same where the reference knows a rectangle: sums of the images over that are differences of sums from their
    corner on. So are those of the reference, where all masks are rectangles, too; two thirds of the transforms are of
    these sums."""
    of_masks = [_solid_box(mask) for mask in masks[:1]]
    if of_masks[0] is not None:
        of_masks += [_solid_box(mask) for mask in masks[1:]]
    solid, own = all(one is not None for one in of_masks), torch.stack([fixed, fixed.square()])
    one = torch.fft.rfft2(own[:1] if solid else own, s=shape).conj()
    boxes, height, width = iter(of_masks), *masks.shape[1:]

    def sums_of(image: Tensor, mask: Tensor) -> Sums:  # shapes in it would be made in each call, in 50 us
        count = len(image)
        others = image.new_empty(count, 3, *shape)
        planes = torch.stack([mask, image, image.square()], 1)
        _BOX_SUMS(3 * count, height, width, planes, box, 0, *shape, height, width, others)
        if not solid:
            other = torch.fft.rfft2(planes[:, :2], s=shape)
            sums = torch.fft.irfft2(one[[0, 1, 0]] * other[:, [0, 0, 1]], s=shape)
            return Sums(others, sums[:, :2], sums[:, 2])
        ones = image.new_empty(count, 2, *shape)
        for k in range(count):
            _BOX_SUMS(2, *fixed.shape, own, next(boxes), 1, *shape, height, width, ones[k])
        return Sums(others, ones, torch.fft.irfft2(one * torch.fft.rfft2(image, s=shape), s=shape))

    return sums_of


def _solid_box(mask: Float[Tensor, "height width"]) -> Int[np.ndarray, "4"] | None:
    """The first and the last row and the first and the last column of what is not zero, if that is a rectangle."""
    box = np.empty(4, dtype=np.int64)
    _SOLID_BOX(*mask.shape, mask.contiguous(), box)
    return box if box[1] >= box[0] else None


def _lengths(one: Sequence[int], other: Sequence[int], least: float) -> list[int]:
    """Of the transforms, rows and columns. Shorter ones than the sum of both sides add the sums of shifts at either end
    to each other, of which together a + b - L rows overlap: no harm where these hold fewer than the `least` samples."""
    widths = [min(sides) for sides in zip(one, other, strict=True)][::-1]
    spare = [max(math.ceil(least / width) - 1, 1) for width in widths]
    return [quick_length(max(a + b - more, a, b)) for a, b, more in zip(one, other, spare, strict=True)]


SUMS_TOGETHER = 1 << 15
"""Shifts whose sums are made at once: the rotations of a small map in one call, of larger ones image by image, as the
sums of 72 rotations would be 100 MB."""

FACTORS = [0, 0, 0, 1, 2, 1], [0, 1, 2, 0, 0, 1]
"""Which of (mask, values, squares) of the reference, and of an image, are multiplied for the six `Sums`."""


def quick_length(least: int) -> int:
    """The length of a Fourier transform: a multiple of 4 without prime factors above 5. MKL takes almost twice the time
    for 135 x 135 that it takes for 144 x 144.

    >>> quick_length(131), quick_length(144)
    (144, 144)
    """
    quarter: Any = next_fast_len(-(-least // 4), real=True)
    return 4 * quarter


def _scores(sums: Sums, smaller: Float[Tensor, " k"], min_overlap: float) -> Float[Tensor, "k height width"]:
    """Of the sums over the samples that both know."""
    others, ones, products = sums
    if may_read(*sums, smaller) and products.dtype in (torch.float32, torch.float64):
        scores, settings = products.new_empty(products.shape), np.array([min_overlap, *smaller.tolist()])
        strided = [part for array in sums for part in (array.stride(0), array)]
        _SCORES_OF_SUMS(len(scores), scores[0].numel(), *strided, settings, scores)
        return scores
    count, g_sum, g_square = others.unbind(1)
    f_sum, f_square = ones.unbind(1)
    count = count.clamp(min=0)
    safe = count.clamp(min=1.0)
    f_spread = f_square - f_sum.square() / safe
    g_spread = g_square - g_sum.square() / safe
    product = products - f_sum * g_sum / safe
    # A patch whose variance is below 1 % of the map's has no texture to correlate by.
    textured = (f_spread > 0.01 * count) & (g_spread > 0.01 * count)
    ncc = torch.where(textured, product / (f_spread * g_spread).clamp(min=1e-12).sqrt(), torch.zeros_like(product))
    share = count / smaller[:, None, None]
    score = ncc.clamp(-0.999, 0.999).atanh() * share.clamp(0, 1).sqrt()
    return torch.where(share >= min_overlap, score, torch.full_like(score, -1.0))


def correlate_turned(
    reference: Level, moving: Level, turns: Sequence[tuple[float, float]], min_overlap: float, peaks: int = 1
) -> list[tuple[float, Float[Tensor, "3 3"]]]:
    """The best integer shifts for each (angle, scale) of `turns`: (score, matrix), by masked correlation over all
    shifts."""
    height, width = moving.size
    like = moving.raster
    smallest = min(scale for _, scale in turns)
    diagonal = math.ceil(math.hypot(height, width) / smallest)
    upright = all(angle == 0.0 and scale == 1.0 for angle, scale in turns)
    canvas = (height, width) if upright else (diagonal, diagonal)
    centre = ((canvas[1] - 1) / 2, (canvas[0] - 1) / 2)
    target = ((width - 1) / 2, (height - 1) / 2)
    grid = pixel_grid(*canvas, like=like)
    matrices = [similarity_about(centre, target, angle, scale, like) for angle, scale in turns]
    images, masks = [], []
    whole = Level(whitened(moving)[None], moving.mask, moving.factor)
    for matrix in matrices:
        points = project(matrix, grid)
        valid = inside(points, whole.mask)
        x = points[:, 0].round().long().clamp(0, width - 1)
        y = points[:, 1].round().long().clamp(0, height - 1)
        value = torch.where(valid, whole.raster[0, y, x], torch.zeros_like(points[:, 0]))
        images.append(value.reshape(canvas))
        masks.append(valid.reshape(canvas).to(like.dtype))
    scores = shift_scores(reference, torch.stack(images), torch.stack(masks), min_overlap)
    rows, columns = scores.shape[1:]
    found = []
    for matrix, surface in zip(matrices, scores, strict=True):
        for _ in range(peaks):
            best = int(surface.argmax())
            score = float(surface.reshape(-1)[best])
            y, x = divmod(best, columns)
            dy, dx = (y if y < canvas[0] else y - rows), (x if x < canvas[1] else x - columns)
            found.append((score, matrix @ translation(dx, dy, like)))
            if peaks > 1:  # suppress the neighbourhood of this peak
                near = [torch.arange(-3, 4, device="cpu") + y, torch.arange(-3, 4, device="cpu") + x]
                surface = surface.clone()
                surface[(near[0] % rows)[:, None], (near[1] % columns)[None, :]] = -1.0
    return found
