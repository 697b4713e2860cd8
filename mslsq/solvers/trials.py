"""The trials of graduated non-convexity: several descents of one problem, of which the best per problem is kept."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.solvers.constraint_terms import chosen
from mslsq.solvers.live_blocks import LiveBlocks
from mslsq.solvers.rounds import Rounds, State
from mslsq.solvers.run import Outcome
from mslsq.solvers.verdict import LEVEL


@dataclass(frozen=True, eq=False)
class Trials:
    """The best descent so far, per problem."""

    rounds: Rounds
    state: State | None = None
    """At the end of its rounds."""
    values: Values = ()
    """The minimum of the robust cost that they lead to..."""
    cost: Float[Tensor, "batch"] | None = None
    """... and that cost, by which descents are compared."""

    def and_one(self, state: State, outcome: Outcome) -> "Trials":
        """With one more: the end of its rounds, and the minimum that they lead to."""
        cost = torch.where(torch.isfinite(outcome.cost), outcome.cost, torch.inf)
        if self.state is None or self.cost is None:
            return replace(self, state=state, values=outcome.values, cost=cost)
        # A minimum found twice is that of the first.
        blur = max(10 * self.rounds.task.solver.ftol, LEVEL * torch.finfo(cost.dtype).eps)
        better = cost < (1 - blur) * self.cost
        asks = self.rounds.asks
        if asks and not bool(better.any()):
            return self
        kept = self.state
        merged = state._replace(
            values=_chosen(better, state.values, kept.values),
            norms={number: chosen(better, norms, kept.norms[number]) for number, norms in state.norms.items()},
            live=state.live if asks and bool(better.all()) else LiveBlocks(self.rounds.task, self.rounds.task, {}),
        )
        values = _chosen(better, outcome.values, self.values)
        return replace(self, state=merged, values=values, cost=torch.where(better, cost, self.cost))

    def best(self, last: State) -> State:
        """Where the last solve begins, with all steps up to now: at the end of the rounds, so that it is the solve of
        that descent; or at the minimum, where no time is left."""
        assert self.state is not None  # there is one descent at least
        best = self.state._replace(num_steps=last.num_steps, num_evaluations=last.num_evaluations)
        return best if self.rounds.cut is None else best._replace(values=self.values)


def _chosen(mask: Tensor, new: Values, old: Values) -> Values:
    return tuple(chosen(mask, *pair) for pair in zip(new, old, strict=True))
