"""Does the model still give what it gave in the fit? What is asked of a fit afterwards calls it again.

A model may read what is no argument of it: a number in a closure, an attribute of a configuration, a global, the
parameters of a network. If that has changed since, a prediction would be of another model than values and errors. So
χ² of the fit is computed again at its solution, which holds whatever way the change was made in.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from mslsq import pytree
from mslsq.front.fits.fitted import Fitted, One
from mslsq.levels import at_the_bottom, constant
from mslsq.problem.errors import ProblemError

ROUNDINGS = 1e4
"""How many roundings of its parts a residual may differ by. A compiled program adds up in another order than PyTorch;
the parts are Jᵢpᵢ, whose sum loses digits where they are large (NIST's Filip loses nine)."""


def check_as_fitted(fitted: Fitted, chi_square: Tensor, what: str) -> None:
    """An error where the model, or the points, are no longer those of the fit.

    Args:
        chi_square: of the fit, (*batch).
        what: is asked, for the message.

    Raises:
        ProblemError: χ² at the solution is not what it was.
    """
    before = constant(chi_square)
    now, allowed = fitted.each(lambda one: _chi_square(fitted, one))
    excess = torch.where(torch.isfinite(before), (now - before).abs() - allowed, 0)

    def check(excess: Tensor) -> Tensor:
        changed = ~(excess <= 0)
        if bool(changed.any()):
            which = "" if changed.ndim == 0 else f" ({int(changed.sum())} of {changed.numel()} fits)"
            raise ProblemError(
                f"{what}: at the solution of the fit the model no longer gives what it gave there{which}. Something "
                "that it reads has changed since (a number in a closure, an attribute, a global, a tensor written "
                "in place), or the points have. What it reads is part of the fit: fit again, or ask before it changes."
            )
        return excess

    at_the_bottom(excess, check)


def _chi_square(fitted: Fitted, one: One) -> tuple[Tensor, Tensor]:
    """χ² of one fit as the model is now, and by how much rounding may change it."""
    one, loss = pytree.map_leaves(constant, one), fitted.recipe.loss
    r, jacobian = fitted.with_jacobian(lambda free: fitted.residuals(one, free), one)
    w, y = one.whitening.abs(), one.y.abs()
    measured = (w * y).reshape(-1) if w.ndim == y.ndim else w @ y
    parts = (jacobian * one.free).abs().sum(-1) + r.abs()
    parts = parts + pad(measured, (0, len(parts) - len(measured)))  # behind those of y may be those of t
    off = ROUNDINGS * torch.finfo(r.dtype).eps * parts
    squared = r.square()
    total = squared if loss is None else loss(squared)
    return total.sum(), (2 * r.abs() * off + off.square()).sum()
