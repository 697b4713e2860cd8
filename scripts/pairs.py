"""`pairs=` of `scripts/align.py`: every pair of a table, or of all maps, aligned by itself; one table of results."""

import csv
import io
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import LEFT_OUT, NOTHING_DONE, CommandError, console, errors
from resuming import Resumable, said_whole
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mslsq.alignment import CONVENTION, Pair, PairAlignment, align_pairs
from mslsq.alignment.pairs import OPTIONS
from mslsq.alignment.report.text import printable
from mslsq.alignment.scenes import files_of
from mslsq.alignment.stacks import split
from mslsq.alignment.tables import storable
from mslsq.replacing import write_text

ALL = "all"
NEEDED, POSSIBLE = ("reference", "map"), ("initial", "model")
ONE_ALIGNMENT = {"masks": [], "pixel_sizes": None, "output": "resampled", "reference": 0}
"""Options of a single alignment, with the values that they have where they are not given."""


def run_pairs(config: dict[str, Any], maps: list[str], folder: Path, arguments: Sequence[str]) -> int:
    """All pairs; the exit code."""
    begin = time.perf_counter()
    for name, value in ONE_ALIGNMENT.items():
        if config[name] not in (value, None):
            raise CommandError(f"{name} is for one alignment, not for pairs: leave it out.")
    pairs, more = pairs_of(config["pairs"], maps)
    files = {split(path)[0] for pair in pairs for path in pair[:2]}
    table = [] if config["pairs"] == ALL else [Path(config["pairs"])]
    if not {path.resolve() for path in (*files, *table)}.isdisjoint((folder / name).resolve() for name in WRITTEN):
        raise CommandError(f"{folder}: an input would be overwritten; choose another hydra.run.dir.")
    run = Resumable(folder, config, [*table, *sorted(files)], arguments)
    if said_whole(run):
        return run.code
    console.print(f"{len(pairs)} pairs of {len(files)} files")
    found = aligned(pairs, config, run.progress / "pairs.jsonl")
    written = write_pairs(found, more, folder, config, time.perf_counter() - begin)
    placed = sum(one.ok for one in found)
    console.print(f"{placed} of {len(found)} pairs are aligned.")
    code = 0 if placed else NOTHING_DONE
    run.finish(written, LEFT_OUT if config["strict"] and 0 < placed < len(found) else code)
    console.print(f"{len(written)} files written to {shown(str(folder))}")
    for path in written:
        console.print(f"  {path.name}")
    return run.code


def aligned(pairs: Sequence[Pair], config: dict[str, Any], journal: Path) -> list[PairAlignment]:
    """In the order of the pairs; a bar with the time that is left, and a line for each that has no place."""
    options = {name: config[name] for name in OPTIONS}
    found: list[PairAlignment] = []
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, disable=config["quiet"],
    )  # fmt: skip
    georeferenced = config["georeference"] != "ignore"
    with bar:
        line = bar.add_task("pairs", total=len(pairs))
        how: dict[str, Any] = {"n_jobs": config["n_jobs"], "journal": journal, "georeferenced": georeferenced}
        how["nodata"] = config["nodata"]
        for one in align_pairs(pairs, **how, **options):
            found.append(one)
            bar.update(line, completed=len(found))
            if not one.ok:
                errors.print(f"[yellow]{shown(one.reference)}, {shown(one.map)}:[/]", shown(one.reason))
            elif not config["quiet"] and not console.is_terminal:
                console.print(f"  {shown(one.reference)}, {shown(one.map)}: correlation {one.ncc:.4f}")
    return sorted(found, key=lambda one: one.index)


def pairs_of(given: str, maps: list[str]) -> tuple[list[Pair], list[dict[str, str]]]:
    """The pairs, and the other columns of their table."""
    if given == ALL:
        files = files_of(maps)
        if len(files) < 2:
            raise CommandError(f"pairs=all: {len(files)} maps are given, and at least two are needed.")
        pairs = [Pair(*both) for both in itertools.combinations(files, 2)]
        return pairs, [{} for _ in pairs]
    if maps:
        raise CommandError("pairs=TABLE names its files itself: leave maps out, or use pairs=all.")
    return read_table(Path(given).expanduser())


def read_table(path: Path) -> tuple[list[Pair], list[dict[str, str]]]:
    """A csv with the columns reference and map, and initial and model if wanted; relative paths are from its folder."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            rows, names = list(reader), list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(
            f"pairs={path}: this table cannot be read: {error}. (pairs=all: every pair of maps.)"
        ) from None
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise CommandError(
            f"{path}: there is no column {missing[0]}; the first line has {', '.join(names) or 'nothing'}."
        )
    if not rows:
        raise CommandError(f"{path}: there are no pairs in this table.")
    pairs = []
    for number, row in enumerate(rows, 2):
        if not row["reference"] or not row["map"]:
            raise CommandError(f"{path}, line {number}: reference and map are both needed.")
        reference, moving = (str(path.parent / Path(row[name]).expanduser()) for name in NEEDED)
        initial = initial_of(row.get("initial"), f"{path}, line {number}")
        pairs.append(Pair(reference, moving, initial, row.get("model") or None))
    return pairs, [{name: row[name] for name in names if name not in (*NEEDED, *POSSIBLE)} for row in rows]


def initial_of(text: str | None, where: str) -> torch.Tensor | None:
    """A start from 2 numbers (the shift), 6 or 9 (rows of the matrix)."""
    words = (text or "").replace(",", " ").split()
    if not words:
        return None
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    matrix = torch.eye(3, dtype=torch.float64)
    if len(numbers) == 2:
        matrix[:2, 2] = torch.tensor(numbers)
    elif len(numbers) in (6, 9):
        matrix[: len(numbers) // 3] = torch.tensor(numbers, dtype=torch.float64).reshape(-1, 3)
    else:
        raise CommandError(f"{where}: initial must be 2 numbers (x, y), 6 or 9 (rows of the matrix), not {text!r}.")
    return matrix


WRITTEN = ("pairs.csv", "pairs.json", "metrics.json")


def write_pairs(
    found: Sequence[PairAlignment], more: Sequence[dict[str, str]], folder: Path, config: dict[str, Any], seconds: float
) -> list[Path]:
    """`pairs.csv`, a row per pair, `pairs.json`, the same with all digits, and `metrics.json`, the summary."""
    records = [one.record() for one in found]
    matrices = [f"t{row}{column}" for row in range(3) for column in range(3)]
    columns = [name for name in records[0] if name not in ("transform", "reason")]
    others = list(dict.fromkeys(name for row in more for name in row))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*columns, *matrices, *others, "reason"])
    for record, row in zip(records, more, strict=True):
        matrix = [number for numbers in record["transform"] or [[None] * 3] * 3 for number in numbers]
        rows.writerow([*(record[name] for name in columns), *matrix, *(row.get(n) for n in others), record["reason"]])
    write_text(folder / WRITTEN[0], storable(text.getvalue()))
    content = {"convention": CONVENTION, "options": {name: config[name] for name in OPTIONS}, "pairs": records}
    write_text(folder / WRITTEN[1], storable(json.dumps(content, indent=2, ensure_ascii=False) + "\n"))
    sigmas = [one.corner_sigma for one in found if one.ok]
    summary = {"pairs": len(found), "aligned": len(sigmas), "seconds": round(seconds, 3)}
    summary |= {"median_corner_sigma_px": float(np.median(sigmas))} if sigmas else {}
    write_text(folder / WRITTEN[2], json.dumps({"summary": summary}, indent=2) + "\n")
    return [folder / name for name in WRITTEN]


def shown(text: str) -> str:
    """On the console nothing in it is mark-up or a command to the terminal."""
    return escape(printable(text))
