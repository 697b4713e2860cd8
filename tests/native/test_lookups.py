"""Indices that depend on values, into what is constant, given, unknown and computed: values and Jacobians of PyTorch,
and nothing read outside."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.native.arrays import input_array
from mslsq.native.building import Making, WrittenVector, linearized
from mslsq.native.recording import recorded
from mslsq.native.scalars import Program
from mslsq.native.text import Argument
from mslsq.tracing.capture import capture
from mslsq.tracing.graph import TRANSFORM_LOCK, graph_of
from tests.native.functions import NEEDS_COMPILER, native
from tests.native.test_lines_and_matrices import told

pytestmark = NEEDS_COMPILER
F = torch.nn.functional
F64 = torch.float64
TABLE = torch.tensor([0.3, -1.2, 0.7, 2.1, -0.4, 0.9, 1.7, -2.2], dtype=F64)
MAP = torch.linspace(-1, 2, 30, dtype=F64).reshape(5, 6).sin()
LIMITS = torch.tensor([-0.9, -0.2, 0.1, 0.6, 1.1], dtype=F64)
WHOLE = torch.tensor([3, 1, 2])


def interpolated(table: Tensor, u: Tensor) -> Tensor:
    """Between the entries of a table, linearly; beyond its ends along the first and the last piece."""
    i = u.floor().long().clamp(0, len(table) - 2)
    return torch.lerp(table[i], table[i + 1], u - i)


def sampled(image: Tensor, at: Tensor, **options: str) -> Tensor:
    return F.grid_sample(image[None, None], at.reshape(1, 1, -1, 2), align_corners=True, **options)


def places(x: Tensor, size: int) -> Tensor:
    return x.abs().long().clamp(max=size - 1)


LOOKUPS: dict[str, Callable[[Tensor], Tensor]] = {
    "constants": lambda x: interpolated(TABLE.to(x.dtype), 3 * x[:3].abs()),
    "unknowns": lambda x: interpolated(x[:6], 2 * x[6:].abs()),
    "computed": lambda x: interpolated((x[:6] * x[1]).sin(), 2 * x[6:].abs()),
    "computed from few": lambda x: interpolated((TABLE.to(x.dtype) * x[1]).sin() * x[2], 2 * x[6:].abs()),
    "twice": lambda x: interpolated(interpolated(x[:4], x[6:].abs()), 2 * x[3:6].abs()),
    "two axes": lambda x: MAP.to(x.dtype)[places(x[:2], 5), x[2:4].long().clamp(-5, 5)] * x[0],
    "rows": lambda x: MAP.to(x.dtype)[places(x[:2], 5)] * x[0],
    "columns": lambda x: MAP.to(x.dtype)[:, places(x[:2], 6)] * x[0],
    "from the end": lambda x: TABLE.to(x.dtype)[-1 - places(x[:2], 5)] * x[0],
    "gather": lambda x: TABLE.to(x.dtype).gather(0, places(3 * x[:3], 8)) * x[0],
    "take": lambda x: torch.take(MAP.to(x.dtype), places(9 * x[:3], 30)) * x[0],
    "take_along_dim": lambda x: torch.take_along_dim(x[:6].reshape(2, 3), places(x[6:8, None], 3), 1),
    "index_select": lambda x: MAP.to(x.dtype).index_select(1, places(x[:2], 5)) * x[0],
    "embedding": lambda x: F.embedding(places(x[:2], 5), MAP.to(x.dtype)) * x[0],
    "whole numbers": lambda x: WHOLE[places(x[:2], 3)] * x[:2],
    "after a search": lambda x: (
        TABLE.to(x.dtype)[torch.searchsorted(TABLE[:5].abs().cumsum(0).to(x.dtype), x[:4])] * x[:4]
    ),
    "long search": lambda x: torch.bucketize(x[:3], torch.linspace(-1, 1, 100, dtype=x.dtype)) * x[:3],
    "long search from the right": lambda x: torch.bucketize(x, torch.arange(-9.0, 60, dtype=x.dtype), right=True) * x,
}
WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "index_put": lambda x: x[:5].index_put((places(x[5:7], 5),), x[7:9]),
    "index_put of more": lambda x: (
        x[:6].reshape(2, 3).index_put((places(x[5:7], 2), -1 - places(x[6:8], 3)), x[:2], accumulate=True)
    ),
    "index_add": lambda x: x[:4].index_add(0, places(2 * x[4:9], 4), x[:5], alpha=2),
    "histogram": lambda x: torch.zeros(4, dtype=x.dtype).scatter_add(0, places(2 * x, 4), x),
    "scatter": lambda x: x[:6].reshape(2, 3).scatter(1, places(2 * x[2:4, None], 3), x[6:8, None]),
}
SAMPLED: dict[str, Callable[[Tensor], Tensor]] = {
    "grid_sample of constants": lambda x: sampled(MAP.to(x.dtype), x[:4] / 2),
    "grid_sample of unknowns": lambda x: sampled(x[:6].reshape(2, 3), x[5:9] / 2),
    "grid_sample to the border": lambda x: sampled(MAP.to(x.dtype), x[:4], padding_mode="border"),
}


def points(dtype: torch.dtype) -> Tensor:
    return torch.randn((9, 16), generator=torch.Generator().manual_seed(3), dtype=F64).to(dtype)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_what_is_looked_up_has_the_values_and_derivatives_of_pytorch(dtype):
    x = points(dtype)
    assert not told(LOOKUPS, x, LOOKUPS, 1e-12 if dtype == F64 else 2e-5)
    functions = SAMPLED | WRITES
    captured = {name: capture(f, (x[:, 0].clone(),), name=name) for name, f in functions.items()}
    assert not told(captured, x, functions, 1e-12 if dtype == F64 else 2e-5)


def test_nothing_is_read_outside_of_a_table():
    """PyTorch raises there."""
    at = torch.tensor([[-9.0, -8.0, -1.0, 0.0, 7.0, 8.0, 1e300, torch.inf, torch.nan]], dtype=F64)
    inside = (at[0] >= -8) & (at[0] < 8)
    functions = {
        "of constants": lambda x: TABLE[x[0].long()] * x[0],
        "computed": lambda x: (x[0] + TABLE)[x[0].long()],
        "of rows": lambda x: torch.cat([TABLE[:, None], TABLE[:, None]], 1)[x[0].long()] * x[0],
        "of whole numbers": lambda x: torch.arange(8)[x[0].long()] * x[0],
    }
    for (name, function), found in zip(
        functions.items(), native(list(functions.values()), [at] * len(functions)), strict=True
    ):
        expected = torch.stack([function(x).reshape(-1) for x in at[:, inside].T], -1)
        torch.testing.assert_close(found.residual[:, inside], expected, msg=name)
        assert found.residual[:, ~inside].isnan().all(), name


def test_a_start_outside_of_a_table_is_said_to_be():
    """Where a program answers, PyTorch's IndexError is told in the status."""

    def residual(p: Tensor, table: Tensor) -> Tensor:
        return interpolated(table, p[:1]) + table[p[1].long()]

    def solved(place: float) -> mslsq.Solution:
        solver = mslsq.LevenbergMarquardt(native="wait", max_steps=3)
        start = torch.tensor([[0.2, place], [1.3, 1.0]], dtype=F64)
        return mslsq.least_squares(residual, start, (TABLE,), in_dims=(0, None), solver=solver)

    solved(2.0)
    found = solved(9.0)
    assert found.status.tolist()[0] == mslsq.Status.NON_FINITE and found.status.tolist()[1] != mslsq.Status.NON_FINITE
    assert "an index reads outside of its tensor" in found.message()


def test_second_derivatives_pass_through_tables():
    """Compiled, and run by PyTorch."""

    def function(x: Tensor) -> Tensor:
        return interpolated((x[:5] * x[1]).sin(), 2 * x[5:7].abs()) * interpolated(x[:5], x[2].abs() * TABLE[2:4])

    x, program = points(F64), Program(F64)
    with TRANSFORM_LOCK, torch.no_grad():
        graph = graph_of(lambda y: [function(y)], [x[:, 0].clone()], guarded=True, functional=True)
        (rows,) = recorded(program, graph, [input_array(0, x[:, 0])])
        one = program.constant(1, "real")
        directions = {program.input(0, k, "real").number: {k: one} for k in range(9)}
        first = linearized(program, [rows[0] + rows[1] * rows[1]], directions, 9)
        second = linearized(program, first, directions, 9)
    written = WrittenVector.of(program, [Argument(9, True)], second, 20_000)
    making = Making([written])
    making.wait()
    programs = making.programs()
    assert programs is not None
    for vector in (programs[0], written.replayed()):
        found = vector.values([x], [False], 1, x.shape[1])[0]
        for lane in range(x.shape[1]):
            expected = torch.func.hessian(lambda y: function(y)[0] + function(y)[1] ** 2)(x[:, lane])
            torch.testing.assert_close(found[:, lane].reshape(9, 9), expected, rtol=1e-10, atol=1e-12)


Way = Literal["never", "wait"]
TIMES = torch.linspace(0, 3, 20, dtype=F64)


def smooth(table: Tensor, u: Tensor) -> Tensor:
    """Cubic between the entries of a table (Catmull, Rom): it has one minimum where a linear one has a kink."""
    i = u.floor().long().clamp(1, len(table) - 3)
    w = u - i
    a, b, c, d = (table[i + k] for k in (-1, 0, 1, 2))
    return b + 0.5 * w * (c - a + w * (2 * a - 5 * b + 4 * c - d + w * (3 * (b - c) + d - a)))


@pytest.mark.slow
def test_fits_look_up_in_what_each_has_for_itself_and_their_gradients_go_into_the_tables():
    generator = torch.Generator().manual_seed(0)
    tables = torch.linspace(0, 3, 16, dtype=F64).sin() + 0.05 * torch.randn(30, 16, generator=generator, dtype=F64)
    factors = 0.8 + 0.4 * torch.rand(30, 1, generator=generator, dtype=F64)
    y = torch.stack([f * smooth(t, 3 * f * TIMES + 1.2) for t, f in zip(tables, factors, strict=True)])
    y = y + 0.01 * torch.randn(30, 20, generator=generator, dtype=F64)

    def residual(p: Tensor, table: Tensor, y: Tensor) -> Tensor:
        return p[0] * smooth(table, 3 * p[1] * TIMES + 1.2) - y

    def gradients(native: Way, of_all: bool) -> tuple[Tensor, ...]:
        given = [tables[0].clone() if of_all else tables.clone(), y.clone()]
        for x in given:
            x.requires_grad_()
        solver = mslsq.LevenbergMarquardt(native=native, max_steps=50)
        for _ in range(2):  # programs of derivatives serve the second one
            start = torch.ones(2, dtype=F64)
            dims = (None, None if of_all else 0, 0)
            solution = mslsq.least_squares(residual, start, tuple(given), in_dims=dims, solver=solver)
            found = torch.autograd.grad(solution.value.square().sum(), given)
        return solution.value.detach(), *found

    for of_all in (False, True):
        for native_one, python in zip(gradients("wait", of_all), gradients("never", of_all), strict=True):
            torch.testing.assert_close(native_one, python, rtol=1e-6, atol=1e-8, equal_nan=True)
            assert python.isnan().double().mean() < 0.2  # of problems that end at a kink


def test_the_entries_of_a_table_are_fitted():
    generator = torch.Generator().manual_seed(0)
    at = 5 * torch.rand(30, 40, generator=generator, dtype=F64)

    def residual(p: Tensor, at: Tensor, y: Tensor) -> Tensor:
        return interpolated(p, at) - y

    start = torch.zeros(6, dtype=F64)

    def solved(native: Way) -> mslsq.Solution:
        solver = mslsq.LevenbergMarquardt(native=native)
        return mslsq.least_squares(residual, start, (at, at.sin()), in_dims=(None, 0, 0), solver=solver)

    python, compiled = solved("never"), solved("wait")
    assert torch.equal(python.num_steps, compiled.num_steps)
    torch.testing.assert_close(compiled.value, python.value, rtol=1e-9, atol=1e-11)
