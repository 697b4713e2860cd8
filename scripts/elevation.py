"""`task=dem` of `scripts/align.py`: an elevation model laid on another, its files and its table."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from big import pixels_of
from command_line import LEFT_OUT, NOTHING_DONE, CommandError, console, errors
from rich.markup import escape
from rich.table import Table

from mslsq.alignment import (
    Coregistration,
    CoregistrationError,
    CoregistrationStatus,
    RasterError,
    coregister,
    coregister_blocks,
    coregister_files,
    coregister_files_blocks,
)
from mslsq.alignment.big.elevation_outputs import write_files
from mslsq.alignment.big.elevations import ElevationFile
from mslsq.alignment.big.memory import bytes_of
from mslsq.alignment.big.overviews import add_overviews
from mslsq.alignment.dem.files import DemScene, made_scene, read_scene
from mslsq.alignment.dem.outputs import OUTPUTS, summary_of, write_coregistration
from mslsq.alignment.dem.report import classes_of
from mslsq.alignment.output_names import refuse_to_replace
from mslsq.replacing import write_text

BYTES_PER_PIXEL = 450
"""Of the larger model: 4.0 GB were measured of two of 3,000 x 3,000."""


def refuse_too_big(pixels: int, memory: int) -> None:
    """Before a machine kills the process without a word. `memory` in bytes, all that the machine has.

    Raises:
        CommandError: these pixels would need more.
    """
    if BYTES_PER_PIXEL * pixels > memory:
        raise CommandError(
            f"these elevation models are read whole: {pixels:,} pixels need some {BYTES_PER_PIXEL * pixels / 1e9:.0f} "
            f"GB, and this machine has {memory / 1e9:.0f}. Save both as GeoTIFF "
            "(gdal_translate): those are read in windows, by rasterio."
        )


def inputs_of(config: dict[str, Any]) -> list[Path]:
    """The files that a run reads."""
    return [Path(config["dem"][name]) for name in ("reference", "dem", "mask") if config["dem"][name] is not None]


def run_dem(config: dict[str, Any], folder: Path) -> tuple[list[Path], int]:
    """Coregister, write, and say what was found; the files, and the exit code."""
    options = dict(config["dem"])
    if config["output"] != "resampled":
        raise CommandError(
            f"output={config['output']}: a coregistered elevation model has other heights, not another header alone, "
            "and is written resampled. Leave output as it is; metrics.json has the shift in metres."
        )
    refuse_to_replace(inputs_of(config), [folder / name for name in OUTPUTS], "hydra.run.dir")
    begin = time.perf_counter()
    if _in_windows(options, bytes_of(config["memory"])):
        return _run_in_windows(config, options, folder)
    scene = scene_of(options, config["nodata"])
    if hasattr(os, "sysconf"):  # not on Windows
        pixels = max(scene.reference.size, scene.dem.size)
        refuse_too_big(pixels, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    block = options["block"]
    given: dict[str, Any] = {
        name: options[name] for name in ("bias", "loss", "min_overlap", "max_shift", "find_changes")
    }
    given |= scene.geometry() | {"mask": scene.mask}
    console.print(f"[bold]{escape(scene.name)}[/]: {scene.dem.shape[1]} x {scene.dem.shape[0]} pixels")
    if scene.note:
        errors.print(f"[yellow]{escape(scene.note)}[/]")
    local = coregister_blocks(scene.reference, scene.dem, block=block, **given) if block else None
    found = coregister(scene.reference, scene.dem, **given) if local is None else local.whole
    found = replace(found, own=scene.own)
    console.print(escape(found.message()))
    if local is not None:
        console.print(escape(local.message()))
    if found.status.ok:
        console.print(table_of(found))
    seconds = time.perf_counter() - begin
    summary = {**summary_of(found), "seconds": round(seconds, 3)}
    record = {"summary": summary, "name": scene.name, "note": scene.note, **found.record(), "seconds": seconds}
    if local is not None:
        record["blocks"] = local.record()
    if scene.shift is not None:
        record["error_m"] = (found.shift - scene.shift).tolist()
        east, north, up = record["error_m"]
        console.print(f"error against the truth: {east:+.3f} m east, {north:+.3f} m north, {up:+.3f} m up")
    write_text(folder / "metrics.json", json.dumps(record, indent=2) + "\n")
    written = [folder / "metrics.json", *write_coregistration(scene, found, local, folder, options, seconds)]
    if config["overviews"]:
        add_overviews(written)
    return written, _ending(config, found)


def _ending(config: dict[str, Any], found: Coregistration) -> int:
    """The exit code."""
    if not np.isfinite(found.shift[2]):
        errors.print("[red]nothing could be coregistered:[/]", escape(found.reason))
        return NOTHING_DONE
    left_out = config["strict"] and found.status is not CoregistrationStatus.COREGISTERED
    return LEFT_OUT if left_out else 0


def _in_windows(options: dict[str, Any], memory: int) -> bool:
    """Would both need more than `memory` whole, and can they be read in windows?"""
    if None in (options["reference"], options["dem"]):
        return False
    paths = [Path(options[name]).expanduser() for name in ("reference", "dem")]
    pixels = [pixels_of(path) for path in paths]
    if not all(pixels) or BYTES_PER_PIXEL * max(pixels) <= memory:
        return False
    try:
        return all(ElevationFile.open(path) for path in paths)
    except (RasterError, CoregistrationError):
        return False  # what reads them whole says what is wrong


def _run_in_windows(config: dict[str, Any], options: dict[str, Any], folder: Path) -> tuple[list[Path], int]:
    begin = time.perf_counter()
    name = f"{Path(options['dem']).name} on {Path(options['reference']).name}"
    console.print(f"[bold]{escape(name)}[/], in windows: whole, they need more than memory={config['memory']}.")
    size = options["pixel_size"]
    asked = {
        key: options[key] for key in ("mask", "buffer", "bias", "loss", "min_overlap", "max_shift", "find_changes")
    }
    progress = None if config["quiet"] else _Windows()
    asked |= {"pixel_size": tuple(size) if isinstance(size, list | tuple) else size}
    asked |= {"memory": config["memory"], "progress": progress, "nodata": config["nodata"]}
    paths, block = (options["reference"], options["dem"]), options["block"]
    local = coregister_files_blocks(*paths, block=block, **asked) if block else None
    found: Any = coregister_files(*paths, **asked) if local is None else local.whole
    console.print(escape(found.message()))
    if local is not None:
        console.print(escape(local.message()))
    if found.status.ok:
        console.print(table_of(found))
    seconds = time.perf_counter() - begin
    written = write_files(found, name, folder, options, seconds, progress, local, config["overviews"])
    seconds = time.perf_counter() - begin
    summary = {**summary_of(found), "seconds": round(seconds, 3)}
    record = {"summary": summary, "name": name, "note": " ".join(found.notes), **found.record(), "seconds": seconds}
    if local is not None:
        record["blocks"] = local.record()
    write_text(folder / "metrics.json", json.dumps(record, indent=2) + "\n")
    return [folder / "metrics.json", *written], _ending(config, found)


class _Windows:
    """A line for every quarter of a pass, with what it will take."""

    def __init__(self) -> None:
        self.words, self.begin, self.said = "", 0.0, 0

    def __call__(self, words: str, done: int, total: int) -> None:
        if words != self.words:
            self.words, self.begin, self.said = words, time.perf_counter(), 0
        if 4 * done // total > self.said:
            self.said = 4 * done // total
            left = (time.perf_counter() - self.begin) * (total - done) / max(done - 1, 1)
            rest = f", some {left:.0f} s left" if done < total else ""
            console.print(f"  {words}: {done} of {total} windows{rest}")


def scene_of(options: dict[str, Any], nodata: float | None) -> DemScene:
    """The user's files, or a pair that is made."""
    if options["reference"] is None and options["dem"] is None:
        return made_scene(options["seed"])
    if options["reference"] is None or options["dem"] is None:
        raise CommandError("dem.reference and dem.dem are both needed, or neither: then a pair is made.")
    paths = options["reference"], options["dem"], options["mask"]
    return read_scene(*paths, options["pixel_size"], options["buffer"], nodata)


def table_of(found: Coregistration) -> Table:
    """The differences before and after, by class."""
    table = Table(box=None, header_style="bold")
    for name in ("terrain", "pixels", "median before", "after, m", "NMAD before", "after, m"):
        table.add_column(name, justify="left" if name == "terrain" else "right")
    for name, before, after in classes_of(found):
        if after["count"]:
            numbers = (before["median"], after["median"], before["nmad"], after["nmad"])
            table.add_row(name, f"{after['count']:,}", *(f"{number:.3f}" for number in numbers))
    return table
