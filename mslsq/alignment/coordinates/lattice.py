"""Maps with georeferences in pixels of one lattice, that of the reference.

Pyramids halve both maps alike, and a model may have no scale or no rotation. So a map whose header says another pixel
size, direction or shape of pixels is resampled before it is compared: then its header says (nearly) a shift, a model
is the correction of the header, and what is found is taken back to the map's own pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.canvas import Canvas, resample
from mslsq.alignment.coordinates.georeference import Georeference
from mslsq.alignment.coordinates.relating import relation
from mslsq.alignment.measures import corner_error
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.prepared import FEWEST_PIXELS, SMALLEST_SIDE, Prepared

NEAR_SCALE, NEAR_TURN = 1.15, math.radians(7)
"""What a refinement from the header corrects without help: the basin on the coarsest level."""

EXPRESSED = 0.02
"""Pixels: the corners of a header that a model says up to this are the model's."""

LARGEST = 1 << 26
"""Pixels of a resampled map; of a larger one, what lies around the reference is used."""

INEXACT = 0.05
"""Pixels: where an affine map between two CRS is off by more, it is said."""


@dataclass(frozen=True)
class OnLattice:
    """One map, and where it is."""

    map: Prepared | None
    start: Float[Tensor, "3 3"] | None = None
    """Pixels of the lattice to pixels of this map, as its header has it; None without a georeference."""
    back: Float[Tensor, "3 3"] | None = None
    """Pixels of this map to those of the map that was given; None where they are the same."""
    note: str = ""
    error: float = 0.0
    """Pixels of the lattice, root mean square: how far the CRS are from an affine map."""

    @property
    def repeats(self) -> float:
        """How many pixels of this map one of the given map has become, at least 1: they are not independent."""
        return max(1.0, 1.0 / self.area)

    @property
    def area(self) -> float:
        """Of a pixel of this map, in pixels of the given one."""
        return 1.0 if self.back is None else area_of(self.back)


@dataclass(frozen=True)
class Lattice:
    """All maps of an alignment. Without georeferences they are as they were given."""

    entries: list[OnLattice]
    refused: dict[tuple[int, int], str] = field(default_factory=dict)
    """Pairs that did not agree where their headers put them, and why not."""
    agreed: set[tuple[int, int]] = field(default_factory=set)
    """Pairs that did."""
    tried: set[tuple[int, int, str]] = field(default_factory=set)
    """Pairs, and the metrics that they were compared by there."""

    @staticmethod
    def of(
        maps: Sequence[Prepared | None],
        georeferences: Sequence[Georeference | None] | None,
        reference: int,
        model: str,
    ) -> "Lattice":
        """The maps on the lattice of the reference, or of the first that has a georeference if it has none."""
        known = [] if georeferences is None else [i for i, one in enumerate(maps) if one and georeferences[i]]
        if georeferences is None or len(known) < 2:
            return Lattice([OnLattice(one) for one in maps])
        owner = reference if reference in known else known[0]
        entries = []
        for index, one in enumerate(maps):
            if index not in known or one is None:
                entries.append(OnLattice(one))
            elif index in (owner, reference):
                entries.append(_as_it_is(maps, georeferences, owner, index))
            else:
                entries.append(_carried(maps, georeferences, owner, index, model))
        return Lattice(entries)

    @property
    def maps(self) -> list[Prepared | None]:
        return [entry.map for entry in self.entries]

    @property
    def starts(self) -> dict[int, Float[Tensor, "3 3"]]:
        """Where headers put the maps, from pixels of the lattice."""
        return {i: entry.start for i, entry in enumerate(self.entries) if entry.start is not None}

    def heard(self, fixed: int, moving: int, agreed: bool, reason: str) -> None:
        """What came of a pair where its headers put it."""
        if agreed:
            self.agreed.add((fixed, moving))
        else:
            self.refused[fixed, moving] = reason

    def doubt(self, index: int) -> str:
        """Why the header of a map is not believed; empty where it is, or was never tried."""
        if any(index in pair for pair in self.agreed):
            return ""
        return next((reason for pair, reason in self.refused.items() if index in pair), "")

    def start(self, fixed: int, moving: int) -> Float[Tensor, "3 3"] | None:
        """Pixels of one map to those of another, as their headers have it."""
        one, other = self.entries[fixed].start, self.entries[moving].start
        return None if one is None or other is None else other @ torch.linalg.inv(one)

    def given(self, index: int, transform: Float[Tensor, "3 3"]) -> Float[Tensor, "3 3"]:
        """A transform to this map as one to the map that was given."""
        back = self.entries[index].back
        return transform if back is None else back @ transform

    def own(self, index: int, transform: Float[Tensor, "3 3"]) -> Float[Tensor, "3 3"]:
        """The other way."""
        back = self.entries[index].back
        return transform if back is None else torch.linalg.inv(back) @ transform

    def all_own(self, transforms: Float[Tensor, "maps 3 3"]) -> Float[Tensor, "maps 3 3"]:
        """Of all maps."""
        if all(entry.back is None for entry in self.entries):
            return transforms
        return torch.stack([self.own(i, one.double()) for i, one in enumerate(transforms)])

    @property
    def header_sizes(self) -> tuple[float, ...]:
        """Sides of the maps' pixels in those of the lattice, as headers have them; 1 without one."""
        starts = (entry.start for entry in self.entries)
        return tuple(1.0 if start is None else area_of(start) ** -0.5 for start in starts)

    def sizes(self, given: Sequence[float]) -> tuple[float, ...]:
        """Sides of the maps' pixels, from those of the maps that were given."""
        return tuple(size * math.sqrt(entry.area) for size, entry in zip(given, self.entries, strict=True))


def area_of(matrix: Float[Tensor, "3 3"]) -> float:
    """How much larger an affine map makes areas."""
    return abs(float(matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]))


def _carried(
    maps: Sequence[Prepared | None],
    georeferences: Sequence[Georeference | None],
    owner: int,
    index: int,
    model: str,
) -> OnLattice:
    """One map, resampled where its header asks for it."""
    as_it_is, base = _as_it_is(maps, georeferences, owner, index), maps[owner]
    one, start = as_it_is.map, as_it_is.start
    assert one is not None and base is not None
    if start is None or _is_near(start, base, model):
        return as_it_is
    canvas, whole = _canvas_of(one, start, base)
    if canvas is None:
        return as_it_is
    cut = "" if whole else " At the reference's pixel size it is too large: what lies around that was compared."
    back = start @ start.new_tensor([[1, 0, canvas.left], [0, 1, canvas.top], [0, 0, 1]])
    values, known = resample(one.values, one.mask, start, canvas)
    if int(known.count_nonzero()) < FEWEST_PIXELS or min(known.shape) < SMALLEST_SIDE:
        note = (
            f" Of its {one.mask.shape[1]} x {one.mask.shape[0]} pixels too few are left at the reference's pixel size."
        )
        return OnLattice(one, note=as_it_is.note + note)
    spread, mean = torch.std_mean(values[:, known])
    if float(spread) <= 0:
        return OnLattice(one, note=as_it_is.note)
    safe = torch.where(known, values, torch.zeros_like(values))
    carried = Prepared(safe, known, (float(mean), float(spread)))
    shift = start.new_tensor([[1, 0, -canvas.left], [0, 1, -canvas.top], [0, 0, 1]])
    return OnLattice(carried, shift, back, as_it_is.note + cut, as_it_is.error)


def _as_it_is(
    maps: Sequence[Prepared | None], georeferences: Sequence[Georeference | None], owner: int, index: int
) -> OnLattice:
    """One map in its own pixels, and where its header puts it."""
    base, one = maps[owner], maps[index]
    header, other = georeferences[owner], georeferences[index]
    assert base is not None and one is not None and header is not None and other is not None
    found = relation(header, _size(base), other, _size(one))
    if found is None:
        return OnLattice(one, note=" Its coordinates have no place in the reference's coordinate reference system.")
    note = ""
    if found.largest > INEXACT:
        note = (
            f" The two coordinate reference systems differ from an affine map by up to {found.largest:.2g} px here: "
            "reproject one of the maps (gdalwarp) for more."
        )
    start = torch.from_numpy(found.matrix).to(base.values)
    return OnLattice(one, start, note=note, error=found.rms / math.sqrt(area_of(start)))


def _is_near(start: Float[Tensor, "3 3"], base: Prepared, model: str) -> bool:
    """Can a model say this header, and a refinement correct it?"""
    frame = Frame(*_size(base), base.values)
    said = frame.to_pixels(MODELS[model].from_matrix(frame.from_pixels(start)).matrix())
    if not corner_error(said, start, *_size(base)) < EXPRESSED:
        return False
    scales = torch.linalg.svdvals(start[:2, :2])
    turn = math.atan2(float(start[1, 0] - start[0, 1]), float(start[0, 0] + start[1, 1]))
    upright = float(start[0, 0] * start[1, 1] - start[0, 1] * start[1, 0]) > 0 and abs(turn) <= NEAR_TURN
    return upright and float(scales[0]) <= NEAR_SCALE and float(scales[1]) >= 1 / NEAR_SCALE


def _canvas_of(one: Prepared, start: Float[Tensor, "3 3"], base: Prepared) -> tuple[Canvas | None, bool]:
    """The part of the lattice that holds a map, and whether it is all of it: where that is too much, what lies around
    the reference."""
    inverse = torch.linalg.inv(start)
    height, width = _size(one)
    outline = inverse.new_tensor([[0, 0, 1], [width - 1, 0, 1], [width - 1, height - 1, 1], [0, height - 1, 1]])
    where = (outline @ inverse.T)[:, :2]
    low, high = where.amin(0).ceil(), where.amax(0).floor()
    whole = float((high - low + 1).clamp(min=0).prod()) <= LARGEST
    if not whole:
        rows, columns = _size(base)
        margin = max(rows, columns)
        low = torch.maximum(low, low.new_tensor([-margin, -margin]))
        high = torch.minimum(high, high.new_tensor([columns + margin, rows + margin]))
    (left, top), (right, bottom) = low.tolist(), high.tolist()
    if right <= left or bottom <= top or (right - left) * (bottom - top) > LARGEST:
        return None, whole
    return Canvas(int(left), int(top), int(bottom - top) + 1, int(right - left) + 1), whole


def _size(one: Prepared) -> tuple[int, int]:
    return one.mask.shape[0], one.mask.shape[1]
