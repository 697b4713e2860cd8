"""The tensors of a cost function: its data, what blocks share of them, and what `state_dict` calls them."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mslsq import pytree

WEIGHT = "weight.value"
"""What `state_dict` calls the tensor of a cost's weight."""


@dataclass(frozen=True)
class Shared:
    """Data that is the same for all blocks of a cost function: it has no leading axis of blocks.

    >>> Sampled(warp, image=Shared(image), pixel=pixels)          # one image, many pixels
    """

    value: Any


@dataclass(frozen=True)
class DataLeaf:
    """One tensor of a cost's data: where it lives in the module, and whether it has one entry per block."""

    name: str
    per_block: bool


@dataclass(frozen=True)
class DataArgument:
    """One keyword of `residual`: the pytree structure of its tensors, or a static Python value or module."""

    leaves: tuple[DataLeaf, ...]
    structure: pytree.Structure | None
    static: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        tree = None if self.structure is None else (pytree.tree_of(self.structure),)
        return _restored, (self.leaves, tree, self.static)


def _restored(leaves: tuple[DataLeaf, ...], tree: tuple[Any] | None, static: Any) -> DataArgument:
    return DataArgument(leaves, None if tree is None else pytree.flatten(tree[0])[1], static)


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by their names in `state_dict`; one tensor in two places has two names.

    `nn.Module.named_parameters` and `named_buffers` come to the same in 20 µs.
    """
    found: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
    pending = [("", module)]
    while pending:
        prefix, one = pending.pop()
        for own, table in zip(found, (one._parameters, one._buffers), strict=True):
            own.update((prefix + name, tensor) for name, tensor in table.items() if tensor is not None)
        pending += [(f"{prefix}{name}.", part) for name, part in reversed(one._modules.items()) if part is not None]
    return {**found[0], **found[1]}
