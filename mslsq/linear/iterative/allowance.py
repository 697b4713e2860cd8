"""How many iterations a step makes on a device that is asked once a step.

Whether all entries of a batch are solved is known on the device, and reading it waits for all that the device has been
told to do. So a step makes a number of iterations that is set before it; what is reached by then is taken, as every
iterate is a descent direction. How many the next step makes is read together with what the loop asks anyway: as many as
the last steps took to the accuracy that is asked of it, and more where they did not come to it.

Iterations beyond that accuracy are not thrown away, they make the step better. Solves of pose graphs and bundle
adjustments make 0.64 to 1.40 times the iterations of those that look after every ten, and two steps less to three more
(`benchmarks/results/allowed_iterations.md`). Numbers of iterations alone, without the residuals on the way, foresee
less: up to 2.3 times.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FIRST, LEAST = 16, 8
"""Iterations of a first step, and of any. To the accuracy of 0.1 that is asked of a first one, pose graphs took 2 to
7."""

GROWTH = 1.5
"""By how much more are made where the accuracy was not come to. With 2 a solve takes a step less and a tenth more
iterations."""

MARGIN, EXTRA = 1.2, 2
"""In what is foreseen."""

DEEPEST = 1e-6
"""The relative residual to which a step goes on: below, the rounding of conjugate gradients decides."""


class Spent(NamedTuple):
    """What the solves of a step have come to, which were allowed as many iterations."""

    residuals: Float[Tensor, "batch allowed"]
    """Relative, after each iteration."""
    iterations: Int[Tensor, "batch"]
    """That each entry took."""

    def short(self, wanted: Float[Tensor, "batch"]) -> Bool[Tensor, "batch"]:
        """Which entries used up all and did not come to that accuracy?"""
        return (self.iterations >= self.residuals.shape[1]) & ~(self.residuals[:, -1] <= wanted)

    def and_also(self, other: "Spent") -> "Spent":
        """The worse of two solves."""
        return Spent(*(torch.maximum(*pair) for pair in zip(self, other, strict=True)))


def foreseen(residuals: Float[Tensor, "batch known"], wanted: Float[Tensor, "batch"]) -> Int[Tensor, "batch"]:
    """How many iterations each entry should be allowed to come to an accuracy, by its residuals after each iteration of
    solves before."""
    reached = residuals <= wanted[:, None]
    first = reached.to(torch.int64).argmax(1) + 1
    allowed = torch.ceil(MARGIN * first.to(torch.float64)).to(torch.int64) + EXTRA
    more = math.ceil(GROWTH * residuals.shape[1])
    return torch.where(reached.any(1), allowed, more).clamp(min=LEAST)


class Allowance:
    """The iterations of steps, one after the other; changes from step to step.

    Args:
        iterations: of the first.
    """

    def __init__(self, iterations: int = FIRST):
        self.iterations = iterations
        self._spent: Spent | None = None
        self._wanted: Tensor | None = None
        self._largest = 1.0
        self._known: Tensor | None = None

    def limit(self, most: int) -> int:
        """What the next solve is allowed, `most` at most."""
        return min(self.iterations, most)

    def spend(self, spent: Spent, wanted: Float[Tensor, "batch"], largest: float) -> None:
        """Note a solve, the accuracy that was asked of it, and the least accuracy that is asked of any."""
        self._spent = spent if self._spent is None else self._spent.and_also(spent)
        self._wanted, self._largest = wanted, largest

    def next(self, wanted: Float[Tensor, "batch"], counts: Bool[Tensor, "batch"]) -> Int[Tensor, ""] | None:
        """What the next step should be allowed to come to an accuracy, by the entries that count; None where the last
        one has solved nothing."""
        spent, before, self._spent = self._spent, self._wanted, None
        if spent is None or before is None:
            return None
        made, short = spent.residuals.shape[1], spent.short(before)
        known = spent.residuals
        if self._known is not None and self._known.shape[1] > made:
            rest = torch.where(short[:, None], torch.inf, self._known[:, made:])  # it took more than then
            known = torch.cat((known, rest), 1)
        self._known = known
        allowed = torch.where(short, math.ceil(GROWTH * made), foreseen(known, wanted.clamp(max=self._largest)))
        # An entry that stopped on the way, whose matrix is not definite, needs no more of them.
        stuck = (spent.iterations < made) & ~(spent.residuals[:, -1] <= before)
        allowed = torch.where(counts & ~stuck, allowed, 0).amax()
        return torch.where(allowed > 0, allowed, made)

    def read_with(self, answer: Int[Tensor, ""], wanted: Float[Tensor, "batch"], running: Bool[Tensor, "batch"]) -> int:
        """What the loop asks, of which entries run; with it comes what the next step is allowed."""
        allowed = self.next(wanted, running)
        if allowed is None:
            return int(answer)
        told, self.iterations = torch.stack((answer, allowed)).tolist()
        return told
