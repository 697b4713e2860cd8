"""Many tasks: one function of many items, in this process or in several, kept in a file as they are done.

    for outcome in mslsq.parallel.run(work, items, n_jobs=4, journal="results.jsonl"):
        print(outcome.index, outcome.result if outcome.ok else outcome.error)

A run that was killed goes on where it was; an item that fails, or whose process is killed, is a sentence.
"""

from mslsq.parallel.journal import JournalError
from mslsq.parallel.outcome import Outcome, Progress
from mslsq.parallel.pool import JoblibMissingError
from mslsq.parallel.running import run

__all__ = ["JoblibMissingError", "JournalError", "Outcome", "Progress", "run"]
