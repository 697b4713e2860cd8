"""Where the blocks of every term go: columns of the gradient, places in dense or block-sparse normal equations.

Worked out once per structure; a step only multiplies and adds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.iterative.block_rows import BlockRows, TermBlocks, block_rows
from mslsq.linear.normal_products import NormalPlan
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.free_parts import Lanes, lanes_of, runs_by_kind
from mslsq.linearize.normal_plan import normal_plan
from mslsq.linearize.segmented_products import SegmentedPlan, usable
from mslsq.problem.structure import Structure
from mslsq.problem.system import System, Term
from mslsq.ranks import ALONE, Ranks


@dataclass(frozen=True, eq=False)
class Pattern:
    """The block-sparse normal equations of a system, and which block each free block of an unknown is."""

    structure: BlockStructure
    blocks: tuple[np.ndarray, ...]
    """Per unknown (count,): the number of its block, -1 where all of it is held fixed."""

    def kinds(self, system: System) -> dict[str, np.ndarray]:
        """The same by the unknowns' names."""
        return {unknown.name: blocks for unknown, blocks in zip(system.unknowns, self.blocks, strict=True)}


Columns = Int[Tensor, "..."]


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the numbers of one term go, flattened; what belongs to fixed blocks goes into a last bin that is
    dropped."""

    whole: bool
    """Are the columns of the term all the columns of the system, in order (one curve fit)? Then no vector moves."""
    columns: Int[Tensor, "tangent lanes"]
    """The column of every entry of the joint tangent of a block; one lane where all blocks share their variables."""
    vector: Int[Tensor, "entries"]
    """The column of every entry of (tangent, lanes)."""
    matrix_size: int
    """Numbers in one matrix, without the bin."""
    places: Callable[[], Columns | None]
    normal: NormalPlan | None = None
    """Where JᵀJ and Jᵀr of block-sparse normal equations go, block by block; None where all blocks add up to one."""
    segments: SegmentedPlan | None = None
    """The same for the kernels of a GPU, where these are used."""

    def with_segments(self, dtype: torch.dtype) -> "Placement":
        """The same with `segments`, where there can be some for Jacobians of this dtype."""
        found = None if self.normal is None else usable(self.normal, dtype)
        return self if found is None else replace(self, segments=found)

    @cached_property
    def matrix(self) -> Int[Tensor, "entries"] | None:
        """The place of every entry of (tangent, tangent, lanes), or of a layout's Gram matrix, and then of its other
        triangle; None where nothing moves."""
        places = self.places()
        return None if places is None else places.to(self.columns.device).reshape(-1)


def pattern_of(system: System, structure: Structure, ranks: Ranks = ALONE) -> Pattern:
    """The block pairs that terms couple; eliminated when first needed. `structure` has one component."""
    sizes, blocks = _free_blocks(system)
    rows: list[np.ndarray] = []
    cols: list[np.ndarray] = []
    for term in system.terms:
        joint = [_numbers(term, position, blocks) for position in range(len(term.slots))]
        for one in range(len(joint)):
            for other in range(one):
                both = (joint[one] >= 0) & (joint[other] >= 0)
                rows.append(joint[one][both])
                cols.append(joint[other][both])
    row, col = (np.concatenate(part) if part else np.zeros(0, np.int64) for part in (rows, cols))
    if not ranks.is_alone:
        row, col = ranks.union(np.stack((np.maximum(row, col), np.minimum(row, col)), 1)).T
    return Pattern(analyze(sizes, row, col, eliminate=False, device=structure.columns[0].device), tuple(blocks))


def block_rows_of(system: System, structure: Structure, heights: tuple[int, ...]) -> BlockRows:
    """Where the blocks of every term stand, for normal equations that are never formed. `structure` has one component.

    Args:
        heights: rows of a block of each term.
    """
    sizes, runs = _free_runs(system)
    terms = []
    for term, rows in zip(system.terms, heights, strict=True):
        lanes, slots, columns, start = term.num_blocks, [], [], 0
        for slot in term.slots:
            own = structure.columns[slot.unknown].cpu().numpy()
            columns.append(np.broadcast_to(own[slot.blocks].reshape(-1, own.shape[1]).T, (own.shape[1], lanes)))
            for first, width, numbers in runs[slot.unknown]:
                slots.append((start + first, width, np.broadcast_to(numbers[slot.blocks], (lanes,))))
            start += own.shape[1]
        shared = lanes > 1 and all(slot.is_shared for slot in term.slots)
        terms.append(TermBlocks(rows, np.concatenate(columns), tuple(slots), shared))
    return block_rows(sizes, terms, structure.columns[0].device)


def _free_blocks(system: System) -> tuple[np.ndarray, list[np.ndarray]]:
    """The sizes of the free blocks, and per unknown (count,) the number of each of its blocks, -1 where fixed."""
    sizes: list[np.ndarray] = []
    blocks: list[np.ndarray] = []
    start = 0
    for unknown in system.unknowns:
        widths = unknown.free_entries.sum(1)
        free = widths > 0
        blocks.append(np.where(free, start + np.cumsum(free) - 1, -1))
        sizes.append(widths[free])
        start += int(free.sum())
    return np.concatenate(sizes), blocks


def _free_runs(system: System) -> tuple[np.ndarray, list[list[tuple[int, int, np.ndarray]]]]:
    """Consecutive components that move, as blocks of their own: their sizes, and per unknown (where they begin in its
    tangent, how many, (count,) their numbers, -1 in other blocks).

    Only a preconditioner knows blocks where normal equations are not formed: it takes each run for itself.
    """
    sizes: list[np.ndarray] = []
    found: list[list[tuple[int, int, np.ndarray]]] = []
    start = 0
    for unknown in system.unknowns:
        kinds = runs_by_kind(unknown.free_entries)
        per_block = np.zeros(unknown.count, np.int64)
        for blocks, runs in kinds:
            per_block[blocks] = len(runs)
        first = start + np.cumsum(per_block) - per_block
        of_unknown, widths = [], np.zeros(int(per_block.sum()), np.int64)
        for blocks, runs in kinds:
            for k, run in enumerate(runs):
                numbers = np.full(unknown.count, -1)
                numbers[blocks] = first[blocks] + k
                widths[first[blocks] + k - start] = run.width
                of_unknown.append((run.first, run.width, numbers))
        start += len(widths)
        sizes.append(widths)
        found.append(of_unknown)
    return np.concatenate(sizes), found


def placement_of(
    block: BlockTerm, structure: Structure, pattern: Pattern | None, forms_matrix: bool = True
) -> Placement:
    """The placement of one term; of its gradient alone where no normal equations are formed."""
    term, shared = block.term, block.shares_variables
    parts = []
    for slot in term.slots:
        index = [slot.index] if slot.is_shared else slot.index
        parts.append(structure.columns[slot.unknown][index].T)
    lanes = max(part.shape[1] for part in parts)
    columns = torch.cat([part.expand(-1, lanes) for part in parts])
    whole = (
        structure.num_components == 1
        and (block.lanes_are_batch or shared)
        and len(columns) == structure.num_columns
        and bool((columns[:, 0] == torch.arange(len(columns), device=columns.device)).all())
    )
    vector = columns.reshape(-1)
    if not forms_matrix:
        return Placement(whole, columns, vector, 0, lambda: None)
    size = structure.num_components * structure.size**2 if pattern is None else pattern.structure.num_values
    place = partial(Placement, whole, columns, vector, size)
    sparsity = block.way.sparsity
    if sparsity is not None:
        row, column = sparsity.lower
        if pattern is None:
            return place(lambda: _mirrored_places(vector[row], vector[column], structure))
        return place(lambda: _stored_places(row, column, pattern.structure))
    if pattern is None:
        return place(lambda: None if whole else _dense_places(columns[:, None], columns[None, :], structure))
    joint = []
    for position, slot in enumerate(term.slots):
        free = block.system.unknowns[slot.unknown].free_entries[slot.blocks]
        joint.append(lanes_of(_numbers(term, position, pattern.blocks, lanes), free))
    normal = None if block.lanes_are_batch or shared else normal_plan(joint, pattern.structure)
    return place(lambda: _sparse_places(joint, pattern.structure), normal)


def _dense_places(row: Columns, column: Columns, structure: Structure) -> Columns:
    """The places of entries (row, column) of a dense matrix per component."""
    size, n = structure.size, structure.num_columns
    place = row * size + column % max(size, 1)
    return torch.where((row < n) & (column < n), place, n * size)


def _mirrored_places(row: Columns, column: Columns, structure: Structure) -> Columns:
    """The places of the entries of one triangle, and those of the other one; the diagonal is in one of them alone."""
    other = torch.where(row == column, structure.num_columns * structure.size, _dense_places(column, row, structure))
    return torch.cat((_dense_places(row, column, structure), other))


def _stored_places(row: np.ndarray, column: np.ndarray, structure: BlockStructure) -> Columns | None:
    """The places of single entries, each of which is a block; None where they are stored in this order."""
    offsets, _ = structure.offset_of(row, column)
    return None if (offsets == np.arange(structure.num_values)).all() else torch.from_numpy(offsets)


def _sparse_places(joint: list[Lanes], structure: BlockStructure) -> Int[Tensor, "a b lanes"]:
    """Entry (a, b) of a block pair (i, j) goes to the stored lower triangle; that of the mirrored pair is dropped, and
    what is held."""
    dropped = structure.num_values
    rows = []
    for one in joint:
        row = []
        for other in joint:
            i, j = one.numbers, other.numbers
            kept = (i >= 0) & (j >= 0) & (i >= j)
            offset, _ = structure.offset_of(np.where(kept, i, 0), np.where(kept, j, 0))
            a, b = one.places[:, None], other.places[None]
            row.append(np.where(kept & (a >= 0) & (b >= 0), offset + a * other.widths + b, dropped))
        rows.append(np.concatenate(row, 1))
    return torch.from_numpy(np.concatenate(rows, 0))


def _numbers(
    term: Term, position: int, blocks: list[np.ndarray] | tuple[np.ndarray, ...], lanes: int | None = None
) -> np.ndarray:
    """The block numbers that a slot refers to, one per block of the term."""
    slot = term.slots[position]
    return np.broadcast_to(blocks[slot.unknown][slot.blocks], (term.num_blocks if lanes is None else lanes,))
