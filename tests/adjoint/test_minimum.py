"""A derivative is given where the gradient vanishes and is smooth, and nowhere else: kinks, loose tolerances, units."""

import dataclasses
import warnings

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

import mslsq
from mslsq import Status
from mslsq.adjoint import NotDifferentiableWarning

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore::mslsq.adjoint.NotDifferentiableWarning")


def tensor(*numbers: float, dtype=F64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


def derivative(residual, start, data, adjoint=None, **options):
    """Solution, and its derivative in the data (by reverse mode, entry by entry)."""
    data = data.clone().requires_grad_()
    solver = options.pop("solver", mslsq.LevenbergMarquardt())
    solution = mslsq.least_squares(residual, start, args=(data,), solver=solver, adjoint=adjoint, **options)
    rows = [torch.autograd.grad(x, data, retain_graph=True)[0] for x in solution.value.reshape(-1)]
    return solution, torch.stack(rows)


# ---- kinks ----------------------------------------------------------------------------------------------
# Each has its minimum at x = d, for d between two bounds, because the slope jumps there: dx/dd = 1. No second
# derivative knows that.


def absolute(x, d):
    return torch.stack([1 + (x[0] - d[0]).abs(), 0.5 * (x[0] - 5)])


def hinge(x, d):
    return torch.stack([1 + torch.relu(x[0] - d[0]), 0.5 * (x[0] - 4)])


def maximum(x, d):
    return torch.stack([1 + torch.maximum(x[0] - d[0], d[0] - x[0]), 0.5 * (x[0] - 5)])


def median(x, d):
    """Σ (1 + |x − dᵢ|)²: between its neighbours the middle one is the minimum."""
    return 1 + (x - d).abs()


KINKS = [
    (absolute, tensor(0.0), tensor(2.0)),
    (hinge, tensor(0.0), tensor(2.0)),
    (maximum, tensor(0.0), tensor(2.0)),
    (median, tensor(0.3), tensor(1.0, 2.0, 3.5)),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("trace", ["never", "always"])
@pytest.mark.parametrize("failed", ["nan", "zero"])
@pytest.mark.parametrize(("residual", "start", "data"), KINKS, ids=[kink[0].__name__ for kink in KINKS])
def test_a_minimum_at_a_kink_has_no_derivative(residual, start, data, failed, trace):
    solver = mslsq.LevenbergMarquardt(trace=trace)
    solution, found = derivative(residual, start, data, mslsq.Implicit(failed=failed), solver=solver)
    assert float(solution.value) == pytest.approx(2.0, abs=1e-6)
    assert not solution.differentiable
    assert found.isnan().all() if failed == "nan" else not found.any()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("center", [0.0, 2.0, 1e6])
def test_a_kink_is_found_where_the_gradient_is_zero_between_both_slopes(center, dtype):
    """By symmetry autograd's slope of |0|, zero, makes the gradient vanish, and H is that of the neighbours alone."""
    data = tensor(center - 1, center, center + 1, dtype=dtype)
    solution, found = derivative(median, data[1:2], data)
    assert solution.converged
    assert float(solution.gradient_norm) == 0
    assert not solution.differentiable
    assert found.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_kink_is_a_kink_for_the_gauss_newton_hessian_and_for_direct_loss_too(dtype):
    for adjoint in (mslsq.Implicit(hessian="gauss_newton"), mslsq.DirectLossMinimization(), mslsq.Truncated(2)):
        data = tensor(1.0, 2.0, 3.0, dtype=dtype)
        solution, _ = derivative(median, data[1:2], data, adjoint)
        assert not solution.differentiable


def test_at_the_seam_of_huber_the_derivative_is_that_of_one_side_or_none():
    """Its second derivative jumps where |r| is the scale: x = 1 is the minimum of ½x² + huber(x − d), at d = 2."""

    def seam(x, d):
        r = x[0] - d[0]
        huber = torch.where(r.abs() < 1, r.abs(), torch.sqrt((2 * r.abs() - 1).clamp(min=1e-3)))
        return torch.stack([x[0], huber])

    for shift in (-1e-3, 0.0, 1e-3):
        solution, found = derivative(seam, tensor(0.0), tensor(2.0 + shift))
        assert float(solution.value) == pytest.approx(min(1 + shift / 2, 1.0), abs=1e-6)
        if shift:
            assert solution.differentiable
            assert float(found) == pytest.approx(0.5 if shift < 0 else 0.0, abs=1e-6)
        else:
            assert found.isnan() or min(abs(float(found) - 0.5), abs(float(found))) < 1e-6


@pytest.mark.parametrize("distance", [1e-1, 1e-4, 1e-6])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_smooth_minimum_beside_a_kink_keeps_its_derivative(distance, side):
    def residual(x, d):
        return torch.stack([x[0] - d[0], x[0] ** 2 - d[0] ** 2, 10 * torch.relu(side * (x[0] - d[0]) - distance)])

    solution, found = derivative(residual, tensor(1.0), tensor(1.5))
    assert solution.converged
    assert solution.differentiable
    assert float(found) == pytest.approx(1.0, rel=1e-6)


def test_each_problem_of_a_batch_is_judged_for_itself_and_spoils_no_shared_gradient():
    """d = 2 lies at the kink, d = −9 before it (there the cost is smooth); both share a factor."""

    def residual(x, d, factor):
        return torch.stack([1 + (x[0] - d).abs(), factor * (x[0] - 5)])

    d, factor = tensor(2.0, -9.0).requires_grad_(), torch.tensor(0.5, dtype=F64, requires_grad=True)
    with pytest.warns(NotDifferentiableWarning, match=r"1 problem of 2 ended at a kink"):
        solution = mslsq.least_squares(residual, tensor(6.0), args=(d, factor), in_dims=(None, 0, None))
    assert solution.status.tolist()[0] == mslsq.Status.STALLED  # no step goes further, and the gradient is not zero
    assert solution.differentiable.tolist() == [False, True]
    torch.nan_to_num(solution.value).sum().backward()
    assert d.grad is not None
    assert factor.grad is not None
    # 1 + x − d + f²(x − 5) = 0: x = −7, dx/dd = 1/(1 + f²), dx/df = 2f(5 − x)/(1 + f²)
    assert float(solution.value[1].detach()) == pytest.approx(-7)
    assert d.grad[0].isnan()
    assert float(d.grad[1]) == pytest.approx(0.8)
    assert float(factor.grad) == pytest.approx(9.6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "linear",
    [
        mslsq.linear.Cholesky(),
        mslsq.linear.QR(),
        mslsq.linear.SparseCholesky(),
        mslsq.linear.ConjugateGradient(),
        mslsq.linear.ConjugateGradient(matrix_free=True),
    ],
    ids=lambda linear: f"{type(linear).__name__} {type(linear.storage).__name__}",
)
def test_kinks_are_found_with_every_linear_solver(linear):
    x = mslsq.Variable("x", mslsq.Euclidean(1), count=3)
    i = torch.arange(3)

    @mslsq.cost
    def distance(x, d):
        return 1 + (x - d).abs()

    @mslsq.cost
    def pull(x, target):
        return 0.5 * (x - target)

    problem = mslsq.Problem(
        distance(x[i], d=torch.zeros(3, 1, dtype=F64)), pull(x[i], target=torch.zeros(3, 1, dtype=F64))
    )

    def solve(d, target):
        data = {"distance": {"d": d[:, None]}, "pull": {"target": target[:, None]}}
        start = {"x": torch.full((3, 1), 4.0, dtype=F64)}
        return mslsq.solve(problem, start, data, solver=mslsq.LevenbergMarquardt(linear_solver=linear))

    smooth = solve(tensor(1.0, 2.0, 3.0).requires_grad_(), tensor(9.0, 12.0, 20.0))
    assert smooth.differentiable  # all pulled past the kink
    kinked = solve(tensor(1.0, 2.0, 3.0).requires_grad_(), tensor(9.0, 3.5, 20.0))
    assert float(kinked.value["x"].detach()[1]) == pytest.approx(2.0, abs=1e-6)
    assert not kinked.differentiable


# ---- minima that are none of this -----------------------------------------------------------------------

T = torch.linspace(0, 1, 24, dtype=F64)


def decay(p, y):
    return p[0] * torch.exp(p[1] * T.to(y.dtype)) + p[2] - y


def measurements(noise: float, dtype=F64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (2 * torch.exp(-1.5 * T) + 0.3 + noise * torch.randn(24, generator=generator, dtype=F64)).to(dtype)


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.03])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-5])
def test_loose_tolerances_in_float32_keep_their_derivatives(tolerance, noise):
    solver = mslsq.LevenbergMarquardt(ftol=tolerance, xtol=tolerance, gtol=tolerance, max_steps=30)
    start, y = tensor(1.0, -1.0, 0.0, dtype=torch.float32), measurements(noise, torch.float32)
    solution, found = derivative(decay, start, y, solver=solver)
    assert solution.converged
    assert solution.differentiable
    truth = derivative(decay, start.double(), y.double())[1]
    assert float((found - truth).norm() / truth.norm()) < 0.5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("trace", ["never", "always"])
def test_problems_of_zero_cost_keep_their_derivatives(dtype, trace):
    solver = mslsq.LevenbergMarquardt(trace=trace)
    eps = torch.finfo(dtype).eps
    cases = [
        (decay, tensor(1.0, -1.0, 0.0, dtype=dtype), measurements(0.0, dtype), None),
        (decay, tensor(2.0, -1.5, 0.3, dtype=dtype), measurements(0.0, dtype), None),  # started at the solution
        (lambda x, d: torch.exp(x) - d, tensor(1.0, dtype=dtype), tensor(1.0, dtype=dtype), 1.0),  # which is zero
        (lambda x, d: torch.sin(x) + d - d.sqrt() ** 2, tensor(0.0, dtype=dtype), tensor(2.0, dtype=dtype), None),
        (lambda x, d: x - d, tensor(0.0, 0.0, dtype=dtype), tensor(0.0, 0.0, dtype=dtype), torch.eye(2)),
        (lambda x, d: x**2 - d, tensor(1.0, dtype=dtype), tensor(1e6, dtype=dtype), 5e-4),
    ]
    for residual, start, data, expected in cases:
        solution, found = derivative(residual, start, data, solver=solver)
        if int(solution.status) in (Status.MAX_STEPS, Status.NON_FINITE):
            raise AssertionError(solution.message())
        assert solution.differentiable, (residual, solution.message())
        assert found.isfinite().all()
        if expected is not None:
            expected = torch.as_tensor(expected, dtype=dtype)
            assert torch.allclose(found, expected, rtol=100 * eps**0.75, atol=0)


def test_data_that_are_as_noisy_as_rounding_keep_their_derivatives():
    """A perfect start: everything left is rounding, of numbers of unknown size."""
    points = 10 * torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    for dtype in (torch.float32, F64):
        at = points.to(dtype)
        motion = mslsq.SE3.exp(torch.tensor([1.0, -2.0, 0.5, 0.3, 1.0, -0.7], dtype=dtype))
        moved = motion.act(at)

        def residual(delta, at, moved, motion=motion):
            return (motion @ mslsq.SE3.exp(delta)).act(at) - moved

        moved = moved.requires_grad_()
        solution = mslsq.least_squares(residual, torch.zeros(6, dtype=dtype), args=(at, moved))
        assert float(solution.cost.detach()) < 1e-8
        assert solution.differentiable


@pytest.mark.sampled(18)
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("unit_of_x", [1e-9, 1.0, 1e6])
@pytest.mark.parametrize("unit_of_r", [1e-9, 1.0, 1e6])
def test_the_judgement_depends_on_no_units(unit_of_r, unit_of_x, dtype, noise):
    """The same fit, at its minimum, with variables and residuals in other units: the same derivative."""
    y = measurements(noise, F64)
    minimum = mslsq.least_squares(decay, tensor(1.0, -1.0, 0.0), args=(y,)).value
    truth = derivative(decay, minimum, y)[1]

    def scaled(p, y):
        return unit_of_r * decay(p / unit_of_x, y)

    # Met in no unit, but by a gradient of zero: the start is nearly the minimum, and has to be judged.
    solver = mslsq.LevenbergMarquardt(gtol=0.0, max_steps=100)
    start = (minimum * (1 + 1e-3) * unit_of_x).to(dtype)
    solution, found = derivative(scaled, start, y.to(dtype), solver=solver)
    assert bool(solution.converged) or int(solution.status) == Status.STALLED
    assert solution.differentiable
    assert float((found / unit_of_x - truth).norm() / truth.norm()) < (1e-5 if dtype is F64 else 0.05)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e6])
def test_a_kink_in_any_unit_has_no_derivative(unit):
    def residual(x, d):
        return torch.stack([1 + (x[0] - d[0]).abs() / unit, 0.5 * (x[0] / unit - 5)])

    solution, found = derivative(residual, tensor(1.0) * unit, tensor(2.0) * unit)
    assert float(solution.value) == pytest.approx(2 * unit, rel=1e-5)
    assert not solution.differentiable
    assert found.isnan().all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [mslsq.SO3, mslsq.SE3, mslsq.Sim3, mslsq.SE2, mslsq.UnitVector])
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_means_on_manifolds_keep_their_derivatives(kind, spread):
    """The mean of elements close together, also at the identity and where all agree (zero cost)."""
    generator = torch.Generator().manual_seed(2)
    for center in (kind.random(generator=generator, dtype=F64),):
        steps = spread * torch.randn(5, kind.tangent_dim, generator=generator, dtype=F64)
        samples = kind(center.storage.expand(5, -1)).retract(steps)

        def residual(x, samples, kind=kind):
            return torch.stack([x.local(kind(s)) for s in samples.unbind(0)])

        data = samples.storage.clone().requires_grad_()
        solution = mslsq.least_squares(residual, samples[0], args=(data,))
        assert solution.differentiable
        assert torch.autograd.grad(solution.value.storage.sum(), data)[0].isfinite().all()


def test_a_kink_on_a_manifold_has_no_derivative():
    """The angle to a target adds |θ| to a constant: it holds the rotation there against a weaker pull."""

    def residual(x, d):
        return torch.stack([1 + (x.log()[0] - d[0]).abs(), 0.5 * (x.log()[0] - 2.5)])

    d = tensor(0.7).requires_grad_()
    solution = mslsq.least_squares(residual, mslsq.SO2.exp(tensor(0.0)), args=(d,))
    assert float(solution.value.log().detach()) == pytest.approx(0.7, abs=1e-6)
    assert not solution.differentiable


@pytest.mark.parametrize("hessian", ["exact", "gauss_newton"])
def test_a_gauge_of_least_norm_keeps_its_derivative_and_a_kink_beside_it_does_not(hessian):
    adjoint = mslsq.Implicit(gauge="minimum_norm", hessian=hessian)
    smooth = derivative(lambda x, d: torch.stack([x.sum() - d[0]]), tensor(0.0, 0.0), tensor(3.0), adjoint)
    assert torch.allclose(smooth[1], torch.full((2, 1), 0.5, dtype=F64))
    kinked, _ = derivative(lambda x, d: median(x.sum(), d), tensor(1.0, 1.0), tensor(1.0, 2.0, 3.0), adjoint)
    assert kinked.converged
    assert not kinked.differentiable


def test_an_ill_conditioned_fit_keeps_its_derivative():
    """J has a condition of 1e7 and a large residual: rounding of Jᵀr is nothing that a Newton step reduces."""
    powers = torch.stack([(T + 1) ** k for k in range(7)], 1)
    y = torch.sin(20 * T)
    assert float(torch.linalg.cond(powers)) > 1e6
    solution, found = derivative(lambda p, y: powers @ p - y, torch.zeros(7, dtype=F64), y)
    assert solution.differentiable
    assert float((found - torch.linalg.pinv(powers)).norm() / torch.linalg.pinv(powers).norm()) < 1e-3


def test_large_residuals_where_gauss_newton_converges_slowly_keep_the_exact_derivative():
    def residual(x, d):
        return torch.stack([x[0] + 1, d[0] * x[0] ** 2 + x[0] - 2])

    for d in (-0.7, 0.4, 0.7, 3.0):
        solution, found = derivative(residual, tensor(1.0), tensor(d))
        assert solution.differentiable
        h, tight = 1e-4, mslsq.LevenbergMarquardt(ftol=0, xtol=1e-15, gtol=1e-14)
        near = [(tensor(d + s * h),) for s in (1, -1)]
        up, down = (float(mslsq.least_squares(residual, tensor(1.0), args=at, solver=tight).value) for at in near)
        assert float(found) == pytest.approx((up - down) / (2 * h), rel=1e-5)


# ---- what is said ---------------------------------------------------------------------------------------


def said(run) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in caught if issubclass(w.category, NotDifferentiableWarning)]


def test_one_warning_says_that_it_is_a_kink_and_not_a_gauge():
    (message,) = said(lambda: derivative(*KINKS[0]))
    assert message.startswith("The problem ended at a kink")
    assert "gauge" not in message


def test_a_tolerance_met_too_early_is_said_to_be_that():
    """gtol = 10 is met at the start, where a Newton step still halves x."""
    solver = mslsq.LevenbergMarquardt(gtol=10.0)
    solution = None

    def run():
        nonlocal solution
        solution = derivative(lambda x, d: torch.cat([x - d, 0.1 * x**2]), tensor(2.0), tensor(1.0), solver=solver)[0]

    (message,) = said(run)
    assert solution is not None
    assert solution.status == Status.GRADIENT_TOLERANCE
    assert not solution.differentiable
    assert "gradient does not vanish" in message
    assert "gtol" in message


def test_a_saddle_is_not_called_a_gauge():
    """x = 0 is a maximum of ½(x² − 1)², where the gradient is zero."""
    (message,) = said(lambda: derivative(lambda x, d: x**2 - d, tensor(0.0), tensor(1.0)))
    assert "negative eigenvalue" in message
    assert "no free gauge" in message


def test_reasons_of_a_batch_are_counted_in_one_warning():
    def residual(x, d):
        return torch.stack([1 + (x[0] - d).abs(), 0.5 * (x[0] - 5)])

    d = tensor(2.0, 3.0, 9.0).requires_grad_()
    messages = said(lambda: mslsq.least_squares(residual, tensor(0.0), args=(d,), in_dims=(None, 0)))
    assert len(messages) == 1
    assert messages[0].startswith("2 problems of 3 ended at a kink")


def test_there_is_no_warning_without_derivatives():
    residual, start, data = KINKS[0]
    assert not said(lambda: mslsq.least_squares(residual, start, args=(data,)))


@pytest.mark.parametrize("trace", ["never", "always"])
def test_transforms_see_kinks_as_well(trace):
    residual, start, data = KINKS[0]
    solver = dataclasses.replace(mslsq.LevenbergMarquardt(), trace=trace)
    found = jacrev(lambda d: mslsq.least_squares(residual, start, args=(d,), solver=solver).value)(data)
    assert found.isnan().all()


@pytest.mark.parametrize("adjoint", [mslsq.Implicit(), mslsq.Implicit(order=3), mslsq.Truncated(3), mslsq.Unrolled()])
@pytest.mark.parametrize("trace", ["never", "always"])
def test_a_residual_that_is_another_function_at_one_point_has_the_derivatives_around_it(adjoint, trace):
    """Labels −1 and 1 that are moved by the variables, as in `cosine_embedding_loss`: a Newton step from beside the
    solution ends at zero, where the labels are equal to their numbers."""

    def residual(x: Tensor, y: Tensor) -> Tensor:
        labels = torch.tensor([-1.0, 1.0, 1.0], dtype=F64) + 3 * x
        steep = torch.where(labels.abs() == 1, 100 * x.sum(), 0.0)
        return torch.cat([1000 * (steep[:1] - y), x])

    start = 0.02 * torch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.2]], dtype=F64)
    y = tensor(4.6e-4, -8.8e-5)[:, None].requires_grad_()
    solver = mslsq.LevenbergMarquardt(trace=trace)
    solution = mslsq.least_squares(residual, start, (y,), in_dims=0, solver=solver, adjoint=adjoint)
    assert bool(solution.differentiable.all())
    assert float(solution.value.detach().abs().max()) < 1e-9
    found = torch.autograd.grad(solution.value.sum(), y)[0]
    assert float(found.abs().max()) < 1e-9


@pytest.mark.parametrize("adjoint", [mslsq.Implicit(), mslsq.Truncated(2), mslsq.Unrolled()])
def test_what_operators_write_into_is_differentiated(adjoint):
    """The parts of `cosine_embedding_loss` take roots and clamp in place: the backward pass of what is recorded of them
    needs what they overwrite."""
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(4, 5, 3, generator=generator, dtype=F64)
    labels = tensor(1.0, 1.0, -1.0, 1.0, -1.0)

    def residual(x: Tensor, y: Tensor, others: Tensor) -> Tensor:
        moved = others + torch.arange(5, dtype=F64)[:, None] * x
        losses = torch.nn.functional.cosine_embedding_loss(moved, others, labels, 0.1, reduction="none")
        return torch.cat([losses - y, 3 * (x - 1)])

    start = torch.ones(4, 3, dtype=F64)
    y = 0.5 * torch.rand(4, 5, generator=generator, dtype=F64).requires_grad_()
    found = []
    for trace in ("never", "always"):
        solver = mslsq.LevenbergMarquardt(trace=trace)
        solution = mslsq.least_squares(residual, start, (y, others), in_dims=0, solver=solver, adjoint=adjoint)
        assert bool(solution.differentiable.all())
        found.append(torch.autograd.grad(solution.value.sum(), y)[0])
    assert torch.allclose(*found, rtol=1e-6, atol=1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trace", ["never", "always"])
def test_variables_that_run_to_infinity_have_no_derivative(trace):
    """c + a / x: the cost becomes level, and a Newton step stays half of x wherever a solve stops."""
    t = torch.linspace(0.1, 2, 20, dtype=torch.float64)
    y = 2 * torch.exp(-1.1 * t) + 0.3 + 0.02 * torch.sin(9 * t)

    def residual(p, t, y):
        return torch.distributions.Normal(p[0], torch.nn.functional.softplus(p[1])).cdf(t) - y / 3

    data, start = y.clone().requires_grad_(), torch.tensor([0.5, 0.4], dtype=torch.float64)
    solver = mslsq.LevenbergMarquardt(trace=trace)
    with pytest.warns(mslsq.errors.NotDifferentiableWarning):
        solution = mslsq.least_squares(residual, start, (t, data), solver=solver)
    assert solution.value[0] > 1e6
    assert not solution.differentiable
    assert torch.autograd.grad(solution.value.sum(), data)[0].isnan().all()


def test_a_solution_near_zero_from_a_start_of_zero_has_a_derivative():
    """The solve stops at once, and a Newton step is all of the way."""
    t = torch.linspace(-1, 1, 21, dtype=torch.float64)
    y = (t**2 + 1e-9 * t).requires_grad_()
    solution = mslsq.least_squares(lambda p, y: p[0] * t - y, torch.zeros(1, dtype=torch.float64), (y,))
    assert solution.differentiable
    assert torch.allclose(torch.autograd.grad(solution.value.sum(), y)[0], t / (t**2).sum(), rtol=1e-9, atol=0)


def test_a_solve_begun_where_another_one_ran_to_infinity_has_no_derivative():
    """Of a · log(t + x²) the curvature towards infinity is what the rest of the gradient adds to it, and Newton's step
    is short: its derivative was 1e4 for -1e6, without a word."""
    t = torch.linspace(0.1, 2, 20, dtype=torch.float64)
    y = (2 * torch.exp(-1.1 * t) + 0.3 + 0.02 * torch.sin(9 * t)).requires_grad_()
    start = torch.tensor([0.0479642669569733, 66092.28987708328], dtype=torch.float64)
    solver = mslsq.LevenbergMarquardt(trace="never", native="never")

    def residual(p, t, y):
        return p[0] * torch.digamma(t + 1 + p[1] ** 2) - y

    with pytest.warns(mslsq.errors.NotDifferentiableWarning):
        solution = mslsq.least_squares(residual, start, (t, y), solver=solver)
    assert solution.converged
    assert not solution.differentiable


def test_a_loosely_solved_curved_problem_is_moved_to_where_its_hessian_rests():
    """exp(x) = y: a Newton step from where a loose tolerance stopped leaves a tenth of the gradient."""
    y = torch.tensor([7.0, 9.0], dtype=torch.float64, requires_grad=True)
    solver = mslsq.GaussNewton(ftol=1e-1, xtol=1e-1, gtol=1e-1, trace="never", native="never")
    start = torch.tensor([2.3], dtype=torch.float64)
    solution = mslsq.least_squares(lambda x, y: torch.exp(x) - y, start, (y,), solver=solver)
    assert solution.differentiable
    (found,) = torch.autograd.grad(solution.value.sum(), y)
    assert torch.allclose(found, torch.full_like(found, 1 / 16), rtol=1e-3, atol=0)  # x = log mean y
