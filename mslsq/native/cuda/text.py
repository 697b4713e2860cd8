"""A scalar program as CUDA C: the statements of `native.text`, in which every number is that of one lane.

Products are not fused with sums, as on a processor (`processor.FLAGS`); no fast mathematics. A kernel reads an entry of
all lanes of a warp from neighbouring addresses, since lanes are last in memory.
"""

from collections.abc import Sequence
from functools import cache

import torch

from mslsq.native.scalars import Node, Program
from mslsq.native.text import SOURCE, Argument, Function, special_files, statements

THREADS = 128
"""Of a block: with 255 registers each, two blocks fit a multiprocessor; with 64, eight."""

REAL = {torch.float64: ("double", "name"), torch.float32: ("float", "name##f")}


def source(parts: Sequence[str], dtype: torch.dtype, more: Sequence[str] = ()) -> str:
    """A whole source: kernels of programs of one dtype; `more` names other files that they need."""
    files = [*special_files(parts), *more]
    return "\n".join([preamble(dtype), *((SOURCE / name).read_text() for name in files), *parts])


@cache
def preamble(dtype: torch.dtype) -> str:
    """The types and functions that every program of a dtype uses."""
    real, function = REAL[dtype]
    head = f"#define REAL {real}\n#define FUNCTION(name) {function}\n#define THREADS {THREADS}\n"
    return head + (SOURCE / "cuda.h").read_text()


def written(program: Program, inputs: Sequence[Argument], function: Function, entries: Sequence[Sequence[int]]) -> str:
    """A kernel that computes some of a function's outputs.

    Args:
        inputs: in the order of the program's tensors.
        entries: by output, which of its entries are computed.
    """
    pairs = [(k, entry, function.outputs[k][entry]) for k, of_output in enumerate(entries) for entry in of_output]
    needed = program.needed(number for _, _, number in pairs)
    used = {program.nodes[n].detail[0] for n in needed if program.nodes[n].operation in ("input", "lookup")}
    lines = [_pointer(k, inputs[k], f"i{k}", f"s{k}", "const ") for k in sorted(used)]
    lines += [
        _pointer(len(inputs) + k, Argument(len(function.outputs[k]), True), f"o{k}", f"t{k}", "")
        for k, of_output in enumerate(entries)
        if of_output
    ]
    stores: dict[int, list[str]] = {}
    for k, entry, number in pairs:
        stores.setdefault(number, []).append(f"store(o{k} + {entry} * t{k}, v{number});")
    for number, statement in zip(needed, statements(program, needed, _read), strict=True):
        lines += [statement, *stores.get(number, ())]  # at once: an output that waits takes registers
    count = len(inputs) + len(function.outputs)
    body = "\n        ".join(lines)
    return f"""
extern "C" __global__ void __launch_bounds__(THREADS)
{function.name}(const Given<{count}> given, const long outer, const long lanes) {{
    EACH_LANE {{
        {body}
    }}
}}
"""


def _pointer(place: int, argument: Argument, name: str, step: str, const: str) -> str:
    """Where the numbers of this thread's lane begin, and how far they lie apart."""
    lane = " + lane" if argument.has_lanes else ""
    return (
        f"{const}{argument.type}* __restrict__ const {name} = ({const}{argument.type}*)given.data[{place}] "
        f"+ problem * given.outer_step[{place}]{lane}; const long {step} = given.step[{place}];"
    )


def _read(node: Node, operands: list[str]) -> str:
    tensor = node.detail[0]
    if node.operation == "lookup":
        return f"lookup(i{tensor}, {operands[0]}, s{tensor})"
    read = f"load(i{tensor} + {node.detail[1]} * s{tensor})"
    return f"mask_({read} != 0)" if node.kind == "boolean" else read
