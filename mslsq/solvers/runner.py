"""Runs the start and the step of a plan: eagerly, replayed or compiled, whichever the plan has come to."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from mslsq import pytree
from mslsq.linear.iterative.allowance import Allowance
from mslsq.linearize.acceleration import pulled_acceleration
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.solution import Status
from mslsq.solvers.acceleration import Pulled
from mslsq.solvers.box import Box
from mslsq.solvers.solver import Creep, Solver
from mslsq.solvers.state import Record, State
from mslsq.solvers.step import Step
from mslsq.solvers.witness import Witness
from mslsq.tracing.recording import Recorded


class _Kind(NamedTuple):
    """A step of one kind, straight or bent."""

    name: str
    """Of its graph."""
    recorded: Step
    """As a graph has it..."""
    eager: Step
    """... and as it runs without one."""

    def bent(self, name: str, pulled: Pulled) -> "_Kind":
        """The same, bent by this."""
        return _Kind(name, replace(self.recorded, pulled=pulled), replace(self.eager, pulled=pulled))


class Runner:
    """Start and step for one solve. The inputs are the same at every step, so they are taken apart once.

    The step is one graph, but of the largest problems the linearization alone: nearly all of the time goes there and to
    the factorisation, and it takes half as long to record or compile. Where a step runs without a graph, the cost of
    the next trial after a rejected step can be looked at before a Jacobian is paid for.

    Args:
        creep: how the problems are told whose steps are bent; None where steps are all of one kind.
        is_looked_at: will `look` be called between steps? What a linear solver that iterates wants to know is then
            asked there, on a device that would be waited for.
    """

    def __init__(
        self,
        plan: Plan,
        linearizer: Linearizer,
        solver: Solver,
        inputs: TermInputs,
        witness: Witness,
        creep: Creep | None = None,
        is_looked_at: bool = False,
    ):
        linear = linearizer.linear_solver.with_workspace()
        is_rationed = is_looked_at and linear.iterates and plan.ranks.is_alone and not plan.is_on_cpu
        self._allowance = Allowance() if is_rationed else None
        linear = linear if self._allowance is None else linear.with_allowance(self._allowance)
        linearizer = replace(linearizer, linear_solver=linear)
        self._plan, self._linearizer = plan, linearizer
        self._wish, self._witness = solver.execution, witness
        self._inputs, self._flat_inputs = inputs, pytree.leaves(inputs)
        self._records_steps = plan.records_steps and (solver.keeps_graphs or not plan.is_large)
        linearize = linearizer.linearize if self._records_steps else self._linearized
        # Several ranks look before no step: what one of them asks the others would have to answer.
        # Reading a number of a CPU waits for nothing; of a device only the loop reads, one number in every step.
        asks = solver.early_stop and plan.is_on_cpu and plan.ranks.is_alone
        asks = asks and (plan.is_large or not self._records_steps)
        recorded = Step(solver, linearizer, linearize)
        straight = _Kind("step", recorded, replace(recorded, asks=asks))
        pulled = partial(pulled_acceleration, linearizer)
        self._kind = straight.bent("step", pulled) if solver.bends_always else straight
        self._bent = None if creep is None else straight.bent("bent step", pulled)
        self._wary = False
        self._running: dict[str, Recorded] = {}
        """The graphs of this solve: a native program that is ready comes with the next."""

    @property
    def allowed(self) -> int | None:
        """How many iterations the next step makes at most; None where it looks for itself, or does not iterate."""
        return None if self._allowance is None else self._allowance.iterations

    def start(self, values: Values, box: Box | tuple[()] = ()) -> tuple[State, Record]:
        """The state at these values."""
        rest = (box,) if box else ()
        graph = self._graph("start", self._kind.recorded.start, values, *rest) if self._records_steps else None
        if graph is None:
            return self._plan.execution.run_eagerly(self._kind.eager.start, values, self._inputs, *rest)
        return graph(values, self._inputs, *rest)

    def look(self, state: State, bends: bool) -> tuple[int, bool]:
        """How many problems are running, and whether one of them creeps, if that is asked: one question to the
        device."""
        running = state.status == Status.RUNNING
        answer = running.sum()
        if bends and self._bent is not None:
            creeping = running & self._bent.eager.solver.creeping(state.method)
            answer = torch.where(creeping.any(), -answer, answer)  # who creeps is running
        told = int(answer) if self._allowance is None else self._allowance.read_with(answer, state.accuracy, running)
        return abs(told), told < 0

    def step(self, state: State, bends: bool = False) -> tuple[State, Record]:
        """The state after one more step, which is bent for the problems that creep if `bends`. Gradients must be
        off."""
        kind = self._bent if bends and self._bent is not None else self._kind
        graph = self._graph(kind.name, kind.recorded, state) if self._records_steps else None
        if graph is None:
            after, record = self._plan.execution.run_eagerly(kind.eager, state, self._inputs, self._wary)
            # Rejections come in runs: a damping that was too small is raised several times.
            self._wary = kind.eager.asks and not bool(record.accepted.any())
            return after, record
        output = graph.flat([*state.flat(), *self._flat_inputs])
        split = len(output) - len(Record._fields)
        return state.like(output[:split]), Record(*output[split:])

    def _linearized(self, values: Values, inputs: TermInputs) -> Linearization:
        own = self._linearizer.own_linearization
        graph = self._graph("linearize", own, values)
        return self._linearizer.together((own if graph is None else graph)(values, inputs))

    def _graph(self, name: str, function: Callable[..., Any], at: Values | State, *rest: Any) -> Recorded | None:
        """The recorded graph, recorded now if that pays; None where it does not, or is not wanted."""
        if name in self._running:
            return self._running[name]
        values = at.values if isinstance(at, State) else at
        found = self._plan.execution.graph(
            name,
            self._wish,
            function,
            at,
            self._inputs,
            *rest,
            compiled="never" if self._plan.is_for_programs else "always",
            witness=lambda: self._witness.record(values),
        )
        if found is not None:
            self._running[name] = found
        return found
