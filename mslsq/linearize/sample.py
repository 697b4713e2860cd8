"""A few blocks of a few problems of a term: what transforms do to them is compared with what plain Python does."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.manifolds.space import Space
from mslsq.problem.system import Inputs, Slot

SMALL_MOVE = 1e-3
"""Size of the tangent by which a sample is moved, relative to the variables (absolute where they are zero)."""

LEAST = 1e-3
"""An entry smaller than this share of what lies beside it may be zero but for rounding: it is moved as if it had that
size."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Storages and inputs of a few lanes, in the layout of the lanes, and the term of those alone."""

    block: BlockTerm
    storages: tuple[Tensor, ...]
    """As `BlockTerm.gather` gives them."""
    inputs: dict[str, Tensor]
    """As `BlockTerm.prepare` gives them."""
    limits: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None = None
    """The least and the largest storages, where there are bounds."""

    @property
    def dims(self) -> tuple[int | None, ...]:
        """Of the lanes in `storages`."""
        return self.block.storage_dims(self.storages)

    def mapped(self, function: Any, at_once: bool = False) -> Any:
        """`function(storages, inputs)` of one block for all lanes: (outer, ..., lanes)."""
        return self.block._mapped(function, self.storages, self.inputs, at_once)

    def linearizations(self) -> tuple[Float[Tensor, "outer rows lanes"], Tensor]:
        """Residuals and Jacobians (or their entries) as a step computes them."""
        return self.block.linearizations_of(self.storages, self.inputs)

    def residuals(self) -> Float[Tensor, "outer rows lanes"]:
        """Residuals as a step computes them."""
        return self.block.residuals_of(self.storages, self.inputs)

    def of(self, storages: tuple[Tensor, ...], inputs: dict[str, Tensor]) -> "Sample":
        """The same lanes with other numbers."""
        return dataclasses.replace(self, storages=storages, inputs=inputs)

    def lane(self, problem: int, lane: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Storages and inputs of one lane, as copies that may be written to."""
        return self.block.lane(self.storages, self.inputs, problem, lane, _own)

    def each(self) -> Iterator[tuple[tuple[int, int], tuple[Tensor, ...], dict[str, Tensor]]]:
        """Every lane by itself: (problem, lane), and its storages and inputs, as copies that may be written to."""
        for problem in range(self.block.outer):
            for lane in range(self.block.lanes):
                yield (problem, lane), *self.lane(problem, lane)

    def going(self, block: BlockTerm) -> "Sample":
        """The same sample of a term that is differentiated in another way."""
        term = dataclasses.replace(block.term, slots=self.block.term.slots, num_blocks=self.block.term.num_blocks)
        return dataclasses.replace(
            self, block=dataclasses.replace(block, term=term, batch=self.block.batch, batched=self.block.batched)
        )

    def moved(self, size: float = SMALL_MOVE) -> "Sample":
        """Every lane retracted by a small fixed tangent, irregular in all its entries; not beyond bounds."""
        block, count = self.block, 0
        moved = []
        for slot, x, dim in zip(block.term.slots, self.storages, self.dims, strict=True):
            space = block.system.unknowns[slot.unknown].space
            rows = x.movedim(-1, 0) if dim is not None else x
            if block._maps_batch and dim is not None:
                rows = rows.movedim(1, 0)  # (batch, lanes, storage)
            shape = (*rows.shape[:-1], space.tangent_dim)
            numbers = torch.arange(count, count + torch.Size(shape).numel(), dtype=torch.float64, device="cpu")
            count += torch.Size(shape).numel()
            tangent = (0.37 + numbers * numbers * 0.618034 + numbers).sin().reshape(shape).to(x)
            rows = space.retract(rows, size * sizes(rows, space) * tangent)
            if block._maps_batch and dim is not None:
                rows = rows.movedim(0, 1)
            moved.append(rows.movedim(0, -1).contiguous() if dim is not None else rows)
        if self.limits is not None:
            moved = [x.clamp(least, most) for x, least, most in zip(moved, *self.limits, strict=True)]
        return dataclasses.replace(self, storages=tuple(moved))


def sizes(x: Float[Tensor, "... storage"], space: Space) -> Float[Tensor, "... tangent"]:
    """How large each component of a variable is: the unit of a small move.

    Every entry has its own: an amplitude of 1e6 beside a rate of 1 would move the rate to where its exponential is no
    number any more. Of a manifold, whose tangent has no size, that of its storage.
    """
    own = x.abs()
    largest = own.amax(-1, keepdim=True)
    if space.tangent_dim != space.storage_dim:
        return torch.where(largest > 0, largest, 1).expand(*x.shape[:-1], space.tangent_dim)
    unit = torch.where(largest > 0, largest.clamp(max=1), 1)
    return torch.where(own > 0, torch.maximum(own, LEAST * unit), unit)


def sample_of(
    block: BlockTerm, points: Sequence[Values], inputs: Inputs, problems: Sequence[int], blocks: Sequence[int]
) -> Sample:
    """These blocks of these problems at one point or several, which stand behind one another like further problems;
    `inputs` as given by the user (not prepared)."""
    term = block.term
    slots = [
        Slot(slot.unknown, slot.index if isinstance(slot.index, int) else chosen(slot.index, blocks))
        for slot in term.slots
    ]
    few = dataclasses.replace(
        block,
        term=dataclasses.replace(term, slots=tuple(slots), num_blocks=len(blocks)),
        batch=len(problems) * len(points),
    )

    def storages_at(points: Sequence[Values]) -> tuple[Tensor, ...]:
        storages: list[Tensor] = []
        for slot in slots:
            x = _joined([chosen(values[slot.unknown], problems) for values in points])
            if block.lanes_are_batch:
                storages.append(x[:, slot.of_block(0)].T.contiguous())
                continue
            x = x[:, slot.index] if slot.is_shared else x[:, slot.index].movedim(-1, 1).contiguous()
            storages.append(x if few._maps_batch else x[0])
        return tuple(storages)

    limits = None
    if block.bounds is not None:
        least, most = (storages_at([side] * len(points)) for side in block.bounds)
        limits = least, most
    given = {}
    for name, tensor in inputs.items():
        own = name in block.batched
        tensor = _joined([chosen(tensor, problems)] * len(points)) if own else tensor
        if name in term.per_block:
            tensor = chosen(tensor, blocks, 1 if own else 0)
        given[name] = tensor
    return Sample(few, storages_at(points), few.prepare(given), limits)


def chosen(x: Tensor, places: Sequence[int], axis: int = 0) -> Tensor:
    """These entries along an axis; `places` are in order where they are all there are."""
    if len(places) == x.shape[axis]:
        return x
    return x[list(places)] if axis == 0 else x[:, list(places)]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _own(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format)


def spread(count: int, call: int) -> list[int]:
    """The first, the last, and two others."""
    if count <= 4:
        return list(range(count))
    return [0, count - 1, 1 + (2 * call) % (count - 2), 1 + (2 * call + 1) % (count - 2)]


def one_of(count: int, most: int, turn: int) -> tuple[list[int], int]:
    """As many places as `spread` or `pair_of` gives, of which one is the turn of this call, and where it is among
    them: after `count` turns all have had theirs."""
    if count <= most:
        return list(range(count)), turn % count
    return [(turn + n) % count for n in range(most)], 0


def pair_of(count: int, call: int) -> list[int]:
    """The first or the last, and one other."""
    if count <= 2:
        return list(range(count))
    return [0 if call % 2 else count - 1, 1 + (call // 2) % (count - 2)]
