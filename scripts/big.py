"""Files that do not fit in memory, for `scripts/align.py`: read in windows where `memory=` says so."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command_line import LEFT_OUT, NOTHING_DONE, CommandError, console, errors
from resuming import Resumable, given, said_whole
from rich.markup import escape

from mslsq.alignment import MapStatus, RasterFile, Stage, align_files
from mslsq.alignment.big.align_files import PASSED_ON, opened
from mslsq.alignment.big.memory import bytes_of, fits_whole
from mslsq.alignment.big.mosaic import BLENDS
from mslsq.alignment.big.outputs import COVERAGE, header_scene, write_files
from mslsq.alignment.kinds import TIFF_SUFFIXES
from mslsq.alignment.output_names import refuse_to_overwrite_inputs, refuse_to_replace
from mslsq.alignment.report.text import printable
from mslsq.alignment.scenes import Scene, distinct, files_of
from mslsq.validation import one_of

NOT_DONE = {"masks": [], "pixel_sizes": None}
"""Options that need maps in memory, with what they are where they are not given."""


def too_big(config: dict[str, Any], maps: list[str]) -> bool:
    """Would these files need more than `memory` if they were read whole?"""
    limit = bytes_of(config["memory"])
    one_of("mosaic", config["mosaic"], BLENDS)
    if not maps:
        return False
    pixels = sum(pixels_of(Path(path).expanduser()) for path in files_of(maps))
    return not fits_whole(pixels, limit)


def pixels_of(path: Path) -> int:
    """Numbers in a TIFF by its header; 0 of what is not there, or no TIFF: those are read whole, or say why not."""
    if path.suffix.lower() not in TIFF_SUFFIXES or not path.is_file():
        return 0
    import tifffile

    try:
        with tifffile.TiffFile(path) as tiff:
            first: Any = tiff.pages[0]
            return int(first.imagelength) * int(first.imagewidth) * int(first.samplesperpixel)
    except Exception:  # a damaged file: what reads it whole says what is wrong
        return 0


def run_big(
    config: dict[str, Any], maps: list[str], folder: Path, reference_of: Callable[[dict[str, Any], Scene], int]
) -> int:
    """Align, merge window by window, and say what was used; the exit code."""
    begin = time.perf_counter()
    console.print(
        f"[bold]in windows:[/] read whole, these maps would need more than memory={escape(str(config['memory']))}."
    )
    _refuse(config)
    paths = [Path(path) for path in files_of(maps)]
    files, problems = opened(paths, config["georeference"] == "auto", config["nodata"])
    scene = header_scene("maps", distinct([path.name or str(path) for path in paths]), files, problems)
    reference = reference_of(config, scene)
    if not _usable(scene, files):
        return NOTHING_DONE
    base = files[reference]
    if config["output"] == "geotransform" and (base is None or base.georeference is None):
        raise CommandError(f"output=geotransform: the reference {scene.names[reference]} has no georeference.")
    refuse_to_overwrite_inputs([scene], [reference], folder)
    refuse_to_replace(scene.files, [folder / COVERAGE], "hydra.run.dir")
    run = Resumable(folder, config, scene.files, given())
    if said_whole(run):
        return run.code
    options = {name: config[name] for name in PASSED_ON}
    result = align_files(
        paths,
        reference=reference,
        memory=config["memory"],
        init=config["init"],
        georeference=config["georeference"] == "auto",
        nodata=config["nodata"],
        progress=None if config["quiet"] else lambda stage: _say(scene, stage),
        **options,
    )
    if any(i != reference for i in result.aligned):
        written, notes = write_files(
            result,
            scene,
            folder,
            time.perf_counter() - begin,
            options,
            config["output"],
            config["mosaic"],
            overviews=config["overviews"],
        )
    else:
        written, notes = [], result.notes
    for name, status, reason in zip(scene.names, result.status.tolist(), result.reasons, strict=True):
        (console if MapStatus(status).ok else errors).print(f"[bold]{_shown(name)}[/]:", _shown(reason))
    for i in result.aligned:
        if i != reference:
            console.print(f"  {_shown(scene.names[i])}: ± {float(result.corner_sigma[i]):.4f} px")
    for note in notes:
        console.print(_shown(note))
    console.print(f"{len(written)} files written to {_shown(str(folder))}")
    if not written:
        errors.print("[red]no map could be aligned.[/]")
    left_out = config["strict"] and len(result.aligned) < len(paths)
    run.finish(written, LEFT_OUT if left_out and written else 0 if written else NOTHING_DONE)
    return run.code


def _refuse(config: dict[str, Any]) -> None:
    for name, default in NOT_DONE.items():
        if config[name] != default:
            raise CommandError(
                f"{name}={config[name]!r} needs maps in memory, and these are read in windows: leave it out, or raise "
                f"memory={config['memory']}."
            )
    if not isinstance(config["init"], str):
        raise CommandError("init: a word is expected.")


def _usable(scene: Scene, files: list[RasterFile | None]) -> bool:
    for problem in scene.problems.values():
        errors.print("[yellow]left out:[/]", _shown(problem))
    for file in files:
        if file is not None and file.note:
            errors.print(f"[yellow]{_shown(file.name)}:[/]", _shown(file.note))
    readable = sum(file is not None for file in files)
    if readable < 2:
        errors.print(f"[red]nothing to align:[/] {readable} of {len(files)} maps can be read, and two are needed.")
    return readable >= 2


def _say(scene: Scene, stage: Stage) -> None:
    rows, columns = stage.size
    console.print(
        f"  {_shown(f'{scene.names[stage.map]:<24.24}')} level {stage.level} ({columns:>5} × {rows:<5}) "
        f"{stage.model:<11} {len(stage.rms):>3} steps  correlation {stage.ncc:.4f}"
    )


def _shown(text: str) -> str:
    return escape(printable(text))
