"""A call of a prepared solve: what is fixed when it is made, what every call looks at, and what every hundredth."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint, Implicit, solve_system
from mslsq.front.batching import plain_tensor
from mslsq.front.direct import Direct, is_plain
from mslsq.front.outer import stated_for
from mslsq.front.residual_statement import StatedResidual
from mslsq.front.statement import Solved, Statement, heed_interrupt
from mslsq.linearize.blocks import Values
from mslsq.problem.errors import DeviceError, DtypeError, ProblemError, ShapeError
from mslsq.solvers import LevenbergMarquardt, Solver
from mslsq.solvers.outer import OuterSolver
from mslsq.solvers.short_loop import ShortLoop
from mslsq.solvers.task import Pinned, Task, plan_key
from mslsq.tracing.reading.values import value_of
from mslsq.validation import instance_of

CHECKED_EVERY = 100
"""Calls from one check of the hidden state to the next."""

Kind = TypeVar("Kind", Statement, StatedResidual)


class HiddenStateError(RuntimeError):
    """What a prepared residual or problem holds has changed since it was prepared."""


@dataclass(frozen=True, eq=False)
class Fixed:
    """What a check has found, for the calls up to the next."""

    statement: Statement
    task: Task
    held: tuple[dict[str, Tensor], ...]
    """Per term, the tensors that are no arguments: those that the callable or problem holds."""
    places: tuple[tuple[tuple[int, str, int | None], ...], ...]
    """Per tensor of the arguments behind the start: the inputs that it is, (term, name, batch axis)."""
    direct: Direct | None
    """The way to a native program of the whole solve, where there may be one."""


class Prepared(Generic[Kind]):
    """A callable that solves one problem for other numbers; made by `mslsq.prepared`."""

    has_costs = False
    """Do its terms have names that the user knows?"""

    def __init__(self, solver: Solver | OuterSolver | None, adjoint: Adjoint | None, example: tuple[Any, ...]):
        self._given = LevenbergMarquardt() if solver is None else solver
        self._adjoint = Implicit() if adjoint is None else adjoint
        if not isinstance(self._given, OuterSolver):
            instance_of("solver", self._given, Solver, "Write solver=mslsq.LevenbergMarquardt(), say.")
        instance_of("adjoint", self._adjoint, Adjoint, "Write adjoint=mslsq.Implicit(), say.")
        self._structure: pytree.Structure
        leaves, self._structure = pytree.flatten(example)
        self._form: pytree.Form | None = pytree.Form(example)
        self._expected = [_expected(leaf) for leaf in leaves]
        self._key: Hashable | None = self._key_of(*self._stated(self._state(example[0], *_own(example[1:])[1])))
        self._fixed: Fixed | None = None
        self._calls = 0

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or pickle has: what was asked for, not what was found. The first call of the copy finds it again,
        and fixes what it then holds."""
        found = {"_form": None, "_key": None, "_fixed": None, "_calls": 0}
        return self.__dict__ | found | {"_structure": pytree.tree_of(self._structure)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._structure = pytree.flatten(state["_structure"])[1]

    # ---- what the two kinds of problems answer

    def _state(self, *arguments: Any) -> Kind:
        """The call as its front door states it."""
        raise NotImplementedError

    def _statement(self, state: Kind) -> Statement:
        raise NotImplementedError

    def _starts(self, statement: Statement, start: Any) -> Values:
        """The start of every unknown, (batch, count, storage)."""
        raise NotImplementedError

    def _result(self, state: Kind | None, solved: Solved, arguments: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    # ---- the call

    def solved(self, *arguments: Any) -> Any:
        """The result for these arguments."""
        leaves = self._checked(arguments)
        self._calls += 1
        if self._fixed is None or self._calls % CHECKED_EVERY == 1 or not is_plain():
            return self._looked_at(arguments)
        fixed, count = self._fixed, len(leaves)
        inputs = tuple([dict(held) for held in fixed.held])
        for leaf, places in zip(leaves[count - len(fixed.places) :], fixed.places, strict=True):
            for term, name, axis in places:
                inputs[term][name] = leaf if axis is None else leaf.movedim(axis, 0)
        bounds = fixed.statement.bounds
        starts = bounds.projected(fixed.statement.system, self._starts(fixed.statement, arguments[0]))
        solver, direct = fixed.task.solver, fixed.direct
        found = None if direct is None else direct.found(starts, inputs)
        if found is None or direct is None:
            system = solve_system(fixed.task, starts, inputs, bounds.tensors, self._adjoint)
            return self._result(None, fixed.statement.given_back(system, solver, inputs), arguments)
        if found.interrupted:
            heed_interrupt(found.solution, solver)
        solved = Solved(fixed.statement, found.solution, found.storages, direct.plan, solver, inputs)
        return self._result(None, solved, arguments)

    def _looked_at(self, arguments: tuple[Any, ...]) -> Any:
        """The call as its front door does it, with the hidden state compared."""
        start, *rest = arguments
        own, others = _own(tuple(rest))
        state = self._state(start, *others)
        statement, solver = self._stated(state)
        key = self._key_of(statement, solver)
        self._key = key if self._key is None else self._key
        if key != self._key:
            raise HiddenStateError(_changed())
        solved = statement.solved(solver, self._adjoint)
        if self._fixed is not None and is_plain():
            pinned = self._fixed.task.pinned
            if pinned is not None and pinned.plan.plain is not solved.plan.plain:
                raise HiddenStateError(_changed())
        if is_plain() and not solved.plan.changes_unseen and not solved.plan.execution.why_eager:
            self._fixed = self._fixed_by(statement, solved, own)
        return self._result(state, solved, arguments)

    def _fixed_by(self, statement: Statement, solved: Solved, own: list[Any]) -> Fixed:
        names: dict[int, list[tuple[int, str, int | None]]] = {id(leaf): [] for leaf in own}
        held: list[dict[str, Tensor]] = []
        for number, leaves in enumerate(statement.leaves):
            held.append({leaf.name: leaf.batch_first for leaf in leaves})
            for leaf in leaves:
                if id(leaf.tensor) in names:
                    names[id(leaf.tensor)].append((number, leaf.name, leaf.axis))
        task, direct = statement.task(solved.solver), None
        if task.outer is None:  # the rounds of a solver around a solver have plans of their own
            task = replace(task, pinned=Pinned(solved.plan))
            if not self._adjoint.differentiates_start:
                direct = Direct.of(statement, task.solver, solved.plan, ShortLoop.of(task, solved.plan))
        places = tuple(tuple(names[id(leaf)]) for leaf in own)
        return Fixed(statement, task, tuple(held), places, direct)

    def _stated(self, state: Kind) -> tuple[Statement, Solver]:
        """The statement as it is solved, and by which solver."""
        statement, solver = stated_for(self._statement(state), self._given, self._adjoint, self.has_costs)
        assert solver is not None  # one was given, or the default
        return statement, solver

    def _key_of(self, statement: Statement, solver: Solver) -> Hashable:
        return plan_key(statement.task(solver), statement.values, statement.inputs)

    def _checked(self, arguments: tuple[Any, ...]) -> list[Any]:
        """The leaves of the arguments, in the layout of the example."""
        if self._form is None:
            self._form = pytree.Form(arguments)
        if self._form.fits(arguments):
            leaves = self._form.leaves(arguments)
        else:
            leaves, structure = pytree.flatten(arguments)
            if structure != self._structure:
                raise ProblemError(
                    f"This solve was prepared for arguments of the structure {self._structure}, not {structure}. "
                    "Prepare another one, or call mslsq.least_squares or mslsq.solve."
                )
        for number, (leaf, expected) in enumerate(zip(leaves, self._expected, strict=True)):
            if _expected(leaf) != expected:
                _refuse(number, leaf, expected)
        return leaves


def _own(arguments: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """Arguments around plain tensors that are objects of their own, by which they are found again among the inputs; the
    leaves before."""
    leaves, structure = pytree.flatten(arguments)
    own = [plain_tensor(leaf.view_as(leaf)) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return own, pytree.unflatten(own, structure)


def _expected(leaf: Any) -> Hashable:
    """What a leaf has in common with that of the example: everything but the numbers in a tensor."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device, leaf.stride()
    return value_of(leaf, type(leaf))


def _refuse(number: int, leaf: Any, expected: Any) -> None:
    where = f"Leaf {number} of the arguments"
    if not isinstance(leaf, Tensor) or not isinstance(expected, tuple) or len(expected) != 4:
        raise ProblemError(f"{where} is {leaf!r}; the solve was prepared for another value. Prepare one for each.")
    shape, dtype, device, stride = expected
    for error, given, was in (
        (ShapeError, tuple(leaf.shape), tuple(shape)),
        (DtypeError, leaf.dtype, dtype),
        (DeviceError, leaf.device, device),
    ):
        if given != was:
            raise error(f"{where} is {given}; the solve was prepared for {was}. Prepare one for each.")
    raise ShapeError(f"{where} has strides {leaf.stride()}; the solve was prepared for {stride}: use .contiguous().")


def _changed() -> str:
    return (
        "What a prepared solve holds (attributes, closures, modules, global variables, the code of functions) has "
        f"changed since it was prepared, and is compared at the first and every {CHECKED_EVERY}th call only: the "
        f"results since the last comparison may be those of either state. Pass what changes as an argument, prepare "
        "again after a change, or call mslsq.least_squares or mslsq.solve, which notice."
    )
