"""`fit_file`: very many curve fits from a .npy file, in constant memory, resumable, in several processes."""

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq import pytree
from mslsq.front.fits.file_arrays import RESULTS, Results, Rows, rows_of
from mslsq.front.fits.file_pieces import Fits, Piece, arrays_of
from mslsq.losses import RobustLoss
from mslsq.parallel import Outcome, Progress, run
from mslsq.problem.errors import DtypeError, ProblemError
from mslsq.solution import Status
from mslsq.solvers import LevenbergMarquardt, Solver
from mslsq.validation import instance_of, integer

JOURNAL = "fits.jsonl"
PROBES = 16
"""Fits, from all over the file, that a run makes first: a mistake is seen at once, and a run that goes on sees by them
that model, options and data are what they were."""


@dataclass(frozen=True)
class FileFits:
    """The results of `fit_file`, a row per fit; the arrays are maps of the files, read where they are looked at."""

    folder: Path
    names: tuple[str, ...]
    """Of the columns of `parameters`, the entries of p0."""
    count: int
    counts: dict[Status, int]
    """How many fits ended with which status; `RUNNING` are those that could not be made."""
    failures: dict[str, int]
    """Why fits could not be made; by reason the first row."""

    @property
    def parameters(self) -> np.ndarray:
        """(count, parameters), NaN where there is no fit: status 0, `SINGULAR` with too few points, `NON_FINITE`."""
        return self._opened("parameters")

    @property
    def standard_errors(self) -> np.ndarray:
        """(count, parameters), infinite where the points do not determine them."""
        return self._opened("standard_errors")

    @property
    def cost(self) -> np.ndarray:
        """(count,), half the sum of squares."""
        return self._opened("cost")

    @property
    def status(self) -> np.ndarray:
        """(count,), values of `mslsq.Status`."""
        return self._opened("status")

    @property
    def num_steps(self) -> np.ndarray:
        """(count,)"""
        return self._opened("num_steps")

    @property
    def converged(self) -> int:
        """How many fits."""
        return sum(count for status, count in self.counts.items() if status.converged)

    def message(self) -> str:
        """What became of the fits, a line per status."""
        lines = [f"{self.converged:,} of {self.count:,} fits converged."]
        for status, count in sorted(self.counts.items()):
            if status != Status.RUNNING:
                lines.append(f"{count:,}: {status.name.lower()}. {status.sentence}")
        if Status.RUNNING in self.counts:
            lines.append(f"{self.counts[Status.RUNNING]:,}: not made.")
        return "\n".join([*lines, *(f"from row {row}: {said}" for said, row in self.failures.items())])

    def _opened(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy", mmap_mode="r")


def fit_file(
    model: Callable[[Any, Any], Tensor],
    t: Any,
    y: str | Path,
    p0: Any,
    folder: str | Path,
    *,
    sigma: Any = None,
    absolute_sigma: bool = False,
    bounds: Any = None,
    project_start: bool = False,
    fixed: Any = None,
    loss: RobustLoss | None = None,
    solver: Solver | None = None,
    dtype: torch.dtype | None = None,
    at_once: int = 8192,
    n_jobs: int = 1,
    resume: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> FileFits:
    """Fit `model(p, t)` to every row of y, as `curve_fit` does, from a file into files.

    Rows are read, fitted and written in pieces of `at_once`: memory is that of one piece in each process, for any
    number of rows. Results lie in `folder` as `parameters.npy`, `standard_errors.npy`, `cost.npy`, `status.npy` and
    `num_steps.npy`. A run that was ended, by SIGKILL too, goes on when the same call is made again, and its files are
    to the byte those of a run that was not: native programs are waited for, and pieces have one thread each.

    Args:
        model: `model(p, t)` for one fit, in plain PyTorch, as for `curve_fit`.
        t: where y was measured, common to all fits: a tensor or a pytree; or the path of a .npy, a row per fit.
        y: the path of a .npy of shape (fits, points), float32 or float64. NaN means that a point is missing.
        p0: the start, common to all fits: a tensor or a pytree of tensors and numbers; or the path of a .npy (fits,
            parameters).
        folder: where results are written.
        sigma: as for `curve_fit`, common to all fits; or the path of a .npy, a row per fit.
        absolute_sigma, bounds, project_start, fixed, loss: as for `curve_fit`.
        solver: as for `curve_fit`. Its `native="auto"` is "wait" here.
        dtype: of the computation and of the results; that of y by default.
        at_once: fits of a piece.
        n_jobs: processes, as for `mslsq.parallel.run`; more than one need joblib.
        resume: False: results that are there are made again.
        progress: called with a `mslsq.parallel.Progress`, which counts pieces.

    Returns:
        `FileFits`. A fit that cannot be made is NaN with its status, and never changes its neighbours.

    Raises:
        ProblemError (a ValueError): shapes, types or options do not fit; found before anything is written.
        JournalError (a ValueError): the folder holds a run with another model, options or data, or one that is going
            on.
        NotWrittenError (an OSError): there is no room for the results.

    >>> rates = np.array([[0.5], [1.5]])
    >>> np.save("decays.npy", np.exp(-rates * np.arange(8.0)))
    >>> t = torch.arange(8.0, dtype=torch.float64)
    >>> fits = mslsq.fit_file(lambda p, t: torch.exp(-p[0] * t), t, "decays.npy", torch.ones(1), "fitted")
    >>> np.abs(fits.parameters - rates).max() < 1e-6
    True
    """
    integer("fit_file: at_once", at_once, 1, 8192, error=ProblemError)
    rows = rows_of("y", y)
    kind = getattr(torch, rows.dtype) if dtype is None else dtype
    if kind not in (torch.float32, torch.float64):
        raise DtypeError(f"fit_file: dtype must be torch.float32 or torch.float64, not {dtype!r}.")
    options = {
        "absolute_sigma": absolute_sigma,
        "bounds": bounds,
        "project_start": project_start,
        "fixed": fixed,
        "loss": loss,
        "solver": _waiting(solver),
    }
    t, p0, sigma = (_given(*one, rows.shape[0], kind) for one in (("t", t), ("p0", p0), ("sigma", sigma)))
    fits = Fits(model, t, rows, p0, sigma, kind, options)
    probe = fits.probe(PROBES)
    probed = arrays_of(probe)
    folder = Path(folder)
    results = Results(str(folder.resolve()), rows.shape[0], probed["parameters"].shape[1], str(kind).rpartition(".")[2])
    identity = {
        "fit_file": {name: one.identity for name, one in (("y", rows), ("t", t), ("p0", p0), ("sigma", sigma))
                     if isinstance(one, Rows)},
        "dtype": results.dtype,
        "at_once": at_once,
        "torch": torch.__version__,
        "model, options and data, by the results of some fits": _digest(probed),
        "names": list(probe.names),
    }  # fmt: skip
    pieces = [(start, min(start + at_once, rows.shape[0])) for start in range(0, rows.shape[0], at_once)]
    how = {"n_jobs": n_jobs, "journal": folder / JOURNAL, "identity": identity, "resume": resume}
    return _made(Piece(fits, results), pieces, how | {"progress": progress}, tuple(probe.names))


def _made(piece: Piece, pieces: list[tuple[int, int]], how: dict[str, Any], names: tuple[str, ...]) -> FileFits:
    """All pieces; of an earlier run those are taken that its journal has."""
    results, counts, failures = piece.results, {}, {}
    how["resume"] = how["resume"] and results.made()
    outcomes = run(piece, pieces, **how)
    if not how["resume"]:
        results.make()
    with closing(outcomes):
        for outcome in outcomes:
            _count(outcome, pieces[outcome.index], results, counts, failures)
    return FileFits(Path(results.folder), names, results.count, counts, failures)


def _count(
    outcome: Outcome, piece: tuple[int, int], results: Results, counts: dict[Status, int], failures: dict[str, int]
) -> None:
    """Adds what became of a piece; one that failed as a whole is NaN."""
    start, stop = piece
    if not outcome.ok:
        results.write(start, results.nothing(stop - start))
        failures.setdefault(outcome.error, start)
    found = outcome.result["statuses"] if outcome.ok else {"0": stop - start}
    for status, count in found.items():
        counts[Status(int(status))] = counts.get(Status(int(status)), 0) + count
    for said, row in (outcome.result["said"] if outcome.ok else {}).items():
        failures.setdefault(said, row)


def _given(what: str, given: Any, count: int, kind: torch.dtype) -> Any:
    """A file of rows, or what all fits have in common, in the numbers of the computation."""
    if isinstance(given, str | Path):
        return rows_of(what, given, count)

    def turned(leaf: Any) -> Any:
        return leaf.to(kind) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return pytree.map_leaves(turned, given)


def _waiting(solver: Solver | None) -> Solver:
    """The solver, such that all fits run the same code."""
    solver = LevenbergMarquardt() if solver is None else solver
    instance_of("fit_file: solver", solver, Solver, error=ProblemError)
    return solver.with_programs_at_once()


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """Of results to the bit."""
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in RESULTS)).hexdigest()
