"""Kernels of block-sparse normal equations called within loops give the bits that PyTorch's operators give."""

import gc

import numpy as np
import pytest
import torch

import mslsq
from mslsq.linear.block_products import recorded_product, symmetric_product_of
from mslsq.linear.block_structure import analyze
from mslsq.linear.normal_products import (
    NormalPlan,
    PairPlan,
    VariablePlan,
    normal_equations,
    normal_gradient,
    normal_matrix,
)
from mslsq.linear.sparse import multifrontal
from mslsq.native.graphs import block_systems
from mslsq.native.graphs.segments import Segments
from mslsq.native.graphs.splitting import Segment
from mslsq.native.store import request
from mslsq.solvers.short_loop import ShortLoop
from mslsq.tracing.recording import Recorded

pytestmark = [pytest.mark.usefixtures("cxx"), pytest.mark.kernels]

SIZES = np.array([3, 2, 3, 1])
ROWS, COLS = np.array([1, 2, 3, 3]), np.array([0, 0, 1, 2])


def program_of(function, *example):
    """The graph of a function, the same with segments, and what stands between these."""
    recorded = Recorded(lambda *x: function(*x), example)
    segments = Segments(recorded.graph, example[0].dtype)
    between = [x for x in segments._order if not isinstance(x, Segment) and x.op == "call_function"]
    build = request(segments.source, wait=True)
    assert not build.why, build.why
    return recorded, segments.callable(build.library()), between, segments.whole(build.library())


def values_of(structure, batch, dtype):
    """Matrices of this structure that are positive definite, but for the second and the third, if there are as many."""
    generator = torch.Generator().manual_seed(batch)
    values = 0.1 * torch.randn(batch, structure.num_values, generator=generator, dtype=dtype)
    values[:, structure.diagonal_index] = 4.0
    if batch > 2:
        values[1, structure.diagonal_index[2]], values[2, 0] = -4.0, torch.nan
    return values


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("columns", [1, 3])
def test_factors_and_solutions(dtype, batch, columns):
    structure = analyze(SIZES, rows=ROWS, cols=COLS)
    plan, values = structure.elimination.packed, values_of(structure, batch, dtype)
    generator = torch.Generator().manual_seed(0)
    rhs = torch.randn(columns, batch, structure.num_unknowns, generator=generator, dtype=dtype).permute(1, 2, 0)

    def function(values, shift, rhs):
        factors, definite = multifrontal.factor(2 * values, shift * 0.5, *plan)
        plain, _ = multifrontal.factor(values + 0.5 * values, values.new_zeros(0), *plan)
        found = multifrontal.solve(factors, definite, rhs - 1.0, *plan)
        return [factors, definite, plain, found + 1.0, multifrontal.solve(factors, ~definite, 2 * found, *plan)]

    shift = torch.rand(batch, structure.num_unknowns, generator=generator, dtype=dtype)
    recorded, program, between, whole = program_of(function, values, shift, rhs)
    assert not between and whole is not None
    expected = recorded.flat([values, shift, rhs])
    assert expected[1].tolist() == ([True, False, False, True] if batch > 2 else [True])
    for found, wanted in zip(program(values, shift, rhs), expected, strict=True):
        assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_products_with_symmetric_matrices(dtype):
    structure = analyze(SIZES, rows=ROWS, cols=COLS)
    plan, values = symmetric_product_of(structure).packed, values_of(structure, 2, dtype)
    x = torch.randn(structure.num_unknowns, 6, dtype=dtype).T  # three vectors for each matrix, not along memory

    def function(values, x):
        return [recorded_product(2 * values, x + 1, *plan) * 3, recorded_product(values - 1, x[::3] * 2, *plan)]

    recorded, program, between, whole = program_of(function, values, x)
    assert not between and whole is not None
    for found, wanted in zip(program(values, x), recorded.flat([values, x]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=4 * torch.finfo(dtype).eps, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lanes_last", [True, False])
def test_normal_equations(dtype, lanes_last):
    lanes, first, second = 6, torch.arange(6), torch.tensor([0, 2, 4])
    pairs = (
        PairPlan(0, 0, 2, 2, first, 4 * first),
        PairPlan(2, 0, 3, 2, second, 24 + 6 * torch.arange(3)),
    )
    variables = (VariablePlan(0, 2, first, 2 * first), VariablePlan(2, 3, second, 12 + 3 * torch.arange(3)))
    plan = NormalPlan(42, 21, pairs, variables).in_one_piece().packed
    jacobian = torch.randn(2, 4, 5, lanes, dtype=dtype)
    if not lanes_last:
        jacobian = torch.randn(lanes, 2, 5, 4, dtype=dtype).permute(1, 3, 2, 0)
    residual = torch.randn(2, 4, lanes, dtype=dtype)

    def function(jacobian, residual):
        both = normal_equations(jacobian * 2, residual + 1, *plan)
        return [*both, normal_matrix(jacobian + 1, *plan) + 0, normal_gradient(jacobian - 1, residual, *plan)]

    recorded, program, between, whole = program_of(function, jacobian, residual)
    assert not between and whole is not None
    for found, wanted in zip(program(jacobian, residual), recorded.flat([jacobian, residual]), strict=True):
        assert torch.equal(found, wanted)


def test_a_factorisation_that_is_shared_out_between_threads_stays_with_pytorch(monkeypatch):
    monkeypatch.setattr(block_systems.multifrontal, "WORTH_THREADS", 10)
    structure = analyze(SIZES, rows=ROWS, cols=COLS)
    plan, values = structure.elimination.packed, values_of(structure, 1, torch.float64)

    def function(values):
        scaled = 2 * values * values * 3 - values
        factors, definite = multifrontal.factor(values + scaled * 0, values.new_zeros(0), *plan)
        return [multifrontal.solve(factors, definite, values.new_ones(1, 9, 1), *plan), scaled]

    recorded, program, between, whole = program_of(function, values)
    assert {str(node.target) for node in between} >= {"mslsq.block_cholesky_factor.default"} and whole is None
    assert torch.equal(program(values)[0], recorded.flat([values])[0])


def test_a_step_of_a_sparse_graph_is_one_call_with_the_numbers_of_pytorch():
    """Sixty poses, as a user writes them: the loop around native steps ends where the steps of PyTorch end."""
    generator = torch.Generator().manual_seed(0)
    truth = mslsq.SE2.random(60, generator=generator, dtype=torch.float64)
    i = torch.cat((torch.arange(59), torch.arange(0, 50, 5)))
    j = torch.cat((torch.arange(1, 60), torch.arange(9, 59, 5)))
    noise = 0.05 * torch.randn(len(i), 3, generator=generator, dtype=torch.float64)
    measured = truth[i].between(truth[j]).retract(noise)
    between = mslsq.cost(lambda a, b, measured: (measured.inverse() @ (a.inverse() @ b)).log())
    pose = mslsq.Variable("pose", mslsq.SE2, count=60)
    problem = mslsq.Problem(
        between(pose[i], pose[j], measured=measured, weight=3.0, name="between"),
        mslsq.Prior(pose[[0]], target=truth[:1], weight=100.0),
    )
    moved = 0.2 * torch.randn(60, 3, generator=generator, dtype=torch.float64)
    start = {"pose": truth.retract(moved)}
    plain = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(native="never", trace="never"))
    before = set(map(id, _native_loops()))
    call = mslsq.prepared(problem, start, solver=mslsq.LevenbergMarquardt(native="wait", trace="always"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mslsq.native.graphs.prospect.OPERATIONS", 0)
        ended = [call(start) for _ in range(6)]
    loops = [loop for loop in _native_loops() if id(loop) not in before]
    assert any(loop.step is not None for loop in loops)
    for solution in ended:
        assert int(solution.num_steps) == int(plain.num_steps)
        torch.testing.assert_close(solution.value["pose"].storage, plain.value["pose"].storage, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(solution.cost, plain.cost, rtol=1e-12, atol=0)


def _native_loops():
    found = [native[2] for x in gc.get_objects() if type(x) is ShortLoop for native in x.native]
    return [loop for loop in found if loop is not None]
