"""`least_squares`: a residual and a start, in SciPy's shape, for any pytree, batched by `in_dims`."""

from collections.abc import Callable
from typing import Any

from mslsq.adjoint import Adjoint
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.elsewhere.calls import call_knowing_words
from mslsq.front.outer import solved
from mslsq.front.repeated_residual import solved_residual
from mslsq.front.residual_statement import stated_residual
from mslsq.losses import RobustLoss
from mslsq.solvers import LevenbergMarquardt, Solver
from mslsq.solvers.outer import OuterSolver


@outside_compiled_regions
@call_knowing_words(LevenbergMarquardt.__dataclass_fields__)
def least_squares(
    residual: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    jac: Callable[..., Any] | None = None,
    has_aux: bool = False,
    in_dims: Any = None,
    solver: Solver | OuterSolver | None = None,
    loss: RobustLoss | None = None,
    bounds: Any = None,
    project_start: bool = False,
    adjoint: Adjoint | None = None,
) -> Any:
    """Minimise ½Σρ(|residual(x, *args)|²) over x.

    Of a large residual (more than 300 unknowns) the sparsity is found from its graph and made use of: a few derivatives
    give the whole Jacobian, parts that nothing couples are solved as a batch, large ones by sparse Cholesky. The
    solver's `verbose=True` says what was found.

    Args:
        residual: `residual(x, *args)` returns a tensor or a pytree of tensors, real or complex (a complex entry
            counts |r|²). Written for one problem, without a batch axis. Tensors it holds in closures, modules or
            partials are inputs of the solve like `args`: batched by `vmap`, differentiated through.
        x0: the start; a tensor, a manifold element, or a pytree of them. Real floating point, of one dtype.
        args: further arguments, any pytrees; tensors in them are differentiable.
        jac: `jac(x, *args)`, the Jacobian of the residual: for a tensor x0 of shape (*residual, *x); for a pytree x0
            a pytree of such (of shape (*residual, tangent) for a manifold element, with respect to the tangent of
            `retract`).
        has_aux: the residual returns `(r, aux)`; the result is then `(solution, aux at the solution)`.
        in_dims: `torch.func.vmap`'s, over `(x0, *args)`: one independent solve per entry. What is not mapped is shared.
        solver: `LevenbergMarquardt()` by default; `GraduatedNonConvexity(...)` where entries may be outliers.
        loss: a robust loss, applied to each entry of the residual (SciPy's meaning).
        bounds: `(lower, upper)`, SciPy's: each a number, an array or tensor that broadcasts to x0, a pytree like x0,
            infinite or None where there is no bound. With one axis more than x0 has in ONE problem it is one bound for
            each. All points at which the residual is evaluated are within them, `solution.active` tells which are met.
            They are differentiable inputs; `lower == upper` holds an entry.
        project_start: start from the nearest point within the bounds, where x0 is outside.
        adjoint: how derivatives pass through the solve, `Implicit()` by default.

    Returns:
        A `Solution` with `value` in the shape of `x0`. Only `value` and `cost` carry derivatives.

    Raises:
        ProblemError (a ValueError): something is wrong with the shapes, dtypes or arguments; the message says what.

    >>> t = torch.linspace(0, 1, 20, dtype=torch.float64)
    >>> y = 2.0 * torch.exp(-1.5 * t) + 0.3
    >>> def residual(p, t, y):
    ...     return p[0] * torch.exp(p[1] * t) + p[2] - y
    >>> solution = mslsq.least_squares(residual, torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64), args=(t, y))
    >>> solution.value
    tensor([ 2.0000, -1.5000,  0.3000], dtype=torch.float64)
    """
    options = {"jac": jac, "in_dims": in_dims, "loss": loss, "bounds": bounds, "project_start": project_start}
    if not has_aux:
        return solved_residual(residual, x0, args, solver, adjoint, **options).solution
    stated = stated_residual(residual, x0, args, has_aux=True, **options)
    solution = solved(stated.statement, solver, adjoint, has_costs=False).solution
    return solution, stated.aux(solution.value)
