"""`solve` of a batch whose problems are spread over ranks: each solves its own, the solutions are gathered, or not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mslsq import pytree
from mslsq.adjoint import Adjoint
from mslsq.distributed.group import Together
from mslsq.distributed.refusals import refuse_surroundings
from mslsq.distributed.solve import TIMEOUT, ranks_of
from mslsq.distributed.statement import Share
from mslsq.front.batching import element_like, taken_apart, tensor_of
from mslsq.front.solve import solve as solve_here
from mslsq.levels import backward_may_come
from mslsq.problem import Problem
from mslsq.problem.errors import ProblemError
from mslsq.ranks import RanksDifferError
from mslsq.solution import Solution
from mslsq.solvers import Solver
from mslsq.solvers.outer import OuterSolver
from mslsq.validation import instance_of


def solve_batch(
    problem: Problem,
    values: Mapping[str, Any],
    data: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    in_dims: Any,
    gather: bool = True,
    solver: Solver | OuterSolver | None = None,
    adjoint: Adjoint | None = None,
    group: Any = None,
    timeout: float = TIMEOUT,
) -> Solution:
    """Solve a batch of independent problems, each on one rank. Every rank calls it with the whole batch.

    Rank r of n solves the consecutive problems from ⌊size·r/n⌋ to ⌊size·(r+1)/n⌋, as `mslsq.solve` does. Nothing is
    exchanged while they are solved.

    Args:
        problem: as for `mslsq.solve`.
        values: as for `mslsq.solve`, of the whole batch.
        data: as for `mslsq.solve`, of the whole batch.
        in_dims: as for `mslsq.solve`; something must be mapped.
        gather: the solution of the whole batch on every rank; otherwise that of this rank's problems.
        solver: as for `mslsq.solve`.
        adjoint: as for `mslsq.solve`; first derivatives, by `backward()`, which every rank calls. The gradients of
            values, data, and the parameters of the problem are summed over the ranks, and the same everywhere. With
            `gather` every rank computes the same loss; otherwise each that of its own problems, and what is
            differentiated is their sum.
        group: a process group of `torch.distributed`; all processes by default.
        timeout: seconds that a rank waits for the others before it raises `RankLostError`.

    Raises:
        RanksError: there is no process group, or the ranks cannot go on together; on all of them.
        ProblemError: as `mslsq.solve`; nothing is mapped; or an interrupted solve on some rank.

    A rank whose own problems could all be had without the others (its part of a data set) needs nothing of this: it
    calls `mslsq.solve`.

    >>> solution = mslsq.distributed.solve_batch(problem, {"pose": T0}, {"between": {"measured": T}}, in_dims=0)
    """
    instance_of("distributed.solve_batch: problem", problem, Problem)
    ranks = ranks_of(group, timeout)
    with ranks.as_one(defers=False):
        refuse_surroundings("distributed.solve_batch")
        part = _Part.of(ranks, problem, values, data, in_dims)
        found = solve_here(problem, part.values, part.data, in_dims=part.in_dims, solver=solver, adjoint=adjoint)
        return part.gathered(found) if gather else part.own(found)


Axis = int | None
"""The batch axis of a leaf; None where it is not mapped."""


@dataclass(frozen=True, eq=False)
class _Part:
    """This rank's problems of a batch."""

    ranks: Together
    shares: tuple[Share, ...]
    """Of every rank."""
    values: Any
    data: Any
    in_dims: Any

    @staticmethod
    def of(ranks: Together, problem: Problem, values: Any, data: Any, in_dims: Any) -> "_Part":
        """Arguments as for `solve_batch`."""
        data = {name: dict(replaced) for name, replaced in ({} if data is None else data).items()}
        stated = taken_apart(values, data)
        axes = stated.axes(in_dims)
        if axes.size is None:
            raise ProblemError(
                "distributed.solve_batch: nothing is mapped, so there is one problem. Pass in_dims, or call "
                "mslsq.distributed.solve, which shares the blocks of one problem."
            )
        of_values, of_data = map(pytree.unflatten, axes.of, stated.structures)
        for cost, name, tensor in _differentiable(problem):
            if name not in data.get(cost, {}):
                data.setdefault(cost, {})[name] = tensor
                of_data.setdefault(cost, {})[name] = None
        whole = taken_apart(values, data)
        of_leaves = whole.axes((of_values, of_data)).of
        most, least = ranks.largest(axes.size, -axes.size)
        if most != -least:
            raise RanksDifferError(
                f"distributed.solve_batch: the batch has {-least} problems on one rank and {most} on another. Every "
                "rank passes the whole batch."
            )
        shares = tuple(Share.of(axes.size, rank, ranks.count) for rank in range(ranks.count))
        own = shares[ranks.rank]
        # A rank without problems solves the first one too, and gives nothing: what it exchanges has the right shape.
        solved = own if own.count else Share(0, 1)
        flat = [leaf for leaves in whole.leaves for leaf in leaves]
        cut = iter(_cut(ranks, solved, flat, [axis for axes in of_leaves for axis in axes]))
        taken = ([next(cut) for _ in leaves] for leaves in whole.leaves)
        own_values, own_data = map(pytree.unflatten, taken, whole.structures)
        return _Part(ranks, shares, own_values, own_data, (of_values, of_data))

    def own(self, found: Solution) -> Solution:
        """The solution of this rank's problems."""
        count = self.shares[self.ranks.rank].count
        return pytree.map_leaves(lambda leaf: leaf[:count], found)

    def gathered(self, found: Solution) -> Solution:
        """The solution of the whole batch."""
        (steps,) = self.ranks.largest(found.history.cost.shape[1])
        history = pytree.map_leaves(lambda figures: _padded(figures, steps), found.history)
        leaves, structure = pytree.flatten(replace(self.own(found), history=self.own(history)))
        counts = [share.count for share in self.shares]
        with_derivative = [leaf for leaf in leaves if leaf.requires_grad]
        attached = iter(Gathered.apply(self.ranks, counts, *with_derivative) if with_derivative else ())
        whole = [next(attached) if leaf.requires_grad else _of_all(self.ranks, counts, leaf) for leaf in leaves]
        return pytree.unflatten(whole, structure)


def _differentiable(problem: Problem) -> Iterator[tuple[str, str, Tensor]]:
    """The tensors of a problem whose derivative may be asked for: by cost and name."""
    for cost in problem:
        for name, tensor in (*cost.named_parameters(), *cost.named_buffers()):
            if backward_may_come(tensor):
                yield cost.name, name, tensor


def _cut(ranks: Together, share: Share, leaves: list[Any], axes: list[int | None]) -> list[Any]:
    """The part of every leaf that belongs to these problems."""
    tensors = [tensor_of(leaf) for leaf in leaves]
    attached = [k for k, tensor in enumerate(tensors) if isinstance(tensor, Tensor) and backward_may_come(tensor)]
    parts = {k: _taken(tensors[k], share, axis) for k, axis in enumerate(axes) if axis is not None}
    if attached:
        own = [axes[k] for k in attached]
        parts |= dict(zip(attached, Scattered.apply(ranks, share, own, *[tensors[k] for k in attached]), strict=True))
    return [element_like(leaf, parts[k]) if k in parts else leaf for k, leaf in enumerate(leaves)]


def _taken(tensor: Tensor, share: Share, axis: int | None) -> Tensor:
    return tensor if axis is None else tensor.narrow(axis, share.start, share.count)


class Scattered(torch.autograd.Function):
    """The parts of tensors that all ranks have; backward adds up what the ranks give back."""

    @staticmethod
    def forward(ctx: Any, ranks: Together, share: Share, axes: list[Axis], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks, ctx.share, ctx.axes = ranks, share, axes
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(_taken(tensor, share, axis).clone() for tensor, axis in zip(tensors, axes, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        wholes = []
        for shape, axis, cotangent in zip(ctx.shapes, ctx.axes, cotangents, strict=True):
            whole = cotangent.new_zeros(shape)
            _taken(whole, ctx.share, axis).copy_(cotangent)
            wholes.append(whole)
        with ctx.ranks.as_one():
            return None, None, None, *ctx.ranks.summed(*wholes)


class Gathered(torch.autograd.Function):
    """What the ranks have, one after the other along the first axis; backward takes this rank's part of a cotangent
    that all ranks have."""

    @staticmethod
    def forward(ctx: Any, ranks: Together, counts: list[int], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.start, ctx.count = sum(counts[: ranks.rank]), counts[ranks.rank]
        return tuple(_of_all(ranks, counts, tensor) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, None, *(one[ctx.start : ctx.start + ctx.count] for one in cotangents)


def _of_all(ranks: Together, counts: list[int], own: Tensor) -> Tensor:
    """(sum of the counts, ...) from what each rank has, (its count, ...)."""
    padded = own.detach().new_zeros(max(counts), *own.shape[1:])
    padded[: len(own)] = own.detach()
    sent = padded.to(torch.uint8) if padded.dtype == torch.bool else padded
    parts = ranks.gathered(sent)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]).to(own.dtype)


def _padded(figures: Tensor, steps: int) -> Tensor:
    """A history as long as the longest."""
    value = False if figures.dtype == torch.bool else torch.nan
    return torch.nn.functional.pad(figures, (0, steps - figures.shape[1]), value=value)
