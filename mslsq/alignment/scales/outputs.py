"""What is written of scale maps and fields: numbers, an archive, a picture."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from mslsq.alignment.scale_scene import RatioScene, ViewScene, relative_error
from mslsq.alignment.scales.fields import ScaleFields
from mslsq.alignment.scales.grid import Grid
from mslsq.alignment.scales.result import ScaleSync
from mslsq.plotting import figure_of, save_figure
from mslsq.replacing import replacing


def figures_of(scene: RatioScene, result: ScaleSync) -> dict[str, Any]:
    """The numbers of `metrics.json`."""
    answered = torch.isfinite(result.scales)
    figures: dict[str, Any] = {
        "scene": scene.name,
        "maps": len(result.scales),
        "cells": result.status.numel(),
        "cells_answered": int(answered.any(0).sum()),
        "cells_answered_for_all_maps": int(answered.all(0).sum()),
        "scales_answered": int(answered.sum()),
        "scales_supported": int((result.support >= 1.5).sum()),
        "ratios_observed": float((torch.isfinite(scene.ratios) & (scene.ratios > 0)).double().mean()),
        "ratios_believed": float((result.inliers > 0.5).double().mean()),
        "noise": result.noise,
    }
    if scene.truth is not None:
        error = relative_error(scene.truth, result.scales)[1:][_comparable(result)[1:]]
        figures["median_relative_error"] = float(error.median())
        figures["share_within_1_percent"] = float((error < 0.01).double().mean())
        figures["share_within_5_percent"] = float((error < 0.05).double().mean())
    return figures


def _comparable(result: ScaleSync) -> Bool[Tensor, "maps height width"]:
    """Where a scale is relative to map 0."""
    return torch.isfinite(result.scales) & (result.component == 0)


def figures_of_fields(scene: ViewScene, result: ScaleFields) -> dict[str, Any]:
    """The numbers of `metrics.json` for views."""
    figures: dict[str, Any] = {
        "scene": scene.name,
        "views": len(result.scales),
        "sightings": int(result.sightings.sum()),
        "believed": float((result.believed * result.sightings).sum() / result.sightings.sum().clamp(min=1)),
        "noise_before": result.noise_before,
        "noise": result.noise,
        "status": result.status.name,
    }
    if scene.truth is not None:
        truth = scene.truth / scene.truth[result.reference]
        error = relative_error(truth, result.scales)[[i for i in range(len(truth)) if i != result.reference]]
        figures["median_relative_error"] = float(error.median())
        figures["share_within_1_percent"] = float((error < 0.01).double().mean())
    return figures


def write_scales(scene: RatioScene, result: ScaleSync, folder: Path) -> list[Path]:
    """`scales.npz` and `scales.png` of maps."""
    archive = folder / "scales.npz"
    with replacing(archive) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(
            stream,
            scales=result.scales.numpy(),
            status=result.status.numpy(),
            component=result.component.numpy(),
            standard_errors=result.standard_errors.numpy(),
            support=result.support.numpy(),
            inliers=result.inliers.numpy(),
            pairs=scene.pairs.numpy(),
        )
    return [archive, _picture(scene, result, folder / "scales.png")]


def _picture(scene: RatioScene, result: ScaleSync, path: Path) -> Path:
    """A row per map: the scale found, the true one and the error where known."""
    flat = result.scales.flatten(2) if result.scales.ndim > 3 else result.scales
    flat = flat if flat.ndim == 3 else flat[:, None, :]
    finite = flat[torch.isfinite(flat)]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    rows = [[(f"map {i}: scale found", scale, (low, high), "viridis")] for i, scale in enumerate(flat)]
    if scene.truth is not None:
        truth = scene.truth.reshape(flat.shape)
        errors = torch.where(_comparable(result).reshape(flat.shape), 100 * relative_error(truth, flat), torch.nan)
        for row, true, error in zip(rows, truth, errors, strict=True):
            row += [("true scale", true, (low, high), "viridis"), ("error, %", error, _reach(errors), "magma")]
    return _drawn(rows, path)


def write_fields(scene: ViewScene, result: ScaleFields, folder: Path) -> list[Path]:
    """`scales.npz` and `scales.png` of views."""
    archive = folder / "scales.npz"
    with replacing(archive) as temporary, open(temporary, "wb") as stream:
        parts = {name: getattr(result, name).numpy() for name in ("scales", "logs", "deviations", "support", "pairs")}
        np.savez_compressed(stream, **parts, sightings=result.sightings.numpy(), believed=result.believed.numpy())
    return [archive, _picture_of_fields(scene, result, folder / "scales.png")]


def _picture_of_fields(scene: ViewScene, result: ScaleFields, path: Path) -> Path:
    """A row per view: its depth, the scale found, how well the sightings tell it; the error where truth is known."""
    count, height, width = scene.depths.shape
    deviation = Grid(count, result.logs.shape[1], result.logs.shape[2], height, width).dense(
        result.deviations.flatten()
    )
    known = torch.where(torch.isfinite(scene.depths) & (scene.depths > 0), scene.depths, torch.nan)
    depth_range = tuple(np.nanquantile(known.numpy(), [0.01, 0.99]).tolist())
    reach = max(float((result.scales - 1).abs().max()), 1e-3)
    percent = [("its deviation, %", 100 * deviation)]
    if scene.truth is not None:
        error = relative_error(scene.truth / scene.truth[result.reference], result.scales)
        percent.append(("error, %", 100 * error))
    limits = _reach(torch.stack([images for _, images in percent]))
    rows = [
        [
            (f"view {i}: depth", known[i], depth_range, "viridis"),
            ("scale found − 1, %", 100 * (result.scales[i] - 1), (-100 * reach, 100 * reach), "RdBu_r"),
            *((title, images[i], limits, "magma") for title, images in percent),
        ]
        for i in range(count)
    ]
    return _drawn(rows, path)


def _reach(images: Tensor) -> tuple[float, float]:
    """From 0 to what holds 99 % of the numbers, for one colour scale; a tenth of a percent at least."""
    finite = images[torch.isfinite(images)]
    return 0.0, max(float(np.quantile(finite.numpy(), 0.99)) if finite.numel() else 0.0, 0.1)


def _drawn(rows: list[list[tuple[str, Tensor, tuple[float, ...], str]]], path: Path) -> Path:
    """Images with a title, a range and colours each, in rows."""
    figure = figure_of(2.4 * len(rows[0]) + 1, 1.9 * len(rows))
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for line, row in zip(axes, rows, strict=True):
        for axis, (title, image, (bottom, top), colours) in zip(line, row, strict=True):
            drawn = axis.imshow(image.numpy(), vmin=bottom, vmax=top, cmap=colours, aspect="auto")
            figure.colorbar(drawn, ax=axis, fraction=0.05)
            axis.set_title(title, fontsize=8)
            axis.set_axis_off()
    return save_figure(figure, path)
