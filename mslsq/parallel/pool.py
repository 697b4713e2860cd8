"""Tasks in processes by joblib, whose back ends are loky, or Dask and Ray where a user has them.

A process that is killed (out of memory, as a rule) takes joblib's whole pool with it. What was in work then is done
again, one item after the other, each alone in its pool: so it is known which item it is, and it has all the memory.
"""

import hashlib
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from json import dumps
from typing import Any

from mslsq.parallel.task import answer, sentence

KILLED_TWICE = (
    "The process of this item was killed, and again when it ran alone{signals}: it ran out of memory, as a rule, or "
    "native code crashed. Give the machine more memory, or the item less to do."
)
KILLED_ONCE = "A process was killed while this item was in work{signals}; it was done again, alone."
PATIENCE = 0.5
"""Seconds after which a process notices that its parent was killed."""
WATCH = "mslsq watches the parent"
"""The name of the thread that does."""


class JoblibMissingError(ImportError):
    """Several processes are asked for, and the package joblib is not installed."""


def needed() -> Any:
    """joblib and cloudpickle.

    Raises:
        JoblibMissingError: with what to install.
    """
    try:
        import cloudpickle
        import joblib
    except ImportError as error:
        raise JoblibMissingError(
            f"n_jobs other than 1 needs {error.name}: pip install 'mslsq[parallel]'. n_jobs=1 does without."
        ) from error
    return joblib, cloudpickle


def effective(n_jobs: int) -> int:
    """The number of processes: all cores for -1, all but one for -2."""
    return n_jobs if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs)


def answers(
    work: Callable[[Any], Any], items: Sequence[tuple[int, Any]], n_jobs: int
) -> Iterator[tuple[int, str, str]]:
    """(index, answer, note) of each item, in the order in which they are done."""
    _, cloudpickle = needed()
    program = cloudpickle.dumps(work)
    tasks: list[tuple[int, bytes]] = []
    for index, item in items:
        try:
            tasks.append((index, cloudpickle.dumps(item)))
        except Exception as error:
            yield index, dumps({"error": f"The item cannot be sent to a process. {sentence(error)}"}), ""
    while tasks:
        begun: list[tuple[int, bytes]] = []
        finished: set[int] = set()
        try:
            with _ended(_in_pool(program, tasks, n_jobs, begun)) as found:
                for index, text in found:
                    finished.add(index)
                    yield index, text, ""
            return
        except Exception as error:
            if not _is_of_pool(error) or not begun:
                raise
            said = _signals(error)
        tasks = tasks[len(begun) :]
        for index, item in begun:
            if index not in finished:
                yield (index, *_alone(program, (index, item), said))


def _alone(program: bytes, task: tuple[int, bytes], said: str) -> tuple[str, str]:
    """Answer and note of an item that was in work when a process was killed."""
    try:
        with _ended(_in_pool(program, [task], 2, [])) as found:  # one job would be this process
            return next(found)[1], KILLED_ONCE.format(signals=said)
    except Exception as error:
        if not _is_of_pool(error):
            raise
        return dumps({"error": KILLED_TWICE.format(signals=_signals(error))}), ""


def _in_pool(
    program: bytes, tasks: Sequence[tuple[int, bytes]], n_jobs: int, begun: list[tuple[int, bytes]]
) -> Generator[tuple[int, str], None, None]:
    """Index and answer of tasks; those that were handed out, in their order, are in `begun`."""
    joblib, _ = needed()
    name = hashlib.sha256(program).hexdigest()

    def handed_out() -> Iterator[Any]:
        for index, item in tasks:
            begun.append((index, item))
            yield joblib.delayed(_task)(name, program, index, item, os.getpid())

    how: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": 1, "max_nbytes": None}
    if type(joblib.parallel.get_active_backend()[0]).__name__ != "LokyBackend":  # the user's own: it knows its threads
        yield from joblib.Parallel(n_jobs=n_jobs, **how)(handed_out())
        return
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1, initializer=_belonging(os.getpid())):
        pool = joblib.Parallel(n_jobs=n_jobs, **how)
        found = pool(handed_out())
    yield from found


@contextmanager
def _ended(found: Generator[tuple[int, str], None, None]) -> Iterator[Generator[tuple[int, str], None, None]]:
    """The answers of a pool; what is in work afterwards is given up, of which joblib would warn."""
    try:
        yield found
    finally:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*tasks which were still being processed.*")
            warnings.filterwarnings("ignore", ".*tasks have been successfully executed.*")
            found.close()


def _task(name: str, program: bytes, index: int, item: bytes, parent: int) -> tuple[int, str]:
    """In a process of the pool. (`program` travels with every item: a process may be new.)"""
    _belong_to(parent)
    try:
        _, cloudpickle = needed()
        work = _unpacked(name, program)
        given = cloudpickle.loads(item)
    except Exception as error:
        return index, dumps({"error": f"The process could not read its task. {sentence(error)}"})
    return index, answer(work, given)


def _belong_to(parent: int) -> None:
    """A process of another back end, if it is a child of the one that it works for."""
    watched = any(thread.name == WATCH for thread in threading.enumerate())
    if os.getppid() == parent and not watched and threading.current_thread() is threading.main_thread():
        _belonging(parent)()


@cache
def _belonging(parent: int) -> Callable[[], None]:
    """What a process of the pool begins with, so that it ends with the one that it works for: by itself it would wait
    300 s for more to do. It travels by value, as a function in a function does: the process watches before it imports
    anything. (The same object for all pools of a process: joblib makes new processes where it differs.)"""

    def belong() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches them all: the parent decides

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(PATIENCE)
            os._exit(1)

        threading.Thread(target=watch, daemon=True, name=WATCH).start()

    return belong


_PROGRAMS: dict[str, Callable[[Any], Any]] = {}


def _unpacked(name: str, program: bytes) -> Callable[[Any], Any]:
    """The same object for all items of a run: what it has compiled is compiled once for a process."""
    if name not in _PROGRAMS:
        _PROGRAMS.clear()
        _PROGRAMS[name] = needed()[1].loads(program)
    return _PROGRAMS[name]


def _is_of_pool(error: BaseException) -> bool:
    """Is this the loss of a process? Tasks themselves raise nothing."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"BrokenExecutor", "KilledWorker", "WorkerCrashedError", "RayActorError"})


def _signals(error: BaseException) -> str:
    found = sorted(set(re.findall(r"SIG[A-Z]+", str(error))))
    return f" ({', '.join(found)})" if found else ""
