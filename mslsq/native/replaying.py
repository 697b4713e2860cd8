"""Scalar programs run by PyTorch: one operation on a row of lanes after the other, where there is no compiled library.

A second derivative that is written as scalars takes fewer operations than the graph that transforms of PyTorch leave,
and rows of lanes stay in the caches: the Hessians of 1,516 SE(3) between factors take 19 ms, and 100 from a recorded
graph. A compiled program takes 2 ms.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mslsq.native.operations import OPERATIONS
from mslsq.native.operator import UncompiledVector
from mslsq.native.scalars import Kind, Node, Program
from mslsq.native.text import Argument

DTYPES: dict[Kind, torch.dtype] = {"integer": torch.int64, "boolean": torch.bool}


class ReplayedVector(UncompiledVector):
    """A function of one block whose output is a vector, as a sequence of PyTorch's operations. `filled` can be
    differentiated.
    """

    def __init__(self, program: Program, inputs: Sequence[Argument], entries: Sequence[int]):
        super().__init__(program.dtype, len(entries))
        self._inputs, self._used = tuple(inputs), program.inputs_of(entries)
        self._function = _straight_line(program, entries)

    def filled(self, tensors: Sequence[Tensor], batched: Sequence[int], outer: int, lanes: int) -> Tensor:
        """(outer, size, lanes)"""
        rows = {k: self._rows(tensors[k], self._inputs[k], bool(batched[k])) for k in self._used}
        found = self._function(rows)
        return torch.stack([entry.expand(outer, lanes) for entry in found], 1)

    def _rows(self, tensor: Tensor, argument: Argument, has_outer: bool) -> tuple[Tensor, ...]:
        """The entries of an input, each (outer or 1, lanes or 1)."""
        tensor = tensor.to(DTYPES.get(argument.kind, self.dtype))
        tensor = tensor if has_outer else tensor[None]
        tensor = tensor if argument.has_lanes else tensor[..., None]
        return tensor.reshape(tensor.shape[0], -1, tensor.shape[-1]).unbind(1)


class ReplayedProgram:
    """A function of one block and its Jacobian in the same way, for the few lanes that tell whether what was written
    with it still holds.

    Args:
        vector: the residual, and its Jacobian row by row.
    """

    def __init__(self, vector: ReplayedVector, rows: int):
        self._vector, self.rows = vector, rows

    def residuals(self, tensors: Sequence[Tensor], batched: Sequence[bool], outer: int, lanes: int) -> Tensor:
        """As `NativeProgram.residuals`."""
        return self._vector.values(tensors, batched, outer, lanes)[:, : self.rows]

    def linearizations(
        self, tensors: Sequence[Tensor], batched: Sequence[bool], outer: int, lanes: int
    ) -> tuple[Tensor, Tensor]:
        """As `NativeProgram.linearizations`."""
        flat = self._vector.values(tensors, batched, outer, lanes)
        return flat[:, : self.rows], flat[:, self.rows :].unflatten(1, (self.rows, -1))


def _straight_line(program: Program, entries: Sequence[int]) -> Callable[[dict[int, Any]], list[Tensor]]:
    """The program as a function of the rows of its inputs; what is not needed any more is let go at once."""
    needed, wanted = program.needed(entries), set(entries)
    last = {operand: number for number in needed for operand in program.nodes[number].operands}
    names: dict[str, Any] = {}
    lines = []
    for number in needed:
        node = program.nodes[number]
        lines.append(f"v{number} = {_text(program, number, node, names)}")
        done = [k for k in dict.fromkeys(node.operands) if last[k] == number and k not in wanted]
        if done:
            lines.append(f"del {', '.join(f'v{k}' for k in done)}")
    lines.append(f"return [{', '.join(f'v{number}' for number in entries)}]")
    exec(compile("\n    ".join(["def run(rows):", *lines]), "<a scalar program>", "exec"), names)
    return names["run"]


def _together(entries: Sequence[Tensor]) -> Tensor:
    """Rows of lanes as a table, (outer, lanes, entries)."""
    return torch.stack(torch.broadcast_tensors(*entries), -1)


def _looked_up(entries: Sequence[Tensor], place: Tensor) -> Tensor:
    return OPERATIONS["pick"].meaning(place, _together(entries))


def _text(program: Program, number: int, node: Node, names: dict[str, Any]) -> str:
    if node.operation == "constant":
        names[f"c{number}"] = torch.tensor(node.value, dtype=DTYPES.get(node.kind, program.dtype), device="cpu")
        return f"c{number}"
    if node.operation == "input":
        tensor, entry = node.detail
        return f"rows[{tensor}][{entry}]"
    if node.operation == "lookup":
        names["looked_up_"] = _looked_up
        return f"looked_up_(rows[{node.detail[0]}], v{node.operands[0]})"
    if node.operation == "table":
        names["together_"] = _together
        if node.detail:
            names[f"c{number}"] = torch.tensor(node.detail, dtype=DTYPES.get(node.kind, program.dtype), device="cpu")
            return f"c{number}"
        return f"together_([{', '.join(f'v{operand}' for operand in node.operands)}])"
    names[node.operation + "_"] = OPERATIONS[node.operation].meaning
    if node.operation == "real":
        names["real_"] = lambda x: x.to(program.dtype)
    elif node.operation == "detached":
        names["detached_"] = torch.Tensor.detach
    return f"{node.operation}_({', '.join(f'v{operand}' for operand in node.operands)})"
