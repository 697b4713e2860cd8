"""The one door: run a function on many items."""

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mslsq.parallel.journal import Journal
from mslsq.parallel.outcome import Outcome, Progress
from mslsq.parallel.pool import answers, effective, needed
from mslsq.parallel.task import answer


def run(
    work: Callable[[Any], Any],
    items: Sequence[Any],
    *,
    n_jobs: int = 1,
    journal: str | Path | None = None,
    identity: Mapping[str, Any] | None = None,
    resume: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Generator[Outcome, None, None]:
    """`work(item)` of every item, each outcome as soon as it is there.

    An item that raises is an `Outcome` with a sentence, and the others go on. If a process is killed, the items that
    were in work are done again, one by one; an item that kills its process again is an error in words.

    With a `journal`, each outcome is in this file before it is returned. A run that was ended (SIGKILL, Ctrl-C, a
    `break` in the loop) goes on when it is called again: items with a result are taken from there, those that failed
    are tried again, a line that was cut off is dropped.

    Args:
        work: a pure function of one item: the same item, the same result. It returns what JSON can hold: numbers that
            are finite, words, lists, dicts, None. (Large results it writes to files of its own.)
        items: what there is to do. With several processes, items and `work` are pickled (by cloudpickle: lambdas and
            functions of the main script too).
        n_jobs: processes; 1 is this process, without joblib; -1 one for each core, -2 one less. Each has a single
            thread. Within `joblib.parallel_config(backend="dask")`, or "ray", they are that backend's.
        journal: a file of JSON lines, made where it is missing.
        identity: what the run is of: options, input files, as JSON has them. A journal of something else is refused.
            The number of items belongs to it anyway.
        resume: False: a journal that is there is begun again.
        progress: called with a `Progress` at the start and after every item.

    Returns:
        An iterator of `Outcome`: those of the journal first, others in the order in which they are done. Work begins
        with the first.

    Raises:
        JournalError (a ValueError): the journal is of another run, or another process writes to it.
        NotWrittenError (an OSError): the journal cannot be written.
        JoblibMissingError (an ImportError): n_jobs is not 1, and joblib is not installed.

    >>> [outcome.result for outcome in mslsq.parallel.run(lambda item: item**2, [1, 2, 3])]
    [1, 4, 9]
    """
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs == 0:
        raise ValueError(f"n_jobs must be a positive integer, or -1 for one process per core, not {n_jobs!r}.")
    processes = effective(n_jobs)
    if processes > 1:
        needed()
    kept = None if journal is None else Journal(journal, {**(identity or {}), "items": len(items)}, resume)
    return _run(work, list(items), processes, kept, progress)


def _run(
    work: Callable[[Any], Any],
    items: list[Any],
    processes: int,
    journal: Journal | None,
    progress: Callable[[Progress], None] | None,
) -> Generator[Outcome, None, None]:
    begin = time.perf_counter()
    with journal or nullcontext():
        done = _kept(journal, len(items))
        failed, kept = 0, len(done)

        def say() -> None:
            if progress is not None:
                progress(Progress(len(items), len(done) + failed, failed, kept, time.perf_counter() - begin))

        say()
        yield from done.values()
        left = [(index, item) for index, item in enumerate(items) if index not in done]
        for outcome in _computed(work, left, processes):
            if journal is not None:
                journal.append(_record(outcome))
            if outcome.ok:
                done[outcome.index] = outcome
            else:
                failed += 1
            say()
            yield outcome


def _kept(journal: Journal | None, count: int) -> dict[int, Outcome]:
    """By index, results of earlier runs."""
    found = {}
    for record in journal.records if journal is not None else ():
        if 0 <= record.get("item", -1) < count and "result" in record:
            about = {name: record[name] for name in ("result", "note", "seconds") if name in record}
            found[record["item"]] = Outcome(record["item"], kept=True, **about)
    return dict(sorted(found.items()))


def _record(outcome: Outcome) -> dict[str, Any]:
    what = {"result": outcome.result} if outcome.ok else {"error": outcome.error}
    return {
        "item": outcome.index,
        **what,
        **({"note": outcome.note} if outcome.note else {}),
        "seconds": outcome.seconds,
    }


def _computed(work: Callable[[Any], Any], items: list[tuple[int, Any]], processes: int) -> Iterator[Outcome]:
    if processes == 1:
        for index, item in items:
            yield Outcome(index, **json.loads(answer(work, item)))
        return
    for index, text, note in answers(work, items, processes):
        yield Outcome(index, note=note, **json.loads(text))
