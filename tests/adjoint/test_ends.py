"""Native programs for the ends of whole solves: what they judge is what Python judges, what they pull back is right."""

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, vmap

import mslsq
from mslsq.adjoint import DerivativeOrderError, direct, ends, judging
from mslsq.front import answering_residuals, direct_batch
from mslsq.front.closed_costs import CHECKED_EVERY
from mslsq.problem import structure
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER
T = torch.linspace(0, 2, 12, dtype=F64)
START = torch.tensor([1.0, -0.5, 0.0], dtype=F64)
TIGHT: dict[str, Any] = {"max_steps": 200, "ftol": 1e-16, "xtol": 1e-14}
NATIVE, PYTHON = (mslsq.LevenbergMarquardt(native=how, **TIGHT) for how in ("wait", "never"))


def decay(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def data(size: int = 19) -> Tensor:
    """Decays that no model fits: residuals of some hundredths of the values stay."""
    generator = torch.Generator().manual_seed(0)
    a, b, c = torch.rand(3, size, 1, generator=generator, dtype=F64)
    return (1 + a) * torch.exp((-2.5 + b) * T) + c + 0.05 * torch.cos(7 * T + 3 * c)


def solve(t: Tensor, y: Tensor, solver: Any = NATIVE, **options: Any) -> mslsq.Solution:
    return mslsq.least_squares(decay, START, (t, y), in_dims=(None, None, 0), solver=solver, **options)


def weighted(value: Tensor) -> Tensor:
    return (value * torch.arange(1.0, value.numel() + 1, dtype=value.dtype).cos().reshape(value.shape)).sum()


class Uses:
    """How many looks, pullbacks and direct answers there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.counts = {"look": 0, "pull": 0, "direct": 0}
        monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
        for kind, name, key in (
            (ends.LookDraft, "found", "look"),
            (ends.LookDraft, "factor_if_fine", "look"),
            (ends.PullDraft, "pulled", "pull"),
            (direct.DirectDerivatives, "differentiated", "direct"),
        ):
            monkeypatch.setattr(kind, name, self._counting(getattr(kind, name), key))

    def _counting(self, plain: Any, key: str) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            found = plain(*args, **options)
            self.counts[key] += found is not None
            return found

        return counted

    def taken(self) -> dict[str, int]:
        """Since it was asked last."""
        found, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        return found


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> Uses:
    return Uses(monkeypatch)


def gradients(t: Tensor, y: Tensor, solver: Any = NATIVE, **options: Any) -> tuple[Tensor, ...]:
    t, y = t.clone().requires_grad_(), y.clone().requires_grad_()
    return torch.autograd.grad(weighted(solve(t, y, solver, **options).value), (t, y))


# ---- what is pulled back


@pytest.mark.parametrize("size", [1, 7, 8, 19])
def test_gradients_in_own_and_in_shared_data_are_those_of_differences(uses, size):
    y = data(size)
    for _ in range(3):  # stated (and one pullback compared), then answered at once
        of_t, of_y = gradients(T, y)
    assert uses.taken() == {"look": 3, "pull": 3 + 1, "direct": 2} or size == 1

    def slope(moved: Any, k: int, h: float) -> Tensor:
        e = h * torch.eye(12, dtype=F64)[k]
        return (weighted(moved(e).value) - weighted(moved(-e).value)) / (2 * h)

    for found, moved in ((of_t, lambda e: solve(T + e, y)), (of_y.sum(0), lambda e: solve(T, y + e))):
        for k in range(12):  # of differences of solutions that are known to 1e-9
            expected = (4 * slope(moved, k, 1e-3) - slope(moved, k, 2e-3)) / 3
            assert abs(float(expected - found[k])) < 1e-5 * max(1.0, float(found.abs().max()))


def test_second_derivatives_of_a_batch_that_is_answered_at_once_are_exact(uses):
    y = data(5)
    for _ in range(3):
        gradients(T, y)
    assert uses.taken()["direct"] == 2
    y = y.requires_grad_()
    (first,) = torch.autograd.grad(weighted(solve(T, y).value), y, create_graph=True)
    (second,) = torch.autograd.grad(weighted(first), y, create_graph=True)
    expected = grad(lambda y: weighted(grad(lambda y: weighted(solve(T, y, PYTHON).value))(y)))(y.detach())
    torch.testing.assert_close(second.detach(), expected, rtol=1e-7, atol=1e-9)
    with pytest.raises(DerivativeOrderError, match="Derivative number 3"):
        weighted(second).backward()


def test_a_cotangent_of_the_cost_and_batched_cotangents(uses):
    y = data(5)
    for _ in range(3):
        gradients(T, y)
    own = y.clone().requires_grad_()
    found = solve(T, own)
    (both,) = torch.autograd.grad(weighted(found.value) + 3 * found.cost.sum(), own)
    plain = y.clone().requires_grad_()
    expected = solve(T, plain, PYTHON)
    (right,) = torch.autograd.grad(weighted(expected.value) + 3 * expected.cost.sum(), plain)
    torch.testing.assert_close(both, right, rtol=1e-7, atol=1e-9)
    units = torch.eye(3, dtype=F64)[:, None].expand(3, 5, 3)
    (rows,) = torch.autograd.grad(solve(T, own).value, own, units, is_grads_batched=True)
    (right,) = torch.autograd.grad(solve(T, plain, PYTHON).value, plain, units, is_grads_batched=True)
    torch.testing.assert_close(rows, right, rtol=1e-8, atol=1e-10)


def test_transforms_around_a_batch_are_those_of_python(uses):
    y = data(4)
    for _ in range(3):
        gradients(T, y)

    def total(y: Tensor, solver: Any) -> Tensor:
        return weighted(solve(T, y, solver).value)

    stacked = torch.stack((y, 1.1 * y))
    for transform in (lambda f: vmap(grad(f)), lambda f: vmap(jacfwd(f)), lambda f: vmap(hessian(f))):
        found, expected = (transform(lambda y, s=s: total(y, s))(stacked) for s in (NATIVE, PYTHON))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("options", [{"gauge": "minimum_norm"}, {"hessian": "gauss_newton", "order": 1}])
def test_other_factors_are_not_taken_for_that_of_the_hessian(uses, options):
    y = data(5)
    for _ in range(2):
        gradients(T, y)
    found, expected = (gradients(T, y, solver, adjoint=mslsq.Implicit(**options)) for solver in (NATIVE, PYTHON))
    for own, right in zip(found, expected, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-6, atol=1e-8)


def test_losses_and_several_variables(uses):
    def residual(x: dict[str, Tensor], t: Tensor, y: Tensor) -> Tensor:
        return x["scale"] * torch.exp(x["rate"][0] * t) + x["rate"][1] - y

    start = {"scale": torch.ones((), dtype=F64), "rate": torch.tensor([-0.5, 0.1], dtype=F64)}

    def gradient(solver: Any, loss: Any) -> Tensor:
        y = data(9).requires_grad_()
        scale = torch.tensor(0.2, dtype=F64, requires_grad=True)
        found = mslsq.least_squares(
            residual, start, (T, y), in_dims=(None, None, 0), solver=solver, loss=loss(scale) if loss else None
        ).value
        total = weighted(found["scale"]) + weighted(found["rate"])
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(total, [y, scale] if loss else [y])])

    for loss in (None, mslsq.Cauchy, mslsq.SoftL1):
        torch.testing.assert_close(gradient(NATIVE, loss), gradient(PYTHON, loss), rtol=1e-6, atol=1e-8)
        assert uses.taken()["pull"] >= 1


class Between(mslsq.CostFunction):
    """How far an element is from two others."""

    def residual(self, x: mslsq.SO3, one: mslsq.SO3, other: mslsq.SO3) -> Tensor:
        inverse = x.inverse()
        return torch.cat(((inverse @ one).log(), 0.5 * (inverse @ other).log()))


def test_a_manifold(uses):
    generator = torch.Generator().manual_seed(1)
    other = mslsq.SO3.random(generator=generator, dtype=F64)
    noise = 0.3 * torch.randn(5, 3, generator=generator, dtype=F64)
    one = mslsq.SO3(other.storage.expand(5, -1)).retract(noise)
    x = mslsq.Variable("x", mslsq.SO3)
    problem = mslsq.Problem(
        Between(x, one=mslsq.Shared(one[0]), other=mslsq.Shared(other), name="between", loss=mslsq.Cauchy(0.5))
    )

    def gradient(solver: Any) -> tuple[Tensor, ...]:
        own, shared = (y.storage.clone().requires_grad_() for y in (one, other))
        data, dims = {"between": {"one": own, "other": shared}}, (None, {"between": {"one": 0, "other": None}})
        value = mslsq.solve(problem, {"x": other}, data, in_dims=dims, solver=solver).value["x"]
        return torch.autograd.grad(weighted(value.storage), (own, shared))

    for found, expected in zip(gradient(NATIVE), gradient(PYTHON), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
    assert uses.taken()["pull"] >= 1


class Curve(mslsq.CostFunction):
    """A pair of numbers by two functions of them."""

    def residual(self, x: Tensor, seen: Tensor) -> Tensor:
        return torch.stack((x[0] * torch.exp(x[1]), x[0] - x[1] ** 2, 0.1 * x[0] * x[1])) - seen


def test_parts_that_nothing_couples(uses, monkeypatch):
    monkeypatch.setattr(structure, "SMALL", 2)
    generator = torch.Generator().manual_seed(1)
    seen = 1 + 0.2 * torch.randn(4, 3, 3, generator=generator, dtype=F64)
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
    problem = mslsq.Problem(Curve(x[torch.arange(3)], seen=seen[0], name="curve"))
    start = torch.tensor([1.0, 0.2], dtype=F64).expand(3, 2).clone()

    def gradient(solver: Any) -> Tensor:
        own = seen.clone().requires_grad_()
        data, dims = {"curve": {"seen": own}}, (None, {"curve": {"seen": 0}})
        value = mslsq.solve(problem, {"x": start}, data, in_dims=dims, solver=solver).value["x"]
        return torch.autograd.grad(weighted(value), own)[0]

    torch.testing.assert_close(gradient(NATIVE), gradient(PYTHON), rtol=1e-7, atol=1e-9)
    assert uses.taken()["pull"] >= 1


def test_single_precision(uses):
    y = data().float()

    def gradient(solver: Any) -> Tensor:
        own = y.clone().requires_grad_()
        value = mslsq.least_squares(
            decay, START.float(), (T.float(), own), in_dims=(None, None, 0), solver=solver
        ).value
        return torch.autograd.grad(weighted(value), own)[0]

    found, expected = (gradient(mslsq.LevenbergMarquardt(max_steps=100, native=how)) for how in ("wait", "never"))
    assert found.dtype == torch.float32 and uses.taken()["pull"] >= 1
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


# ---- what is judged


def kinked(p: Tensor, y: Tensor) -> Tensor:
    return torch.cat((p[0] - y[:1], (p[1] - y[1:2]).abs() + 0.1))


def saddle(p: Tensor, y: Tensor) -> Tensor:
    return torch.stack((p[0] * p[1] - y[0], p[0] - p[1], 0.1 * p[0] ** 2 + 1))


@pytest.mark.parametrize("residual", [decay, kinked, saddle])
def test_the_look_is_that_of_python(monkeypatch, residual):
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    y = data() if residual is decay else data()[:, :2]
    if residual is decay:
        y[3], y[5, 2] = torch.nan, 1e200
    start = START if residual is decay else torch.tensor([0.3, 0.3], dtype=F64)
    args, dims = ((T, y), (None, None, 0)) if residual is decay else ((y,), (None, 0))
    seen: list[Any] = []
    plain = judging.Judgement._factored

    def noted(self: Any) -> Any:
        found = plain(self)
        with monkeypatch.context() as patch:
            patch.setattr(judging, "look_of", lambda *_: None)
            seen.append((ends.known(self.plan, ends.LOOK), found, plain(self)))
        return found

    monkeypatch.setattr(judging.Judgement, "_factored", noted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [x.clone().requires_grad_() if x is y else x for x in args]
        mslsq.least_squares(residual, start, tuple(given), in_dims=dims, solver=NATIVE)
    program, found, expected = seen[0]
    assert program is not None
    assert torch.equal(found.definite, expected.definite)
    good = expected.definite
    torch.testing.assert_close(found.hessian[good], expected.hessian[good], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.factor[good], expected.factor[good], rtol=1e-8, atol=1e-10)
    assert torch.equal(found.evidence.solved, expected.evidence.solved)
    assert bool((found.residual[good] < 1e-10).all())
    for name in ("vanishes", "smooth", "short"):
        agree = getattr(found.evidence, name) == getattr(expected.evidence, name)
        assert int((~agree).sum()) <= 1, name  # where rounding decides


def test_a_problem_that_failed_is_nan_for_itself_alone(uses):
    y = data(19)
    for _ in range(3):
        gradients(T, y)
    assert uses.taken()["direct"] >= 2
    y[4] = torch.nan
    weights = torch.arange(1.0, 58, dtype=F64).cos().reshape(19, 3)
    for _ in range(3):
        t, own = T.clone().requires_grad_(), y.clone().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = solve(t, own).value
        of_t, of_y = torch.autograd.grad((torch.nan_to_num(value) * weights).sum(), (t, own))
        alone = torch.arange(19) != 4
        plain_t, plain = T.clone().requires_grad_(), y[alone].clone().requires_grad_()
        total = (solve(plain_t, plain, PYTHON).value * weights[alone]).sum()
        right_t, right = torch.autograd.grad(total, (plain_t, plain))
        torch.testing.assert_close(of_y[alone], right, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(of_t, right_t, rtol=1e-7, atol=1e-8)
        assert bool(of_y[4].isnan().all())
    assert uses.taken()["direct"] >= 2


def test_problems_whose_steps_ran_out_are_told_apart_without_another_solve(uses):
    y = data(19)
    few = mslsq.LevenbergMarquardt(native="wait", max_steps=7)
    for _ in range(3):
        own = y.clone().requires_grad_()
        found = solve(T, own, few)
        (gradient,) = torch.autograd.grad(weighted(found.value), own)
    assert uses.taken()["direct"] >= 1
    converged = found.converged
    assert 0 < int(converged.sum()) < 19
    assert torch.equal(found.differentiable, converged)
    python = y.clone().requires_grad_()
    expected = solve(T, python, mslsq.LevenbergMarquardt(native="never", max_steps=7))
    (right,) = torch.autograd.grad(weighted(expected.value), python)
    assert torch.equal(expected.status, found.status)
    torch.testing.assert_close(gradient, right, rtol=1e-6, atol=1e-8, equal_nan=True)
    assert bool(gradient[~converged].isnan().all())


def test_a_batch_that_fails_is_not_solved_twice_in_every_call(uses, monkeypatch):
    y = data(20)
    for _ in range(3):
        gradients(T, y)
    tried: list[Any] = []
    plain = direct_batch.solved_by
    monkeypatch.setattr(direct_batch, "solved_by", lambda *x: tried.append(0) or plain(*x))
    y[4] = 0.5  # no decay: any rate fits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(8):
            gradients(T, y)
    assert len(tried) == 1


def test_a_program_that_computes_other_numbers_is_not_used(uses, monkeypatch):
    def wrong(self: Any, *args: Any) -> Any:
        return [1.01 * x for x in plain_of[type(self)](self, *args)]

    plain_of = {kind: kind._figures for kind in (ends.LookDraft, ends.PullDraft)}
    for kind in plain_of:
        monkeypatch.setattr(kind, "_figures", wrong)

    def residual(p: Tensor, y: Tensor) -> Tensor:
        return p[0] * torch.exp(p[1] * T) + 0.25 - y

    y = data().requires_grad_()
    value = mslsq.least_squares(residual, START[:2], (y,), in_dims=(None, 0), solver=NATIVE).value
    (found,) = torch.autograd.grad(weighted(value), y)
    assert uses.taken() == {"look": 0, "pull": 0, "direct": 0}
    other = data().requires_grad_()
    value = mslsq.least_squares(residual, START[:2], (other,), in_dims=(None, 0), solver=PYTHON).value
    torch.testing.assert_close(found, torch.autograd.grad(weighted(value), other)[0], rtol=1e-8, atol=1e-10)


# ---- calls like the one before


@pytest.mark.parametrize("axis", [0, 1])
def test_every_figure_of_an_answer_at_once_is_that_of_the_front_door(uses, axis):
    def call(solver: Any) -> tuple[mslsq.Solution, Tensor]:
        y = (data(21 + axis) if axis == 0 else data(21 + axis).T.contiguous()).requires_grad_()
        found = mslsq.least_squares(decay, START, (T, y), in_dims=(None, None, axis), solver=solver)
        return found, torch.autograd.grad(weighted(found.value), y)[0]

    expected, right = call(PYTHON)
    for _ in range(3):
        found, gradient = call(NATIVE)
        torch.testing.assert_close(gradient, right, rtol=1e-8, atol=1e-10)
        for name in ("value", "cost", "differentiable", "converged"):
            one, other = (getattr(x, name).detach() for x in (found, expected))
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=name)
        assert torch.equal(found.num_evaluations, found.num_steps + 1)
        assert bool((found.adjoint_residual < 1e-12).all()) and found.history.cost.shape == (21 + axis, 201)
        assert found.cost.requires_grad and found.value.requires_grad and not found.gradient_norm.requires_grad
    assert uses.taken()["direct"] == 2


def test_calls_with_and_without_derivatives_and_the_turn_of_a_comparison(uses, monkeypatch):
    y = data(23)
    compared = []
    plain = answering_residuals.compare_next
    monkeypatch.setattr(answering_residuals, "compare_next", lambda plan: compared.append(0) or plain(plan))
    for _ in range(CHECKED_EVERY + 3):
        gradients(T, y)
    assert len(compared) == 1 and uses.taken()["direct"] == CHECKED_EVERY + 1
    torch.testing.assert_close(solve(T, y).value, solve(T, y, PYTHON).value, rtol=1e-8, atol=1e-10)


def test_covariances_of_fits_that_are_answered_at_once_carry_derivatives(uses):
    def model(p: Tensor, t: Tensor) -> Tensor:
        return p[0] * torch.exp(p[1] * t) + p[2]

    def gradient(solver: Any) -> Tensor:
        y = data(6).requires_grad_()
        fit = mslsq.curve_fit(model, T, y, START, in_dims=(None, 0, None), solver=solver)
        total = weighted(fit.value) + weighted(fit.standard_errors) + weighted(fit.covariance)
        return torch.autograd.grad(total, y)[0]

    expected = gradient(PYTHON)
    for _ in range(4):
        torch.testing.assert_close(gradient(NATIVE), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_what_the_residual_reads_may_change(uses):
    factor = 1.0

    def residual(p: Tensor, y: Tensor) -> Tensor:
        return p[0] * torch.exp(factor * p[1] * T) + p[2] - y

    def call(solver: Any) -> Tensor:
        y = data().requires_grad_()
        value = mslsq.least_squares(residual, START, (y,), in_dims=(None, 0), solver=solver).value
        return torch.autograd.grad(weighted(value), y)[0]

    for factor in (1.0, 1.0, 1.0, 1.5, 1.5, 1.0):  # noqa: B007 (the residual reads it)
        torch.testing.assert_close(call(NATIVE), call(PYTHON), rtol=1e-7, atol=1e-9)


def test_nothing_of_the_users_is_kept_alive(uses):
    def call(y: Tensor, scale: Any) -> Tensor:
        return mslsq.least_squares(
            lambda p, y: scale * (decay(p, T, y)), START, (y,), in_dims=(None, 0), solver=NATIVE
        ).value.sum()

    y, scale = data().requires_grad_(), torch.ones(12, dtype=F64)
    for _ in range(3):
        call(y, scale).backward()
    assert uses.taken()["direct"] == 2
    gone = weakref.ref(y), weakref.ref(scale)
    del y, scale
    gc.collect()
    assert gone[0]() is None and gone[1]() is None
