"""`prepared`: a solve whose checks are done once, for calls that differ in the numbers alone."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, overload

from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint, Implicit, solve_system
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.front.batching import is_whole, taken_apart, tensor_of
from mslsq.front.curve_fit import CurveFit, curve_fit, fit_of, measured, prepared_points, residual_of
from mslsq.front.leaves import Start
from mslsq.front.problem_statement import stated
from mslsq.front.residual_statement import StatedResidual, stated_residual
from mslsq.front.statement import Solved, Statement
from mslsq.linearize.blocks import Values
from mslsq.losses import RobustLoss
from mslsq.private import transforms_are_active
from mslsq.problem import Problem
from mslsq.problem.errors import DeviceError, DtypeError, ProblemError, ShapeError
from mslsq.solvers import LevenbergMarquardt, Solver
from mslsq.solvers.planning import Pinned, Task, plan_key
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


class Prepared(Generic[Kind]):
    """A callable that solves one problem for other numbers; made by `mslsq.prepared`."""

    def __init__(self, solver: Solver | None, adjoint: Adjoint | None, example: tuple[Any, ...]):
        self._solver = LevenbergMarquardt() if solver is None else solver
        self._adjoint = Implicit() if adjoint is None else adjoint
        instance_of("solver", self._solver, Solver)
        instance_of("adjoint", self._adjoint, Adjoint)
        self._structure: pytree.Structure
        leaves, self._structure = pytree.flatten(example)
        self._expected = [_expected(leaf) for leaf in leaves]
        self._kinds = tuple(type(leaf) for leaf in pytree.leaves(example, is_leaf=is_whole))
        self._key = self._key_of(self._statement(self._state(*example)))
        self._fixed: Fixed | None = None
        self._calls = 0

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
        if self._fixed is None or self._calls % CHECKED_EVERY == 1 or transforms_are_active():
            return self._looked_at(arguments)
        fixed, count = self._fixed, len(leaves)
        inputs = tuple([dict(held) for held in fixed.held])
        for leaf, places in zip(leaves[count - len(fixed.places) :], fixed.places, strict=True):
            for term, name, axis in places:
                inputs[term][name] = leaf if axis is None else leaf.movedim(axis, 0)
        starts = self._starts(fixed.statement, arguments[0])
        found, plan = solve_system(fixed.task, starts, inputs, self._adjoint)
        return self._result(None, fixed.statement.given_back(found, plan, self._solver, inputs), arguments)

    def _looked_at(self, arguments: tuple[Any, ...]) -> Any:
        """The call as its front door does it, with the hidden state compared."""
        start, *rest = arguments
        # Objects of their own, by which they are found again among the inputs.
        leaves, structure = pytree.flatten(tuple(rest))
        own = [leaf.view_as(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        state = self._state(start, *pytree.unflatten(own, structure))
        statement = self._statement(state)
        if self._key_of(statement) != self._key:
            raise HiddenStateError(_changed())
        solved = statement.solved(self._solver, self._adjoint)
        if self._fixed is not None and not transforms_are_active():
            pinned = self._fixed.task.pinned
            if pinned is not None and pinned.plan is not solved.plan:
                raise HiddenStateError(_changed())
        if not transforms_are_active() and not solved.plan.changes_unseen and not solved.plan.execution.why_eager:
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
        task = statement.task(self._solver)
        task = replace(task, pinned=Pinned(solved.plan))
        return Fixed(statement, task, tuple(held), tuple(tuple(names[id(leaf)]) for leaf in own))

    def _key_of(self, statement: Statement) -> Hashable:
        return plan_key(statement.task(self._solver), statement.values, statement.inputs)

    def _checked(self, arguments: tuple[Any, ...]) -> list[Any]:
        """The leaves of the arguments, in the layout of the example."""
        leaves, structure = pytree.flatten(arguments)
        if structure != self._structure:
            raise ProblemError(
                f"This solve was prepared for arguments of the structure {self._structure}, not {structure}. Prepare "
                "another one, or call mslsq.least_squares or mslsq.solve."
            )
        for number, (leaf, expected) in enumerate(zip(leaves, self._expected, strict=True)):
            if _expected(leaf) != expected:
                _refuse(number, leaf, expected)
        return leaves


class PreparedResidual(Prepared[StatedResidual]):
    """`mslsq.least_squares` for other starts and arguments."""

    def __init__(
        self,
        residual: Callable[..., Any],
        x0: Any,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        solver: Solver | None,
        adjoint: Adjoint | None,
    ):
        self._residual, self._options = residual, options
        super().__init__(solver, adjoint, (x0, tuple(args)))

    @outside_compiled_regions
    def __call__(self, x0: Any, args: tuple[Any, ...] = ()) -> Any:
        """As `mslsq.least_squares(residual, x0, args, ...)` with the options that it was prepared with."""
        return self.solved(x0, tuple(args))

    def _state(self, *arguments: Any) -> StatedResidual:
        return stated_residual(self._residual, *arguments, **self._options)

    def _statement(self, state: StatedResidual) -> Statement:
        return state.statement

    def _starts(self, statement: Statement, start: Any) -> Values:
        leaves = [start] if type(start) is Tensor else pytree.leaves(start, is_leaf=is_whole)
        return tuple(
            _placed(before, tensor_of(leaf), unknown.space.storage_dim, statement.size)
            for before, leaf, unknown in zip(statement.starts, leaves, statement.system.unknowns, strict=True)
        )

    def _result(self, state: StatedResidual | None, solved: Solved, arguments: tuple[Any, ...]) -> Any:
        if state is not None:
            self._callables, self._axes = state.callables, state.axes
        if not self._callables.has_aux:
            return solved.solution
        start, args = arguments
        functions = replace(self._callables, arguments=taken_apart(start, *args))
        return solved.solution, functions.aux(solved.solution.value, self._axes)


class PreparedFit:
    """`mslsq.curve_fit` for other points and starts."""

    def __init__(
        self,
        model: Callable[[Any, Any], Tensor],
        t: Any,
        y: Tensor,
        p0: Any,
        *,
        sigma: Any = None,
        absolute_sigma: bool = False,
        bounds: Any = None,
        mask: Tensor | None = None,
        in_dims: Any = None,
        solver: Solver | None = None,
        loss: RobustLoss | None = None,
        adjoint: Adjoint | None = None,
    ):
        self._model, self._in_dims, self._absolute_sigma, self._loss = model, in_dims, absolute_sigma, loss
        points, dims = prepared_points(measured(model, t, y, p0, sigma, mask, in_dims))
        options = {"in_dims": dims, "loss": loss, "bounds": bounds}
        self._solve = _PreparedWhole(residual_of(model), p0, points, options, solver, adjoint)

    @outside_compiled_regions
    def __call__(self, t: Any, y: Tensor, p0: Any, *, sigma: Any = None, mask: Tensor | None = None) -> CurveFit:
        """As `mslsq.curve_fit(model, t, y, p0, sigma=sigma, mask=mask, ...)` with the options that it was prepared
        with."""
        points, _ = prepared_points(measured(self._model, t, y, p0, sigma, mask, self._in_dims))
        return fit_of(self._solve.solved(p0, tuple(points)), points, self._absolute_sigma, self._loss)


class _PreparedWhole(PreparedResidual):
    """A prepared residual that returns all that is known of a solution."""

    def _result(self, state: StatedResidual | None, solved: Solved, arguments: tuple[Any, ...]) -> Solved:
        return solved


class PreparedProblem(Prepared[Statement]):
    """`mslsq.solve` for other starts and data."""

    def __init__(
        self,
        problem: Problem,
        values: Mapping[str, Any],
        data: Mapping[str, Mapping[str, Any]],
        in_dims: Any,
        solver: Solver | None,
        adjoint: Adjoint | None,
    ):
        self._problem, self._in_dims = problem, in_dims
        super().__init__(solver, adjoint, (dict(values), _plain(data)))

    @outside_compiled_regions
    def __call__(self, values: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
        """As `mslsq.solve(problem, values, data, ...)` with the options that it was prepared with."""
        return self.solved(dict(values), _plain({} if data is None else data))

    def _state(self, *arguments: Any) -> Statement:
        values, data = arguments
        return stated(self._problem, values, data, self._in_dims)

    def _statement(self, state: Statement) -> Statement:
        return state

    def _starts(self, statement: Statement, start: Any) -> Values:
        return tuple(
            replace(before, tensor=unknown.space.unwrap(start[unknown.name])).of_all(statement.size)
            for before, unknown in zip(statement.starts, statement.system.unknowns, strict=True)
        )

    def _result(self, state: Statement | None, solved: Solved, arguments: tuple[Any, ...]) -> Any:
        return solved.solution


@overload
def prepared(residual_or_problem: Problem, *example: Any, **options: Any) -> PreparedProblem: ...


@overload
def prepared(residual_or_problem: Callable[..., CurveFit], *example: Any, **options: Any) -> PreparedFit: ...


@overload
def prepared(residual_or_problem: Callable[..., Any], *example: Any, **options: Any) -> PreparedResidual: ...


def prepared(
    residual_or_problem: Any, *example: Any, **options: Any
) -> PreparedResidual | PreparedProblem | PreparedFit:
    """A callable that solves for other numbers, with the checks of a call done once.

    `mslsq.least_squares` and `mslsq.solve` look in every call at everything that a residual reads, and evaluate the
    user's own Python at the start and at the solution, to notice what has changed since the call before. A prepared
    solve does that at its first and every hundredth call. In between it takes for granted that nothing has changed
    but the numbers in its arguments, and in the tensors that the residual or problem held when it was prepared:
    those are read in every call (an optimizer may write into parameters), but a tensor that is put in the place of
    another, an attribute, a global variable, a mode of a module or a monkeypatched function is not seen.

    Args:
        residual_or_problem: as for `mslsq.least_squares`; a `mslsq.Problem` as for `mslsq.solve`; or the function
            `mslsq.curve_fit` itself, followed by its model.
        example: positional arguments as the front door takes them: `x0, args`, of a problem `values, data`, of
            `curve_fit` `model, t, y, p0`. Of tensors only shape, dtype, device and strides count.
        options: as for the front door; they are fixed.

    Returns:
        A callable `(x0, args=())`; of a problem `(values, data=None)`; of `curve_fit`
        `(t, y, p0, *, sigma=None, mask=None)`. It returns what the front door does, with the same derivatives, under
        the same transforms.

    Raises:
        ProblemError (a ValueError): something is wrong with the example; or, when called, the arguments are of other
            shapes, dtypes or devices than the example, or hold another number or string.
        HiddenStateError: when called: what the residual or problem holds has changed.

    >>> t = torch.linspace(0, 1, 20, dtype=torch.float64)
    >>> def residual(p, t, y):
    ...     return p[0] * torch.exp(p[1] * t) - y
    >>> start = torch.tensor([1.0, -1.0], dtype=torch.float64)
    >>> fit = mslsq.prepared(residual, start, args=(t, torch.zeros_like(t)))
    >>> fit(start, args=(t, 2.0 * torch.exp(-1.5 * t))).value
    tensor([ 2.0000, -1.5000], dtype=torch.float64)
    """
    if residual_or_problem is curve_fit:
        return PreparedFit(*example, **options)
    if isinstance(residual_or_problem, Problem):
        return _prepared_problem(residual_or_problem, *example, **options)
    return _prepared_residual(residual_or_problem, *example, **options)


def _prepared_residual(
    residual: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] | None = None,
    *,
    jac: Callable[..., Any] | None = None,
    has_aux: bool = False,
    in_dims: Any = None,
    solver: Solver | None = None,
    loss: RobustLoss | None = None,
    bounds: Any = None,
    adjoint: Adjoint | None = None,
) -> PreparedResidual:
    options = {"jac": jac, "has_aux": has_aux, "in_dims": in_dims, "loss": loss, "bounds": bounds}
    return PreparedResidual(residual, x0, () if args is None else args, options, solver, adjoint)


def _prepared_problem(
    problem: Problem,
    values: Mapping[str, Any],
    data: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    in_dims: Any = None,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    **of_residuals: Any,
) -> PreparedProblem:
    if of_residuals:
        raise ProblemError(
            f"{', '.join(of_residuals)}: options of a residual. In a Problem the costs have jacobians and a loss of "
            "their own."
        )
    return PreparedProblem(problem, values, {} if data is None else data, in_dims, solver, adjoint)


def _placed(before: Start, tensor: Tensor, storage: int, size: int | None) -> Tensor:
    """The start of an unknown of one block, (batch, 1, storage)."""
    if before.axis is None:
        return tensor.reshape(1, 1, storage).expand(size or 1, 1, storage)
    return tensor.movedim(before.axis, 0).reshape(-1, 1, storage)


def _plain(data: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Dicts, whatever mappings were given: the structure of arguments is compared."""
    return {name: dict(replaced) for name, replaced in data.items()}


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
