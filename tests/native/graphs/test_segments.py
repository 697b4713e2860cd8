"""Graphs of small tensors as loops in C++ compute what PyTorch computes, at ordinary and at special numbers."""

import pytest
import torch

from mslsq.native.graphs.arrays import NoLoopError
from mslsq.native.graphs.calling import UnfitError
from mslsq.native.graphs.segments import Segments
from mslsq.native.graphs.systems import LARGEST_SYSTEM
from mslsq.native.store import request
from mslsq.private import writes as is_write
from mslsq.tracing.recording import Recorded

F64 = torch.float64
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.5, torch.inf, -torch.inf, torch.nan, 2.5, 1e-310, 3.0, -7.0, 0.5], dtype=F64)
A, B = SPECIAL.reshape(3, 4), SPECIAL.flip(0).reshape(3, 4)
ORDINARY = torch.linspace(-2, 3, 24, dtype=F64).reshape(2, 3, 4)
INDEX = torch.tensor([2, 0, 2, 1])

pytestmark = pytest.mark.usefixtures("cxx")


def program_of(function, *example):
    """The graph of a function, and the same with segments."""
    recorded = Recorded(lambda *x: function(*x), example)
    segments = Segments(recorded.graph, next(x.dtype for x in example if x.is_floating_point()))
    build = request(segments.source, wait=True)
    assert not build.why, build.why
    return recorded, segments.callable(build.library())


FUNCTIONS = {
    "arithmetic": lambda x, y: [x + y, x - 2 * y, 3 - x, x * y, x / y, -x, x * 2, torch.addcmul(x, y, y, value=0.5)],
    "functions": lambda x, y: [f(x) for f in (torch.sqrt, torch.rsqrt, torch.sin, torch.cos, torch.exp, torch.abs)],
    "more functions": lambda x, y: [torch.atan2(x, y), torch.tanh(x), torch.log(x), torch.atan(y), x**2, x**-1, x**2.5],
    "comparisons": lambda x, y: [x < y, x <= y, x > y, x >= y, x == y, x != y, x < 0.5, (x < y) & (y > 0), ~(x < y)],
    "choices": lambda x, y: [
        *(torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 2), x.clamp(min=0), x.clamp(max=0)),
        *(torch.where(x > y, x, 0), torch.where(x > 0, 1.0, y), x.masked_fill(y > 0, -3.0)),
        *(torch.nan_to_num(x), torch.nan_to_num(x, 1.0, 2.0, 3.0), torch.isnan(x), torch.isfinite(x)),
    ],
    "reductions": lambda x, y: [
        *(x.sum(), x.sum(0), x.sum(-1, keepdim=True), x.amax(1), x.amin(0), (x < y).all(), (x < y).all(0)),
        *((x > y).any(1), torch.linalg.vector_norm(x, dim=-1), (x < y).sum(0), (x * y).sum((0, 1))),
    ],
    "views": lambda x, y: [
        *(x.T + y.T, x[1:, ::2] * 2, x.unsqueeze(1) + y, x.expand(2, 3, 4) * y, (x.T.reshape(2, 6) + 1).flatten()),
        *(torch.diagonal(x) + 1, x.select(1, 2) - y[:, 1], x[0].expand(3, 4) + 0 * y, torch.stack(x.unbind(1)) + 1),
    ],
    "joints": lambda x, y: [
        *(torch.cat((x, y + 1), 1), torch.cat((x.T, y.T)), torch.stack((x * 2, y), 1), torch.stack((x, y), -1) + 1),
        *(torch.diag_embed(x + 1), torch.nn.functional.pad(x * 2, (1, 0, 0, 2), value=-1.5)),
        *(torch.nn.functional.pad(x.T + 1, (0, 3)), torch.nn.functional.pad((x > 0) & (y > 0), (2, 1), value=True)),
    ],
    "constants": lambda x, y: [
        *(torch.zeros_like(x) + y, torch.full_like(x, 2.5) * y, x.new_zeros(4) + y, torch.ones_like(x) - y),
        (x > 0).to(F64) + 1,
    ],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_are_those_of_pytorch(name):
    for x, y in ((A, B), (A.T.contiguous().T, B), (ORDINARY[0], ORDINARY[1])):
        recorded, program = program_of(FUNCTIONS[name], x, y)
        for found, expected in zip(program(x, y), recorded.flat([x, y]), strict=True):
            assert found.stride() == expected.stride() or found.is_contiguous()
            torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-300, equal_nan=True)


def test_products_indices_and_cross_products_are_those_of_pytorch():
    index = INDEX[:, None].expand(4, 3)

    def function(x, y, i, j):
        v = x[0, :, :3]
        return [
            *(
                torch.bmm(x, y.mT) + 1,
                x[0].mT @ y[1] + 1,
                torch.index_select(x + 1, 1, i % 3),
                torch.gather(x[0], 0, j.T),
            ),
            torch.index_add(x[0] * 2, 0, i[:2], y[0, :2] + 1),
            *(torch.index_copy(x * 2, 1, i[:2], y[:, :2] + 1), torch.index_copy(x[0] + 1, 0, i[:1], y[1, :1])),
            *((x + 1)[:, i - 3], (x[0].T * 2)[j - 1], (y + x)[:, :, j % 4] + 1),
            *(
                torch.linalg.cross(v, v.mT + 1),
                torch.linalg.cross(v, v.mT + 1, dim=0),
                torch.remainder(i - 5, 3),
                i.sum() + 1,
            ),
        ]

    example = ORDINARY, ORDINARY + 1, INDEX, index
    recorded, program = program_of(function, *example)
    for found, expected in zip(program(*example), recorded.flat(list(example)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_what_is_not_known_stands_between_segments(dtype):
    def function(a, b):
        normal = a.mT @ a + 2 * torch.diag_embed(torch.ones_like(b))
        triangle = torch.linalg.qr(normal, mode="r").R
        step = -torch.linalg.solve_triangular(triangle, (b * 3 + 1).unsqueeze(-1), upper=True).squeeze(-1)
        length = (step * step).sum().sqrt()
        return [b + step, length, torch.where(step[0] == 0, length + 1, 0), step.abs().amax()]

    a, b = torch.linspace(-1, 1, 20, dtype=dtype).reshape(5, 4).sin(), torch.arange(4, dtype=dtype)
    recorded, program = program_of(function, a, b)
    for k in range(3):  # the memory of a call serves the next
        for found, expected in zip(program(a + k, b - k), recorded.flat([a + k, b - k]), strict=True):
            torch.testing.assert_close(found, expected)


def _step(matrix, rhs):
    """A step as dense solvers take it, with what they say of the pivots."""
    factor, info = torch.linalg.cholesky_ex(matrix + 0)
    step = torch.cholesky_solve(rhs[..., None], factor)[..., 0]
    solved = info == 0
    return [torch.where(solved[..., None], -step, 0), info + 0, torch.where(solved[..., None, None], factor, 0)]


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("size", [1, 2, 4, 7, 8, 30, 61])
def test_systems_are_solved_as_by_pytorch(size, dtype):
    generator = torch.Generator().manual_seed(size)
    root = torch.randn(3, size, size + 2, dtype=dtype, generator=generator)
    matrix, rhs = root @ root.mT + torch.eye(size, dtype=dtype), torch.randn(3, size, dtype=dtype, generator=generator)
    recorded, program = program_of(_step, matrix, rhs)
    spoilt = matrix.clone()
    spoilt[1, size // 2, size // 2] = -1  # one is not definite, its neighbours do not notice
    spoilt[2, size - 1, 0] = torch.nan
    above = matrix.tril() + 7 * torch.ones_like(matrix).triu(1)  # is not read
    for given in (matrix, spoilt, above, -matrix, matrix.mT.contiguous().mT):
        expected, found = recorded.flat([given, rhs]), program(given, rhs)
        assert torch.equal(found[1], expected[1])
        tolerance = 1e-12 if dtype is F64 else 1e-3
        for one, right in zip(found, expected, strict=True):
            torch.testing.assert_close(one, right, rtol=tolerance, atol=tolerance)
    assert (program(spoilt, rhs)[1] > 0).tolist() == [False, True, True]


def test_a_step_that_factors_is_one_segment():
    matrix, rhs = 4 * torch.eye(5, dtype=F64)[None], torch.ones(1, 5, dtype=F64)
    source = Segments(Recorded(lambda *x: _step(*x), (matrix, rhs)).graph, F64).source
    assert source.count("segment_") == 1 and "factored(u" in source
    large = 4 * torch.eye(LARGEST_SYSTEM + 1, dtype=F64)[None], torch.ones(1, LARGEST_SYSTEM + 1, dtype=F64)
    text = Segments(Recorded(lambda *x: _step(*x), large).graph, F64).source
    assert text.count("factored(") == 1  # that of the header: it stays with LAPACK


def test_results_are_memory_of_their_own():
    def function(x):
        y = x * 2
        return [y + 1, y - 1, (y * y).T, y[0] + 0]

    _, program = program_of(function, ORDINARY[0])
    before = program(ORDINARY[0])
    kept = [x.clone() for x in before]
    program(ORDINARY[1])
    for one, other in zip(before, kept, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_other_layouts_are_laid_out_and_negated_numbers_are_read_as_they_are():
    recorded, program = program_of(lambda x: [x * 2 + 1, (x - 1).sum(0) * 2], ORDINARY[0])
    negated = torch.complex(ORDINARY[0], ORDINARY[1]).conj().imag
    for x in (ORDINARY[0].T.contiguous().T, ORDINARY[0][:, [3, 2, 1, 0]], negated):
        for found, expected in zip(program(x), recorded.flat([x]), strict=True):
            torch.testing.assert_close(found, expected)


def test_an_index_out_of_range_is_left_to_pytorch():
    def function(x, i):
        return [torch.index_select(x * 2, 0, i) + 1, x + 1, x - 1]

    _, program = program_of(function, ORDINARY[0], INDEX % 3)
    with pytest.raises(UnfitError, match="out of range"):
        program(ORDINARY[0], INDEX + 5)
    _, program = program_of(lambda x, i: [(x * 2)[i] + 1, x + 1, x - 1], ORDINARY[0], INDEX - 3)
    with pytest.raises(UnfitError, match="out of range"):
        program(ORDINARY[0], INDEX - 6)


def test_graphs_that_write_or_have_nothing_to_gain_are_refused():
    def writes(x):
        y = x * 2
        y[0] = 1
        return [y + 1, y * 3, y - 1]

    for function, says in ((writes, "writes"), (lambda x: [x + 1], "pays")):
        with pytest.raises(NoLoopError, match=says):
            Segments(Recorded(function, (ORDINARY[0],)).graph, F64)


def test_what_depends_on_shapes_alone_is_computed_once():
    def function(x):
        jacobian = torch.func.vmap(torch.func.jacfwd(lambda p: torch.sin(p) * p.sum()))(x)
        return [jacobian + 1, jacobian.sum(-1), torch.arange(3.0, dtype=F64) * 2 + x[0, :3], x * 2]

    recorded, program = program_of(function, ORDINARY[0])
    assert any(is_write(node.target) for node in recorded.graph.graph.nodes)
    for x in (ORDINARY[0], ORDINARY[1], ORDINARY[0]):
        for found, expected in zip(program(x), function(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)


def test_a_constant_that_is_written_to_after_it_was_read_is_refused():
    def function(x):
        total = x.new_zeros(3, 4)
        first = total + x
        total[0] = 5
        return [first * 2, total + x, x - 1, x * 3]

    with pytest.raises(NoLoopError, match="has been read"):
        Segments(Recorded(function, (ORDINARY[0],)).graph, F64)
