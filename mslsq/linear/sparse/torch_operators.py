"""Factoring block-sparse matrices and solving with them as operators of PyTorch.

The operators take the plan of the elimination as tensors, so a step that calls them can be recorded as a plain graph
and replayed; they have no derivative of their own (the adjoint brings it). They run on the CPU, in the dtype of the
values.
"""

import torch
from torch import Tensor

from mslsq.kernels import in_parts
from mslsq.levels import kept_tensors
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.sparse import multifrontal
from mslsq.linear.torch_operators import registered

TRIANGULAR = 4
"""How many arrays the triangular solves read."""

WORTH_THREADS = 100_000
"""Numbers in the factors of a batch (some 0.1 ms of a solve) from which on its entries are shared out to threads."""


@registered("block_cholesky_factor")
def factor(values: Tensor, shift: Tensor, arrays: list[Tensor], numbers: list[int]) -> tuple[Tensor, Tensor]:
    """Factors of A_b + diag(shift_b), an empty `shift` being none, and which entries of the batch could be factored."""
    size, stack, _, count = numbers
    batch = len(values)
    moved = shift.contiguous() if shift.numel() else values.new_empty(batch, 0)
    factors = values.new_empty(batch, size)
    solved = torch.zeros(batch, dtype=torch.bool)
    values = values.contiguous()
    in_parts(
        lambda a, b: multifrontal.factor(values, moved, factors, solved, a, b, stack, arrays[:count]),
        batch,
        _threads(size * batch),
    )
    return factors, solved


@registered("block_cholesky_solve")
def solve(factor: Tensor, usable: Tensor, rhs: Tensor, arrays: list[Tensor], numbers: list[int]) -> Tensor:
    """A⁻¹ rhs for (batch, columns, k); NaN where not usable."""
    _, _, tallest, count = numbers
    plan = arrays[count : count + TRIANGULAR]
    solved = torch.empty_like(rhs, memory_format=torch.contiguous_format)
    factor, usable, rhs = factor.contiguous(), usable.contiguous(), rhs.contiguous()
    in_parts(
        lambda a, b: multifrontal.solve(factor, usable, rhs, solved, a, b, tallest, plan),
        len(rhs),
        _threads(factor.numel()),
    )
    return solved


def _threads(numbers: int) -> int:
    """As many as PyTorch takes itself, where so many numbers of factors are worth starting them."""
    return torch.get_num_threads() if numbers > WORTH_THREADS else 1


@factor.register_fake
def _(values: Tensor, shift: Tensor, arrays: list[Tensor], numbers: list[int]) -> tuple[Tensor, Tensor]:
    return values.new_empty(len(values), numbers[0]), values.new_empty(len(values), dtype=torch.bool)


@solve.register_fake
def _(factor: Tensor, usable: Tensor, rhs: Tensor, arrays: list[Tensor], numbers: list[int]) -> Tensor:
    return torch.empty_like(rhs, memory_format=torch.contiguous_format)


def packed(structure: BlockStructure) -> tuple[list[Tensor], list[int]]:
    """The plan of an elimination as tensors (sharing memory) and integers; made once per structure."""

    def make() -> tuple[list[Tensor], list[int]]:
        arrays = (*structure._numeric, *structure._triangular)
        numbers = [structure.factor_size, structure._stack, structure._tallest, len(structure._numeric)]
        return kept_tensors(arrays, torch.device("cpu")), numbers

    return structure.memo.once("multifrontal", make)
