"""The first damping of Levenberg–Marquardt: by how long a step is against the variables, whatever their number."""

import pytest
import torch

import mslsq

F64 = torch.float64
T = torch.linspace(0, 1, 32, dtype=F64)


def exponential(p, y):
    return p[0] * torch.exp(p[1] * T) + p[2] - y


def first(solution):
    return solution.history.damping[..., 0]


def test_a_start_near_the_solution_is_hardly_damped_and_a_far_one_is():
    true = torch.tensor([1.0, -1.0, 0.5], dtype=F64)
    y = exponential(true, 0.0)
    starts = torch.stack((true * 1.01, torch.tensor([1.0, 1.0, 0.0], dtype=F64)))
    solution = mslsq.least_squares(exponential, starts, (y,), in_dims=(0, None))
    assert first(solution).tolist() == [1e-8, 1e-2]
    alone = [first(mslsq.least_squares(exponential, start, (y,))).item() for start in starts]
    assert alone == [1e-8, 1e-2]  # no problem of a batch decides for another
    assert solution.converged.all() and torch.allclose(solution.value, true.expand(2, -1), atol=1e-6)


def test_variables_that_start_at_zero_have_no_size_and_are_damped():
    solution = mslsq.least_squares(lambda p: T * p[0] + p[1] - 3.0, torch.zeros(2, dtype=F64))
    assert first(solution).item() == 1e-2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("unit", [2.0**-20, 2.0**20])
def test_the_units_of_the_variables_change_nothing(unit):
    y = exponential(torch.tensor([1.0, -1.0, 0.5], dtype=F64), 0.0)
    for start in ([1.02, -1.03, 0.51], [1.0, 2.0, 0.1]):
        start = torch.tensor(start, dtype=F64)
        scale = torch.tensor([1.0, unit, 1.0], dtype=F64)
        one = mslsq.least_squares(exponential, start, (y,))
        other = mslsq.least_squares(lambda p, y, s=scale: exponential(p * s, y), start / scale, (y,))
        assert first(one) == first(other)
        assert one.num_steps == other.num_steps


def kinked(x):
    """Flat where it starts, steep just beside: the linear model is wrong at once."""
    return torch.stack((x[0] - 100.8, 1e3 * torch.nn.functional.softplus(500 * (x[0] - 100.1))))


def test_a_first_step_of_the_least_damping_that_fails_is_followed_by_shorter_ones():
    solution = mslsq.least_squares(kinked, torch.tensor([100.0], dtype=F64))
    damping, accepted, length = solution.history.damping, solution.history.accepted, solution.history.step_norm
    first = int(accepted.to(torch.int64).argmax())  # the first success
    assert first > 1 and (damping[:first] == 1e-8).all()
    shares = length[2 : first + 1] / length[1:first]
    assert (shares >= 0.1 - 1e-6).all() and (shares <= 0.5 + 1e-6).all()
    assert damping[first] == pytest.approx(1e-9)
    assert solution.converged
    other = mslsq.least_squares(kinked, torch.tensor([100.0], dtype=F64), solver=mslsq.Dogleg())
    assert torch.allclose(solution.value, other.value, rtol=1e-9)


def test_a_first_step_to_where_nothing_is_finite_is_followed_by_more_damping():
    """A share of the step holds back all variables: it is for costs that have risen."""
    solution = mslsq.least_squares(
        lambda x: torch.stack((x[0] - 100.8, 1e-3 * torch.log(100.5 - x[0]))), torch.tensor([100.0], dtype=F64)
    )
    damping, accepted = solution.history.damping, solution.history.accepted
    assert damping[0] == 1e-8 and not accepted[1]
    assert damping[1] == 1e-4
    assert (damping[2 : int(accepted.to(torch.int64).argmax())] > 1e-4).all()


def test_a_column_that_collapses_is_followed_by_more_damping():
    """The cost falls, but the second variable has all but lost its influence."""

    def residual(x):
        return torch.stack((x[0] - 101.0, 0.1 * torch.exp(1e2 * (100.0 - x[0])) * (x[1] - 100.0)))

    solution = mslsq.least_squares(residual, torch.tensor([100.0, 100.0], dtype=F64))
    damping, accepted = solution.history.damping, solution.history.accepted
    assert damping[0] == 1e-8 and not accepted[1]
    assert damping[1] == 1e-4


def test_damping_falls_to_a_third_after_a_short_first_step_and_to_a_tenth_after_the_shortest():
    """Steps of a linear problem have a gain of 1."""
    solver = mslsq.LevenbergMarquardt(ftol=0, xtol=0, gtol=0, max_steps=1)
    for end, first_damping, share in ((0.99, 1e-8, 0.1), (0.95, 1e-4, 1 / 3), (0.0, 1e-2, 0.2)):
        solution = mslsq.least_squares(lambda p, y: T * p[0] - y, torch.ones(1, dtype=F64), (end * T,), solver=solver)
        damping = solution.history.damping
        assert damping[0] == first_damping
        assert damping[1].item() == pytest.approx(share * first_damping, rel=1e-6)


def test_a_first_step_of_more_damping_that_fails_is_followed_by_more_damping():
    solution = mslsq.least_squares(lambda x: kinked(x + 99.0), torch.tensor([1.0], dtype=F64))
    damping, accepted = solution.history.damping, solution.history.accepted
    assert damping[0] == 1e-2 and not accepted[1]
    assert damping[1] > damping[0]


@pytest.mark.parametrize(("length", "end"), [(1.0, 1.5), (1.0, 4.0), (1.0, 40.0), (0.25, 1.2)])
def test_a_failed_step_is_cut_to_the_least_of_a_parabola(length, end):
    """Cost 1 at the start, slope -s, `end` at this length; the undamped model falls by (t - t²/2) s."""
    s = 2.0
    gain = (1 - end) / ((length - length**2 / 2) * s)
    curvature = (end - 1 + s * length) / length**2
    least = s / (2 * curvature)
    found = mslsq.LevenbergMarquardt._cut(torch.tensor([length], dtype=F64), torch.tensor([gain], dtype=F64))
    assert found.item() == pytest.approx(min(max(least, 0.1 * length), 0.5 * length), rel=1e-12)


def test_a_given_damping_is_the_first_one():
    solver = mslsq.LevenbergMarquardt(initial_damping=0.25)
    solution = mslsq.least_squares(lambda p: T * p[0] + p[1] - 3.0, torch.ones(2, dtype=F64), solver=solver)
    assert first(solution).item() == 0.25


def test_a_large_and_a_small_graph_of_one_kind_start_alike():
    """Nothing depends on the number of unknowns."""
    for count in (20, 200):
        pose = mslsq.Variable("pose", mslsq.SE2, count=count)
        i = torch.arange(count - 1)
        truth = mslsq.SE2.from_xyt(
            torch.stack((torch.arange(count), torch.zeros(count), torch.zeros(count)), -1).to(F64)
        )
        moved = truth.retract(0.01 * torch.randn(count, 3, dtype=F64, generator=torch.Generator().manual_seed(0)))
        problem = mslsq.Problem(
            mslsq.Between(pose[i], pose[i + 1], measured=truth[:-1].inverse() @ truth[1:]),
            mslsq.Prior(pose[0], target=truth[:1], name="anchor"),
        )
        assert first(mslsq.solve(problem, {"pose": moved})).item() == 1e-8
