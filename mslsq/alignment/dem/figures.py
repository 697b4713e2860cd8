"""Pictures of a coregistration in metres: differences, statistics by slope and aspect, shifts of blocks, the error."""

from typing import Any

import numpy as np
from jaxtyping import Float

from mslsq.alignment.dem.local import LocalCoregistration
from mslsq.alignment.dem.result import Coregistration
from mslsq.alignment.dem.statistics import ASPECTS
from mslsq.plotting import INK, figure_of

COLOURS = "RdBu"
"""Of differences: red where the model is lower than the reference, as terrain that was lost is shown."""

WITHIN = 2.4477
"""Sigmas of the ellipse that holds 95 % in two dimensions."""


def differences_figure(
    before: Float[np.ndarray, "h w"], after: Float[np.ndarray, "h w"], found: Coregistration, factor: int = 1
) -> Any:
    """dem - reference before and after, each in colours of its own range, with what was taken for changed outlined;
    `factor` where both are means of blocks of that many pixels along a side."""
    figure = figure_of(11, 5)
    axes = figure.subplots(1, 2)
    for axis, values, title, of in zip(
        axes, (before, after), ("before", "after"), (found.before.whole, found.after.whole), strict=True
    ):
        some = np.isfinite(values).any()
        middle = np.nanmedian(values) if some else 0.0
        reach = max(np.nanquantile(np.abs(values - middle), 0.98), 1e-6) if some else 1.0
        image = axis.imshow(values, cmap=COLOURS, vmin=middle - reach, vmax=middle + reach, interpolation="nearest")
        axis.set_title(f"dem - reference, {title}: median {of['median']:+.2f} m, NMAD {of['nmad']:.2f} m", fontsize=10)
        axis.set(xticks=[], yticks=[])
        figure.colorbar(
            image,
            ax=axis,
            label="metres" if factor == 1 else f"metres, means of {factor} x {factor} pixels",
            shrink=0.85,
        )
    if found.changed.any():
        axes[1].contour(found.changed, levels=[0.5], colors="black", linewidths=0.8)
        axes[1].set_xlabel("outlined: taken for changed terrain, not used", fontsize=9)
    return figure


def statistics_figure(found: Coregistration, width: float = 11.0) -> Any:
    """The spread by slope, and the medians by aspect: a horizontal shift shows there as a wave."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure = figure_of(width, 4)
    left, right = figure.subplots(1, 2)
    for of, name, colour in ((found.before, "before", "tab:gray"), (found.after, "after", "tab:blue")):
        left.plot([row["nmad"] for row in of.by_slope.values()], "o-", color=colour, label=name)
        right.plot([of.by_aspect[aspect]["median"] for aspect in ASPECTS], "o-", color=colour, label=name)
    left.set_xticks(range(len(found.after.by_slope)), [name.removesuffix(" deg") for name in found.after.by_slope])
    left.set(xlabel="slope, degrees", ylabel="NMAD of dem - reference, m", yscale="log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_locator(NullLocator())
    right.set_xticks(range(len(ASPECTS)), ASPECTS)
    right.set(xlabel="direction that the slope faces", ylabel="median of dem - reference, m")
    right.axhline(0, color=INK, linewidth=0.5)
    left.legend()
    right.legend()
    return figure


def arrows_figure(local: LocalCoregistration, reference: Float[np.ndarray, "h w"]) -> Any:
    """Each block's shift beside the whole's, over the reference; a cross where a block has none."""
    figure = figure_of(6.5, 6)
    axis = figure.subplots()
    axis.imshow(reference, cmap="gray")
    apart = local.shifts - np.nan_to_num(local.whole.shift)
    known = np.isfinite(apart[..., 0])
    steps = apart[..., :2] @ np.linalg.inv(local.whole.metres).T
    at = local.centres
    if known.any():
        arrows = axis.quiver(
            at[known][:, 0], at[known][:, 1], steps[known][:, 0], steps[known][:, 1], apart[known][:, 2], cmap=COLOURS,
            angles="xy",
        )  # fmt: skip
        figure.colorbar(arrows, ax=axis, label="metres up, beside the whole's", shrink=0.8)
        longest = float(np.hypot(apart[known][:, 0], apart[known][:, 1]).max())
        axis.set_title(f"shifts of blocks beside the whole's, up to {longest:.2f} m", fontsize=10)
    axis.plot(at[~known][:, 0], at[~known][:, 1], "x", color="tab:red")
    axis.set(xticks=[], yticks=[])
    return figure


def ellipse_figure(found: Coregistration) -> Any:
    """The horizontal shift with the ellipse that holds 95 % of its error."""
    from matplotlib.patches import Ellipse

    east, north = found.shift[:2]
    values, vectors = np.linalg.eigh(found.covariance[:2, :2])
    narrow, wide = WITHIN * np.sqrt(np.maximum(values, 0))
    angle = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
    figure = figure_of(4.2, 4.0)
    axis = figure.subplots()
    face = {"facecolor": "tab:blue", "alpha": 0.35, "edgecolor": "tab:blue"}
    axis.add_patch(Ellipse((east, north), 2 * wide, 2 * narrow, angle=angle, **face))
    axis.plot(east, north, ".", color="tab:blue")
    reach = 1.6 * max(wide, 1e-9)
    axis.set(xlim=(east - reach, east + reach), ylim=(north - reach, north + reach), aspect="equal")
    axis.set_xlabel("metres east", fontsize=9)
    axis.set_ylabel("metres north", fontsize=9)
    axis.ticklabel_format(useOffset=False)
    axis.tick_params(labelsize=8)
    axis.locator_params(nbins=4)
    return figure
