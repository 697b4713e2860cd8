"""Does a derivative exist? Where the gradient vanishes, and is as smooth as the Hessian says.

The implicit function theorem holds at a point where F(x, d) = ∇ₓ cost is zero and differentiable, with H = ∂F/∂x
positive definite. "Converged" says none of that: at a kink (|x|, max, relu) steps become short and costs level while
the gradient jumps from one sign to the other, and H on either side of it describes another function. So each problem
is asked, in the norm of H⁻¹, in which no unit matters:

- The gradient g vanishes: the Newton step n = H⁻¹g promises nothing that the tolerances or the cost could tell, and
  is short beside the point.
- At x − n the gradient is at most half as long as at x. (It is smaller by the square where the cost is smooth.) The
  point is moved a little further, by a probe p that is well above rounding: the gradient there must be −Hp to one half
  of that. Where n is nothing, as for g = 0 in the middle between the slopes on both sides of |x|, only p can tell.
- H is settled: the step leaves a hundredth of the gradient. Of variables that run to infinity the weakest curvature can
  be what the rest of the gradient adds to it, Σ rᵢ∇²rᵢ, and go with it: the point is moved on, to see whether H stays.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.solvers.solver import Solver
from mslsq.solvers.stationarity import share
from mslsq.solvers.verdict import LEVEL

SMALLEST = 16.0
"""A step that moves a variable by less than this many units in the last place of its start, or of one, is rounding.
This decides where neither variables nor residuals have a size left (residuals and solution both zero)."""

SUMMED = 8.0
"""Rounding of a sum Σ Jᵢⱼrᵢ, in units in the last place of |Jⱼ||r|. It has a part in every direction, also in those
that are all but undetermined, in which H⁻¹ makes it large: the rest of g where J is ill-conditioned."""


FAR = 0.1
"""A Newton step of more than this share of the point, and of its start, is no rest of a solve, however little of the
cost it promises: variables run to infinity, where the cost becomes level while the step stays half of the point."""

CONSTANT = 1e-2
"""Where a Newton step leaves less than this share of the gradient, H is the same before and after it to about that."""

WEAK = 0.6
"""H is asked twice where its least eigenvalue in scaled variables is below that power of the unit in the last place,
4e-10 (float32: 7e-5). Free gauges have left 1e-14 to 1e-12 behind solves to the default tolerances."""

SHAKEN = 64.0


class Evidence(NamedTuple):
    """What was found at the point where a problem stopped."""

    vanishes: Bool[Tensor, "batch"]
    """Is the gradient zero, as far as tolerances and rounding can tell?"""
    smooth: Bool[Tensor, "batch"]
    """Does the gradient nearby change as the Hessian says?"""
    solved: Bool[Tensor, "batch"]
    """Could the gradient be solved for? An iterative solver may not."""
    by_a_bound: Bool[Tensor, "batch"]
    """Is it so near to a bound that nothing could be asked of what is around it?"""
    near: Bool[Tensor, "batch"]
    """Does a Newton step that is short, though not rounding, lead to where the gradient vanishes?"""
    short: Bool[Tensor, "batch"]
    """Is that further than the tolerances allow for, or is H another one there?"""
    settled: Bool[Tensor, "batch"]
    """Is H, to CONSTANT or to rounding, the same behind the Newton step?"""
    weak: Bool[Tensor, "batch"]
    """Is H so weak in some direction that this may be rounding, or what the rest of the gradient adds to it?"""


class Curvature(NamedTuple):
    """The Hessian at that point, by what can be done with it."""

    product: Callable[[Tensor], Tensor]
    inverse_form: Callable[[Tensor], Tensor]
    """From v to vᵀH⁻¹v."""
    definite: Bool[Tensor, "batch"]
    is_exact: bool
    """Or does H lack second derivatives, with which steps converge slowly where residuals are large?"""

    @property
    def ratio(self) -> float:
        """How much of the gradient a Newton step may leave: one half, or all of it."""
        return 0.5 if self.is_exact else 1.0


class NewtonStep(NamedTuple):
    """(batch, columns) the gradient g of what no bound holds, and n = H⁻¹g."""

    gradient: Tensor
    step: Tensor


class Point(NamedTuple):
    """Where a problem stopped, as tensors that a recorded graph takes."""

    values: Values
    inputs: TermInputs
    matrix: Tensor
    """Of the last linearization, in the form of the linear solver."""
    cost: Float[Tensor, "batch"]
    free: tuple[Tensor, ...] = ()
    """(batch, columns) Which columns no bound holds, and how far each is above its lower bound and below its upper one;
    empty where there are no bounds."""

    def of_free(self, vector: Tensor) -> Tensor:
        """(batch, columns) without the columns that bounds hold."""
        return torch.where(self.free[0], vector, 0) if self.free else vector


def evidence_of_a_minimum(
    linearizer: Linearizer,
    gradient: Callable[[Values, TermInputs], Tensor],
    solver: Solver,
    point: Point,
    curvature: Curvature,
    newton_step: NewtonStep,
    start: Values | None = None,
) -> Evidence:
    """Ask every problem of a batch; False where H is not positive definite, and where numbers are not finite.

    With the `start` of the solve, problems of which little but rounding is left are told apart from the others, for one
    more solve with H: that is for those alone that would fail without.
    """
    values, inputs, matrix, cost = point[:4]
    eps = torch.finfo(cost.dtype).eps
    ftol, xtol = max(10 * solver.ftol, LEVEL * eps), max(10 * solver.xtol, eps**0.5)
    columns = point.of_free(linearizer.linear_solver.storage.diagonal(matrix).clamp(min=0).sqrt())
    residual = (2 * cost).sqrt()
    at, newton = newton_step

    # Lengths are squared, in the norm of H or of its inverse.
    length = (at * newton).sum(-1)
    probe = point.of_free(_probe(linearizer, values, columns, residual))
    answer = curvature.product(probe)
    told = (probe * answer).sum(-1)
    solved = torch.isfinite(length + told)
    usable = curvature.definite & solved
    # A problem without Hessian is not sent anywhere: its residual may not be made for that.
    by_a_bound = torch.zeros_like(usable)
    if point.free:  # nothing outside of bounds is evaluated
        _, below, above = point.free
        by_a_bound = ((-newton - probe < -below) | (-newton - probe > above)).any(-1)
    moved = linearizer.retract(values, torch.where((usable & ~by_a_bound)[:, None], -newton - probe, 0))
    left = point.of_free(gradient(moved, inputs)) + answer
    remaining = curvature.inverse_form(left)

    moves, size = torch.linalg.vector_norm(newton, dim=-1), _size(values)
    way = size if start is None else torch.maximum(size, _size(start))
    vanishes = ((length <= 2 * ftol * cost) & (moves <= FAR * way)) | (length <= told)
    vanishes = vanishes | (moves <= xtol * (size + solver.xtol))
    smooth = remaining <= curvature.ratio**2 * torch.maximum(length, told)
    settled = (remaining <= CONSTANT**2 * length) | (length <= told)
    if start is not None:
        # A solution of zero with residuals of zero: against both nothing is small. The way there was long.
        vanishes = vanishes | ((moves <= xtol * _size(start)) & (remaining <= CONSTANT**2 * length))
        summed = _signs(at) * (SUMMED * eps) * columns * residual[:, None]
        least = columns * (SMALLEST * eps) * (1 + _sizes_by_column(linearizer, start))
        of_sums, of_variables = curvature.inverse_form(summed), (least * least).sum(-1)
        rounding = torch.maximum(of_sums, of_variables)
        vanishes, smooth = vanishes | (length <= rounding), smooth | (remaining <= rounding)
        # Not the size of one: a variable of 1e-12 beside one of 1e5 is no rounding on its way to infinity.
        settled = settled | (remaining <= of_sums)
    if not curvature.is_exact:
        settled = torch.ones_like(settled)
    weak = usable & (curvature.inverse_form(in_every_direction(columns)) * eps**WEAK >= 1)
    few = share(solver, cost.dtype)
    near = ((length <= 2 * few * cost) | (moves <= few**0.5 * size)) & (length > told) & (moves > eps**0.5 * size)
    near = usable & smooth & ~by_a_bound & near
    short = near & (~vanishes | (moves > ftol**0.5 * size) | ~settled)
    vanishes, smooth = usable & (vanishes | by_a_bound), usable & (smooth | by_a_bound)
    return Evidence(vanishes, smooth, solved, by_a_bound, near, short, settled, weak)


def in_every_direction(columns: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch columns"]:
    """A vector v whose vᵀH⁻¹v is about the inverse of the least eigenvalue of H in scaled variables.

    Args:
        columns: D, the lengths of J's columns.
    """
    return _signs(columns) * columns


def shaken(linearizer: Linearizer, values: Values) -> Float[Tensor, "batch columns"]:
    """A step that changes all variables by SHAKEN units in the last place: rounding is another one behind it."""
    step = (SHAKEN * torch.finfo(values[0].dtype).eps) * _sizes_by_column(linearizer, values)
    step, padding = _signs(step) * step, linearizer.structure.padding
    return step if padding is None else torch.where(padding, 0, step)


def _size(values: Values) -> Float[Tensor, "batch"]:
    """|x|"""
    sizes = [torch.linalg.vector_norm(x, dim=(1, 2)) for x in values]
    return sizes[0] if len(sizes) == 1 else torch.linalg.vector_norm(torch.stack(sizes), dim=0)


def _signs(like: Float[Tensor, "batch columns"]) -> Float[Tensor, "columns"]:
    """Numbers of size 1 to 2 and either sign, in no order: no symmetry of a problem is theirs."""
    return cosines(like, away=1.0)


def cosines(like: Float[Tensor, "batch columns"], away: float = 0.0) -> Float[Tensor, "columns"]:
    """cos k for k = 1, 2, ..., that much further away from zero. On a CPU no operation of PyTorch makes them: in a
    recorded graph they are a constant."""
    count = like.shape[-1]
    if like.device.type == "cpu":
        numbers = np.cos(np.arange(1.0, count + 1))
        return torch.from_numpy(numbers + away * np.sign(numbers)).to(like)
    found = torch.arange(1.0, count + 1, dtype=like.dtype, device=like.device).cos()  # nothing is sent there
    return found + away * found.sign()


def _probe(linearizer: Linearizer, values: Values, columns: Tensor, residual: Tensor) -> Float[Tensor, "batch columns"]:
    """A step that moves every variable by LEVEL units in the last place of itself, or of what moves the residual by as
    much of its own: the least that rounding does not hide."""
    padding, eps = linearizer.structure.padding, torch.finfo(residual.dtype).eps
    share = residual[:, None] / max(columns.shape[-1], 1) ** 0.5
    own = torch.where(columns > 0, share / torch.where(columns > 0, columns, 1), 0)
    probe = (LEVEL * eps * _signs(columns)) * (_sizes_by_column(linearizer, values) + own)
    return probe if padding is None else torch.where(padding, 0, probe)


def _sizes_by_column(linearizer: Linearizer, values: Values) -> Float[Tensor, "batch columns"]:
    """How large the variable of each column is: its own entry, on a manifold the length of its storage."""
    sizes = []
    for unknown, x in zip(linearizer.system.unknowns, values, strict=True):
        if unknown.space.is_euclidean:
            sizes.append(x.abs())
        else:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            sizes.append(length.expand(*length.shape[:2], unknown.space.tangent_dim))
    return linearizer.structure.to_columns(sizes)
