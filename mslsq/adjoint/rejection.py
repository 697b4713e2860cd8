"""What derivatives take from a solver around a solver: the inputs that it has found, and where no derivative exists."""

import warnings

from jaxtyping import Bool
from torch import Tensor

from mslsq.adjoint.warning import NotDifferentiableWarning
from mslsq.problem.system import Inputs
from mslsq.solvers.outer import Findings


def with_found(inputs: tuple[Inputs, ...], found: tuple[dict[str, Tensor], ...]) -> tuple[dict[str, Tensor], ...]:
    """The inputs of every term with what a solver around the solver has put in their place."""
    if not found:
        return tuple(dict(given) for given in inputs)
    return tuple({**given, **own} for given, own in zip(inputs, found, strict=True))


def decided(differentiable: Bool[Tensor, "batch"], findings: Findings, says: bool) -> Bool[Tensor, "batch"]:
    """Which problems have a derivative: not those with a block on the truncation, which is said in a warning if one may
    be (`says`)."""
    lost = differentiable & ~findings.decided
    if says and bool(lost.any()):
        count, total = int(lost.sum()), len(lost)
        which = "The solution" if total == 1 else f"{count} solution{'s' * (count > 1)} of {total}"
        warnings.warn(
            f"{which} of GraduatedNonConvexity has a residual on the truncation, where an inlier becomes an outlier: "
            "it is not a differentiable function of the data there, and its derivatives are NaN (or zero). Take "
            "another scale, or loss='geman_mcclure', which has a derivative everywhere.",
            NotDifferentiableWarning,
            stacklevel=4,
        )
    return differentiable & findings.decided
