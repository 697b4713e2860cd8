"""What a solve tells while it runs: a record per step for callbacks, and the live table of `verbose=True`."""

from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from mslsq.solution import Status


class StepInfo(NamedTuple):
    """One step, as a callback sees it; tensors (batch,) but for the variables."""

    step: int
    cost: Tensor
    gradient_norm: Tensor
    step_norm: Tensor
    damping: Tensor
    accepted: Tensor
    status: Tensor
    values: dict[str, Float[Tensor, "batch count storage"]]
    """By variable its storage after the step."""


class Table:
    """One line per step: of a single problem its figures, of a batch the medians and how many are still running."""

    def __init__(self, solver: Any, linearizer: Any, note: str = ""):
        structure = linearizer.structure
        parts = (
            f"{structure.num_components} x {structure.size}" if structure.num_components > 1 else f"{structure.size}"
        )
        print(f"{type(solver).__name__}, {linearizer.linear_solver.summary()} of {parts} unknowns")
        self._said: set[str] = set()
        self._say(note)
        print(f"{'step':>5} {'cost':>15} {'gradient':>10} {'step':>10} {'damping':>10}  running")

    def row(self, info: StepInfo) -> None:
        figures = (info.cost, info.gradient_norm, info.step_norm, info.damping)
        cost, gradient, step, damping = (float(figure.nanmedian()) for figure in figures)
        running = int((info.status == Status.RUNNING).sum())
        rejected = int((~info.accepted).sum()) if info.step else 0
        note = f", {rejected} rejected" if rejected else ""
        print(
            f"{info.step:>5} {cost:>15.8e} {gradient:>10.2e} {step:>10.2e} {damping:>10.2e}  {running} of "
            f"{info.cost.numel()}{note}",
            flush=True,
        )

    def _say(self, notes: str) -> None:
        """What was found while planning or recording, a line each, once."""
        for note in notes.splitlines():
            if note and note not in self._said:
                self._said.add(note)
                print(note[0].upper() + note[1:])

    def finish(self, status: Tensor, note: str = "") -> None:
        self._say(note)
        for value in Status:
            count = int((status == value).sum())
            if count:
                print(f"{count} of {status.numel()}: {value.sentence}", flush=True)
