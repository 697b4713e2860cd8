"""Preconditioned conjugate gradients for a batch of symmetric systems, each entry stopping by itself.

The iteration alone, on plain tensors of any device: what the matrix is, and what preconditions it, are functions.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Vectors = Float[Tensor, "batch columns"]

INTERVAL = 10
"""How many iterations pass on an accelerator between two questions whether all are done. A CPU, where asking
costs nothing, is asked after each. Steps of a solve ask none: they make as many as `allowance` says."""


class Iterated(NamedTuple):
    """What conjugate gradients came to, per entry of the batch."""

    solution: Float[Tensor, "batch columns"]
    residual: Float[Tensor, "batch"]
    """‖b − Ax‖ / ‖b‖ in the norm of the preconditioner M⁻¹, by the recurrence; 0 for b = 0."""
    iterations: Int[Tensor, "batch"]
    converged: Bool[Tensor, "batch"]
    definite: Bool[Tensor, "batch"]
    """Was every curvature met on the way positive? False proves A (or M) not to be positive definite."""
    residuals: Float[Tensor, "batch made"] | None = None
    """As `residual`, after each iteration that was made; None unless asked for."""


def any_of(active: Bool[Tensor, "batch"]) -> bool:
    """Is an entry still to be solved?"""
    return bool(active.any())


def always(active: Bool[Tensor, "batch"]) -> bool:
    """Goes on without looking."""
    return True


def conjugate_gradients(
    multiply: Callable[[Vectors], Vectors],
    rhs: Vectors,
    precondition: Callable[[Vectors], Vectors],
    tolerance: float | Float[Tensor, "batch"],
    max_iterations: int,
    *,
    model_tolerance: float | None = None,
    goes_on: Callable[[Bool[Tensor, "batch"]], bool] = any_of,
    keeps_residuals: bool = False,
) -> Iterated:
    """Solve A x = b from x = 0, for symmetric positive definite A and M.

    An entry stops when ‖b − Ax‖ ≤ `tolerance` ‖b‖ in the norm ‖r‖² = rᵀM⁻¹r, which depends on no units of the
    unknowns. With `model_tolerance` it stops also when iteration i adds little to the decrease of the quadratic model
    Q(x) = ½xᵀAx − bᵀx: i (Q_i − Q_{i−1}) / Q_i ≤ `model_tolerance` (S. G. Nash & A. Sofer, "Assessing a search
    direction within a truncated-Newton method", 1990).

    Every iterate satisfies xᵀ(b − Ax) = 0, so the decrease of the model is ½bᵀx, converged or not.

    Args:
        multiply: x ↦ A x, (batch, columns) both; may be given zeros for entries that have stopped.
        precondition: r ↦ M⁻¹ r.
        tolerance: one for all, or (batch,).
        max_iterations: an entry that has not stopped by then is not converged.
        goes_on: asked which entries are still to be solved; False ends the iteration.
        keeps_residuals: returns those of all iterations.

    An entry with curvature pᵀAp ≤ 0, a preconditioner that is not positive definite, or numbers that are not finite
    stops with the last good iterate, not converged; it never touches its neighbours. float32 and float64; the dtype
    of `rhs`. No derivative: this is a loop that looks at its numbers.

    >>> import torch
    >>> A = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradients(lambda x: x @ A, torch.tensor([[1.0, 2.0]]), lambda r: r, 1e-6, 10).solution
    tensor([[0.0909, 0.6364]])
    """
    x, residual = torch.zeros_like(rhs), rhs
    direction = precondition(rhs)
    squared = _dot(rhs, direction)
    initial = squared
    target = squared * tolerance**2
    # b = 0 is solved by x = 0, and is the only one that may have no length.
    converged = (rhs == 0).all(-1)
    definite = converged | ~(squared <= 0)
    active = (squared > 0) & torch.isfinite(squared) & ~converged
    direction = torch.where(active[:, None], direction, 0)
    count = torch.zeros_like(active, dtype=torch.int64)
    decrease = torch.zeros_like(squared)
    kept: list[Tensor] = []
    interval = 1 if rhs.device.type == "cpu" else INTERVAL
    for number in range(1, max_iterations + 1):
        if (number - 1) % interval == 0 and not goes_on(active):
            break
        product = multiply(direction)
        curvature = _dot(direction, product)
        definite = definite & ~(active & (curvature <= 0))
        active = active & (curvature > 0) & torch.isfinite(curvature)
        length = torch.where(active, squared / torch.where(active, curvature, 1), 0)[:, None]
        moving = active[:, None]
        x = torch.where(moving, torch.addcmul(x, length, direction), x)
        residual = torch.where(moving, torch.addcmul(residual, length, product, value=-1), residual)
        preconditioned = precondition(residual)
        after = _dot(residual, preconditioned)
        count = count + active
        met = after.abs() <= target
        if model_tolerance is not None:
            # Q falls by ½ (rᵀM⁻¹r)² / pᵀAp in this iteration.
            gained = 0.5 * length[:, 0] * squared
            decrease = decrease + gained
            met = met | (number * gained <= model_tolerance * decrease)
        sound = torch.isfinite(after) & ((after > 0) | met)
        definite = definite & ~(active & (after < 0) & ~met)
        converged = converged | (active & met)
        ratio = torch.where(active & sound, after / torch.where(squared > 0, squared, 1), 0)
        squared = torch.where(active, after, squared)
        if keeps_residuals:
            kept.append(squared)
        active = active & sound & ~met
        direction = torch.where(active[:, None], torch.addcmul(preconditioned, ratio[:, None], direction), 0)
    length = torch.where(initial > 0, initial, 1)
    relative = torch.where(initial == 0, torch.zeros_like(initial), (squared.abs() / length).sqrt())
    found = Iterated(x, relative, count, converged, definite)
    if not keeps_residuals:
        return found
    all_squared = torch.stack(kept, -1).abs()
    residuals = torch.where(
        initial[:, None] == 0, torch.zeros_like(all_squared), (all_squared / length[:, None]).sqrt()
    )
    return found._replace(residuals=residuals)


def _dot(a: Vectors, b: Vectors) -> Float[Tensor, "batch"]:
    return (a * b).sum(-1)
