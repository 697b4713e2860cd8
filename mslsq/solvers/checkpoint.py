"""Checkpoints: the state of a long solve in a file, from which the same solve goes on in another process."""

import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.problem.system import Inputs
from mslsq.solvers.box import Box
from mslsq.solvers.solver import Checkpoint
from mslsq.solvers.state import Record, State
from mslsq.solvers.task import Task

FORMAT = 1
AGREES = 1e-6
"""The cost at a loaded point may differ by that share from what the file says, which may be of another processor."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read or written, or belongs to another solve."""


@dataclass(eq=False)
class Saved:
    """The checkpoint of one solve."""

    checkpoint: Checkpoint
    fingerprint: str
    """Of the solver's options, what is held, the start, bounds and data."""
    _last: float = field(default_factory=time.monotonic)

    @staticmethod
    def of(task: Task, values: Values, inputs: tuple[Inputs, ...], box: Box | tuple[()]) -> "Saved | None":
        """That of a solve whose solver has one.

        Raises:
            CheckpointError: there is no such folder.
        """
        checkpoint = task.solver.checkpoint
        if checkpoint is None:
            return None
        folder = checkpoint.file.parent
        if not folder.is_dir():
            raise CheckpointError(f"Checkpoint {checkpoint.file}: there is no folder {folder}. Create it first.")
        return Saved(checkpoint, _fingerprint(task, values, inputs, box))

    @property
    def file(self) -> Path:
        return self.checkpoint.file

    def load(self, start: State) -> tuple[State, list[Record], int] | None:
        """State, records and steps so far; None where there is no file.

        Raises:
            CheckpointError: it cannot be read, or belongs to another solve.
        """
        if not self.file.exists():
            return None
        try:
            found = torch.load(self.file, map_location=start.status.device, weights_only=True)
            known, fingerprint = found["format"] == FORMAT, found["fingerprint"]
        except Exception as error:
            raise CheckpointError(
                f"Checkpoint {self.file} cannot be read ({type(error).__name__}): it is no checkpoint, or damaged. "
                "Delete it to start from the beginning, or give another file."
            ) from error
        if not known or fingerprint != self.fingerprint:
            raise CheckpointError(
                f"Checkpoint {self.file} belongs to another solve: options of the solver, what is held, start, bounds "
                "or data are not the same. Delete it to start from the beginning, or give another file."
            )
        state = start.like(found["state"])
        return state, [Record(*record) for record in found["records"]], found["steps"]

    def check(self, state: State, again: State) -> None:
        """Is the residual that of the file? `again` is the state begun at the loaded values."""
        before, now = state.model.cost, again.model.cost
        if not torch.allclose(before, now, rtol=AGREES, atol=0.0, equal_nan=True):
            raise CheckpointError(
                f"Checkpoint {self.file}: the residual has another cost at the point in the file than it had when that "
                "was written. Delete it to start from the beginning, or put the residual back as it was."
            )

    def write_if_due(self, state: State, records: list[Record], steps: int) -> None:
        """Write the file, where the last time is long enough ago."""
        if time.monotonic() - self._last >= self.checkpoint.seconds:
            self.write(state, records, steps)

    def write(self, state: State, records: list[Record], steps: int) -> None:
        """Write the file, whole or not at all. A solve does not end because it cannot be written: a warning says so."""
        content = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "state": state.flat(),
            "records": [list(record) for record in records],
            "steps": steps,
        }
        try:
            handle, name = tempfile.mkstemp(dir=self.file.parent, prefix=f".{self.file.name}.")
            try:
                with os.fdopen(handle, "wb") as target:
                    torch.save(content, target)
                os.replace(name, self.file)
            except BaseException:
                os.unlink(name)
                raise
        except (OSError, RuntimeError) as error:
            warnings.warn(f"Checkpoint {self.file} could not be written ({error}); the solve goes on.", stacklevel=2)
        self._last = time.monotonic()

    def finish(self, state: State, records: list[Record], steps: int, is_running: bool) -> None:
        """At the end of a solve: keep the file where something is left to do, else remove it."""
        if is_running:
            self.write(state, records, steps)
        else:
            self.forget()

    def forget(self) -> None:
        self.file.unlink(missing_ok=True)


def _fingerprint(task: Task, values: Values, inputs: tuple[Inputs, ...], box: Box | tuple[()]) -> str:
    digest = hashlib.sha256()
    digest.update(repr((task.solver.key, task.batch, task.batched)).encode())
    for unknown in task.system.unknowns:
        digest.update(repr((unknown.name, unknown.space)).encode() + unknown.free_entries.tobytes())
    for term, given in zip(task.system.terms, inputs, strict=True):
        digest.update(repr((term.name, term.num_blocks, term.kind, sorted(given))).encode())
        _add(digest, (given[name] for name in sorted(given)))
    _add(digest, (*values, *box))
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        digest.update(repr((tensor.shape, tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
