"""What a run on files beyond memory writes: the figures, the mosaic with its coverage, a report of reduced rasters."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mslsq.alignment import report
from mslsq.alignment.big.align_files import FilesAlignment, coarse_view
from mslsq.alignment.big.files import RasterFile
from mslsq.alignment.big.mosaic import write_mosaic
from mslsq.alignment.coordinates.outputs import GEOTRANSFORM, write_headers
from mslsq.alignment.kinds import Kind
from mslsq.alignment.output_names import output_names
from mslsq.alignment.outputs import (
    Aligned,
    canvas_of,
    chapter_of,
    describe,
    mosaic_of,
    write_metrics,
    write_transforms,
)
from mslsq.alignment.rasters import Raster
from mslsq.alignment.scenes import Scene
from mslsq.alignment.tables import write_csv

MOSAIC = "mosaic.tif"
COVERAGE = "mosaic_coverage.tif"

REDUCED = Kind(".tif", np.dtype(np.float32))


def header_scene(name: str, names: list[str], files: list[RasterFile | None], problems: dict[int, str]) -> Scene:
    """Sizes, georeferences and paths of files as a scene: its pixels are one number, seen as often as there are
    pixels, and stand for nothing."""
    rasters: list[Raster | None] = []
    for file, title in zip(files, names, strict=True):
        if file is None:
            rasters.append(None)
            continue
        values = torch.zeros((), device="cpu").expand(len(file.bands), *file.size)
        mask = torch.ones((), dtype=torch.bool, device="cpu").expand(*file.size)
        rasters.append(Raster(title, values, mask, file.kind, file.georeference, file.note, path=file.path))
    return Scene(name, names, rasters, problems, files=[file.path for file in files if file is not None])


def write_files(
    result: FilesAlignment,
    scene: Scene,
    folder: Path,
    seconds: float,
    options: dict[str, Any],
    output: str,
    blend: str,
    progress: Callable[[int, int], None] | None = None,
    overviews: bool = False,
) -> tuple[list[Path], list[str]]:
    """Everything, and what is to be said of it. The figures come first, the mosaic last: where the disk is full, the
    alignment itself is not lost.

    Raises:
        NotWrittenError: a file could not be written; what was written before is whole.
        RasterError: a file is damaged where the mosaic reads it.
    """
    item, notes = Aligned(scene, result, seconds), list(result.notes)
    names = output_names([scene], [result.reference])
    canvas = canvas_of(item, whole=True)
    planned = names if output == GEOTRANSFORM else [[None] * len(scene.names)]
    written = [
        write_metrics([item], folder, seconds),
        write_csv(describe(item), folder / "metrics.csv"),
        write_transforms([item], folder, options, {scene.name: canvas}, planned, output),
    ]
    if output == GEOTRANSFORM:
        written += write_headers(scene, result, folder, names[0])
    else:
        notes.append("No map is written by itself on the reference's grid (aligned/): maps are read in windows.")
    if max(result.coarse.factors if result.coarse is not None else [1]) > 1:
        notes.append(
            "Pictures and histograms of the report are of reduced rasters: means of blocks "
            "have less noise than single pixels."
        )
    chapter = _chapter(result, scene, item)
    written += report.write_pictures([chapter], folder)
    written.append(report.write_page([chapter], folder / "report.html", options | {"used": " ".join(notes)}, seconds))
    mosaic = write_mosaic(result, folder / MOSAIC, blend=blend, overviews=overviews, progress=progress)
    return [*written, mosaic.mosaic, mosaic.coverage], [*notes, *mosaic.notes]


def _chapter(result: FilesAlignment, scene: Scene, item: Aligned) -> report.Chapter:
    """Pictures of the reduced rasters at the places that were found, figures of the files."""
    coarse = result.coarse
    assert coarse is not None
    rasters: list[Raster | None] = []
    for i, (values, mask) in enumerate(zip(coarse.values, coarse.masks, strict=True)):
        if values is None or mask is None:
            rasters.append(None)
            continue
        file = coarse.files[i]
        header = file and file.georeference and file.georeference.reduced(coarse.factors[i])
        rasters.append(Raster(scene.names[i], values, mask, REDUCED, header))
    small = Aligned(Scene(scene.name, scene.names, rasters), coarse_view(result), item.seconds)
    chapter = chapter_of(small, mosaic_of(small, canvas_of(small)))
    return replace(chapter, records=describe(item), result=result)
