"""What several processes that solve one problem do together, as the engine sees it; alone there is nothing to do.

Each process (rank) has some of the blocks of the problem. Cost, gradient and matrix are sums over all of them, and what
is decided from these decides which sum comes next, so every rank must decide the same. The engine knows this interface
only; `mslsq.distributed` has the ranks of `torch.distributed`.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from torch import Tensor


class Ranks:
    """Base, and what holds for one process alone."""

    is_alone = True
    is_first = True
    """Is this the rank whose word holds?"""
    key: Hashable = None
    """What a plan depends on of the others."""

    def summed(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The sums over all ranks of tensors that each has made from its own blocks."""
        return tensors

    def sum_of(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks of one tensor."""
        return self.summed(tensor)[0]

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Is each of these true on at least one rank?"""
        return flags

    def agreed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the first rank, in the place of what should be the same on all: two kinds of processors round
        differently."""
        return list(tensors)

    def union(self, rows: np.ndarray) -> np.ndarray:
        """The rows (count, columns) of integers that at least one rank has."""
        return rows

    def tell_interrupt(self, interrupt: KeyboardInterrupt) -> None:
        """A KeyboardInterrupt has ended the steps of this rank: the others are told, unless they told it."""


ALONE = Ranks()
"""One process."""


class RanksError(RuntimeError):
    """The ranks of a solve cannot go on together. It is raised on all that are still there."""


class RanksDifferError(RanksError, ValueError):
    """What must be the same on every rank is not: variables, start, options, or the number of entries of a sum."""


class RankFailedError(RanksError):
    """Another rank has raised an exception, which its own output shows."""


class RankLostError(RanksError):
    """A rank has died, or has not answered within the time-out. End the process: its group is of no more use."""
