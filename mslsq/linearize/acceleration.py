"""The acceleration of the residual along a step: Jᵀr″, the second derivative along one direction, in the columns.

M. K. Transtrum, J. P. Sethna, "Improvements to the Levenberg–Marquardt algorithm for nonlinear least-squares
minimization" (2012, arXiv:1201.5885). One direction costs two derivatives of one number, not a Hessian.
"""

import contextlib
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linear.storage import added
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.first_block import of_a_block
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.one_block import squared_norms
from mslsq.private import jvp, vjp
from mslsq.problem.system import Inputs

PART = 0.1
"""Where differences take the place of forward mode: the part of the step that they look ahead (the paper's). The error
is that part of the third derivative."""


def pulled_acceleration(
    linearizer: Linearizer, values: Values, inputs: TermInputs, step: Float[Tensor, "batch columns"]
) -> Float[Tensor, "batch columns"]:
    """JᵀW d²r/dt² at t = 0 of the weighted residual r along the curve t → retract(x, t step); W are the weights ρ' of
    a robust loss, held as they are at x.

    Args:
        inputs: prepared.
    """
    parts = []
    for assembly, given in zip(linearizer.assemblies, inputs, strict=True):
        parts.append(assembly.placed_vector(_over_lanes(assembly.block, values, given, assembly.taken_vector(step))))
    return linearizer.ranks.sum_of(added(parts))


def _over_lanes(
    block: BlockTerm, values: Values, inputs: dict[str, Tensor], move: Float[Tensor, "outer tangent lanes"]
) -> Float[Tensor, "outer tangent lanes"]:
    def of_block(storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "tangent"]:
        *at, v = storages
        return pulled_acceleration_of_block(block, tuple(at), inputs, v)

    return block.over_lanes_along(of_block, values, inputs, move)


def pulled_acceleration_of_block(
    block: BlockTerm, storages: tuple[Tensor, ...], inputs: Inputs, move: Float[Tensor, "tangent"]
) -> Float[Tensor, "tangent"]:
    """The same of one block: exact where it is differentiated in forward mode and PyTorch has a second derivative, else
    by a difference, which takes nothing but residuals and the Jacobian that the steps have."""

    def along(t: Tensor) -> Float[Tensor, "rows"]:
        return block.residual_of_block(block._retracted(storages, t * move), inputs)

    bend = _second_derivative(along, move) if block.has_forward_mode else None
    if bend is not None:
        residual = block.residual_of_block(storages, inputs)
        return _pulled(block, storages, inputs, weights_of_block(block, residual, inputs) * bend.to(residual.dtype))
    residual, jacobian = block.linearization_of_block(storages, inputs)
    lanes = jacobian[None, ..., None]
    ahead = (along(move.new_full((), PART)) - residual) / PART
    bend = 2 / PART * (ahead - block.way.layout.pushed(lanes, move[None, :, None])[0, :, 0])
    weighted = weights_of_block(block, residual, inputs) * bend
    return block.way.layout.pulled(lanes, weighted[None, :, None])[0, :, 0]


def _pulled(
    block: BlockTerm, storages: tuple[Tensor, ...], inputs: Inputs, weighted: Float[Tensor, "rows"]
) -> Float[Tensor, "tangent"]:
    """Jᵀ of this, in one backward pass; of a residual that a backward pass refuses (`torch.utils.checkpoint`) by J."""
    function, at = block._in_tangent(lambda moved: block.residual_of_block(moved, inputs), storages)
    try:
        return vjp(function, at)[1](weighted)[0]
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
    jacobian = block.linearization_of_block(storages, inputs)[1]
    return block.way.layout.pulled(jacobian[None, ..., None], weighted[None, :, None])[0, :, 0]


def bends_exactly(block: BlockTerm, values: Values, inputs: Inputs) -> bool:
    """Is r″ of this term exact, and no difference? `inputs` as given by the user."""

    def of_first(storages: tuple[Tensor, ...], first: Inputs) -> bool:
        move = torch.ones(sum(block.tangents), dtype=storages[0].dtype, device=storages[0].device)

        def along(t: Tensor) -> Float[Tensor, "rows"]:
            return block.residual_of_block(block._retracted(storages, t * move), first)

        return _second_derivative(along, move) is not None

    return block.has_forward_mode and of_a_block(of_first, block.term, block.batched, values, inputs)


def _second_derivative(along: Callable[[Tensor], Tensor], like: Tensor) -> Float[Tensor, "rows"] | None:
    """d²/dt² of `along(t)` at t = 0; None where PyTorch has none.

    Forward mode of forward mode takes the fewest operations. The backward passes of some operators (of `silu`, `mish`)
    have no rule in forward mode, but a second backward pass that has one: there it is forward mode of reverse mode.
    """
    zero = like.new_zeros(())
    one = torch.ones_like(zero)
    slopes = (lambda t: jvp(along, (t,), (one,))[1]), (lambda t: _slope_by_reverse_mode(along, t))
    for slope in slopes:
        with contextlib.suppress(NotImplementedError):
            return jvp(slope, (zero,), (one,))[1]
    return None


def _slope_by_reverse_mode(along: Callable[[Tensor], Tensor], t: Tensor) -> Float[Tensor, "rows"]:
    """The derivative of `along`, as that of u → uᵀ ∂along/∂t, which is linear in u."""
    value, pull = vjp(along, t)
    return vjp(lambda u: pull(u)[0], torch.zeros_like(value))[1](torch.ones_like(t))[0]


def weights_of_block(block: BlockTerm, residual: Float[Tensor, "rows"], inputs: Inputs) -> Float[Tensor, "..."]:
    """ρ' of every row, which broadcasts to the rows."""
    term = block.term
    if term.loss is None:
        return torch.ones_like(residual[:1])
    squared = squared_norms(residual[None, :, None], block.pairs, term.elementwise_loss).reshape(-1)
    _, slope, _ = term.loss.derivatives(squared, block.loss_parameters(inputs))
    if term.elementwise_loss and block.pairs:
        return torch.cat([slope[: block.pairs].repeat_interleave(2), slope[block.pairs :]])
    return slope
