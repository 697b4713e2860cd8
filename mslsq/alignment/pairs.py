"""Many pairs of maps, each aligned by itself, in one process or several: a row per pair, as they are done."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.align import align
from mslsq.alignment.options import AlignmentOptionError
from mslsq.alignment.result import Alignment, MapStatus
from mslsq.alignment.scenes import scene_from_files
from mslsq.alignment.stacks import split
from mslsq.parallel import Outcome, Progress, run
from mslsq.validation import suggestion

OPTIONS = (
    "model", "metric", "value", "levels", "loss", "init", "min_overlap", "min_ncc", "min_detail", "min_lead",
    "prefilter", "max_steps", "scale_range",
)  # fmt: skip
"""Of `align`, what holds for all pairs."""


class Pair(NamedTuple):
    """Two files, and what is known of them."""

    reference: str | Path
    map: str | Path
    initial: Float[Tensor, "3 3"] | None = None
    """Where the search starts, in the convention of `Alignment.transforms`; nothing else is searched then."""
    model: str | None = None
    """Instead of that of all pairs."""


@dataclass(frozen=True)
class PairAlignment:
    """What became of a pair: where its map is, or why it has no place."""

    index: int
    """Of the pair."""
    reference: str
    map: str
    status: MapStatus | None
    """None where the pair itself failed: `reason` has the error."""
    reason: str
    transform: Float[Tensor, "3 3"]
    """Reference pixel (x, y, 1) to map pixel, centres at integers; NaN without a place."""
    model: str
    metric: str = ""
    gain: float = math.nan
    bias: float = math.nan
    ncc: float = math.nan
    detail: float = math.nan
    lead: float = math.nan
    overlap: float = math.nan
    corner_sigma: float = math.nan
    """Standard error of the reference's corners, pixels."""
    seconds: float = 0.0
    kept: bool = False
    """Was it taken from the journal?"""

    @property
    def ok(self) -> bool:
        """Has the map a place?"""
        return self.status is MapStatus.ALIGNED

    def record(self) -> dict[str, Any]:
        """Plain numbers and words, for a table; None where there is no number."""
        kept = asdict(self) | {"status": "error" if self.status is None else self.status.name.lower()}
        kept["transform"] = self.transform.tolist() if self.ok else None
        return {name: _plain(value) for name, value in kept.items() if name not in ("index", "kept")}


class _Work(NamedTuple):
    """The task of a pair: two files are read and aligned."""

    options: dict[str, Any]
    georeferenced: bool
    nodata: float | None

    def __call__(self, pair: Pair) -> dict[str, Any]:
        scene = scene_from_files([str(pair.reference), str(pair.map)], nodata=self.nodata)
        options: dict[str, Any] = {**self.options, **({} if pair.model is None else {"model": pair.model})}
        headers = scene.headers()
        if self.georeferenced and all(headers):
            options["georeferences"] = headers
        if pair.initial is not None:
            options["init"] = torch.stack([torch.eye(3, dtype=torch.float64, device="cpu"), pair.initial.double()])
        found = align(**scene.to_align(), **options)
        return _answer(found, scene.problems)


def align_pairs(
    pairs: Sequence[Pair | Sequence[Any]],
    *,
    n_jobs: int = 1,
    journal: str | Path | None = None,
    resume: bool = True,
    progress: Callable[[Progress], None] | None = None,
    georeferenced: bool = True,
    nodata: float | None = None,
    **options: Any,
) -> Iterator[PairAlignment]:
    """Align every pair of files by itself, and give each result as soon as it is there.

    A pair that fails (a file that cannot be read, a process that was killed) is a result with its reason; the others
    go on.

    Args:
        pairs: `Pair`s, or (reference, map), (reference, map, initial), (reference, map, initial, model). Files are
            what `scripts/align.py` reads, `stack.tif:3` and `archive.npz:key` too.
        n_jobs: processes, as for `mslsq.parallel.run`.
        journal: a file in which every result is before it is given: a run that was killed goes on from there when the
            same call is made again.
        resume: False: the journal is begun again.
        progress: as for `mslsq.parallel.run`.
        georeferenced: start where the headers of the two files put them, where both have one.
        nodata: a number for no data beside those that the files name: 0, where pictures have black borders.
        options: of `align`, for all pairs: model, metric, value, levels, loss, init, min_overlap, min_ncc, min_detail,
            min_lead, prefilter, max_steps, scale_range.

    Returns:
        An iterator of `PairAlignment`; with several processes not in the order of the pairs (`index` says which).

    Raises:
        AlignmentOptionError: an option is not valid.
        JournalError: the journal is of other pairs, files or options.
        JoblibMissingError: n_jobs is not 1, and joblib is not installed.

    >>> pairs = [("2019.tif", "2020.tif"), ("2019.tif", "2021.tif")]
    >>> for found in align_pairs(pairs, model="se2", n_jobs=4, journal="pairs.jsonl"):
    ...     print(found.map, found.transform if found.ok else found.reason)
    """
    given = [pair_of(pair) for pair in pairs]
    for name in options:
        if name not in OPTIONS:
            raise AlignmentOptionError(
                f"align_pairs: there is no option {name!r} of all pairs.{suggestion(name, OPTIONS)} Options: "
                f"{', '.join(OPTIONS)}."
            )
    blank = [torch.zeros(2, 2, device="cpu"), torch.zeros(2, 2, device="cpu")]
    for model in {pair.model for pair in given}:  # an option that is not valid is said once, before the work
        align(blank, **{**options, **({} if model is None else {"model": model})})
    identity = {
        "options": {name: repr(value) for name, value in sorted(options.items())},
        "georeferenced": georeferenced,
        "nodata": nodata,
        "pairs and files": _digest(given),
    }
    how: dict[str, Any] = {"journal": journal, "identity": identity, "resume": resume, "progress": progress}
    outcomes = run(_Work(options, georeferenced, nodata), given, n_jobs=n_jobs, **how)
    return _results(outcomes, given, options.get("model", "sim2"))


def pair_of(given: Pair | Sequence[Any]) -> Pair:
    """A pair, checked.

    Raises:
        AlignmentOptionError: it is none.
    """
    if isinstance(given, str | Path) or not 2 <= len(given) <= 4:
        raise AlignmentOptionError(f"A pair is (reference, map), with initial and model if you like, not {given!r}.")
    values: Any = given
    pair = Pair(*values)
    if not (isinstance(pair.reference, str | Path) and isinstance(pair.map, str | Path)):
        raise AlignmentOptionError("A pair is of two files; maps in memory are aligned by `align`.")
    if pair.initial is None:
        return pair
    initial = torch.as_tensor(pair.initial, dtype=torch.float64, device="cpu")
    if initial.shape != (3, 3) or not bool(initial.isfinite().all()):
        raise AlignmentOptionError(f"initial must be a finite 3 x 3 matrix, not of shape {tuple(initial.shape)}.")
    return Pair(pair.reference, pair.map, initial, pair.model)


def _results(outcomes: Iterator[Outcome], pairs: Sequence[Pair], model: str) -> Iterator[PairAlignment]:
    for outcome in outcomes:
        pair = pairs[outcome.index]
        about: dict[str, Any] = {"model": pair.model or model, "seconds": outcome.seconds, "kept": outcome.kept}
        about |= {"reference": str(pair.reference), "map": str(pair.map)}
        nowhere = torch.full((3, 3), math.nan, dtype=torch.float64, device="cpu")
        if not outcome.ok:
            yield PairAlignment(outcome.index, status=None, reason=outcome.error, transform=nowhere, **about)
            continue
        found = {name: math.nan if value is None else value for name, value in outcome.result.items()}
        matrix, status = outcome.result["transform"], MapStatus(found.pop("status"))
        found["transform"] = nowhere if matrix is None else torch.tensor(matrix, dtype=torch.float64, device="cpu")
        found["reason"] = f"{found['reason']} {outcome.note}".strip()
        yield PairAlignment(outcome.index, status=status, **found, **about)


def _answer(found: Alignment, problems: dict[int, str]) -> dict[str, Any]:
    """The second map as JSON has it."""
    status = MapStatus(int(found.status[1]))
    numbers = {"gain": found.gain, "bias": found.bias, "ncc": found.ncc, "detail": found.detail, "lead": found.lead}
    numbers |= {"overlap": found.overlap, "corner_sigma": found.corner_sigma}
    said = [f"Left out: {problems[i]}" for i in sorted(problems)]
    if not said and not MapStatus(int(found.status[0])).ok:
        said = [f"The reference: {found.reasons[0]}"]
    return {
        "status": int(status),
        "reason": " ".join(said) or found.reasons[1],
        "metric": found.metrics[1] if found.metrics else "",
        "transform": found.transforms[1].tolist() if status.ok else None,
        **{name: _plain(float(values[1])) for name, values in numbers.items()},
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digest(pairs: Sequence[Pair]) -> str:
    """Of the pairs, and the sizes and times of their files."""
    return hashlib.sha256(json.dumps([_known(pair) for pair in pairs]).encode()).hexdigest()


def _known(pair: Pair) -> list[Any]:
    known: list[Any] = [None if pair.initial is None else pair.initial.tolist(), pair.model]
    for path in (pair.reference, pair.map):
        file = split(path)[0].expanduser()
        about = file.stat() if file.is_file() else None
        known.append([str(path), about and about.st_size, about and about.st_mtime_ns])
    return known
