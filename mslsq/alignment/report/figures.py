"""Pictures of an alignment as PNG: red and cyan before and after, differences, mosaics, convergence."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from mslsq.alignment.report.comparisons import MAPS, Sheet
from mslsq.alignment.report.text import plain
from mslsq.alignment.result import Stage
from mslsq.plotting import INK, figure_of, save_figure


def overlay(sheets: Sequence[Sheet], path: Path) -> Path:
    """One row per map: before, after, a checkerboard, and the difference after where both are known."""
    return save_figure(overlay_figure(sheets), path)


def overlay_figure(sheets: Sequence[Sheet]) -> Any:
    """The figure of `overlay`. The colours of a difference reach as far as 99 % of it do, both ways alike."""
    rows = max(1, len(sheets))
    figure = figure_of(14.0, 3.7 * rows)
    axes = figure.subplots(rows, 4, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for row, sheet in zip(axes, sheets, strict=False):
        shown = (
            (sheet.before, f"{sheet.title}: before"),
            (sheet.after, f"after: {sheet.caption}"),
            (sheet.checkerboard, "checkerboard: reference (red), map (cyan)"),
        )
        for axis, (picture, title) in zip(row, shown, strict=False):
            axis.imshow(picture, interpolation="auto")
            axis.set_title(plain(title), fontsize=10, color=INK)
        limits = {"vmin": -sheet.limit, "vmax": sheet.limit}
        of = f", means of {sheet.means} × {sheet.means} pixels" if sheet.means > 1 else ""
        colours = row[3].imshow(sheet.difference, cmap=sheet.words.colours, interpolation="nearest", **limits)
        row[3].set_title(
            plain(f"map − reference{of}, 99 % within ± {sheet.limit:.3g} {sheet.unit}"), fontsize=10, color=INK
        )
        figure.colorbar(colours, ax=row[3], shrink=0.8, label=plain(sheet.values), extend="both")
    return figure


def coloured(difference: np.ndarray, limit: float, colours: str = MAPS.colours) -> UInt8[np.ndarray, "h w 3"]:
    """A difference in the colours of `overlay`; light grey where there is none to see."""
    from matplotlib import colormaps

    shown = colormaps[colours](0.5 + 0.5 * difference / limit, bytes=True)[..., :3]
    return np.where(np.isnan(difference)[..., None], np.uint8(225), shown)


def mosaics(items: Sequence[tuple[str, UInt8[np.ndarray, "h w 3"]]], path: Path) -> Path:
    """The mosaics side by side, white where there is no data."""
    figure = figure_of(5.0 * max(1, len(items)), 5.2)
    axes = figure.subplots(1, max(1, len(items)), squeeze=False)[0]
    for axis, (title, picture) in zip(axes, items, strict=True):
        axis.imshow(picture, interpolation="auto")
        axis.set_title(plain(title), fontsize=10, color=INK)
        axis.set_axis_off()
    return save_figure(figure, path)


def convergence(series: Sequence[tuple[str, Sequence[Stage]]], path: Path) -> Path:
    """Residual per sample after each step: a panel per level, a line per map and solve, a dot where each solve
    starts."""
    return save_figure(convergence_figure(series), path)


def convergence_figure(series: Sequence[tuple[str, Sequence[Stage]]]) -> Any:
    """The figure of `convergence`."""
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
                axis.plot(steps, stage.rms, color=colour, linewidth=1.4, label=None if position else plain(title))
                axis.plot(position, stage.rms[0], "o", markersize=3, color=colour)
                position += len(stage.rms)
        rows, columns = min(sizes)
        axis.set_title(f"level {level}: {columns} × {rows}" + (" …" if len(sizes) > 1 else ""), fontsize=10, color=INK)
        if any(line.get_ydata().max() > 0 for line in axis.lines):  # equal maps leave nothing
            axis.set_yscale("log")
        axis.set_xlabel("step", fontsize=9)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("RMS residual / standard deviation of the reference", fontsize=9)
    if 0 < len(series) <= 12 and levels:
        axes[-1].legend(fontsize=8, frameon=False)
    return figure
