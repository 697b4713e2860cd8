"""Derivatives of a solution that several ranks have found: each pulls back to its own blocks, what is shared adds up.

With v = −H⁻¹g for the cotangent g of the solution (Implicit's docstring), the gradient in the data d is that of D_v
cost + the cotangent of the cost times the cost, and both are sums over blocks. So a tensor with an entry per block has
its gradient where its blocks are, and the gradient of what all ranks have is one sum. The cotangents must be the same
everywhere: all ranks have computed the same loss from the same solution.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mslsq.adjoint import Implicit
from mslsq.adjoint.outputs import Prepared
from mslsq.distributed.group import Together
from mslsq.distributed.statement import SharedStatement
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.second_order import pulled_through_retraction
from mslsq.ranks import ALONE, RanksDifferError
from mslsq.solvers.choices import linear_solver_of
from mslsq.solvers.run import Outcome
from mslsq.solvers.task import Task
from mslsq.tracing.graph import TRANSFORM_LOCK

EQUAL = 1e-9
"""Cotangents of two ranks may differ by this share of the largest: kinds of processors round differently."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """What backward needs of a solve."""

    ranks: Together
    shared: SharedStatement
    task: Task
    outcome: Outcome
    prepared: Prepared
    adjoint: Implicit

    @property
    def linearizer(self) -> Linearizer:
        """In operations of PyTorch."""
        task, plan = self.task, self.outcome.planned[0]
        linear = linear_solver_of(task, plan)
        return plan.linearizer(task.system, task.batch, task.batched, linear, differentiable=True)

    def tensors(self) -> list[Tensor]:
        """All tensors that the whole depends on, in the order of its terms."""
        return [leaf.tensor for leaves in self.shared.whole.leaves for leaf in leaves]


class OverRanks(torch.autograd.Function):
    """Values and cost of a minimum as a function of the tensors of the whole statement; reverse mode, once."""

    @staticmethod
    def forward(ctx: Any, minimum: Minimum, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.minimum = minimum
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(True)
        return (*[x.clone() for x in minimum.outcome.values], minimum.outcome.cost.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        with ctx.minimum.ranks.as_one():
            return None, *_pulled_back(ctx.minimum, tensors, ctx.needs_input_grad[1:], cotangents)


def _pulled_back(
    minimum: Minimum, tensors: tuple[Tensor, ...], wanted: tuple[bool, ...], cotangents: tuple[Tensor, ...]
) -> list[Tensor | None]:
    """The gradients of the wanted tensors."""
    *towards, of_cost = _same_everywhere(minimum.ranks, cotangents)
    linearizer, values = minimum.linearizer, minimum.outcome.values
    gradient = pulled_through_retraction(linearizer, values, tuple(towards))
    move = -minimum.adjoint.factorization.inverse(linearizer.linear_solver, minimum.prepared.factor, gradient)
    own = _own_gradients(minimum, linearizer, values, tensors, wanted, move, of_cost)
    if not bool(minimum.prepared.differentiable):
        fill = torch.nan if minimum.adjoint.failed == "nan" else 0.0
        own = [None if one is None else torch.full_like(one, fill) for one in own]
        return own
    leaves = [leaf for leaves in minimum.shared.whole.leaves for leaf in leaves]
    places = [k for k, leaf in enumerate(leaves) if own[k] is not None and minimum.shared.is_replicated(leaf)]
    if places:
        sums = minimum.ranks.summed(*[one for k in places if (one := own[k]) is not None])
        for k, total in zip(places, sums, strict=True):
            own[k] = total
    return own


def _same_everywhere(ranks: Together, cotangents: tuple[Tensor, ...]) -> list[Tensor]:
    """The cotangents of the first rank.

    Raises:
        RanksDifferError: another rank has others.
    """
    first = ranks.agreed(cotangents)
    size = max([float(one.abs().max()) for one in first if one.numel()] or [0.0])
    differs = any(bool(((one - own).abs() > EQUAL * size).any()) for one, own in zip(first, cotangents, strict=True))
    if ranks.any(differs)[0]:
        raise RanksDifferError(
            "distributed.solve: the gradients that come back to the solution differ between ranks. Each rank must "
            "compute the same loss from the whole solution; a loss of which each rank has a part must be summed first."
        )
    return first


def _own_gradients(
    minimum: Minimum,
    linearizer: Linearizer,
    values: Values,
    tensors: tuple[Tensor, ...],
    wanted: tuple[bool, ...],
    move: Tensor,
    of_cost: Tensor,
) -> list[Tensor | None]:
    """What this rank's blocks give, in the shapes of the whole statement's tensors; zeros where it has none."""
    alone, rest, inputs, parts = replace(linearizer, ranks=ALONE), iter(zip(tensors, wanted, strict=True)), [], []
    for leaves, share in zip(minimum.shared.whole.leaves, minimum.shared.shares, strict=True):
        given = {}
        for leaf in leaves:
            tensor, is_wanted = next(rest)
            part = None
            if share is not None:
                part = share.taken(leaf.replaced(tensor.detach(), None)) if minimum.shared.holds_whole else tensor
                part = part.detach().requires_grad_(is_wanted)
                given[leaf.name] = part
            parts.append((leaf, share, part if is_wanted else None))
        if share is not None:
            inputs.append(given)
    sources = [part for _, _, part in parts if part is not None]
    found = iter(_gradients(alone, values, tuple(inputs), sources, move, of_cost))
    result: list[Tensor | None] = []
    for (leaf, share, part), is_wanted in zip(parts, wanted, strict=True):
        if not is_wanted:
            result.append(None)
        elif part is None or share is None:
            result.append(torch.zeros_like(leaf.tensor))
        else:
            gradient = next(found)
            result.append(share.put_back(gradient, leaf) if minimum.shared.holds_whole else gradient)
    return result


def _gradients(
    alone: Linearizer,
    values: Values,
    inputs: tuple[dict[str, Tensor], ...],
    sources: list[Tensor],
    move: Tensor,
    of_cost: Tensor,
) -> list[Tensor]:
    """∂/∂d [D_v cost + c · cost] of this rank's blocks."""
    if not sources:
        return []
    with torch.enable_grad(), TRANSFORM_LOCK:
        prepared = alone.prepare(inputs)
        total = _slope(alone, values, prepared, move).sum() + (of_cost * alone.cost(values, prepared)).sum()
        found = torch.autograd.grad(total, sources, allow_unused=True)
    return [torch.zeros_like(x) if one is None else one for x, one in zip(sources, found, strict=True)]


def _slope(alone: Linearizer, values: Values, inputs: TermInputs, move: Tensor) -> Tensor:
    try:
        return alone.slope(values, inputs, move)
    except NotImplementedError:  # an operation without a derivative in forward mode, such as grid_sample
        return (alone.gradient(values, inputs) * move).sum(-1)
