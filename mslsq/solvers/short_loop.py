"""The loop around a recorded start and a recorded step of one problem, with as little around them as there can be.

A pose graph of ten poses takes 50 µs for its start; the loop of `solvers.run`, which serves every other solve, and what
a solution is made of take 500.
"""

import ctypes
import functools
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linearize.blocks import LaneLayout, Values
from mslsq.linearize.linearizer import Linearization, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.linearize.prospects import note_seconds
from mslsq.linearize.trace import Wish, clock
from mslsq.private import without_saved_tensor_hooks
from mslsq.problem.system import Inputs
from mslsq.solution import History, Status
from mslsq.solvers.called_loop import Called, CalledLoop
from mslsq.solvers.choices import creep_of, is_small_and_dense, is_watched, linear_solver_of, linearizer_of
from mslsq.solvers.native_loop import Ended, NativeLoop
from mslsq.solvers.run import Trajectory, history_of, trajectory_by, trajectory_of, useful_steps
from mslsq.solvers.solver import Creep, Solver
from mslsq.solvers.state import ACCURACY, NUM_EVALUATIONS, NUM_STEPS, STATUS, Record
from mslsq.solvers.task import Task
from mslsq.tracing.recording import Recorded

_OF_RECORD = len(Record._fields)
_GRADIENT_NORM = Record._fields.index("gradient_norm") - _OF_RECORD


MOST_STEPS = 100_000
"""Of a loop whose memory has room for the history of all: 3 MB."""


LOOPS = 8
"""Solvers of a plan whose loops are kept."""

SMALL_INPUT = 1 << 14
"""Bytes of an input that is kept from call to call: to compare them takes a tenth of the time of laying them out."""


class Model(NamedTuple):
    """What a solve leaves of its last linearization, that of its solution."""

    inputs: TermInputs
    """In the layout of the lanes."""
    cost: Float[Tensor, "1"]
    matrix: Tensor
    """In the form of the linear solver."""


class Stepped(NamedTuple):
    """The end of the loop. A solution that is not read keeps it: nothing large is in here but the values."""

    values: Values
    """(1, count, storage) of every unknown."""
    cost: Tensor
    status: Tensor
    num_steps: Tensor
    num_evaluations: Tensor
    records: list[Record]
    """Of the start and of every step."""
    max_steps: int
    interrupted: bool
    """By a KeyboardInterrupt?"""

    @staticmethod
    def of(values: Values, outputs: list[list[Tensor]], max_steps: int, interrupted: bool) -> "Stepped":
        """The end of a loop with these outputs of the start and of every step: a state (of the last), and a record."""
        state = outputs[-1][:-_OF_RECORD]
        figures = state[len(values)], state[STATUS], state[NUM_STEPS], state[NUM_EVALUATIONS]
        records = [Record(*output[-_OF_RECORD:]) for output in outputs]
        return Stepped(values, *figures, records, max_steps, interrupted)

    def fields(self) -> dict[str, Any]:
        """The fields of a solution that the solver knows, but its value."""
        left = int(Status.INTERRUPTED if self.interrupted else Status.MAX_STEPS)
        status = torch.where(self.status == Status.RUNNING, left, self.status)[0]
        history = history_of(self.records, self.num_steps, self.max_steps)
        return {
            "cost": self.cost[0],
            "status": status,
            "num_steps": self.num_steps[0],
            "num_evaluations": self.num_evaluations[0],
            "gradient_norm": self.records[-1].gradient_norm[0],
            "differentiable": (status >= Status.COST_TOLERANCE) & (status <= Status.STEP_TOLERANCE),
            "history": History(*[column[0] for column in history.columns]),
        }


@dataclass(frozen=True, eq=False)
class ShortLoop:
    """The way to the recorded start and step of one problem without bounds. Holds nothing of the user's but copies of
    small inputs."""

    plan: Plan
    layouts: tuple[LaneLayout, ...]
    """Of the inputs of every term."""
    solver: Solver
    creep: Creep | None
    """How it is told that the problem creeps; None where steps are all of one kind."""
    called: CalledLoop | None = None
    """That around a recorded linearization, where start and step are not recorded."""
    native: list[tuple[Any, Any, NativeLoop | None]] = field(default_factory=list)
    """The programs of start and step that there are now, and the loop around them."""
    kept: tuple[dict[str, "_LaidOut"], ...] = ()
    """Per term the small inputs of the call before, copies in the layout of the lanes."""

    @staticmethod
    def of(task: Task, plan: Plan) -> "ShortLoop | None":
        """The way to those of this plan; None where there cannot be any, or where they do not say all that is asked."""
        solver = task.solver
        if not plan.records_steps or plan.compressed is not None or not plan.is_on_cpu or task.outer is not None:
            return None
        if not solver.early_stop or not solver.keeps_graphs or is_watched(solver):
            return None
        layouts = tuple([block.layout for block in task.blocks(plan)])
        # One for all statements of a plan: its native loop, and the inputs that it has laid out, serve the next, too.
        known = plan.loops.get(solver)
        if known is not None and known.layouts == layouts:
            return known
        linear, called = linear_solver_of(task, plan), None
        if is_small_and_dense(task, plan) and plan.structure.padding is None:
            system = replace(task.system, terms=(), key=None)
            called = CalledLoop(plan, solver, replace(linearizer_of(task, plan), system=system, assemblies=()))
        kept: tuple[dict[str, _LaidOut], ...] = tuple([{} for _ in layouts])
        made = ShortLoop(plan, layouts, solver, creep_of(task, linear), called, kept=kept)
        if len(plan.loops) < LOOPS:
            plan.loops[solver] = made
        return made

    def solve(
        self, values: Values, inputs: tuple[Inputs, ...], wish: Wish | None = None
    ) -> Stepped | Ended | Called | None:
        """The end of a solve; None where it takes what is not recorded, or where there is more to be said or done.

        Nothing may be differentiated.

        Args:
            values: the start of every unknown, (1, count, storage).
            inputs: per term its tensors by name, as given by the user.
            wish: the solver's `execution`, where it has been asked for.
        """
        wish = self.solver.execution if wish is None else wish
        start = self._start(wish)
        if start is None:
            return self._solved_by_calls(values, inputs)
        given = self._laid_out(inputs)
        native = self._native(start, wish, len(values))
        if native is not None:
            now = clock(self.plan.is_large)
            begin = now()
            ended = native.solve(values, given, self.solver.max_steps, self.creep)
            if ended is not None:
                note_seconds(self.plan, now() - begin)
                return ended
        with torch.no_grad(), without_saved_tensor_hooks():
            found = self._by_graphs(start, values, given)
        return None if found is None else found[0]

    def solve_to_differentiate(
        self, values: Values, inputs: tuple[Inputs, ...]
    ) -> tuple[Stepped | Called, Model] | None:
        """The same with the model of the cost around the solution; the inputs may require derivatives."""
        start = self._start(self.solver.execution)
        if start is None:
            called = self._solved_by_calls(values, inputs)
            if called is None:
                return None
            with torch.no_grad():
                return called, Model(self._prepared(inputs), called.ended.cost, called.ended.matrix)
        with torch.no_grad(), without_saved_tensor_hooks():
            prepared = self._prepared(inputs)
            found = self._by_graphs(start, values, [x for tensors in prepared for x in tensors.values()])
        if found is None:
            return None
        stepped, (cost, _, matrix, _) = found
        return stepped, Model(prepared, cost, matrix)

    def solve_keeping_steps(
        self, values: Values, inputs: tuple[Inputs, ...]
    ) -> tuple[Stepped | Called, Tensor, Trajectory | tuple[()]] | None:
        """The same with the cost, and with what its steps can be taken again from: none of them is bent. A program of
        the whole solve leaves no steps, and is not waited for."""
        start = self.plan.execution.known("start", self.solver.execution)
        if start is None:
            called = self._solved_by_calls(values, inputs, keep_methods=True)
            if called is None:
                return None
            return called, called.ended.cost, trajectory_of(called.ended, called.methods) if called.methods else ()
        kind, states = method_of(self.solver), []
        if kind is None:
            return None
        with torch.no_grad(), without_saved_tensor_hooks():
            found = self._by_graphs(start, values, [x for own in self._prepared(inputs) for x in own.values()], states)
        if found is None:
            return None
        stepped, (cost, *_) = found
        if not states:
            return stepped, cost, ()
        first = len(values) + len(Linearization._fields)
        methods = [(state[ACCURACY], kind(*state[first:STATUS])) for state in states]
        accepted = torch.stack([record.accepted for record in stepped.records[1 : 1 + len(methods)]], 1)
        return stepped, cost, trajectory_by(accepted, methods, useful_steps(accepted))

    def _solved_by_calls(self, values: Values, inputs: tuple[Inputs, ...], keep_methods: bool = False) -> Called | None:
        if self.called is None or (self._is_due and not keep_methods):
            return None
        now = clock(self.plan.is_large)
        begin = now()
        with torch.no_grad(), without_saved_tensor_hooks():
            found = self.called.solve(values, self._prepared(inputs), keep_methods)
        note_seconds(self.plan, now() - begin)
        return found

    @property
    def _is_due(self) -> bool:
        """Is something faster to be begun, or to be taken up?"""
        whole = self.plan.plain.whole
        return whole is not None and whole.is_due

    def _start(self, wish: Wish) -> Recorded | None:
        """The recorded start; None where there is none, or where something faster is due."""
        return None if self._is_due else self.plan.execution.known("start", wish)

    def _laid_out(self, inputs: tuple[Inputs, ...]) -> list[Tensor]:
        """`_prepared` where nothing is differentiated, one input after the other. Small ones that hold what they held
        in the call before have its copies: to lay them out took a seventh of a call of a ring of 10 poses."""
        found: list[Tensor] = []
        for layout, given, kept in zip(self.layouts, inputs, self.kept, strict=True):
            changed = layout.changed
            for name, x in given.items():
                found.append(_laid_out(layout, name, x, kept) if name in changed else x)
        return found

    def _prepared(self, inputs: tuple[Inputs, ...]) -> TermInputs:
        return tuple([layout.prepared(given) for layout, given in zip(self.layouts, inputs, strict=True)])

    def _by_graphs(
        self, start: Recorded, values: Values, given: list[Tensor], states: list[list[Tensor]] | None = None
    ) -> tuple[Stepped, Linearization] | None:
        """`solve` by what is recorded as graphs, from the inputs in the layout of the lanes, with the last
        linearization. With `states` the state before every step is put there, and none is bent."""
        execution, most = self.plan.execution, self.solver.max_steps
        now = clock(self.plan.is_large)
        begin = now()
        outputs = [start.flat([*[x.contiguous() for x in values], *given])]
        if most and not float(outputs[0][_GRADIENT_NORM]):
            return None  # does anything depend on the variables?
        if execution.needs_witness:  # derivatives of a user's own residual are most of its start
            note_seconds(self.plan, now() - begin)
        interrupted = False
        if most and _is_running(outputs[0]):
            step = execution.known("step", self.solver.execution)
            if step is None:
                return None
            place = self._creep_place(len(values)) if states is None else None
            interrupted = self._advance(outputs, step, given, place, states)
            if interrupted is None:
                return None
        found = outputs[-1][: len(values)]
        if len(outputs) == 1:
            found = [x.clone() for x in found]  # without a step they are the user's own
        count = len(values)
        model = Linearization(*outputs[-1][count : count + len(Linearization._fields)])
        return Stepped.of(tuple(found), outputs, most, interrupted), model

    def _native(self, start: Recorded, wish: Wish, count: int) -> NativeLoop | None:
        """The loop around the programs of start and step, where they are native calls."""
        if self.solver.max_steps > MOST_STEPS or (start.whole is None and start.prospect is None):
            return None
        step = self.plan.execution.known("step", wish)
        if start.whole is None:
            start.prospect.is_wanted = step is not None and step.whole is not None  # which alone is no loop
            return None
        if step is not None and step.whole is None:
            return None
        whole = None if step is None else step.whole
        if not self.native or self.native[0][0] is not start.whole or self.native[0][1] is not whole:
            self.native[:] = [(start.whole, whole, NativeLoop.of(start.whole, whole, count))]
        return self.native[0][2]

    def _creep_place(self, count: int) -> int | None:
        """Where in a state stands what tells whether the problem creeps; None where steps are all of one kind."""
        return None if self.creep is None else count + len(Linearization._fields) + self.creep.place

    def _creeps(self, number: Tensor) -> bool:
        return self.creep is not None and float(number) >= self.creep.count

    def _advance(
        self,
        outputs: list[list[Tensor]],
        step: Recorded,
        given: list[Tensor],
        creep_place: int | None,
        states: list[list[Tensor]] | None,
    ) -> bool | None:
        """Take steps to the end; was it interrupted? None where it takes bent steps, which are not recorded."""
        now, begin = clock(self.plan.is_large), None
        try:
            for _ in range(self.solver.max_steps):
                if (
                    self.creep is not None
                    and creep_place is not None
                    and float(outputs[-1][creep_place]) >= self.creep.count
                ):
                    bent = self.plan.execution.known("bent step", self.solver.execution)
                    if bent is None:
                        return None
                    step, creep_place = bent, None
                state = outputs[-1][:-_OF_RECORD]
                outputs.append(step.flat([*state, *given]))
                if states is not None:
                    states.append(state)
                outputs[-2] = outputs[-2][-_OF_RECORD:]  # of states the last is enough
                if not _is_running(outputs[-1]):
                    break
                begin = begin or now()
        except KeyboardInterrupt:
            return True  # a step that was not finished has changed nothing
        if begin is not None:
            note_seconds(self.plan, now() - begin)
        return False


class _LaidOut(NamedTuple):
    """A small input in the layout of the lanes."""

    content: bytes
    """Of the input itself..."""
    key: Hashable
    tensor: Tensor
    """... and a copy of it in that layout."""


def _laid_out(layout: LaneLayout, name: str, x: Tensor, kept: dict[str, _LaidOut]) -> Tensor:
    """An input in the layout of the lanes, as it is kept where it holds the same."""
    key, known = (x.shape, x.stride(), x.dtype, x.is_neg(), x.is_conj()), kept.get(name)
    if known is not None and known.key == key and ctypes.string_at(x.data_ptr(), x.nbytes) == known.content:
        return known.tensor
    tensor = layout.prepared_one(name, x)
    is_dense = x.is_contiguous() or (x.ndim > 1 and x.mT.is_contiguous())
    # What is kept may be read outside of inference mode, too.
    if is_dense and x.nbytes <= SMALL_INPUT and not torch.is_inference_mode_enabled() and not x.is_inference():
        content = ctypes.string_at(x.data_ptr(), x.nbytes)
        kept[name] = _LaidOut(content, key, tensor.detach().clone())
    return tensor


@functools.cache
def _method_of(kind: type[Solver]) -> Any:
    try:
        found = get_type_hints(kind.start).get("return")
    except NameError:  # of a user's own solver
        return None
    return found if hasattr(found, "_fields") else None


def method_of(solver: Solver) -> Any:
    """The class of a method's state; None where the solver does not say it."""
    return _method_of(type(solver))


def _is_running(output: list[Tensor]) -> bool:
    return int(output[STATUS - _OF_RECORD]) == Status.RUNNING
