"""Runs the start and the step of a plan: eagerly, replayed or compiled, whichever the plan has come to."""

from collections.abc import Callable
from typing import Any

from mslsq import pytree
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.solvers.box import Box
from mslsq.solvers.solver import Solver
from mslsq.solvers.step import Record, State, Step
from mslsq.solvers.witness import Witness
from mslsq.tracing.recording import Recorded


class Runner:
    """Start and step for one solve. The inputs are the same at every step, so they are taken apart once.

    The step is one graph, but of the largest problems the linearization alone: nearly all of the time goes there and to
    the factorisation, and it takes half as long to record or compile. Where a step runs without a graph, the cost of
    the next trial after a rejected step can be looked at before a Jacobian is paid for.
    """

    def __init__(self, plan: Plan, linearizer: Linearizer, solver: Solver, inputs: TermInputs, witness: Witness):
        self._plan, self._linearizer = plan, linearizer
        self._wish, self._witness = solver.execution, witness
        self._inputs, self._flat_inputs = inputs, pytree.leaves(inputs)
        self._records_steps = plan.records_steps and (solver.keeps_graphs or not plan.is_large)
        linearize = linearizer.linearize if self._records_steps else self._linearized
        # Several ranks look before no step: what one of them asks the others would have to answer.
        # Reading a number of a CPU waits for nothing; of a device only the loop reads, one number in every step.
        asks = solver.early_stop and plan.is_on_cpu and plan.ranks.is_alone
        asks = asks and (plan.is_large or not self._records_steps)
        self._step = Step(solver, linearizer, linearize)
        """As a graph has it..."""
        self._eager_step = Step(solver, linearizer, linearize, asks)
        """... and as it runs without one."""
        self._wary = False
        self._running: dict[str, Recorded] = {}
        """The graphs of this solve: a native program that is ready comes with the next."""

    def start(self, values: Values, box: Box | tuple[()] = ()) -> tuple[State, Record]:
        """The state at these values."""
        rest = (box,) if box else ()
        graph = self._graph("start", self._step.start, values, *rest) if self._records_steps else None
        if graph is None:
            return self._plan.execution.run_eagerly(self._eager_step.start, values, self._inputs, *rest)
        return graph(values, self._inputs, *rest)

    def step(self, state: State) -> tuple[State, Record]:
        """The state after one more step. Gradients must be off."""
        graph = self._graph("step", self._step, state) if self._records_steps else None
        if graph is None:
            after, record = self._plan.execution.run_eagerly(self._eager_step, state, self._inputs, self._wary)
            # Rejections come in runs: a damping that was too small is raised several times.
            self._wary = self._eager_step.asks and not bool(record.accepted.any())
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
