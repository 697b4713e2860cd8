"""What a run writes of coordinates: records, georeferenced rasters, corrected headers, merged maps of ROS."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.bends import Bend
from mslsq.alignment.canvas import Canvas, resample
from mslsq.alignment.coordinates.georeference import Georeference
from mslsq.alignment.coordinates.merging import merged, nearest_on
from mslsq.alignment.coordinates.reading import TAGS
from mslsq.alignment.coordinates.relating import relation
from mslsq.alignment.coordinates.tags import moved
from mslsq.alignment.coordinates.writing import can_hold, georeferenced_copy, write_beside, write_yaml
from mslsq.alignment.kinds import Kind
from mslsq.alignment.output_names import FOLDER, MapFiles
from mslsq.alignment.rasters import Raster, write_raster
from mslsq.alignment.result import Alignment
from mslsq.alignment.scenes import Scene
from mslsq.replacing import replacing

RESAMPLED, GEOTRANSFORM = OUTPUTS = "resampled", "geotransform"
"""What is written of every map: resampled onto the reference's grid, or as it is with a corrected header."""


def coordinates_record(scene: Scene, result: Alignment, index: int) -> dict[str, Any]:
    """A map's size, its own header, and its place in the world."""
    raster = scene.rasters[index]
    world = result.world[index] if result.world else None
    header = None if raster is None else raster.georeference
    return {
        "size": None if raster is None else [raster.mask.shape[1], raster.mask.shape[0]],
        "georeference": None if header is None else header.record(),
        "world": None if world is None else world.record(),
    }


def seen_on(
    raster: Raster, transform: Float[Tensor, "3 3"], canvas: Canvas, bend: Bend | None
) -> tuple[Float[Tensor, "channels rows columns"], Bool[Tensor, "rows columns"]]:
    """A map on the canvas; of a map of ROS by its cells."""
    if raster.kind.ros is None:
        return resample(raster.values, raster.mask, transform, canvas, bend)
    return nearest_on(canvas, raster.values, raster.mask, transform, bend)


def write_georeferenced(
    path: Path, values: Tensor, known: Tensor, kind: Kind, reference: Raster, canvas: Canvas
) -> list[Path]:
    """A raster on the canvas, with the georeference that the reference has there."""
    header = reference.georeference
    by_tags = header is None or header.source == TAGS  # tags that something beside the file overrules are not copied
    tagged = moved(reference.kind.geotags, canvas.left, canvas.top) if by_tags else ()
    path = write_raster(path, values, known, kind, tagged)
    if header is None:
        return [path]
    header = header.moved(canvas.left, canvas.top)
    if kind.ros is not None:
        return [path, write_yaml(path, canvas.height, header, kind.ros)]
    if kind.suffix in (".tif", ".tiff"):
        return [path] if tagged else georeferenced_copy(path, path, header)
    return [path, *write_beside(path, header)] if can_hold(path) else [path]


def write_headers(scene: Scene, result: Alignment, folder: Path, names: Sequence[MapFiles | None]) -> list[Path]:
    """`aligned/`: every map as it is, its pixels untouched, with the corrected header. Not of the reference, whose
    header is right.

    Raises:
        GeoreferenceError: a file cannot hold it.
    """
    written = []
    for i in result.aligned:
        raster, files = scene.rasters[i], names[i]
        if i == result.reference or raster is None or files is None:
            continue
        place = result.world[i] if result.world else None
        header = None if place is None else place.georeference
        assert header is not None and raster.path is not None  # the command has asked
        written += _with_header(raster, folder / FOLDER / files.raster, header)
    return written


def _with_header(raster: Raster, target: Path, header: Georeference) -> list[Path]:
    assert raster.path is not None
    if raster.kind.ros is None:
        return georeferenced_copy(raster.path, target, header)
    (picture,) = raster.beside
    copy = target.with_suffix(picture.suffix)
    with replacing(copy) as temporary:
        shutil.copyfile(picture, temporary)
    return [copy, write_yaml(copy, raster.mask.shape[0], header, raster.kind.ros)]


def merged_maps(
    reference: Raster | None, placed: Sequence[tuple[int, Raster]], result: Alignment, canvas: Canvas
) -> tuple[Float[Tensor, "1 rows columns"], Bool[Tensor, "rows columns"]] | None:
    """Maps of ROS merged as `merging` says; None where one of them is something else."""
    layers = []
    for i, raster in placed:
        if raster.kind.ros is None:
            return None
        seen = nearest_on(canvas, raster.values, raster.mask, result.transforms[i], result.bend(i))
        layers.append((*seen, raster.kind.ros))
    return None if reference is None or reference.kind.ros is None else merged(layers, reference.kind.ros)


def before(reference: Raster, raster: Raster) -> Float[Tensor, "3 3"]:
    """Where a map lies by the georeferences; pixel on pixel without."""
    if reference.georeference is not None and raster.georeference is not None:
        sizes = [(one.mask.shape[0], one.mask.shape[1]) for one in (reference, raster)]
        found = relation(reference.georeference, sizes[0], raster.georeference, sizes[1])
        if found is not None:
            return torch.from_numpy(found.matrix).to(raster.values)
    return torch.eye(3, dtype=raster.values.dtype, device="cpu")
