"""`task=dem` of `scripts/align.py`: an elevation model laid on another, its files and its table."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from command_line import LEFT_OUT, NOTHING_DONE, CommandError, console, errors
from rich.markup import escape
from rich.table import Table

from mslsq.alignment import Coregistration, CoregistrationStatus, coregister, coregister_blocks
from mslsq.alignment.dem.files import DemScene, made_scene, read_scene
from mslsq.alignment.dem.outputs import summary_of, write_coregistration
from mslsq.alignment.dem.report import classes_of
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
            f"elevation models are read whole: {pixels:,} pixels need some {BYTES_PER_PIXEL * pixels / 1e9:.0f} GB, "
            f"and this machine has {memory / 1e9:.0f}. Cut both into parts (gdal_translate -projwin), or make their "
            "pixels larger (gdalwarp -tr ... -r average); a shift in metres holds for all parts."
        )


def inputs_of(config: dict[str, Any]) -> list[Path]:
    """The files that a run reads."""
    return [Path(config["dem"][name]) for name in ("reference", "dem", "mask") if config["dem"][name] is not None]


def run_dem(config: dict[str, Any], folder: Path) -> tuple[list[Path], int]:
    """Coregister, write, and say what was found; the files, and the exit code."""
    options = dict(config["dem"])
    begin = time.perf_counter()
    scene = scene_of(options)
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
    console.print(escape(found.message()))
    if local is not None:
        console.print(escape(local.message()))
    if found.status.ok:
        console.print(table_of(found))
    seconds = time.perf_counter() - begin
    summary = {**summary_of(found), "seconds": round(seconds, 3)}
    record = {"summary": summary, "name": scene.name, "note": scene.note, **scene.record(found), "seconds": seconds}
    if local is not None:
        record["blocks"] = local.record()
    if scene.shift is not None:
        record["error_m"] = (found.shift - scene.shift).tolist()
        east, north, up = record["error_m"]
        console.print(f"error against the truth: {east:+.3f} m east, {north:+.3f} m north, {up:+.3f} m up")
    write_text(folder / "metrics.json", json.dumps(record, indent=2) + "\n")
    written = [folder / "metrics.json", *write_coregistration(scene, found, local, folder, options, seconds)]
    if not np.isfinite(found.shift[2]):
        errors.print("[red]nothing could be coregistered:[/]", escape(found.reason))
        return written, NOTHING_DONE
    left_out = config["strict"] and found.status is not CoregistrationStatus.COREGISTERED
    return written, LEFT_OUT if left_out else 0


def scene_of(options: dict[str, Any]) -> DemScene:
    """The user's files, or a pair that is made."""
    if options["reference"] is None and options["dem"] is None:
        return made_scene(options["seed"])
    if options["reference"] is None or options["dem"] is None:
        raise CommandError("dem.reference and dem.dem are both needed, or neither: then a pair is made.")
    return read_scene(options["reference"], options["dem"], options["mask"], options["pixel_size"], options["buffer"])


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
