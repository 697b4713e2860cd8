"""What a coregistration leaves in a folder: the corrected model, where terrain changed, tables, pictures, a report."""

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mslsq.alignment.canvas import Canvas
from mslsq.alignment.coordinates import Georeference
from mslsq.alignment.coordinates.outputs import write_georeferenced
from mslsq.alignment.dem.figures import arrows_figure, differences_figure, statistics_figure
from mslsq.alignment.dem.files import DemScene
from mslsq.alignment.dem.local import LocalCoregistration
from mslsq.alignment.dem.report import write_report
from mslsq.alignment.dem.result import Coregistration, on_grid
from mslsq.alignment.tables import storable
from mslsq.plotting import save_figure
from mslsq.replacing import write_text

OUTPUTS = (
    "metrics.json", "metrics.csv", "statistics.csv", "local_shifts.csv", "coregistered.tif", "coregistered.npy",
    "changed.tif", "changed.npy", "differences.png", "statistics.png", "local_shifts.png", "report.html",
    "manifest.json",
)  # fmt: skip
"""Names of all files that a run may write."""

FIGURES = ("count", "mean", "median", "nmad", "rmse")


def write_coregistration(
    scene: DemScene,
    found: Coregistration,
    local: LocalCoregistration | None,
    folder: Path,
    options: Mapping[str, Any] | None = None,
    seconds: float | None = None,
) -> list[Path]:
    """Tables and `report.html`, and where anything was found rasters on the reference's grid with its georeference, and
    pictures; the paths written."""
    written = write_tables(scene.name, found, folder)
    page: dict[str, Any] = {
        "options": options,
        "seconds": seconds,
        "title": f"Elevation model {scene.name}",
        "note": scene.note,
    }
    if not np.isfinite(found.shift[2]):
        return [*written, write_report(found, scene.reference, scene.dem, folder / "report.html", **page)]
    with_field = local is not None and np.isfinite(found.shift).all()
    moved = local.apply(scene.dem) if local is not None and with_field else found.apply(scene.dem)
    changed = torch.from_numpy(found.changed)
    small = replace(scene.kind, dtype=np.dtype(np.uint8), nodata=None, metadata=None)
    written += _write_grid(scene, folder / "coregistered.tif", torch.from_numpy(moved), scene.kind)
    written += _write_grid(scene, folder / "changed.tif", changed.double(), small)
    before = on_grid(torch.from_numpy(scene.dem), found.shape, found.offset).numpy() - scene.reference
    figures = {
        "differences.png": differences_figure(before, moved - scene.reference, found),
        "statistics.png": statistics_figure(found),
    }
    if local is not None:
        figures["local_shifts.png"] = arrows_figure(local, scene.reference)
        header = None if scene.georeferences is None else scene.georeferences[0]
        written.append(write_blocks(local, header, folder))
    written += [save_figure(figure, folder / name) for name, figure in figures.items()]
    page |= {"local": local, "moved": moved}
    return [*written, write_report(found, scene.reference, scene.dem, folder / "report.html", **page)]


def _write_grid(scene: DemScene, path: Path, values: torch.Tensor, kind: Any) -> list[Path]:
    canvas = Canvas(0, 0, *values.shape)
    return write_georeferenced(path, values[None], values.isfinite(), kind, scene.grid, canvas)


def summary_of(found: Coregistration) -> dict[str, Any]:
    """The answer as a row of plain numbers, for `metrics.csv` and for the table of a sweep."""
    east, north, up = map(_number, found.shift)
    errors = map(_number, found.standard_errors)
    return {
        "status": found.status.name.lower(), "bias": found.bias, "east_m": east, "north_m": north, "up_m": up,
        **dict(zip(("sigma_east_m", "sigma_north_m", "sigma_up_m"), errors, strict=True)),
        "nmad_before_m": _number(found.nmad_before), "nmad_m": _number(found.nmad),
        "median_before_m": _number(found.before.whole["median"]), "median_m": _number(found.after.whole["median"]),
        "overlap": _number(found.overlap), "changed_share": found.changed_share,
        "correlation_length_m": _number(found.correlation_length), "reason": found.reason,
    }  # fmt: skip


def _number(value: Any) -> float | None:
    if isinstance(value, int):
        return value
    return float(value) if np.isfinite(value) else None


def write_tables(name: str, found: Coregistration, folder: Path) -> list[Path]:
    """`metrics.csv`, a row for the model, and `statistics.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"name": name, **summary_of(found)}
    metrics = _write_csv(folder / "metrics.csv", list(record), [list(record.values())])
    return [metrics, _write_statistics(found, folder)]


def _write_statistics(found: Coregistration, folder: Path) -> Path:
    """`statistics.csv`: a row per class of terrain, metres before and after."""
    rows = []
    before, after = found.before.record(), found.after.record()
    for kind, classes in {"whole": {"stable": None}, **{k: v for k, v in after.items() if k != "whole"}}.items():
        for name in classes:
            pair = (before[kind], after[kind]) if kind == "whole" else (before[kind][name], after[kind][name])
            rows.append([kind, name, *(_number(one[figure]) for one in pair for figure in FIGURES)])
    columns = [f"{figure}_{when}" for when in ("before", "after") for figure in FIGURES]
    return _write_csv(folder / "statistics.csv", ["by", "class", *columns], rows)


def write_blocks(local: LocalCoregistration, reference: Georeference | None, folder: Path) -> Path:
    """`local_shifts.csv`: a row per block; x and y are those of its middle in the reference's coordinates."""
    rows = []
    for i, j in np.ndindex(*local.centres.shape[:2]):
        centre = local.centres[i, j]
        world = [None] * 2 if reference is None else reference.to_world([centre])[0].tolist()
        numbers = map(_number, (*local.shifts[i, j], *local.standard_errors[i, j]))
        rows.append([i, j, *centre.tolist(), *world, *numbers, local.reasons[i][j]])
    names = ["row", "column", "pixel_x", "pixel_y", "x", "y"]
    names += [f"{kind}{axis}_m" for kind in ("", "sigma_") for axis in ("east", "north", "up")]
    return _write_csv(folder / "local_shifts.csv", [*names, "reason"], rows)


def _write_csv(path: Path, names: list[str], rows: list[list[Any]]) -> Path:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerows([names, *rows])
    write_text(path, storable(text.getvalue()))
    return path
