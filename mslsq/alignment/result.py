"""What `align` returns: one entry per map, with a status and a reason in words for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.alignment.bends import Bend, warped
from mslsq.alignment.coordinates.placement import WorldPlacement

CONVENTION = (
    "transforms[i] is a 3 x 3 matrix T that takes a pixel of the reference to the pixel of map i that shows the same "
    "thing: (x', y', w') = T (x, y, 1), pixel of the map = (x'/w', y'/w'). x runs along columns, y along rows, the "
    "centre of the first pixel is (0, 0). Values: reference ≈ gain · map + bias."
)


class MapStatus(IntEnum):
    """What became of one map. The first two are good; the value's sentence is for the user."""

    REFERENCE = 0
    ALIGNED = 1
    NO_DATA = 2
    CONSTANT = 3
    TOO_SMALL = 4
    BAD_INPUT = 5
    NO_OVERLAP = 6
    LOW_CORRELATION = 7
    NOT_CONVERGED = 8
    NO_REFERENCE = 9
    AMBIGUOUS = 10
    INCONSISTENT = 11
    WRONG_SCALE = 12

    @property
    def ok(self) -> bool:
        """Does this map have a transform?"""
        return self <= MapStatus.ALIGNED

    @property
    def sentence(self) -> str:
        """What happened, and what to try."""
        return _SENTENCES[self]


_SENTENCES = {
    MapStatus.REFERENCE: "This is the reference.",
    MapStatus.ALIGNED: "Aligned.",
    MapStatus.NO_DATA: "Left out: no valid pixels. All are NaN, nodata or masked.",
    MapStatus.CONSTANT: "Left out: the map is constant where it has data, so nothing in it can be aligned.",
    MapStatus.TOO_SMALL: "Left out: too few valid pixels to align by.",
    MapStatus.BAD_INPUT: (
        "Left out: this is not a raster of shape (H, W) or (C, H, W) of real numbers with a mask of shape (H, W)."
    ),
    MapStatus.NO_OVERLAP: (
        "Left out: no placement overlaps the reference, or a map already placed, enough. Try a smaller min_overlap."
    ),
    MapStatus.LOW_CORRELATION: (
        "Left out: the best placement found does not correlate well enough to be believed. "
        'Try another metric ("auto") or model, a start of your own (init), or a smaller min_ncc or min_detail.'
    ),
    MapStatus.NOT_CONVERGED: (
        "Left out: the refinement did not converge. Try more steps, a simpler model or another start."
    ),
    MapStatus.INCONSISTENT: "Left out: the other maps contradict its place, or nothing but one doubtful link holds it.",
    MapStatus.WRONG_SCALE: "Left out: the best placement found has a scale that pixel_sizes or scale_range rule out.",
    MapStatus.NO_REFERENCE: "Left out: the reference itself cannot be used, so there is nothing to align to.",
    MapStatus.AMBIGUOUS: (
        "Left out: another placement fits about as well. Say which is meant by a start of your own (init), or try a "
        "smaller min_lead."
    ),
}


@dataclass(frozen=True)
class Stage:
    """One solve of the coarse-to-fine refinement, for progress and plots."""

    map: int
    level: int
    size: tuple[int, int]
    model: str
    loss: str
    rms: list[float]
    """Root mean square residual per sample after each step, in units of the reference's standard deviation."""
    overlap: float
    ncc: float


@dataclass(frozen=True)
class Alignment:
    """The result of `align`; entry i belongs to map i. Entries of maps that were left out are NaN."""

    transforms: Float[Tensor, "maps 3 3"]
    """Reference pixel (x, y, 1) to map pixel, centres at integers."""
    gain: Float[Tensor, " maps"]
    bias: Float[Tensor, " maps"]
    """reference ≈ gain · map + bias."""
    status: Int[Tensor, " maps"]
    """`MapStatus` values."""
    covariance: Float[Tensor, "maps tangent tangent"]
    """Of the model's tangent components (`mslsq.alignment.models`, normalised coordinates); zero for the reference.
    Of maps that were placed jointly, that of all their links; else, for one placed through another, of its own link and
    of the other's place."""
    ncc: Float[Tensor, " maps"]
    """Masked correlation with the map it was placed on (`parent`), over the overlap."""
    detail: Float[Tensor, " maps"]
    """The median correlation of the blocks with the strongest detail (`mslsq.alignment.evidence`)."""
    lead: Float[Tensor, " maps"]
    """How far the placement stands out from every other shift (`mslsq.alignment.rivals`); of "occupancy" the ratio of
    its score to the best other one. NaN where none was looked for."""
    overlap: Float[Tensor, " maps"]
    """Share of the smaller map's area of data that the two have in common."""
    corner_sigma: Float[Tensor, " maps"]
    """Root mean square standard error of the reference's four corners, in pixels."""
    parent: Int[Tensor, " maps"]
    """The map each was placed on; the reference for most, -1 for maps that were left out."""
    reference: int
    model: str
    reasons: list[str]
    stages: list[Stage] = field(repr=False)
    links: list[Any] = field(repr=False, default_factory=list)
    """Of maps that were placed jointly: each pair that was tried (`mslsq.alignment.joint.Link`), and what became of
    it."""
    metrics: list[str] = field(default_factory=list)
    """By name, the metric that each map was placed by; empty for the reference and for maps that were left out."""
    fitting: list[str] = field(default_factory=list)
    """By name, the larger model that fits each map, where the one that was asked for does not, as its reason says:
    "piecewise" where no matrix does, "" where the model fits."""

    world: list[WorldPlacement | None] = field(repr=False, default_factory=list)
    """Where `georeferences` were given: what every map's place is in coordinates of the world; None for maps that were
    left out. Empty without."""
    bends: list[Bend | None] = field(repr=False, default_factory=list)
    """Of model="piecewise": per map its grid of shifts, or None (the reference; maps left out or not bent)."""

    sizes: list[tuple[int, int] | None] = field(repr=False, default_factory=list)
    """Per map its rows and columns; None of those that could not be used."""

    @property
    def aligned(self) -> list[int]:
        """Indices of the maps that have a transform, the reference among them."""
        return [i for i, status in enumerate(self.status.tolist()) if MapStatus(status).ok]

    def bend(self, index: int) -> Bend | None:
        """How a map is bent, or None."""
        return self.bends[index] if self.bends else None

    def to_map(self, index: int, points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """Where pixels (x, y) of the reference are in a map: by its matrix, after its bend if it has one."""
        return warped(points, self.transforms[index], self.bend(index))

    def plot(
        self,
        maps: Sequence[Any] | None = None,
        *,
        masks: Sequence[Any] | None = None,
        names: Sequence[str] | None = None,
        path: Path | str | None = None,
    ) -> Any:
        """Without the maps: the outlines of all placed maps with 95 % ellipses at their corners, and the graph of
        links. With them: a row per map of before, after, a checkerboard, and the difference.

        Args:
            maps: those that were given to `align`, in their order; the result does not hold them.
            masks: as given to `align`.
            names: of the maps, for titles.
            path: of a PNG to write.

        Returns:
            The matplotlib figure.

        Raises:
            AlignmentOptionError: these are not the maps of this result (their number or sizes).
            ImportError: matplotlib is not installed.
        """
        from mslsq.alignment.showing import plot

        return plot(self, maps, masks, names, path)

    def report(
        self,
        path: Path | str,
        maps: Sequence[Any] | None = None,
        *,
        masks: Sequence[Any] | None = None,
        names: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        title: str = "Alignment report",
    ) -> Path:
        """Write the page that `scripts/align.py` writes as `report.html`: one file that needs no network.

        Args:
            path: of the page.
            maps: those that were given to `align`, in their order; the result does not hold them. Without them the
                page has tables and graphs, and no pictures.
            masks: as given to `align`.
            names: of the maps; "map 0", "map 1", ... without.
            options: to be listed, as those that `align` was called with.
            title: of the page.

        Returns:
            The path.

        Raises:
            AlignmentOptionError: these are not the maps of this result (their number or sizes).
            NotWrittenError: the page cannot be written.
            ImportError: matplotlib or Pillow is not installed.
        """
        from mslsq.alignment.showing import report

        return report(self, path, maps, masks, names, options, title)

    def _repr_html_(self) -> str:
        """The table of maps, for notebooks."""
        from mslsq.alignment.showing import table

        return table(self)

    def message(self) -> str:
        """One line per map: its status in words."""
        lines = []
        for i, (status, reason) in enumerate(zip(self.status.tolist(), self.reasons, strict=True)):
            numbers = ""
            if status == MapStatus.ALIGNED:
                numbers = f" Correlation {float(self.ncc[i]):.3f}, overlap {float(self.overlap[i]):.0%}."
            lines.append(f"map {i}: {reason}{numbers}")
        return "\n".join(lines)


def empty(count: int, reference: int, model: str, tangent: int, like: Tensor) -> dict[str, Tensor]:
    """NaN for every map, the identity for the reference."""
    nan = float("nan")
    out = {
        "transforms": like.new_full((count, 3, 3), nan),
        "gain": like.new_full((count,), nan),
        "bias": like.new_full((count,), nan),
        "covariance": like.new_full((count, tangent, tangent), nan),
        "ncc": like.new_full((count,), nan),
        "detail": like.new_full((count,), nan),
        "lead": like.new_full((count,), nan),
        "overlap": like.new_full((count,), nan),
        "corner_sigma": like.new_full((count,), nan),
        "parent": torch.full((count,), -1, device="cpu"),
    }
    out["transforms"][reference] = torch.eye(3, dtype=like.dtype, device=like.device)
    for name, value in [
        ("gain", 1.0),
        ("bias", 0.0),
        ("covariance", 0.0),
        ("ncc", 1.0),
        ("detail", 1.0),
        ("overlap", 1.0),
        ("corner_sigma", 0.0),
    ]:
        out[name][reference] = value
    out["parent"][reference] = reference
    return out
