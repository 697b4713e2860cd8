"""Shifts that vary over the models: one per block of a grid, with its standard error, and a smooth field of them.

Every block is fitted as the whole is, from the whole's answer, with an offset of its own. A block whose terrain does
not show a shift has none, and the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.dem.bias import Bias
from mslsq.alignment.dem.change import widened
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.dem.coregister import coregister
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.fitting import FEWEST
from mslsq.alignment.dem.judging import not_seen
from mslsq.alignment.dem.pair import pair_of
from mslsq.alignment.dem.result import Coregistration, corrected, elevations, sampled_at
from mslsq.alignment.dem.solving import solve_finest
from mslsq.alignment.grids import pixel_grid
from mslsq.validation import integer

SMALLEST_BLOCK = 32
"""Pixels: smaller blocks have too few samples for a standard error."""

FARTHEST = 3.0
"""Pixels from the whole's shift beyond which a block's is not believed: it began there, on the finest level."""

NEGLIGIBLE = 6.0
"""Widths of the smooth field's Gaussian, farther than the nearest block, at which one has no weight (2e-8)."""

PAIRS = 20_000_000
"""Of a pixel and a block whose weights are held at a time: 160 MB."""

Box = tuple[int, int, int, int]
"""Top, left, height and width in pixels of the reference."""


class Part(NamedTuple):
    """Both models about a block: which pixels are its own, and where terrain changed."""

    pyramids: Pyramids
    inside: Bool[Tensor, "height width"]
    changed: Bool[Tensor, "height width"]


@dataclass(frozen=True, eq=False)
class LocalCoregistration:
    """Shifts per block of the reference's grid.

    Attributes:
        whole: of both models as wholes.
        centres: (rows, columns, 2), the pixel (column, row) in the middle of every block.
        shifts: (rows, columns, 3), metres east, north, up, as `whole.shift`; NaN where a block has none.
        standard_errors: (rows, columns, 3), one sigma, metres.
        reasons: rows of columns: "" where a block has a shift, else why it has none.
        variation: χ² per degree of freedom of the horizontal shifts about their weighted mean: about 1 where they
            differ by their errors only, more where the models are bent against each other.
        reach: pixels over which the smooth field takes its mean.
    """

    whole: Coregistration
    centres: Float[np.ndarray, "rows columns 2"] = field(repr=False)
    shifts: Float[np.ndarray, "rows columns 3"] = field(repr=False)
    standard_errors: Float[np.ndarray, "rows columns 3"] = field(repr=False)
    reasons: list[list[str]] = field(repr=False)
    variation: float
    reach: float

    def message(self) -> str:
        """The answer in a sentence."""
        known = int(np.isfinite(self.shifts[..., 0]).sum())
        total = self.shifts[..., 0].size
        if not known:
            return f"None of {total} blocks shows a shift of its own. {self.whole.message()}"
        spread = np.nanstd(self.shifts, (0, 1))
        return (
            f"{known} of {total} blocks show a shift of their own; they differ by {spread[0]:.3f} m east, "
            f"{spread[1]:.3f} m north, {spread[2]:.3f} m up (standard deviation), "
            f"horizontally {self.variation:.1f} times what their errors explain."
        )

    def record(self) -> dict[str, Any]:
        """All numbers, None where a block has none, as `metrics.json` holds them."""
        number = lambda values: [float(value) if np.isfinite(value) else None for value in values]  # noqa: E731
        blocks = [
            {
                "centre_px": self.centres[i, j].tolist(), "shift_m": number(self.shifts[i, j]),
                "standard_errors_m": number(self.standard_errors[i, j]), "reason": self.reasons[i][j],
            }
            for i, j in np.ndindex(*self.centres.shape[:2])
        ]  # fmt: skip
        return {"variation": number([self.variation])[0], "reach_px": self.reach, "blocks": blocks}

    def at(self, pixels: Any) -> Float[np.ndarray, "n 3"]:
        """The smooth field at reference pixels (column, row): means weighted by the blocks' variances and a Gaussian
        of `reach` (Nadaraya and Watson). The whole's shift where no block has one."""
        pixels = np.asarray(pixels, dtype=np.float64)
        base = np.nan_to_num(self.whole.shift)
        known = np.isfinite(self.shifts).all(-1)
        if not known.any():
            return np.broadcast_to(base, (len(pixels), 3)).copy()
        centres, shifts = self.centres[known], self.shifts[known]
        precision = 1 / np.maximum(self.standard_errors[known], 1e-6) ** 2
        precision = np.minimum(precision, 4 * np.median(precision, 0))  # one block must not be the field
        out = np.empty((len(pixels), 3))
        for part in np.array_split(np.arange(len(pixels)), len(pixels) * len(centres) // PAIRS + 1):
            used = self._near(pixels[part], centres)
            apart = ((pixels[part, None] - centres[used]) ** 2).sum(-1) / (2 * self.reach**2)
            near = np.exp(apart.min(1, keepdims=True) - apart)
            for axis in range(3):
                weight = near * precision[used, axis]
                out[part, axis] = (weight @ shifts[used, axis]) / weight.sum(1)
        return out

    def _near(
        self, pixels: Float[np.ndarray, "n 2"], centres: Float[np.ndarray, "blocks 2"]
    ) -> Bool[np.ndarray, " blocks"]:
        """The blocks that have a weight somewhere among pixels."""
        if not len(pixels):
            return np.ones(len(centres), dtype=bool)
        low, high = pixels.min(0), pixels.max(0)
        away = np.hypot(*np.maximum(np.maximum(low - centres, centres - high), 0).T)
        return away <= away.min() + np.hypot(*(high - low)) + NEGLIGIBLE * self.reach

    def apply(self, dem: Any) -> Float[np.ndarray, "height width"]:
        """The model on the reference's grid, each pixel moved by the field, with the whole's bias beside Δz.

        Raises:
            CoregistrationError: the whole was not coregistered.
        """
        if not np.isfinite(self.whole.shift).all():
            raise CoregistrationError(f"LocalCoregistration.apply: there is no shift to apply. {self.whole.reason}")
        return self.corrected(elevations(dem), self.whole.shape, self.whole.offset).numpy()

    def corrected(
        self,
        values: Float[Tensor, "rows columns"],
        size: tuple[int, int],
        offset: Float[np.ndarray, "2"],
        first: tuple[int, int] = (0, 0),
    ) -> Float[Tensor, "height width"]:
        """A part of the model on a part of the reference's grid that begins at its pixel `first` (column, row), which
        is pixel `offset` of `values`, were there no shift."""
        grid = pixel_grid(*size, values)
        local = self.at((grid + grid.new_tensor(first)).numpy())
        pixels = local[:, :2] @ np.linalg.inv(self.whole.metres).T
        moved = sampled_at(values, grid + torch.from_numpy(offset - pixels)).reshape(size)
        up = torch.from_numpy(local[:, 2] - self.whole.shift[2]).reshape(size)
        return corrected(self.whole, moved + up, first)


def coregister_blocks(reference: Any, dem: Any, *, block: int, **options: Any) -> LocalCoregistration:
    """Find a shift per block of `block` x `block` pixels of the reference.

    Args:
        reference, dem: as of `coregister`.
        block: pixels, at least 32. Smaller blocks show more, with larger errors.
        **options: of `coregister`; the bias model but its offset is that of the whole.

    Returns:
        Shifts, standard errors and reasons per block, and the smooth field. Where the whole is not coregistered no
        block is.

    Raises:
        CoregistrationError: as `coregister`; a block below 32 pixels.

    >>> import torch
    >>> from mslsq.alignment import coregister_blocks
    >>> x, y = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="xy")
    >>> hills = lambda x, y: 40 * torch.sin(x / 7) * torch.cos(y / 9) + 25 * torch.sin((x + 2 * y) / 23)
    >>> found = coregister_blocks(hills(x, y), hills(x + 0.5 * x / 96, y), pixel_size=10.0, block=48)
    >>> bool(found.shifts[0, 1, 0] > found.shifts[0, 0, 0])
    True
    """
    integer("coregister_blocks: block", block, SMALLEST_BLOCK, error=CoregistrationError)
    whole = coregister(reference, dem, **options)
    pair = pair_of(reference, dem, *(options.get(name) for name in ("pixel_size", "georeferences", "mask", "dem_mask")))
    pyramids, changed = Pyramids.of(pair, 1), torch.from_numpy(whole.changed)

    def part(box: Box) -> Part:
        inside = torch.zeros(whole.shape, dtype=torch.bool, device="cpu")
        inside[box[0] : box[0] + box[2], box[1] : box[1] + box[3]] = True
        return Part(pyramids, inside, changed)

    return by_blocks(whole, block, part, options.get("loss", "tukey"))


def by_blocks(whole: Coregistration, block: int, part: Callable[[Box], Part], loss: str | None) -> LocalCoregistration:
    """A shift per block, each of what `part` says is about it."""
    tops, lefts = borders(whole.shape, block)
    rows, columns = len(tops) - 1, len(lefts) - 1
    centres = np.stack(np.meshgrid((lefts[1:] + lefts[:-1] - 1) / 2, (tops[1:] + tops[:-1] - 1) / 2), -1)
    shifts, errors = np.full((2, rows, columns, 3), np.nan)
    reasons = [[whole.reason] * columns for _ in range(rows)]
    if np.isfinite(whole.shift).all():
        for i, j in np.ndindex(rows, columns):
            box = int(tops[i]), int(lefts[j]), int(tops[i + 1] - tops[i]), int(lefts[j + 1] - lefts[j])
            shifts[i, j], errors[i, j], reasons[i][j] = _of_block(part(box), whole, loss)
    return LocalCoregistration(whole, centres, shifts, errors, reasons, _variation(shifts, errors), 0.75 * block)


def borders(size: tuple[int, int], block: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns at which blocks of at least `block` pixels begin and end; one where a side is shorter."""
    rows, columns = (np.linspace(0, side, max(side // block, 1) + 1).astype(int) for side in size)
    return rows, columns


def _of_block(part: Part, whole: Coregistration, loss: str | None) -> tuple[np.ndarray, np.ndarray, str]:
    """Shift, errors and "", or NaN and the reason. The whole's bias is taken off first."""
    (pyramids, inside, moved), none = part, np.full(3, np.nan)
    pair, model = pyramids.pair, Bias.named(whole.bias)
    comparison = Comparison.of(pyramids, 0, model, inside & ~moved)
    start = pair.to_pixels(whole.shift[:2])
    if len(comparison.pixels) < 4 * FEWEST:
        return none, none, f"{len(comparison.pixels)} stable pixels with data, fewer than {4 * FEWEST}."
    beta = np.array([whole.coefficients[name] for name in model.names])
    unsmoothed = Comparison.of(pyramids.unsmoothed, 0, model, inside & ~widened(moved))
    nothing = Solved(start, np.zeros(1))
    answer = solve_finest(pyramids, comparison.without_bias(beta), unsmoothed.without_bias(beta), nothing, loss)
    if answer is None:
        return none, none, "Too few pixels have data in both models."
    reason = not_seen(answer, pair)
    if reason:
        return none, none, reason
    away = np.abs(answer.at.shift - start).max()
    if away > FARTHEST or not answer.settled:
        return none, none, f"The fit did not settle within {FARTHEST:g} pixels of the whole's shift."
    to_metres = np.eye(3)
    to_metres[:2, :2] = pair.metres
    covariance = to_metres @ answer.known.covariance @ to_metres.T
    shift = np.append(pair.to_metres(answer.at.shift), whole.shift[2] + answer.at.bias[0])
    return shift, np.sqrt(np.diag(covariance)), ""


def _variation(shifts: np.ndarray, errors: np.ndarray) -> float:
    """χ² per degree of freedom of the horizontal shifts."""
    known = np.isfinite(shifts).all(-1)
    if int(known.sum()) < 2:
        return float("nan")
    values, weight = shifts[known][:, :2], 1 / np.maximum(errors[known][:, :2], 1e-9) ** 2
    mean = (weight * values).sum(0) / weight.sum(0)
    return float((weight * (values - mean) ** 2).sum() / (2 * (len(values) - 1)))
