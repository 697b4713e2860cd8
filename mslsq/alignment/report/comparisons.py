"""The reference and one map on its grid, before and after: red and cyan, a checkerboard, what is left over."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from mslsq.alignment.measures import summary

LARGEST_SIDE = 1024
"""Pixels of a picture along its longer side; larger rasters are shown reduced, by means of their known pixels."""

TILES = 8
"""Of a checkerboard, along the longer side."""

BINS = 60
WIDEST = 6.0
"""Times what holds the differences after: a histogram that reaches farther shows them as one bar."""

SHARE_WITHIN = 0.99
"""Of the differences that a colour scale and a histogram hold; the few beyond take the last colour and the last bin."""


@dataclass(frozen=True)
class Comparison:
    """The reference and one map on its grid, before and after, in the reference's values; `caption` says how it
    went."""

    title: str
    reference: Float[Tensor, "height width"]
    known: Bool[Tensor, "height width"]
    before: tuple[Float[Tensor, "height width"], Bool[Tensor, "height width"]]
    after: tuple[Float[Tensor, "height width"], Bool[Tensor, "height width"]]
    caption: str
    unit: str = ""
    """Of the reference's values, where its file says."""


@dataclass(frozen=True)
class Residuals:
    """Map minus reference where both are known, before and after: histograms over ± `limit`, of all pixels."""

    limit: float
    before: Float[np.ndarray, " bins"]
    after: Float[np.ndarray, " bins"]
    rms_before: float
    rms: float
    spread: float
    """1.4826 times the median absolute deviation, after: the standard deviation, were there no outliers."""


@dataclass(frozen=True)
class Words:
    """What the pictures of a sheet are called."""

    name: str
    """Of what is moved."""
    swipe: str
    before: str
    after: str
    grey: str
    """Of the button that shows reference and map instead."""
    checkerboard: str
    difference: str
    reference: str
    moved: str
    axis: str
    colours: str = "RdBu_r"
    """Matplotlib's name of the colours of differences: white is none."""


MAPS = Words(
    name="map",
    swipe="Reference in red, map in cyan",
    before="Before: reference red, map cyan, grey where they agree.",
    after="After.",
    grey="Reference and map in grey",
    checkerboard="Checkerboard of the reference (reddish) and the map (bluish)",
    difference="Map − reference after alignment, red above, blue below",
    reference="The reference",
    moved="The map on the reference's grid",
    axis="map − reference",
)


@dataclass(frozen=True)
class Sheet:
    """What is shown of one map: small pictures and a histogram, which take no memory to speak of."""

    title: str
    caption: str
    unit: str
    size: tuple[int, int]
    """Rows and columns of the reference."""
    before: UInt8[np.ndarray, "h w 3"]
    after: UInt8[np.ndarray, "h w 3"]
    reference: UInt8[np.ndarray, "h w 3"]
    moved: UInt8[np.ndarray, "h w 3"]
    checkerboard: UInt8[np.ndarray, "h w 3"]
    difference: Float[np.ndarray, "h w"]
    """Map minus reference; NaN where one is not known."""
    limit: float
    """Of the colour scale, ±."""
    residuals: Residuals | None
    """None where the two have no pixel in common."""
    words: Words = MAPS

    @property
    def values(self) -> str:
        """What differences are in, in words."""
        return self.unit or "in the reference's values"

    @property
    def means(self) -> int:
        """Pixels along a side of which a pixel of the pictures is the mean: 1 where they are the raster's own."""
        return -(-max(self.size) // max(self.before.shape[:2]))


def stretch(values: Tensor, known: Tensor) -> tuple[float, float]:
    """The 1st and 99th percentile where known: one display range for all panels of a row."""
    data = values[known]
    if data.numel() == 0:
        return 0.0, 1.0
    low, high = np.percentile(data.cpu().numpy(), [1, 99])
    return float(low), float(high if high > low else low + 1.0)


def red_cyan(
    reference: Float[Tensor, "h w"],
    known: Bool[Tensor, "h w"],
    moving: Float[Tensor, "h w"],
    seen: Bool[Tensor, "h w"],
    limits: tuple[float, float] | None = None,
) -> Float[np.ndarray, "h w 3"]:
    """Reference in red, map in green and blue: grey where they agree, coloured edges where they do not; one alone is
    faded."""
    low, high = limits or stretch(reference, known)
    a, b = (_scaled(values, low, high) for values in (reference, moving))
    both = known & seen
    picture = torch.stack([a, b, b], -1)
    faded = 0.5 + 0.35 * torch.where(known, a, b)[..., None].expand_as(picture)
    picture = torch.where(both[..., None], picture, faded)
    return torch.where((known | seen)[..., None], picture, torch.ones_like(picture)).cpu().numpy()


def checkerboard(
    reference: Float[Tensor, "h w"],
    known: Bool[Tensor, "h w"],
    moving: Float[Tensor, "h w"],
    seen: Bool[Tensor, "h w"],
    limits: tuple[float, float],
) -> Float[np.ndarray, "h w 3"]:
    """Reference and map by turns, in squares: lines go on across their borders where the two agree. Squares of the
    reference are tinted red, those of the map cyan; where one alone is known it is faded."""
    height, width = reference.shape
    tile = max(1, -(-max(height, width) // TILES))
    y, x = torch.arange(height, device="cpu") // tile, torch.arange(width, device="cpu") // tile
    turn = (y[:, None] + x[None]) % 2 == 0
    a, b = (_scaled(values, *limits) for values in (reference, moving))
    shown = torch.where(turn, a, b)
    tint = torch.where(turn[..., None], shown.new_tensor([1.0, 0.93, 0.93]), shown.new_tensor([0.93, 1.0, 1.0]))
    picture = shown[..., None] * tint
    alone = 0.5 + 0.35 * torch.where(known, a, b)[..., None].expand_as(picture)
    picture = torch.where((known & seen)[..., None], picture, alone)
    return torch.where((known | seen)[..., None], picture, torch.ones_like(picture)).cpu().numpy()


def _scaled(values: Tensor, low: float, high: float) -> Tensor:
    return ((torch.nan_to_num(values) - low) / (high - low)).clamp(0, 1)


def reduced(
    values: Float[Tensor, "h w"], known: Bool[Tensor, "h w"], largest: int = LARGEST_SIDE
) -> tuple[Float[Tensor, "rows columns"], Bool[Tensor, "rows columns"]]:
    """Means of the known pixels of square blocks, as large as it takes; known where half of a block is."""
    factor = -(-max(values.shape) // largest)
    if factor <= 1:
        return values, known
    weight = known.to(values.dtype)[None, None]
    data = torch.where(known, values, torch.zeros_like(values))[None, None]
    pool = lambda x: torch.nn.functional.avg_pool2d(x, factor, ceil_mode=True, count_include_pad=False)  # noqa: E731
    share = pool(weight)
    return (pool(data) / share.clamp(min=1e-9))[0, 0], share[0, 0] >= 0.5


def picture_of(values: Float[Tensor, "c h w"], known: Bool[Tensor, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """A raster as it is shown: three bands as colours, any other number as grey; white where there are no data."""
    bands = values if values.shape[0] == 3 else values[:1]
    small = [reduced(band, known) for band in bands]
    seen = small[0][1]
    limits = stretch(torch.stack([band for band, _ in small]).mean(0), seen)
    shown = torch.stack([_scaled(band, *limits) for band, _ in small], -1).expand(*seen.shape, 3)
    return as_bytes(torch.where(seen[..., None], shown, torch.ones_like(shown)).cpu().numpy())


def sheet_of(item: Comparison) -> Sheet:
    """The pictures of one comparison, and the statistics of all its pixels."""
    reference, known = reduced(item.reference, item.known)
    limits = stretch(reference, known)
    before, after = reduced(*item.before), reduced(*item.after)
    both = known & after[1]
    difference = torch.where(both, after[0] - reference, torch.full_like(reference, float("nan")))
    sizes = difference[both].abs().cpu().numpy()
    limit = float(np.quantile(sizes, SHARE_WITHIN)) if sizes.size else 0.0
    grey = lambda values, seen: picture_grey(values, seen, limits)  # noqa: E731
    return Sheet(
        title=item.title,
        caption=item.caption,
        unit=item.unit,
        size=(item.reference.shape[0], item.reference.shape[1]),
        before=as_bytes(red_cyan(reference, known, *before, limits)),
        after=as_bytes(red_cyan(reference, known, *after, limits)),
        reference=grey(reference, known),
        moved=grey(*after),
        checkerboard=as_bytes(checkerboard(reference, known, *after, limits)),
        difference=difference.cpu().numpy(),
        limit=limit or 1.0,
        residuals=residuals_of(item.reference, item.known, item.before, item.after),
    )


def picture_grey(values: Tensor, known: Tensor, limits: tuple[float, float]) -> UInt8[np.ndarray, "h w 3"]:
    """One band within a range; white where there are no data."""
    shown = torch.where(known, _scaled(values, *limits), torch.ones_like(values))
    return as_bytes(shown[..., None].expand(*shown.shape, 3).cpu().numpy())


def residuals_of(
    reference: Float[Tensor, "h w"],
    known: Bool[Tensor, "h w"],
    before: tuple[Float[Tensor, "h w"], Bool[Tensor, "h w"]],
    after: tuple[Float[Tensor, "h w"], Bool[Tensor, "h w"]],
) -> Residuals | None:
    """Map minus reference of all pixels that are known in both; None where there are none after."""
    was, now = ((values - reference)[known & seen].cpu().numpy() for values, seen in (before, after))
    if not now.size:
        return None
    reach = [float(np.quantile(np.abs(data), SHARE_WITHIN)) for data in (was, now) if data.size]
    limit = min(max(reach), WIDEST * reach[-1]) or 1.0
    edges = np.linspace(-limit, limit, BINS + 1)
    shares = [np.histogram(data.clip(-limit, limit), edges)[0] / max(data.size, 1) for data in (was, now)]
    first, last = summary(was), summary(now)
    return Residuals(limit, shares[0], shares[1], first["rmse"], last["rmse"], last["nmad"])


def as_bytes(picture: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
    return np.rint(255 * picture).astype(np.uint8)
