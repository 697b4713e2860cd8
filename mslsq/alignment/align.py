"""The front door of map alignment: `align(maps)` places N overlapping rasters on one of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.options import Options, checked_options
from mslsq.alignment.pairwise import Placed, place
from mslsq.alignment.pyramid import Level, build, depth
from mslsq.alignment.result import Alignment, MapStatus, Stage, empty

SMALLEST_SIDE = 8
FEWEST_PIXELS = 48


def align(
    maps: Sequence[Any],
    *,
    model: str = "sim2",
    reference: int = 0,
    masks: Sequence[Any] | None = None,
    value: str = "gain_bias",
    levels: int | str = "auto",
    loss: str | None = "cauchy",
    init: Any = "auto",
    min_overlap: float = 0.15,
    min_ncc: float = 0.5,
    min_detail: float = 0.6,
    min_lead: float = 1.3,
    prefilter: float = 1.0,
    max_steps: int = 100,
    progress: Callable[[Stage], None] | None = None,
) -> Alignment:
    """Place overlapping rasters on a reference: warp, gain and bias jointly, coarse to fine, with masks.

    Args:
        maps: rasters (H, W) or (C, H, W), tensors or arrays of any real dtype; sizes may differ, NaN is no data. Where
            the numbers of channels differ, all are reduced to the mean of their channels. Computation is in float64.
        model: "translation", "se2", "sim2", "affine" or "homography".
        reference: index of the map on which all others are placed.
        masks: per map None or (H, W), true where the map holds data.
        value: what relates values, reference ≈ gain · map + bias: "gain_bias", "gain", "bias" or "none". One gain
            and one bias per map, for all its channels.
        levels: of the pyramid; "auto" adds levels while the short side stays at or above 24 px.
        loss: "cauchy", "huber", "tukey" or "geman_mcclure": used on the coarse levels, with a scale from the
            residuals' MAD, and on the finest level where the residuals have outliers; the finest level is plain least
            squares otherwise. None or "l2": plain least squares on all levels.
        init: "auto": identity and phase correlation, and where their detail does not agree clearly, "search" (every
            rotation, log-polar; the best eight are refined); "phase", "identity", or a tensor (N, 3, 3) of starts in
            the convention of the result.
        min_overlap: share of the smaller map's valid pixels that must be common.
        min_ncc: correlation over the overlap below which a placement is not believed.
        min_detail: the median correlation of the blocks with the strongest detail below which a placement is not
            believed, if there are many blocks; of a few, more is asked (`mslsq.alignment.evidence`). -1 asks nothing.
        min_lead: how far a placement must stand out from every other shift of the map (`mslsq.alignment.rivals`): 1 is
            twice their score, or 0.8 more; else it is ambiguous, as in a wall of bricks. From 3 on, `min_detail` is
            lowered by 0.4: noise hides the detail of a true placement. Not asked where `init` says where to look
            ("identity" or a tensor). 0 asks nothing.
        prefilter: sigma in pixels of the Gaussian that both maps pass first; 0 for none.
        max_steps: of Levenberg-Marquardt on the finest level. A placement that needs more is left out.
        progress: called with a `Stage` after every solve.

    Returns:
        `Alignment`; `.transforms[i]` takes a reference pixel (x, y, 1), centres at integers, to a pixel of map i. A
        map that cannot be placed is NaN there and has its `status` and `reasons[i]`. A map that fails against the
        reference is tried against the maps already placed, best first.

    Raises:
        AlignmentOptionError: an option that is not valid (never for the content of a map).

    >>> from mslsq.alignment import align, synthetic
    >>> pair = synthetic.make_pair("camera", "translation", seed=1, size=128)
    >>> result = align([pair.reference, pair.moving], model="translation")
    >>> bool((result.transforms[1] - pair.transform).abs().max() < 0.1)
    True
    """
    maps = list(maps)
    options = checked_options(
        maps,
        model,
        reference,
        masks,
        value,
        levels,
        loss,
        init,
        min_overlap,
        min_ncc,
        min_detail,
        min_lead,
        prefilter,
        max_steps,
    )
    rasters, states, reasons = _prepare(maps, masks)
    like = next((r.values for r in rasters if r is not None), torch.zeros((), dtype=torch.float64))
    kind = MODELS[model]
    out = empty(len(maps), reference, model, kind.tangent_dim, like)
    stages: list[Stage] = []
    if not states[reference].ok:
        for entry in out.values():
            entry[reference] = -1 if entry.dtype == torch.int64 else float("nan")
        for i, state in enumerate(states):
            if state.ok:
                states[i], reasons[i] = (
                    MapStatus.NO_REFERENCE,
                    f"{MapStatus.NO_REFERENCE.sentence} ({reasons[reference]})",
                )
        return _result(out, states, reasons, stages, reference, model)
    states[reference], reasons[reference] = MapStatus.REFERENCE, MapStatus.REFERENCE.sentence
    starts = init if isinstance(init, Tensor) else None

    placed = [reference]
    tried: dict[int, list[Placed]] = {}
    waiting = [i for i, state in enumerate(states) if i != reference and state.ok]
    frontier = [reference]
    while frontier and waiting:
        parent = frontier.pop(0)
        reached = []
        for i in waiting:
            initial = None
            if starts is not None:  # reference → i, seen from the parent
                initial = (
                    (starts[i].to(like) @ torch.linalg.inv(out["transforms"][parent]))
                    if starts[i].isfinite().all()
                    else None
                )
            link, values = _link(rasters[parent], rasters[i], options, levels, i, initial, progress)
            stages.extend(link.stages)
            tried.setdefault(i, []).append(link)
            if not link.status.ok:
                continue
            transform = values[0] @ out["transforms"][parent]
            out["transforms"][i] = transform / transform[2, 2]
            out["gain"][i] = out["gain"][parent] * values[1]
            out["bias"][i] = out["gain"][parent] * values[2] + out["bias"][parent]
            out["covariance"][i] = link.covariance
            out["detail"][i], out["lead"][i] = link.detail, link.lead
            out["ncc"][i], out["overlap"][i], out["corner_sigma"][i] = link.ncc, link.overlap, link.corner_sigma
            out["parent"][i] = parent
            states[i] = MapStatus.ALIGNED
            reasons[i] = link.reason + ("" if parent == reference else f" Placed through map {parent}.")
            reached.append(i)
        waiting = [i for i in waiting if i not in reached]
        placed += reached
        frontier += sorted(reached, key=lambda i: -float(out["ncc"][i] * out["overlap"][i]))
    for i in waiting:
        best = max(tried[i], key=lambda link: (link.status == MapStatus.LOW_CORRELATION, link.ncc))
        states[i], reasons[i] = best.status, best.reason
    return _result(out, states, reasons, stages, reference, model)


class _Prepared:
    """One map, ready: values, mask, channels, and its pyramids by number of levels and standardisation."""

    def __init__(
        self,
        values: Float[Tensor, "channels height width"],
        mask: Bool[Tensor, "height width"],
        mean_and_spread: tuple[float, float],
    ):
        self.values, self.mask = values, mask
        self.mean, self.spread = mean_and_spread
        self._pyramids: dict[Any, list[Level]] = {}

    def pyramid(self, levels: int, mean: float, spread: float, prefilter: float) -> list[Level]:
        key = (levels, mean, spread, prefilter)
        if key not in self._pyramids:
            self._pyramids[key] = build((self.values - mean) / spread, self.mask, levels, prefilter)
        return self._pyramids[key]


def _link(
    fixed: _Prepared,
    moving: _Prepared,
    options: Options,
    levels: int | str,
    index: int,
    initial: Tensor | None,
    progress: Callable[[Stage], None] | None,
) -> tuple[Placed, tuple[Tensor, Tensor, Tensor]]:
    """Place one map on another: the raw result, and (transform in pixels, gain, bias) in the maps' own units."""
    height, width = fixed.mask.shape
    short = min(*fixed.mask.shape, *moving.mask.shape)
    count = depth(short, short) if levels == "auto" else int(levels)
    frame = Frame(height, width, fixed.values)
    # Standardise: both alike where gain or bias is held, each by its own where it is free.
    spread = moving.spread if options.value in ("gain", "gain_bias") else fixed.spread
    fixed_mean = 0.0 if options.value == "gain" else fixed.mean
    mean = {"gain_bias": moving.mean, "bias": moving.mean, "gain": 0.0, "none": fixed.mean}[options.value]
    link = place(
        fixed.pyramid(count, fixed_mean, fixed.spread, options.prefilter),
        moving.pyramid(count, mean, spread, options.prefilter),
        frame,
        options,
        index,
        initial,
        progress,
    )
    gain = fixed.spread * link.value[0].exp() / spread
    bias = fixed_mean + fixed.spread * link.value[1] - gain * mean
    return link, (frame.to_pixels(link.warp), gain, bias)


def _prepare(maps: Sequence[Any], masks: Sequence[Any] | None) -> tuple[list[Any], list[MapStatus], list[str]]:
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
    return [None if r is None else _Prepared(*r) for r in rasters], states, reasons


def _grey(
    values: Float[Tensor, "channels height width"], mask: Bool[Tensor, "height width"], _: Any
) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """The mean of the channels."""
    grey = values.mean(0, keepdim=True)
    return grey, mask, _mean_and_spread(grey[:, mask])


def _mean_and_spread(values: Tensor) -> tuple[float, float]:
    spread, mean = torch.std_mean(values)
    return float(mean), float(spread)


def _prepared(raw: Any, mask: Any) -> tuple[Any, MapStatus, str]:
    try:
        values = raw if isinstance(raw, Tensor) else torch.from_numpy(np.ascontiguousarray(raw))
    except (TypeError, ValueError) as error:
        return None, MapStatus.BAD_INPUT, f"{MapStatus.BAD_INPUT.sentence} ({error})"
    if values.is_complex() or values.ndim not in (2, 3) or values.numel() == 0:
        given = f"(Given: {values.dtype} of shape {tuple(values.shape)}.)"
        return None, MapStatus.BAD_INPUT, f"{MapStatus.BAD_INPUT.sentence} {given}"
    values = values.detach().to(torch.float64)
    values = values[None] if values.ndim == 2 else values
    known = values.isfinite().all(0)
    if mask is not None:
        mask = torch.as_tensor(np.asarray(mask) if not isinstance(mask, Tensor) else mask)
        if mask.shape != known.shape:
            given = f"(Its mask has shape {tuple(mask.shape)}, the map {tuple(known.shape)}.)"
            return None, MapStatus.BAD_INPUT, f"{MapStatus.BAD_INPUT.sentence} {given}"
        known = known & (mask.to(known.device) != 0)
    if not bool(known.any()):
        return None, MapStatus.NO_DATA, ""
    complete = bool(known.all())
    data = values if complete else values[:, known]
    count = int(known.count_nonzero())
    if count < FEWEST_PIXELS or min(known.shape) < SMALLEST_SIDE:
        given = (
            f"({count} valid pixels in {known.shape[1]} x {known.shape[0]}; at least {FEWEST_PIXELS}, "
            f"and {SMALLEST_SIDE} along the short side, are needed.)"
        )
        return None, MapStatus.TOO_SMALL, f"{MapStatus.TOO_SMALL.sentence} {given}"
    mean, spread = _mean_and_spread(data)
    if spread <= 1e-9 * max(-float(data.min()), float(data.max())) or spread == 0.0:
        return None, MapStatus.CONSTANT, ""
    filled = values if complete else torch.where(known, values, torch.zeros_like(values))
    return (filled, known, (mean, spread)), MapStatus.ALIGNED, ""


def _result(
    out: dict[str, Tensor], states: list[MapStatus], reasons: list[str], stages: list[Stage], reference: int, model: str
) -> Alignment:
    status = torch.tensor([int(state) for state in states])
    described: dict[str, Any] = {"reference": reference, "model": model, "reasons": reasons, "stages": stages}
    return Alignment(**out, status=status, **described)
