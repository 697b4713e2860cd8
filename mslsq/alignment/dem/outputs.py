"""What a coregistration leaves in a folder: the corrected model, where terrain changed, and pictures in metres."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mslsq.alignment.dem.files import DemScene
from mslsq.alignment.dem.local import LocalCoregistration
from mslsq.alignment.dem.result import Coregistration, on_grid
from mslsq.alignment.dem.statistics import ASPECTS
from mslsq.alignment.kinds import Kind
from mslsq.alignment.rasters import write_raster
from mslsq.replacing import replacing


def write_coregistration(
    scene: DemScene, found: Coregistration, local: LocalCoregistration | None, folder: Path
) -> list[Path]:
    """Rasters on the reference's grid with its georeference, and pictures; the paths written."""
    if not np.isfinite(found.shift[2]):
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with_field = local is not None and np.isfinite(found.shift).all()
    moved = local.apply(scene.dem) if local is not None and with_field else found.apply(scene.dem)
    kind = Kind(scene.kind.suffix, np.dtype(np.float32))
    values = torch.from_numpy(moved)
    written = [
        write_raster(folder / "coregistered.tif", values[None], values.isfinite(), kind, scene.kind.geotags),
        _write_changed(scene, found, folder),
    ]
    before = on_grid(torch.from_numpy(scene.dem), found.shape, found.offset).numpy() - scene.reference
    written.append(
        _picture(folder / "differences.png", lambda plt: _differences(plt, before, moved - scene.reference, found))
    )
    written.append(_picture(folder / "statistics.png", lambda plt: _statistics(plt, found)))
    if local is not None:
        written.append(_picture(folder / "local_shifts.png", lambda plt: _arrows(plt, local, scene)))
    return written


def _write_changed(scene: DemScene, found: Coregistration, folder: Path) -> Path:
    changed = torch.from_numpy(found.changed)
    kind = Kind(scene.kind.suffix, np.dtype(np.uint8))
    return write_raster(
        folder / "changed.tif", changed[None].double(), torch.ones_like(changed), kind, scene.kind.geotags
    )


def _picture(path: Path, draw: Any) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = draw(pyplot)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    pyplot.close(figure)
    return path


def _differences(plt: Any, before: np.ndarray, after: np.ndarray, found: Coregistration) -> Any:
    """dem - reference before and after, each in colours of its own range, with what was taken for changed outlined."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    for axis, values, title, of in zip(
        axes, (before, after), ("before", "after"), (found.before.whole, found.after.whole), strict=True
    ):
        middle = np.nanmedian(values)
        reach = max(np.nanquantile(np.abs(values - middle), 0.98), 1e-6)
        image = axis.imshow(values, cmap="RdBu", vmin=middle - reach, vmax=middle + reach, interpolation="nearest")
        axis.set_title(f"dem - reference, {title}: median {of['median']:+.2f} m, NMAD {of['nmad']:.2f} m", fontsize=10)
        axis.set(xticks=[], yticks=[])
        figure.colorbar(image, ax=axis, label="metres", shrink=0.85)
    if found.changed.any():
        axes[1].contour(found.changed, levels=[0.5], colors="black", linewidths=0.8)
        axes[1].set_xlabel("outlined: taken for changed terrain, not used", fontsize=9)
    return figure


def _statistics(plt: Any, found: Coregistration) -> Any:
    """The spread by slope, and the medians by aspect: a horizontal shift shows there as a wave."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
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
    right.axhline(0, color="black", linewidth=0.5)
    left.legend()
    right.legend()
    return figure


def _arrows(plt: Any, local: LocalCoregistration, scene: DemScene) -> Any:
    """Each block's shift beside the whole's, over the reference; a cross where a block has none."""
    figure, axis = plt.subplots(figsize=(6.5, 6), layout="constrained")
    axis.imshow(scene.reference, cmap="gray")
    apart = local.shifts - np.nan_to_num(local.whole.shift)
    known = np.isfinite(apart[..., 0])
    steps = apart[..., :2] @ np.linalg.inv(local.whole.metres).T
    at = local.centres
    if known.any():
        arrows = axis.quiver(
            at[known][:, 0], at[known][:, 1], steps[known][:, 0], steps[known][:, 1], apart[known][:, 2], cmap="RdBu",
            angles="xy",
        )  # fmt: skip
        figure.colorbar(arrows, ax=axis, label="metres up, beside the whole's", shrink=0.8)
        longest = float(np.hypot(apart[known][:, 0], apart[known][:, 1]).max())
        axis.set_title(f"shifts of blocks beside the whole's, up to {longest:.2f} m", fontsize=10)
    axis.plot(at[~known][:, 0], at[~known][:, 1], "x", color="tab:red")
    axis.set(xticks=[], yticks=[])
    return figure
