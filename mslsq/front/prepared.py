"""`prepared`: a solve whose checks are done once, for calls that differ in the numbers alone."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, overload

from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.front.batching import is_whole, taken_apart, tensor_of
from mslsq.front.curve_fit import CurveFit, Fit, curve_fit, fit_of
from mslsq.front.fits.covariance import warn_where_infinite
from mslsq.front.fits.residual import Noise
from mslsq.front.leaves import Start
from mslsq.front.measurements import NanPolicy, check_finite, may_ask
from mslsq.front.prepared_call import Prepared
from mslsq.front.problem_statement import BOUNDS, stated
from mslsq.front.residual_statement import StatedResidual, stated_residual
from mslsq.front.statement import Solved, Statement
from mslsq.linearize.blocks import Values
from mslsq.losses import RobustLoss
from mslsq.problem import Problem
from mslsq.problem.errors import ProblemError
from mslsq.solvers import GraduatedNonConvexity, Solver
from mslsq.validation import boolean


class PreparedResidual(Prepared[StatedResidual]):
    """`mslsq.least_squares` for other starts and arguments."""

    def __init__(
        self,
        residual: Callable[..., Any],
        x0: Any,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        solver: Solver | GraduatedNonConvexity | None,
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

    def __getstate__(self) -> dict[str, Any]:
        return {key: found for key, found in super().__getstate__().items() if key not in ("_callables", "_axes")}

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
        project_start: bool = False,
        fixed: Any = None,
        tied: Any = None,
        noise: Noise = "normal",
        sigma_t: Any = None,
        mask: Tensor | None = None,
        nan_policy: NanPolicy = "omit",
        in_dims: Any = None,
        solver: Solver | GraduatedNonConvexity | None = None,
        loss: RobustLoss | None = None,
        adjoint: Adjoint | None = None,
    ):
        boolean("curve_fit: absolute_sigma", absolute_sigma, ProblemError)
        self._model, self._in_dims, self._absolute_sigma, self._loss = model, in_dims, absolute_sigma, loss
        self._fit_options: dict[str, Any] = {"fixed": fixed, "tied": tied, "noise": noise, "bounds": bounds}
        self._fit_options |= {"loss": loss, "nan_policy": nan_policy}
        fit = Fit.of(model, t, y, p0, sigma, mask, in_dims, sigma_t=sigma_t, **self._fit_options)
        fit.check_solver(solver)
        self._solver, self._adjoint, self._project_start = solver, adjoint, project_start
        self._solve: _PreparedWhole | None = self._prepared(fit)

    def _prepared(self, fit: Fit) -> "_PreparedWhole":
        options = {"in_dims": fit.dims, "loss": self._loss, "bounds": fit.bounds, "project_start": self._project_start}
        return _PreparedWhole(fit.residual, fit.start, fit.arguments, options, self._solver, self._adjoint)

    def __getstate__(self) -> dict[str, Any]:
        """As that of `Prepared`."""
        return self.__dict__ | {"_solve": None}

    @outside_compiled_regions
    def __call__(
        self, t: Any, y: Tensor, p0: Any, *, sigma: Any = None, mask: Tensor | None = None, sigma_t: Any = None
    ) -> CurveFit:
        """As `mslsq.curve_fit(model, t, y, p0, sigma=sigma, mask=mask, sigma_t=sigma_t, ...)` with the options that it
        was prepared with."""
        check_finite(self._fit_options["nan_policy"], t=t, y=y, sigma=sigma, sigma_t=sigma_t)
        options = {**self._fit_options, "sigma_t": sigma_t, "asks": may_ask(self._solver, y)}
        fit = Fit.of(self._model, t, y, p0, sigma, mask, self._in_dims, **options)
        fit.check_solver(self._solver)
        if self._solve is None:
            self._solve = self._prepared(fit)
        result = fit_of(
            self._solve.solved(fit.start, fit.arguments), fit, self._absolute_sigma, self._loss, self._solver
        )
        if options["asks"]:
            warn_where_infinite(result.fitted.tensors, fit.propagates)
        return result


class _PreparedWhole(PreparedResidual):
    """A prepared residual that returns all that is known of a solution."""

    def _result(self, state: StatedResidual | None, solved: Solved, arguments: tuple[Any, ...]) -> Solved:
        return solved


class PreparedProblem(Prepared[Statement]):
    """`mslsq.solve` for other starts and data."""

    has_costs = True

    def __init__(
        self,
        problem: Problem,
        values: Mapping[str, Any],
        data: Mapping[str, Mapping[str, Any]],
        in_dims: Any,
        project_start: bool,
        solver: Solver | GraduatedNonConvexity | None,
        adjoint: Adjoint | None,
    ):
        self._problem, self._in_dims, self._project_start = problem, in_dims, project_start
        if BOUNDS in data:
            raise ProblemError(
                "The bounds of a prepared problem are fixed: give them to its variables, Variable(..., lower=..., "
                "upper=...), or call mslsq.solve."
            )
        super().__init__(solver, adjoint, (dict(values), _plain(data)))

    @outside_compiled_regions
    def __call__(self, values: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
        """As `mslsq.solve(problem, values, data, ...)` with the options that it was prepared with."""
        return self.solved(dict(values), _plain({} if data is None else data))

    def _state(self, *arguments: Any) -> Statement:
        values, data = arguments
        return stated(self._problem, values, data, self._in_dims, self._project_start)

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
        `(t, y, p0, *, sigma=None, mask=None, sigma_t=None)`. It returns what the front door does, with
        the same derivatives, under the same transforms.

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
    solver: Solver | GraduatedNonConvexity | None = None,
    loss: RobustLoss | None = None,
    bounds: Any = None,
    project_start: bool = False,
    adjoint: Adjoint | None = None,
) -> PreparedResidual:
    options = {"jac": jac, "has_aux": has_aux, "in_dims": in_dims, "loss": loss, "bounds": bounds}
    options["project_start"] = project_start
    return PreparedResidual(residual, x0, () if args is None else args, options, solver, adjoint)


def _prepared_problem(
    problem: Problem,
    values: Mapping[str, Any],
    data: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    in_dims: Any = None,
    project_start: bool = False,
    solver: Solver | GraduatedNonConvexity | None = None,
    adjoint: Adjoint | None = None,
    **of_residuals: Any,
) -> PreparedProblem:
    if of_residuals:
        raise ProblemError(
            f"{', '.join(of_residuals)}: options of a residual. In a Problem the costs have jacobians and a loss of "
            "their own."
        )
    return PreparedProblem(problem, values, {} if data is None else data, in_dims, project_start, solver, adjoint)


def _placed(before: Start, tensor: Tensor, storage: int, size: int | None) -> Tensor:
    """The start of an unknown of one block, (batch, 1, storage)."""
    if before.axis is None:
        placed = tensor.reshape(1, 1, storage)
        return placed if size is None else placed.expand(size, 1, storage)
    return tensor.movedim(before.axis, 0).reshape(-1, 1, storage)


def _plain(data: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Dicts, whatever mappings were given: the structure of arguments is compared."""
    return {name: dict(replaced) for name, replaced in data.items()}
