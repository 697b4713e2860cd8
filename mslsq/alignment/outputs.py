"""What a run writes, every file whole or not at all."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment import report
from mslsq.alignment.canvas import Canvas, blend, canvas_around, resample, shifted_georeference
from mslsq.alignment.metrics import corner_error
from mslsq.alignment.rasters import Kind, write_raster, write_text
from mslsq.alignment.result import CONVENTION, Alignment, MapStatus
from mslsq.alignment.scenes import Scene

MOSAIC_CONVENTION = {"convention": "the mosaic's first pixel is (left, top) in pixels of the reference; one pixel each"}
MASK_KIND = Kind(".png", np.dtype(np.uint8))


@dataclass(frozen=True)
class Aligned:
    """A scene and its result."""

    scene: Scene
    result: Alignment


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
            "gain": _number(result.gain[i]),
            "bias": _number(result.bias[i]),
            "ncc": _number(result.ncc[i]),
            "detail_ncc": _number(result.detail[i]),
            "overlap": _number(result.overlap[i]),
            "corner_sigma_px": _number(result.corner_sigma[i]),
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


def _number(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def write_transforms(
    items: Sequence[Aligned], folder: Path, options: dict[str, Any], canvases: dict[str, Canvas]
) -> Path:
    """`transforms.json`: every map's matrix with its convention in words, gain, bias, status."""
    path = folder / "transforms.json"
    content = {
        "convention": CONVENTION,
        "options": options,
        "mosaics": {name: MOSAIC_CONVENTION | asdict(canvas) for name, canvas in canvases.items()},
        "maps": [record for item in items for record in describe(item)],
    }
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
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
    if errors:
        summary |= {
            "median_corner_error_px": float(np.median(errors)),
            "largest_corner_error_px": float(np.max(errors)),
            "share_below_0.1_px": sum(error < 0.1 for error in errors) / len(moved),
        }
    path = folder / "metrics.json"
    write_text(path, json.dumps({"summary": summary, "maps": records}, indent=2) + "\n")
    return path


def write_maps(item: Aligned, folder: Path) -> list[Path]:
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
        values, known = resample(raster.values, raster.mask, result.transforms[i], Canvas(0, 0, height, width))
        stem = (
            scene.names[i].removesuffix(raster.kind.suffix) if raster.kind.suffix in scene.names[i] else scene.names[i]
        )
        target = folder / "aligned" / f"{stem}{raster.kind.suffix}"
        written.append(write_raster(target, values, known, raster.kind, reference.kind.geotags))
        mask_target = folder / "aligned" / f"{stem}.mask.png"
        written.append(
            write_raster(mask_target, 255.0 * known[None].to(values.dtype), torch.ones_like(known), MASK_KIND)
        )
    return written


def mosaic_of(item: Aligned) -> tuple[Canvas, Float[Tensor, "c h w"], Bool[Tensor, "h w"]]:
    """The mean of all placed maps, in the reference's values, on the canvas that holds them all."""
    scene, result = item.scene, item.result
    placed = [(i, raster) for i in result.aligned if (raster := scene.rasters[i]) is not None]
    reference = scene.rasters[result.reference]
    assert reference is not None
    canvas = canvas_around(
        [(raster.mask.shape[0], raster.mask.shape[1]) for _, raster in placed],
        [result.transforms[i] for i, _ in placed],
        (reference.mask.shape[0], reference.mask.shape[1]),
    )
    bands = {raster.values.shape[0] for _, raster in placed}
    layers = []
    for i, raster in placed:
        source = raster.values if len(bands) == 1 else raster.luminance()
        values, known = resample(source, raster.mask, result.transforms[i], canvas)
        layers.append((result.gain[i] * values + result.bias[i], known))
    return canvas, *blend(layers)


def comparisons_of(item: Aligned) -> list[report.Comparison]:
    """What `report.overlay` shows: each placed map on the reference's grid, before and after."""
    scene, result = item.scene, item.result
    reference = scene.rasters[result.reference]
    assert reference is not None
    canvas = Canvas(0, 0, *reference.mask.shape)
    truth = describe(item)
    out = []
    for i in result.aligned:
        raster = scene.rasters[i]
        if i == result.reference or raster is None:
            continue
        panels = []
        for transform in (torch.eye(3, dtype=raster.values.dtype), result.transforms[i]):
            values, known = resample(raster.luminance(), raster.mask, transform, canvas)
            panels.append((result.gain[i] * values[0] + result.bias[i], known))
        caption = f"correlation {float(result.ncc[i]):.3f}"
        if truth[i].get("corner_error_px") is not None:
            caption += f", corner error {truth[i]['corner_error_px']:.3f} px"
        out.append(
            report.Comparison(scene.names[i], reference.luminance()[0], reference.mask, panels[0], panels[1], caption)
        )
    return out


def write_all(items: Sequence[Aligned], folder: Path, seconds: float, options: dict[str, Any]) -> list[Path]:
    """Everything, for scenes that have at least a usable reference. Returns the paths written."""
    usable = [item for item in items if MapStatus(int(item.result.status[item.result.reference])).ok]
    written = [write_metrics(items, folder, seconds)]
    canvases: dict[str, Canvas] = {}
    pictures, shown, series = [], [], []
    for item in usable:
        written += write_maps(item, folder)
        canvas, values, known = mosaic_of(item)
        canvases[item.scene.name] = canvas
        reference = item.scene.rasters[item.result.reference]
        assert reference is not None
        pictures.append((f"{item.scene.name}: mosaic of {len(item.result.aligned)} maps", values, known))
        if values.shape[0] == reference.values.shape[0] and reference.kind.suffix != ".png":
            name = "mosaic" if len(items) == 1 else f"mosaic-{item.scene.name}"
            written.append(
                write_raster(
                    folder / name, values, known, reference.kind, shifted_georeference(reference.kind.geotags, canvas)
                )
            )
        shown += comparisons_of(item)
        for i in item.result.aligned:
            stages = [stage for stage in item.result.stages if stage.map == i]
            if stages:
                series.append((item.scene.names[i], stages))
    written.append(write_transforms(items, folder, options, canvases))
    if pictures:
        written.append(report.mosaics(pictures, folder / "mosaic.png"))
    if shown:
        written.append(report.overlay(shown[:12], folder / "overlay.png"))
        written.append(report.convergence(series, folder / "convergence.png"))
    return written
