"""`model="piecewise"`: a smooth grid of shifts on top of a placement, for maps that bend.

A pixel u of the reference shows what pixel T(u + s(u)) of the map does, with T the similarity that the map was placed
by, and s a cubic B-spline over a grid of control points, `SPANS` spans along the reference's longer side:

    s(x, y) = Σ_ij c_ij β³((y - top) / step - i) β³((x - left) / step - j)

(Rueckert, Sonoda, Hayes, Hill, Leach and Hawkes, "Nonrigid registration using free-form deformations", 1999.) Beyond
the reference s is what it is at the nearest point of the border.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.measures import project

CONVENTION = (
    "pixel (x, y) of the reference to pixel (x', y') of the map: (x', y') = matrix applied to (x, y) + s(x, y), with "
    "s(x, y) = sum over i, j of shifts[:, i, j] * B((y - top) / step - i) * B((x - left) / step - j), B the centred "
    "cubic B-spline (2/3 at 0, 1/6 at -1 and 1), shifts[0] along x, in pixels of the reference; x and y are first "
    "clamped to the reference"
)

SPANS = 8
"""Along the longer side. A bend of one period along the side is then met to a thousandth of its size."""


@dataclass(frozen=True)
class Bend:
    """A smooth field of shifts over the reference, in its pixels."""

    shifts: Float[Tensor, "2 rows columns"]
    """Control points c_ij: along x, along y."""
    step: float
    """Pixels between control points; the first, [0, 0], lies one step outside of the reference's first pixel."""
    size: tuple[int, int]
    """Height and width of the reference."""
    covariance: Float[Tensor, "unknowns unknowns"]
    """Of the shifts, flattened, in square pixels, given the similarity beneath them."""

    def basis(self, points: Float[Tensor, "n 2"]) -> tuple[Float[Tensor, "n rows"], Float[Tensor, "n columns"]]:
        """The weights of the rows and of the columns of control points at pixels (x, y)."""
        height, width = self.size
        rows, columns = self.shifts.shape[1:]
        x, y = points[:, 0].clamp(0, width - 1), points[:, 1].clamp(0, height - 1)
        return splines(y / self.step, rows)[0], splines(x / self.step, columns)[0]

    def at(self, points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """s at pixels (x, y) of the reference."""
        rows, columns = self.basis(points)
        return torch.einsum("nr,nc,krc->nk", rows, columns, self.shifts)

    def sigma(self, points: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        """The standard error of s at pixels (x, y): the root of the sum of both variances."""
        rows, columns = self.basis(points)
        weights = torch.einsum("nr,nc->nrc", rows, columns).flatten(1)
        count = weights.shape[1]
        parts = (self.covariance[:count, :count], self.covariance[count:, count:])
        variance = torch.stack([((weights @ part) * weights).sum(-1) for part in parts]).sum(0)
        return variance.clamp(min=0).sqrt()

    def record(self) -> dict[str, Any]:
        """What `transforms.json` holds."""
        grid = {"left": -self.step, "top": -self.step, "step": self.step}
        return {"convention": CONVENTION, **grid, "shifts": self.shifts.tolist()}


def splines(at: Float[Tensor, " n"], count: int) -> tuple[Float[Tensor, "n count"], Float[Tensor, "n count"]]:
    """β³(at + 1 - k) and its derivative for the control points k, of which the first lies one step before 0."""
    distance = at[:, None] + 1.0 - torch.arange(count, dtype=at.dtype, device=at.device)
    far = distance.abs()
    inner = 2.0 / 3.0 - far.square() * (1.0 - 0.5 * far)
    outer = (2.0 - far).clamp(min=0).pow(3) / 6.0
    slope = torch.where(far < 1, far * (1.5 * far - 2.0), -0.5 * (2.0 - far).clamp(min=0).square())
    return torch.where(far < 1, inner, outer), slope * distance.sign()


def grid_of(height: int, width: int) -> tuple[float, int, int]:
    """The step in pixels, and how many rows and columns of control points cover a reference."""
    step = max(max(height, width) - 1, 1) / SPANS
    rows, columns = (int(-(-(side - 1) // step)) + 3 for side in (height, width))
    return step, rows, columns


def warped(points: Float[Tensor, "n 2"], matrix: Float[Tensor, "3 3"], bend: Bend | None) -> Float[Tensor, "n 2"]:
    """Pixels of the reference to those of a map: by its matrix, after its bend if it has one."""
    return project(matrix, points if bend is None else points + bend.at(points))
