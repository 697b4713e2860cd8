"""Passes over whole elevation models in files, window by window: heights, statistics, and the corrected model.

A window is judged as a whole model in memory is: what changed by the means of neighbourhoods that are typical of all
pixels (`settling`), single blunders by what steps between pixels are typical of the tiles.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.big.files import reduced as reduced_size
from mslsq.alignment.big.tally import Bins, Tally
from mslsq.alignment.big.windows import Models
from mslsq.alignment.dem.bias import Bias, Frame
from mslsq.alignment.dem.change import HALF, Neighbourhoods, Typical, widened
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.dem.heights import CUT
from mslsq.alignment.dem.local import Box, LocalCoregistration, Part
from mslsq.alignment.dem.pair import Pair
from mslsq.alignment.dem.result import Coregistration, corrected, on_grid
from mslsq.alignment.dem.statistics import ElevationStatistics, classes, gathered, slope_and_aspect

WINDOW = 1024
MARGIN = 64
"""Pixels around a window: what says that terrain changed reaches 40, and a margin of 10 beside that."""

Progress = Callable[[str, int, int], None]


class Judged(NamedTuple):
    """What windows are judged by: where the loss ended and the sigma of the residuals there, the typical steps of both
    models, means of neighbourhoods, and the middle and NMAD of residuals of models that are not smoothed."""

    robust: Solved
    scale: float
    steps: tuple[float, float]
    neighbourhoods: Sequence[Typical]
    middle: float
    spread: float
    share: float = HALF
    """Of the terrain, that says what is typical."""


@dataclass(frozen=True)
class Passes:
    """Both models, the bias model, and what windows are judged by; nothing where all is of the reduced models."""

    models: Models
    bias: Bias
    frame: Frame
    factor: int
    """By which pixels are reduced on which a result says where terrain changed."""
    judged: Judged | None = None
    _moved: dict[Box, np.ndarray | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Where terrain changed in windows that were judged already, as bits; None of nowhere. Judging a window takes as
    long as all else that its statistics need."""

    def boxes(self) -> list[Box]:
        """Windows of the reference, row by row: top, left, height, width."""
        height, width = self.models.size
        return [
            (top, left, min(WINDOW, height - top), min(WINDOW, width - left))
            for top in range(0, height, WINDOW)
            for left in range(0, width, WINDOW)
        ]

    def heights(self, progress: Progress | None) -> Float[np.ndarray, " columns"]:
        """The bias by least squares over all stable pixels (`dem.heights`), where these are enough."""
        judged = self.by
        count, at, used = self.bias.count, judged.robust, 0
        matrix, wanted = np.zeros((count, count)), np.zeros(count)
        beta = torch.from_numpy(at.bias)
        for box in self.each("heights", progress):
            pair = self.part(box, at.shift, judged.steps)
            if not bool((pair.known & pair.stable).any() and pair.dem_known.any()):
                continue
            pyramids = Pyramids.of(pair, 1, self.frame)
            moved = self.changed(pyramids)
            self._moved[box] = np.packbits(moved.numpy()) if bool(moved.any()) else None
            still = ~widened(moved) & in_window(pair, box)
            samples = Comparison.of(pyramids.unsmoothed, 0, self.bias, still).valid(at.shift)
            target = -samples.residual(Solved(at.shift, np.zeros(count)))
            off = (target - samples.columns @ beta - judged.middle).abs()
            keep = off <= CUT * judged.spread if judged.spread > 0 else torch.ones_like(off, dtype=torch.bool)
            steady = samples.steady[keep]
            matrix += (steady.T @ samples.columns[keep]).numpy()
            wanted += (steady.T @ target[keep]).numpy()
            used += int(keep.sum())
        return np.linalg.lstsq(matrix, wanted, rcond=None)[0] if used > 4 * count else at.bias

    def statistics(
        self, found: Coregistration, progress: Progress | None
    ) -> tuple[ElevationStatistics, ElevationStatistics, Bool[np.ndarray, "rows columns"], float]:
        """Of the differences before and after; where terrain changed, on reduced pixels; and its share of all."""
        size, factor = self.models.size, self.factor
        reduced = np.zeros(reduced_size(size, factor), dtype=bool)
        tallies: list[dict[tuple[str, str], Tally]] = [{}, {}]
        bins = [self._bins(found, nothing) for nothing in (True, False)]
        nowhere, total = np.zeros(2), 0
        for box in self.each("statistics", progress):
            after, pair, moved = self.corrected(found, box, clean=True)
            dem, dem_known, offset = self.models.moving(_with_margin(box), nowhere, self.by.steps)
            given = on_grid(_holes(dem, dem_known), _shape(pair), offset)
            reference = _holes(pair.reference, pair.known)
            differences = [(one - reference).numpy() for one in (given, after)]
            inner = in_window(pair, box).numpy()
            changed = moved.numpy() & inner
            total += int(changed.sum())
            _mark(reduced, changed[_core(box)], box, factor)
            lies = self._on_reference(box)  # slopes at its border are those of a whole model
            faces = slope_and_aspect(reference.numpy()[lies], self.models.metres)
            terrain = faces, pair.stable.numpy()[lies], changed[lies]
            for of, scale, difference in zip(tallies, bins, differences, strict=True):
                known = (np.isfinite(difference) & inner)[lies]
                numbers = scale.of(np.where(known, difference[lies], 0.0))
                for kind, name, where in classes(known, *terrain):
                    of.setdefault((kind, name), Tally(scale)).add(difference[lies][where], numbers[where])
        before, after = (gathered((*key, tally.summary()) for key, tally in of.items()) for of in tallies)
        return before, after, reduced, total / (size[0] * size[1])

    def corrected(
        self, found: Coregistration, box: Box, clean: bool, local: LocalCoregistration | None = None
    ) -> tuple[Float[Tensor, "height width"], Pair, Bool[Tensor, "height width"]]:
        """A window with its margin: the model there once it is shifted (by what blocks say where there are any) and
        corrected (NaN without data; single blunders are taken out where it is to be `clean`), the pair, and where
        terrain changed."""
        shift, first = self._pixels(found), (box[1] - MARGIN, box[0] - MARGIN)
        pair, moved = self._judged_part(found, box)
        seen = pair if clean else self.part(box, shift, None)
        values, size = _holes(seen.dem, seen.dem_known), _shape(pair)
        if local is not None:
            return local.corrected(values, size, pair.offset, first), pair, moved
        return corrected(found, on_grid(values, size, pair.offset - shift), first), pair, moved

    def block(self, found: Coregistration, box: Box) -> Part:
        """What a block is fitted by."""
        pair, moved = self._judged_part(found, box)
        return Part(Pyramids.of(pair, 1, self.frame), in_window(pair, box), moved)

    def _judged_part(self, found: Coregistration, box: Box) -> tuple[Pair, Bool[Tensor, "height width"]]:
        """A window with its margin, and where terrain changed."""
        pair = self.part(box, self._pixels(found), None if self.judged is None else self.judged.steps)
        if self.judged is None:
            return pair, self._enlarged(found.changed, box)
        if not self.judged.neighbourhoods:
            return pair, torch.zeros_like(pair.stable)
        if box not in self._moved:
            return pair, self.changed(Pyramids.of(pair, 1, self.frame))
        bits = self._moved[box]
        if bits is None:
            return pair, torch.zeros_like(pair.stable)
        known = np.unpackbits(bits, count=pair.stable.numel()).reshape(pair.stable.shape)
        return pair, torch.from_numpy(known.astype(bool))

    @property
    def by(self) -> Judged:
        assert self.judged is not None
        return self.judged

    def _enlarged(self, changed: Bool[np.ndarray, "rows columns"], box: Box) -> Bool[Tensor, "height width"]:
        """Terrain that changed on reduced pixels, in a window and its margin."""
        size, factor = self.models.size, self.factor
        top, left, height, width = (*(first - MARGIN for first in box[:2]), *(side + 2 * MARGIN for side in box[2:]))
        rows, columns = np.arange(top, top + height), np.arange(left, left + width)
        there = [(at >= 0) & (at < side) for at, side in zip((rows, columns), size, strict=True)]
        of = [np.where(known, at // factor, 0) for known, at in zip(there, (rows, columns), strict=True)]
        return torch.from_numpy(changed[np.ix_(*of)] & np.outer(*there))

    def _pixels(self, found: Coregistration) -> Float[np.ndarray, "2"]:
        return np.linalg.solve(self.models.metres, np.nan_to_num(found.shift[:2]))

    def part(self, box: Box, shift: Float[np.ndarray, "2"], steps: tuple[float, float] | None) -> Pair:
        return self.models.part(_with_margin(box), shift, steps)

    def _on_reference(self, box: Box) -> tuple[slice, slice]:
        """What of a window and its margin lies on the reference."""
        (top, left, height, width), size = box, self.models.size
        begins, ends = (max(0, MARGIN - top), max(0, MARGIN - left)), (top + height, left + width)
        rows, columns = (MARGIN + n + min(MARGIN, of - end) for n, of, end in zip(box[2:], size, ends, strict=True))
        return slice(begins[0], rows), slice(begins[1], columns)

    def changed(self, pyramids: Pyramids) -> Bool[Tensor, "height width"]:
        """Where terrain changed in a window."""
        pair = pyramids.pair
        judged = self.by
        if not judged.neighbourhoods or not bool(pair.known.any() and pair.dem_known.any()):
            return torch.zeros_like(pair.stable)
        whole = Comparison.of(pyramids, 0, self.bias)
        return Neighbourhoods.of(whole, judged.robust).beyond(judged.neighbourhoods)

    def _bins(self, found: Coregistration, nothing: bool) -> Bins:
        """About the differences that are typical, with nothing corrected or all."""
        middle = self.by.middle - (float(found.shift[2]) if nothing else 0.0)
        return Bins(middle, max(self.by.spread, 1e-6 * self.frame.unit))

    def each(self, words: str, progress: Progress | None) -> Iterator[Box]:
        """`boxes`, and a word after each."""
        boxes = self.boxes()
        for done, box in enumerate(boxes, 1):
            yield box
            if progress is not None:
                progress(words, done, len(boxes))


def _with_margin(box: Box) -> Box:
    top, left, height, width = box
    return top - MARGIN, left - MARGIN, height + 2 * MARGIN, width + 2 * MARGIN


def _core(box: Box) -> tuple[slice, slice]:
    return slice(MARGIN, MARGIN + box[2]), slice(MARGIN, MARGIN + box[3])


def in_window(pair: Pair, box: Box) -> Bool[Tensor, "height width"]:
    """True in the window, false in its margin."""
    inner = torch.zeros_like(pair.stable)
    inner[_core(box)] = True
    return inner


def _shape(pair: Pair) -> tuple[int, int]:
    return pair.known.shape[0], pair.known.shape[1]


def _holes(values: Tensor, known: Tensor) -> Float[Tensor, "height width"]:
    return torch.where(known, values, torch.full_like(values, float("nan")))


def _mark(reduced: np.ndarray, changed: np.ndarray, box: Box, factor: int) -> None:
    """Reduced pixels of which at least half changed; windows begin at whole ones."""
    rows, columns = reduced_size((changed.shape[0], changed.shape[1]), factor)
    padded = np.pad(changed, [(0, n * factor - side) for n, side in zip((rows, columns), changed.shape, strict=True)])
    share = padded.reshape(rows, factor, columns, factor).mean((1, 3))
    top, left = box[0] // factor, box[1] // factor
    reduced[top : top + rows, left : left + columns] = share >= 0.5
