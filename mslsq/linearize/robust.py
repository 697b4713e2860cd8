"""Robust losses inside Gauss–Newton: residual and Jacobian rescaled so that plain least squares sees the loss.

For the cost ½ρ(s), s = ‖r‖², the gradient is ρ' Jᵀr and the Gauss–Newton Hessian, with the curvature of ρ, is
Jᵀ(ρ' I + 2ρ'' r rᵀ)J. Triggs' correction (Triggs, McLauchlan, Hartley, Fitzgibbon, "Bundle adjustment: a modern
synthesis", 2000, section 4.3) writes both as r̃ and J̃ of a plain least-squares problem. The gradient of the two is
always exact; how much of the curvature they keep is said at `LEAST_CURVATURE`.
"""

import torch
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


def losses(
    block: BlockTerm, residual: Float[Tensor, "outer rows lanes"], inputs: Inputs
) -> Float[Tensor, "outer groups lanes"]:
    """The loss of every group of rows."""
    squared = _squared(block, residual)
    return squared if block.term.loss is None else _correction(block, squared, inputs)[0]


def robustified(
    block: BlockTerm, residual: Float[Tensor, "outer rows lanes"], jacobian: Tensor, inputs: Inputs
) -> tuple[Float[Tensor, "outer groups lanes"], Float[Tensor, "outer rows lanes"], Tensor]:
    """The loss of every group of rows, and residual and Jacobian (in the term's layout) rescaled by Triggs'
    correction: r̃ = √(ρ'/(1 − α)) r and J̃ = √ρ' (J − α/s r rᵀJ)."""
    squared = _squared(block, residual)
    if block.term.loss is None:
        return squared, residual, jacobian
    rho, root, kept = _correction(block, squared, inputs)
    pairs, layout = block.pairs if block.term.elementwise_loss else 0, block.way.layout

    def of_rows(groups: Float[Tensor, "outer groups lanes"]) -> Float[Tensor, "outer rows lanes"]:
        if not pairs or groups.shape[1] == 1:  # one group is of all rows
            return groups
        return torch.cat((groups[:, :pairs].repeat_interleave(2, 1), groups[:, pairs:]), 1)

    scaled = residual * of_rows(root / kept)
    if squared.shape[1] == residual.shape[1]:  # r rᵀJ of one row is s J
        return rho, scaled, jacobian * layout.spread(root * kept)
    share = of_rows((1 - kept) / torch.where(squared > 0, squared, 1))
    along = layout.along(residual, jacobian, pairs)
    return rho, scaled, layout.spread(of_rows(root)) * (jacobian - layout.spread(share * residual) * along)


def _squared(block: BlockTerm, residual: Float[Tensor, "outer rows lanes"]) -> Float[Tensor, "outer groups lanes"]:
    return squared_norms(residual, block.pairs, block.term.elementwise_loss or block.term.loss is None)


def _correction(
    block: BlockTerm, squared: Float[Tensor, "outer groups lanes"], inputs: Inputs
) -> tuple[
    Float[Tensor, "outer groups lanes"], Float[Tensor, "outer groups lanes"], Float[Tensor, "outer groups lanes"]
]:
    """The loss of squared norms, √ρ', and √(1 − α) of Triggs: the share of that which is left along r."""
    assert block.term.loss is not None  # the callers have checked
    rho, slope, curvature = block.term.loss.derivatives(squared, block.loss_parameters_by_lane(inputs))
    # ρ' = 0 (Tukey's outliers, Welsch's beyond 27 scales): the block has no weight. Nor has one whose ρ' is so small
    # that the derivatives of root and quotient overflow: times the zero of a ρ' that does not change they are NaN.
    numbers = torch.finfo(slope.dtype)
    positive = slope > numbers.tiny / numbers.eps
    weight = torch.where(positive, slope, 1)
    kept = torch.where(positive, 1 + 2 * squared * curvature / weight, 1)
    return rho, torch.where(positive, weight.sqrt(), 0), torch.where(kept >= LEAST_CURVATURE, kept, 1).sqrt()
