"""Where every number of the elimination of a Schur complement comes from and goes to; the parts are named in
`schur.plan`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mslsq.linear.operator_plan import OperatorPlan

MOST_UNROLLED_PRODUCTS = 4096
"""Up to that many multiplications of vectors of eight in a product of small blocks kernels with the sizes built in are
compiled."""


@dataclass(frozen=True, eq=False)
class Pivots(OperatorPlan):
    """The eliminated blocks of one size k."""

    size: int
    source: Int[Tensor, "pivots"]
    """Where the values hold the diagonal block, k × k by rows."""
    column: Int[Tensor, "pivots"]
    """The first unknown."""
    triangle: Int[Tensor, "pivots"]
    """Where L is, k × k by rows."""
    right: Int[Tensor, "pivots"]
    """Where the eliminated unknowns, one block after the other, hold L⁻¹c."""
    pieces: Int[Tensor, "pieces+1"]
    """Where the blocks of each piece begin: kernels take some eliminated blocks and all that belongs to them at a
    time."""


@dataclass(frozen=True, eq=False)
class Edges(OperatorPlan):
    """The blocks of W between kept blocks of size a and eliminated ones of size k."""

    kept_size: int
    size: int
    by_row: int
    by_column: int
    """Entry (k, a) of Wᵀ is at source + k by_row + a by_column."""
    group: int
    """Which of the groups of pivots the eliminated blocks belong to."""
    pivot: Int[Tensor, "edges"]
    """Which of that group."""
    source: Int[Tensor, "edges"]
    """Where the values hold the block."""
    triangle: Int[Tensor, "edges"]
    right: Int[Tensor, "edges"]
    column: Int[Tensor, "edges"]
    """The first unknown of the kept block in the reduced system."""
    target: Int[Tensor, "edges"]
    """Where Yᵀ is among those of its piece, k × a by rows, in the lower 32 bits (above: the distance of its rows; see
    `factor_places`). A register may be stored at each row; beside it, where blocks are alike, stands the next Yᵀ."""
    pieces: Int[Tensor, "pieces+1"]

    def places(self, begin: Int[Tensor, "pieces"]) -> Int[Tensor, "edges size kept"]:
        """Where the numbers of Yᵀ are among all Y, given where those of each piece begin."""
        first = begin.repeat_interleave(self.pieces.diff(), output_size=len(self.source))
        distance = (self.target >> 32)[:, None, None]
        return factor_places(first + (self.target & 0xFFFFFFFF), self.size, self.kept_size, distance)


@dataclass(frozen=True, eq=False)
class Pairs(OperatorPlan):
    """The products Y_i Y_jᵀ, a × b through k, sorted by piece, and by the block of the reduced matrix that they are
    subtracted from."""

    height: int
    size: int
    width: int
    left_stride: int
    right_stride: int
    factors: Int[Tensor, "pairs"]
    """Where both factors are among the Y of their piece, the left one in the lower 32 bits (above: the distances of
    their rows). Of 10 numbers that are read for a product, these are one."""
    start: Int[Tensor, "sums+1"]
    """Where the pairs of each sum begin..."""
    block: Int[Tensor, "sums"]
    """... and which block it is subtracted from."""
    target: Int[Tensor, "blocks"]
    """Where the reduced matrix holds the blocks..."""
    stride: Int[Tensor, "blocks"]
    """... and at what distance their rows."""
    pieces: Int[Tensor, "pieces+1"]
    """Where the sums of each piece begin."""

    def products(self, begin: Int[Tensor, "pieces"]) -> Iterator["Products"]:
        """One by one, given where the Y of each piece begin."""
        first = begin.repeat_interleave(self.start[self.pieces].diff(), output_size=len(self.factors))
        left, right = first + (self.factors & 0xFFFFFFFF), first + (self.factors >> 32)
        block = self.block.repeat_interleave(self.start.diff(), output_size=len(self.factors))
        shapes = (self.height, self.width), (self.left_stride, self.right_stride)
        yield Products(self.size, *shapes, (left, right), self.target[block], self.stride[block])


@dataclass(frozen=True, eq=False)
class Alike(OperatorPlan):
    """Sets of eliminated blocks that couple with the same kept blocks. Those of a set in one piece are a cluster: their
    Yᵀ lie beside each other, one matrix whose product with itself is added to the sums of the set."""

    size: int
    """k, of the eliminated blocks."""
    width: int
    """How many columns Yᵀ has, for all of the kept blocks together (some may be left free)..."""
    stride: int
    """... and the distance of its rows."""
    slots: int
    """How many sums there are at the same time."""
    start: Int[Tensor, "clusters"]
    """Where the Yᵀ of a cluster begin among those of their piece..."""
    count: Int[Tensor, "clusters"]
    """... how many eliminated blocks it has..."""
    set: Int[Tensor, "clusters"]
    """... which set it belongs to..."""
    last: Int[Tensor, "clusters"]
    """... and is it the last one of that set?"""
    slot: Int[Tensor, "sets"]
    """Which of the sums a set uses."""
    first: Int[Tensor, "sets+1"]
    """Where the blocks of the reduced matrix begin that a set is subtracted from. Of each:"""
    row: Int[Tensor, "blocks"]
    """where it is in the sums,"""
    column: Int[Tensor, "blocks"]
    height: Int[Tensor, "blocks"]
    """its shape,"""
    breadth: Int[Tensor, "blocks"]
    target: Int[Tensor, "blocks"]
    """where the reduced matrix holds it,"""
    distance: Int[Tensor, "blocks"]
    """and at what distance its rows."""
    pieces: Int[Tensor, "pieces+1"]
    """Where the clusters of each piece begin."""

    def products(self, begin: Int[Tensor, "pieces"]) -> Iterator["Products"]:
        """One by one, given where the Y of each piece begin."""
        start = begin.repeat_interleave(self.pieces.diff(), output_size=len(self.set)) + self.start
        within = torch.arange(int(self.count.sum()), device=begin.device)
        within = within - (self.count.cumsum(0) - self.count).repeat_interleave(self.count)
        of_set = self.set.repeat_interleave(self.count)
        point = start.repeat_interleave(self.count) + within * self.size * self.stride
        many = self.first.diff()[of_set]
        block = torch.arange(int(many.sum()), device=begin.device)
        block = block - (many.cumsum(0) - many - self.first[of_set]).repeat_interleave(many)
        point = point.repeat_interleave(many)
        shapes = torch.stack((self.height, self.breadth), 1).unique(dim=0)
        for height, width in shapes.tolist():
            here = (self.height[block] == height) & (self.breadth[block] == width)
            own, at = block[here], point[here]
            factors = at + self.row[own], at + self.column[own]
            strides = self.stride, self.stride
            yield Products(self.size, (height, width), strides, factors, self.target[own], self.distance[own])


class Products(NamedTuple):
    """Products of two of the Y that have the same shapes, each by itself."""

    depth: int
    widths: tuple[int, int]
    """Of the left factor and the right one..."""
    strides: tuple[int, int]
    """... the distances of their rows..."""
    factors: tuple[Int[Tensor, "products"], Int[Tensor, "products"]]
    """... and where they are among all Y."""
    target: Int[Tensor, "products"]
    """Where the reduced matrix holds the block that a product is subtracted from..."""
    distance: Int[Tensor, "products"]
    """... and at what distance its rows."""


@dataclass(frozen=True, eq=False)
class Kept(OperatorPlan):
    """The blocks of U that are stored, of one size a × b."""

    height: int
    width: int
    is_diagonal: int
    source: Int[Tensor, "blocks"]
    """Where the values hold the block."""
    target: Int[Tensor, "blocks"]
    """Where the reduced matrix holds it..."""
    stride: Int[Tensor, "blocks"]
    """... and at what distance its rows."""
    column: Int[Tensor, "blocks"]
    """The first unknown of its rows."""


@dataclass(frozen=True, eq=False)
class SchurTables(OperatorPlan):
    """What both halves of the elimination read."""

    num_unknowns: int
    num_reduced: int
    """Unknowns that are left."""
    matrix_size: int
    """Numbers of the reduced matrix."""
    num_triangles: int
    """Numbers of all L."""
    num_factors: int
    """Numbers of all Y, padding included."""
    room: int
    """The most numbers of Y that a piece has."""
    num_pieces: int
    kept_unknowns: Int[Tensor, "reduced"]
    """The unknowns of the reduced system, in order."""
    begin: Int[Tensor, "pieces"]
    """Where the Y of each piece begin."""
    pivots: tuple[Pivots, ...]
    edges: tuple[Edges, ...]
    pairs: tuple[Pairs, ...]
    alike: tuple[Alike, ...]
    kept: tuple[Kept, ...]

    @property
    def num_eliminated(self) -> int:
        """Unknowns that are eliminated."""
        return self.num_unknowns - self.num_reduced

    @property
    def factor_size(self) -> int:
        """Numbers of L and Y together."""
        return self.num_triangles + self.num_factors

    @cached_property
    def are_unrollable(self) -> bool:
        """Are all blocks small enough for kernels with the sizes built in?"""
        sizes = [(pairs.height, pairs.size, pairs.width) for pairs in self.pairs]
        sizes += [(edges.kept_size, edges.size, 1) for edges in self.edges]
        return all(are_small(*size) for size in sizes)


def factor_places(
    first: Int[Tensor, "blocks"], depth: int, width: int, distance: int | Tensor
) -> Int[Tensor, "blocks depth width"]:
    """Where the numbers of Yᵀ are that begin at `first`: rows `distance` apart, and where that is less than they are
    wide, the last number of each behind all of them."""
    row, column = (torch.arange(count, device=first.device) for count in (depth, width))
    within = row[:, None] * distance + column
    behind = depth * distance + row[:, None]
    loose = (column == width - 1) & (distance < width)
    return first[:, None, None] + torch.where(loose, behind, within)


def are_small(height: int, depth: int, width: int) -> bool:
    """May products of blocks of these sizes be done by kernels with the sizes built in?"""
    return height * depth * -(-width // 8) <= MOST_UNROLLED_PRODUCTS
