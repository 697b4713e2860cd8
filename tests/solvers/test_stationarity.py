"""What "Converged" means: the same in all units, and never a step that was only held back."""

import dataclasses
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from scipy.optimize import least_squares as scipy_least_squares

import mslsq
from mslsq.linear.storage import DenseNormal
from mslsq.manifolds.space import space_of
from mslsq.problem.leaf import leaf_space
from mslsq.solution import Status
from mslsq.solvers.stationarity import gradient_floor, gradient_met, nearly_stationary, squared_length

F32, F64 = torch.float32, torch.float64
SOLVERS = [mslsq.LevenbergMarquardt(), mslsq.Dogleg(), mslsq.GaussNewton()]
PER_SOLVER = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
PER_DTYPE = pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
T = torch.linspace(0, 1, 20, dtype=F64)


# ---- units -------------------------------------------------------------------------------------------


@PER_SOLVER
@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1.0, 1e9])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_unit_of_the_data_changes_nothing(solver, unit, noise):
    """An amplitude in that unit, a rate in none: MINPACK's answer."""
    y = 2 * torch.exp(-1.5 * T) + noise * torch.cos(40 * T)

    def residual(p, y):
        return p[0] * torch.exp(p[1] * T) - y

    solution = mslsq.least_squares(residual, torch.tensor([unit, -1.0], dtype=F64), (unit * y,), solver=solver)
    reference = scipy_least_squares(
        lambda p: residual(torch.as_tensor(p), y).numpy(), [1.0, -1.0], method="lm", xtol=1e-14
    )
    assert bool(solution.converged)
    assert torch.allclose(solution.value / torch.tensor([unit, 1.0]), torch.as_tensor(reference.x), rtol=1e-7)


@PER_SOLVER
@PER_DTYPE
def test_residuals_in_small_units_are_solved_in_as_many_steps(solver, dtype):
    y = (2 * torch.exp(-1.5 * T) + 0.01 * torch.cos(40 * T)).to(dtype)
    t, start = T.to(dtype), torch.tensor([1.0, -1.0], dtype=dtype)
    plain, small = (
        mslsq.least_squares(lambda p, c=c: c * (p[0] * torch.exp(p[1] * t) - y), start, solver=solver)
        for c in (1.0, 2.0**-33)  # a power of two: the same roundings
    )
    assert int(small.num_steps) == int(plain.num_steps) and bool(small.converged) == bool(plain.converged)
    assert torch.allclose(small.value, plain.value, rtol=1e-5 if dtype == F32 else 1e-12)


def test_a_variable_in_large_units_does_not_end_the_search_for_the_others():
    """A frequency of 1e9 next to an amplitude of 1e-3: steps of the amplitude are below xtol times |x|."""
    y = 2e-3 * torch.cos(4 * T) + 1e-3

    def residual(p):
        return p[0] * torch.cos(1e-9 * p[1] * T) + p[2] - y

    solution = mslsq.least_squares(residual, torch.tensor([1e-3, 3.5e9, 0.0], dtype=F64))
    assert torch.allclose(solution.value, torch.tensor([2e-3, 4e9, 1e-3], dtype=F64), rtol=1e-8)


def test_a_gtol_that_is_given_is_in_the_units_of_the_gradient():
    solver = mslsq.LevenbergMarquardt(gtol=1e-3)
    solution = mslsq.least_squares(lambda x: 1e-3 * (x - 0.5), torch.zeros(3, dtype=F64), solver=solver)
    assert Status(int(solution.status)) is Status.GRADIENT_TOLERANCE and int(solution.num_steps) == 0
    assert int(mslsq.least_squares(lambda x: 1e-3 * (x - 0.5), torch.zeros(3, dtype=F64)).num_steps) > 0


def test_a_start_at_a_huge_residual_is_no_reference():
    """exp(60) falls by 26 orders of magnitude on the way; what is left is not zero for that."""
    start, solver = torch.tensor([60.0], dtype=F64), mslsq.GaussNewton()
    solution = mslsq.least_squares(lambda x: torch.exp(x) - T - 1, start, solver=solver)
    assert bool(solution.converged)
    assert float(solution.value[0]) == pytest.approx(float((T + 1).mean().log()), abs=1e-9)


@PER_SOLVER
def test_ranges_to_far_landmarks_end_as_converged(solver):
    """Three ranges, three unknowns: the rounding that is left is that of the landmarks, which no step lowers."""
    random = torch.Generator().manual_seed(0)
    landmarks = 10 * torch.randn(512, 3, 3, dtype=F64, generator=random)
    place = torch.randn(512, 3, dtype=F64, generator=random)

    def residual(p, landmarks, ranges):
        return (landmarks - p).norm(dim=-1) - ranges

    solution = mslsq.least_squares(
        residual,
        torch.zeros(3, dtype=F64),
        (landmarks, (landmarks - place[:, None]).norm(dim=-1)),
        in_dims=(None, 0, 0),
        solver=solver,
    )
    assert bool(solution.converged.all())
    assert float(solution.cost.max()) < 1e-24


@PER_SOLVER
def test_a_start_at_the_solution_zero_is_a_solution_though_rounding_is_left(solver):
    """Nothing there is of a size to which 1e-16 could be compared: it converges when no step helps."""
    y = torch.exp(0.3 * T)
    solution = mslsq.least_squares(
        lambda p: torch.exp(0.1 * T + p[0] * T) * torch.exp(0.2 * T) + p[1] * T - y,
        torch.zeros(2, dtype=F64),
        solver=solver,
    )
    assert 0 < float(solution.cost) < 1e-30
    assert bool(solution.converged) and bool(solution.differentiable)


# ---- kinks -------------------------------------------------------------------------------------------


def valley(v):
    return torch.stack((1 + 10 * (v[1] - v[0]).abs(), v[0] - 3))


def hinge(v):
    return torch.stack((1 + 5 * torch.relu(v[0] - v[1]), v[0] - 3, 0.5 * (v[1] + 1)))


def largest(v):
    return torch.stack((torch.maximum(v[0] + 2 * v[1], 3 - v[0]) + 1, 0.1 * v[1] - 0.3))


def huber_seam(v):
    r = torch.stack((v[0] - 2 * v[1], 3 * v[0] + v[1] - 4))
    return torch.cat((torch.where(r.abs() < 1, r, 0.5 + 0.5 * r.abs()), v[:1] - 1))


GRID = torch.randn(9, 9, generator=torch.Generator().manual_seed(3), dtype=F64).abs() + 0.2


def bilinear(v):
    """A distance field between the nodes of a grid, looked up at two points a fixed way apart."""
    field = GRID.to(v.dtype)
    values = []
    for shift in (0.0, 1.7):
        place = (v + shift).clamp(0, 7.999)
        low = place.detach().floor()
        i, j = low.long().unbind()
        a, b = (place - low).unbind()
        above = (1 - b) * field[i, j] + b * field[i, j + 1]
        below = (1 - b) * field[i + 1, j] + b * field[i + 1, j + 1]
        values.append((1 - a) * above + a * below)
    return torch.stack(values)


def lowest_around(field, point, size):
    """The lowest cost within a neighbourhood, by a grid and finer ones around the best of it."""
    best, width = point.double(), size
    for _ in range(12):
        offsets = torch.linspace(-width, width, 41, dtype=F64)
        points = best + torch.cartesian_prod(offsets, offsets)
        costs = 0.5 * torch.func.vmap(field)(points).square().sum(1)
        best, width = points[costs.argmin()], width / 8
    return float(0.5 * field(best).square().sum())


FIELDS = [valley, hinge, largest, huber_seam, bilinear]
STARTS = torch.tensor([[0.0, 1.0], [0.3, 0.4], [-1.0, 2.0], [5.0, 0.2], [3.3, 4.9], [2.5, 5.1]], dtype=F64)


@pytest.mark.sampled(6)
@PER_SOLVER
@PER_DTYPE
@pytest.mark.parametrize("field", FIELDS)
def test_converged_is_no_further_from_the_minimum_than_it_says(field, solver, dtype):
    """Alone, and in a batch: where nothing near costs a thousandth less. A kink itself may end as stalled."""
    batch = mslsq.least_squares(field, STARTS.to(dtype), in_dims=0, solver=solver)
    alone = mslsq.least_squares(field, STARTS[1].to(dtype), solver=solver)
    for point, claimed in zip([*batch.value, alone.value], [*batch.converged, alone.converged], strict=True):
        if bool(claimed):
            cost = float(0.5 * field(point.double()).square().sum())
            assert cost <= (1 + 1e-3) * lowest_around(field, point, 0.05) + 1e-12


@PER_SOLVER
def test_a_kink_does_not_keep_its_batch_mates_from_converging(solver):
    """|x| + 1 against x - 0.5 has its minimum at the kink; without the first, x - 2 against x has a smooth one."""

    def residual(x, w):
        return torch.stack((w * x[0].abs() + 1, (1 - w) * (x[0] - 2), x[0] - 0.5 * w))

    weights = torch.tensor([1.0, 0.0], dtype=F64)
    start = torch.tensor([3.0], dtype=F64)
    solution = mslsq.least_squares(residual, start, (weights,), in_dims=(None, 0), solver=solver)
    assert solution.converged.tolist() == [False, True]
    assert float(solution.value[1, 0]) == pytest.approx(1, abs=1e-9)
    assert "kink" in Status(int(solution.status[0])).sentence


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_variable_held_by_a_large_weight_does_not_hide_what_the_others_gain(dtype):
    """A prior of weight 1e6 makes |Dx| so large that any residual of the rest would be its rounding."""
    x = torch.linspace(0, 3, 30, dtype=dtype)
    y = torch.exp(0.7 * x) + 0.3 * torch.sin(9 * x)

    def residual(p):
        return torch.cat([1e6 * (p[:1] - 5), torch.exp(p[1] * x) + p[2] - y])

    start = torch.tensor([5.0, 0.2, 1.0], dtype=dtype)
    solution = mslsq.least_squares(residual, start)
    free = mslsq.least_squares(lambda q: torch.exp(q[0] * x) + q[1] - y, start[1:])
    assert bool(solution.converged) and bool(free.converged)
    assert float(solution.cost) == pytest.approx(float(free.cost), rel=1e-4)


def test_a_column_that_is_all_but_gone_does_not_converge_by_the_cost():
    """The damping that is left is nothing to the columns of the start, and holds a column of length 1e-9 still."""
    solution = mslsq.least_squares(
        lambda x: torch.stack([x[0] ** 2 + 0.01, x[1] - 2]), torch.tensor([0.7, 0.3], dtype=F64)
    )
    assert mslsq.Status(int(solution.status)) is mslsq.Status.STALLED


# ---- the floor ---------------------------------------------------------------------------------------


class Counted(DenseNormal):
    """Counts the products that it is asked for."""

    products: ClassVar[list[int]] = []

    def magnitude(self, matrix, vector):
        self.products.append(1)
        return super().magnitude(matrix, vector)


@pytest.mark.parametrize("xtol", [0.0, 1e-8, 1e-2])
@PER_DTYPE
def test_a_floor_that_is_not_computed_would_have_changed_nothing(dtype, xtol):
    """Residuals and gradients from 1e-20 to 1e20 of what the variables could make of them: with and without leave to
    ask, both tests say the same, and the product is left out in most cases and not in all."""
    solver = mslsq.LevenbergMarquardt(xtol=xtol)
    J = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.1]], dtype=dtype)
    matrix, sizes = (J.T @ J)[None, None], torch.tensor([[4.0, 9.0]], dtype=dtype)
    linear: Any = SimpleNamespace(storage=Counted())
    answers, products = [], []
    for exponent in range(-20, 21):
        for other in (-16, -8, 0, 8):
            gradient = torch.full((1, 2), 10.0**exponent, dtype=dtype)
            cost = torch.full((1,), 10.0 ** (exponent + other), dtype=dtype)
            length = squared_length(gradient, matrix[0].diagonal(dim1=1, dim2=2))
            both = []
            for asks in (True, False):
                linear.storage.products.clear()
                floor = gradient_floor(solver, linear, matrix, sizes, length, cost, asks)
                if asks:
                    products.append(len(linear.storage.products))
                met = gradient_met(solver, gradient, gradient.amax(1), length, cost, floor)
                both.append((bool(met), bool(nearly_stationary(solver, gradient, length, cost, floor))))
            assert both[0] == both[1], (exponent, other)
            answers.append(both[0])
    assert {met for met, _ in answers} == {near for _, near in answers} == {True, False}
    assert 0 < sum(products) < 0.7 * len(products)


@pytest.mark.sampled(2)
@PER_SOLVER
def test_a_variable_that_shrinks_while_its_column_grows_is_not_lost_in_rounding(solver):
    """NIST's MGH10 from its far start: the amplitude passes 1e-15, where a residual of 3e4 is not rounding of the 2
    that it started from, times a column of 5e19."""
    t = torch.arange(50, 130, 5, dtype=F64)
    y = torch.tensor(
        [34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744, 8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872],
        dtype=F64,
    )
    solution = mslsq.least_squares(
        lambda p: p[0] * torch.exp(p[1] / (t + p[2])) - y,
        torch.tensor([2.0, 4e5, 2.5e4], dtype=F64),
        solver=dataclasses.replace(solver, max_steps=400),
    )
    certified = 87.94585517 / 2
    assert not bool(solution.converged) or float(solution.cost) == pytest.approx(certified, rel=1e-8)


@PER_DTYPE
@pytest.mark.parametrize("asks", [False, True])
def test_below_a_floor_that_is_infinite_nothing_is_small(dtype, asks):
    """|Dx|² and |JᵀJ||x| of a variable whose square is beyond the dtype, and of a column whose product with it is."""
    solver = mslsq.LevenbergMarquardt()
    linear: Any = SimpleNamespace(storage=DenseNormal())
    gradient, cost = torch.tensor([[1e3, 1.0]], dtype=dtype), torch.ones(1, dtype=dtype)
    large = torch.finfo(dtype).max
    for matrix, sizes in (
        (torch.eye(2), torch.tensor([[torch.inf, 1.0]])),
        (0.1 * large * torch.eye(2), torch.tensor([[100.0, 1.0]])),
        (torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.tensor([[torch.inf, torch.inf]])),
    ):
        matrix, sizes = matrix.to(dtype)[None, None], sizes.to(dtype)
        length = squared_length(gradient, torch.ones_like(gradient))
        floor = gradient_floor(solver, linear, matrix, sizes, length, cost, asks)
        assert bool(torch.isfinite(floor.reach).all()) and bool(torch.isfinite(floor.gradient).all())
        assert not bool(nearly_stationary(solver, gradient, length, cost, floor))
        assert not bool(gradient_met(solver, gradient, gradient.amax(1), length, cost, floor))


@PER_SOLVER
@PER_DTYPE
def test_a_start_whose_square_is_infinite_has_not_converged(solver, dtype):
    """x / u - 3 from x = 1e12 u, in a unit u in which x² overflows."""
    unit = 1e12 if dtype == F32 else 1e150
    start = torch.tensor([1e12 * unit], dtype=dtype)
    solution = mslsq.least_squares(lambda x: x / unit - 3, start, solver=solver)
    if bool(solution.converged):
        assert float(solution.value[0]) == pytest.approx(3 * unit, rel=1e-4)
    else:
        assert int(solution.num_steps) > 0


class Seen(mslsq.CostFunction):
    """A point in the frame of a pose."""

    def residual(self, pose, point, seen):
        return pose.act(point) - seen


@pytest.mark.parametrize("unit", [1e-15, 1e15])
@pytest.mark.parametrize("kind", [mslsq.SE3, mslsq.Sim2])
def test_poses_end_where_they_do_in_metres(kind, unit):
    """A translation of 1e-15 beside a unit quaternion was taken for rounding, and a radian for 1e15."""
    generator, ambient = torch.Generator().manual_seed(3), 3 if kind is mslsq.SE3 else 2
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    truth = kind.exp(draw(2, kind.tangent_dim))
    point, i = draw(16, ambient), torch.arange(16) % 2
    seen, start = truth[i].act(point) + 1e-3 * draw(16, ambient), truth.retract(0.3 * draw(2, kind.tangent_dim))

    def placed(unit):
        pose = mslsq.Variable("pose", kind, count=2)
        problem = mslsq.Problem(Seen(pose[i], point=unit * point, seen=unit * seen))
        scaled = torch.ones(kind.storage_dim, dtype=torch.float64)
        scaled[:ambient] = unit
        solution = mslsq.solve(
            problem, {"pose": kind(start.storage * scaled)}, solver=mslsq.LevenbergMarquardt(native="never")
        )
        assert bool(solution.converged)
        return kind(solution.value["pose"].storage / scaled)

    assert float(placed(1.0).local(placed(unit)).abs().max()) < 1e-8


def test_a_pose_of_x0_has_angles_like_one_of_a_problem():
    space = leaf_space(mslsq.SE3.random(2, dtype=torch.float64), "x0")
    assert space.turns == 2 * space_of(mslsq.SE3).turns
    sizes = space.tangent_sizes(torch.tensor([[3e-9, 4e-9, 0, 0, 0, 0, 1, 1, 2, 2, 0, 0, 0, 1]], dtype=torch.float64))
    expected = torch.tensor([[25e-18] * 3 + [1.0] * 3 + [9.0] * 3 + [1.0] * 3], dtype=torch.float64)
    torch.testing.assert_close(sizes, expected, rtol=1e-12, atol=0)


class Promising(mslsq.CostFunction):
    """Its Jacobian promises that 1e-5 can be taken out of a residual of 1 by a step of 1e-13; nothing changes."""

    def residual(self, p):
        return torch.stack([1e-5 + 0 * p[0], 1 + 0 * p[0]])

    def jacobians(self, p):
        return (torch.stack([1e8 + 0 * p[0], 0 * p[0]])[:, None],)


@pytest.mark.parametrize("native", ["never", "wait"])
def test_a_rejected_step_that_promised_more_than_rounding_is_no_end(native):
    """So it is where two vectors that span a rotation become one: columns of J grow to 1e10, and steps are shorter than
    `xtol` with all of the cost left."""
    problem = mslsq.Problem(Promising(mslsq.Variable("p", mslsq.Euclidean(1)), name="promising"))
    start = {"p": torch.ones(1, dtype=torch.float64)}
    solution = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(native=native))
    assert mslsq.Status(int(solution.status)) is mslsq.Status.STALLED


def turned_ellipse(p, t):
    """An ellipse of radii p[0] and p[1], turned by p[2], which has rounding for its influence where the radii agree."""
    c, s, x, y = torch.cos(p[2]), torch.sin(p[2]), 3 * torch.cos(t), 2 * torch.sin(t + 0.3)
    u, v = (c * x + s * y) / p[0], (c * y - s * x) / p[1]
    return torch.sqrt(u * u + v * v) - 1 + 1e-16 * p[2] * torch.sin(3 * t)


def circle_and_neighbour():
    """The start of an ellipse as a circle, and beside it one that is none."""
    return torch.stack([torch.tensor([1.5, 1.5, 0.3], dtype=F64), torch.tensor([3.0, 2.0, 0.3], dtype=F64)])


def test_variables_that_have_run_away_have_not_converged():
    """The first step goes along a column of 1e-16, by 1e11 rad. Beside it any other is shorter than `xtol`: solves
    ended there as converged, with a cost of 0.14 (least 0)."""
    far, t = circle_and_neighbour(), torch.linspace(0, 6, 20, dtype=F64)
    solution = mslsq.least_squares(turned_ellipse, far, args=(t,), in_dims=(0, None), solver=mslsq.GaussNewton())
    assert abs(float(solution.value[0, 2])) > 1e10 and int(solution.status[0]) == Status.STALLED
    assert bool(solution.converged[1]) and float(solution.cost[1]) < 1e-20


SCALING = pytest.mark.parametrize("solver", [mslsq.LevenbergMarquardt, mslsq.Dogleg])
"""Those that have a scale for every variable."""


@SCALING
@pytest.mark.parametrize("unit", [1.0, 2.0**50, 2.0**-50])
def test_a_step_along_a_column_of_rounding_is_taken_back_in_every_unit(solver, unit):
    """Angles of the ellipse in units of their own: the same steps, to the least cost, from the circle, too."""
    t, units = torch.linspace(0, 6, 20, dtype=F64), torch.tensor([1.0, 1.0, unit], dtype=F64)

    def solved(start, native):
        residual = lambda p, t: turned_ellipse(p * units, t)  # noqa: E731
        made = solver(native=native)
        return mslsq.least_squares(residual, start / units, args=(t,), in_dims=(0, None), solver=made)

    found = [solved(circle_and_neighbour(), native) for native in ("never", "wait")]
    found.append(mslsq.least_squares(turned_ellipse, circle_and_neighbour()[0], args=(t,), solver=solver()))
    for solution in found:
        assert bool(solution.converged.all()) and float(solution.cost.max()) < 1e-20
        assert solution.num_steps.tolist() == found[0].num_steps.tolist() or solution is found[2]
    assert int(found[2].num_steps) == int(found[0].num_steps[0]) and abs(float(found[2].value[2])) < 10


@SCALING
def test_the_phase_of_an_amplitude_that_begins_at_nothing_waits_for_it(solver):
    """Both ended as converged with a cost of 7.06 (least 0), turned by 1e13 rad."""
    t, start = torch.linspace(0, 6, 32, dtype=F64), torch.tensor([1e-14, 0.7, 1.0], dtype=F64)
    y = torch.cos(0.9 * t + 0.3)
    solution = mslsq.least_squares(lambda p: p[0] * torch.cos(p[1] * t + p[2]) - y, start, solver=solver())
    assert bool(solution.converged) and float(solution.cost) < 1e-20


@SCALING
def test_long_steps_along_columns_that_are_alike_are_not_taken_back(solver):
    """A polynomial of degree 8 takes 17 steps and 13; with every long step taken back it took 82 and 39."""
    powers = torch.linspace(0, 1, 50, dtype=F64)[:, None] ** torch.arange(9)
    y = torch.randn(50, dtype=F64, generator=torch.Generator().manual_seed(0))
    solution = mslsq.least_squares(lambda p: powers @ p - y, torch.zeros(9, dtype=F64), solver=solver())
    fitted = powers @ torch.linalg.lstsq(powers, y[:, None], driver="gelsd").solution[:, 0] - y
    assert float(solution.cost) < 0.5 * float(fitted.square().sum()) * (1 + 1e-9) and int(solution.num_steps) < 30


@PER_SOLVER
@PER_DTYPE
def test_variables_that_go_far_from_zeros_have_not_run_away(solver, dtype):
    """To easting and northing, in metres, by ranges and what they were thought to be."""
    at = torch.tensor([[5e5, 5.4e6], [5.1e5, 5.4e6], [5e5, 5.41e6]], dtype=F64)
    true = torch.tensor([5.05e5, 5.404e6], dtype=F64)
    far, at = (true - at).norm(dim=1).to(dtype), at.to(dtype)
    start = torch.zeros(2, dtype=dtype)
    solution = mslsq.least_squares(lambda p, d: (p - at).norm(dim=1) - d, start, args=(far,), solver=solver)
    assert bool(solution.converged) and float((solution.value - true).norm()) < (1e-3 if dtype == F64 else 2.0)
