"""Equalities and inequalities: optima of the collection's authors, of SLSQP, of closed forms; and what cannot be."""

import signal
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import mslsq
from mslsq import Status
from mslsq.datasets import constrained
from mslsq.errors import SolveInterrupted

DOUBLE = torch.float64


class Target(mslsq.CostFunction):
    def residual(self, x, target):
        return x - target


class OnCircle(mslsq.CostFunction):
    def residual(self, x, radius):
        return (x * x).sum()[None] - radius**2


class Below(mslsq.CostFunction):
    """n·x ≤ d"""

    def residual(self, x, n, d):
        return ((x * n).sum() - d)[None]


def on_the_disc(dtype=DOUBLE, **options):
    """The nearest point of the unit disc's upper half... to a target."""
    x = mslsq.Variable("x", mslsq.Euclidean(2), **options)
    problem = mslsq.Problem(
        Target(x, target=torch.tensor([[2.0, 1.0]], dtype=dtype)),
        mslsq.Equality(OnCircle(x, radius=torch.ones(1, dtype=dtype), name="circle")),
        mslsq.Inequality(Below(x, n=torch.tensor([[0.0, 1.0]], dtype=dtype), d=torch.zeros(1, dtype=dtype))),
    )
    return problem, {"x": torch.tensor([0.3, -0.4], dtype=dtype)}


class Written(mslsq.CostFunction):
    """A function of the collection."""

    def residual(self, x, problem, kind):
        return getattr(constrained.PROBLEMS[problem], kind)(x)


def stated(one):
    """A problem of the collection, and its start."""
    bounds = {} if one.lower is None else {"lower": one.lower, "upper": one.upper}
    x = mslsq.Variable("x", mslsq.Euclidean(len(one.start)), **bounds)
    kinds = {"equality": mslsq.Equality, "inequality": mslsq.Inequality}
    parts = [Written(x, problem=one.name, kind="residual", name="cost")]
    for kind, wrap in kinds.items():
        if getattr(one, kind) is not None:
            parts.append(wrap(Written(x, problem=one.name, kind=kind, name=kind)))
    return mslsq.Problem(*parts), {"x": one.start}


def by_slsqp(one):
    """SciPy's optimum."""

    def of(function, sign=1.0):
        return lambda x: sign * function(torch.from_numpy(np.asarray(x))).numpy()

    constraints = []
    if one.equality is not None:
        constraints.append({"type": "eq", "fun": of(one.equality)})
    if one.inequality is not None:
        constraints.append({"type": "ineq", "fun": of(one.inequality, -1.0)})
    bounds = None if one.lower is None else list(zip(one.lower.tolist(), one.upper.tolist(), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minimize(
            lambda x: float((of(one.residual)(x) ** 2).sum()),
            one.start.numpy(),
            method="SLSQP",
            constraints=constraints,
            bounds=bounds,
            options={"maxiter": 1000, "ftol": 1e-12},
        ).fun


def mostly_slow(number, name):
    """Every third by itself, the others among the slow ones."""
    return pytest.param(name, marks=[pytest.mark.slow] * (number % 3 > 0))


LOCAL = {"hs15": 360.379767, "hs20": 40.198730}
"""Other minima of those that the authors know too, or that SLSQP ends in."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [mostly_slow(number, name) for number, name in enumerate(constrained.PROBLEMS)])
def test_a_problem_of_the_collection_ends_in_a_known_minimum(name):
    one = constrained.PROBLEMS[name]
    problem, start = stated(one)
    solution = mslsq.solve(problem, start)
    found = 2 * float(solution.cost)
    known = [one.minimum, LOCAL.get(name, one.minimum), by_slsqp(one)]
    assert min(abs(found - minimum) for minimum in known) <= 1e-6 * max(1.0, found)
    assert bool(solution.converged)
    assert float(solution.violation) <= 1e-8
    x = solution.value["x"]
    if one.equality is not None:
        assert float(one.equality(x).abs().max()) <= 1e-8
    if one.inequality is not None:
        assert float(one.inequality(x).max()) <= 1e-8
        assert float(solution.multipliers["inequality"].min()) >= 0


@pytest.mark.parametrize("name", ["hs14", "hs42", "hs60"])
def test_multipliers_are_those_of_the_gradient(name):
    """∇cost + Σ λ ∇c = 0, at a point that holds all its variables back by constraints alone."""
    one = constrained.PROBLEMS[name]
    problem, start = stated(one)
    solution = mslsq.solve(problem, start)
    x = solution.value["x"].detach()
    gradient = torch.func.grad(lambda x: 0.5 * one.residual(x).square().sum())(x)
    for kind, multiplier in solution.multipliers.items():
        gradient = gradient + multiplier[0] @ torch.func.jacrev(getattr(one, kind))(x)
    assert float(gradient.abs().max()) < 1e-6


def test_the_nearest_point_of_half_a_circle():
    problem, start = on_the_disc()
    solution = mslsq.solve(problem, start)
    assert torch.allclose(solution.value["x"], torch.tensor([1.0, 0.0], dtype=DOUBLE), atol=1e-10)
    assert float(solution.cost) == pytest.approx(1.0, abs=1e-9)
    assert solution.multipliers["circle"].shape == (1, 1)
    assert float(solution.multipliers["circle"]) == pytest.approx(0.5, abs=1e-8)
    assert float(solution.multipliers["below"]) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.slow
def test_of_a_batch_every_problem_is_solved_as_by_itself():
    """Also where one cannot be met, and one is not a number."""
    problem, start = on_the_disc()
    generator = torch.Generator().manual_seed(3)
    targets = 2 * torch.randn(9, 1, 2, dtype=DOUBLE, generator=generator)
    radii = torch.ones(9, 1, dtype=DOUBLE)
    targets[4], radii[6] = torch.nan, torch.nan
    starts = start["x"] + 0.1 * torch.randn(9, 2, dtype=DOUBLE, generator=generator)
    data = {"target": {"target": targets}, "circle": {"radius": radii}}
    dims = ({"x": 0}, {"target": {"target": 0}, "circle": {"radius": 0}})
    together = mslsq.solve(problem, {"x": starts}, data, in_dims=dims)
    assert together.multipliers["circle"].shape == (9, 1, 1)
    for number in range(9):
        own = {"target": {"target": targets[number]}, "circle": {"radius": radii[number]}}
        alone = mslsq.solve(problem, {"x": starts[number]}, own)
        assert int(alone.status) == int(together.status[number])
        if number in (4, 6):
            assert int(alone.status) == Status.NON_FINITE
            continue
        assert bool(alone.converged)
        assert torch.allclose(alone.value["x"], together.value["x"][number], atol=1e-9)
        assert torch.allclose(alone.multipliers["below"], together.multipliers["below"][number], atol=1e-7)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "linear_solver", ["auto", mslsq.linear.Cholesky(), mslsq.linear.SparseCholesky(), mslsq.linear.QR()]
)
def test_a_chain_is_solved_the_same_dense_and_sparse(linear_solver):
    problem, start = path(16, 0.8)
    solver = mslsq.LevenbergMarquardt(linear_solver=linear_solver)
    solution = mslsq.solve(problem, start, solver=solver, adjoint=mslsq.Detached())
    reference = mslsq.solve(problem, start, adjoint=mslsq.Detached())
    assert bool(solution.converged) and float(solution.violation) <= 1e-8
    assert float(solution.cost) == pytest.approx(float(reference.cost), rel=1e-8)


class Smooth(mslsq.CostFunction):
    def residual(self, a, b, c):
        return a - 2 * b + c


class Clear(mslsq.CostFunction):
    def residual(self, a, center, radius):
        return radius**2 - ((a - center) ** 2).sum()[None]


class Speed(mslsq.CostFunction):
    def residual(self, a, b, limit):
        return ((b - a) ** 2).sum()[None] - limit**2


def path(count, limit=0.37):
    """A path in the plane from (0, 0) to (10, 0) around two discs, with a limit of speed."""
    p = mslsq.Variable("p", mslsq.Euclidean(2), count)
    i = torch.arange(count)
    ends = torch.tensor([[0.0, 0.0], [10.0, 0.0]], dtype=DOUBLE)
    centers = torch.tensor([[3.0, 0.3], [7.0, -0.4]], dtype=DOUBLE).repeat(count, 1)
    radii = torch.tensor([1.0, 1.2], dtype=DOUBLE).repeat(count)
    problem = mslsq.Problem(
        Smooth(p[i[:-2]], p[i[1:-1]], p[i[2:]]),
        mslsq.Equality(Target(p[torch.tensor([0, count - 1])], target=ends, name="ends")),
        mslsq.Inequality(Speed(p[i[:-1]], p[i[1:]], limit=mslsq.Shared(torch.tensor(limit, dtype=DOUBLE)))),
        mslsq.Inequality(Clear(p[i.repeat_interleave(2)], center=centers, radius=radii)),
    )
    line = torch.linspace(0, 10, count, dtype=DOUBLE)
    return problem, {"p": torch.stack([line, 0.1 * torch.sin(line / 3)], 1)}


def test_a_path_keeps_its_ends_its_speed_and_clear_of_obstacles():
    problem, start = path(30)
    solution = mslsq.solve(problem, start, adjoint=mslsq.Detached())
    p = solution.value["p"]
    assert bool(solution.converged)
    assert torch.allclose(p[[0, -1]], torch.tensor([[0.0, 0.0], [10.0, 0.0]], dtype=DOUBLE), atol=1e-8)
    assert float((p[1:] - p[:-1]).norm(dim=1).max()) <= 0.37 + 1e-8
    for center, radius in (((3.0, 0.3), 1.0), ((7.0, -0.4), 1.2)):
        distance = float((p - torch.tensor(center, dtype=DOUBLE)).norm(dim=1).min())
        assert distance >= radius - 1e-8
    assert float(solution.multipliers["speed"].max()) > 0 and float(solution.multipliers["clear"].max()) > 0


class Reach(mslsq.CostFunction):
    """Where the hand of an arm of links of one length is."""

    def residual(self, angles, target):
        heading = torch.cumsum(angles, 0)
        return torch.stack((torch.cos(heading).sum(), torch.sin(heading).sum())) - target


class Posture(mslsq.CostFunction):
    def residual(self, angles):
        return 0.1 * angles


class ElbowsClear(mslsq.CostFunction):
    def residual(self, angles, center, radius):
        heading = torch.cumsum(angles, 0)
        joints = torch.stack((torch.cumsum(torch.cos(heading), 0), torch.cumsum(torch.sin(heading), 0)), 1)
        return radius**2 - ((joints - center) ** 2).sum(1)


def test_inverse_kinematics_with_joint_limits_and_an_obstacle():
    """The hand is where it has to be, by an equality; the limits are bounds, the obstacle an inequality."""
    angles = mslsq.Variable("angles", mslsq.Euclidean(4), lower=-1.2, upper=1.2)
    problem = mslsq.Problem(
        Posture(angles),
        mslsq.Equality(Reach(angles, target=torch.tensor([[2.0, 2.0]], dtype=DOUBLE))),
        mslsq.Inequality(
            ElbowsClear(
                angles,
                center=torch.tensor([[1.4, 0.8]], dtype=DOUBLE),
                radius=torch.tensor([0.5], dtype=DOUBLE),
            )
        ),
    )
    solution = mslsq.solve(problem, {"angles": torch.full((4,), 0.3, dtype=DOUBLE)})
    found = solution.value["angles"].detach()
    assert bool(solution.converged) and float(solution.violation) <= 1e-8
    assert float(found.abs().max()) <= 1.2
    heading = torch.cumsum(found, 0)
    hand = torch.stack((torch.cos(heading).sum(), torch.sin(heading).sum()))
    assert torch.allclose(hand, torch.tensor([2.0, 2.0], dtype=DOUBLE), atol=1e-8)
    slsqp = minimize(
        lambda x: 0.005 * float((x**2).sum()),
        found.numpy() + 0.01,
        method="SLSQP",
        bounds=[(-1.2, 1.2)] * 4,
        constraints=[
            {"type": "eq", "fun": lambda x: [np.cos(np.cumsum(x)).sum() - 2, np.sin(np.cumsum(x)).sum() - 2]},
            {
                "type": "ineq",
                "fun": lambda x: (
                    (np.cumsum(np.cos(np.cumsum(x))) - 1.4) ** 2 + (np.cumsum(np.sin(np.cumsum(x))) - 0.8) ** 2 - 0.25
                ),
            },
        ],
        options={"ftol": 1e-14},
    )
    assert float(solution.cost) == pytest.approx(slsqp.fun, rel=1e-6)


class Distance(mslsq.CostFunction):
    def residual(self, a, b, length):
        return (((a - b) ** 2).sum() - length**2)[None]


class Range(mslsq.CostFunction):
    def residual(self, a, beacon, seen):
        return torch.linalg.vector_norm(a - beacon)[None] - seen


def test_a_calibration_with_a_fixed_baseline():
    """Two cameras of a rig, located by ranges that are noisy; their distance is known exactly."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([[0.1, 0.2, 0.0], [0.9, 0.3, 0.1]], dtype=DOUBLE)
    baseline = torch.linalg.vector_norm(truth[0] - truth[1])
    beacons = 4 * torch.randn(12, 3, dtype=DOUBLE, generator=generator)
    index = torch.arange(2).repeat_interleave(12)
    seen = torch.linalg.vector_norm(truth[index] - beacons.repeat(2, 1), dim=1)
    seen = seen + 0.05 * torch.randn(24, dtype=DOUBLE, generator=generator)
    camera = mslsq.Variable("camera", mslsq.Euclidean(3), 2)
    ranges = Range(camera[index], beacon=beacons.repeat(2, 1), seen=seen[:, None])
    rod = Distance(camera[torch.tensor([0])], camera[torch.tensor([1])], length=baseline[None])
    start = {"camera": torch.zeros(2, 3, dtype=DOUBLE) + torch.tensor([[0.0], [0.5]], dtype=DOUBLE)}
    free = mslsq.solve(mslsq.Problem(ranges), start)
    tied = mslsq.solve(mslsq.Problem(ranges, mslsq.Equality(rod)), start)
    lengths = [float(torch.linalg.vector_norm(s.value["camera"][0] - s.value["camera"][1])) for s in (free, tied)]
    assert abs(lengths[0] - float(baseline)) > 1e-3
    assert lengths[1] == pytest.approx(float(baseline), abs=1e-8)
    assert float(tied.cost) >= float(free.cost)


class Mixture(mslsq.CostFunction):
    def residual(self, shares, rates, t, y):
        return ((shares * torch.exp(-rates * t)).sum() - y)[None]


class SumToOne(mslsq.CostFunction):
    def residual(self, shares):
        return shares.sum()[None] - 1


def test_a_curve_fit_whose_shares_sum_to_one():
    t = torch.linspace(0, 4, 60, dtype=DOUBLE)
    generator = torch.Generator().manual_seed(1)
    clean = 0.3 * torch.exp(-0.4 * t) + 0.7 * torch.exp(-2.0 * t)
    y = clean + 0.01 * torch.randn(60, dtype=DOUBLE, generator=generator)
    shares, rates = mslsq.Variable("shares", mslsq.Euclidean(2)), mslsq.Variable("rates", mslsq.Euclidean(2))
    problem = mslsq.Problem(Mixture(shares, rates, t=t, y=y), mslsq.Equality(SumToOne(shares)))
    start = {
        "shares": torch.tensor([0.5, 0.5], dtype=DOUBLE),
        "rates": torch.tensor([0.2, 1.0], dtype=DOUBLE),
    }
    solution = mslsq.solve(problem, start)
    assert bool(solution.converged)
    assert float(solution.value["shares"].sum()) == pytest.approx(1.0, abs=1e-10)

    def eliminated(p):  # the same problem in the variables that are left
        return p[0] * torch.exp(-p[1] * t) + (1 - p[0]) * torch.exp(-p[2] * t) - y

    reference = mslsq.least_squares(eliminated, torch.tensor([0.5, 0.2, 1.0], dtype=DOUBLE))
    assert float(solution.cost) == pytest.approx(float(reference.cost), rel=1e-9)


class Rotated(mslsq.CostFunction):
    def residual(self, a: mslsq.SO3, target: mslsq.SO3):
        return (target.inverse() @ a).log()


class Level(mslsq.CostFunction):
    """The z axis of the body stays where it is: two equations on a manifold."""

    def residual(self, a: mslsq.SO3):
        return a.act(torch.tensor([0.0, 0.0, 1.0], dtype=a.storage.dtype))[:2]


def test_a_constraint_on_a_manifold():
    a = mslsq.Variable("a", mslsq.SO3)
    target = mslsq.SO3.exp(torch.tensor([[0.3, -0.2, 0.5]], dtype=DOUBLE))
    problem = mslsq.Problem(Rotated(a, target=target), mslsq.Equality(Level(a)))
    solution = mslsq.solve(problem, {"a": mslsq.SO3.exp(torch.tensor([0.1, 0.1, 0.0], dtype=DOUBLE))})
    turned = solution.value["a"].log()
    assert bool(solution.converged)
    assert torch.allclose(turned[:2], torch.zeros(2, dtype=DOUBLE), atol=1e-8)
    assert abs(float(turned[2])) > 0.4


def test_in_single_precision_a_violation_of_a_thousandth_is_none():
    problem, start = on_the_disc(torch.float32)
    solution = mslsq.solve(problem, start)
    assert bool(solution.converged) and float(solution.violation) <= 1e-3
    assert solution.violation.dtype == torch.float32
    assert torch.allclose(solution.value["x"], torch.tensor([1.0, 0.0]), atol=1e-3)


def test_constraints_alone_are_a_problem_too():
    """Nothing to minimise: a point that meets them."""
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    problem = mslsq.Problem(
        mslsq.Equality(OnCircle(x, radius=torch.ones(1, dtype=DOUBLE))),
        mslsq.Inequality(Below(x, n=torch.tensor([[1.0, 0.0]], dtype=DOUBLE), d=torch.tensor([-0.5], dtype=DOUBLE))),
    )
    solution = mslsq.solve(problem, {"x": torch.tensor([0.3, 0.4], dtype=DOUBLE)}, adjoint=mslsq.Detached())
    assert bool(solution.converged) and float(solution.violation) <= 1e-8
    assert float(solution.cost) == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "parts",
    [
        lambda x: (below(x, 1.0, -1.0, "left"), below(x, -1.0, -1.0, "right")),
        lambda x: (mslsq.Equality(OnCircle(x, radius=torch.ones(1, dtype=DOUBLE))), below(x, 1.0, -2.0, "left")),
    ],
    ids=["half planes that do not meet", "a circle that is elsewhere"],
)
def test_constraints_that_contradict_each_other_are_called_so(parts):
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    problem = mslsq.Problem(Target(x, target=torch.tensor([[0.5, 1.0]], dtype=DOUBLE)), *parts(x))
    solution = mslsq.solve(problem, {"x": torch.tensor([0.3, 0.4], dtype=DOUBLE)}, adjoint=mslsq.Detached())
    assert int(solution.status) == Status.INFEASIBLE
    assert not bool(solution.converged) and not bool(solution.differentiable)
    assert float(solution.violation) > 0.5
    assert "contradict" in solution.message()


def below(x, slope, bound, name):
    normal = torch.tensor([[slope, 0.0]], dtype=DOUBLE)
    return mslsq.Inequality(Below(x, n=normal, d=torch.tensor([bound], dtype=DOUBLE), name=name))


def test_jacobians_written_by_the_user_are_taken():
    calls = []

    class WrittenCircle(OnCircle):
        def residual(self, x, radius):
            return (x * x).sum()[None] - radius**2

        def jacobians(self, x, radius):
            calls.append(1)
            return (2 * x[None],)

    x = mslsq.Variable("x", mslsq.Euclidean(2))
    target = torch.tensor([[2.0, 1.0]], dtype=DOUBLE)
    start = {"x": torch.tensor([0.3, -0.4], dtype=DOUBLE)}
    for wrap in (mslsq.Equality, mslsq.Inequality):
        one = mslsq.Problem(Target(x, target=target), wrap(WrittenCircle(x, radius=torch.ones(1, dtype=DOUBLE))))
        solution = mslsq.solve(one, start)
        assert bool(solution.converged) and calls
        assert torch.allclose(solution.value["x"], target[0] / target[0].norm(), atol=1e-8)


# ---- stops, options, refusals


def test_all_steps_together_are_limited():
    problem, start = path(30)
    solution = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(max_steps=7), adjoint=mslsq.Detached())
    assert int(solution.status) == Status.MAX_STEPS and int(solution.num_steps) == 7


def test_a_callback_sees_every_round_and_ends_all(capsys):
    problem, start = path(30)
    seen = []

    def callback(info):
        seen.append(info)
        return len(seen) == 12

    solver = mslsq.LevenbergMarquardt(callback=callback, verbose=True)
    solution = mslsq.solve(problem, start, solver=solver, adjoint=mslsq.Detached())
    assert len(seen) == 12 and int(solution.status) == Status.MAX_STEPS
    assert "violation" in capsys.readouterr().out


def test_an_interrupt_in_a_round_ends_all():
    problem, start = path(30)
    steps = []

    def callback(info):
        steps.append(info)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        solver = mslsq.LevenbergMarquardt(callback=callback)
        with pytest.raises(SolveInterrupted) as caught:
            mslsq.solve(problem, start, solver=solver, adjoint=mslsq.Detached())
    finally:
        signal.signal(signal.SIGINT, before)
    assert int(caught.value.solution.status) == Status.INTERRUPTED
    assert caught.value.solution.value["p"].shape == (30, 2)


def test_a_time_budget_is_shared_by_the_rounds():
    problem, start = path(30)
    solver = mslsq.LevenbergMarquardt(time_budget=1e-6)
    solution = mslsq.solve(problem, start, solver=solver, adjoint=mslsq.Detached())
    assert int(solution.status) == Status.TIME_BUDGET and int(solution.num_steps) <= 1


def test_a_tolerance_of_its_own():
    problem, start = on_the_disc()
    solution = mslsq.solve(problem, start, solver=mslsq.AugmentedLagrangian(tolerance=1e-12))
    assert bool(solution.converged) and float(solution.violation) <= 1e-12


def test_without_constraints_it_is_the_solver_inside():
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    problem = mslsq.Problem(Target(x, target=torch.tensor([[2.0, 1.0]], dtype=DOUBLE)))
    solution = mslsq.solve(problem, {"x": torch.zeros(2, dtype=DOUBLE)}, solver=mslsq.AugmentedLagrangian())
    assert bool(solution.converged) and solution.violation == () and solution.multipliers == {}


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        (lambda: mslsq.GaussNewton(), "LevenbergMarquardt, not of GaussNewton"),
        (lambda: mslsq.Dogleg(), "not of Dogleg"),
        (lambda: mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.Schur()), "Schur does not take constraints"),
        (lambda: mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.ConjugateGradient()), "does not take constraints"),
        (lambda: mslsq.LevenbergMarquardt(early_stop=False), "early_stop=False"),
        (lambda: mslsq.GraduatedNonConvexity(), "does not take constraints"),
    ],
)
def test_what_does_not_take_constraints_says_so(solver, words):
    problem, start = on_the_disc()
    with pytest.raises(ValueError, match=words):
        mslsq.solve(problem, start, solver=solver())


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"penalty": -1.0}, {"max_rounds": 0}, {"steps_per_round": 0}])
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        mslsq.AugmentedLagrangian(**options)


def test_a_constraint_is_a_cost_without_weight_and_loss():
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    radius = torch.ones(1, dtype=DOUBLE)
    with pytest.raises(mslsq.ProblemError, match="no loss"):
        mslsq.Equality(OnCircle(x, radius=radius, loss=mslsq.Huber(1.0)))
    with pytest.raises(mslsq.ProblemError, match="no weight"):
        mslsq.Inequality(OnCircle(x, radius=radius, weight=2.0))
    with pytest.raises(mslsq.ProblemError, match="must be a CostFunction"):
        mslsq.Equality(OnCircle)  # type: ignore[arg-type]


def test_what_knows_no_constraints_says_so_instead_of_taking_them_for_costs():
    problem, start = on_the_disc()
    with pytest.raises(mslsq.ProblemError, match="constraints are met by"):
        mslsq.explain(problem, start)


def test_a_prepared_problem_meets_its_constraints():
    problem, start = on_the_disc()
    solve = mslsq.prepared(problem, start)
    for shift in (0.0, 0.1, 0.2):
        moved = {"x": start["x"] + shift}
        found, expected = solve(moved), mslsq.solve(problem, moved)
        assert float(found.violation) <= 1e-8
        assert torch.allclose(found.value["x"], expected.value["x"], atol=1e-9)
        for name, multiplier in expected.multipliers.items():
            assert torch.allclose(found.multipliers[name], multiplier, atol=1e-7)


def test_the_problem_says_what_is_a_constraint():
    text = repr(on_the_disc()[0])
    assert "Equality(OnCircle" in text and "Inequality(Below" in text and "  Target" in text
