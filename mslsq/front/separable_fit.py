"""`separable_fit`: a curve fit whose model is linear in some parameters; they need no start."""

from collections.abc import Callable
from typing import Any, Literal

from jaxtyping import Bool, Float
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint, Detached
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.elsewhere.calls import call_knowing_words
from mslsq.front.bounds import SIDES, by_leaf, pair_of
from mslsq.front.curve_fit import CurveFit, Fit, curve_fit
from mslsq.front.fits.projection import model_of, projected_residual_of
from mslsq.front.measurements import check_finite
from mslsq.front.residual_statement import stated_residual
from mslsq.problem.errors import ProblemError
from mslsq.solvers import LevenbergMarquardt, Solver


@outside_compiled_regions
@call_knowing_words(LevenbergMarquardt.__dataclass_fields__)
def separable_fit(
    basis: Callable[[Any, Any], Tensor],
    t: Any,
    y: Float[Tensor, "*points"],
    p0: Any,
    *,
    sigma: Float[Tensor, "*points"] | Float[Tensor, "points points"] | float | None = None,
    absolute_sigma: bool = False,
    bounds: Any = None,
    project_start: bool = False,
    mask: Bool[Tensor, "*points"] | None = None,
    nan_policy: Literal["omit", "raise"] = "omit",
    in_dims: Any = None,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
) -> CurveFit:
    """Fit `basis(p, t) @ amplitudes` to y over p and the amplitudes, which are eliminated (variable projection).

    At every p the best amplitudes are those of a linear least-squares problem. What is left is minimised over p alone,
    with its exact Jacobian: fewer parameters to start, fewer steps, and far starts that a fit of all parameters does
    not come back from. A few steps over both at the end make it a curve fit like any other.

    Args:
        basis: `basis(p, t)` returns the columns that the amplitudes multiply, in the shape of y with one more axis,
            (*points, terms). A column may be constant. Written for one fit, without a batch axis.
        t, y: as for `curve_fit`, y a single tensor.
        p0: the start of the nonlinear parameters; a tensor or a pytree of tensors.
        sigma, absolute_sigma: as for `curve_fit`.
        bounds, project_start: of the nonlinear parameters, as for `least_squares`.
        mask, nan_policy: as for `curve_fit`.
        in_dims: as for `curve_fit`, over `(t, y, p0, sigma)`.
        solver, adjoint: as for `least_squares`. There is no robust loss: under one the amplitudes are no linear
            problem; `curve_fit` from the values found here takes one.

    Returns:
        A `CurveFit` whose parameters are `{"nonlinear": p, "linear": amplitudes}`; both, their covariance and all else
        carry the derivatives of the joint fit. `fit.solution` is of the last few steps. Columns that depend on those
        before them get the amplitude 0 on the way; at a solution where they do the covariance is infinite.

    Raises:
        ProblemError (a ValueError): shapes, dtypes or in_dims do not fit; the message says what.

    >>> t = torch.linspace(0, 4, 30, dtype=torch.float64)
    >>> y = 2.5 * torch.exp(-1.3 * t) + 0.5
    >>> def basis(p, t):
    ...     return torch.stack([torch.exp(-p * t), torch.ones_like(t)], -1)
    >>> fit = mslsq.separable_fit(basis, t, y, torch.tensor(5.0, dtype=torch.float64))
    >>> fit.value["nonlinear"], fit.value["linear"]
    (tensor(1.3000, dtype=torch.float64), tensor([2.5000, 0.5000], dtype=torch.float64))
    """
    check_finite(nan_policy, t=t, y=y, sigma=sigma)
    if not isinstance(y, Tensor):
        raise ProblemError(f"separable_fit: y must be one tensor, not {type(y).__name__}; curve_fit takes several.")
    fit = Fit.of(basis, t, y, p0, sigma, mask, in_dims, bounds=bounds)
    options = {"bounds": fit.bounds, "project_start": project_start}
    residual = projected_residual_of(basis)
    stated = stated_residual(residual, fit.start, fit.arguments, in_dims=fit.dims, has_aux=True, **options)
    value = stated.statement.solved(solver, Detached()).solution.value
    start = {"nonlinear": value, "linear": stated.aux(value)}
    return curve_fit(
        model_of(basis),
        t,
        y,
        start,
        sigma=sigma,
        absolute_sigma=absolute_sigma,
        bounds=None if bounds is None else _of_nonlinear(bounds, p0),
        mask=mask,
        nan_policy=nan_policy,
        in_dims=_with_start_first(in_dims),
        solver=solver,
        adjoint=adjoint,
    )


def _of_nonlinear(bounds: Any, p0: Any) -> tuple[Any, Any]:
    """Bounds of both kinds of parameters."""
    form = pytree.Form(p0).tree
    sides = [by_leaf(side, p0, which) for side, which in zip(pair_of(bounds, "bounds", p0), SIDES, strict=True)]
    lower, upper = ({"nonlinear": form(side), "linear": None} for side in sides)
    return lower, upper


def _with_start_first(in_dims: Any) -> Any:
    """`in_dims` where the start has the batch axis first."""
    if in_dims is None:
        return None
    if isinstance(in_dims, int):
        return in_dims, in_dims, 0, in_dims
    return (*in_dims[:2], 0, *in_dims[3:])
