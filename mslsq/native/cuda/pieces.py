"""A step that would spill as several kernels in a row: one for each call of the step, and one for what follows.

A whole step keeps a problem in the registers of its thread, all of it alive at once: with twelve unknowns in float64
14 to 17 KB are spilled. Here a kernel reads from memory what it needs of the state and of what the calls before have
returned, and leaves there what its own call returns: 4.9 KB to and fro, and 6 KB spilled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mslsq.native.cuda.solves import FIXED, PIECE
from mslsq.native.linearizing_text import reader
from mslsq.native.steps_text import Stepping
from mslsq.native.tables import Layout
from mslsq.native.text import statements

MORE = 2
"""What these kernels are given besides: what calls have returned, and the other place of the states."""


@dataclass(frozen=True)
class Piece:
    """One of the kernels.

    Attributes:
        text: of the kernel.
        moved: numbers that a thread reads and writes.
    """

    text: str
    moved: int


def pieces_of(name: str, step: Stepping, layout: Layout) -> list[Piece]:
    """The kernels of a step, `name_piece0` and so on, in their order."""
    calls = [_piece(name, step, layout, number) for number in range(len(step.calls))]
    return [*calls, _last_piece(name, step, layout)]


def room_of(step: Stepping) -> int:
    """How many numbers all calls return."""
    return sum(call.results.size for call in step.calls)


def moved_bytes(pieces: Sequence[Piece], dtype: torch.dtype) -> int:
    """Of a thread, by all kernels."""
    return sum(piece.moved for piece in pieces) * dtype.itemsize


def _piece(name: str, step: Stepping, layout: Layout, number: int) -> Piece:
    """The arguments of a call from what is known, and the call."""
    call = step.calls[number]
    needed = step.program.needed(x.number for x in call.arguments)
    results, size = call.results.array, call.results.size
    lines = [
        *statements(step.program, needed, reader(step.sources)),
        f"const V {results}_of[] = {{{', '.join(f'v{x.number}' for x in call.arguments)}}};",
        f"V {results}[{size}];",
        f"{call.function}(in, {results}_of, {results});",
        f"UNROLLED for (int k = 0; k < {size}; k++) returned[({_first(step, number)} + k) * far] = {results}[k];",
    ]
    return Piece(_kernel(f"{name}_{PIECE}{number}", step, layout, number, lines), _reads(step, needed) + size)


def _last_piece(name: str, step: Stepping, layout: Layout) -> Piece:
    """The state that follows, and the record; each is stored as soon as it is known: what waits takes registers."""
    number, changing = len(step.calls), dict(step.state)
    needed = step.program.needed([*(x.number for _, x in step.state), *(x.number for x in step.record)])
    stores: dict[int, list[str]] = {}
    for place, x in step.state:
        stores.setdefault(x.number, []).append(f"next[{place} * step] = v{x.number};")
    for k, x in enumerate(step.record):
        stores.setdefault(x.number, []).append(f"record[{k} * given.step[RECORDS]] = v{x.number};")
        if k == 1:
            stores[x.number].append(f"next[{layout.state} * step] = v{x.number};")
    kept = [place for place in range(layout.state) if place not in changing]
    lines = [f"next[{place} * step] = s[{place}];" for place in kept]
    for one, statement in zip(needed, statements(step.program, needed, reader(step.sources)), strict=True):
        lines += [statement, *stores.get(one, ())]
    moved = _reads(step, needed) + 2 * len(kept) + len(step.state) + len(step.record) + 1
    return Piece(_kernel(f"{name}_{PIECE}{number}", step, layout, number, lines), moved)


def _kernel(name: str, step: Stepping, layout: Layout, number: int, lines: Sequence[str]) -> str:
    """Around the lines: where a problem's numbers are. One that has stopped keeps its state, in the other place too."""
    is_last = number == len(step.calls)
    returned = [
        f"const Column<real> {call.results.array} = {{returned + {_first(step, k)} * far, far}};"
        for k, call in enumerate(step.calls[:number])
    ]
    stopped = f"for (int k = 0; k <= {layout.state}; k++) next[k * step] = s[k];" if is_last else ""
    where = [
        "const long step = given.step[STATES];",
        "const Column<real> s = {(const real*)given.data[STATES] + lane, step};",
        f"real* __restrict__ const returned = (real*)given.data[{FIXED + layout.shared}] + lane;",
        f"const long far = given.step[{FIXED + layout.shared}];",
        f"real* __restrict__ const next = (real*)given.data[{FIXED + layout.shared + 1}] + lane;",
        "real* __restrict__ const record = (real*)given.data[RECORDS] + number * lanes + lane;",
        f"if (s[{layout.status}] != RUNNING) {{ {stopped} continue; }}",
        "const Inputs in = inputs_of(given, lane);",
        *returned,
    ]
    body = "\n        ".join([*where, *lines])
    return f"""
extern "C" __global__ void __launch_bounds__(THREADS)
{name}(const Given<{FIXED + layout.shared + MORE}> given, const long number, const long lanes) {{
    EACH_PROBLEM {{
        {body}
    }}
}}"""


def _first(step: Stepping, number: int) -> int:
    """Where among all results those of a call begin."""
    return sum(call.results.size for call in step.calls[:number])


def _reads(step: Stepping, needed: Sequence[int]) -> int:
    return sum(step.program.nodes[number].operation == "input" for number in needed)
