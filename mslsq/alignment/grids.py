"""Pixels of a raster as points, and the matrices that move them."""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.models import Frame

KEPT = 0.5
"""A reduced pixel is known where this share of its block holds data."""


def pixel_grid(height: int, width: int, like: Tensor) -> Float[Tensor, "n 2"]:
    """All pixel centres (x, y), row by row."""
    y, x = torch.meshgrid(
        torch.arange(height, dtype=like.dtype, device=like.device),
        torch.arange(width, dtype=like.dtype, device=like.device),
        indexing="ij",
    )
    return torch.stack([x.reshape(-1), y.reshape(-1)], -1)


def frame_corners(frame: Frame) -> Float[Tensor, "4 2"]:
    """The centres of the reference's four corner pixels, in its normalised coordinates."""
    side = frame.centre / frame.half
    return side * side.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])


def inside(points: Float[Tensor, "n 2"], mask: Bool[Tensor, "height width"]) -> Bool[Tensor, " n"]:
    """Do all four pixels around each point exist and hold data? False for points that are not finite."""
    height, width = mask.shape
    x, y = points[:, 0], points[:, 1]
    # A point within 1e-6 px of the last pixel centre counts: rounding must not cost a border of an exact crop.
    slack = 1e-6
    within = (x >= -slack) & (y >= -slack) & (x <= width - 1 + slack) & (y <= height - 1 + slack)
    safe = torch.where(within[:, None], points, torch.zeros_like(points))
    left, top = (
        (safe[:, 0] + slack).floor().long().clamp(0, width - 1),
        (safe[:, 1] + slack).floor().long().clamp(0, height - 1),
    )
    right = (safe[:, 0] - slack).ceil().long().clamp(0, width - 1)
    bottom = (safe[:, 1] - slack).ceil().long().clamp(0, height - 1)
    return within & mask[top, left] & mask[top, right] & mask[bottom, left] & mask[bottom, right]


def inside_moved(
    step: Float[np.ndarray, "2"], mask: Bool[Tensor, "rows columns"], size: tuple[int, int]
) -> Bool[Tensor, "height width"]:
    """`inside` of all pixels of a raster of `size` (height, width), each moved by `step` (x, y): a twentieth of its
    time, as the four pixels around lie alike for all of them."""
    out = torch.zeros(size, dtype=torch.bool, device=mask.device)
    if not np.isfinite(step).all():
        return out
    slack = 1e-6
    steps = [sorted({math.floor(along + slack), math.ceil(along - slack)}) for along in step.tolist()]
    corners = [(x, y) for y in steps[1] for x in steps[0]]
    # the pixels of `size` whose corners all exist
    left, top = (max(0, -min(of)) for of in steps)
    right, bottom = (
        min(own, other - max(of)) for own, other, of in zip(size[::-1], mask.shape[::-1], steps, strict=True)
    )
    if right > left and bottom > top:
        part = out[top:bottom, left:right]
        part.fill_(True)
        for x, y in corners:
            part &= mask[top + y : bottom + y, left + x : right + x]
    return out


def translation(x: float, y: float, like: Tensor) -> Float[Tensor, "3 3"]:
    """The matrix that adds (x, y)."""
    return like.new_tensor([[1, 0, x], [0, 1, y], [0, 0, 1]])


def similarity_about(
    centre: tuple[float, float], target: tuple[float, float], angle: float, scale: float, like: Tensor
) -> Float[Tensor, "3 3"]:
    """Turn by `angle` (radians) and scale about `centre`, then move `centre` onto `target`."""
    c, s = scale * math.cos(angle), scale * math.sin(angle)
    (x, y), (tx, ty) = centre, target
    return like.new_tensor([[c, -s, tx - c * x + s * y], [s, c, ty - s * x - c * y], [0, 0, 1]])


def block_means(
    raster: Float[np.ndarray, "channels height width"], mask: Bool[np.ndarray, "height width"], factor: int
) -> tuple[Float[np.ndarray, "channels rows columns"], Bool[np.ndarray, "rows columns"]]:
    """The mean of the data in every block of `factor` x `factor` pixels; blocks at the border may lack some. Without
    data the raster is 0."""
    rows, columns = (-(-side // factor) for side in mask.shape)
    lacking = (0, rows * factor - mask.shape[0]), (0, columns * factor - mask.shape[1])
    if any(after for _, after in lacking):
        raster, mask = np.pad(raster, ((0, 0), *lacking)), np.pad(mask, lacking)
    total = raster.reshape(len(raster), rows, factor, columns, factor).sum((2, 4))
    if mask.all():
        return total / factor**2, np.ones((rows, columns), bool)
    count = mask.reshape(rows, factor, columns, factor).sum((1, 3))
    return total / np.maximum(count, 1), count >= KEPT * factor**2
