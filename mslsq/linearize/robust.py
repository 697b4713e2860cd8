"""Robust losses inside Gauss–Newton: residual and Jacobian rescaled so that plain least squares sees the loss.

For the cost ½ρ(s), s = ‖r‖², the gradient is ρ' Jᵀr and the Gauss–Newton Hessian, with the curvature of ρ, is
Jᵀ(ρ' I + 2ρ'' r rᵀ)J. Triggs' correction (Triggs, McLauchlan, Hartley, Fitzgibbon, "Bundle adjustment: a modern
synthesis", 2000, section 4.3) writes both as r̃ and J̃ of a plain least-squares problem. The gradient of the two is
always exact; how much of the curvature they keep is said at `LEAST_CURVATURE`.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.one_block import squared_norms
from mslsq.problem.system import Inputs

LEAST_CURVATURE = 0.5
"""A block whose curvature along r, ρ' + 2ρ''s, is below this share of ρ' is only weighted by ρ', as in iteratively
reweighted least squares.

Alone, such a block would go from r to r (1 - 1/share) in a Newton step: below one half that is farther away, on the
other side. (Zero is the share beyond the scale of Huber, and redescending losses have negative ones.) The damping that
makes up for it holds back all variables. With a floor of 0.1 in place of dropping it, Huber on a bundle adjustment
(Ladybug 49-7776) ends at 13845 after 20 steps; so it ends at 7653 (Ceres: 7651).

Ceres drops the correction wherever ρ'' ≤ 0, that is for all usual losses. But where most blocks are inliers the
curvature is what makes the last steps fast. On robust fits (three curves with 0 to 30 % outliers, NIST, a registration,
two bundle adjustments) the mean steps are, for 0.02, 0.1, 0.3, 0.5, 0.7 and dropping, 16.6, 16.0, 16.2, 16.8, 17.5 and
18.3 (with the floor: 23.0). On pose graphs (`benchmarks/robust_steps.py`, the half "choose") SoftL1 takes 1.63, 0.80,
0.80 and 1.00 times the steps of Ceres in the median for 0.1, 0.3, 0.5 and dropping, and 5.8, 3.2, 1.6 and 1.1 times at
worst."""


def robustified(
    block: BlockTerm,
    residual: Float[Tensor, "outer rows lanes"],
    jacobian: Float[Tensor, "outer rows tangent lanes"] | None,
    inputs: Inputs,
) -> tuple[Float[Tensor, "outer groups lanes"], Tensor, Tensor | None]:
    """The loss of every group of rows, and residual and Jacobian rescaled by Triggs' correction."""
    squared = squared_norms(residual, block.pairs, block.term.elementwise_loss or block.term.loss is None)
    if block.term.loss is None:
        return squared, residual, jacobian
    rho, root, kept = correction(block, squared, inputs)
    if not block.term.elementwise_loss:
        return rho, residual * (root / kept), _rescaled(residual, jacobian, squared, root, kept)
    if block.pairs == 0:
        return rho, residual * (root / kept), None if jacobian is None else jacobian * (root * kept)[:, :, None]
    return rho, *_mixed(block.pairs, residual, jacobian, squared, root, kept)


def correction(
    block: BlockTerm, squared: Float[Tensor, "outer groups lanes"], inputs: Inputs
) -> tuple[
    Float[Tensor, "outer groups lanes"], Float[Tensor, "outer groups lanes"], Float[Tensor, "outer groups lanes"]
]:
    """The loss of squared norms, √ρ', and √(1 − α) of Triggs: the share of that which is left along r."""
    assert block.term.loss is not None  # the callers have checked
    rho, slope, curvature = block.term.loss.derivatives(squared, block.loss_parameters_by_lane(inputs))
    # ρ' = 0 (Tukey's outliers): the block has no weight.
    positive = slope > 0
    kept = torch.where(positive, 1 + 2 * squared * curvature / torch.where(positive, slope, 1), 1)
    return rho, slope.clamp(min=0).sqrt(), torch.where(kept >= LEAST_CURVATURE, kept, 1).sqrt()


def _rescaled(
    residual: Float[Tensor, "outer rows lanes"],
    jacobian: Float[Tensor, "outer rows tangent lanes"] | None,
    squared: Float[Tensor, "outer 1 lanes"],
    root: Float[Tensor, "outer 1 lanes"],
    kept: Float[Tensor, "outer 1 lanes"],
) -> Float[Tensor, "outer rows tangent lanes"] | None:
    """J̃ = √ρ' (J − α/s r rᵀJ) for the rows of one group."""
    if jacobian is None:
        return None
    if residual.shape[1] == 1:
        return jacobian * (root * kept)[:, :, None]
    share = (1 - kept) / torch.where(squared > 0, squared, 1)
    along = (residual[:, :, None] * jacobian).sum(1, keepdim=True)
    return root[:, :, None] * (jacobian - (share * residual)[:, :, None] * along)


def _mixed(
    pairs: int,
    residual: Tensor,
    jacobian: Tensor | None,
    squared: Tensor,
    root: Tensor,
    kept: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Elementwise losses where the leading entries are complex: each pair of rows is a group of its own."""
    both = 2 * pairs
    by_row = torch.cat(((root / kept)[:, :pairs].repeat_interleave(2, 1), (root / kept)[:, pairs:]), 1)
    scaled = residual * by_row
    if jacobian is None:
        return scaled, None
    r = rearrange(residual[:, :both], "outer (pair part) lanes -> (outer pair) part lanes", part=2)
    j = rearrange(jacobian[:, :both], "outer (pair part) tangent lanes -> (outer pair) part tangent lanes", part=2)

    def flat(t: Tensor) -> Tensor:
        return rearrange(t[:, :pairs], "outer pair lanes -> (outer pair) 1 lanes")

    complex_rows = _rescaled(r, j, flat(squared), flat(root), flat(kept))
    assert complex_rows is not None  # a Jacobian was given
    complex_rows = rearrange(
        complex_rows, "(outer pair) part tangent lanes -> outer (pair part) tangent lanes", pair=pairs
    )
    real_rows = jacobian[:, both:] * (root * kept)[:, pairs:, None]
    return scaled, torch.cat((complex_rows, real_rows), 1)
