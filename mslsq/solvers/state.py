"""What a step reads and writes, and what is kept of it."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization
from mslsq.solvers.box import Box
from mslsq.solvers.solver import MethodState

STATUS, NUM_STEPS, NUM_EVALUATIONS, ACCURACY = -7, -6, -5, -4
"""Places in `State.flat`, of a state without bounds."""


class State(NamedTuple):
    """Everything that a step reads and writes."""

    values: Values
    model: Linearization
    method: MethodState
    status: Int[Tensor, "batch"]
    num_steps: Int[Tensor, "batch"]
    num_evaluations: Int[Tensor, "batch"]
    accuracy: Float[Tensor, "batch"]
    """The relative residual asked of the next linear solve; moves only where that iterates."""
    start_sizes: Float[Tensor, "batch columns"]
    """How large the variables were at the start, squared; stays."""
    start_reach: Float[Tensor, "batch columns"]
    """How large a residual each of them made there alone, |Jᵢ|²xᵢ²; stays."""
    start_cost: Float[Tensor, "batch"]
    """Stays."""
    box: Box | tuple[()]
    """Bounds of the variables; stays."""

    def flat(self) -> list[Tensor]:
        """The tensors in the order of the pytree, at a tenth of its cost."""
        return [*self.values, *self.model, *self.method, self.status, *self[-7:-1], *self.box]

    def like(self, tensors: list[Tensor]) -> "State":
        """The state of these tensors, in the order of `flat`."""
        model = len(self.values)
        method = model + len(self.model)
        rest = method + len(self.method)
        box = len(tensors) - len(self.box)
        return State(
            tuple(tensors[:model]),
            Linearization(*tensors[model:method]),
            type(self.method)(*tensors[method:rest]),
            *tensors[rest:box],
            box=Box(*tensors[box:]) if self.box else (),
        )


class Record(NamedTuple):
    """What the history keeps of a step, per problem."""

    cost: Float[Tensor, "batch"]
    gradient_norm: Float[Tensor, "batch"]
    step_norm: Float[Tensor, "batch"]
    damping: Float[Tensor, "batch"]
    accepted: Bool[Tensor, "batch"]
