"""A few problems of a batch in Python, beside which a native program is put before it is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linear.unrolled import UnrolledCholesky
from mslsq.linearize.blocks import Values
from mslsq.linearize.independent import irregular
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.plan import Plan
from mslsq.linearize.sample import sizes
from mslsq.problem.system import Inputs
from mslsq.solvers.box import Box, within
from mslsq.solvers.task import Task

COMPARED = 3
"""Problems whose numbers are compared with Python's before a program is used."""

MOVED = 1e-3
"""How far from their starts, relative to the variables: at a start there are kinks and ties, and zeros hide much."""

RELATIVE = {torch.float64: 1e-6, torch.float32: 3e-3}
"""What may lie between the numbers of a program and those of Python, relative to their size..."""

NOISE = 1e3
"""... and how many times the difference that rounding makes to Python's own numbers."""


def some_of(usable: Tensor) -> Tensor:
    """The numbers of a few problems of those that are usable, from the first to the last."""
    found = usable.nonzero().reshape(-1)
    return found[torch.linspace(0, len(found) - 1, min(COMPARED, len(found)), device="cpu").long()]


@dataclass
class FewProblems:
    """Some problems of a batch by the library's own functions."""

    task: Task
    plan: Plan
    inputs: tuple[Inputs, ...]
    box: Box | tuple[()]

    @classmethod
    def of(cls, chosen: Tensor, task: Task, plan: Plan, inputs: tuple[Inputs, ...], box: Box | tuple[()]) -> Self:
        """Those of these numbers, of a task with such inputs (as given by the user) and bounds."""
        given = tuple(
            {name: x.index_select(0, chosen) if name in batched else x for name, x in tensors.items()}
            for tensors, batched in zip(inputs, task.batched, strict=True)
        )
        bounds = Box(*(side.index_select(0, chosen) for side in box)) if box else ()
        return cls(task.of_batch(len(chosen), task.batched), plan, given, bounds)

    def linearizer(self, linear: LinearSolver) -> Linearizer:
        return self.plan.linearizer(self.task.system, self.task.batch, self.task.batched, linear)

    def moved(self, values: Values, size: float) -> Values:
        """Values retracted a little, irregularly, not beyond bounds."""
        linearizer = self.linearizer(UnrolledCholesky())
        unknowns, structure = linearizer.system.unknowns, linearizer.structure
        scale = structure.to_columns([sizes(x, one.space) for one, x in zip(unknowns, values, strict=True)])
        moved = linearizer.retract(values, size * scale * irregular(structure.num_columns, values[0]))
        return within(linearizer, moved, self.box) if self.box else moved


def differ(found: Sequence[Tensor], expected: Sequence[Tensor], rounded: Sequence[Tensor], relative: float) -> bool:
    """Is there more than rounding between them? NaN equals NaN. A wrong program is wrong by far.

    `rounded` is what is expected from a start that differs by rounding: where a decision hangs on that, nothing can be
    told.
    """
    for one, right, other in zip(found, expected, rounded, strict=True):
        size = torch.where(torch.isfinite(right), right.abs(), 0)
        noise = (right - other).abs().nan_to_num(torch.inf, torch.inf)
        noise = torch.where(right.isnan() & other.isnan(), 0, noise)
        allowed = relative * (size + size.amax(1, keepdim=True)) + NOISE * noise
        close = (one - right).abs() <= allowed
        if not bool((close | (one == right) | (one.isnan() & right.isnan()) | torch.isinf(allowed)).all()):
            return True
    return False
