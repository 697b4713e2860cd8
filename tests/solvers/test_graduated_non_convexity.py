"""Graduated non-convexity: which measurements it rejects, what it minimises, its batches and its derivatives."""

import re
import signal
import warnings

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq import GraduatedNonConvexity
from mslsq.solvers.deviation import deviation_scale
from mslsq.solvers.surrogates import SURROGATES
from tests.differences import differences

NOISE, SCALE = 0.02, 0.07
T = torch.linspace(0, 1, 40, dtype=torch.float64)


def decay(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2] - y


def spoiled_decays(count: int, share: float = 0.25, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Measured exponentials (count, points), and which of the points are wrong."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.tensor([2.0, 1.5, 0.3], dtype=torch.float64) + 0.3 * torch.randn(
        count, 3, generator=generator, dtype=torch.float64
    )
    clean = p[:, :1] * torch.exp(-p[:, 1:2] * T) + p[:, 2:]
    y = clean + NOISE * torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    wrong = torch.rand(clean.shape, generator=generator) < share
    gross = 0.5 + 3 * torch.rand(clean.shape, generator=generator, dtype=torch.float64)
    return torch.where(wrong, y + gross, y), wrong


START = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)


def robust(y: Tensor, **options: object) -> mslsq.Solution:
    in_dims = None if y.ndim == 1 else (None, None, 0)
    solver = GraduatedNonConvexity(**{"scale": SCALE, **options})  # type: ignore[arg-type]
    return mslsq.least_squares(decay, START, args=(T, y), in_dims=in_dims, solver=solver)


@pytest.mark.parametrize("loss", ["truncated", "geman_mcclure"])
def test_the_wrong_points_are_told_from_the_right_ones(loss):
    y, wrong = spoiled_decays(20)
    solution = robust(y, loss=loss)
    assert bool(solution.converged.all()) and bool(solution.differentiable.all())
    weights = solution.weights["residual"]
    assert weights.shape == y.shape
    if loss == "truncated":
        assert set(weights.unique().tolist()) == {0.0, 1.0}
        # Gaussian noise exceeds 3.5 σ five times in ten thousand.
        assert int(((weights == 0) != wrong).sum()) <= 3
        assert not bool((weights[wrong] > 0).any())
    else:
        told = ((weights < 0.1) == wrong).all(1)
        assert int(told.sum()) >= 18  # of 20; this loss has more minima


def test_the_solution_is_the_plain_fit_of_the_inliers():
    y, _ = spoiled_decays(8)
    exact = mslsq.LevenbergMarquardt(ftol=1e-16)
    solution = robust(y, solver=exact)
    for number, one in enumerate(y):
        inliers = solution.weights["residual"][number] > 0
        plain = mslsq.least_squares(decay, START, args=(T[inliers], one[inliers]), solver=exact)
        assert (solution.value[number] - plain.value).abs().max() < 1e-8
        outliers = float((~inliers).sum())
        assert abs(float(solution.cost[number] - plain.cost) - 0.5 * outliers * SCALE**2) < 1e-12


def test_geman_mcclure_ends_at_a_minimum_of_its_own_loss():
    y, _ = spoiled_decays(8)
    solution = robust(y, loss="geman_mcclure")
    again = mslsq.least_squares(
        decay, solution.value, args=(T, y), in_dims=(0, None, 0), loss=mslsq.GemanMcClure(SCALE)
    )
    assert (again.value - solution.value).abs().max() < 1e-6  # converged by its cost, to 1e-12
    assert (again.cost - solution.cost).abs().max() < 1e-12


@pytest.mark.slow
def test_least_squares_from_the_same_start_is_led_astray():
    """What the others are compared with: this data set needs a robust solver, and one that a start does not mislead."""
    y, _ = spoiled_decays(20)
    truth = robust(y).value
    plain = mslsq.least_squares(decay, START, args=(T, y), in_dims=(None, None, 0)).value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mslsq.NoInfluenceWarning)  # all is an outlier to Tukey's loss at this start
        tukey = mslsq.least_squares(decay, START, args=(T, y), in_dims=(None, None, 0), loss=mslsq.Tukey(SCALE)).value
    assert float((plain - truth).norm(dim=1).min()) > 0.1
    assert float((tukey - truth).norm(dim=1).median()) > 0.1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"loss": "geman_mcclure"}, {"scale": None}], ids=str)
def test_a_batch_is_its_problems_one_by_one(options):
    y, _ = spoiled_decays(6)
    batch = robust(y, **options)
    for number, one in enumerate(y):
        alone = robust(one, **options)
        assert (batch.value[number] - alone.value).abs().max() < 1e-10
        assert torch.equal(batch.weights["residual"][number] > 0.5, alone.weights["residual"] > 0.5)
        assert int(batch.status[number]) == int(alone.status)


def test_a_bad_problem_does_not_disturb_its_neighbours():
    y, _ = spoiled_decays(5)
    good = robust(y)
    y[2, 7] = torch.nan
    bad = robust(y)
    assert int(bad.status[2]) == mslsq.Status.NON_FINITE and not bool(bad.differentiable[2])
    others = torch.tensor([0, 1, 3, 4])
    assert (bad.value[others] - good.value[others]).abs().max() < 1e-12
    assert torch.equal(bad.weights["residual"][others], good.weights["residual"][others])


def test_problems_of_very_different_outliers_have_schedules_of_their_own():
    y, wrong = spoiled_decays(3)
    y[1][wrong[1]] *= 1e6
    solution = robust(y)
    assert torch.equal(solution.weights["residual"][1] == 0, wrong[1])
    assert int(solution.num_steps[1]) > int(solution.num_steps[0])
    alone = robust(y[0])
    assert (solution.value[0] - alone.value).abs().max() < 1e-10


# ---- the scale


def test_the_scale_from_the_median_is_that_of_gaussian_blocks():
    generator = torch.Generator().manual_seed(0)
    for rows, quantile in ((1, 2.575829), (3, 3.368214), (6, 4.100212)):  # of the chi distribution at 0.99
        r = 0.3 * torch.randn(2, 200_000, rows, generator=generator, dtype=torch.float64)
        scale = deviation_scale((r * r).sum(-1), rows)
        assert (scale / (0.3 * quantile) - 1).abs().max() < 0.01


def test_without_a_scale_each_problem_of_a_batch_finds_its_own():
    y, wrong = spoiled_decays(4, share=0.3)
    clean = robust(y).value
    model = clean[:, :1] * torch.exp(-clean[:, 1:2] * T) + clean[:, 2:]
    y[1] = torch.where(wrong[1], y[1], model[1] + 4 * (y[1] - model[1]))  # four times the noise
    solution = robust(y, scale=None)
    assert bool(solution.converged.all())
    assert float(((solution.weights["residual"] == 0) == wrong).double().mean()) > 0.9
    one = robust(y[1], scale=None)
    assert torch.equal(solution.weights["residual"][1], one.weights["residual"])


def test_exact_data_have_a_scale_too():
    y = 2 * torch.exp(-1.5 * T) + 0.3
    y[::4] += 1
    solution = robust(y, scale=None)
    assert (solution.value - torch.tensor([2.0, 1.5, 0.3], dtype=torch.float64)).abs().max() < 1e-8
    assert torch.equal(solution.weights["residual"][::4], torch.zeros(10, dtype=torch.float64))


def test_a_scale_per_problem_is_that_of_each_problem():
    y, _ = spoiled_decays(3)
    scales = torch.tensor([0.05, 0.07, 0.2], dtype=torch.float64)
    batch = robust(y, scale=scales)
    mapped = torch.func.vmap(lambda y, c: robust(y, scale=c).value)(y, scales)
    for number in range(3):
        alone = robust(y[number], scale=float(scales[number])).value
        assert (batch.value[number] - alone).abs().max() < 1e-8
        assert (mapped[number] - alone).abs().max() < 1e-8


# ---- derivatives


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["truncated", "geman_mcclure"])
def test_derivatives_are_those_of_the_whole_procedure(loss):
    y = spoiled_decays(1, seed=3)[0][0]
    # Blocks that are weighted alone let steps converge linearly: a looser end would be seen in the differences.
    tight = mslsq.LevenbergMarquardt(ftol=1e-14, max_steps=400)

    def fitted(y: Tensor) -> Tensor:
        return robust(y, loss=loss, solver=tight).value

    expected = differences(fitted, y, 1e-6)
    assert float(robust(y, loss=loss).cost) > 1e-3  # a residual that is not zero, so that Gauss-Newton would not do
    reverse = torch.autograd.functional.jacobian(fitted, y)
    assert (reverse - expected).abs().max() < 1e-5 * expected.abs().max()
    forward = torch.func.jacfwd(fitted)(y)
    assert (forward - expected).abs().max() < 1e-5 * expected.abs().max()
    batch = torch.stack((y, y.flip(0)))
    both = torch.func.vmap(torch.func.grad(lambda y: fitted(y).sum()))(batch)
    assert (both[0] - expected.sum(0)).abs().max() < 1e-5 * expected.abs().max()
    if loss == "truncated":
        rejected = robust(y).weights["residual"] == 0
        assert bool((reverse[:, rejected] == 0).all()) and bool((reverse[:, ~rejected] != 0).all())


def test_the_cost_has_its_derivative_too():
    y = spoiled_decays(1, seed=3)[0][0]

    def cost(c: Tensor) -> Tensor:
        return robust(y, scale=c).cost

    scale = torch.tensor(SCALE, dtype=torch.float64)
    rejected = int((robust(y).weights["residual"] == 0).sum())
    assert abs(float(torch.func.grad(cost)(scale)) - rejected * SCALE) < 1e-10


@pytest.mark.slow
def test_geman_mcclure_has_a_derivative_in_the_scale():
    y = spoiled_decays(2, seed=3)[0]

    def fitted(c: Tensor) -> Tensor:
        return robust(y, loss="geman_mcclure", scale=c).value

    for scale in (torch.tensor(SCALE, dtype=torch.float64), torch.tensor([0.06, 0.08], dtype=torch.float64)):
        expected = differences(fitted, scale, 1e-4)  # the solve has converged to 1e-7
        allowed = 1e-4 * expected.abs().max()
        assert expected.abs().max() > 0.1
        assert (torch.func.jacrev(fitted)(scale) - expected).abs().max() < allowed
        assert (torch.func.jacfwd(fitted)(scale) - expected).abs().max() < allowed
        scale = scale.requires_grad_()
        fitted(scale).sum().backward()
        assert (scale.grad - expected.sum((0, 1))).abs().max() < 3 * allowed


def test_an_estimated_scale_is_constant_in_derivatives():
    y = spoiled_decays(1, share=0.2, seed=3)[0][0].requires_grad_()
    solution = robust(y, scale=None)
    (found,) = torch.autograd.grad(solution.value.sum(), y)
    inliers = solution.weights["residual"] > 0

    def plain(y: Tensor) -> Tensor:
        return mslsq.least_squares(decay, START, args=(T[inliers], y[inliers])).value.sum()

    assert (found - torch.func.grad(plain)(y.detach())).abs().max() < 1e-8


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("distance", [1e-12, 1e-9])
def test_a_residual_on_the_truncation_has_no_derivative(side, distance):
    """A mean with one point a little beyond or within the scale, and another problem in which it is further away. (No
    minimum is at the truncation itself: a step towards the point lowers the cost.)"""
    near = torch.tensor([0.9, 1.1, 0.95, 1.05, 1.0, 1.5], dtype=torch.float64)
    mean = near[:5].mean() if side > 0 else near.mean()
    far = near + torch.tensor([0, 0, 0, 0, 0, 1e-3 * side])
    y = torch.stack((near, far)).requires_grad_()
    scale = float(near[5] - mean) - side * distance
    solver = GraduatedNonConvexity(scale=scale, max_rounds=0)

    def residual(x: Tensor, y: Tensor) -> Tensor:
        return x - y

    with pytest.warns(mslsq.errors.NotDifferentiableWarning, match="1 solution of 2|1 problem of 2 ended at a kink"):
        solution = mslsq.least_squares(residual, mean[None], args=(y,), in_dims=(None, 0), solver=solver)
    assert solution.weights["residual"][:, 5].tolist() == [0.0 if side > 0 else 1.0] * 2
    assert solution.differentiable.tolist() == [False, True]
    (gradient,) = torch.autograd.grad(solution.value.sum(), y)
    assert bool(gradient[0].isnan().all())
    expected = torch.tensor([0.2] * 5 + [0.0] if side > 0 else [1 / 6] * 6, dtype=torch.float64)
    assert (gradient[1] - expected).abs().max() < 1e-12


def test_geman_mcclure_is_differentiable_everywhere():
    y = torch.tensor([0.9, 1.1, 0.95, 1.05, 1.0, 1.5], dtype=torch.float64)
    solver = GraduatedNonConvexity(scale=0.5, loss="geman_mcclure")
    solution = mslsq.least_squares(lambda x, y: x - y, torch.ones(1, dtype=torch.float64), args=(y,), solver=solver)
    assert bool(solution.differentiable)


def test_a_scale_that_leaves_too_few_points_is_no_convergence():
    y, _ = spoiled_decays(1)
    solution = robust(y[0], scale=1e-9)
    assert not bool(solution.converged) or int((solution.weights["residual"] > 0).sum()) >= 3


# ---- the surrogates


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("relaxation", [0.0, 0.3, 40.0])
def test_a_surrogate_has_the_derivatives_that_it_says(name, relaxation):
    loss = SURROGATES[name](0.7)
    parameters = {"scale": loss.scale, "relaxation": torch.tensor(relaxation, dtype=torch.float64)}
    s = torch.cat((torch.zeros(1), torch.logspace(-4, 3, 50))).double().requires_grad_()
    rho, slope, curvature = loss.derivatives(s, parameters)
    (first,) = torch.autograd.grad(loss.rho(s, parameters).sum(), s, create_graph=True)
    assert torch.allclose(first, slope, atol=1e-12)
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.sum(), s)
        assert torch.allclose(second, curvature, atol=1e-12)
    assert bool((rho.diff() >= -1e-12).all()) and rho[0].item() == 0 and slope[0].item() == 1


def test_surrogates_without_relaxation_are_the_losses_themselves():
    s = torch.logspace(-4, 3, 50).double()
    assert torch.equal(SURROGATES["truncated"](0.7)(s), s.clamp(max=0.7**2))
    assert torch.allclose(SURROGATES["geman_mcclure"](0.7)(s), mslsq.GemanMcClure(0.7)(s))


def test_weights_of_truncated_squares_are_those_of_the_paper():
    """Eq. 14 of Yang et al. (2020), with μ = 1/ν."""
    c, mu = 0.7, 0.4
    s = torch.linspace(0.01, 3, 40, dtype=torch.float64)
    low, high = mu / (mu + 1) * c**2, (mu + 1) / mu * c**2
    expected = torch.where(s <= low, 1.0, torch.where(s >= high, 0.0, c / s.sqrt() * (mu * (mu + 1)) ** 0.5 - mu))
    parameters = {"scale": torch.tensor(c), "relaxation": torch.tensor(1 / mu)}
    found = SURROGATES["truncated"](c).derivatives(s, parameters)[1]
    assert torch.allclose(found, expected, atol=1e-6)


# ---- cost functions


class Seen(mslsq.CostFunction):
    def residual(self, p: Tensor, measured: Tensor) -> Tensor:
        return p - measured


def walk(seed: int = 0, count: int = 30) -> tuple[mslsq.Problem, Tensor, Tensor, Tensor]:
    """Points of a walk, seen one by one and from one to the next; a third of the sightings is wrong."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    truth = normal(count, 2).cumsum(0)
    seen = truth + 0.05 * normal(count, 2)
    wrong = torch.arange(count) % 3 == 1
    seen[wrong] += 5 * normal(int(wrong.sum()), 2)
    p = mslsq.Variable("p", mslsq.Euclidean(2), count=count)
    steps = mslsq.Difference(
        p[torch.arange(count - 1)],
        p[torch.arange(1, count)],
        measured=truth.diff(dim=0) + 0.05 * normal(count - 1, 2),
        weight=1 / 0.05,
        name="odometry",
    )
    problem = mslsq.Problem(Seen(p[torch.arange(count)], measured=seen, weight=1 / 0.05), steps)
    return problem, torch.zeros(count, 2, dtype=torch.float64), wrong, seen


def test_only_named_costs_are_rejected():
    problem, start, wrong, _ = walk()
    solver = GraduatedNonConvexity(scale=3.5, costs=["seen"])
    solution = mslsq.solve(problem, {"p": start}, solver=solver)
    assert list(solution.weights) == ["seen"]
    assert torch.equal(solution.weights["seen"] == 0, wrong)
    p = mslsq.Variable("p", mslsq.Euclidean(2), count=len(start))
    right = (~wrong).nonzero()[:, 0]
    plain = mslsq.Problem(
        Seen(p[right], measured=problem["seen"].measured[right], weight=1 / 0.05),
        mslsq.Difference(
            p[torch.arange(len(start) - 1)],
            p[torch.arange(1, len(start))],
            measured=problem["odometry"].measured,
            weight=1 / 0.05,
        ),
    )
    expected = mslsq.solve(plain, {"p": start}).value["p"]
    assert (solution.value["p"] - expected).abs().max() < 1e-8


def test_scales_by_cost_and_all_costs():
    problem, start, wrong, _ = walk()
    solver = GraduatedNonConvexity(scale={"seen": 3.5, "odometry": 100.0})
    solution = mslsq.solve(problem, {"p": start}, solver=solver)
    assert torch.equal(solution.weights["seen"] == 0, wrong)
    assert torch.equal(solution.weights["odometry"], torch.ones(29, dtype=torch.float64))


def test_a_batch_of_problems_has_weights_per_problem():
    problem, start, wrong, seen = walk()
    other = seen.clone()
    other[5] += 40
    data = {"seen": {"measured": torch.stack((seen, other))}}
    solver = GraduatedNonConvexity(scale=3.5, costs=["seen"])
    solution = mslsq.solve(problem, {"p": start}, data, in_dims=(None, 0), solver=solver)
    assert solution.weights["seen"].shape == (2, 30)
    assert torch.equal(solution.weights["seen"][0] == 0, wrong)
    assert torch.equal(solution.weights["seen"][1] == 0, wrong | (torch.arange(30) == 5))

    def fitted(measured: Tensor) -> Tensor:
        return mslsq.solve(problem, {"p": start}, {"seen": {"measured": measured}}, solver=solver).value["p"].sum()

    mapped = torch.func.vmap(torch.func.grad(fitted))(data["seen"]["measured"])
    assert bool((mapped[0][wrong] == 0).all()) and bool((mapped[0][~wrong] != 0).any())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["auto", mslsq.linear.ConjugateGradient()], ids=["cholesky", "gradients"])
def test_a_sparse_system_leaves_out_what_is_rejected_and_finds_the_same(inner):
    """401 points are too many for dense normal equations; the whole system, which a derivative needs, is
    compared with the part that is solved without one."""
    problem, start, wrong, _ = walk(count=401)
    rounds = mslsq.LevenbergMarquardt(linear_solver=inner)
    solver = GraduatedNonConvexity(scale=4.0, costs=["seen"], rounds=rounds)
    plain = mslsq.solve(problem, {"p": start}, solver=solver, adjoint=mslsq.Detached())
    rejected = plain.weights["seen"] == 0
    assert int((rejected != wrong).sum()) <= 4  # of 401: a wrong one may be near, a right one far
    measured = problem["seen"].measured.clone().requires_grad_()
    found = mslsq.solve(problem, {"p": start}, {"seen": {"measured": measured}}, solver=solver)
    assert (found.value["p"] - plain.value["p"]).abs().max() < 1e-8
    assert abs(float(found.cost - plain.cost)) < 1e-8 * float(plain.cost)
    (gradient,) = torch.autograd.grad(found.value["p"].sum(), measured)
    assert bool((gradient[rejected] == 0).all())
    assert abs(float(gradient.sum()) - 2 * 401) < 1e-6  # a shift of all sightings shifts all points


def test_the_layer_takes_it():
    problem, start, wrong, _ = walk()
    layer = mslsq.LeastSquaresLayer(problem, solver=GraduatedNonConvexity(scale=3.5, costs=["seen"]))  # type: ignore[arg-type]
    assert torch.equal(layer({"p": start}).weights["seen"] == 0, wrong)


# ---- what cannot be meant


def test_errors_name_what_is_wrong():
    problem, start, _, _ = walk()

    def solved(**options: object) -> None:
        mslsq.solve(problem, {"p": start}, solver=GraduatedNonConvexity(**options))  # type: ignore[arg-type]

    with pytest.raises(mslsq.errors.UnknownNameError, match="Did you mean 'seen'"):
        solved(scale=1.0, costs=["sen"])
    with pytest.raises(mslsq.errors.UnknownNameError, match="Did you mean 'seen'"):
        solved(scale={"sene": 1.0}, costs=["seen"])
    with pytest.raises(mslsq.ProblemError, match="no entry for cost 'odometry'"):
        solved(scale={"seen": 1.0})
    with pytest.raises(mslsq.errors.ShapeError, match=re.escape("(3,)")):
        solved(scale=torch.ones(3))
    p = mslsq.Variable("p", mslsq.Euclidean(2), count=30)
    own = mslsq.Problem(Seen(p[torch.arange(30)], measured=start, loss=mslsq.Huber(1.0)))
    with pytest.raises(mslsq.ProblemError, match="Cost 'seen': loss=Huber: GraduatedNonConvexity brings"):
        mslsq.solve(own, {"p": start}, solver=GraduatedNonConvexity(scale=1.0, costs=["seen"]))
    with pytest.raises(mslsq.ProblemError, match="loss=Huber"):
        mslsq.least_squares(lambda x: x, start, loss=mslsq.Huber(1.0), solver=GraduatedNonConvexity(scale=1.0))
    with pytest.raises(mslsq.ProblemError, match="a residual has no costs"):
        mslsq.least_squares(lambda x: x, start, solver=GraduatedNonConvexity(scale=1.0, costs=["seen"]))
    with pytest.raises(mslsq.errors.AdjointOptionError, match="Implicit"):
        mslsq.solve(
            problem, {"p": start}, solver=GraduatedNonConvexity(scale=1.0, costs=["seen"]), adjoint=mslsq.Unrolled()
        )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": "trucated"}, "Did you mean 'truncated'"),
        ({"scale": -1.0}, "scale must be a positive number"),
        ({"rate": 1.0}, "rate"),
        ({"steps_per_round": 0}, "steps_per_round"),
        ({"max_rounds": -1}, "max_rounds"),
        ({"descents": 0}, "descents"),
        ({"costs": "between"}, "a list of names"),
    ],
)
def test_options_are_checked(options, says):
    with pytest.raises(mslsq.errors.SolverOptionError, match=says):
        GraduatedNonConvexity(**options)


def test_a_solver_must_be_one():
    with pytest.raises(TypeError, match=re.escape("Did you mean LevenbergMarquardt()")):
        GraduatedNonConvexity(solver=mslsq.LevenbergMarquardt)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_prepared_residual_takes_it():
    y, _ = spoiled_decays(3)
    fit = mslsq.prepared(decay, START, (T, y[0]), solver=GraduatedNonConvexity(scale=SCALE))
    for one in y:
        found, expected = fit(START, (T, one)), robust(one)
        assert (found.value - expected.value).abs().max() < 1e-10
        assert torch.equal(found.weights["residual"], expected.weights["residual"])
    gradient = torch.func.grad(lambda one: fit(START, (T, one)).value.sum())(y[0])
    assert (gradient - torch.func.grad(lambda one: robust(one).value.sum())(y[0])).abs().max() < 1e-9


@pytest.mark.slow
def test_a_prepared_problem_takes_it():
    problem, start, wrong, seen = walk()
    solver = GraduatedNonConvexity(scale=3.5, costs=["seen"])
    solve = mslsq.prepared(problem, {"p": start}, {"seen": {"measured": seen}}, solver=solver)
    for shift in (0.0, 1.0, -2.0):
        data = {"seen": {"measured": seen + shift}}
        found, expected = solve({"p": start}, data), mslsq.solve(problem, {"p": start}, data, solver=solver)
        assert (found.value["p"] - expected.value["p"]).abs().max() < 1e-10
        assert torch.equal(found.weights["seen"] == 0, wrong)


def test_other_front_doors_refuse_it_in_words():
    with pytest.raises(TypeError, match="must be a Solver object"):
        mslsq.separable_fit(lambda p, t: torch.exp(-p * t)[:, None], T, T, START[:1], solver=GraduatedNonConvexity())  # type: ignore[arg-type]


def test_float32_stays_float32():
    y, wrong = spoiled_decays(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = mslsq.least_squares(
            decay,
            START.float(),
            args=(T.float(), y.float()),
            in_dims=(None, None, 0),
            solver=GraduatedNonConvexity(scale=SCALE),
        )
    assert solution.value.dtype == torch.float32 and solution.weights["residual"].dtype == torch.float32
    assert float(((solution.weights["residual"] == 0) == wrong).double().mean()) > 0.98


@pytest.mark.sampled(1)
@pytest.mark.parametrize("loss", ["truncated", "geman_mcclure"])
@pytest.mark.slow
def test_within_bounds_the_solution_is_the_bounded_fit_with_its_weights(loss):
    """The third parameter would go to 0.3; it is held at 0.2 of its bound, which is an input like others."""
    y, _ = spoiled_decays(6)
    upper = torch.tensor([torch.inf, torch.inf, 0.2], dtype=torch.float64)
    solver = GraduatedNonConvexity(scale=SCALE, loss=loss)

    def bounded(upper: Tensor, **options: object) -> mslsq.Solution:
        options = {"in_dims": (None, None, 0), "bounds": (None, upper), **options}
        return mslsq.least_squares(decay, START, (T, y), solver=solver, **options)  # type: ignore[arg-type]

    solution = bounded(upper)
    assert bool(solution.converged.all()) and bool((solution.active[:, 2] == 1).any())
    assert bool((solution.value <= upper).all())
    for number in range(6):
        weights = solution.weights["residual"][number].detach()
        weighted = mslsq.least_squares(
            lambda p, y, w: w.sqrt() * decay(p, T, y),
            solution.value[number].detach(),
            (y[number], weights),
            bounds=(None, upper),
        )
        assert torch.allclose(weighted.value, solution.value[number], atol=1e-6)
    found = torch.func.jacfwd(lambda top: bounded(torch.cat((upper[:2], top[None]))).value)(upper[2])
    step = torch.tensor([0, 0, 1e-6], dtype=torch.float64)
    plain = {"adjoint": mslsq.Detached()}
    expected = (bounded(upper + step, **plain).value - bounded(upper - step, **plain).value) / 2e-6
    assert torch.allclose(found, expected, atol=1e-5)


# ---- descents


def spoiled_circles(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points (count, 60) near circles, of which half are anywhere in a square; the circles and who is wrong."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    p = torch.stack([uniform(count) - 0.5, uniform(count) - 0.5, 0.5 + uniform(count)], 1)
    angle, wrong = 2 * torch.pi * uniform(count, 60), uniform(count, 60).argsort(1) < 30
    ring = torch.stack([p[:, :1] + p[:, 2:] * angle.cos(), p[:, 1:2] + p[:, 2:] * angle.sin()])
    points = ring + NOISE * torch.randn(2, count, 60, generator=generator, dtype=torch.float64)
    points = torch.where(wrong, 8 * uniform(2, count, 60) - 4, points)
    return points[0], points[1], p, wrong


def circle(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return ((x - p[0]) ** 2 + (y - p[1]) ** 2 + 1e-12).sqrt() - p[2]


def fitted_circles(x: Tensor, y: Tensor, **options: object) -> mslsq.Solution:
    start = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    solver = GraduatedNonConvexity(**{"scale": 3 * NOISE, **options})  # type: ignore[arg-type]
    in_dims = None if x.ndim == 1 else (None, 0, 0)
    return mslsq.least_squares(circle, start, args=(x, y), in_dims=in_dims, solver=solver)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("loss", ["truncated", "geman_mcclure"])
def test_circles_are_found_among_as_many_wrong_points(loss):
    """The plain fit of all points has two to five times their radius; one descent from there loses many circles."""
    x, y, truth, _ = spoiled_circles(100)
    several, one = (fitted_circles(x, y, loss=loss, descents=descents) for descents in (4, 1))
    found, alone = (((one.value - truth).norm(dim=1) < 0.06).double().mean() for one in (several, one))
    assert float(found) >= 0.95
    assert float(alone) <= 0.92
    blur = 1e-9 * one.cost
    assert bool((several.cost <= one.cost + blur).all())
    assert bool((several.num_steps > one.num_steps).all())


@pytest.mark.slow
def test_descents_of_a_batch_are_those_of_its_problems():
    x, y, _, _ = spoiled_circles(12)
    batch = fitted_circles(x, y)
    one = fitted_circles(x, y, descents=1)
    assert 0 < int((batch.cost < one.cost - 1e-3).sum()) < 12  # some take a later descent, others the first
    for number in range(12):
        alone = fitted_circles(x[number], y[number])
        assert (batch.value[number] - alone.value).abs().max() < 1e-8
        assert torch.equal(batch.weights["residual"][number], alone.weights["residual"])


def test_data_without_outliers_need_one_descent():
    y = 2 * torch.exp(-1.5 * T) + 0.3
    near = torch.tensor([2.001, 1.5, 0.3], dtype=torch.float64)
    options = {"args": (T, y), "adjoint": mslsq.Detached()}
    several = mslsq.least_squares(decay, near, solver=GraduatedNonConvexity(scale=SCALE), **options)
    one = mslsq.least_squares(decay, near, solver=GraduatedNonConvexity(scale=SCALE, descents=1), **options)
    assert torch.equal(several.value, one.value)
    assert int(several.num_steps) <= 2 * int(one.num_steps)


def test_later_descents_that_reject_everything_do_not_warn():
    problem, start, wrong, _ = walk()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = mslsq.solve(problem, {"p": start}, solver=GraduatedNonConvexity(scale=3.5, costs=["seen"]))
    assert torch.equal(solution.weights["seen"] == 0, wrong)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [0, 2])
def test_a_walk_that_one_step_a_round_loses_is_found(seed):
    problem, start, wrong, _ = walk(seed, count=401)
    options = {"scale": 4.0, "costs": ["seen"], "descents": 1}
    found, hasty = (
        mslsq.solve(problem, {"p": start}, solver=GraduatedNonConvexity(**options, **more), adjoint=mslsq.Detached())
        for more in ({}, {"steps_per_round": 1})
    )
    assert int(((found.weights["seen"] == 0) != wrong).sum()) <= 4
    assert float(found.cost) < 0.9 * float(hasty.cost)


# ---- stops


def test_a_spent_budget_ends_at_the_best_point_so_far():
    y, _ = spoiled_decays(3)
    slow = GraduatedNonConvexity(mslsq.LevenbergMarquardt(time_budget=1e-6), scale=SCALE)
    in_dims = (None, None, 0)
    solution = mslsq.least_squares(decay, START, args=(T, y), in_dims=in_dims, solver=slow)
    assert solution.status.tolist() == [mslsq.Status.TIME_BUDGET] * 3
    assert not bool(solution.differentiable.any()) and "time_budget" in solution.message()
    at = torch.func.vmap(lambda p, y: decay(p, T, y), in_dims=(0, 0))(solution.value, y)
    assert torch.allclose(solution.cost, 0.5 * (at**2).clamp(max=SCALE**2).sum(1))


def test_a_budget_that_is_not_spent_changes_nothing():
    y, _ = spoiled_decays(3)
    limited = robust(y, solver=mslsq.LevenbergMarquardt(time_budget=1e6))
    assert (limited.value - robust(y).value).abs().max() < 1e-9
    assert bool(limited.converged.all())


def test_a_budget_of_the_rounds_alone_is_refused():
    with pytest.raises(mslsq.errors.SolverOptionError, match="all rounds share one: give it to solver"):
        GraduatedNonConvexity(rounds=mslsq.GaussNewton(time_budget=1.0))


def test_an_interrupt_in_a_round_ends_all():
    def residual(p: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 30:
            signal.raise_signal(signal.SIGINT)
        return p - 1 + torch.linspace(-3, 3, 9)[:, None].flatten()

    def solved(**options: str) -> mslsq.Solution:
        inner = mslsq.LevenbergMarquardt(trace="never", **options)  # type: ignore[arg-type]
        return mslsq.least_squares(residual, torch.zeros(1), solver=GraduatedNonConvexity(inner, scale=0.5))

    calls = 0
    with pytest.raises(mslsq.errors.SolveInterrupted) as caught:
        solved()
    calls = 0
    for solution in (caught.value.solution, solved(on_interrupt="return")):
        assert int(solution.status) == mslsq.Status.INTERRUPTED
        r = solution.value - 1 + torch.linspace(-3, 3, 9)
        assert torch.allclose(solution.cost, 0.5 * (r * r).clamp(max=0.25).sum())
    calls = 31  # never
    assert bool(solved().converged)
