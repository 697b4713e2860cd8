"""Kernels that would spill in parts: each computes some of the outputs, and again what the parts have in common.

A thread has 255 registers of 32 bits. What is alive at once beyond them goes to memory and comes back: a plain SE(3)
between factor with a weight stores and loads 2,296 bytes a lane in float64, where inputs and outputs are 1,080.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from mslsq.native.cuda.nvrtc import Resources
from mslsq.native.operations import OPERATIONS
from mslsq.native.scalars import Program

OPERATIONS_PER_BYTE = {torch.float64: 3.5, torch.float32: 7.0}
"""How many operations take a GPU as long as a byte of its memory: half of the 34 and 67 Tflop/s of an H200's data
sheet, which counts a product fused with a sum as two, over 4.8 TB/s. No GPU has been measured."""

Entries = tuple[tuple[int, ...], ...]
"""By output, which of its entries are computed."""


@dataclass(frozen=True)
class Part:
    """Some of the outputs, and what a kernel for them takes."""

    entries: Entries
    operations: int
    moved: int
    """Bytes of a lane that are read and written."""
    resources: Resources

    def bytes(self, dtype: torch.dtype) -> float:
        """What a lane costs, in bytes of memory: moved, spilled, and the operations that take as long."""
        return self.moved + self.resources.spilled + self.operations / OPERATIONS_PER_BYTE[dtype]


UNKNOWN = Resources(0, 0, 0)
"""Before a part has been compiled: then it costs at least what it costs without spilling."""


Compiling = Callable[[Sequence[Entries]], list[Resources]]
"""What kernels for these parts take."""


def whole(program: Program, outputs: Sequence[Sequence[int]], resources: Resources = UNKNOWN) -> Part:
    """All outputs in one kernel."""
    return _part(program, outputs, tuple(tuple(range(len(numbers))) for numbers in outputs), resources)


def divided(part: Part, program: Program, outputs: Sequence[Sequence[int]], compiled: Compiling) -> list[Part]:
    """What spills in halves, by rows or by columns of the Jacobian, as long as these cost less than the whole.

    Args:
        outputs: of a function, the first with an entry for each row, others row by row.
    """

    def cost(parts: Sequence[Part]) -> float:
        return sum(one.bytes(program.dtype) for one in parts)

    halvings = _halvings(part.entries, len(outputs[0]), [len(x) for x in outputs]) if part.resources.spilled else []
    pairs = [[_part(program, outputs, half, UNKNOWN) for half in pair] for pair in halvings]
    pairs = [pair for pair in pairs if cost(pair) < cost([part])]
    if not pairs:
        return [part]
    found = iter(compiled([half.entries for pair in pairs for half in pair]))
    pairs = [[replace(half, resources=next(found)) for half in pair] for pair in pairs]
    best = min(pairs, key=cost)
    if cost(best) >= cost([part]):
        return [part]
    return [piece for half in best for piece in divided(half, program, outputs, compiled)]


def _part(program: Program, outputs: Sequence[Sequence[int]], entries: Entries, resources: Resources) -> Part:
    wanted = [outputs[k][entry] for k, of_output in enumerate(entries) for entry in of_output]
    nodes = [program.nodes[number] for number in program.needed(wanted)]
    read = sum(node.operation in ("input", "lookup") for node in nodes)
    operations = sum(node.operation in OPERATIONS for node in nodes)
    return Part(entries, operations, (read + len(wanted)) * program.dtype.itemsize, resources)


def _halvings(entries: Entries, rows: int, sizes: Sequence[int]) -> list[tuple[Entries, Entries]]:
    """The ways to halve: by rows, and by columns (the first output, which has none, goes with the first of them)."""
    if rows == 0:
        return []
    columns = [size // rows for size in sizes]

    def halves(place: Callable[[int, int], int]) -> tuple[Entries, Entries] | None:
        places = sorted({place(k, entry) for k, of_output in enumerate(entries) for entry in of_output})
        if len(places) < 2:
            return None
        middle = places[len(places) // 2]
        first, second = (
            tuple(
                tuple(entry for entry in of_output if (place(k, entry) >= middle) == is_second)
                for k, of_output in enumerate(entries)
            )
            for is_second in (False, True)
        )
        return first, second

    by_rows = halves(lambda k, entry: entry // columns[k])
    by_columns = halves(lambda k, entry: entry % columns[k] if k else 0) if len(sizes) > 1 else None
    return [pair for pair in (by_rows, by_columns) if pair is not None]
