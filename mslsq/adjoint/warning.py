"""Why a problem that has converged, or cannot go on, has no derivative, in words."""

import warnings
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.adjoint.minimum import Evidence

ASKED = 16
"""Of that many problems the eigenvalues are looked at to say what is wrong with their Hessian."""


class NotDifferentiableWarning(UserWarning):
    """A solve ended at a solution that is not a differentiable function of the data."""


class UnconvergedAdjointWarning(UserWarning):
    """The linear system of a derivative was not solved accurately enough; the derivative is NaN (or zero)."""


def warn_about(
    ended: Bool[Tensor, "batch"],
    solved: Bool[Tensor, "batch"],
    definite: Bool[Tensor, "batch"],
    residual: Float[Tensor, "batch"],
    evidence: Evidence,
    hessian: Tensor,
    weak: Bool[Tensor, "batch"] | None,
    advice: Callable[[], str] = lambda: "",
) -> None:
    """One warning per reason, with how many of a batch it concerns.

    Args:
        hessian: in the form of the linear solver.
        advice: a sentence about the residual, where the gradient is not what it should be.
    """
    # A solver that gave up before it could tell says how far it came: that is not a gauge.
    singular = ended & ~definite & residual.isnan()
    unsolved = ended & ~singular & ~solved
    kinked = ended & solved & ~evidence.smooth
    stopped = ended & solved & evidence.smooth & ~evidence.vanishes
    total = len(definite)
    if bool(singular.any()):
        indefinite = _has_negative_eigenvalue(hessian, singular)
        (_warn_about_saddle if indefinite else _warn_about_gauge)(int(singular.sum()), total)
    if bool(unsolved.any()):
        _warn_about_residual(float(residual[unsolved].max()), int(unsolved.sum()), total)
    if weak is not None and bool((ended & solved & weak).any()):
        _warn_about_bounds(int((ended & solved & weak).sum()), total)
    if bool((kinked | stopped).any()):
        _warn_about_minimum(int(kinked.sum()), int(stopped.sum()), total, advice())


def _has_negative_eigenvalue(hessian: Tensor, singular: Bool[Tensor, "batch"]) -> bool:
    """Is one of the Hessians without a factor more than singular? Known of dense ones alone."""
    some = hessian[singular][:ASKED]
    if hessian.ndim != 4 or not bool(torch.isfinite(some).all()):
        return False
    eigenvalues = torch.linalg.eigvalsh(some)
    floor = 1e3 * torch.finfo(hessian.dtype).eps * hessian.shape[-1] * eigenvalues.abs().amax(-1, keepdim=True)
    return bool((eigenvalues < -floor).any())


def _which(count: int, total: int) -> str:
    if total == 1:
        return "The problem"
    return f"{count} problem{'' if count == 1 else 's'} of {total}"


def _warn_about_gauge(num_singular: int, num_problems: int) -> None:
    warnings.warn(
        f"{_which(num_singular, num_problems)} converged to a point whose Hessian is not positive definite, so the "
        "solution is not a differentiable function of the data and its derivatives are NaN (or zero). Usually a gauge "
        "is free: hold a block with variable.fixed(index), add a Prior, or ask for Implicit(gauge='minimum_norm').",
        NotDifferentiableWarning,
        stacklevel=4,
    )


def _warn_about_saddle(num_indefinite: int, num_problems: int) -> None:
    warnings.warn(
        f"{_which(num_indefinite, num_problems)} converged to a point where the Hessian of the cost has a negative "
        "eigenvalue: a saddle or a maximum (a step away from it lowers the cost), or second derivatives of the "
        "residual are wrong. This is no free gauge. The solution is not a differentiable function of the data, and its "
        "derivatives are NaN (or zero). Start somewhere else, or use Implicit(hessian='gauss_newton'), whose "
        "derivatives are approximate.",
        NotDifferentiableWarning,
        stacklevel=4,
    )


def _warn_about_minimum(num_kinked: int, num_stopped: int, num_problems: int, advice: str) -> None:
    reasons = []
    if num_kinked:
        reasons.append(
            f"{_which(num_kinked, num_problems)} ended at a kink of the cost, where the gradient jumps (abs, max, "
            "relu, a hinge, a bilinear field), or where it is nearly flat in some direction (variables that run to "
            "infinity, or matter only together; numbers of float32): make it smooth there, sqrt(x² + ε²) for |x|, "
            "softplus for relu, or hold such a variable"
        )
    if num_stopped:
        which = _which(num_stopped, num_problems)
        reasons.append(
            f"{which if not num_kinked else which[0].lower() + which[1:]} stopped where the gradient does not vanish: "
            "a tolerance was met before the minimum was reached, so set smaller ftol, gtol and xtol"
        )
    warnings.warn(
        "; ".join(reasons) + ". Such a solution is not a differentiable function of the data, and its derivatives are "
        f"NaN (or zero).{advice}",
        NotDifferentiableWarning,
        stacklevel=4,
    )


def _warn_about_bounds(num_weak: int, num_problems: int) -> None:
    warnings.warn(
        f"{_which(num_weak, num_problems)} ended with a variable on a bound that hardly holds it (its gradient is zero "
        "to rounding), or all but on one: the least change of the data frees it or holds it, so the solution has a "
        "kink there, and its derivatives are NaN (or zero). Widen the bound, or hold the variable by lower = upper.",
        NotDifferentiableWarning,
        stacklevel=4,
    )


def _warn_about_residual(worst: float, num_unsolved: int, num_problems: int) -> None:
    which = "the problem" if num_problems == 1 else f"{num_unsolved} of {num_problems} problems"
    warnings.warn(
        f"The linear system of the derivative was solved to a relative residual of {worst:.1e} only, so derivatives of "
        f"{which} are NaN (or zero); `solution.adjoint_residual` has the figures. The Hessian is singular to working "
        "precision (hold a block with variable.fixed(index), scale the variables, add a Prior), or the linear solver "
        "did not converge (try mslsq.linear.SparseCholesky(), or ConjugateGradient(derivatives='direct')).",
        UnconvergedAdjointWarning,
        stacklevel=4,
    )
