"""What a run on elevation models beyond memory writes: both rasters, tables, and a report of the reduced models."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mslsq.alignment.big.coregister_files import FilesCoregistration
from mslsq.alignment.big.passing import Progress
from mslsq.alignment.big.write_elevations import write_coregistered
from mslsq.alignment.dem.figures import arrows_figure, differences_figure, statistics_figure
from mslsq.alignment.dem.local import LocalCoregistration
from mslsq.alignment.dem.outputs import write_blocks, write_tables
from mslsq.alignment.dem.report import write_report
from mslsq.alignment.dem.result import Coregistration, elevations, on_grid
from mslsq.plotting import save_figure

NUMBERS = (
    "shift", "covariance", "coefficients", "coefficient_errors", "bias", "status", "reason", "overlap", "changed",
    "correlation_length", "before", "after",
)  # fmt: skip


def write_files(
    result: FilesCoregistration,
    name: str,
    folder: Path,
    options: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    progress: Progress | None = None,
    local: LocalCoregistration | None = None,
    overviews: bool = False,
) -> list[Path]:
    """Tables and `report.html`, and where anything was found both rasters, and pictures of the reduced models; the
    shifts of blocks where they were looked for."""
    assert result.reduced is not None
    written = write_tables(name, result, folder)
    reference, dem = result.reduced
    page: dict[str, Any] = {"options": options, "seconds": seconds, "title": f"Elevation model {name}"}
    if result.factor > 1:
        page["note"] = (
            f"Pictures and histogram are of the models reduced to 1/{result.factor} of their sides: means of blocks "
            "have less noise than single pixels. Tables are of all pixels."
        )
    if result.passes is None:
        return [*written, write_report(result, reference, dem, folder / "report.html", **page)]
    written += write_coregistered(
        local or result, folder / "coregistered.tif", changed=folder / "changed.tif", overviews=overviews,
        progress=progress,
    )  # fmt: skip
    view = reduced_view(result)
    moved = view.apply(dem)
    before = on_grid(elevations(dem), view.shape, view.offset).numpy() - reference
    figures = {
        "differences.png": differences_figure(before, moved - reference, view, result.factor),
        "statistics.png": statistics_figure(result),
    }
    if local is not None:
        written.append(write_blocks(local, result.passes.models.reference.seen.georeference, folder))
        local = replace(local, centres=(local.centres - (result.factor - 1) / 2) / result.factor)
        figures["local_shifts.png"] = arrows_figure(local, reference)
        page["local"] = local
    written += [save_figure(figure, folder / name) for name, figure in figures.items()]
    return [*written, write_report(result, reference, dem, folder / "report.html", moved=moved, view=view, **page)]


def reduced_view(result: FilesCoregistration) -> Coregistration:
    """The same answer in pixels of the reduced models, for pictures of them."""
    assert result.coarse is not None
    return replace(result.coarse, **{name: getattr(result, name) for name in NUMBERS})
