"""What was estimated, before and after, seen from above and from the side: poses with their edges, or points."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.plotting.figure import ACCENT, figure_of, save_figure

AXES = "xyz"
FEW = 100
"""Up to that many points all are shown, and larger."""


@dataclass(frozen=True)
class Panel:
    """One column of the picture: `poses` as a path, `points` as dots, `edges` as lines between poses."""

    title: str
    poses: Float[Tensor, "poses dimension"]
    edges: Int[Tensor, "edges 2"] | None = None
    points: Float[Tensor, "points dimension"] | None = None


def plot_views(panels: Sequence[Panel], path: Path) -> Path:
    """x-y above and, in space, x-z below; every panel has limits of its own, which leave out far points."""
    dimension = panels[0].poses.shape[-1]
    planes = [(0, 1)] if dimension == 2 else [(0, 1), (0, 2)]
    figure = figure_of(5.0 * len(panels), 4.6 * len(planes))
    grid = figure.subplots(len(planes), len(panels), squeeze=False)
    for row, plane in zip(grid, planes, strict=True):
        for axis, panel in zip(row, panels, strict=True):
            _draw(axis, panel, plane)
            axis.set_title(panel.title, fontsize=10)
            axis.set(xlabel=AXES[plane[0]], ylabel=AXES[plane[1]])
    return save_figure(figure, path)


def _draw(axis: Any, panel: Panel, plane: tuple[int, int]) -> None:
    from matplotlib.collections import LineCollection

    poses = _flat(panel.poses, plane)
    if panel.edges is not None:
        edges = panel.edges.cpu().numpy()
        lines = poses[edges]
        successive = np.abs(edges[:, 1] - edges[:, 0]) == 1
        axis.add_collection(LineCollection(list(lines[~successive]), colors="tab:orange", linewidths=0.3, alpha=0.6))
        axis.add_collection(LineCollection(list(lines[successive]), colors=ACCENT, linewidths=0.7))
    low, high = _limits(poses, 0, 100)
    if panel.points is not None:
        points = _flat(panel.points, plane)
        axis.plot(*points.T, ".", color="0.35", markersize=1 if len(points) > FEW else 4)
        # far points are the badly known ones: the Ladybug problem's span 2 in y from 5 to 95 %, 61 from 0.5 to 99.5 %
        inner = _limits(points, 5, 95) if len(points) > FEW else _limits(points, 0, 100)
        low, high = np.minimum(low, inner[0]), np.maximum(high, inner[1])
    axis.plot(*poses.T, ".", color=ACCENT, markersize=2 if panel.points is None else 5)
    margin = 0.05 * max(float((high - low).max()), 1e-9)
    axis.set(xlim=(low[0] - margin, high[0] + margin), ylim=(low[1] - margin, high[1] + margin))
    axis.set_aspect("equal", adjustable="box")
    axis.spines[["top", "right"]].set_visible(False)


def _limits(places: np.ndarray, lower: float, upper: float) -> tuple[np.ndarray, np.ndarray]:
    finite = places[np.isfinite(places).all(1)]
    if not len(finite):
        return np.zeros(2), np.ones(2)
    low, high = np.percentile(finite, [lower, upper], axis=0)
    return low, high


def _flat(values: Tensor, plane: tuple[int, int]) -> np.ndarray:
    return torch.stack([values[:, plane[0]], values[:, plane[1]]], -1).detach().cpu().numpy()
