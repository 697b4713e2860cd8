"""What of an operation is known beforehand: constants, x · 1, choices between equals.

Every rule here holds for NaN, infinities and the sign of zero. 0 · x is not 0: it is NaN where x is infinite. It is
folded only while `Program.are_finite` is set, by a caller for whom that does not matter.
"""

import math
from typing import TYPE_CHECKING

import torch

from mslsq.native.operations import OPERATIONS

if TYPE_CHECKING:
    from mslsq.native.scalars import Program

_DTYPES = {"integer": torch.int64, "boolean": torch.bool}


def folded(program: "Program", operation: str, operands: tuple[int, ...]) -> int | None:
    """The node that an operation comes to without being computed; None where there is none."""
    nodes = [program.nodes[number] for number in operands]
    values = [node.value for node in nodes]
    if all(value is not None for value in values):
        return _computed(program, operation, [(node.kind, node.detail[0]) for node in nodes])
    if operation == "select":
        return _chosen(operands, values[0])
    if operation == "neg" and nodes[0].operation == "neg":
        return nodes[0].operands[0]
    if len(operands) != 2 or nodes[0].kind == "boolean":
        return None
    return _arithmetic(program, operation, operands, values)


def _computed(program: "Program", operation: str, constants: list[tuple[str, float]]) -> int:
    entry = OPERATIONS[operation]
    tensors = [torch.tensor(value, dtype=_DTYPES.get(kind, program.dtype), device="cpu") for kind, value in constants]
    result = entry.meaning(*tensors)
    return program.constant(result.item(), entry.result or constants[-1][0]).number  # pyright: ignore[reportArgumentType]


def _chosen(operands: tuple[int, ...], condition: float | None) -> int | None:
    _, yes, no = operands
    if yes == no:
        return yes
    return None if condition is None else (yes if condition else no)


def _arithmetic(
    program: "Program", operation: str, operands: tuple[int, ...], values: list[float | None]
) -> int | None:
    a, b = operands
    x, y = values
    if operation in ("add", "sub", "mul", "div") and any(value is not None and math.isnan(value) for value in values):
        return program.constant(math.nan, "real").number
    if operation == "mul":
        if x is not None:
            a, b, y = b, a, x
        if y == 1:
            return a
        if y == -1:
            return program.make("neg", a)
        if y == 0 and program.are_finite:
            return b
        node = program.nodes[a]
        if y is not None and _is_moderate(y) and node.operation == "add" and node.operands[0] == node.operands[1]:
            # Exact, and twice a number overflows where the number does not: the half of its square, differentiated.
            return program.make("mul", node.operands[0], program.constant(2 * y, node.kind).number)
    elif operation == "div" and y is not None:
        if y in (1, -1):
            return a if y == 1 else program.make("neg", a)
        if _is_moderate(y) and abs(math.frexp(y)[0]) == 0.5:  # a power of two
            return program.make("mul", a, program.constant(1 / y, "real").number)
    elif operation == "pow" and y in (0, 1):
        return a if y == 1 else program.constant(1, "real").number
    elif operation == "add":
        if x is not None:
            a, y = b, x
        if y == 0 and (program.are_finite or math.copysign(1, y) < 0):  # −0 + 0 is 0
            return a
        return _without_negation(program, *operands)
    elif operation == "sub":
        if y == 0 and (program.are_finite or math.copysign(1, y) > 0):
            return a
        if x == 0 and (program.are_finite or math.copysign(1, x) < 0):
            return program.make("neg", b)
        if program.nodes[b].operation == "neg":
            return program.make("add", a, program.nodes[b].operands[0])
    return None


def _is_moderate(y: float) -> bool:
    """Is it so far from where numbers end that its double and its inverse are none of these?"""
    return 1e-30 < abs(y) < 1e30


def _without_negation(program: "Program", a: int, b: int) -> int | None:
    """a + (−b) as a − b."""
    for first, second in ((a, b), (b, a)):
        if program.nodes[second].operation == "neg":
            return program.make("sub", first, program.nodes[second].operands[0])
    return None
