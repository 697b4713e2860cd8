"""`multi_start`: one problem from many starts, solved as a batch; the best solution and the distinct minima."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import vmap

from mslsq import pytree
from mslsq.adjoint import Adjoint, Detached
from mslsq.front.batching import element_like, is_whole, taken_apart, tensor_of
from mslsq.front.least_squares import least_squares
from mslsq.front.starts import given, sampled
from mslsq.levels import constant
from mslsq.losses import RobustLoss
from mslsq.manifolds import Manifold
from mslsq.problem.errors import ProblemError
from mslsq.solution import Solution, Status
from mslsq.solvers import GraduatedNonConvexity, LevenbergMarquardt, Solver
from mslsq.validation import integer, number

CONVERGED = Status.COST_TOLERANCE, Status.GRADIENT_TOLERANCE, Status.STEP_TOLERANCE


class Minima(NamedTuple):
    """The distinct minima that starts have come to, the best first; of a batch behind its axis."""

    value: Any
    """As x0, with an axis of minima; where there are fewer than starts the rest repeats the best."""
    cost: Float[Tensor, "*batch minima"]
    """Infinite where there are no more."""
    count: Int[Tensor, "*batch minima"]
    """How many starts came to each."""


class MultiStart(NamedTuple):
    """What `multi_start` returns."""

    solution: Solution
    """The best one, as `least_squares` returns it, with its derivatives."""
    minima: Minima
    num_failed: Int[Tensor, "*batch"]
    """Starts that have not converged."""


def multi_start(
    residual: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    starts: Any = 32,
    spread: float = 1.0,
    seed: int = 0,
    tolerance: float = 1e-3,
    jac: Callable[..., Any] | None = None,
    in_dims: Any = None,
    solver: Solver | GraduatedNonConvexity | None = None,
    loss: RobustLoss | None = None,
    bounds: Any = None,
    adjoint: Adjoint | None = None,
) -> MultiStart:
    """Minimise ½Σρ(|residual(x, *args)|²) over x from many starts at once, and keep the best minimum of each problem.

    All starts of all problems are one batch; one that fails harms no other. The best is solved once more, in a step or
    two, so that its derivatives are those of `least_squares`; which start was the best is not differentiated.

    Args:
        residual: as for `least_squares`.
        x0: the start; the first of those that are sampled.
        args: as for `least_squares`.
        starts: how many; or the starts themselves, shaped as x0 (or as one problem's x0, for all of a batch) with a
            first axis in front; or a sampler, which takes a `torch.Generator` and returns such starts.
        spread: an entry without two finite bounds is sampled from a normal distribution about x0 with this standard
            deviation, times |x0| where that is not zero; elements of manifolds in their tangent. Entries with two
            bounds are sampled evenly between them.
        seed: of the sampling (a Latin hypercube, or by the generator of a sampler): the same starts in every call.
        tolerance: solutions are one minimum where all entries agree to this share of their size, and the costs to this
            share of the larger one. Minima that differ by the order of equal terms are different.
        jac: as for `least_squares`.
        in_dims: as for `least_squares`, over `(x0, *args)`.
        solver, loss: as for `least_squares`.
        bounds: as for `least_squares`; starts outside are moved to the nearest point within.
        adjoint: how derivatives pass through the last solve, that from the best; `Implicit()` by default.

    Returns:
        A `MultiStart`: `solution`, `minima`, `num_failed`. Where no start has converged, `solution` is what the one of
        the least cost ended at, with its status.

    Raises:
        ProblemError (a ValueError): something is wrong with the shapes, dtypes or arguments; the message says what.

    >>> t = torch.linspace(0, 1, 50, dtype=torch.float64)
    >>> y = torch.sin(21.0 * t)
    >>> start = torch.tensor(10.0, dtype=torch.float64)
    >>> found = mslsq.multi_start(lambda w: torch.sin(w * t) - y, start, starts=64, bounds=(0.0, 40.0))
    >>> found.solution.value
    tensor(21.0000, dtype=torch.float64)
    """
    number("multi_start: tolerance", tolerance, above=0, error=ProblemError)
    number("multi_start: spread", spread, least=0, error=ProblemError)
    x0, in_dims = _batch_first(x0, args, in_dims)
    batched = in_dims is not None
    if isinstance(starts, int):
        integer("multi_start: starts", starts, 1, error=ProblemError)
        starts = sampled(x0, starts, bounds, spread, seed, batched)
    else:
        if callable(starts):
            starts = starts(torch.Generator().manual_seed(seed))
        starts = given(starts, x0, batched)
    options: dict[str, Any] = {"jac": jac, "in_dims": in_dims, "loss": loss, "bounds": bounds, "project_start": True}

    def ended(start: Any) -> tuple[Any, Tensor, Tensor, Tensor]:
        found = least_squares(residual, start, args, solver=solver, adjoint=Detached(), **options)
        return found.value, found.cost, found.status, found.history.cost[..., 0]

    values, costs, statuses, first = pytree.map_leaves(constant, vmap(ended)(starts))
    converged = torch.stack([statuses == int(kind) for kind in CONVERGED]).any(0)
    rank = torch.where(torch.isfinite(costs), costs, torch.inf)
    order = torch.where(converged, rank, torch.inf).argsort(dim=0, stable=True)
    fallback = rank.argsort(dim=0, stable=True)
    best = torch.where(converged.any(0), order[0], fallback[0])
    # A cost of zero is known to the rounding of what it has come down from.
    rounding = torch.finfo(costs.dtype).eps * torch.where(torch.isfinite(first), first, 0).amax(0)
    ranked = rank.gather(0, order), converged.gather(0, order), rounding
    minima = _minima(_sorted(values, order), *ranked, tolerance, batched)
    start = pytree.map_leaves(lambda x: x[0], _sorted(values, best[None]))
    solution = least_squares(residual, start, args, solver=solver or LevenbergMarquardt(), adjoint=adjoint, **options)
    return MultiStart(solution, minima, (~converged).sum(0))


def _batch_first(x0: Any, args: tuple[Any, ...], in_dims: Any) -> tuple[Any, Any]:
    """The start with the axis of problems first in every leaf, where there is one, and `in_dims` that say so."""
    if in_dims is None:
        return x0, None
    axes = taken_apart(x0, *args).axes(in_dims)
    leaves, structure = pytree.flatten(x0, is_leaf=is_whole)

    def first(leaf: Any, axis: int | None) -> Any:
        tensor = tensor_of(leaf)
        size = axes.size or 1
        tensor = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        return element_like(leaf, tensor)

    moved = pytree.unflatten([first(leaf, axis) for leaf, axis in zip(leaves, axes.of[0], strict=True)], structure)
    behind = (in_dims,) * len(args) if isinstance(in_dims, int) else tuple(in_dims)[1:]
    return moved, (0, *behind)


def _sorted(values: Any, order: Int[Tensor, "starts *batch"]) -> Any:
    """Values (starts, *batch, ...) in an order of the starts."""

    def gathered(x: Tensor) -> Tensor:
        index = order.reshape(*order.shape, *(1 for _ in x.shape[order.ndim :]))
        return x.gather(0, index.expand(*order.shape, *x.shape[order.ndim :]))

    return pytree.map_leaves(gathered, values)


def _minima(values: Any, costs: Tensor, converged: Tensor, rounding: Tensor, tolerance: float, batched: bool) -> Minima:
    """Equal ones merged: values (starts, *batch, ...) sorted by cost, those that have not converged last."""

    def of_one(values: Any, costs: Tensor, converged: Tensor, rounding: Tensor) -> Minima:
        return _minima_of_one(values, costs, converged, rounding, tolerance)

    if not batched:
        return of_one(values, costs, converged, rounding)
    problems_first = pytree.map_leaves(lambda x: x.movedim(1, 0), values)
    return vmap(of_one)(problems_first, costs.T, converged.T, rounding)


def _minima_of_one(values: Any, costs: Tensor, converged: Tensor, rounding: Tensor, tolerance: float) -> Minima:
    count = len(costs)
    larger = torch.maximum(costs[:, None], costs[None])
    same = (costs[:, None] - costs[None]).abs() <= tolerance * larger + rounding
    for leaf in pytree.leaves(values, is_leaf=is_whole):
        same = same & _near(leaf, tolerance)
    same = same & converged[:, None] & converged[None]
    places = torch.arange(count, device=costs.device)
    # Every solution goes to the first that it equals, and with that one where it has gone.
    leader = torch.where(same, places, count).amin(1)
    leader = torch.where(leader < count, leader.gather(0, leader.clamp(max=count - 1)), places)
    members = (leader[None] == places[:, None]) & converged[None]
    counts = members.sum(1)
    order = torch.where(counts > 0, places, count).argsort(stable=True)
    counts = counts.gather(0, order)
    kept = counts > 0
    order = torch.where(kept, order, 0)
    return Minima(_sorted(values, order), torch.where(kept, costs.gather(0, order), torch.inf), counts)


def _near(leaf: Any, tolerance: float) -> Tensor:
    """(starts, starts) Do the entries agree?"""
    if isinstance(leaf, Manifold):

        def distance(a: Tensor, b: Tensor) -> Tensor:
            return element_like(leaf, a).local(element_like(leaf, b)).abs().amax()

        x = leaf.storage
        return vmap(lambda a: vmap(lambda b: distance(a, b))(x))(x) <= tolerance
    x = leaf.reshape(len(leaf), -1)
    size = torch.maximum(x[:, None].abs(), x[None].abs())
    allowed = tolerance * (size + tolerance * size.amax(-1, keepdim=True))
    return ((x[:, None] - x[None]).abs() <= allowed).all(-1)
