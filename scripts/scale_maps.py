"""`task=scale_sync` of `scripts/align.py`: scale maps from ratio maps or from views with poses."""

import json
import time
from pathlib import Path
from typing import Any

from command_line import LEFT_OUT, NOTHING_DONE, console, errors
from rich.markup import escape

from mslsq.alignment.report.text import printable
from mslsq.alignment.scale_scene import ViewScene, read_scene, synthetic_ratios
from mslsq.alignment.scale_sync import scale_sync
from mslsq.alignment.scales.fields import scale_fields
from mslsq.alignment.scales.outputs import figures_of, figures_of_fields, write_fields, write_scales
from mslsq.replacing import write_text


def run_scale_sync(config: dict[str, Any], folder: Path) -> tuple[list[Path], int]:
    """Synthetic ones with known truth, or the user's file; the files written, and the exit code."""
    begin = time.perf_counter()
    options = dict(config["scale_sync"])
    file, grid = options.pop("file"), tuple(options.pop("grid"))
    scene = read_scene(file) if file else synthetic_ratios(**{**options, "size": tuple(options["size"])})
    if isinstance(scene, ViewScene):
        views = f"{len(scene.depths)} views, a grid of {grid[0]} x {grid[-1]}"
        console.print(f"[bold]{escape(printable(scene.name))}[/]: {views}")
        fields_found = scale_fields(scene.depths, scene.intrinsics, scene.poses, grid=grid)
        console.print(escape(printable(fields_found.message())))
        written = write_fields(scene, fields_found, folder)
        figures = {**figures_of_fields(scene, fields_found), "seconds": time.perf_counter() - begin}
        return write_figures(figures, written), LEFT_OUT if config["strict"] and fields_found.alone else 0
    pairs, cells = len(scene.pairs), scene.ratios[0].numel()
    console.print(f"[bold]{escape(printable(scene.name))}[/]: {pairs} ratio maps of {cells} cells")
    result = scale_sync(scene.ratios, scene.pairs)
    console.print(escape(printable(result.message())))
    written = write_scales(scene, result, folder)
    figures = {**figures_of(scene, result), "seconds": time.perf_counter() - begin}
    written = write_figures(figures, written)
    if not figures["cells_answered"]:
        errors.print("[red]no cell has an answer:[/] no ratio is positive and finite.")
        return written, NOTHING_DONE
    return written, LEFT_OUT if config["strict"] and figures["cells_answered"] < cells else 0


def views_of(config: dict[str, Any]) -> list[Path]:
    """The file that scale maps come from."""
    file = config["scale_sync"]["file"]
    return [] if file is None else [Path(file)]


def write_figures(figures: dict[str, Any], written: list[Path]) -> list[Path]:
    """The figures to the console, and to `metrics.json` beside the files that are written; all of these."""
    written = [*written, written[0].parent / "metrics.json"]
    for name, value in figures.items():
        console.print(f"  {name:<28} {value:.4g}" if isinstance(value, float) else f"  {name:<28} {value}")
    write_text(written[-1], json.dumps(figures, indent=2) + "\n")
    return written
