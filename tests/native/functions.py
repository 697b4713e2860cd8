"""Functions of one vector as native programs, many in one compilation, beside what PyTorch computes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from mslsq.kernels.build import CompilerError, compiler
from mslsq.native.arrays import input_array
from mslsq.native.building import Making, Written, linearized
from mslsq.native.recording import recorded
from mslsq.native.scalars import Program
from mslsq.native.text import Argument
from mslsq.tracing.graph import TRANSFORM_LOCK, graph_of

try:
    compiler()
except CompilerError:
    NEEDS_COMPILER = pytest.mark.skip(reason="there is no C++ compiler")
else:
    NEEDS_COMPILER = pytest.mark.kernels

Function = Callable[[Tensor], Tensor]


class Both(NamedTuple):
    """Residual (rows, lanes) and Jacobian (rows, columns, lanes)."""

    residual: Tensor
    jacobian: Tensor


def scalars_of(function: Function, size: int, dtype: torch.dtype) -> Written:
    """A function of a vector of that size, and its Jacobian, as scalars."""
    example = torch.linspace(0.3, 0.9, size, dtype=dtype)
    with TRANSFORM_LOCK, torch.no_grad():
        graph = graph_of(lambda x: [function(x).reshape(-1)], [example], guarded=True, functional=True)
        program = Program(dtype)
        residual = list(recorded(program, graph, [input_array(0, example)])[0])
        one = program.constant(1, "real")
        directions = {program.input(0, k, "real").number: {k: one} for k in range(size)}
        jacobian = linearized(program, residual, directions, size)
    return Written.of(program, [Argument(size, True)], residual, jacobian)


def native(functions: Sequence[Function], points: Sequence[Tensor], making: Callable[..., Any] = Making) -> list[Both]:
    """All functions at points (size, lanes) of their own, compiled together."""
    written = [scalars_of(f, len(x), x.dtype) for f, x in zip(functions, points, strict=True)]
    found = []
    made = making(written)
    made.wait()
    programs = made.programs()
    assert programs is not None  # it was waited for
    for program, x in zip(programs, points, strict=True):
        residual, jacobian = program.linearizations([x], [False], 1, x.shape[1])
        alone = program.residuals([x], [False], 1, x.shape[1])
        assert torch.equal(residual.nan_to_num(), alone.nan_to_num())
        found.append(Both(residual[0], jacobian[0]))
    return found


def by_pytorch(function: Function, x: Tensor) -> tuple[Both, Both]:
    """The same by PyTorch, values lane by lane, derivatives in forward and in reverse mode: those differ at ties, and
    where x is not finite (forward mode multiplies the tangent 0 of a constant by x)."""

    def flat(p: Tensor) -> Tensor:
        return function(p).reshape(-1)

    residual = torch.stack([flat(x[:, lane].clone()) for lane in range(x.shape[1])], -1)
    try:
        reverse = torch.func.vmap(torch.func.jacrev(flat))(x.T).to(x.dtype).movedim(0, -1)
        forward = torch.func.vmap(torch.func.jacfwd(flat))(x.T).to(x.dtype).movedim(0, -1)
    except RuntimeError:  # no forward mode, or a write into what `vmap` cannot map
        by_lane = [torch.autograd.functional.jacobian(flat, x[:, lane].clone()) for lane in range(x.shape[1])]
        reverse = forward = torch.stack(by_lane, -1)  # pyright: ignore[reportArgumentType]
    return Both(residual, forward), Both(residual, reverse)
