"""A system without the blocks that have no weight: wrong loop closures fill a factor that is sparse without them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from mslsq.linearize.plan_cache import PlanCache
from mslsq.problem.system import Inputs, Slot, Term
from mslsq.solvers.solver import Solver
from mslsq.solvers.task import Task

WORTH_IT = 0.8
"""Blocks are left out where at most this share of those in use has a weight. A new plan costs as much as some ten steps
without them, one step with all wrong loop closures of M3500 as much as fifty."""

LEAST = 2
"""A term keeps that many blocks at least: a single one is laid out in another way."""


@dataclass(frozen=True, eq=False)
class LiveBlocks:
    """Which blocks of some terms are in use, and the task of the system that has no others."""

    whole: Task
    """With all blocks."""
    task: Task
    kept: Mapping[int, Tensor]
    """By term the numbers of its blocks in use; all of them of a term that is not named here."""

    def inputs(self, inputs: tuple[Inputs, ...]) -> tuple[Inputs, ...]:
        """The tensors of the blocks in use, from those of all blocks."""
        return tuple(
            self._of_kept(number, given) if number in self.kept else given for number, given in enumerate(inputs)
        )

    def solved_by(self, solver: Solver, is_trial: bool) -> "LiveBlocks":
        """The same choice of blocks for another solver."""
        tasks = self.whole, self.task
        one, other = (replace(task, solver=solver, is_trial=is_trial, pinned=None) for task in tasks)
        return LiveBlocks(one, other, self.kept) if self.kept else LiveBlocks(one, one, {})

    def left_out(self, number: int) -> int:
        """How many blocks of a term are not in use."""
        total = self.whole.system.terms[number].num_blocks
        return total - len(self.kept[number]) if number in self.kept else 0

    def looked_at(self, live: Mapping[int, Bool[Tensor, "blocks"]]) -> "LiveBlocks":
        """The same, or another choice where a block has come back or many have gone; `live` tells of all blocks of some
        terms which have a weight."""
        if not live:
            return self
        in_use = {number: self.kept.get(number, torch.arange(len(mask), device="cpu")) for number, mask in live.items()}
        total = sum(int(mask.sum()) for mask in live.values())
        has_lost = total > sum(int(mask[in_use[number]].sum()) for number, mask in live.items())
        if not has_lost and total > WORTH_IT * sum(map(len, in_use.values())):
            return self
        kept = {number: mask.nonzero()[:, 0] for number, mask in live.items()}
        if any(len(blocks) < LEAST for blocks in kept.values()):
            return LiveBlocks(self.whole, self.whole, {})
        terms = tuple(
            _with_blocks(term, kept[number]) if number in kept else term
            for number, term in enumerate(self.whole.system.terms)
        )
        # Plans of their own: the keys of plans do not tell which blocks were left out.
        task = replace(self.whole, system=replace(self.whole.system, terms=terms), cache=PlanCache(), pinned=None)
        return LiveBlocks(self.whole, task, kept)

    def _of_kept(self, number: int, given: Inputs) -> Inputs:
        term, batched, kept = self.whole.system.terms[number], self.whole.batched[number], self.kept[number]
        return {
            name: tensor.index_select(1 if name in batched else 0, kept) if name in term.per_block else tensor
            for name, tensor in given.items()
        }


def _with_blocks(term: Term, kept: Tensor) -> Term:
    slots = tuple(slot if isinstance(slot.index, int) else Slot(slot.unknown, slot.index[kept]) for slot in term.slots)
    return replace(term, slots=slots, num_blocks=len(kept))
