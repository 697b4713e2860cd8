"""What a run writes, every file whole or not at all."""

import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment import report
from mslsq.alignment.canvas import EVERYWHERE, LARGEST_CANVAS, Canvas, blend, canvas_around, resample
from mslsq.alignment.coordinates.outputs import (
    GEOTRANSFORM,
    RESAMPLED,
    before,
    coordinates_record,
    merged_maps,
    seen_on,
    write_georeferenced,
    write_headers,
)
from mslsq.alignment.coordinates.placement import CONVENTION as WORLD_CONVENTION
from mslsq.alignment.measures import corner_error
from mslsq.alignment.output_names import FOLDER, MapFiles, mosaic_names, output_names
from mslsq.alignment.rasters import Kind, writable, write_raster
from mslsq.alignment.result import CONVENTION, Alignment, MapStatus
from mslsq.alignment.scenes import Scene
from mslsq.alignment.tables import storable, write_csv
from mslsq.replacing import write_text

MOSAIC_CONVENTION = {"convention": "the mosaic's first pixel is (left, top) in pixels of the reference; one pixel each"}
MASK_KIND = Kind(".png", np.dtype(np.uint8))
CLIPPED = 0.001
"""The share of a mosaic's numbers that may leave the range of its type without a word: some bright pixels."""


@dataclass(frozen=True)
class Aligned:
    """A scene and its result."""

    scene: Scene
    result: Alignment
    seconds: float | None = None
    """That aligning took."""


def describe(item: Aligned) -> list[dict[str, Any]]:
    """One record per map, of plain numbers and words; NaN becomes null."""
    records = []
    scene, result = item.scene, item.result
    for i, name in enumerate(scene.names):
        status = MapStatus(int(result.status[i]))
        record: dict[str, Any] = {
            "scene": scene.name,
            "name": name,
            "status": status.name.lower(),
            "reason": result.reasons[i],
            "reference": scene.names[result.reference],
            "placed_on": scene.names[int(result.parent[i])] if int(result.parent[i]) >= 0 else None,
            "matrix": result.transforms[i].tolist() if status.ok else None,
            "bend": _bend_record(result, i),
            "metric": result.metrics[i] or None,
            "fitting_model": (result.fitting[i] if result.fitting else "") or None,
            "gain": _number(result.gain[i]),
            "bias": _number(result.bias[i]),
            "ncc": _number(result.ncc[i]),
            "detail_ncc": _number(result.detail[i]),
            "lead": _number(result.lead[i]),
            "overlap": _number(result.overlap[i]),
            "corner_sigma_px": _number(result.corner_sigma[i]),
            **coordinates_record(scene, result, i),
            "tangent_covariance": result.covariance[i].tolist()
            if bool(result.covariance[i].isfinite().all())
            else None,
        }
        if scene.truth is not None:
            truth, raster = scene.truth[i], scene.rasters[result.reference]
            assert raster is not None
            record["true_matrix"] = truth.transform.tolist()
            record["true_gain"], record["true_bias"] = truth.gain, truth.bias
            error = corner_error(result.transforms[i], truth.transform, *raster.mask.shape) if status.ok else math.nan
            record["corner_error_px"] = error if math.isfinite(error) else None
        records.append(record)
    return records


def _bend_record(result: Alignment, index: int) -> dict[str, Any] | None:
    """The grid of shifts of a map that is bent, with its convention in words."""
    bend = result.bend(index)
    return None if bend is None else bend.record()


def _number(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def write_transforms(
    items: Sequence[Aligned],
    folder: Path,
    options: dict[str, Any],
    canvases: dict[str, Canvas],
    names: Sequence[Sequence[MapFiles | None]],
    output: str = RESAMPLED,
) -> Path:
    """`transforms.json`: every map's matrix with its convention in words, gain, bias, status, and its files."""
    path = folder / "transforms.json"
    maps = []
    for item, planned in zip(items, names, strict=True):
        for i, record in enumerate(describe(item)):
            files: Sequence[str] | None = planned[i] if i in item.result.aligned else None
            if output == GEOTRANSFORM and files is not None:
                files = () if i == item.result.reference else files[:1]
            maps.append(record | {"files": [f"{FOLDER}/{file}" for file in files or ()]})
    content = {
        "convention": CONVENTION,
        "world_convention": WORLD_CONVENTION,
        "options": options,
        "mosaics": {name: MOSAIC_CONVENTION | asdict(canvas) for name, canvas in canvases.items()},
        "maps": maps,
    }
    write_text(path, storable(json.dumps(content, indent=2, ensure_ascii=False) + "\n"))
    return path


def write_metrics(items: Sequence[Aligned], folder: Path, seconds: float) -> Path:
    """`metrics.json`: per map and in all, the correlations, overlaps and, where the truth is known, errors."""
    keep = ("scene", "name", "status", "ncc", "detail_ncc", "overlap", "corner_sigma_px", "corner_error_px")
    records = [{key: record[key] for key in keep if key in record} for item in items for record in describe(item)]
    moved = [record for record in records if record["status"] != "reference"]
    errors = [record["corner_error_px"] for record in moved if record.get("corner_error_px") is not None]
    summary: dict[str, Any] = {
        "maps": len(moved),
        "aligned": sum(record["status"] == "aligned" for record in moved),
        "seconds": round(seconds, 3),
    }
    sigmas = [record["corner_sigma_px"] for record in moved if record["corner_sigma_px"] is not None]
    if sigmas:
        summary["median_corner_sigma_px"] = float(np.median(sigmas))
    if errors:
        summary |= {
            "median_corner_error_px": float(np.median(errors)),
            "largest_corner_error_px": float(np.max(errors)),
            "share_below_0.1_px": sum(error < 0.1 for error in errors) / len(moved),
        }
    path = folder / "metrics.json"
    write_text(path, json.dumps({"summary": summary, "maps": records}, indent=2) + "\n")
    return path


def write_maps(item: Aligned, folder: Path, names: Sequence[MapFiles | None]) -> list[Path]:
    """`aligned/`: every map on the reference's grid in its own values and kind, and its mask; georeferenced as the
    reference is."""
    scene, result = item.scene, item.result
    reference = scene.rasters[result.reference]
    assert reference is not None
    height, width = reference.mask.shape
    written = []
    for i in result.aligned:
        raster = scene.rasters[i]
        assert raster is not None
        canvas = Canvas(0, 0, height, width)
        values, known = seen_on(raster, result.transforms[i], canvas, result.bend(i))
        files, kind = names[i], writable(raster.kind, height, width)
        assert files is not None
        target, mask_target = folder / FOLDER / files.raster, folder / FOLDER / files.mask
        written += write_georeferenced(target, values, known, kind, reference, canvas)
        written.append(
            write_raster(mask_target, 255.0 * known[None].to(values.dtype), torch.ones_like(known), MASK_KIND)
        )
    return written


def canvas_of(item: Aligned, whole: bool = False) -> Canvas:
    """What holds all placed maps, within `LARGEST_CANVAS` along a side unless it is to be the whole."""
    scene, result = item.scene, item.result
    placed = [(i, raster) for i in result.aligned if (raster := scene.rasters[i]) is not None]
    reference = scene.rasters[result.reference]
    assert reference is not None
    return canvas_around(
        [(raster.mask.shape[0], raster.mask.shape[1]) for _, raster in placed],
        [result.transforms[i] for i, _ in placed],
        (reference.mask.shape[0], reference.mask.shape[1]),
        EVERYWHERE if whole else LARGEST_CANVAS,
    )


def mosaic_of(item: Aligned, canvas: Canvas) -> tuple[Float[Tensor, "c h w"], Bool[Tensor, "h w"]]:
    """The mean of all placed maps, in the reference's values, on the canvas that holds them all."""
    scene, result = item.scene, item.result
    placed = [(i, raster) for i in result.aligned if (raster := scene.rasters[i]) is not None]
    bands = {raster.values.shape[0] for _, raster in placed}
    reference, layers = scene.rasters[result.reference], []
    together = merged_maps(reference, placed, result, canvas)
    if together is not None:
        return together
    for i, raster in placed:
        source = raster.values if len(bands) == 1 and raster.kind.ros is None else raster.luminance()
        values, known = resample(source, raster.mask, result.transforms[i], canvas, result.bend(i))
        layers.append((result.gain[i] * values + result.bias[i], known))
    return blend(layers)


def comparisons_of(item: Aligned) -> Iterator[report.Comparison]:
    """What reports show: each placed map on the reference's grid, before and after, one at a time."""
    scene, result = item.scene, item.result
    reference = scene.rasters[result.reference]
    assert reference is not None
    canvas = Canvas(0, 0, *reference.mask.shape)
    truth, unit = describe(item), reference.kind.unit
    for i in result.aligned:
        raster = scene.rasters[i]
        if i == result.reference or raster is None:
            continue
        panels = []
        for transform, bend in (
            (before(reference, raster), None),
            (result.transforms[i], result.bend(i)),
        ):
            values, known = resample(raster.luminance(), raster.mask, transform, canvas, bend)
            panels.append((result.gain[i] * values[0] + result.bias[i], known))
        caption = f"correlation {float(result.ncc[i]):.3f}"
        if truth[i].get("corner_error_px") is not None:
            caption += f", corner error {truth[i]['corner_error_px']:.3f} px"
        grey, mask = reference.luminance()[0], reference.mask
        yield report.Comparison(scene.names[i], grey, mask, panels[0], panels[1], caption, unit)


def chapter_of(item: Aligned, mosaic: tuple[Tensor, Tensor] | None) -> report.Chapter:
    """What the report shows of one scene; pictures where its reference can be used."""
    usable = MapStatus(int(item.result.status[item.result.reference])).ok and mosaic is not None
    records, result = describe(item), item.result
    sheets = [report.sheet_of(one) for one in comparisons_of(item)] if usable else []
    certainty = {record["name"]: record["detail_ncc"] or 0.0 for record in records}
    picture = report.picture_of(*mosaic) if mosaic is not None else None
    return report.Chapter(item.scene.name, records, result, sheets, picture, item.seconds, certainty)


def write_all(
    items: Sequence[Aligned], folder: Path, seconds: float, options: dict[str, Any], output: str = RESAMPLED
) -> list[Path]:
    """Everything, for scenes that have at least a usable reference. Returns the paths written. `output` says what
    becomes of the maps: resampled onto the reference's grid, or as they are with a corrected header.

    The figures come first: where the disk is full after them, the alignment itself is not lost.

    Raises:
        NotWrittenError (an OSError): a file could not be written; it is named, and what was written before is whole.
    """
    usable = [k for k, item in enumerate(items) if MapStatus(int(item.result.status[item.result.reference])).ok]
    scenes, references = [item.scene for item in items], [item.result.reference for item in items]
    names, mosaics = output_names(scenes, references), mosaic_names(scenes, references)
    canvases = {k: canvas_of(items[k]) for k in usable}
    named = {items[k].scene.name: canvas for k, canvas in canvases.items()}
    written = [
        write_metrics(items, folder, seconds),
        write_csv([record for item in items for record in describe(item)], folder / "metrics.csv"),
        write_transforms(items, folder, options, named, names, output),
    ]
    chapters = []
    for k, item in enumerate(items):
        if k not in usable:
            chapters.append(chapter_of(item, None))
            continue
        canvas = canvases[k]
        if output == GEOTRANSFORM:
            written += write_headers(item.scene, item.result, folder, names[k])
        else:
            written += write_maps(item, folder, names[k])
        values, known = mosaic_of(item, canvas)
        chapters.append(chapter_of(item, (values, known)))
        reference = item.scene.rasters[item.result.reference]
        assert reference is not None
        kind = writable(reference.kind, canvas.height, canvas.width)
        if values.shape[0] == reference.values.shape[0] and kind.suffix != ".png":
            path = folder / mosaics[k]
            written += write_georeferenced(path, values, known, kind, reference, canvas)
            _say_what_was_clipped(path, values, known, kind)
    return [
        *written,
        *report.write_pictures(chapters, folder),
        report.write_page(chapters, folder / "report.html", options, seconds),
    ]


def _say_what_was_clipped(path: Path, values: Tensor, known: Tensor, kind: Kind) -> None:
    """A map's gain and bias can take it out of the range of the reference's whole numbers."""
    if not np.issubdtype(kind.dtype, np.integer) or not bool(known.any()):
        return
    limits, data = np.iinfo(kind.dtype), values[:, known]
    share = float(((data < limits.min - 0.5) | (data > limits.max + 0.5)).double().mean())
    if share > CLIPPED:
        logging.getLogger(__name__).warning(
            f"{path.name}: {share:.1%} of the numbers, {float(data.min()):.4g} to {float(data.max()):.4g} in the "
            f"reference's values, are beyond what {kind.dtype} holds ({limits.min} to {limits.max}) and are clipped; "
            "with a reference of floating-point numbers they are kept."
        )
