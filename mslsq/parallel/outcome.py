"""What became of one item, and how far a run is."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What became of one item: a result, or a sentence that says why there is none."""

    index: int
    """Of the item, from 0."""
    result: Any = None
    """What `work` returned, as JSON has it: tuples are lists, keys are words."""
    error: str = ""
    """Why there is no result; empty where there is one."""
    note: str = ""
    """What is to be said of a result: that its process was killed at first."""
    seconds: float = 0.0
    """That it took, start of processes not counted."""
    kept: bool = False
    """Was it taken from the journal of an earlier run?"""

    @property
    def ok(self) -> bool:
        """Is there a result?"""
        return not self.error


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    total: int
    done: int
    """With a result or an error, those of earlier runs among them."""
    failed: int
    """Of those that are done."""
    kept: int
    """Of those that are done, what came from an earlier run."""
    seconds: float
    """Since this run began."""

    @property
    def remaining(self) -> float | None:
        """Seconds that the rest will take at the mean speed of this run; None before its first item is done."""
        computed = self.done - self.kept
        return self.seconds / computed * (self.total - self.done) if computed else None
