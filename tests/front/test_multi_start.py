"""multi_start: the best of many starts per problem, equal minima merged, derivatives as of one solve."""

import pytest
import torch
from torch.func import jacrev, vmap

import mslsq
from mslsq.datasets.classic import PROBLEMS
from mslsq.front.starts import sampled
from mslsq.problem.errors import ProblemError, ShapeError

F64 = torch.float64
T = torch.linspace(0, 1, 50, dtype=F64)
BOX = (torch.tensor([0.1, 0.0], dtype=F64), torch.tensor([3.0, 40.0], dtype=F64))
START = torch.tensor([1.0, 10.0], dtype=F64)


def wave(p, y):
    return p[0] * torch.sin(p[1] * T) - y


def two_wells(x):
    """Minima at −1 (cost 0.02) and 1 (cost 0), from the sign of the start."""
    return torch.stack([x[0] ** 2 - 1, 0.1 * (x[0] - 1)])


def test_a_frequency_is_found_where_one_start_is_lost():
    y = torch.sin(21 * T)
    alone = mslsq.least_squares(wave, START, (y,), bounds=BOX)
    found = mslsq.multi_start(wave, START, (y,), starts=64, bounds=BOX)
    assert float(alone.cost) > 1
    torch.testing.assert_close(found.solution.value, torch.tensor([1.0, 21.0], dtype=F64))
    assert bool(found.solution.converged) and int(found.solution.num_steps) <= 2


def test_the_global_minimum_of_freudenstein_and_roth():
    """From the authors' start every method ends in the local one."""
    problem = PROBLEMS["freudenstein_roth"]
    found = mslsq.multi_start(problem.residual, problem.start, starts=64, spread=5.0)
    costs = 2 * found.minima.cost[:2]
    torch.testing.assert_close(costs, torch.tensor(problem.minima, dtype=F64), rtol=1e-6, atol=1e-12)
    assert torch.isinf(found.minima.cost[2])
    assert int(found.minima.count.sum() + found.num_failed) == 64


def test_starts_that_come_to_one_minimum_are_counted_as_one():
    starts = torch.tensor([[2.0], [1.5], [-2.0], [0.7], [-0.9]], dtype=F64)
    found = mslsq.multi_start(two_wells, starts[0], starts=starts)
    assert found.minima.count.tolist() == [3, 2, 0, 0, 0]
    worse = mslsq.least_squares(two_wells, starts[2])
    torch.testing.assert_close(found.minima.value[:2, 0], torch.stack([torch.ones((), dtype=F64), worse.value[0]]))
    torch.testing.assert_close(found.minima.cost[1], worse.cost)
    assert found.minima.cost[2:].isinf().all()


@pytest.mark.slow
def test_every_problem_of_a_batch_has_its_own_best():
    ys = torch.stack([torch.sin(21 * T), 2 * torch.sin(7 * T), torch.sin(33 * T)])
    found = mslsq.multi_start(wave, START, (ys,), starts=64, bounds=BOX, in_dims=(None, 0))
    expected = torch.tensor([[1.0, 21.0], [2.0, 7.0], [1.0, 33.0]], dtype=F64)
    torch.testing.assert_close(found.solution.value, expected, rtol=1e-6, atol=1e-8)
    assert found.minima.cost.shape == (3, 64)
    mapped = vmap(lambda y: mslsq.multi_start(wave, START, (y,), starts=64, bounds=BOX))(ys)
    torch.testing.assert_close(mapped.solution.value, expected, rtol=1e-6, atol=1e-8)
    for k in range(3):
        alone = mslsq.multi_start(wave, START, (ys[k],), starts=64, bounds=BOX)
        assert alone.minima.count[0] == found.minima.count[k, 0] == mapped.minima.count[k, 0]


def test_another_axis_of_problems_and_starts_for_each():
    ys = torch.stack([torch.sin(21 * T), torch.sin(7 * T)], 1)
    starts = torch.tensor([[[1.0, 20.0], [1.0, 2.0]], [[1.0, 2.0], [1.0, 7.5]]], dtype=F64)  # (starts, problems, 2)
    x0 = torch.stack([START, START], 1)
    found = mslsq.multi_start(wave, x0, (ys,), starts=starts, in_dims=1)
    torch.testing.assert_close(found.solution.value[:, 1], torch.tensor([21.0, 7.0], dtype=F64))


def test_a_sampler_draws_starts_of_its_own():
    """Frequencies from 15 to 25 alone, where five starts of the whole box find none."""
    y, seen = torch.sin(21 * T), []

    def sampler(generator: torch.Generator) -> torch.Tensor:
        seen.append(torch.rand(5, generator=generator, dtype=F64))
        return torch.stack([torch.ones(5, dtype=F64), 15 + 10 * seen[-1]], 1)

    found = mslsq.multi_start(wave, START, (y,), starts=sampler, bounds=BOX, seed=3)
    torch.testing.assert_close(found.solution.value, torch.tensor([1.0, 21.0], dtype=F64))
    by_hand = mslsq.multi_start(
        wave, START, (y,), starts=torch.stack([torch.ones(5), 15 + 10 * seen[0]], 1), bounds=BOX
    )
    assert torch.equal(found.minima.cost, by_hand.minima.cost)
    mslsq.multi_start(wave, START, (y,), starts=sampler, bounds=BOX, seed=3)
    assert torch.equal(seen[0], seen[1])
    with pytest.raises(ShapeError, match="expected \\(starts, \\*\\(2,\\)\\)"):
        mslsq.multi_start(wave, START, (y,), starts=lambda generator: torch.rand(5, 3), bounds=BOX)


def test_a_start_that_is_not_finite_harms_no_other():
    starts = torch.tensor([[torch.nan], [-2.0], [2.0]], dtype=F64)
    found = mslsq.multi_start(two_wells, starts[1], starts=starts)
    assert float(found.solution.value) == pytest.approx(1.0)
    assert (int(found.num_failed), found.minima.count.tolist()) == (1, [1, 1, 0])


def test_where_no_start_converges_the_least_cost_is_kept_and_said_so():
    solver = mslsq.LevenbergMarquardt(max_steps=1)
    problem = PROBLEMS["rosenbrock"]
    found = mslsq.multi_start(problem.residual, problem.start, starts=8, solver=solver)
    assert int(found.num_failed) == 8 and not bool(found.solution.converged)
    assert found.minima.count.sum() == 0 and found.minima.cost.isinf().all()
    assert bool(torch.isfinite(found.solution.cost))


def test_derivatives_are_those_of_a_solve_from_the_best_start():
    y = torch.sin(21 * T) + 0.05 * torch.cos(3 * T)

    def best(y):
        return mslsq.multi_start(wave, START, (y,), starts=64, bounds=BOX).solution.value

    near = torch.tensor([1.0, 21.0], dtype=F64)
    expected = jacrev(lambda y: mslsq.least_squares(wave, near, (y,)).value)(y)
    torch.testing.assert_close(jacrev(best)(y), expected, rtol=1e-5, atol=1e-7)
    y = y.requires_grad_()
    best(y).sum().backward()
    torch.testing.assert_close(y.grad, expected.sum(0), rtol=1e-5, atol=1e-7)


def test_pytrees_and_manifolds_are_moved_and_merged():
    target = mslsq.SO3.exp(torch.tensor([0.0, 0.0, 3.0], dtype=F64))
    points = torch.randn(6, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    seen = target.act(points) + 1.0

    def residual(x):
        return x["rotation"].act(points) + x["shift"] - seen

    x0 = {"rotation": mslsq.SO3.identity(dtype=F64), "shift": torch.zeros(3, dtype=F64)}
    found = mslsq.multi_start(residual, x0, starts=16, spread=1.0)
    torch.testing.assert_close(found.solution.value["rotation"].act(points), target.act(points))
    assert int(found.minima.count[0]) >= 8  # q and −q are one rotation
    assert found.minima.value["rotation"].storage.shape == (16, 4)


def test_samples_fill_the_box_evenly_and_start_with_the_start():
    x0 = torch.tensor([1.0, 0.0, 5.0], dtype=F64)
    bounds = (torch.tensor([0.0, -torch.inf, 4.0], dtype=F64), torch.tensor([2.0, torch.inf, torch.inf], dtype=F64))
    starts = sampled(x0, 101, bounds, 1.0, 0, False)
    assert torch.equal(starts[0], x0)
    slices = (starts[1:, 0] / 2 * 100).floor().long()
    assert slices.sort().values.tolist() == list(range(100))  # one in each: a Latin hypercube
    assert abs(float(starts[1:, 1].std()) - 1) < 0.1
    assert bool((starts[:, 2] >= 4).all())
    assert torch.equal(starts, sampled(x0, 101, bounds, 1.0, 0, False))
    assert not torch.equal(starts, sampled(x0, 101, bounds, 1.0, 1, False))


def test_float32_stays_float32():
    found = mslsq.multi_start(two_wells, torch.tensor([-2.0]), starts=16, spread=2.0)
    assert found.solution.value.dtype == torch.float32
    assert float(found.solution.value) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"starts": 0}, ProblemError, "starts"),
        ({"tolerance": 0.0}, ProblemError, "tolerance"),
        ({"spread": -1.0}, ProblemError, "spread"),
        ({"starts": torch.zeros(3, 2)}, ShapeError, r"\(starts, \*\(1,\)\)"),
        ({"starts": {"a": torch.zeros(3, 1)}}, ProblemError, "structure"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, says):
    with pytest.raises(error, match=says):
        mslsq.multi_start(two_wells, torch.zeros(1, dtype=F64), **options)
