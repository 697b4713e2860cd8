"""The tensors of a statement: each knows what it is, what messages call it, and which of its axes is the batch."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from mslsq.front.batching import PLAIN, plain_tensor, shape_of_one
from mslsq.tracing.reading.changes import Changes
from mslsq.tracing.reading.inputs import Collected


@dataclass(frozen=True, eq=False)
class Leaf:
    """A tensor that a solve depends on."""

    name: str
    """What messages call it, and its key among the inputs of a term."""
    tensor: Tensor
    axis: int | None = None
    """Its batch axis; None where all problems share it."""
    has_dtype_of_start: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if type(self.tensor) not in PLAIN:
            object.__setattr__(self, "tensor", plain_tensor(self.tensor))

    @property
    def batch_first(self) -> Tensor:
        return self.tensor if self.axis is None else self.tensor.movedim(self.axis, 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """As one problem sees it."""
        return shape_of_one(self.tensor.shape, self.axis)

    @property
    def is_per_block(self) -> bool:
        """Has it one entry per block of its cost?"""
        return False

    def shapes(self, num_blocks: int) -> set[tuple[int, ...]]:
        """The shapes that a replacement may have."""
        return {self.shape}

    def replaced(self, tensor: Tensor, axis: int | None) -> "Leaf":
        """Another tensor in its place."""
        return replace(self, tensor=tensor, axis=axis)


class Argument(Leaf):
    """A leaf of the arguments of a residual."""


class Held(Leaf):
    """What a callable or a module holds: a closure cell, a parameter, an attribute."""


class Index(Leaf):
    """The blocks that a cost refers to: structure, which no data replace."""


@dataclass(frozen=True, eq=False)
class Start(Leaf):
    """Where an unknown starts: storage (count, storage), or (storage,) of a single block."""

    is_single: bool = False

    def of_all(self, size: int | None) -> Tensor:
        """(batch, count, storage): as mapped, or the same for every problem."""
        x = self.tensor.expand(size or 1, *self.tensor.shape) if self.axis is None else self.batch_first
        return x[:, None] if self.is_single else x


@dataclass(frozen=True, eq=False)
class Data(Leaf):
    """The data of a cost."""

    per_block: bool = False
    has_dtype_of_start: ClassVar[bool] = True

    @property
    def is_per_block(self) -> bool:
        return self.per_block


@dataclass(frozen=True, eq=False)
class SharedOrPerBlock(Leaf):
    """One for all blocks or one for each, which its rank tells."""

    block_rank: int = 0
    """The rank of one for all blocks."""

    @property
    def is_per_block(self) -> bool:
        return len(self.shape) > self.block_rank

    def shapes(self, num_blocks: int) -> set[tuple[int, ...]]:
        block = self.shape[len(self.shape) - self.block_rank :]
        return {block, (num_blocks, *block)}


class Weight(SharedOrPerBlock):
    """The weight of a cost."""

    has_dtype_of_start: ClassVar[bool] = True


@dataclass(frozen=True, eq=False)
class LossParameter(SharedOrPerBlock):
    """A parameter of a robust loss."""

    own: str = ""
    """Its name in the loss."""


def loss_parameter(own: str, tensor: Tensor, axis: int | None = None, block_rank: int = 0) -> LossParameter:
    """The parameter that a loss calls `own`."""
    return LossParameter(f"loss.{own}", tensor, axis, block_rank, own=own)


@dataclass(frozen=True, eq=False)
class Holder:
    """What holds tensors (a callable, the module of a cost, arguments that are none), and those tensors as leaves."""

    part: str
    """Which part of the statement it is."""
    collected: Collected
    leaves: Mapping[str, Leaf]
    """By their names in `collected`, and more that it need not exchange."""

    def applied(self, inputs: Mapping[str, Tensor], use: Callable[[Any], Any]) -> Any:
        """`use` of the same around other tensors, which are found among the inputs of a term."""
        if not self.leaves:
            return use(self.collected.root)
        tensors = {own: inputs[leaf.name] for own, leaf in self.leaves.items() if own in self.collected.tensors}
        return self.collected.applied(tensors, use)

    def keyed(self, changes: Changes) -> tuple[Hashable, str]:
        """What a plan depends on besides the tensors, and why no graph may be kept (empty where one may)."""
        return changes.keyed(self.part, self.collected)


def holder(part: str, prefix: str, collected: Collected) -> Holder:
    """What was collected from a part, its tensors named with a prefix that tells the parts apart."""
    leaves = {own: Held(f"{prefix}{own}", tensor) for own, tensor in collected.tensors.items()}
    return Holder(part, collected, leaves)


def loss_inputs(leaves: Sequence[Leaf]) -> dict[str, str]:
    """The names of a loss's parameters, and of the inputs that hold them."""
    return {leaf.own: leaf.name for leaf in leaves if isinstance(leaf, LossParameter)}
