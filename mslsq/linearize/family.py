"""What is known of a term of a family holds for its others: problems that grow. What that depends on."""

from collections.abc import Hashable

from torch import Tensor

from mslsq.linearize.baked import global_key
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.problem.system import Inputs


def family_key(block: BlockTerm, values: Values, inputs: Inputs) -> Hashable:
    """What the way to differentiate a term depends on, and its rightness: one block, and whether there are several.

    None where nothing is known of other terms, or where what the residual reads is not known to the end.
    """
    term, batched = block.term, block.batched
    if term.family is None or term.eager:
        return None
    spaces = tuple(block.system.unknowns[slot.unknown].space for slot in term.slots)
    shared = tuple(slot.is_shared for slot in term.slots)
    # No block reads an index, which has as many numbers as there are blocks. But programs are given inputs by place.
    tensors = tuple(
        name if name in term.family.indices else (name, *_layout(x, (name in batched) + (name in term.per_block)))
        for name, x in inputs.items()
    )
    counts = (min(block.batch, 2), min(term.num_blocks, 2), term.per_block, batched, block.rows, block.pairs)
    start = values[0].dtype, values[0].device
    return (term.kind, term.family.key(), spaces, shared, start, tensors, counts, type(term.loss), global_key())


def _layout(tensor: Tensor, outer: int) -> tuple[Hashable, ...]:
    """What a block sees of an input besides its numbers, behind its first axes."""
    return tuple(tensor.shape[outer:]), tensor.dtype, tensor.device, tensor.is_contiguous()
