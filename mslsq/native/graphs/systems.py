"""Dense factorisations, and compiled programs of blocks, within loops: what a step calls besides its small operations.

Without them a step of a small problem is four or five segments, between which PyTorch takes ten times as long as the
work: factoring 30 columns takes 2 µs, the call of LAPACK through PyTorch 12.
"""

from typing import TYPE_CHECKING

import torch
from torch import fx

from mslsq.native.graphs.arrays import Array, NoLoopError, arguments_of, contiguous, entry, nest, options_of
from mslsq.native.operator import LINEARIZATIONS, RESIDUALS, NativeProgram, called_program, evenly_spaced

if TYPE_CHECKING:
    from mslsq.native.graphs.writer import Writer

LARGEST_SYSTEM = 192
"""Columns up to which a matrix is factored here: of 30 in 1.4 µs (PyTorch 3.7), of 96 in 10 (32), of 180 in 56 (90)."""


def cholesky(writer: "Writer", node: fx.Node) -> tuple[Array, ...]:
    """linalg_cholesky_ex: the factor column by column, as PyTorch has it, and which pivot was not positive."""
    (matrix,) = (writer.operand(argument) for argument in arguments_of(node)[:1])
    asked = [*arguments_of(node)[1:], *options_of(node).values()]
    if not isinstance(matrix, Array) or matrix.type != "real" or any(asked):
        raise NoLoopError(f"{node.target}")
    *batch, size, _ = matrix.shape
    if size > LARGEST_SYSTEM:
        raise NoLoopError(f"{node.target}: its size")
    rows = writer.fresh(matrix.shape, matrix.dtype)
    factor = Array(rows.base, 0, rows.shape, (*rows.strides[:-2], 1, size), rows.dtype)
    info = writer.fresh(tuple(batch), torch.int32)
    axes = len(batch)

    def body(places: list[str]) -> str:
        return (
            f"real* u = &{entry(rows, places[0])}; for (long k = 0; k < {size}; k++) {{ real* row = u + k * {size}; "
            f"for (long i = 0; i < k; i++) row[i] = 0; for (long i = k; i < {size}; i++) row[i] = "
            f"{entry(matrix, f'{places[1]} + i * {matrix.strides[-2]} + k * {matrix.strides[-1]}')}; }} "
            f"{entry(info, places[2])} = factored(u, {size});"
        )

    writer.append(nest(batch, [x.strides[:axes] for x in (rows, matrix, info)], body, "o"))
    return factor, info


def cholesky_solve(writer: "Writer", out: Array, node: fx.Node) -> None:
    """By a factor that `cholesky` has left."""
    right, factor = (writer.operand(argument) for argument in arguments_of(node)[:2])
    asked = [*arguments_of(node)[2:], *options_of(node).values()]
    if not isinstance(right, Array) or not isinstance(factor, Array) or any(asked) or out.type != "real":
        raise NoLoopError(f"{node.target}")
    *batch, size, columns = right.shape
    if factor.shape != (*batch, size, size) or factor.strides[-2:] != (1, size) or size > LARGEST_SYSTEM:
        raise NoLoopError(f"{node.target}: the layout of the factor")
    axes = len(batch)

    def body(places: list[str]) -> str:
        given = entry(right, f"{places[2]} + i * {right.strides[-2]} + j * {right.strides[-1]}")
        found = entry(out, f"{places[0]} + i * {out.strides[-2]} + j * {out.strides[-1]}")
        return (
            f"for (long j = 0; j < {columns}; j++) {{ real y[{size}]; "
            f"for (long i = 0; i < {size}; i++) y[i] = {given}; solved(&{entry(factor, places[1])}, y, {size}); "
            f"for (long i = 0; i < {size}; i++) {found} = y[i]; }}"
        )

    writer.append(nest(batch, [x.strides[:axes] for x in (out, factor, right)], body, "o"))


def linearizations(writer: "Writer", node: fx.Node) -> tuple[Array, ...]:
    """Residuals and Jacobians by a compiled program."""
    program, outer, lanes = called_program(*arguments_of(node)[2])
    dtype, rows, columns = program.dtype, program.rows, program.columns
    outputs = [writer.fresh((outer, *own, lanes), dtype) for own in ((rows,), (rows, columns))]
    _call(writer, node, program, LINEARIZATIONS, outputs)
    return tuple(outputs)


def residuals(writer: "Writer", out: Array, node: fx.Node) -> None:
    """Residuals by a compiled program."""
    program, _, _ = called_program(*arguments_of(node)[2])
    found = out if out.strides == contiguous(out.shape) else writer.fresh(out.shape, out.dtype)
    _call(writer, node, program, RESIDUALS, [found])
    if found is not out:
        writer.copy(found, out)


def _call(writer: "Writer", node: fx.Node, program: NativeProgram, function: str, outputs: list[Array]) -> None:
    """A call of a program in the calling thread alone."""
    tensors, batched, (_, outer, lanes) = arguments_of(node)
    address = program.functions.address(function, lanes)
    if address is None:
        raise NoLoopError("a program that is shared out between threads, or no function of this processor")
    data, outer_steps, steps = [], [], []
    for number, (tensor, has_outer) in enumerate(zip(tensors, batched, strict=True)):
        if number not in program.used:
            data, outer_steps, steps = [*data, "0"], [*outer_steps, 0], [*steps, 0]
            continue
        argument, array = program.inputs[number], writer.operand(tensor)
        assert isinstance(array, Array)
        wanted = program.dtype if argument.kind == "real" else torch.int64
        step = evenly_spaced(array.shape, array.strides, argument.has_lanes, bool(has_outer))
        if array.dtype != wanted or step is None:
            if array.type == "real" and array.dtype != wanted:
                raise NoLoopError(f"{node.target}: of two precisions")
            array = writer.converted(array, wanted)
            step = evenly_spaced(array.shape, array.strides, argument.has_lanes, bool(has_outer))
            assert step is not None  # of contiguous numbers there is one
        data.append(f"(char*)&{entry(array, '0')}")
        outer_steps.append(array.strides[0] if has_outer else 0)
        steps.append(step)
    for array in outputs:
        data.append(f"(char*)&{entry(array, '0')}")
        outer_steps.append(array.strides[0])
        steps.append(lanes)
    writer.append(
        f"char* const data[] = {{{', '.join(data)}}}; "
        f"static const long outer_steps[] = {{{', '.join(map(str, outer_steps))}}}; "
        f"static const long steps[] = {{{', '.join(map(str, steps))}}}; "
        f"((Program*){writer.function(address)})({outer}, 0, {lanes}, data, outer_steps, steps);"
    )
