"""Pictures of an alignment: red and cyan before and after, mosaics, convergence. Matplotlib without a screen."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.result import Stage
from mslsq.plotting import INK, figure_of, save_figure


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


def _stretch(values: Tensor, known: Tensor) -> tuple[float, float]:
    """The 1st and 99th percentile where known: one display range for all panels of a row."""
    data = values[known]
    if data.numel() == 0:
        return 0.0, 1.0
    low, high = np.percentile(data.cpu().numpy(), [1, 99])
    return float(low), float(high if high > low else low + 1.0)


def red_cyan(
    reference: Float[Tensor, "h w"], known: Bool[Tensor, "h w"], moving: Float[Tensor, "h w"], seen: Bool[Tensor, "h w"]
) -> np.ndarray:
    """Reference in red, map in green and blue: grey where they agree, coloured edges where they do not; one alone is
    faded."""
    low, high = _stretch(reference, known)
    scale = lambda v: ((v - low) / (high - low)).clamp(0, 1)  # noqa: E731
    a, b = scale(reference), scale(moving)
    both = known & seen
    picture = torch.stack([a, b, b], -1)
    faded = 0.5 + 0.35 * torch.where(known, a, b)[..., None].expand_as(picture)
    picture = torch.where(both[..., None], picture, faded)
    return torch.where((known | seen)[..., None], picture, torch.ones_like(picture)).cpu().numpy()


def overlay(comparisons: Sequence[Comparison], path: Path) -> Path:
    """One row per map: before, after, and the difference after where both are known."""
    rows = max(1, len(comparisons))
    figure = figure_of(10.5, 3.7 * rows)
    axes = figure.subplots(rows, 3, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for row, item in zip(axes, comparisons, strict=False):
        row[0].imshow(red_cyan(item.reference, item.known, *item.before), interpolation="nearest")
        row[0].set_title(f"{item.title}: before", fontsize=10, color=INK)
        row[1].imshow(red_cyan(item.reference, item.known, *item.after), interpolation="nearest")
        row[1].set_title(f"after: {item.caption}", fontsize=10, color=INK)
        both = item.known & item.after[1]
        difference = torch.where(both, item.after[0] - item.reference, torch.full_like(item.reference, float("nan")))
        low, high = _stretch(item.reference, item.known)
        limit = 0.1 * (high - low)
        shown = row[2].imshow(difference.cpu().numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        row[2].set_title("difference after", fontsize=10, color=INK)
        figure.colorbar(shown, ax=row[2], shrink=0.8)
    return save_figure(figure, path)


def mosaics(items: Sequence[tuple[str, Float[Tensor, "c h w"], Bool[Tensor, "h w"]]], path: Path) -> Path:
    """The mosaics side by side, white where there is no data."""
    figure = figure_of(5.0 * max(1, len(items)), 5.2)
    axes = figure.subplots(1, max(1, len(items)), squeeze=False)[0]
    for axis, (title, values, known) in zip(axes, items, strict=True):
        if values.shape[0] == 3:
            low, high = _stretch(values.mean(0), known)
            picture = ((values - low) / (high - low)).clamp(0, 1).permute(1, 2, 0)
            picture = torch.where(known[..., None], picture, torch.ones_like(picture))
            axis.imshow(picture.cpu().numpy(), interpolation="nearest")
        else:
            low, high = _stretch(values[0], known)
            shown = torch.where(known, values[0], torch.full_like(values[0], float("nan")))
            axis.imshow(shown.cpu().numpy(), cmap="gray", vmin=low, vmax=high, interpolation="nearest")
        axis.set_title(title, fontsize=10, color=INK)
        axis.set_axis_off()
    return save_figure(figure, path)


def convergence(series: Sequence[tuple[str, Sequence[Stage]]], path: Path) -> Path:
    """Residual per sample after each step: a panel per level, a line per map and solve, a dot where each solve
    starts."""
    levels = sorted({stage.level for _, stages in series for stage in stages}, reverse=True)
    figure = figure_of(3.0 * max(2, len(levels)), 4.2)
    axes = figure.subplots(1, max(1, len(levels)), squeeze=False, sharey=True)[0]
    colours = [f"C{number % 10}" for number in range(len(series))]
    for axis, level in zip(axes, levels, strict=False):
        sizes = {stage.size for _, stages in series for stage in stages if stage.level == level}
        for (title, stages), colour in zip(series, colours, strict=True):
            position = 0
            for stage in stages:
                if stage.level != level or not stage.rms:
                    continue
                steps = range(position, position + len(stage.rms))
                axis.plot(steps, stage.rms, color=colour, linewidth=1.4, label=None if position else title)
                axis.plot(position, stage.rms[0], "o", markersize=3, color=colour)
                position += len(stage.rms)
        rows, columns = min(sizes)
        axis.set_title(f"level {level}: {columns} × {rows}" + (" …" if len(sizes) > 1 else ""), fontsize=10, color=INK)
        axis.set_yscale("log")
        axis.set_xlabel("step", fontsize=9)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("RMS residual / standard deviation of the reference", fontsize=9)
    if 0 < len(series) <= 12 and levels:
        axes[-1].legend(fontsize=8, frameon=False)
    return save_figure(figure, path)
