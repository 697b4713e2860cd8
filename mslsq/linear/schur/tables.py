"""Where every number of the elimination of a Schur complement comes from and goes to; the parts are named in
`schur.plan`."""

from dataclasses import dataclass
from functools import cached_property

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
    stride: int
    """The distance of the rows of Yᵀ."""
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
    """Where Yᵀ is, k × a by rows that begin where a register of the kernels may be loaded at once."""
    pieces: Int[Tensor, "pieces+1"]


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

    def left_and_right(self, begin: Int[Tensor, "pieces"]) -> tuple[Int[Tensor, "pairs"], Int[Tensor, "pairs"]]:
        """Where the factors are among all Y, given where those of each piece begin."""
        first = begin.repeat_interleave(self.start[self.pieces].diff(), output_size=len(self.factors))
        return first + (self.factors & 0xFFFFFFFF), first + (self.factors >> 32)


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
        return all(a * k * -(-b // 8) <= MOST_UNROLLED_PRODUCTS for a, k, b in sizes)
