"""Trials of one step: the loss at other parameters, which are put back to the bit unless the trial is kept."""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.linearize.agreement import NonDeterministicResidualError
from mslsq.linearize.pairs import BroadcastResidualWarning, Differences, Followed
from mslsq.losses import RobustLoss
from mslsq.optim.evaluation import Evaluated, Repeatable, evaluated
from mslsq.optim.numbers import Number, Numbers
from mslsq.optim.parameters import Active


class Trial(NamedTuple):
    """A trial that was made."""

    cost: Number
    """Infinite where the parameters are not finite."""
    moved: list[Tensor]
    """The parameters there."""


class Trials:
    """The loss of one batch as a function of the parameters.

    Args:
        evaluation: the closure, with the random numbers of the step.
        active: the parameters, at the start of the step.
        loss: of the residuals.
        at_start: what the closure returned there.
        numbers: of the step.
    """

    def __init__(
        self,
        evaluation: Repeatable,
        active: Active,
        loss: RobustLoss | None,
        at_start: Evaluated,
        numbers: Numbers,
    ):
        self.evaluation, self.active, self.loss, self.numbers = evaluation, active, loss, numbers
        self.start = active.copies()
        self.at_start = at_start
        self.cost = numbers.later(at_start.cost(loss) + self._decay(self.start))

    def after(self, step: Tensor) -> Trial:
        """The loss after a step. The parameters of the model are back at the start afterwards. They are never NaN:
        where a step is not finite, and was not asked about, they stay."""
        moved = self.active.moved(self.start, step)
        finite = torch.stack([value.isfinite().all() for value in moved]).all()
        if self.numbers.are_here and not bool(finite):
            return Trial(self.numbers.later(torch.full_like(step[0], torch.inf)), moved)
        pairs = zip(moved, self.start, strict=True)
        self.active.put(moved if self.numbers.are_here else [torch.where(finite, *pair) for pair in pairs])
        try:
            cost = self._evaluated().cost(self.loss)  # before parameters move: a residual may be one of them
        finally:
            self.active.put(self.start)
        cost = torch.where(finite, cost + self._decay(moved), torch.inf)
        return Trial(self.numbers.later(cost), moved)

    def keep(self, values: list[Tensor]) -> None:
        self.active.put(values)

    def check_repeatable(self) -> None:
        """Evaluates once more at the start, where the parameters must be, and looks for data of another shape than the
        prediction.

        Raises:
            NonDeterministicResidualError: the residuals differ.
        """
        differences = Differences(self.active.tensors)
        with Followed(differences):
            there = self._evaluated()
        advice = differences.advice(there.parts, "What the closure returned")
        if advice:
            warnings.warn(advice, BroadcastResidualWarning, stacklevel=2)
        first, again = self.at_start.vector().detach(), there.vector().detach()
        # Sums of an accelerator differ by rounding of the model, of which small residuals are a large part. Another
        # batch, or other random numbers, differ as a whole.
        tolerance = torch.finfo(first.dtype).eps ** 0.5 if first.device.type == "cpu" else 1e-2
        if float((first - again).abs().max()) > tolerance * float(first.abs().max()):
            raise NonDeterministicResidualError(_DIFFER + "Two evaluations at the same parameters differ.")

    def _evaluated(self) -> Evaluated:
        there = evaluated(self.evaluation.again, self.active.tensors)
        shapes = [[tuple(part.shape) for part in one.parts] for one in (self.at_start, there)]
        if shapes[0] != shapes[1]:
            raise NonDeterministicResidualError(
                _DIFFER + f"Residuals had shape {shapes[0]} at first and {shapes[1]} in another evaluation."
            )
        return there

    def _decay(self, values: list[Tensor]) -> Tensor | float:
        """½λ|θ|²."""
        decay = self.active.weight_decay
        if not self.active.decays:
            return 0.0
        flat = torch.cat([value.reshape(-1) for value in values]).to(decay.dtype)
        return 0.5 * (decay * flat.square()).sum()


_DIFFER = (
    "LevenbergMarquardt: within one step the closure must always return the residuals of the same batch. Draw the "
    "batch before `step`, not in the closure; take random numbers from PyTorch's own generators, which are put back, "
    "not from NumPy, `random` or a generator of your own; keep no counter inside. "
)
