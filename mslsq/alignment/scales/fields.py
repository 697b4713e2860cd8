"""Smooth fields of scales for views of one scene, as sparse robust least-squares problems.

The log-scale of view i is bilinear between the nodes of a grid over its pixels. The nodes of all views minimise

    ½ Σ ρ((r / σ)²) + ½ Σ ((x_a − x_b) / smoothness)² + ½ Σ (x_a / prior)²

over all sightings (`views.py`), all neighbouring nodes, and all nodes; ρ is Geman and McClure's loss. Sightings depend
on the scales, because depths move pixels: they are found and linearized again before every solve, first for one scale
per view and a wide loss, then for finer grids and narrower losses.

The gauge is a view whose scale is 1 everywhere. One number would not do: depths agree as well on a surface that is
bent, whichever way, in all views alike. (With no view held and scales that vary by 10 %, all agreed to 0.7 % on a room
that was wrong by 2 to 4 %; with one held the median error is 0.4 to 0.7 %.)

Sightings are found where the depths are, and go to the CPU, where every problem is solved: which nodes they are between
is another in each, and a problem that is put together once asks a device more often than its few steps do.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq import (
    CostFunction,
    Euclidean,
    GemanMcClure,
    LevenbergMarquardt,
    Prior,
    Problem,
    ProblemError,
    Scale,
    Solution,
    Status,
    Variable,
    covariance,
    solve,
)
from mslsq.alignment.scales.grid import Grid
from mslsq.alignment.scales.noise import truncated_deviation
from mslsq.alignment.scales.views import DepthViews, Sightings, depth_views, sightings
from mslsq.validation import integer, number

SIGHTINGS = 30_000
"""What the default stride aims at: 6 views with 48 nodes each have a hundred for each of their unknowns."""
SMALLEST_NOISE = 1e-6
SETTLED = 0.1
"""The grid's solves are repeated until no node in two moves by this share of the noise."""
MOST_ROUNDS = 20


class Sighting(CostFunction):
    """r at the linearization point plus its change: bᵢ · xᵢ − bⱼ · xⱼ + constant, b the bilinear weights."""

    def residual(self, *nodes: Tensor, weights: Tensor, constant: Tensor) -> Tensor:
        return (torch.cat(nodes) * weights).sum(-1, keepdim=True) + constant

    def jacobians(self, *nodes: Tensor, weights: Tensor, constant: Tensor) -> tuple[Tensor, ...]:
        return tuple(weight.reshape(1, 1) for weight in weights.unbind(-1))


class Smooth(CostFunction):
    """Neighbouring nodes have equal logs."""

    def residual(self, one: Tensor, other: Tensor) -> Tensor:
        return one - other

    def jacobians(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        unit = torch.ones_like(one).reshape(1, 1)
        return unit, -unit


@dataclass(frozen=True)
class ScaleFields:
    """Scale fields of views, and what they rest on."""

    scales: Float[Tensor, "views height width"]
    """What each depth is to be multiplied by: 1 in the reference; a number wherever, however far from a sighting."""
    logs: Float[Tensor, "views rows columns"]
    """The logs at the nodes of the grid."""
    deviations: Float[Tensor, "views rows columns"]
    """Standard deviations of the nodes if noise were independent and every field bilinear on this grid. They tell where
    sightings speak and where smoothness does; errors are several times as large where the true field bends more."""
    support: Float[Tensor, "views rows columns"]
    """Sightings believed around each node, by their weights; where it is 0, smoothness alone speaks."""
    noise: float
    """Robust standard deviation of the log ratio of two views' depths at one point, after."""
    noise_before: float
    """The same with all scales 1."""
    pairs: Int[Tensor, "pairs 2"]
    """All ordered pairs of views."""
    sightings: Int[Tensor, " pairs"]
    """How many of the compared pixels of the first view fall on the second."""
    believed: Float[Tensor, " pairs"]
    """Which share of them, by their weights, at the end: the others are hidden, or wrong."""
    reference: int
    status: Status
    """How the last solve ended; MAX_STEPS also where the fields still moved."""

    @property
    def alone(self) -> list[int]:
        """Views that no chain of sightings leads to from the reference: their scales are the prior's, 1."""
        joined, seen = {self.reference}, self.pairs[self.believed * self.sightings > 1].tolist()
        for _ in range(len(self.scales)):
            joined |= {view for pair in seen if joined & set(pair) for view in pair}
        return sorted(set(range(len(self.scales))) - joined)

    def message(self) -> str:
        """In words, what was found."""
        lines = [
            f"{int(self.sightings.sum())} sightings; depths of one point differ by {100 * self.noise_before:.2f} % "
            f"before and {100 * self.noise:.2f} % after (robust standard deviation).",
            self.status.sentence,
        ]
        lines += [f"View {view} shares no point with the others: its scale is not known." for view in self.alone]
        return "\n".join(lines)


def scale_fields(
    depths: Float[Tensor, "views height width"],
    intrinsics: Float[Tensor, "3 3"] | Float[Tensor, "views 3 3"],
    poses: Float[Tensor, "views 4 4"],
    *,
    reference: int = 0,
    grid: tuple[int, int] = (6, 8),
    smoothness: float = 0.05,
    prior: float = 0.5,
    stride: int | None = None,
) -> ScaleFields:
    """A smooth scale for every pixel of every view, from where two views see the same point.

    Depths along the optical axis, as a network or a sensor gives them, each view right up to a scale that varies slowly
    over the image. Poses and intrinsics are taken as they are, and so are the depths of the reference. Hidden points
    and wrong depths are outliers. All is computed in float64; the answer has the dtype of the depths, no derivatives.

    Args:
        depths: not positive or not finite where missing.
        intrinsics: of one camera or of each view, in pixels, centres at integers.
        poses: camera to world, x to the right, y down, z forward, in the unit of the depths.
        reference: the view whose depths are right.
        grid: nodes per column and per row of pixels; (1, 1) is one scale per view.
        smoothness: standard deviation of the difference of log-scales between neighbouring nodes.
        prior: standard deviation of log-scales.
        stride: one pixel in this number is compared, along rows and columns; by default for some 30,000 sightings.

    Raises:
        ShapeError, ProblemError: shapes that do not agree, cameras that are none, views that share no point.
    """
    views = depth_views(depths, intrinsics, poses)
    options = _Options(reference, smoothness, prior, _stride_for(views) if stride is None else stride)
    _check(options, grid, views)
    count, (height, width) = len(views.depths), views.size
    shapes = [(1, 1), *((-(-grid[0] // part), -(-grid[1] // part)) for part in (4, 2, 1))]
    now = Grid(count, 1, 1, height, width)
    nodes = torch.zeros(count, dtype=torch.float64, device="cpu")
    before = truncated_deviation(_found(views, now, nodes, options).log_ratio.abs())
    noise, status = before, Status.RUNNING
    for shape, widths in zip(shapes, ((8, 4), (4, 4), (4, 2, 2), (2, 1, 1)), strict=True):
        finer = Grid(count, *shape, height, width)
        here = replace(options, smoothness=smoothness * max(grid) / max(shape))  # the same slope per pixel
        now, nodes = finer, now.refined(nodes, finer)
        for wide in widths:
            found = _found(views, now, nodes, options)
            nodes, noise, status = _improved(now, nodes, found, wide, here)
    for _ in range(MOST_ROUNDS):
        found, last = _found(views, now, nodes, options), nodes
        nodes, noise, status = _improved(now, nodes, found, 1, options)
        if bool((nodes - last).abs().median() <= SETTLED * max(noise, SMALLEST_NOISE)):
            break
    else:
        status = Status.MAX_STEPS
    found = _found(views, now, nodes, options)
    return _described(now, nodes, found, before, status, options, depths)


@dataclass(frozen=True)
class _Options:
    reference: int
    smoothness: float
    prior: float
    stride: int


def _check(options: _Options, grid: tuple[int, int], views: DepthViews) -> None:
    if len(grid) != 2:
        raise ProblemError(f"grid must be two numbers, rows and columns of nodes, not {grid!r}.")
    for axis, nodes in enumerate(grid):
        integer(f"grid[{axis}]", nodes, 1, error=ProblemError)
    number("smoothness", options.smoothness, above=0, error=ProblemError)
    number("prior", options.prior, above=0, error=ProblemError)
    integer("stride", options.stride, 1, error=ProblemError)
    count = len(views.depths)
    if not 0 <= options.reference < count:
        raise ProblemError(f"reference must be one of the views 0 to {count - 1}, not {options.reference}.")


def _stride_for(views: DepthViews) -> int:
    """So that half of all pixels, seen from all other views, make as many sightings as wanted."""
    pixels = int(views.valid.sum()) * (len(views.depths) - 1)
    return max(1, round((0.5 * pixels / SIGHTINGS) ** 0.5))


def _found(views: DepthViews, grid: Grid, nodes: Tensor, options: _Options) -> Sightings:
    """The sightings at the nodes' values."""
    found = sightings(views, grid.dense(nodes.to(views.depths.device, non_blocking=True)), options.stride)
    if len(found.first) == 0:
        raise ProblemError(
            "No view sees a point that another sees. Poses must be camera to world, in the unit of the depths, and "
            "z forward; the inverse of a pose, or depths in millimetres, are the usual mistakes."
        )
    return found


def _linearized(grid: Grid, nodes: Tensor, found: Sightings) -> tuple[Tensor, Tensor, Tensor]:
    """Residuals at the nodes' values, and index and weights of the nodes in their linearization."""
    first, at_first = grid.weights(found.first, found.at_first)
    second, at_second = grid.weights(found.second, found.at_second)
    residual = found.log_ratio - (nodes[second] * at_second).sum(1)
    return residual, torch.cat([first, second], 1), torch.cat([at_first, -at_second], 1)


def _improved(
    grid: Grid, nodes: Tensor, found: Sightings, wide: float, options: _Options
) -> tuple[Tensor, float, Status]:
    """Nodes, noise and status of the solve of the problem that is linearized at the nodes."""
    residual, index, weights = _linearized(grid, nodes, found)
    noise = truncated_deviation(residual.abs())
    constant = residual - (nodes[index] * weights).sum(1)
    problem = _problem(grid, index, weights, constant, max(noise, SMALLEST_NOISE), wide, options)
    solver = LevenbergMarquardt(max_steps=30, ftol=1e-8)
    solution: Solution = solve(problem, {"log": nodes[:, None]}, solver=solver)
    return solution.value["log"][:, 0], noise, Status(int(solution.status))


def _problem(
    grid: Grid,
    index: Int[Tensor, "n 8"],
    weights: Float[Tensor, "n 8"],
    constant: Float[Tensor, " n"],
    noise: float,
    wide: float,
    options: _Options,
) -> Problem:
    """The sightings, smoothness between neighbours, and the prior; the reference is held."""
    log = Variable("log", Euclidean(1), count=grid.nodes)
    one = constant.new_ones(())
    sighting = Sighting(
        *(log[column] for column in index.unbind(1)),
        weights=weights,
        constant=constant[:, None],
        weight=Scale(one / noise),
        loss=GemanMcClure(GemanMcClure.tuning * wide),
    )
    every = torch.arange(grid.nodes, device="cpu")
    prior = Prior(log[every], target=constant.new_zeros(grid.nodes, 1), weight=Scale(one / options.prior))
    neighbours = grid.neighbours()
    costs: list[CostFunction] = [sighting, prior]
    if len(neighbours):
        weight = Scale(one / options.smoothness)
        costs.append(Smooth(log[neighbours[:, 0]], log[neighbours[:, 1]], weight=weight))
    each = grid.rows * grid.columns
    held = log.fixed(torch.arange(options.reference * each, (options.reference + 1) * each, device="cpu"))
    return Problem(*costs, held)


def _described(
    grid: Grid,
    nodes: Tensor,
    found: Sightings,
    before: float,
    status: Status,
    options: _Options,
    like: Tensor,
) -> ScaleFields:
    residual, index, weights = _linearized(grid, nodes, found)
    noise = truncated_deviation(residual.abs())
    sigma = max(noise, SMALLEST_NOISE)
    problem = _problem(grid, index, weights, residual - (nodes[index] * weights).sum(1), sigma, 1, options)
    variance = covariance(problem, {"log": nodes[:, None]}, "log").reshape(-1)
    belief = 1 / (1 + (residual / (GemanMcClure.tuning * sigma)) ** 2) ** 2
    shares = belief[:, None] * weights.abs()
    support = torch.zeros_like(nodes).index_add(0, index.flatten(), shares.flatten())
    count = grid.views
    pair = found.first * count + found.second
    seen = torch.bincount(pair, minlength=count * count)
    believed = torch.bincount(pair, belief, minlength=count * count) / seen.clamp(min=1)
    pairs = torch.tensor([(i, j) for i in range(count) for j in range(count) if i != j], device="cpu")
    chosen = pairs[:, 0] * count + pairs[:, 1]
    shape = (count, grid.rows, grid.columns)
    return ScaleFields(
        grid.dense(nodes.to(like.device)).exp().to(like.dtype),
        nodes.reshape(shape).to(like),
        variance.clamp(min=0).sqrt().reshape(shape).to(like),
        support.reshape(shape).to(like),
        noise,
        before,
        pairs.to(like.device),
        seen[chosen].to(like.device),
        believed[chosen].to(like.device),
        options.reference,
        status,
    )
