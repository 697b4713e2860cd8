"""A statement of which this rank has a part: some blocks of every cost, over all variables."""

from dataclasses import dataclass, replace

from torch import Tensor

from mslsq.front.leaves import Leaf
from mslsq.front.statement import Statement
from mslsq.problem.system import Slot, Term


@dataclass(frozen=True)
class Share:
    """Which blocks of a term are this rank's."""

    start: int
    stop: int

    @staticmethod
    def of(count: int, rank: int, ranks: int) -> "Share":
        """Consecutive blocks, as evenly as can be."""
        return Share(count * rank // ranks, count * (rank + 1) // ranks)

    @property
    def count(self) -> int:
        return self.stop - self.start

    def taken(self, leaf: Leaf) -> Tensor:
        """The part of a tensor with an entry per block."""
        return leaf.tensor[self.start : self.stop] if leaf.is_per_block else leaf.tensor

    def put_back(self, part: Tensor, leaf: Leaf) -> Tensor:
        """The other way round, with zeros for other ranks' blocks."""
        if not leaf.is_per_block:
            return part
        whole = part.new_zeros(leaf.tensor.shape)
        whole[self.start : self.stop] = part
        return whole


@dataclass(frozen=True, eq=False)
class SharedStatement:
    """What this rank is to solve, and what the whole is."""

    whole: Statement
    """As the caller has stated it."""
    own: Statement
    """With the blocks of this rank; terms without any are left out."""
    shares: tuple[Share | None, ...]
    """Per term of the whole; None where it is left out."""
    holds_whole: bool
    """Has the caller stated all blocks on every rank?"""

    def is_replicated(self, leaf: Leaf) -> bool:
        """Have all ranks the same tensor?"""
        return self.holds_whole or not leaf.is_per_block


def shared_statement(stated: Statement, holds_whole: bool, rank: int, ranks: int) -> SharedStatement:
    """The part of a statement that is this rank's."""
    if not holds_whole:
        shares: list[Share | None] = [Share(0, term.num_blocks) for term in stated.system.terms]
        return SharedStatement(stated, stated, tuple(shares), False)
    shares = []
    terms, leaves = [], []
    for term, own in zip(stated.system.terms, stated.leaves, strict=True):
        share = Share.of(term.num_blocks, rank, ranks)
        shares.append(share if share.count else None)
        if share.count:
            terms.append(_part(term, share))
            leaves.append(tuple(leaf.replaced(share.taken(leaf), None) for leaf in own))
    system = replace(stated.system, terms=tuple(terms))
    return SharedStatement(stated, replace(stated, system=system, leaves=tuple(leaves)), tuple(shares), True)


def _part(term: Term, share: Share) -> Term:
    """Some blocks of a term."""
    key = (term.key, "blocks", share.start, share.stop)
    return replace(term, slots=tuple(_slot(one, share) for one in term.slots), num_blocks=share.count, key=key)


def _slot(slot: Slot, share: Share) -> Slot:
    if isinstance(slot.index, int):
        return slot
    index = slot.index[share.start : share.stop]
    return Slot(slot.unknown, int(index[0]) if len(index) == 1 else index.contiguous())
