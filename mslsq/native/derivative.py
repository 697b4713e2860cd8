"""Exact Jacobians of scalar programs by vertex elimination, in the order of least Markowitz cost.

Every operation is a vertex, every derivative of it in an operand an edge. To eliminate a vertex is to join each edge
into it with each edge out of it, by the chain rule; when none is left between inputs and outputs, the edges are the
Jacobian (Griewank, Walther, "Evaluating Derivatives", 2nd edition, chapters 9 and 10). Forward mode eliminates in one
order, reverse mode in the other; the vertex with the fewest joins first takes 1,986 operations for an SE(3) between
factor, where those take 2,902 and 2,889.
"""

import heapq
from collections.abc import Mapping, Sequence

from mslsq.native.operations import OPERATIONS
from mslsq.native.scalars import Node, NotScalarError, Program, Scalar

Edges = dict[int, dict[int, Scalar]]
"""By vertex, its neighbours on one side and the derivative along the edge."""

Columns = dict[int, dict[int, Scalar]]
"""By direction, the derivative of each entry of a table that moves in it."""

FEW_MOVING = 2
"""Entries that move in one direction up to which they are compared with the place one by one; more become a table."""

MOST_LOOKED_UP = 256
"""Directions in which what is looked up may move."""

LARGEST_FAN = 20_000
"""Joins in one elimination at which a program is given up: it would be too large by far."""


def jacobian(
    program: Program, outputs: Sequence[Scalar], directions: Mapping[int, Mapping[int, Scalar]], columns: int
) -> list[list[Scalar | None]]:
    """The derivatives of outputs in `columns` directions, None where one is zero by structure.

    Args:
        directions: by the number of an input node, its derivative in each direction that moves it (an identity where
            the inputs themselves are the variables).

    Raises:
        NotScalarError: an operation has no derivative here, or there would be too many.
    """
    graph = _Graph(program, outputs, directions)
    graph.eliminate_all()
    zeros: list[Scalar | None] = [None] * columns
    rows = []
    for row in range(len(outputs)):
        edges = graph.into.get(_output(row), {})
        found = list(zeros)
        for vertex, slope in edges.items():
            found[-1 - vertex] = slope
        rows.append(found)
    return rows


def _output(row: int) -> int:
    """The vertex of an output: apart from nodes, since one node may be an output twice, or an input as well."""
    return row + (1 << 40)


class _Graph:
    """Directions (−1, −2, …), nodes between, and outputs, with the derivatives along the edges."""

    def __init__(
        self,
        program: Program,
        outputs: Sequence[Scalar],
        directions: Mapping[int, Mapping[int, Scalar]],
        tables: dict[int, Columns] | None = None,
    ):
        self.program, self._directions = program, directions
        self._tables: dict[int, Columns] = {} if tables is None else tables
        self.into: Edges = {}
        self.out_of: Edges = {}
        active: set[int] = set()
        for number in program.needed(output.number for output in outputs):
            if number in directions:
                for column, slope in directions[number].items():
                    self._join(-1 - column, number, slope)
                active.add(number)
            elif self._differentiated(number, active):
                active.add(number)
        one = program.constant(1, "real")
        for row, output in enumerate(outputs):
            if output.number in active:
                self._join(output.number, _output(row), one)
        self._between = active

    def _differentiated(self, number: int, active: set[int]) -> bool:
        """Add the edges into a node; does it depend on what is differentiated?"""
        node = self.program.nodes[number]
        if node.kind != "real" or node.operation == "table":
            return False
        if node.operation in ("lookup", "pick"):
            return self._looked_up(number, node)
        if not any(operand in active for operand in node.operands):
            return False
        slopes = OPERATIONS[node.operation].slopes
        if slopes is None:
            return False
        operands = [Scalar(self.program, operand) for operand in node.operands]
        found = False
        for operand, slope in zip(node.operands, slopes(Scalar(self.program, number), *operands), strict=True):
            if operand in active and slope is not None:
                self._join(operand, number, slope)
                found = True
        return found

    def _looked_up(self, number: int, node: Node) -> bool:
        """Add the edges from all directions to an entry at a computed place."""
        place = Scalar(self.program, node.operands[0])
        of_input = node.operation == "lookup"
        columns = self._columns_of_input(node.detail[0]) if of_input else self._columns(node.operands[1])
        if len(columns) > MOST_LOOKED_UP:
            raise NotScalarError(f"an index that depends on values, into {len(columns):,} numbers to differentiate in")
        for column, slopes in columns.items():
            if of_input or len(slopes) <= FEW_MOVING:
                for entry, slope in slopes.items():
                    self._join(-1 - column, number, place.is_equal(entry).choose(slope, 0))
            else:
                zero, size = self.program.constant(0, "real"), len(self.program.entries_of(node.operands[1]))
                table = self.program.table([slopes.get(entry, zero) for entry in range(size)])
                self._join(-1 - column, number, self.program.pick(table, place))
        return bool(columns)

    def _columns_of_input(self, tensor: int) -> Columns:
        """How the entries of an input move."""
        columns: Columns = {}
        for number, of_input in self._directions.items():
            of, entry = self.program.nodes[number].detail
            if of == tensor:
                for column, slope in of_input.items():
                    columns.setdefault(column, {})[entry] = slope
        return columns

    def _columns(self, table: int) -> Columns:
        """How the entries of a table move; of one that many numbers are looked up in once."""
        if table not in self._tables:
            entries = self.program.entries_of(table)
            graph = _Graph(self.program, entries, self._directions, self._tables)
            graph.eliminate_all()
            columns: Columns = {}
            for entry in range(len(entries)):
                for vertex, slope in graph.into.get(_output(entry), {}).items():
                    columns.setdefault(-1 - vertex, {})[entry] = slope
            self._tables[table] = columns
        return self._tables[table]

    def _join(self, source: int, target: int, slope: Scalar) -> None:
        """Add to the derivative along an edge."""
        edges = self.into.setdefault(target, {})
        if source in edges:
            slope = edges[source] + slope
        edges[source] = slope
        self.out_of.setdefault(source, {})[target] = slope

    def eliminate_all(self) -> None:
        """Join all paths; of equal costs, the vertex closest to the outputs goes first."""
        queue = [(self._cost(vertex), -vertex, vertex) for vertex in self._between]
        heapq.heapify(queue)
        left = set(self._between)
        while queue:
            cost, _, vertex = heapq.heappop(queue)
            if vertex not in left:
                continue
            now = self._cost(vertex)
            if now > cost:  # it has become dearer since: later
                heapq.heappush(queue, (now, -vertex, vertex))
                continue
            if now > LARGEST_FAN:
                raise NotScalarError("its derivative takes too many operations")
            left.discard(vertex)
            for neighbour in self._eliminate(vertex):
                if neighbour in left:
                    heapq.heappush(queue, (self._cost(neighbour), -neighbour, neighbour))

    def _cost(self, vertex: int) -> int:
        return len(self.into.get(vertex, ())) * len(self.out_of.get(vertex, ()))

    def _eliminate(self, vertex: int) -> list[int]:
        sources, targets = self.into.pop(vertex, {}), self.out_of.pop(vertex, {})
        for source in sources:
            del self.out_of[source][vertex]
        for target in targets:
            del self.into[target][vertex]
        for target, outer in targets.items():
            for source, inner in sources.items():
                self._join(source, target, _product(outer, inner))
        return [*sources, *targets]


def _product(a: Scalar, b: Scalar) -> Scalar:
    """a · b, where a choice of 0 is one of a branch that is not taken: its derivative may be infinite, and 0 · ∞ must
    not be formed. select(c, x, 0) · y is select(c, x · y, 0)."""
    nodes = a.program.nodes
    for first, second in ((a, b), (b, a)):
        if nodes[first.number].operation == "select":
            condition, yes, no = (Scalar(a.program, number) for number in nodes[first.number].operands)
            if no.value == 0:
                return condition.choose(_product(yes, second), no)
            if yes.value == 0:
                return condition.choose(yes, _product(no, second))
    return a * b
