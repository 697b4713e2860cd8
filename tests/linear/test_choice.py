"""Which solver a system gets: by its blocks where that is estimated to be faster than a dense factorisation."""

import numpy as np
import pytest
import torch

import mslsq
from mslsq.datasets.pose_graph import PoseGraph
from mslsq.kernels import available
from mslsq.linear.block_structure import analyze
from mslsq.linear.choice import blocks_are_faster, worth_looking_for_blocks

pytestmark = pytest.mark.skipif(not available(), reason="blocks are for kernels")
F64 = torch.float64


def chain(blocks, loops=()):
    """A chain of blocks of three unknowns, and loops."""
    pairs = [(k + 1, k) for k in range(blocks - 1)] + list(loops)
    rows, columns = np.array(pairs).T
    return analyze(np.full(blocks, 3), rows=rows, cols=columns)


def full(blocks):
    return chain(blocks, [(i, j) for i in range(blocks) for j in range(i - 1)])


def test_a_single_system_is_factored_by_its_blocks_where_that_saves_more_than_it_costs():
    assert not blocks_are_faster(chain(20), batch=1)
    assert blocks_are_faster(chain(80), batch=1)
    assert not blocks_are_faster(full(80), batch=1)


def test_a_batch_is_factored_by_its_blocks_from_smaller_sizes_on():
    assert blocks_are_faster(chain(20), batch=64)


def test_structures_are_analysed_only_where_that_may_save_something():
    assert not worth_looking_for_blocks(size=60, components=1, batch=1)
    assert worth_looking_for_blocks(size=180, components=1, batch=1)
    assert worth_looking_for_blocks(size=100, components=1, batch=64)
    assert not worth_looking_for_blocks(size=180, components=3, batch=1)


def loop(count):
    """Noisy poses around a lake, with the measurements between neighbours."""
    generator = torch.Generator().manual_seed(0)
    angle = torch.arange(count, dtype=F64) * (2 * torch.pi / count)
    xyt = torch.stack([10 * torch.cos(angle), 10 * torch.sin(angle), angle + torch.pi / 2], 1)
    truth = mslsq.SE2.from_xyt(xyt)
    first = torch.arange(count)
    second = (first + 1) % count
    noise = 0.02 * torch.randn(2, count, 3, generator=generator, dtype=F64)
    measured = truth[first].between(truth[second]).retract(noise[0])
    poses = truth.retract(5 * noise[1])
    information = torch.eye(3, dtype=F64).expand(count, 3, 3).clone()
    ids, fixed = torch.arange(count), torch.zeros(1, dtype=torch.int64)
    return PoseGraph("loop", poses, first, second, measured, information, ids, fixed)


def test_a_small_graph_has_the_solution_and_the_derivatives_of_a_dense_one():
    graph = loop(80)
    problem, found = graph.problem(), []
    for linear_solver in ("auto", mslsq.linear.Cholesky()):
        measured = graph.measured.storage.clone().requires_grad_()
        solution = mslsq.solve(
            problem,
            {"pose": graph.poses},
            data={"between": {"measured": mslsq.SE2(measured)}},
            solver=mslsq.LevenbergMarquardt(linear_solver=linear_solver),
        )
        assert bool(solution.converged) and bool(solution.differentiable)
        value = solution.value["pose"].storage
        (gradient,) = torch.autograd.grad((value * torch.arange(4, dtype=F64)).sum(), measured)
        found.append((value.detach(), gradient, int(solution.num_steps)))
    (value, gradient, steps), (dense_value, dense_gradient, dense_steps) = found
    torch.testing.assert_close(value, dense_value, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(gradient, dense_gradient, rtol=1e-5, atol=1e-7)
    assert steps == dense_steps


def test_verbose_says_which_one_it_is(capsys):
    graph = loop(80)
    mslsq.solve(graph.problem(), {"pose": graph.poses}, solver=mslsq.LevenbergMarquardt(verbose=True))
    assert "SparseCholesky" in capsys.readouterr().out
