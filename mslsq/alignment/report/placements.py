"""Where all maps lie, how surely, and what holds them: outlines, error ellipses, and the graph of links."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.measures import corners, project
from mslsq.alignment.models import Frame, velocities
from mslsq.alignment.report.text import plain
from mslsq.alignment.result import Alignment, MapStatus
from mslsq.plotting import INK, figure_of, save_figure

WITHIN_95 = math.sqrt(-2 * math.log(0.05))
"""Standard deviations along each axis of the ellipse that holds 95 % of a normal distribution in the plane: 2.448."""

LARGEST_ELLIPSE = 0.06
"""Of the diagonal of all outlines: how long the longest semi-axis is drawn at most."""

CROWDED = 0.12
"""Of the drawing's side: maps whose middles are nearer are drawn around a circle, and numbered beside their middles."""

TOWARDS = 0.4
"""Of the way from its middle to a corner: where the number of a map stands that lies on others."""

LABELLED = 12
"""Links of a graph up to which every one has its number beside it."""

STYLES = {
    "used": ("-", None),
    "undecided": (":", "#b8860b"),
    "contradicted": ("--", "#c0392b"),
    "refused": (":", "#b5b5b5"),
}
"""Line and colour of a link by what became of it; that of used ones says how well the two maps agree."""


def outline(result: Alignment, index: int) -> Float[Tensor, "4 2"] | None:
    """The corners of a placed map in pixels (x, y) of the reference, without its bend; None of maps that were left
    out."""
    size = result.sizes[index] if result.sizes else None
    if size is None or not MapStatus(int(result.status[index])).ok:
        return None
    found = project(torch.linalg.inv(result.transforms[index]), corners(*size, like=result.transforms))
    return found if bool(found.isfinite().all()) else None


def placement_covariance(result: Alignment, index: int, points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2 2"]:
    """How surely a map is placed: the covariance, in square pixels of the reference, of where in the reference lies
    what the map shows at these pixels (x, y) of the reference.

    With H ← H R(ξ), R(ξ) = I + Σ ξ_k G_k, the pixel of the map stays and its place n in the reference moves by
    -Σ ξ_k g_k(n), where g_k is G_k (n, 1) divided out: V Σ Vᵀ with V = [g_1 ... g_k]. The variance of a bend is
    added alike in both directions.
    """
    size = result.sizes[result.reference]
    assert size is not None
    frame = Frame(*size, result.transforms)
    normal = (points - frame.centre) / frame.half
    moving = velocities(normal, result.covariance.shape[-1])
    derivative = moving[:, :2] - normal[..., None] * moving[:, 2:]
    found = derivative @ result.covariance[index] @ derivative.mT * frame.half**2
    bend = result.bend(index)
    if bend is not None:
        found = found + 0.5 * bend.sigma(points).square()[:, None, None] * torch.eye(2, dtype=found.dtype, device="cpu")
    return found


def exaggeration(axes: Sequence[float], diagonal: float) -> float:
    """1, 2 or 5 times a power of ten, at least 1: what ellipses are enlarged by, so that the longest is well seen."""
    longest = max((axis for axis in axes if math.isfinite(axis)), default=0.0)
    if longest <= 0:
        return 1.0
    wanted = LARGEST_ELLIPSE * diagonal / longest
    power = 10.0 ** math.floor(math.log10(wanted))
    return max(1.0, max(step for step in (1, 2, 5) if step * power <= wanted) * power)


def draw_outlines(axis: Any, result: Alignment) -> float:
    """The outlines of all placed maps with their numbers, and at their corners the ellipses that hold 95 %; returns
    what these are enlarged by."""
    from matplotlib.patches import Ellipse, Polygon

    placed = [(i, found) for i in result.aligned if (found := outline(result, i)) is not None]
    if not placed:
        return 1.0
    points = torch.cat([found for _, found in placed])
    low, high = points.amin(0), points.amax(0)
    shapes = []
    for i, found in placed:
        if i != result.reference:
            for at, covariance in zip(found, placement_covariance(result, i, found), strict=True):
                if bool(covariance.isfinite().all()):
                    sizes, directions = np.linalg.eigh(covariance.cpu().numpy())
                    shapes.append((i, at, WITHIN_95 * np.sqrt(sizes.clip(min=0)), directions))
    factor = exaggeration([axes[1] for _, _, axes, _ in shapes], float((high - low).norm()))
    middles = {i: found.mean(0) for i, found in placed}
    near = CROWDED * float((high - low).amax())
    for i, found in placed:
        mine = i == result.reference
        colour = INK if mine else f"C{i % 10}"
        axis.add_patch(Polygon(found.cpu().numpy(), fill=False, edgecolor=colour, linewidth=2.2 if mine else 1.3))
        if mine:
            spot = found[0] + 0.06 * (found[2] - found[0])
        else:
            spot = middles[i]
            others = [middles[k] for k in middles if k not in (i, result.reference)]
            if any(float((spot - other).norm()) < near for other in others):  # numbers on each other are not read
                spot = spot + TOWARDS * (found[i % 4] - spot)
        axis.text(*spot.tolist(), str(i), color=colour, fontsize=10, ha="center", va="center")
    for i, at, axes, directions in shapes:
        angle = math.degrees(math.atan2(directions[1, 1], directions[0, 1]))
        width, height = 2 * factor * axes[1], 2 * factor * axes[0]
        face = {"facecolor": f"C{i % 10}", "alpha": 0.35, "edgecolor": f"C{i % 10}"}
        axis.add_patch(Ellipse(at.tolist(), width, height, angle=angle, **face))
        axis.plot(*at.tolist(), ".", color=f"C{i % 10}", markersize=3)
    margin = 0.08 * float((high - low).amax()) + 1
    axis.set_xlim(float(low[0]) - margin, float(high[0]) + margin)
    axis.set_ylim(float(high[1]) + margin, float(low[1]) - margin)
    axis.set_aspect("equal")
    axis.tick_params(labelsize=8)
    axis.set_xlabel("pixels of the reference", fontsize=9)
    return factor


def links_of(result: Alignment) -> list[tuple[int, int, str, float]]:
    """Every pair that was tried: its two maps, what became of it, and the correlation of its detail. Where maps were
    placed one by one, those that hold them."""
    if result.links:
        best: dict[tuple[int, int], tuple[int, int, str, float]] = {}
        for link in result.links:  # a pair may have been tried again; the last says what became of it
            key = (min(link.pair), max(link.pair))
            best[key] = (*link.pair, link.status.name.lower(), float(link.linked.placed.detail))
        return list(best.values())
    pairs = [(int(result.parent[i]), i) for i in result.aligned if i != result.reference]
    return [(parent, i, "used", float(result.detail[i])) for parent, i in pairs]


def spots(result: Alignment) -> dict[int, tuple[float, float]]:
    """Where the maps stand in a drawing of the graph: at their middles where they are placed, the others in a row
    beneath."""
    placed = {i: found.mean(0) for i in result.aligned if (found := outline(result, i)) is not None}
    points = torch.stack(list(placed.values())) if placed else torch.zeros(1, 2, device="cpu")
    low, high = points.amin(0), points.amax(0)
    side = max(float((high - low).amax()), 1.0)
    where = {i: (float(at[0]), float(at[1])) for i, at in placed.items()}
    pairs = [(a, b) for a in where for b in where if a < b]
    if any(math.dist(where[a], where[b]) < CROWDED * side for a, b in pairs):  # they lie on each other: around a circle
        middle = 0.5 * (low + high)
        turn = {i: math.atan2(at[1] - float(middle[1]), at[0] - float(middle[0])) for i, at in where.items()}
        for place, i in enumerate(sorted(where, key=lambda i: (turn[i], i))):
            angle = 2 * math.pi * place / len(where) - math.pi
            where[i] = float(middle[0]) + 0.5 * side * math.cos(angle), float(middle[1]) + 0.5 * side * math.sin(angle)
    bottom = max((at[1] for at in where.values()), default=0.0)
    left = min((at[0] for at in where.values()), default=0.0)
    left_out = [i for i in range(len(result.reasons)) if i not in where]
    columns = max(6, math.ceil(math.sqrt(len(left_out))))
    for number, i in enumerate(left_out):
        row, column = divmod(number, columns)
        where[i] = left + 0.2 * side * column, bottom + side * (0.3 + 0.2 * row)
    return where


def draw_graph(axis: Any, result: Alignment) -> Any:
    """Maps as circles with their numbers, links as lines by what became of them; the colour of used ones is the
    correlation of their detail. Returns the colour scale."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.lines import Line2D

    scale = ScalarMappable(Normalize(0.0, 1.0), "viridis")
    where, links = spots(result), links_of(result)
    order = list(STYLES)[::-1]
    for fixed, moving, status, detail in sorted(links, key=lambda link: order.index(link[2])):
        line, colour = STYLES[status]
        used = status == "used"
        colour = colour or scale.to_rgba(np.array(max(detail, 0.0)))
        axis.plot(*zip(where[fixed], where[moving], strict=True), line, color=colour, linewidth=2.6 if used else 1.2)
        if used and len(links) <= LABELLED and math.isfinite(detail):
            middle = [0.5 * (a + b) for a, b in zip(where[fixed], where[moving], strict=True)]
            axis.text(*middle, f"{detail:.2f}", fontsize=8, color=INK, ha="center", va="bottom")
    for i, at in where.items():
        ok = MapStatus(int(result.status[i])).ok
        face = "#7fb2dd" if i == result.reference else "#c9dff1" if ok else "#dcdcdc"
        axis.scatter(*at, s=260, zorder=3, linestyle="-" if ok else "--", facecolor=face, edgecolor="#6b7682")
        axis.text(*at, str(i), fontsize=9, color="#111111", ha="center", va="center", zorder=4)
    agree = [max(link[3], 0.0) for link in links if link[2] == "used" and math.isfinite(link[3])]
    usual: Any = scale.to_rgba(np.array(np.median(agree))) if agree else INK
    kinds = [status for status in STYLES if any(link[2] == status for link in links)]
    handles = [Line2D([], [], linestyle=STYLES[kind][0], color=STYLES[kind][1] or usual, label=kind) for kind in kinds]
    if handles:
        axis.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.02), ncols=4)
    axis.set_axis_off()
    axis.margins(0.12)
    axis.invert_yaxis()
    axis.set_aspect("equal", adjustable="datalim")  # a box as narrow as the graph would cut the circles
    return scale


def enlarged(factor: float) -> str:
    """What ellipses are multiplied by, in words."""
    return "to scale" if factor == 1 else f"{factor:,.0f} times enlarged"


def outlines_figure(result: Alignment, title: str = "") -> tuple[Any, str]:
    """The figure of the outlines, and what it shows in words."""
    figure = figure_of(5.6, 4.8)
    axis = figure.subplots()
    factor = draw_outlines(axis, result)
    words = f"Outlines of the placed maps; ellipses hold 95 % of the error of each corner, drawn {enlarged(factor)}"
    axis.set_title(plain(title) or f"95 % ellipses, × {factor:,.0f}", fontsize=10, color=INK)
    return figure, words


def graph_figure(result: Alignment) -> tuple[Any, str]:
    """The figure of the graph, and what it shows in words."""
    figure = figure_of(5.6, 4.8)
    axis = figure.subplots()
    scale = draw_graph(axis, result)
    figure.colorbar(scale, ax=axis, shrink=0.6, label="correlation of the detail, used links")
    links = links_of(result)
    counts = {kind: sum(link[2] == kind for link in links) for kind in STYLES}
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "none"
    return figure, f"Links between maps: {said}. Circles with a dashed border are maps that were left out"


def placements(items: Sequence[tuple[str, Alignment]], path: Path) -> Path:
    """A row per scene: outlines with ellipses, and the graph of links."""
    return save_figure(draw_both(items), path)


def draw_both(items: Sequence[tuple[str, Alignment]]) -> Any:
    """The figure of `placements`."""
    figure = figure_of(11.0, 4.6 * max(1, len(items)))
    rows = figure.subplots(max(1, len(items)), 2, squeeze=False)
    for row, (title, result) in zip(rows, items, strict=True):
        factor = draw_outlines(row[0], result)
        row[0].set_title(
            f"{plain(title)}: corners with 95 % ellipses × {factor:,.0f}".removeprefix(": "), fontsize=10, color=INK
        )
        scale = draw_graph(row[1], result)
        row[1].set_title("links", fontsize=10, color=INK)
        figure.colorbar(scale, ax=row[1], shrink=0.6, label="correlation of the detail, used links")
    return figure
