"""What one step of an optimizer came to, as data."""

from enum import IntEnum
from typing import NamedTuple


class StepStatus(IntEnum):
    """What became of one step; `StepStatus(2).sentence` is for people."""

    ACCEPTED = 1
    REJECTED = 2
    LEVEL = 3

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    StepStatus.ACCEPTED: "The parameters moved, and the loss on this batch fell.",
    StepStatus.REJECTED: (
        "No trial lowered the loss on this batch. The parameters are as before, the damping is larger for the next "
        "step. Repeated: a minimum to working precision, or a kink; see `gradient_norm`."
    ),
    StepStatus.LEVEL: (
        "The parameters are as before: on this batch they are at a minimum to working precision. What the model "
        "promises, or what a trial changed, is within the rounding of the loss."
    ),
}


class StepReport(NamedTuple):
    """What the last step did, kept as `optimizer.report`. Losses are sums, with weight decay."""

    status: StepStatus
    loss: float
    """Before the step: ½Σρ(r²) + ½ weight_decay |θ|²; what `step` returns."""
    loss_after: float
    """At the parameters that the step left, on the same batch."""
    gain: float
    """Actual over predicted decrease of the last trial; NaN if none was made, or its loss was not finite."""
    damping: float
    """μ of the last trial, relative to the mean squared column length of the first Jacobian."""
    next_damping: float
    gradient_norm: float
    """Largest entry of the gradient of the loss before the step."""
    trials: int
    system: str
    """The linear system that was solved: "normal", "dual" or "cg"."""
    jacobian: str
    """How the Jacobian was computed: "samples", "layers", "columns", "rows", or "products" where it was not formed."""
    cg_iterations: int
    """Of all trials together."""
