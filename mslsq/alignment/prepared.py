"""The maps of an alignment made ready: float64 values, a mask, pyramids; and the reason where a map cannot be used."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.metrics import METRICS, Metric
from mslsq.alignment.pyramid import Level, build
from mslsq.alignment.ramps import is_a_ramp
from mslsq.alignment.result import MapStatus
from mslsq.alignment.undeclared import IF_SO, LARGE, undeclared
from mslsq.kernels import Kernel, may_read

_SURVEY = Kernel("survey", "nnT?d")

SMALLEST_SIDE = 8
FEWEST_PIXELS = 48

MAGNITUDES = 1e-100, 1e100
"""Of the largest value: beyond them sums of squares leave the numbers that there are."""

FEWEST_DIGITS = 1e-12
"""Of the largest value, a variation that is rounding: four digits are left of those above it."""

ALONE = 0.9
"""Of all variation, what one pixel holds at most: beside more nothing else is seen, and two maps are laid pixel on
pixel (of 1e6 in each of two pictures: 80 px off, 1e-5 stated)."""

CHANNELS_LAST = 4
"""A map that narrow is most likely a picture whose channels come last."""


class Prepared:
    """One map, ready: values, mask, channels, and its pyramids by standardisation."""

    def __init__(
        self,
        values: Float[Tensor, "channels height width"],
        mask: Bool[Tensor, "height width"],
        mean_and_spread: tuple[float, float],
    ):
        self.values, self.mask = values, mask
        self.mean, self.spread = mean_and_spread
        self._pyramids: dict[Any, list[Level]] = {}

    def inverted(self) -> "Prepared":
        """The negative of the map."""
        return Prepared(-self.values, self.mask, (-self.mean, self.spread))

    def changed(self, gain: float, bias: float) -> "Prepared":
        """gain · map + bias."""
        return Prepared(gain * self.values + bias, self.mask, (gain * self.mean + bias, abs(gain) * self.spread))

    def pyramid(
        self, levels: int, mean: float, spread: float, prefilter: float, metric: Metric = METRICS["squared"]
    ) -> list[Level]:
        """The first levels, as a metric sees them; the deepest pyramid that was asked for is kept, for each
        standardisation."""
        key = (mean, spread, prefilter)
        if len(self._pyramids.get(key, ())) < levels:
            self._pyramids[key] = build((self.values - mean).div_(spread), self.mask, levels, prefilter)
        plain, seen = self._pyramids[key], self._pyramids.setdefault((key, metric), [])
        seen.extend(metric.level(level) for level in plain[len(seen) : levels])
        return seen[:levels]


def prepare(maps: Sequence[Any], masks: Sequence[Any] | None) -> tuple[list[Any], list[MapStatus], list[str]]:
    """Every map as float64 values and a mask, or None with its status and reason."""
    rasters: list[Any] = []
    states, reasons = [], []
    for i, raw in enumerate(maps):
        mask = None if masks is None else masks[i]
        raster, state, reason = _prepared(raw, mask)
        rasters.append(raster)
        states.append(state)
        reasons.append(reason or state.sentence)
    usable = [r for r in rasters if r is not None]
    if len({r[0].shape[0] for r in usable}) > 1:
        rasters = [None if r is None else _grey(*r) for r in rasters]
    return [None if r is None else Prepared(*r) for r in rasters], states, reasons


def _grey(
    values: Float[Tensor, "channels height width"], mask: Bool[Tensor, "height width"], _: Any
) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """The mean of the channels."""
    grey = values.mean(0, keepdim=True)
    return grey, mask, _mean_and_spread(grey[:, mask])


def _mean_and_spread(values: Tensor) -> tuple[float, float]:
    spread, mean = torch.std_mean(values)
    return float(mean), float(spread)


class _Survey(NamedTuple):
    """How many samples hold data, and of all numbers there mean, standard deviation, least and largest."""

    count: int
    mean: float
    spread: float
    least: float
    largest: float


def _survey(values: Float[Tensor, "channels height width"], known: Bool[Tensor, "height width"]) -> _Survey:
    """Takes from `known`, in place, where a channel is not finite."""
    if may_read(values, known):
        found = np.empty(5)
        _SURVEY(len(values), known.numel(), values, known, found)
        return _Survey(int(found[0]), *found[1:].tolist())
    known &= values.isfinite().all(0)
    data = values[:, known]
    if data.numel() == 0:
        return _Survey(0, *[float("nan")] * 4)
    return _Survey(int(known.count_nonzero()), *_mean_and_spread(data), float(data.min()), float(data.max()))


def _of_this_machine(raw: Any) -> np.ndarray:
    """An array that PyTorch can read: contiguous, of this machine's order of bytes (FITS has the other), and one that
    may be written to."""
    array = np.ascontiguousarray(np.ma.getdata(raw))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array if array.flags.writeable else array.copy()


def _prepared(raw: Any, mask: Any) -> tuple[Any, MapStatus, str]:
    try:
        values = raw if isinstance(raw, Tensor) else torch.from_numpy(_of_this_machine(raw))
    except (TypeError, ValueError) as error:
        return None, MapStatus.BAD_INPUT, f"{MapStatus.BAD_INPUT.sentence} ({error})"
    if values.is_complex() or values.ndim not in (2, 3) or values.numel() == 0:
        given = f"(Given: {values.dtype} of shape {tuple(values.shape)}.)"
        return None, MapStatus.BAD_INPUT, f"{MapStatus.BAD_INPUT.sentence} {given}"
    values = values.detach().cpu().to(torch.float64)  # in this order: not every device has float64
    values = (values[None] if values.ndim == 2 else values).contiguous()
    known = torch.ones(values.shape[1:], dtype=torch.bool, device="cpu")
    if mask is not None:
        mask = torch.as_tensor(np.asarray(mask) if not isinstance(mask, Tensor) else mask, device="cpu")
        if mask.shape != known.shape:
            given = f"(Its mask has shape {tuple(mask.shape)}, the map {tuple(known.shape)}.)"
            return None, MapStatus.BAD_INPUT, f"{MapStatus.BAD_INPUT.sentence} {given}"
        known = mask.cpu() != 0
    if isinstance(raw, np.ma.MaskedArray):  # as rasterio reads with masked=True
        known = known & torch.from_numpy(~np.ma.getmaskarray(raw).reshape(values.shape).any(0))
    survey = _survey(values, known)
    if survey.count == 0:
        return None, MapStatus.NO_DATA, ""
    complete = survey.count == known.numel()
    if survey.count < FEWEST_PIXELS or min(known.shape) < SMALLEST_SIDE:
        given = (
            f"({survey.count} valid pixels in {known.shape[1]} x {known.shape[0]}; at least {FEWEST_PIXELS}, "
            f"and {SMALLEST_SIDE} along the short side, are needed.)"
        )
        if known.shape[1] <= CHANNELS_LAST < known.shape[0]:
            given += " If its channels come last, (H, W, C), move them to the front: torch.movedim(map, -1, 0)."
        return None, MapStatus.TOO_SMALL, f"{MapStatus.TOO_SMALL.sentence} {given}"
    mean, spread, largest = survey.mean, survey.spread, max(-survey.least, survey.largest)
    if largest != 0.0 and not MAGNITUDES[0] <= largest <= MAGNITUDES[1]:
        return None, MapStatus.BAD_INPUT, (
            f"Left out: its largest value is {largest:.3g}, whose square is no number any more: divide the map by a "
            "number like it, or mask what is no data."
        )  # fmt: skip
    found = (
        undeclared(values, known, extremes=(survey.least, survey.largest))
        if survey.least < 0.0 or largest >= LARGE
        else None
    )
    if found is not None and found.certain:
        return None, MapStatus.BAD_INPUT, f"Left out: {found.words('this map')} {IF_SO}"
    if spread <= FEWEST_DIGITS * largest or spread == 0.0:
        return None, MapStatus.CONSTANT, ""
    farthest = max(survey.least, survey.largest, key=lambda value: abs(value - mean))
    share = ((farthest - mean) / spread) ** 2 / (survey.count * len(values))
    if share > ALONE:
        return None, MapStatus.BAD_INPUT, (
            f"Left out: one pixel, {farthest:.6g}, holds {min(share, 1.0):.1%} of what varies in this map, so that "
            "nothing is seen beside it: mask it."
        )  # fmt: skip
    if is_a_ramp(values, known, spread):
        return None, MapStatus.BAD_INPUT, (
            "Left out: the values of this map are a plane, so that a shift of it is no more than another bias. If it "
            "has detail of its own, take the plane out first."
        )  # fmt: skip
    filled = values if complete else torch.where(known, values, torch.zeros_like(values))
    return (filled, known, (mean, spread)), MapStatus.ALIGNED, ""
