"""Very many fits, solved in slices: what a solve needs while it runs is then of the size of a slice.

A solve keeps a history of up to `max_steps` steps for each fit: 33 KB of a fit with 1,000 steps, where 32 points and
their results are 1 to 2 KB. And its Jacobians leave the cache: 100,000 fits at once take longer than ten times 10,000.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.front.fits.fitted import Fitted, One
from mslsq.front.fits.result import CurveFit
from mslsq.front.measurements import Points
from mslsq.private import transforms_are_active
from mslsq.solution import WITH_WHOLE_HISTORY, History
from mslsq.solvers import Solver

if TYPE_CHECKING:
    from mslsq.front.curve_fit import Fit

MOST_AT_ONCE = WITH_WHOLE_HISTORY
"""Fits of one slice, and of a solve whose history is kept."""


def is_for_pieces(fit: "Fit", solver: Any) -> bool:
    """Are there more fits than are solved at once, and does nothing ask for one solve of all?

    A callback or a budget of time belongs to one solve; the error of a start outside of its bounds says which fit it
    is, counted from the first. Under a transform a call returns the same for every number of fits.
    """
    if fit.dims is None or len(fit.points.y) <= MOST_AT_ONCE or fit.bounds is not None or transforms_are_active():
        return False
    return solver is None or (
        isinstance(solver, Solver)
        and solver.callback is None
        and not solver.verbose
        and solver.time_budget is None
        and solver.on_interrupt == "raise"
    )


def in_pieces(found: Callable[["Fit"], CurveFit], fit: "Fit") -> CurveFit:
    """What `found` finds for all fits, slice by slice. The solution keeps no history."""
    count = len(fit.points.y)
    number = -(-count // MOST_AT_ONCE)
    ends = [count * piece // number for piece in range(number + 1)]
    results = [_kept(found(_piece(fit, *ends[piece : piece + 2]))) for piece in range(number)]
    value, covariance, errors, solution = _joined(
        [(part.value, part.covariance, part.standard_errors, part.solution) for part in results]
    )
    free, of_free, of_t = _joined(
        [(one.free, one.covariance, one.errors_of_t) for one in (part.fitted.tensors for part in results)]
    )
    points, held = fit.points, fit.division.held
    t = tuple(leaf for leaf in pytree.leaves(points.t) if isinstance(leaf, Tensor))
    tensors = One(free, of_free, t, points.y, points.whitening, points.used, held, of_t)
    return CurveFit(value, covariance, errors, solution, Fitted(tensors, results[0].fitted.recipe))


def _piece(fit: "Fit", start: int, stop: int) -> "Fit":
    """The fits from start to stop."""

    def sliced(tree: Any, dims: Any) -> Any:
        leaves, structure = pytree.flatten(tree)
        return pytree.unflatten(
            [
                leaf if dim is None else leaf.narrow(dim, start, stop - start)
                for leaf, dim in zip(leaves, pytree.leaves(dims), strict=True)
            ],
            structure,
        )

    points, division, errors = fit.points, fit.division, fit.errors_of_t
    if errors is not None:
        errors = errors._replace(sigma=sliced(errors.sigma, errors.dim))
    return fit._replace(
        start=sliced(fit.start, fit.dims[0]),
        points=Points(sliced(points.t, fit.t_dims), *(part[start:stop] for part in points[1:])),
        division=division._replace(held=sliced(division.held, division.held_dims)),
        errors_of_t=errors,
    )


def _kept(part: CurveFit) -> CurveFit:
    """Without history, and with memory of its own: a view would hold that of its solve."""
    empty = History(*[column.new_empty((len(column), 0)) for column in part.solution.history.columns])
    return pytree.map_leaves(torch.clone, replace(part, solution=replace(part.solution, history=empty)))


def _joined(trees: list[Any]) -> Any:
    """One tree, the batch axes of these one after the other."""
    structure = pytree.flatten(trees[0])[1]
    return pytree.unflatten([torch.cat(parts) for parts in zip(*map(pytree.leaves, trees), strict=True)], structure)
