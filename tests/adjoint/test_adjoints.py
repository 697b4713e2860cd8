"""Every strategy against an independent derivative: what is exact, what is biased by how much, what fails in words."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jacfwd, jacrev, vmap

import mslsq
from mslsq import Status
from mslsq.adjoint import AdjointOptionError, DerivativeOrderError, NotDifferentiableWarning
from tests.differences import fourth_order_differences

F64 = torch.float64
TIGHT = {"ftol": 0.0, "gtol": 1e-13, "xtol": 1e-15, "max_steps": 100}
LM = mslsq.LevenbergMarquardt(**TIGHT)
T = torch.linspace(0, 1, 20, dtype=F64)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def decay(p, t, y):
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def measurements(sigma: float) -> Tensor:
    return 2.0 * torch.exp(-1.5 * T) + 0.3 + sigma * noise(20)


def fit(y, adjoint=None, solver=LM, start=START):
    return mslsq.least_squares(decay, start, (T, y), solver=solver, adjoint=adjoint).value


def off(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


# ---- Implicit -------------------------------------------------------------------------------------------


def test_the_gauss_newton_hessian_is_biased_by_the_noise_and_the_exact_one_is_not():
    """The bias of peers that drop second derivatives grows with the residuals (3e-2 at noise 1.0)."""

    def exponential(y, adjoint=None):
        start = torch.tensor([1.5, -1.0], dtype=F64)
        return mslsq.least_squares(
            lambda p, y: p[0] * torch.exp(p[1] * T) - y, start, (y,), solver=LM, adjoint=adjoint
        ).value

    biases = {1: [], 2: []}
    for sigma in (0.0, 0.01, 0.1):
        y = 2.0 * torch.exp(-1.5 * T) + sigma * noise(20)
        truth = fourth_order_differences(exponential, y)
        assert off(jacrev(exponential)(y), truth) < 1e-8
        for order, kept in biases.items():
            adjoint = mslsq.Implicit(hessian="gauss_newton", order=order)
            kept.append(off(jacrev(lambda y, a=adjoint: exponential(y, a))(y), truth))
    # Without residuals the two Hessians are the same. With one chord step the bias is linear in the noise; the second
    # multiplies by it once more.
    assert biases[1][0] < 1e-8
    assert biases[1][1] > 1e-4
    assert biases[1][2] == pytest.approx(10 * biases[1][1], rel=0.5)
    assert biases[2][1] < 10 * biases[1][1] ** 2
    assert 1e-7 < biases[2][2] < 10 * biases[1][2] ** 2


def graph_size(adjoint, steps: int) -> int:
    """How many operations autograd keeps for the backward pass; each holds the tensors it needs.

    (Its hooks on saved tensors cannot count them: `torch.func` refuses to run under them.)
    """
    solver = mslsq.GaussNewton(max_steps=steps, ftol=0, gtol=0, xtol=0)
    start = torch.tensor([1.5, -1.2, 0.3], dtype=F64)
    solution = mslsq.least_squares(
        decay, start, (T, measurements(0.1).requires_grad_()), solver=solver, adjoint=adjoint
    )
    assert int(solution.num_steps) == steps
    found, waiting = set(), [solution.value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(before for before, _ in node.next_functions)
    return len(found)


def test_the_graph_of_unrolled_grows_with_the_steps_and_that_of_implicit_does_not():
    few, more, most = (graph_size(mslsq.Unrolled(), steps) for steps in (2, 4, 6))
    assert more - few == most - more > 0
    assert len({graph_size(mslsq.Implicit(), steps) for steps in (2, 4, 6)}) == 1


def test_checkpointing_gives_the_same_gradient():
    gradients = []
    for checkpoint in (False, True):
        y = measurements(0.1).requires_grad_()
        fit(y, mslsq.Unrolled(checkpoint=checkpoint)).sum().backward()
        gradients.append(y.grad)
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-12, atol=0)


def test_checkpointing_reverse_mode_jacobians_is_refused_in_words():
    """A prior and one row that couples them: reverse mode for the second, and an error for it."""
    x = mslsq.Variable("x", mslsq.Euclidean(3))

    @mslsq.cost
    def product(x, y):
        return (x[0] * x[1] - y)[None]

    problem = mslsq.Problem(
        mslsq.Prior(x, target=torch.ones(1, 3, dtype=F64)), product(x, y=torch.full((2,), 2.0, dtype=F64))
    )
    y = torch.full((2,), 2.0, dtype=F64, requires_grad=True)
    given = ({"x": START + 0.5}, {"product": {"y": y}})
    with pytest.raises(AdjointOptionError, match=r"jacobians\(\.\.\.\)"):
        mslsq.solve(problem, *given, solver=LM, adjoint=mslsq.Unrolled(checkpoint=True)).value["x"].sum().backward()


# ---- Unrolled and Truncated -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver",
    [
        mslsq.GaussNewton(max_steps=3, early_stop=False, ftol=0, gtol=0, xtol=0),
        mslsq.GaussNewton(max_steps=3, linear_solver=mslsq.linear.QR(), ftol=0, gtol=0, xtol=0),
    ],
)
def test_unrolled_is_the_derivative_of_the_iterate_also_in_the_start(solver):
    """A solve cut short on purpose: the derivative is that of three steps, not of the minimum."""
    y, start = measurements(0.1), torch.tensor([1.9, -1.4, 0.3], dtype=F64)
    adjoint = mslsq.Unrolled()
    in_data = jacrev(lambda y: fit(y, adjoint, solver, start))(y)
    in_start = jacfwd(lambda x: fit(y, adjoint, solver, x))(start)
    assert off(in_data, fourth_order_differences(lambda y: fit(y, None, solver, start), y)) < 1e-8
    assert off(in_start, fourth_order_differences(lambda x: fit(y, None, solver, x), start)) < 1e-6
    assert float(in_start.abs().max()) > 1e-6  # it does depend on the start


@pytest.mark.parametrize("adjoint", [mslsq.Unrolled(), mslsq.Unrolled(checkpoint=True), mslsq.Truncated(3)], ids=repr)
def test_steps_taken_again_from_a_recorded_graph_have_the_same_derivatives(adjoint):
    gradients = []
    for trace in ("never", "always"):
        y = measurements(0.1).requires_grad_()
        solver = dataclasses.replace(LM, trace=trace)
        value = fit(y, adjoint, solver)
        (first,) = torch.autograd.grad(value.sum(), y, create_graph=not getattr(adjoint, "checkpoint", False))
        second = torch.autograd.grad(first.sum(), y)[0] if first.requires_grad else first
        gradients.append((first.detach(), second))
    for eager, recorded in zip(*gradients, strict=True):
        assert torch.allclose(recorded, eager, rtol=1e-9, atol=1e-12)


def test_unrolled_tends_to_the_implicit_derivative_once_converged():
    """The damping is held constant, and has no influence at the minimum."""
    y = measurements(0.1)
    assert off(jacrev(lambda y: fit(y, mslsq.Unrolled()))(y), jacrev(fit)(y)) < 1e-6


def test_each_truncated_step_divides_the_error_by_the_rate_of_gauss_newton():
    y = measurements(0.1)
    truth = jacrev(fit)(y)
    errors = [off(jacrev(lambda y, k=k: fit(y, mslsq.Truncated(k)))(y), truth) for k in (1, 2, 3, 4)]
    assert errors[0] > 1e-4
    for before, after in itertools.pairwise(errors):
        assert after < 0.5 * before
    assert off(jacrev(lambda y: fit(y, mslsq.Truncated(25)))(y), truth) < 1e-8


# ---- DirectLossMinimization and none --------------------------------------------------------------------


def backward(y, adjoint):
    y = y.clone().requires_grad_()
    (fit(y, adjoint) * torch.tensor([1.0, 2.0, -1.0], dtype=F64)).sum().backward()
    return y.grad


def test_direct_loss_minimization_errs_by_the_square_of_epsilon():
    y = measurements(0.1)
    truth = backward(y, mslsq.Implicit())
    errors = [off(backward(y, mslsq.DirectLossMinimization(epsilon)), truth) for epsilon in (1e-3, 5e-4, 2.5e-4)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.1)
    assert off(backward(y, mslsq.DirectLossMinimization()), truth) < 1e-6


def test_direct_loss_minimization_refuses_transforms_and_a_second_derivative():
    y = measurements(0.1)
    with pytest.raises(DerivativeOrderError, match=r"under torch\.func"):
        jacrev(lambda y: fit(y, mslsq.DirectLossMinimization()))(y)
    y.requires_grad_()
    (first,) = torch.autograd.grad(fit(y, mslsq.DirectLossMinimization()).sum(), y, create_graph=True)
    with pytest.raises(RuntimeError, match=r"Derivative number 2|once_differentiable"):
        first.sum().backward()


def test_detached_solutions_are_constants():
    y = measurements(0.1).requires_grad_()
    solution = mslsq.least_squares(decay, START, (T, y), solver=LM, adjoint=mslsq.Detached())
    assert not solution.value.requires_grad
    assert not solution.cost.requires_grad
    assert torch.equal(solution.value, fit(y).detach())
    assert not jacrev(lambda y: fit(y, mslsq.Detached()))(y.detach()).any()


@pytest.mark.parametrize(
    "adjoint",
    [mslsq.Implicit(), mslsq.Unrolled(), mslsq.Truncated(20), mslsq.DirectLossMinimization(), mslsq.Detached()],
)
def test_the_value_is_the_solvers_own_whatever_the_adjoint(adjoint):
    y = measurements(0.1)
    plain = mslsq.least_squares(decay, START, (T, y), solver=LM)
    attached = mslsq.least_squares(decay, START, (T, y.requires_grad_()), solver=LM, adjoint=adjoint)
    assert torch.equal(attached.value, plain.value)
    assert torch.equal(attached.cost, plain.cost)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: mslsq.Implicit(order=0), "order must be a positive integer"),
        (lambda: mslsq.Implicit(hessian="exakt"), "hessian must be one of"),
        (lambda: mslsq.Truncated(0), "steps must be a positive integer"),
        (lambda: mslsq.Truncated(failed="none"), "failed must be one of"),
        (lambda: mslsq.Unrolled(failed=None), "failed must be one of"),
        (lambda: mslsq.DirectLossMinimization(-1.0), "epsilon must be a positive number"),
    ],
)
def test_options_that_make_no_sense_are_errors(wrong, message):
    with pytest.raises(AdjointOptionError, match=message):
        wrong()


# ---- failed problems ------------------------------------------------------------------------------------


GOOD, NAN, SINGULAR = 0, 1, 2


def batch_with_failures() -> tuple[Tensor, Tensor]:
    """Data and starts of three fits: a good one, one with NaN in its data, one whose start a = 0 is singular for
    Gauss–Newton."""
    y = measurements(0.1).expand(3, -1).clone()
    y[NAN, 3] = torch.nan
    start = START.expand(3, -1).clone()
    start[SINGULAR, 0] = 0.0
    return y, start


ADJOINTS = [
    mslsq.Implicit(),
    mslsq.Implicit(failed="zero"),
    mslsq.Truncated(5),
    mslsq.DirectLossMinimization(),
    mslsq.Unrolled(),
]


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
def test_failed_entries_leave_the_gradient_of_shared_parameters_alone(adjoint):
    """Two of three fail; the gradient of what all share is that of the good one alone."""
    y, start = batch_with_failures()
    solver = mslsq.GaussNewton(**TIGHT)
    gradients = []
    for entries in ([GOOD, NAN, SINGULAR], [GOOD]):
        t = T.clone().requires_grad_()
        solution = mslsq.least_squares(
            decay, start[entries], (t, y[entries]), in_dims=(0, None, 0), solver=solver, adjoint=adjoint
        )
        if len(entries) > 1:
            assert solution.status[NAN] == Status.NON_FINITE
            assert solution.status[SINGULAR] == Status.SINGULAR
            iterates_are = isinstance(adjoint, mslsq.Unrolled)  # the last finite iterate is differentiable
            assert solution.differentiable.tolist() == [True, False, iterates_are]
        solution.value[GOOD].sum().backward()
        gradients.append(t.grad)
    assert torch.isfinite(gradients[0]).all()
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("failed", ["nan", "zero"])
def test_a_failed_entry_has_the_derivative_that_was_asked_for_and_gives_none_to_the_shared(failed):
    y, start = batch_with_failures()
    t, y = T.clone().requires_grad_(), y.requires_grad_()
    solution = mslsq.least_squares(
        decay,
        start,
        (t, y),
        in_dims=(0, None, 0),
        solver=mslsq.GaussNewton(**TIGHT),
        adjoint=mslsq.Implicit(failed=failed),
    )
    # a loss that every entry has a part in, as in training; the NaN of the values is taken out as a user would
    torch.nan_to_num(solution.value).sum().backward()
    assert torch.isfinite(t.grad).all()
    assert torch.isfinite(y.grad[GOOD]).all()
    assert y.grad[GOOD].abs().max() > 0
    for entry in (NAN, SINGULAR):
        assert torch.isnan(y.grad[entry]).all() if failed == "nan" else not y.grad[entry].any()
    tangent = jacfwd(
        lambda t: (
            mslsq.least_squares(
                decay,
                start,
                (t, y.detach()),
                in_dims=(0, None, 0),
                solver=mslsq.GaussNewton(**TIGHT),
                adjoint=mslsq.Implicit(failed=failed),
            ).value
        )
    )(T)
    assert torch.isfinite(tangent[GOOD]).all()
    assert torch.isnan(tangent[SINGULAR]).all() if failed == "nan" else not tangent[SINGULAR].any()


def test_an_unconverged_solve_has_no_implicit_derivative():
    y = measurements(0.1).requires_grad_()
    solution = mslsq.least_squares(decay, START, (T, y), solver=mslsq.LevenbergMarquardt(max_steps=1))
    assert solution.status == Status.MAX_STEPS
    assert not solution.differentiable
    solution.value.sum().backward()
    assert torch.isnan(y.grad).all()
    # the steps themselves are differentiable
    unrolled = mslsq.least_squares(
        decay, START, (T, y), solver=mslsq.LevenbergMarquardt(max_steps=1), adjoint=mslsq.Unrolled()
    )
    assert unrolled.differentiable
    (gradient,) = torch.autograd.grad(unrolled.value.sum(), y)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("failed", ["nan", "zero"])
@pytest.mark.parametrize("kind", [mslsq.Truncated, mslsq.Unrolled])
def test_steps_of_a_failed_entry_have_the_derivative_that_was_asked_for(kind, failed):
    y, start = batch_with_failures()
    y.requires_grad_()
    value = mslsq.least_squares(
        decay, start, (T, y), in_dims=(0, None, 0), solver=mslsq.GaussNewton(**TIGHT), adjoint=kind(failed=failed)
    ).value
    torch.nan_to_num(value).sum().backward()
    assert torch.isfinite(y.grad[GOOD]).all()
    assert torch.isnan(y.grad[NAN]).all() if failed == "nan" else not y.grad[NAN].any()


@pytest.mark.parametrize("failed", ["nan", "zero"])
def test_under_vmap_failures_are_told_apart_as_in_a_batch(failed):
    """Differentiated outside the vmap what is not mapped is shared, and stays clean; inside it each problem has a
    derivative of its own."""
    y, start = batch_with_failures()
    adjoint, solver = mslsq.Implicit(failed=failed), mslsq.GaussNewton(**TIGHT)

    def solved(t, start, y):
        return mslsq.least_squares(decay, start, (t, y), solver=solver, adjoint=adjoint).value

    good = grad(lambda t: solved(t, start[GOOD], y[GOOD]).sum())(T)
    outside = grad(lambda t: vmap(solved, in_dims=(None, 0, 0))(t, start, y)[GOOD].sum())(T)
    assert torch.allclose(outside, good, rtol=1e-9, atol=1e-14)
    inside = vmap(grad(lambda t, start, y: solved(t, start, y).sum()), in_dims=(None, 0, 0))(T, start, y)
    assert torch.allclose(inside[GOOD], good, rtol=1e-9, atol=1e-14)
    for entry in (NAN, SINGULAR):
        assert torch.isnan(inside[entry]).all() if failed == "nan" else not inside[entry].any()


# ---- gauges ---------------------------------------------------------------------------------------------


class Between(mslsq.CostFunction):
    def residual(self, a: mslsq.SE2, b: mslsq.SE2, measured: mslsq.SE2):
        return (measured.inverse() @ (a.inverse() @ b)).log()


def free_graph() -> tuple[mslsq.Problem, mslsq.SE2, dict[str, mslsq.SE2]]:
    """Poses of which only differences are measured."""
    pose = mslsq.Variable("pose", mslsq.SE2, count=4)
    i, j = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 2, 3, 0, 2])
    measured = mslsq.SE2.exp(0.4 * noise(5, 3, seed=2))
    return (
        mslsq.Problem(Between(pose[i], pose[j], measured=measured)),
        measured,
        {"pose": mslsq.SE2.exp(0.1 * noise(4, 3))},
    )


def test_a_free_gauge_is_said_in_words_and_gives_no_plausible_number():
    problem, measured, start = free_graph()
    data = measured.storage.clone().requires_grad_()
    with pytest.warns(NotDifferentiableWarning, match=r"gauge.*fixed.*minimum_norm"):
        solution = mslsq.solve(problem, start, {"between": {"measured": mslsq.SE2(data)}})
    assert solution.converged
    assert not solution.differentiable
    solution.value["pose"].storage.sum().backward()
    assert torch.isnan(data.grad).all()


def test_the_minimum_norm_derivative_equals_differences_of_what_no_gauge_changes():
    problem, measured, start = free_graph()
    directions = noise(15, 2, seed=9)

    def relative(step, adjoint):
        given = {"between": {"measured": measured.retract((directions @ step).reshape(5, 3))}}
        pose = mslsq.solve(problem, start, given, solver=LM, adjoint=adjoint).value["pose"].storage
        first = mslsq.SE2(pose[:1].expand(3, -1))
        return (first.inverse() @ mslsq.SE2(pose[1:])).log().reshape(-1)

    zero = torch.zeros(2, dtype=F64)
    found = jacrev(lambda s: relative(s, mslsq.Implicit(gauge="minimum_norm")))(zero)
    assert off(found, fourth_order_differences(lambda s: relative(s, None), zero)) < 1e-7


def test_the_minimum_norm_derivative_is_that_of_the_pseudo_inverse():
    """x + y is measured, x − y is free: dx/dm = H⁺ Jᵀ = (½, ½)."""

    def f(m):
        return mslsq.least_squares(
            lambda x, m: x.sum() - m,
            torch.zeros(2, dtype=F64),
            (m,),
            solver=LM,
            adjoint=mslsq.Implicit(gauge="minimum_norm"),
        ).value

    assert torch.allclose(jacrev(f)(torch.tensor(3.0, dtype=F64)), torch.tensor([0.5, 0.5], dtype=F64))


# ---- the 1024 fits --------------------------------------------------------------------------------------


def test_the_gradient_of_1024_fits_is_exact_entry_by_entry():
    """The well-posed case on which a peer's default gradient is silently wrong (−0.135 instead of −7.21)."""
    generator = np.random.default_rng(0)
    t = torch.linspace(0, 1, 32, dtype=F64)
    a, b, c = (
        torch.from_numpy(generator.uniform(low, high, (1024, 1))) for low, high in ((0.5, 2), (-2, -0.5), (-1, 1))
    )
    y = a * torch.exp(b * t) + c + 0.01 * torch.from_numpy(generator.standard_normal((1024, 32)))

    def total(y, adjoint=None):
        return mslsq.least_squares(decay, START, (t, y), in_dims=(None, None, 0), solver=LM, adjoint=adjoint)

    data = y.clone().requires_grad_()
    solution = total(data)
    assert solution.converged.all()
    solution.value.sum().backward()
    assert 150 < float(data.grad.norm()) < 300  # 216 for the peers' own draw
    step = torch.zeros_like(y)
    for entry in range(4):  # fits are independent: one difference for all of them in each of a few points
        step.zero_()
        step[:, 8 * entry] = 1e-4
        truth = (
            8 * (total(y + step).value - total(y - step).value)
            - (total(y + 2 * step).value - total(y - 2 * step).value)
        ).sum(1) / 12e-4
        assert torch.allclose(data.grad[:, 8 * entry], truth, rtol=1e-5, atol=1e-6)
    biased = y.clone().requires_grad_()
    total(biased, mslsq.Implicit(hessian="gauss_newton")).value.sum().backward()
    assert 1e-5 < abs(float(biased.grad.norm() / data.grad.norm()) - 1) < 1e-2


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.7, dtype=F64))

    def forward(self, t):
        return torch.tanh(self.weight * t)


@pytest.mark.parametrize("adjoint", [mslsq.Implicit(), mslsq.Unrolled(), mslsq.Truncated(25)], ids=repr)
def test_every_adjoint_reaches_the_network_inside_a_residual(adjoint):
    net, y = Slope(), measurements(0.1)

    def solved(adjoint=None):
        return mslsq.least_squares(
            lambda p: p[0] * torch.exp(p[1] * T) + p[2] * net(T) - y, START, solver=LM, adjoint=adjoint
        ).value.sum()

    solved(adjoint).backward()
    with torch.no_grad():
        values = []
        for step in (1e-4, -2e-4):
            net.weight.add_(step)
            values.append(float(solved()))
        net.weight.add_(1e-4)
    assert float(net.weight.grad) == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-6)


def test_unrolled_without_an_accepted_step_has_the_derivative_zero():
    """A training loop must not stop with an error because one solve had nothing to do."""
    y = measurements(0.1).requires_grad_()
    fit(y, mslsq.Unrolled(), dataclasses.replace(LM, max_steps=0)).sum().backward()
    assert torch.equal(y.grad, torch.zeros_like(y))


@pytest.mark.parametrize("far", [26.9, 40.0])  # of scales: exp(-s) is denormal there, and zero
@pytest.mark.parametrize("adjoint", [mslsq.Unrolled(), mslsq.Truncated(steps=8)])
def test_an_outlier_without_any_weight_leaves_the_derivatives_of_steps_finite(adjoint, far):
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    targets = torch.tensor([[0, 0], [0.3, 0.1], [-0.2, 0.4], [far, 0]], dtype=torch.float64)
    problem = mslsq.Problem(mslsq.cost(lambda p, target: p - target)(p, target=targets, loss=mslsq.Welsch(1.0)))
    (name,) = (cost.name for cost in problem)
    start = {"p": torch.full((2,), 0.1, dtype=torch.float64)}

    def solved(scale, targets):
        data = {name: {"loss.scale": scale, "target": targets}}
        return mslsq.solve(problem, start, data, adjoint=adjoint).value["p"].sum()

    scale = torch.tensor(1.0, dtype=torch.float64)
    found = torch.autograd.grad(solved(scale.requires_grad_(), targets.requires_grad_()), (scale, targets))
    with torch.no_grad():
        h = 1e-6
        expected = (solved(scale + h, targets) - solved(scale - h, targets)) / (2 * h)
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-6)
    assert found[1].isfinite().all()
    assert not found[1][-1].any()
