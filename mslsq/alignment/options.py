"""The options of `align`, each checked: what was given, what makes sense, and the nearest name."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mslsq.alignment.metrics import METRICS, Metric
from mslsq.alignment.models import MODELS
from mslsq.alignment.objective import LOSSES
from mslsq.validation import instance_of, integer, number, one_of

VALUES = ("gain_bias", "gain", "bias", "none")
INITS = ("auto", "search", "phase", "identity")

PIECEWISE, BASE = "piecewise", "sim2"
"""The model that bends maps, and the one that they are placed by before, which says whether they are believed."""

AUTO = "auto"
"""Of metrics: `mslsq.alignment.choosing`."""


SCALE_RANGE = 0.8, 1.25
"""What is allowed where pixel sizes are given and no range: they are known to a few percent, and a placement by chance
has any scale."""


class AlignmentOptionError(ValueError):
    """An option of `align` has a value that is not valid; the message says which values are."""


@dataclass(frozen=True)
class Options:
    """How to align; `align` documents each."""

    model: str = "sim2"
    value: str = "gain_bias"
    loss: str | None = "cauchy"
    init: str = "auto"
    min_overlap: float = 0.15
    min_ncc: float = 0.5
    min_detail: float = 0.6
    min_lead: float = 1.3
    prefilter: float = 1.0
    max_steps: int = 100
    metric: Metric = METRICS["squared"]
    bends: bool = False
    """Are maps bent after they are placed by `model`?"""
    pixel_sizes: tuple[float, ...] | None = None
    """Of every map, in one unit."""
    scale_range: tuple[float, float] | None = None
    """The least and the largest factor between the scale that is found and that of the pixel sizes."""

    def between(self, fixed: int, moving: int) -> "Options":
        """The options of one pair: `scale_range` is that of the warp itself, pixels of the map per pixel of the map it
        is placed on."""
        if self.scale_range is None or self.pixel_sizes is None:
            return self
        expected = self.pixel_sizes[fixed] / self.pixel_sizes[moving]
        return replace(self, scale_range=(self.scale_range[0] * expected, self.scale_range[1] * expected))

    @property
    def freedom(self) -> tuple[bool, bool]:
        """Are gain and bias looked for?"""
        return self.value in ("gain", "gain_bias"), self.value in ("bias", "gain_bias")

    @property
    def correlated(self) -> float:
        """Residuals that hold as much as one independent one: a prefilter of σ px correlates 4πσ² of them."""
        return max(1.0, 4 * math.pi * self.prefilter**2)

    @property
    def searches(self) -> bool:
        """Is the place looked for? If not, it was said, and other placements do not matter."""
        return self.init in ("auto", "search", "phase")


def checked_options(
    maps: list[Any],
    model: str,
    reference: int,
    masks: Sequence[Any] | None,
    value: str,
    levels: int | str,
    loss: str | None,
    init: Any,
    min_overlap: float,
    min_ncc: float,
    min_detail: float,
    min_lead: float,
    prefilter: float,
    max_steps: int,
    metric: str | Metric,
    pixel_sizes: Sequence[float] | None,
    scale_range: Sequence[float] | None,
) -> Options:
    """Every option checked, or an error that says what was given and what makes sense."""

    if not maps:
        raise AlignmentOptionError("align: no maps were given; give at least two rasters.")
    if all(getattr(raster, "ndim", None) == 1 for raster in maps):
        raise AlignmentOptionError(
            f"align: {len(maps)} maps of one dimension were given, as the rows of a single raster are; give a list of "
            "rasters: align([reference, map])."
        )
    integer("align: reference", reference, 0, len(maps) - 1, error=AlignmentOptionError)
    if masks is not None and len(masks) != len(maps):
        raise AlignmentOptionError(
            f"align: {len(masks)} masks for {len(maps)} maps; give one per map (None for all valid)."
        )
    loss = None if loss in (None, "l2", "none") else loss
    one_of("align: model", model, [*MODELS, PIECEWISE], AlignmentOptionError)
    one_of("align: value", value, VALUES, AlignmentOptionError)
    one_of("align: loss", loss, [None, "l2", *LOSSES], AlignmentOptionError)
    if isinstance(init, Tensor):
        if tuple(init.shape) != (len(maps), 3, 3):
            raise AlignmentOptionError(
                f"align: init of shape {tuple(init.shape)}; starts have shape ({len(maps)}, 3, 3)."
            )
        init = "given"
    else:
        one_of("align: init", init, INITS, AlignmentOptionError)
    if levels != "auto":
        integer("align: levels", levels, 1, 12, otherwise="'auto'", error=AlignmentOptionError)
    number("align: min_overlap", min_overlap, least=0.01, most=1.0, error=AlignmentOptionError)
    number("align: min_ncc", min_ncc, least=-1.0, most=1.0, error=AlignmentOptionError)
    number("align: min_detail", min_detail, least=-1.0, most=1.0, error=AlignmentOptionError)
    number("align: min_lead", min_lead, least=0.0, most=10.0, error=AlignmentOptionError)
    number("align: prefilter", prefilter, least=0.0, most=10.0, error=AlignmentOptionError)
    integer("align: max_steps", max_steps, 1, 1000, error=AlignmentOptionError)
    figures = min_overlap, min_ncc, min_detail, min_lead, prefilter, max_steps
    base = BASE if model == PIECEWISE else model
    metric = checked_metric(metric, value)
    scales = checked_scales(len(maps), reference, base, metric, pixel_sizes, scale_range)
    return Options(base, value, loss, init, *figures, metric, model == PIECEWISE, *scales)


def checked_scales(
    count: int,
    reference: int,
    model: str,
    metric: Metric,
    sizes: Sequence[float] | None,
    scale_range: Sequence[float] | None,
) -> tuple[tuple[float, ...] | None, tuple[float, float] | None]:
    """The pixel sizes and the range, where they are given, and whether the model can have such scales."""
    if sizes is None and scale_range is None:
        return None, None
    sizes = tuple(float(size) for size in ([1.0] * count if sizes is None else sizes))
    if len(sizes) != count or not all(0 < size < math.inf for size in sizes):
        raise AlignmentOptionError(
            f"align: pixel_sizes={list(sizes)!r} for {count} maps; give the side of a pixel of every map, above 0, in "
            "one unit."
        )
    bounds = [float(bound) for bound in (SCALE_RANGE if scale_range is None else scale_range)]
    least, most = bounds if len(bounds) == 2 else (math.nan, math.nan)
    if not 0 < least <= most < math.inf:
        raise AlignmentOptionError(f"align: scale_range={scale_range!r}; it is (least, most), both above 0.")
    if model in ("translation", "se2") or metric.name == "occupancy":
        name = f"model={model!r}" if model in ("translation", "se2") else "metric='occupancy'"
        for index, size in enumerate(sizes):
            if not least <= size / sizes[reference] <= most:
                raise AlignmentOptionError(
                    f"align: {name} has no scale, and pixel_sizes say one of {sizes[reference] / size:g} for map "
                    f"{index}; resample that map, or use model='sim2'."
                )
    return sizes, (least, most)


def checked_metric(metric: str | Metric, value: str) -> Metric:
    """The metric of a name, or the object itself; of "auto" the first that is tried."""
    if isinstance(metric, str):
        one_of("align: metric", metric, [AUTO, *METRICS], AlignmentOptionError)
        metric = METRICS["squared" if metric == AUTO else metric]
    names = f"There are {', '.join(map(repr, [AUTO, *METRICS]))} by name."
    instance_of("align: metric", metric, Metric, names, AlignmentOptionError)
    if metric.sign < 0 and value not in ("gain", "gain_bias"):
        raise AlignmentOptionError(
            f"align: metric {metric.name!r} needs a gain, which value={value!r} holds at 1; value='gain_bias' does not."
        )
    return metric
