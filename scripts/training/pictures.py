"""Pictures of a training run: the curve, success on unseen pairs, pairs before and after."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mslsq.alignment.learned import LearnedAligner, PairBatch
from mslsq.alignment.learned.pairs import resampled
from mslsq.plotting import figure_of, save_figure
from training.loop import smoothed

COLOURS = {"start": "0.6", "intensity": "tab:orange", "learned": "tab:blue"}
ROWS = 7
"""Pairs in the picture."""


def curve(rows: Sequence[dict[str, float]], columns: Sequence[str], path: Path) -> Path:
    """The loss, raw and smoothed, and other columns of the curve beside it."""
    figure = figure_of(11, 4)
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in rows]
    window = max(1, len(rows) // 30)
    left.plot(steps, [row["loss"] for row in rows], color="0.8", linewidth=0.8)
    left.plot(steps, smoothed([row["loss"] for row in rows], window), color="tab:blue")
    left.set(title=f"training loss (mean of {window} steps)", xlabel="step")
    for name in columns:
        right.plot(steps, smoothed([row[name] for row in rows], window), label=name)
    right.set(xlabel="step", yscale="log", title="on training data")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path)


def success(outcomes: dict[str, Tensor], kinds: Sequence[str], path: Path) -> Path:
    """The share of unseen pairs below each error, and below 1 px by kind of change."""
    figure = figure_of(11, 4)
    left, right = figure.subplots(1, 2)
    share = np.linspace(0, 1, len(kinds), endpoint=False) + 1 / len(kinds)
    for name in COLOURS:
        if name in outcomes:
            left.step(
                np.sort(outcomes[name].numpy().clip(0, 1e3)), share, where="post", color=COLOURS[name], label=name
            )
    left.axvline(1, color="0.8", linewidth=0.8)
    left.set(
        xscale="log", xlim=(0.03, 30), ylim=(0, 1.01), xlabel="mean corner error, px", title="share of unseen pairs"
    )
    left.legend(frameon=False)
    names = sorted(set(kinds))
    shown = [name for name in COLOURS if name in outcomes and name != "start"]
    for number, name in enumerate(shown):
        below = outcomes[name] < 1
        heights = [float(below[[kind == other for other in kinds]].float().mean()) for kind in names]
        right.bar(np.arange(len(names)) + 0.38 * number, heights, 0.36, color=COLOURS[name], label=name)
    right.set_xticks(np.arange(len(names)) + 0.19 * (len(shown) - 1), names)
    right.set(ylim=(0, 1.15), title="below 1 px, by change")
    right.legend(frameon=False, loc="upper left", ncols=2)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path)


def pairs(aligner: LearnedAligner, batch: PairBatch, found: Tensor, outcomes: dict[str, Tensor], path: Path) -> Path:
    """Pairs, their edges in red and cyan before and after, and where the network is confident."""
    chosen = list(dict.fromkeys(int(i) for i in np.linspace(0, len(batch.kinds) - 1, ROWS)))
    figure = figure_of(11, 2.2 * len(chosen))
    grid = figure.subplots(len(chosen), 5, squeeze=False)
    with torch.no_grad():
        confidence = aligner.levels(batch.reference[chosen], batch.moving[chosen])[-1][0].confidence
    for row, (i, axes) in enumerate(zip(chosen, grid, strict=True)):
        reference, moving = batch.reference[i].double().numpy(), batch.moving[i].double().numpy()
        # The moving map on the reference's grid: its pixel u shows the map's pixel T u.
        back = resampled(moving, np.linalg.inv(found[i].double().numpy()), 0, len(reference))
        learned = f"learned {outcomes['learned'][i]:.2f} px"
        if "intensity" in outcomes:
            error = float(outcomes["intensity"][i])
            learned += " (intensity: fails)" if error == float("inf") else f" (intensity {error:.2f})"
        panels = (
            (reference, f"{batch.images[i]}"),
            (moving, f"{batch.kinds[i]}"),
            (red_cyan_edges(reference, moving), f"edges before: {outcomes['start'][i]:.1f} px"),
            (red_cyan_edges(reference, back), learned),
            (confidence[row].numpy(), "confidence"),
        )
        for axis, (image, title) in zip(axes, panels, strict=True):
            axis.imshow(image, cmap="viridis" if title == "confidence" else "gray")
            axis.set_title(title, fontsize=8)
            axis.axis("off")
    return save_figure(figure, path)


def red_cyan_edges(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Slopes of a in red and of b in cyan: grey where both agree, whatever their contrast."""
    slopes = []
    for image in (a, b):
        down, right = np.gradient(image)
        slope = np.hypot(down, right) ** 0.5
        slopes.append(np.clip(slope / max(np.percentile(slope, 99), 1e-6), 0, 1))
    return np.stack([slopes[0], slopes[1], slopes[1]], -1)
