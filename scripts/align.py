"""Align overlapping maps from the command line.

    python scripts/align.py +experiment=multiscale                      # bundled real rasters with known truth
    python scripts/align.py maps='[a.png,b.tif]' model=affine           # your own
    python scripts/align.py +experiment=scale_sync                      # scale maps from their ratios
    python scripts/align.py +experiment=dem                             # an elevation model on another, in metres
    python scripts/align.py pairs=pairs.csv n_jobs=4                    # many pairs, each by itself; pairs=all maps=...
    python scripts/align.py -m maps='[a.png,b.tif]' model=se2,sim2      # a sweep: every model, one table
    python scripts/align.py maps='[a.tif,b.tif]' memory=8GB mosaic=feather   # larger than that: read in windows
    python scripts/align.py resume=outputs/align/DAY/TIME               # go on after a kill

Of a run, report.html is what to open first: before and after, what became of every map and why, the options.

Exit codes: 0 done; 1 nothing could be aligned; 2 the command is not valid; 3 some map was left out (with
strict=true); 4 a file could not be written (a full disk): what was written before it is whole; 5 a job of a sweep
did not end with 0: the table says which; 130 interrupted (Ctrl-C, SIGTERM).
"""

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
import torch
from big import run_big, too_big
from command_line import LEFT_OUT, NOTHING_DONE, CommandError, console, errors, exit_with, start
from elevation import inputs_of, run_dem
from omegaconf import DictConfig
from pairs import run_pairs
from resuming import Resumable, given, resumable, said_whole, with_recorded
from rich.markup import escape
from rich.table import Table
from scale_maps import run_scale_sync, views_of
from schemas import AlignmentOptions

from mslsq.alignment import Alignment, MapStatus, Stage, align
from mslsq.alignment.big.files import rasterio_here
from mslsq.alignment.big.overviews import add_overviews
from mslsq.alignment.coordinates.outputs import GEOTRANSFORM, OUTPUTS
from mslsq.alignment.coordinates.writing import can_hold
from mslsq.alignment.options import SCALE_RANGE
from mslsq.alignment.output_names import refuse_to_overwrite_inputs
from mslsq.alignment.outputs import Aligned, describe, write_all
from mslsq.alignment.report.text import printable
from mslsq.alignment.scenes import Scene, scene_from_bundled, scene_from_files
from mslsq.validation import integer, one_of

USED, IGNORED = GEOREFERENCES = "auto", "ignore"
OPTIONS = tuple(option.name for option in fields(AlignmentOptions))


def as_list(config: dict[str, Any], name: str) -> list[Any]:
    value = config[name]
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def scenes_of(config: dict[str, Any]) -> list[Scene]:
    """The user's files as one scene, or the bundled ones."""
    maps = as_list(config, "maps")
    if maps:
        return [scene_from_files(maps, as_list(config, "masks"), config["nodata"])]
    bundled = dict(config["bundled"])
    rasters = bundled.pop("rasters")
    seed = bundled.pop("seed")
    names: list[Any] = [rasters] if isinstance(rasters, str) else list(rasters or ())
    if not names:
        raise CommandError("neither maps nor bundled.rasters are given: there is nothing to align.")
    scenes = []
    for i, name in enumerate(names):
        times = names[:i].count(name)  # the same raster once more, with another seed, has a name of its own
        scene = f"{name}-{times + 1}" if times else name
        scenes.append(scene_from_bundled(name, **bundled, seed=seed + i, name=scene))
    return scenes


def reference_of(config: dict[str, Any], scene: Scene) -> int:
    """The reference as an index, from an index or a file name."""
    given = config["reference"]
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < len(scene.names):
        return given
    if isinstance(given, str):
        found = [
            i for i, name in enumerate(scene.names) if given in (name, Path(name).stem) or Path(given).name == name
        ]
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(f"{i} {scene.names[i]}" for i in found)
            raise CommandError(f"reference={given!r} is the name of several maps: {several}. Give its number.")
    raise CommandError(
        f"reference={given!r} is none of the maps: {', '.join(f'{i} {n}' for i, n in enumerate(scene.names))}."
    )


def pixel_sizes_of(config: dict[str, Any], scene: Scene) -> list[float] | None:
    """As they are given, or as the files have them. Of a file that cannot be read it does not matter."""
    given = config["pixel_sizes"]
    if given != "files":
        return None if given is None else [float(size) for size in given]
    headers = scene.headers()
    for name, raster, header in zip(scene.names, scene.rasters, headers, strict=True):
        if raster is not None and header is None:
            raise CommandError(f"pixel_sizes=files: {name} has no georeference in it or beside it; give numbers.")
    if config["georeference"] == USED:
        return None  # they come with the georeferences, whatever their units are
    if len({header.crs for header in headers if header is not None}) > 1:
        raise CommandError("pixel_sizes=files: the maps are of several projections, so that their units may differ.")
    return [1.0 if header is None else header.mean_pixel_size for header in headers]


def refuse_headers_that_cannot_be_written(config: dict[str, Any], scene: Scene) -> None:
    """output=geotransform, asked before the work begins."""
    one_of("output", config["output"], OUTPUTS)
    one_of("georeference", config["georeference"], GEOREFERENCES)
    if config["output"] != GEOTRANSFORM:
        return
    reference = reference_of(config, scene)
    if config["model"] in ("homography", "piecewise"):
        raise CommandError(
            f"output=geotransform: a header holds an affine map, and model={config['model']} is none; write "
            "output=resampled, or use model=affine."
        )
    if config["georeference"] == IGNORED or scene.headers()[reference] is None:
        raise CommandError(
            f"output=geotransform: the reference {scene.names[reference]} has no georeference that is used: there is "
            "nothing to put the others into."
        )
    for name, raster in zip(scene.names, scene.rasters, strict=True):
        if raster is not None and raster.path is not None and raster.kind.ros is None and not can_hold(raster.path):
            raise CommandError(f"output=geotransform: {name} cannot hold a georeference; save it as GeoTIFF.")


def solve(scene: Scene, config: dict[str, Any]) -> Alignment:
    """Align one scene, a line per level and map. Unreadable maps go in as empty ones and come out with their reason."""

    def progress(stage: Stage) -> None:
        if config["quiet"]:
            return
        rows, columns = stage.size
        rms = f"rms {stage.rms[0]:.4f} → {stage.rms[-1]:.4f}" if stage.rms else ""
        console.print(
            f"  {shown(f'{scene.names[stage.map]:<24.24}')} level {stage.level} ({columns:>4} × {rows:<4}) "
            f"{stage.model:<11} {stage.loss:<7} "
            f"{len(stage.rms):>3} steps  {rms}  correlation {stage.ncc:.4f}  overlap {stage.overlap:.0%}"
        )

    if not config["quiet"]:
        console.print(
            f"[bold]{shown(scene.name)}[/]: {len(scene.names)} maps, "
            f"reference {shown(scene.names[reference_of(config, scene)])}"
        )
    options: dict[str, Any] = {name: config[name] for name in OPTIONS}
    headers = scene.headers() if config["georeference"] == USED else []
    options["pixel_sizes"] = pixel_sizes_of(config, scene)
    options["georeferences"] = headers if any(headers) else None
    if config["pixel_sizes"] == "files" and config["scale_range"] is None:
        options["scale_range"] = SCALE_RANGE
    result = align(**scene.to_align(), reference=reference_of(config, scene), progress=progress, **options)
    for i, problem in scene.problems.items():
        result.reasons[i] = f"Left out: {problem}"
    return result


def table_of(items: list[Aligned]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in ("map", "status", "correlation", "overlap", "± px", "error px"):
        table.add_column(name, justify="left" if name in ("map", "status") else "right")
    number = lambda value, form: "" if value is None else format(value, form)  # noqa: E731
    for record in [record for item in items for record in describe(item)]:
        table.add_row(
            shown(record["name"]),
            record["status"],
            number(record["ncc"], ".4f"),
            number(record["overlap"], ".0%"),
            number(record["corner_sigma_px"], ".4f"),
            number(record.get("corner_error_px"), ".4f"),
        )
    return table


def run(config: dict[str, Any], folder: Path) -> int:
    """The whole command; returns the exit code."""
    integer("threads", config["threads"], 1)
    one_of("task", config["task"], list(TASKS))
    if config["overviews"]:
        rasterio_here()  # asked before the work begins
    torch.set_num_threads(config["threads"])
    return TASKS[config["task"]](config, folder)


def say_what_suits(config: dict[str, Any], scene: Scene) -> None:
    """Unknown cells of ROS's maps are masked, and with them goes the border of most walls: values have little left."""
    ros = [raster.kind.ros is not None for raster in scene.rasters if raster is not None]
    if ros and all(ros) and config["metric"] != "occupancy":
        errors.print("[yellow]maps of ROS:[/] metric=occupancy compares walls and free space, and is made for them.")


def say_what_is_left_out(scene: Scene) -> bool:
    """Unreadable files with their reasons; False where fewer than two maps are left to align."""
    for problem in scene.problems.values():
        errors.print("[yellow]left out:[/]", shown(problem))
    for raster in scene.rasters:
        if raster is not None and raster.note:
            errors.print(f"[yellow]{shown(raster.name)}:[/]", shown(raster.note))
    readable = sum(raster is not None for raster in scene.rasters)
    if readable < 2:
        what = "one map was given" if len(scene.names) == 1 else f"{readable} of {len(scene.names)} maps can be read"
        errors.print(f"[red]nothing to align:[/] {what}, and at least two are needed.")
    return readable >= 2


def solved(scenes: list[Scene], config: dict[str, Any], run: Resumable) -> list[Aligned]:
    """All scenes; those that a killed run had solved are taken from it."""
    items = []
    for number, scene in enumerate(scenes):
        begin, result, seconds = time.perf_counter(), run.kept(number), None
        if result is not None:
            console.print(f"[bold]{shown(scene.name)}[/]: solved already, taken from {shown(str(run.folder))}")
        else:
            result = solve(scene, config)
            run.keep(number, result)
            seconds = time.perf_counter() - begin
        items.append(Aligned(scene, result, seconds))
    return items


def say_what_became(items: list[Aligned], config: dict[str, Any]) -> int:
    """The table, and why maps are left out; returns the exit code."""
    states = [
        (item.scene.names[i], MapStatus(status), item.result.reasons[i])
        for item in items
        for i, status in enumerate(item.result.status.tolist())
    ]
    console.print(table_of(items))
    for name, status, reason in states:
        if not status.ok or "but" in reason:
            errors.print(f"[yellow]{shown(name)}:[/]", shown(reason))
    if not any(status is MapStatus.ALIGNED for _, status, _ in states):
        errors.print("[red]no map could be aligned.[/]")
        return NOTHING_DONE
    return LEFT_OUT if config["strict"] and not all(status.ok for _, status, _ in states) else 0


def run_align(config: dict[str, Any], folder: Path) -> int:
    """Maps into one frame."""
    begin, maps = time.perf_counter(), as_list(config, "maps")
    if config["pairs"] is not None:
        return run_pairs(config, maps, folder, given())
    if too_big(config, maps):
        return run_big(config, maps, folder, reference_of)
    scenes = scenes_of(config)
    enough = [say_what_is_left_out(scene) for scene in scenes]
    for scene in scenes:
        refuse_headers_that_cannot_be_written(config, scene)
        say_what_suits(config, scene)
    references = [reference_of(config, scene) for scene in scenes]
    refuse_to_overwrite_inputs(scenes, references, folder)
    files = [file for scene in scenes for file in scene.files]
    run = Resumable(folder, config, files, given())
    if said_whole(run):
        return run.code
    items = solved(scenes, config, run)
    options = {name: config[name] for name in OPTIONS}
    written = write_all(items, folder, time.perf_counter() - begin, options, config["output"])
    if config["overviews"]:
        add_overviews(written)
    code = say_what_became(items, config)
    run.finish(written, code if all(enough) else NOTHING_DONE)
    console.print(f"{len(written)} files written to {shown(str(folder))}")
    for path in sorted(path for path in written if path.parent == folder):
        console.print(f"  {path.name}")
    return run.code


def shown(text: str) -> str:
    """A name or a reason on the console: nothing in it is mark-up or a command to the terminal."""
    return escape(printable(text))


TASKS = {
    "align": run_align,
    "scale_sync": resumable(run_scale_sync, views_of),
    "dem": resumable(run_dem, inputs_of),
}


@hydra.main(version_base="1.3", config_path="../configs", config_name="align")
def main(settings: DictConfig) -> int:
    return exit_with(run, settings)


if __name__ == "__main__":
    start(main, __doc__ or "", "align", list(TASKS), with_recorded)
