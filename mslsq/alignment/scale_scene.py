"""A scale synchronisation to try, with known truth or from a user's file; and what is written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.ndimage import gaussian_filter
from torch import Tensor

from mslsq.alignment.scale_sync import ScaleSync
from mslsq.alignment.synthetic import base_raster
from mslsq.plotting import figure_of, save_figure
from mslsq.replacing import replacing
from mslsq.validation import number


@dataclass(frozen=True)
class RatioScene:
    """Ratios of maps, and the true scales where they are known."""

    name: str
    ratios: Float[Tensor, "pairs height width"]
    pairs: Int[Tensor, "pairs 2"]
    truth: Float[Tensor, "maps height width"] | None


def synthetic_ratios(
    maps: int = 8,
    size: tuple[int, int] = (64, 64),
    noise: float = 0.01,
    outliers: float = 0.2,
    missing: float = 0.2,
    seed: int = 0,
) -> RatioScene:
    """All ordered pairs of `maps` depth maps of one scene, each wrong by a smooth scale field.

    The depth is matplotlib's elevation raster. Map i is depth / m_i with m_i between about 0.5 and 2, every observed
    ratio of two maps carries `noise` (relative), a share `outliers` of them is off by a factor of e or so, a share
    `missing` is not observed: whole patches, as where two views do not overlap.

    Raises:
        ValueError: fewer than two maps, an empty size, shares that are not in [0, 1).
    """
    height, width = size
    if maps < 2 or height < 1 or width < 1:
        raise ValueError(f"needs at least two maps of at least one cell, not {maps} of {height} x {width}.")
    for name, share in (("noise", noise), ("outliers", outliers), ("missing", missing)):
        number(name, share, least=0, below=1)
    random = np.random.default_rng(seed)

    def smooth(count: int, sigma: float) -> np.ndarray:
        fields = np.stack(
            [gaussian_filter(random.standard_normal((height, width)), sigma, mode="wrap") for _ in range(count)]
        )
        return fields / fields.std()

    elevation = base_raster("elevation")
    rows = np.linspace(0, elevation.shape[0] - 1, height).astype(int)
    columns = np.linspace(0, elevation.shape[1] - 1, width).astype(int)
    depth = 1.0 + elevation[np.ix_(rows, columns)] / np.ptp(elevation)
    scales = np.exp(0.35 * smooth(maps, max(height, width) / 8))
    scales = scales / scales[:1]
    seen = depth / scales
    pairs = np.array([(i, j) for i in range(maps) for j in range(maps) if i != j])
    ratios = seen[pairs[:, 0]] / seen[pairs[:, 1]] * (1 + noise * random.standard_normal((len(pairs), height, width)))
    wrong = random.random(ratios.shape) < outliers
    ratios = np.where(wrong, ratios * np.exp(random.standard_normal(ratios.shape)), ratios)
    patches = smooth(len(pairs), max(height, width) / 16)
    ratios = np.where(patches < np.quantile(patches, missing), np.nan, ratios)
    return RatioScene("synthetic", torch.from_numpy(ratios), torch.from_numpy(pairs), torch.from_numpy(scales))


def read_ratios(path: str | Path) -> RatioScene:
    """A .npz with `ratios` (pairs, height, width), `pairs` (pairs, 2) and, where known, `truth` (maps, height, width).

    Raises:
        ValueError: not such a file; the message names it and what is missing.
    """
    file = Path(path)
    try:
        with np.load(file) as archive:
            content = {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise ValueError(f"{file} does not exist.") from None
    except Exception as error:
        raise ValueError(f"{file} cannot be read as .npz: {error}") from None
    for key in ("ratios", "pairs"):
        if key not in content:
            raise ValueError(f"{file} has no array {key!r}; it has {', '.join(content) or 'nothing'}.")
    ratios = torch.from_numpy(np.asarray(content["ratios"], np.float64))
    truth = torch.from_numpy(np.asarray(content["truth"], np.float64)) if "truth" in content else None
    return RatioScene(file.name, ratios, torch.from_numpy(np.asarray(content["pairs"], np.int64)), truth)


def figures_of(scene: RatioScene, result: ScaleSync) -> dict[str, Any]:
    """The numbers of `metrics.json`."""
    answered = torch.isfinite(result.scales).all(0)
    figures: dict[str, Any] = {
        "scene": scene.name,
        "maps": len(result.scales),
        "cells": answered.numel(),
        "cells_answered": int(answered.sum()),
        "ratios_observed": float((torch.isfinite(scene.ratios) & (scene.ratios > 0)).double().mean()),
        "ratios_believed": float((result.inliers > 0.5).double().mean()),
        "noise": result.noise,
    }
    if scene.truth is not None:
        error = relative_error(scene.truth, result.scales)[1:, answered]
        figures["median_relative_error"] = float(error.median())
        figures["share_within_1_percent"] = float((error < 0.01).double().mean())
        figures["share_within_5_percent"] = float((error < 0.05).double().mean())
    return figures


def relative_error(truth: Tensor, scales: Tensor) -> Float[Tensor, "maps height width"]:
    return (scales / truth - 1).abs()


def write_scales(scene: RatioScene, result: ScaleSync, folder: Path) -> list[Path]:
    """`scales.npz` and `scales.png`."""
    archive = folder / "scales.npz"
    with replacing(archive) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(
            stream,
            scales=result.scales.numpy(),
            status=result.status.numpy(),
            inliers=result.inliers.numpy(),
            pairs=scene.pairs.numpy(),
        )
    return [archive, _picture(scene, result, folder / "scales.png")]


def _picture(scene: RatioScene, result: ScaleSync, path: Path) -> Path:
    """A row per map: the scale found, the true one and the error where known."""
    known = scene.truth is not None
    flat = result.scales.flatten(2) if result.scales.ndim > 3 else result.scales
    flat = flat if flat.ndim == 3 else flat[:, None, :]
    count, panels = len(flat), 3 if known else 1
    figure = figure_of(2.4 * panels + 1, 1.9 * count)
    axes = figure.subplots(count, panels, squeeze=False)
    finite = flat[torch.isfinite(flat)]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    for i in range(count):
        shown = [(f"map {i}: scale found", flat[i], (low, high), "viridis")]
        if scene.truth is not None:
            truth = scene.truth.reshape(flat.shape)
            error = 100 * relative_error(truth[i], flat[i])
            shown += [("true scale", truth[i], (low, high), "viridis"), ("error, %", error, (0.0, 5.0), "magma")]
        for axis, (title, image, (bottom, top), colours) in zip(axes[i], shown, strict=True):
            drawn = axis.imshow(image.numpy(), vmin=bottom, vmax=top, cmap=colours, aspect="auto")
            figure.colorbar(drawn, ax=axis, fraction=0.05)
            axis.set_title(title, fontsize=8)
            axis.set_axis_off()
    return save_figure(figure, path)
