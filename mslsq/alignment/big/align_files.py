"""The front door for rasters that do not fit in memory: `align_files(paths)`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.alignment.big.coarse import Coarse, coarse_alignment
from mslsq.alignment.big.files import RasterFile, without_georeference
from mslsq.alignment.big.memory import affordable_tiles, bytes_of
from mslsq.alignment.big.records import TileLevel
from mslsq.alignment.big.refining import Refining
from mslsq.alignment.big.tiles import SIDE
from mslsq.alignment.coordinates.placement import world_placements
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.joint.state import in_values
from mslsq.alignment.kinds import RasterError
from mslsq.alignment.linking import Linker
from mslsq.alignment.metrics import SquaredDifference
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.options import AlignmentOptionError, Options, checked_metric
from mslsq.alignment.prepared import prepare
from mslsq.alignment.result import Alignment, Stage
from mslsq.alignment.tangents import adjoint
from mslsq.alignment.uncertainty import corner_sigma
from mslsq.validation import integer, suggestion

PASSED_ON = (
    "model", "value", "levels", "loss", "min_overlap", "min_ncc", "min_detail", "min_lead", "prefilter", "max_steps",
    "joint", "metric", "scale_range",
)  # fmt: skip
"""Options of `align` that mean the same here."""


@dataclass(frozen=True)
class FilesAlignment(Alignment):
    """The result of `align_files`: an `Alignment` whose pixels are those of the files. Its `ncc`, `detail`, `lead` and
    `overlap`, by which maps are believed, are those of the reduced rasters; standard errors are of the tiles that were
    used, and of nothing that was not."""

    files: list[RasterFile | None] = field(repr=False, default_factory=list)
    """What was aligned; None where a file cannot be read."""
    tile_levels: list[TileLevel] = field(default_factory=list)
    """What every level of the refinement used, in the order of the solves."""
    notes: list[str] = field(default_factory=list)
    """In words: what was reduced, which tiles were used, and what was not done."""
    coarse: Coarse | None = field(repr=False, default=None)
    """The reduced rasters and their alignment."""

    def message(self) -> str:
        """One line per map, and what was used."""
        return "\n".join([super().message(), *self.notes])


def align_files(
    paths: Sequence[str | Path],
    *,
    reference: int = 0,
    memory: str | float = "4GB",
    tiles: int = 128,
    init: Any = "auto",
    georeference: bool = True,
    nodata: float | None = None,
    progress: Callable[[Stage], None] | None = None,
    **options: Any,
) -> FilesAlignment:
    """Place rasters that do not fit in memory on one of them, reading windows of their files (needs rasterio).

    The rasters are reduced, from overviews or by the means of blocks, to a million pixels, and `align` places those
    with all of its evidence. Then tiles of 256 x 256 pixels are read where both maps have data: those with the largest
    information about the transform, spread over the overlap (`mslsq.alignment.big.tiles`). One solve over the tiles of
    all links refines all maps together, from pixels of eight to the files' own; a map is compared by one channel.

    Args:
        paths: of GeoTIFFs, or of any rasters that GDAL reads; their sizes may differ. Of one coordinate reference
            system if they have georeferences. A file that cannot be read is left out with its reason.
        reference: index of the file on which all others are placed.
        memory: that the process may take, as "4GB" or a number of bytes: fewer tiles are used where it is small.
        tiles: of all links together, at most; more of them make standard errors smaller by the root of their number.
        init: as for `align`, in pixels of the files.
        georeference: are headers the starts, and is `result.world` wanted?
        nodata: a number for no data beside those that the files name; overviews, which may hold means of it, are then
            not read.
        progress: called with a `Stage` after every solve, those of reduced rasters first.
        **options: model (but "piecewise"), value, levels, loss, min_overlap, min_ncc, min_detail, min_lead, prefilter,
            max_steps, joint, metric ("squared" alone) and scale_range, as for `align`.

    Returns:
        `FilesAlignment`, in pixels of the files; its `notes` say what was used. Standard errors are those of the tiles'
        scatter (a sandwich with whole tiles as cells), so that errors which are common to a tile are in them. Where a
        finer level is not believed, the place and its standard errors are those of the last one that was.

    Raises:
        AlignmentOptionError: an option is not valid or has no meaning here, or the files are of several CRS.
        RasterError: rasterio is missing, or the reference cannot be read.
    """
    paths = [Path(path) for path in paths]
    if len(paths) < 2:
        raise AlignmentOptionError(f"align_files: {len(paths)} files were given; at least two are needed.")
    integer("align_files: reference", reference, 0, len(paths) - 1, error=AlignmentOptionError)
    integer("align_files: tiles", tiles, 4, error=AlignmentOptionError)
    budget = bytes_of(memory)
    _refuse_what_is_not_done(options)
    files, problems = opened(paths, georeference, nodata)
    if files[reference] is None:
        raise RasterError(f"align_files: the reference cannot be used: {problems[reference]}")
    coarse = coarse_alignment(files, problems, reference, init, progress, options)
    affordable = affordable_tiles(budget, tiles)
    refining = Refining(coarse, *_linker(coarse, options), affordable, progress)
    if any(i != reference for i in coarse.result.aligned):
        refining.run()
    notes = _notes(coarse, refining)
    if affordable < tiles:
        notes.append(f"memory={memory} has room for {affordable} tiles of the {tiles} that were asked for.")
    return _result(coarse, refining, notes, georeference)


def opened(
    paths: Sequence[Path], georeference: bool = True, nodata: float | None = None
) -> tuple[list[RasterFile | None], dict[int, str]]:
    """The headers of all files, and why one cannot be read."""
    files: list[RasterFile | None] = []
    problems: dict[int, str] = {}
    for index, path in enumerate(paths):
        try:
            file = RasterFile.open(path, nodata)
            files.append(file if georeference else without_georeference(file))
        except RasterError as error:
            files.append(None)
            problems[index] = str(error)
    return files, problems


def _refuse_what_is_not_done(options: dict[str, Any]) -> None:
    for name in options:
        if name not in PASSED_ON:
            near = suggestion(name, PASSED_ON)
            raise AlignmentOptionError(
                f"align_files: it has no option {name!r}.{near} Of align's it takes {', '.join(PASSED_ON)}."
            )
    if options.get("model") == "piecewise":
        raise AlignmentOptionError("align_files: model='piecewise' needs maps in memory; use 'affine' or 'homography'.")
    metric = checked_metric(options.get("metric", "squared"), options.get("value", "gain_bias"))
    if options.get("metric", "squared") == "auto" or metric != SquaredDifference():
        raise AlignmentOptionError(
            f"align_files: metric={options['metric']!r} needs maps in memory; tiles are compared by values ('squared')."
        )


def _linker(coarse: Coarse, options: dict[str, Any]) -> tuple[Linker, Options]:
    """The units of the values, and the options of the solves."""
    names = ("model", "value", "loss", "min_overlap", "min_ncc", "min_detail", "prefilter", "max_steps")
    given = {name: options[name] for name in names if name in options}
    if given.get("loss") in ("l2", "none"):
        given["loss"] = None
    found = Options(**given)
    return Linker(prepare(coarse.values, coarse.masks)[0], found, "auto"), found


def _notes(coarse: Coarse, refining: Refining) -> list[str]:
    """What was used and what was not, in words."""
    sizes = dict.fromkeys(coarse.factors)
    words = ", ".join(f"1/{factor}" for factor in sizes)
    notes = [f"Believed on rasters reduced to {words} of their sides." if any(f > 1 for f in sizes) else
             "Believed on the whole rasters: they are small."]  # fmt: skip
    if refining.levels:
        last = refining.levels[-1]
        notes.append(
            f"The last level, pixels of {last.factor}, used {last.words}, {SIDE} x {SIDE} each: {last.samples:,} "
            "samples, each tile seen from both of its maps."
        )
    elif any(i != coarse.result.reference for i in coarse.result.aligned):
        notes.append("No tiles were used: places and standard errors are those of the reduced rasters.")
    return notes + refining.doubts


def _result(coarse: Coarse, refining: Refining, notes: list[str], georeference: bool) -> FilesAlignment:
    found = coarse.result
    transforms, gain, bias = found.transforms.clone(), found.gain.clone(), found.bias.clone()
    covariance, sigma, reasons = found.covariance.clone(), found.corner_sigma.clone(), list(found.reasons)
    frame, kind = refining.coordinates.frame, MODELS[found.model]
    spread = refining.spread()
    for i in found.aligned:
        if i == found.reference:
            continue
        if spread is None or i in refining.held:
            transforms[i] = coarse.transform(i)
            covariance[i] = _enlarged_covariance(coarse, covariance[i], frame, kind.tangent_dim)
            sigma[i] = float(sigma[i]) * coarse.factors[found.reference]
            reasons[i] += " Of the reduced rasters alone."
            continue
        warp = torch.from_numpy(refining.state.warps[i])
        transforms[i] = frame.to_pixels(warp)
        covariance[i] = torch.from_numpy(spread[i])
        sigma[i] = corner_sigma(Estimate(warp, warp.new_zeros(2), "tiles"), covariance[i], frame, found.model)
        gain[i], bias[i] = in_values(refining.units(i), *refining.state.values[i])
        reasons[i] += _reason(refining, i)
    sizes = [None if file is None else file.size for file in coarse.files]
    headers = [None if file is None else file.georeference for file in coarse.files]
    world = []
    if georeference and any(headers):
        places = [transforms[i].numpy() if i in found.aligned else None for i in range(len(sizes))]
        world = world_placements(places, headers, sizes, found.reference, sigma.tolist())
    fields = {name: getattr(found, name) for name in Alignment.__dataclass_fields__}
    fields |= {"transforms": transforms, "gain": gain, "bias": bias, "covariance": covariance, "corner_sigma": sigma}
    fields |= {"reasons": reasons, "world": world, "sizes": sizes, "stages": [*found.stages, *refining.stages]}
    return FilesAlignment(**fields, files=list(coarse.files), tile_levels=refining.levels, notes=notes, coarse=coarse)


def _reason(refining: Refining, index: int) -> str:
    used = [(n, of) for pair, (n, of) in refining.used.items() if index in pair]
    correlation, detail, below = refining.evidence(index)
    factor = refining.levels[-1].factor
    words = f" Refined by {sum(n for n, _ in used):,} tiles of {sum(of for _, of in used):,} at pixels of {factor}"
    words += f" (correlation {correlation:.3f}, in detail {detail:.3f})." if detail == detail else "."
    if below > 0.1:
        words += f" In {below:.0%} of them detail does not agree: noise, change, or a map that bends."
    return words


def _enlarged_covariance(coarse: Coarse, block: Tensor, frame: Frame, tangent: int) -> Tensor:
    """That of the reduced reference's normalised coordinates in those of the file: Ad(C) Σ Ad(C)ᵀ."""
    values = coarse.values[coarse.result.reference]
    assert values is not None
    small, factor = Frame(values.shape[-2], values.shape[-1], frame.centre), coarse.factors[coarse.result.reference]
    x, y = ((factor * small.centre + (factor - 1) / 2 - frame.centre) / frame.half).tolist()
    wider = factor * small.half / frame.half
    between = np.array([[wider, 0, x], [0, wider, y], [0, 0, 1]])
    turned = torch.from_numpy(adjoint(between, tangent))
    return turned @ block @ turned.T


def coarse_view(result: FilesAlignment) -> Alignment:
    """The same places between the reduced rasters, for pictures of them."""
    coarse = result.coarse
    assert coarse is not None
    into = coarse.enlarged(result.reference)
    moved = [torch.linalg.inv(coarse.enlarged(i)) @ one @ into for i, one in enumerate(result.transforms)]
    return replace(coarse.result, transforms=torch.stack([one / one[2, 2] for one in moved]))
