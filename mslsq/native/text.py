"""A scalar program as C++: straight-line code in which every number is a vector of that number of several blocks.

No header of C++ or of the system is included: that quarters the compiler's time (0.5 instead of 2.2 seconds for an
SE(3) between factor).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from mslsq.native.operations import OPERATIONS, POWERS
from mslsq.native.scalars import Kind, Node, Program

SOURCE = Path(__file__).parent / "source"
TYPES: dict[Kind, str] = {"real": "V", "integer": "I", "boolean": "M"}
REAL = {torch.float64: ("double", "__builtin_##name"), torch.float32: ("float", "__builtin_##name##f")}


@dataclass(frozen=True)
class Argument:
    """An input or an output: how many numbers of a block, and whether each lane has its own."""

    size: int
    has_lanes: bool
    kind: Kind = "real"

    @property
    def type(self) -> str:
        return "real" if self.kind == "real" else "long"


@dataclass(frozen=True)
class Function:
    """One function of a program: which nodes go to which entries of its outputs."""

    name: str
    outputs: tuple[tuple[int, ...], ...]


def source(parts: Sequence[str], dtype: torch.dtype, width: int, more: Sequence[str] = ()) -> str:
    """A whole source: functions of programs of one dtype, for vector registers of `width` bytes; `more` names other
    files that they need."""
    files = [*special_files(parts), *more]
    return "\n".join([preamble(dtype, width), *((SOURCE / name).read_text() for name in files), *parts])


SPECIAL = {
    "gamma.h": ("lgamma", "digamma", "zeta", "polygamma"),
    "error.h": ("erfcx", "log_ndtr", "erfinv", "ndtri"),
    "bessel.h": tuple(f"bessel_{name}" for name in ("i0", "i0e", "i1", "i1e", "j0", "j1", "y0", "y1")),
}
"""Special functions by the file that has them: only programs that call one are compiled with it."""


def special_files(parts: Sequence[str]) -> list[str]:
    """The files of special functions that these texts call."""
    return [name for name, functions in SPECIAL.items() if any(f"{f}_(" in part for f in functions for part in parts)]


@cache
def preamble(dtype: torch.dtype, width: int) -> str:
    """The types and functions that every program of a dtype uses."""
    real, function = REAL[dtype]
    head = f"#define REAL {real}\n#define WIDTH {width}\n#define FUNCTION(name) {function}\n"
    return head + "\n".join(
        (SOURCE / name).read_text() for name in ("vectors.h", "elementary.h", "functions.h", "loop.h")
    )


def written(program: Program, inputs: Sequence[Argument], function: Function) -> str:
    """One function; `inputs` in the order of the program's tensors."""
    needed = program.needed(number for numbers in function.outputs for number in numbers)
    used = {program.nodes[n].detail[0] for n in needed if program.nodes[n].operation in ("input", "lookup")}
    lines = [
        f"const {inputs[k].type}* i{k} = (const {inputs[k].type}*)in[{k}]; const long s{k} = step[{k}];"
        for k in sorted(used)
    ]
    lines += statements(program, needed, lambda node, operands: _read(node, operands, inputs))
    for k, numbers in enumerate(function.outputs):
        lines += [
            f"store((real*)out[{k}] + {entry} * step[{len(inputs) + k}], v{n});" for entry, n in enumerate(numbers)
        ]
    arguments = [*inputs, *(Argument(len(numbers), True) for numbers in function.outputs)]
    table = ", ".join(f"{{{a.size}, {int(a.has_lanes)}, sizeof({a.type})}}" for a in arguments)
    body = "\n    ".join(lines)
    return f"""
static void {function.name}_block(const char* const* in, char* const* out, const long* step) {{
    {body}
}}
static const Argument {function.name}_arguments[] = {{{table}}};
PROGRAM({function.name}, {len(inputs)}, {len(function.outputs)})
"""


Reading = Callable[[Node, list[str]], str]
"""The expression of an input, or of a lookup with its operands."""


def statements(program: Program, numbers: Iterable[int], read: Reading) -> list[str]:
    """A statement for each of these nodes, whose operands have theirs before."""
    return [_statement(program, number, read) for number in numbers]


def _statement(program: Program, number: int, read: Reading) -> str:
    node = program.nodes[number]
    if node.operation == "table" and node.detail:
        type_ = "real" if node.kind == "real" else "long"
        return f"static const {type_} v{number}[] = {{{', '.join(literal(x, node.kind) for x in node.detail)}}};"
    if node.operation == "table":
        entries = ", ".join(f"v{operand}" for operand in node.operands)
        return f"const {TYPES[node.kind]} v{number}[] = {{{entries}}};"
    return f"const {TYPES[node.kind]} v{number} = {_text(program, node, read)};"


def function_text(heading: str, lines: Sequence[str]) -> str:
    """A function of these statements."""
    return f"{heading} {{\n    " + "\n    ".join(lines) + "\n}"


def _text(program: Program, node: Node, read: Reading) -> str:
    """The expression of one node."""
    operands = [f"v{number}" for number in node.operands]
    if node.operation == "constant":
        return _constant(node)
    if node.operation in ("input", "lookup"):
        return read(node, operands)
    text = OPERATIONS[node.operation].text
    if node.operation == "pow":
        exponent = program.nodes[node.operands[1]].value
        text = text if exponent is None else POWERS.get(exponent, text)
    return text.format(*operands)


def _read(node: Node, operands: list[str], inputs: Sequence[Argument]) -> str:
    """An input of which each lane may have its own."""
    tensor = node.detail[0]
    if node.operation == "lookup":
        return f"lookup(i{tensor}, {operands[0]}, s{tensor}, {int(inputs[tensor].has_lanes)})"
    read = f"{'load' if inputs[tensor].has_lanes else 'same'}(i{tensor} + {node.detail[1]} * s{tensor})"
    return f"mask_({read} != 0)" if node.kind == "boolean" else read


def _constant(node: Node) -> str:
    (value,) = node.detail
    splat = {"boolean": "splat_boolean", "integer": "splat_integer", "real": "splat"}[node.kind]
    return f"{splat}({literal(value, node.kind)})"


def literal(value: float, kind: Kind = "real") -> str:
    """A number of this kind in C++."""
    if kind == "boolean":
        return f"{int(value)}"
    if kind == "integer":
        return f"{value}L" if value > -(2**63) else "-__LONG_MAX__ - 1"
    if value != value:
        return '(real)__builtin_nan("")'
    if abs(value) == float("inf"):
        return f"{'-' if value < 0 else ''}(real)__builtin_inf()"
    return f"(real){value.hex()}"
