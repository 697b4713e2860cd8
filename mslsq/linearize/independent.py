"""Derivatives of one block by PyTorch's plain reverse mode: no `torch.func`, no `vmap`, no graph kept.

What the transforms give is checked against these. Where an operator has no derivative in reverse mode, central
differences take its place.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from mslsq.linearize.blocks import BlockTerm
from mslsq.manifolds.space import Space
from mslsq.manifolds.validation import unchecked
from mslsq.private import gradients, outside_of_transforms
from mslsq.problem.system import Inputs
from mslsq.tracing.operators import Composed

Storages = tuple[Tensor, ...]


@contextlib.contextmanager
def plain_python() -> Iterator[None]:
    """The user's functions as if called at the top level: no transforms, gradients on, and random numbers that are
    the same afterwards."""
    state = torch.get_rng_state()
    try:
        with outside_of_transforms(), torch.inference_mode(False), torch.enable_grad(), unchecked():
            yield
    finally:
        torch.set_rng_state(state)


def residual(block: BlockTerm, storages: Storages, inputs: Inputs) -> Float[Tensor, "rows"]:
    """The weighted residual of one block."""
    with plain_python():
        return block.residual_of_block(storages, inputs).detach()


def residuals(block: BlockTerm, lanes: Sequence[tuple[Storages, Inputs]]) -> list[Float[Tensor, "rows"] | None]:
    """The weighted residuals of several lanes; None of one with a matrix that cannot be factored."""
    found: list[Tensor | None] = []
    with plain_python():
        for storages, inputs in lanes:
            try:
                found.append(block.residual_of_block(storages, inputs).detach())
            except LinAlgError:
                found.append(None)
    return found


def pullback(
    block: BlockTerm, storages: Storages, inputs: Inputs, u: Float[Tensor, "rows"], rewritten: bool = True
) -> tuple[Float[Tensor, "rows"], Float[Tensor, "tangent"]]:
    """The residual r and uᵀ∂r.

    `rewritten` where that may be a residual with functions whose reverse mode is wrong in PyTorch itself: looking for
    those takes a microsecond per operation.
    """
    with plain_python(), Composed() if rewritten else contextlib.nullcontext():
        function, at = block._in_tangent(lambda moved: block.residual_of_block(moved, inputs), storages)
        at = at.detach().clone().requires_grad_()
        r = function(at)
        return r.detach(), _gradient(r, at, u)


def pullbacks(
    block: BlockTerm, lanes: Sequence[tuple[Storages, Inputs]], u: Float[Tensor, "rows"], rewritten: bool
) -> list[tuple[Tensor | None, Tensor | None]]:
    """`pullback` of several lanes with one backward pass: (None, None) of a lane with a matrix that cannot be factored,
    and no derivative where reverse mode has none."""
    with plain_python(), Composed() if rewritten else contextlib.nullcontext():
        tangents, moved = _moved(block, [storages for storages, _ in lanes])
        evaluated = [
            _evaluated(block, at, storages, inputs) for at, (storages, inputs) in zip(moved, lanes, strict=True)
        ]
        residuals = [one[0] for one in evaluated if one is not None and one[0].requires_grad]
        try:
            derivatives = _derivatives(residuals, tangents, u)
        except RuntimeError:  # an operator without a derivative in reverse mode
            derivatives = None
    results: list[tuple[Tensor | None, Tensor | None]] = []
    for number, one in enumerate(evaluated):
        if one is None:
            results.append((None, None))
            continue
        r, has_derivative = one
        if not r.requires_grad:
            gradient = u.new_zeros(sum(block.tangents)) if has_derivative else None
        else:
            gradient = None if derivatives is None else derivatives[number]
        results.append((r.detach(), gradient))
    return results


class _Tangent(NamedTuple):
    """The tangents of slots of one space, of every lane."""

    slots: list[int]
    at: Float[Tensor, "slots lanes tangent"]


def _moved(block: BlockTerm, lanes: Sequence[Storages]) -> tuple[list[_Tangent], list[Storages]]:
    """The storages of every lane as functions of tangents, and those.

    All lanes and all slots of a space are retracted at once: one by one that was a third of what is compared in a solve
    of a pose graph, and a quarter of the whole solve of `intel` (43 ms instead of 33).
    """
    groups: dict[Space, list[int]] = {}
    for slot, reference in enumerate(block.term.slots):
        groups.setdefault(block.system.unknowns[reference.unknown].space, []).append(slot)
    tangents, moved = [], {}
    for space, slots in groups.items():
        x = torch.stack([torch.stack([storages[slot] for storages in lanes]) for slot in slots]).detach()
        at = x if space.is_euclidean else x.new_zeros(*x.shape[:2], space.tangent_dim)
        tangents.append(_Tangent(slots, at.requires_grad_()))
        moved |= zip(slots, at if space.is_euclidean else space.retract(x, at), strict=True)
    # In memory of its own, as all that a residual is given: it may write there.
    return tangents, [tuple([moved[slot][lane].clone() for slot in sorted(moved)]) for lane in range(len(lanes))]


def _evaluated(block: BlockTerm, moved: Storages, storages: Storages, inputs: Inputs) -> tuple[Tensor, bool] | None:
    """The residual of a lane, and whether it can be differentiated; None where a matrix cannot be factored."""
    try:
        return block.residual_of_block(moved, inputs), True
    except LinAlgError:
        return None
    except RuntimeError:
        with torch.no_grad():
            return block.residual_of_block(storages, inputs).detach(), False


def _derivatives(
    residuals: Sequence[Tensor], tangents: Sequence[_Tangent], u: Float[Tensor, "rows"]
) -> Float[Tensor, "lanes tangent"]:
    """uᵀ∂r of every lane's residual in its joint tangent."""
    found = pulled(residuals, [at for _, at in tangents], u)
    by_slot = {
        slot: g for (slots, _), all_ in zip(tangents, found, strict=True) for slot, g in zip(slots, all_, strict=True)
    }
    return torch.cat([by_slot[slot] for slot in sorted(by_slot)], 1)


def pulled(residuals: Sequence[Tensor], tangents: Sequence[Tensor], u: Float[Tensor, "rows"]) -> list[Tensor]:
    """Σ uᵀ∂r of these residuals in every tangent; zeros where none depends on it."""
    cotangents = [u.to(r.dtype) for r in residuals]
    found = gradients(residuals, tangents, cotangents) if residuals else [None] * len(tangents)
    return [torch.zeros_like(at) if g is None else g for g, at in zip(found, tangents, strict=True)]


def hessian_product(
    block: BlockTerm, storages: Storages, inputs: Inputs, v: Float[Tensor, "tangent"]
) -> tuple[Float[Tensor, "tangent"], Float[Tensor, "tangent"], dict[str, Tensor]]:
    """Of the block's cost: the gradient g, Hv, and ∂(gᵀv) in every input of real numbers."""
    with plain_python(), Composed():
        real = {name: x.detach().clone().requires_grad_() for name, x in inputs.items() if x.is_floating_point()}
        given = {**inputs, **real}
        function, at = block._in_tangent(lambda moved: block.cost_of_block(moved, given), storages)
        at = at.detach().clone().requires_grad_()
        cost = function(at)
        if not cost.requires_grad:
            zeros = torch.zeros_like(at)
            return zeros, zeros, {name: torch.zeros_like(x) for name, x in real.items()}
        (gradient,) = torch.autograd.grad(cost, at, create_graph=True, allow_unused=True, materialize_grads=True)
        wanted = [at, *real.values()]
        found = gradients([gradient], wanted, [v]) if gradient.requires_grad else [None] * len(wanted)
        product, *mixed = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
        return gradient.detach(), product, dict(zip(real, mixed, strict=True))


def directional_difference(
    block: BlockTerm, storages: Storages, inputs: Inputs, v: Float[Tensor, "tangent"]
) -> Float[Tensor, "rows"]:
    """(r(h v) − r(−h v)) / 2h."""
    with plain_python(), torch.no_grad():
        function, at = block._in_tangent(lambda moved: block.residual_of_block(moved, inputs), storages)
        size = at.abs().amax() if at.numel() else at.new_ones(())
        h = torch.finfo(at.dtype).eps ** (1 / 3) * torch.where(size > 0, size, 1)
        return (function(at + h * v) - function(at - h * v)) / (2 * h)


def _gradient(output: Tensor, at: Tensor, u: Tensor) -> Tensor:
    if not output.requires_grad:
        return torch.zeros_like(at)
    return pulled([output], [at], u)[0]


def irregular(size: int, like: Tensor, phase: float = 0.0) -> Float[Tensor, "size"]:
    """Fixed numbers between −1 and 1 without a pattern that an error could hide behind."""
    numbers = torch.arange(1, size + 1, dtype=torch.float64, device="cpu")
    return (numbers * numbers * 0.754878 + numbers + phase).cos().to(like)
