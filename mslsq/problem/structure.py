"""The block structure of a system: the column of every tangent entry of every block.

Columns are numbered `component * size + place`. What is held fixed, a block or some of its entries, has no column; it
gets the number `num_columns`, a bin that assembly throws away. Where the blocks fall into several connected components
(nothing couples them), the normal equations are a batch of small dense systems, padded to one size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mslsq.problem.system import System

SMALL = 48
"""Up to that many columns one dense system is faster than looking for components (a 48 x 48 Cholesky takes 20 us)."""


@dataclass(frozen=True, eq=False)
class Structure:
    """Columns of a system: `num_components` dense systems of `size` columns each."""

    num_components: int
    size: int
    columns: tuple[Tensor, ...]
    """Per unknown (count, tangent): the column of each entry."""
    natural: bool
    """Are the columns simply the tangent entries of all unknowns in order, none fixed, none padded?"""
    padding: Tensor | None
    """(num_columns,) bool, the columns that stand for nothing; None where there are none."""

    @property
    def num_columns(self) -> int:
        return self.num_components * self.size

    def to(self, device: torch.device | str) -> "Structure":
        """The same on another device."""
        padding = None if self.padding is None else self.padding.to(device)
        return replace(self, columns=tuple(x.to(device) for x in self.columns), padding=padding)

    def to_columns(self, blocks: Sequence[Tensor], fill: float = 0.0) -> Tensor:
        """(batch, columns) of the tangent entries of every unknown, (batch, count, tangent) each; `fill` in the columns
        that stand for nothing."""
        pieces = [x.flatten(1) for x in blocks]
        flat = torch.cat(pieces, 1) if len(pieces) > 1 else pieces[0]
        if self.natural:
            return flat
        # What is held fixed goes into the bin behind the last column.
        columns = torch.cat([columns.reshape(-1) for columns in self.columns])
        return flat.new_full((len(flat), self.num_columns + 1), fill).index_copy(1, columns, flat)[:, :-1]

    def to_blocks(self, vector: Tensor, fill: float = 0.0) -> tuple[Tensor, ...]:
        """(batch, count, tangent) of every unknown from (batch, columns); `fill` for what is held fixed."""
        if self.natural:
            sizes = [columns.numel() for columns in self.columns]
            pieces = vector.split(sizes, 1) if len(sizes) > 1 else (vector,)
        else:
            padded = torch.nn.functional.pad(vector, (0, 1), value=fill)
            pieces = tuple(padded[:, columns.reshape(-1)] for columns in self.columns)
        return tuple(
            piece.reshape(len(vector), *columns.shape) for piece, columns in zip(pieces, self.columns, strict=True)
        )


def structure_of(system: System, device: torch.device | None = None, split: bool = True) -> Structure:
    """Number the columns of a system; by connected components, where that saves work and `split` allows it."""
    free = [unknown.free_entries for unknown in system.unknowns]
    total = sum(int(mask.sum()) for mask in free)
    if total <= SMALL or not split:
        return _single(free, device)
    labels = components_of(system)
    sizes = np.zeros(max((int(label.max(initial=-1)) for label in labels), default=-1) + 1, np.int64)
    for label, mask in zip(labels, free, strict=True):
        moves = mask.any(1)
        np.add.at(sizes, label[moves], mask.sum(1)[moves])
    largest = int(sizes.max())
    if len(sizes) < 2 or len(sizes) * largest**2 >= total**2:
        return _single(free, device)
    return numbered_by_component(free, labels, sizes, device)


def _single(free: list[np.ndarray], device: torch.device | None) -> Structure:
    """One system, entries in order."""
    total = sum(int(mask.sum()) for mask in free)
    columns, start = [], 0
    for mask in free:
        stop = start + int(mask.sum())
        column = np.full(mask.shape, total)
        column[mask] = np.arange(start, stop)
        start = stop
        columns.append(torch.as_tensor(column, device=device))
    return Structure(1, total, tuple(columns), all(mask.all() for mask in free), None)


def numbered_by_component(
    free: list[np.ndarray],
    labels: list[np.ndarray],
    sizes: np.ndarray,
    device: torch.device | None,
) -> Structure:
    """One dense system per component, each padded to the largest."""
    size, total = int(sizes.max()), len(sizes) * int(sizes.max())
    used = np.zeros(len(sizes), np.int64)
    columns = []
    for mask, label in zip(free, labels, strict=True):
        # entries (row of the mask, place in it) that move, those of a component together
        row, place = np.nonzero(mask)
        order = np.argsort(label[row], kind="stable")
        row, place = row[order], place[order]
        component = label[row]
        rank = np.arange(len(row)) - np.searchsorted(component, np.arange(len(sizes)))[component]
        column = np.full(mask.shape, total)
        column[row, place] = component * size + used[component] + rank
        np.add.at(used, component, 1)
        columns.append(torch.as_tensor(column, device=device))
    padding = np.arange(size)[None, :] >= used[:, None]
    return Structure(
        len(sizes),
        size,
        tuple(columns),
        False,
        torch.as_tensor(padding.reshape(-1), device=device) if padding.any() else None,
    )


def components_of(system: System) -> list[np.ndarray]:
    """For each unknown the component of each of its blocks (-1 where all of it is fixed)."""
    free = [np.asarray(unknown.free_entries.any(1)) for unknown in system.unknowns]
    starts = np.cumsum([0, *(len(mask) for mask in free)])
    is_free = np.concatenate(free)
    rows, cols = [], []
    for term in system.terms:
        nodes = []
        for slot in term.slots:
            nodes.append(np.broadcast_to(np.asarray(slot.blocks) + starts[slot.unknown], (term.num_blocks,)))
        # Chain the free nodes of each block: links between neighbours in the chain are enough to connect them all.
        chain = np.full(term.num_blocks, -1)
        for node in nodes:
            usable = is_free[node]
            link = usable & (chain >= 0)
            rows.append(chain[link])
            cols.append(node[link])
            chain = np.where(usable, node, chain)
    row, col = np.concatenate(rows or [np.zeros(0, int)]), np.concatenate(cols or [np.zeros(0, int)])
    least = least_connected(len(is_free), row, col)
    number = np.cumsum(is_free & (least == np.arange(len(least)))) - 1
    label = np.where(is_free, number[least], -1)
    return [label[start:stop] for start, stop in pairwise(starts)]


def least_connected(count: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The least node that each of `count` nodes is connected to by the links (one, other).

    All links at once: of two trees that a link joins, the root of the greater is hung under the lesser one, then every
    node under its root (Shiloach and Vishkin, "An O(log n) parallel connectivity algorithm", 1982). A round leaves at
    most half of the trees of a component: 0.2 ms for 4949 links. SciPy has the same, and takes 130 ms to import.
    """
    root = np.arange(count)
    while True:
        a, b = root[one], root[other]
        joins = a != b
        if not joins.any():
            return root
        one, other, a, b = one[joins], other[joins], a[joins], b[joins]
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        above = root[root]
        while (above != root).any():
            root, above = above, above[above]
