"""Which pairs of which kind are aligned: `metric="auto"`, values alone, and four peers, on twelve kinds.

    python benchmarks/metrics.py --half claim --pairs 20        # 240 pairs with a match
    python benchmarks/metrics.py --half claim --false 25        # 300 without: are they refused?
    python benchmarks/metrics.py --half claim --pairs 200 --json all.jsonl    # hours: may be stopped, and run again

A pair is right within 1 px (mean distance of the reference's corners); a placement farther off, or of maps without a
match, is false if the method says that it has found one. `--half choose` is what metrics and thresholds were chosen
on. SimpleITK and pystackreg take part where they are installed (`pip install SimpleITK pystackreg`).
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from alignment_truth import RIGHT, bound, read
from metric_pairs import KINDS, MetricPair, pair, without_match
from peers import opencv_alignment, registration
from placements_tried import lost_by, watched
from timing import print_table
from unseen_kinds import UNSEEN

from mslsq.alignment import align
from mslsq.alignment.measures import corner_error


class Found(NamedTuple):
    """What a method says of a pair."""

    matrix: np.ndarray
    """NaN for none."""
    sigma: float = float("nan")
    """Its standard error in pixels."""
    remark: str = ""
    tried: Sequence[dict[str, Any]] = ()
    """Of ours: every placement that was tried (`placements_tried`)."""


def ours(metric: str) -> Callable[[MetricPair], Found]:
    def contestant(pair: MetricPair) -> Found:
        maps = [torch.from_numpy(np.ascontiguousarray(raster)) for raster in (pair.reference, pair.moving)]
        with watched(torch.from_numpy(pair.transform), *pair.reference.shape) as tried:
            result = align(maps, model="sim2", metric=metric)
        remark = f"{result.metrics[1]}: {result.reasons[1]}"
        return Found(result.transforms[1].numpy(), float(result.corner_sigma[1]), remark, tried)

    return contestant


def peer(method: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[MetricPair], Found]:
    return lambda pair: Found(method(pair.reference, pair.moving))


def ecc(reference: np.ndarray, moving: np.ndarray) -> np.ndarray:
    return opencv_alignment.align(registration.filled(reference), registration.filled(moving), "sim2", levels=3)


EVERY = KINDS | UNSEEN

CONTESTANTS: dict[str, Callable[[MetricPair], Found]] = {
    "auto": ours("auto"),
    "squared": ours("squared"),
    "gradients": ours("gradients"),
    "learned": ours("learned"),
    "ECC": peer(ecc),
    "SIFT + MAGSAC": peer(registration.sift_and_magsac),
}
if registration.available("SimpleITK"):
    CONTESTANTS["mutual information"] = peer(registration.mutual_information)
if registration.available("pystackreg"):
    CONTESTANTS["TurboReg"] = peer(registration.turboreg)


class Task(NamedTuple):
    """A pair with a match ("true") or without one ("false"), and who is to place it."""

    sort: str
    half: str
    kind: str
    number: int
    size: int
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        """What its records are told by in a file of earlier ones."""
        return ", ".join(map(str, self[:-1])) + ": " + ", ".join(self.names)


def outcome(task: Task) -> list[dict[str, Any]]:
    """One pair, by all contestants in turn."""
    sort, half, kind, number, size, names = task
    torch.set_num_threads(1)
    drawn = (pair if sort == "true" else without_match)(kind, half, number, size, EVERY[kind])
    truth, records = torch.from_numpy(drawn.transform), []
    for name in names:
        begin = time.process_time()
        matrix, sigma, remark, tried = CONTESTANTS[name](drawn)
        seconds = time.process_time() - begin
        believed = bool(np.isfinite(matrix).all())
        with_truth = believed and sort == "true"
        error = corner_error(torch.from_numpy(matrix), truth, *drawn.reference.shape) if with_truth else float("inf")
        record = {
            "task": task.key,
            "pair": drawn.name,
            "kind": kind,
            "sort": sort,
            "method": name,
            "believed": believed,
        }
        record |= {"error": error, "sigma": sigma, "seconds": seconds, "remark": remark}
        records.append(record | ({"tried": tried} if tried else {}))
    return records


def whole(name: str) -> list[dict[str, Any]]:
    """The records of an earlier run of which every method is there: the last pair may have been cut short."""
    lines = Path(name).read_text(encoding="utf-8").splitlines() if Path(name).exists() else []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # killed while it was written
    count = Counter(record["task"] for record in records)
    return [record for record in records if count[record["task"]] == len(record["task"].split(": ")[1].split(", "))]


def kinds_of(records: list[dict[str, Any]]) -> list[str | None]:
    """The kinds that took part; None is all of them."""
    return [*(kind for kind in EVERY if any(r["kind"] == kind for r in records)), None]


def standard_error(right: int, count: int) -> float:
    """Of a share, by Agresti and Coull: not zero where all or none are right."""
    share = (right + 2) / (count + 4)
    return (share * (1 - share) / (count + 4)) ** 0.5


def print_true(records: list[dict[str, Any]], names: list[str]) -> None:
    """Per kind and method: right within 1 px, placed elsewhere, the median error of what was right."""
    rows, behind = [], []
    for kind in kinds_of(records):
        cells, shares = [], {}
        for name in names:
            mine = [r for r in records if r["method"] == name and kind in (r["kind"], None)]
            errors = np.array([r["error"] for r in mine])
            right = int((errors < RIGHT).sum())
            wrong = sum(r["believed"] for r in mine) - right
            median = np.median(errors[errors < RIGHT]) if right else np.nan
            shares[name] = right / max(len(mine), 1)
            cells.append(f"{shares[name]:.0%}, {wrong}, {median:.3f}")
            if name == "auto":
                error = standard_error(right, len(mine))
        best = max((share for name, share in shares.items() if name != "squared"), default=0.0)
        if kind is not None and "auto" in shares and shares["auto"] < best - error:
            behind.append(kind)
        rows.append((kind or "all", len(mine), *cells))
    print_table(
        "Right within 1 px, placed elsewhere (pairs), median px of the right ones", ("kind", "pairs", *names), rows
    )
    print(f"\nMore than a standard error behind the best peer: {', '.join(behind) or 'none'}.")
    print_lost(records, names)
    seconds = {name: np.median([r["seconds"] for r in records if r["method"] == name]) for name in names}
    print("Processor time, median s per pair: " + ", ".join(f"{name} {value:.2f}" for name, value in seconds.items()))


def print_lost(records: list[dict[str, Any]], names: list[str]) -> None:
    """Per kind, of ours that were refused: who has lost them (`placements_tried.lost_by`)."""
    stages, rows = ("search", "refinement", "belief"), []
    for name in names:
        for kind in kinds_of(records):
            mine = [r for r in records if r["method"] == name and kind in (r["kind"], None)]
            lost = Counter(lost_by(r["tried"]) for r in mine if not r["believed"] and "tried" in r)
            if lost.total():
                rows.append((kind or "all", name, len(mine), *(lost[stage] for stage in stages)))
    if rows:
        print_table("Refused, as the true place was lost by", ("kind", "method", "pairs", *stages), rows)


def print_false(records: list[dict[str, Any]], names: list[str]) -> None:
    """Per kind and method: placements of maps without a match that are believed."""
    rows = []
    for kind in kinds_of(records):
        mine = [[r for r in records if r["method"] == name and kind in (r["kind"], None)] for name in names]
        counts = [sum(r["believed"] for r in group) for group in mine]
        rows.append((kind or "all", len(mine[0]), *counts, f"{bound(counts[0], len(mine[0])):.2%}"))
    header = ("kind", "pairs", *names, f"rate of {names[0]} below (95 %)")
    print_table("Pairs without a match: how many are believed", header, rows)


def print_tables(records: list[dict[str, Any]]) -> None:
    """Of pairs with and without a match, with the methods in their order; pairs that not all of them have seen are left
    out."""
    for sort, table in (("true", print_true), ("false", print_false)):
        mine = [record for record in records if record["sort"] == sort]
        taken = {record["method"] for record in mine}
        seen = Counter(record["pair"] for record in mine)
        if mine:
            table([r for r in mine if seen[r["pair"]] == len(taken)], [name for name in CONTESTANTS if name in taken])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "claim"), default="claim")
    parser.add_argument("--pairs", type=int, default=0, help="of every kind, with a match")
    parser.add_argument("--false", type=int, default=0, help="of every kind, without one")
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(EVERY))
    parser.add_argument("--methods", nargs="*", default=None, choices=list(CONTESTANTS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", help="also write every outcome here; pairs that are there already are not run again")
    parser.add_argument("--read", nargs="+", help="no pairs: the tables of what earlier runs wrote")
    arguments = parser.parse_args()
    if arguments.read:
        print_tables(list(read(arguments.read)))
        return 0
    records = whole(arguments.json) if arguments.json else []
    if arguments.json:  # without the part of a pair
        Path(arguments.json).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    known = {record["task"] for record in records}
    for sort, count in (("true", arguments.pairs), ("false", arguments.false)):
        names = arguments.methods or (list(CONTESTANTS) if sort == "true" else ["auto"])
        tasks = [
            Task(sort, arguments.half, kind, arguments.first + number, arguments.size, tuple(names))
            for number in range(count)
            for kind in arguments.kinds
        ]
        tasks = [task for task in tasks if task.key not in known]
        with ProcessPoolExecutor(arguments.jobs) as pool:
            for found in pool.map(outcome, tasks):
                records += found
                if arguments.json:
                    with open(arguments.json, "a", encoding="utf-8") as file:
                        file.writelines(json.dumps(record) + "\n" for record in found)
    print_tables(records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
