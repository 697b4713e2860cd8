"""A batch like the one before is answered by its native program at once: the same solution, whatever changes."""

import dataclasses
import gc
import math
import weakref

import pytest
import torch

import mslsq
from mslsq.front import direct_batch, repeated_residual
from mslsq.front.closed_costs import CHECKED_EVERY, UnseenChangeWarning
from mslsq.native.one_solve import OneSolve
from mslsq.solution import History
from tests.front.answers import noted
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER
T = torch.linspace(0, 1, 12, dtype=F64)
NATIVE, PYTHON = (mslsq.LevenbergMarquardt(native=how, max_steps=60) for how in ("wait", "never"))
START = torch.tensor([1.0, -0.5], dtype=F64)


@pytest.fixture
def answers(monkeypatch):
    """Of every call that was tried, whether it was answered at once."""
    return noted(monkeypatch, repeated_residual)


def data(size=9, rate=-1.0):
    return torch.linspace(0.5, 1.5, size, dtype=F64)[:, None] * torch.exp(rate * T) + 0.01 * torch.sin(30 * T)


def decay(p, t, y):
    return p[0] * torch.exp(p[1] * t) - y


def assert_same(found, expected):
    for name in ("value", "cost", "status", "num_steps", "num_evaluations", "differentiable"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-12, msg=name)
    for name, one, other in zip(
        History.__dataclass_fields__, found.history.columns, expected.history.columns, strict=True
    ):
        assert one.shape == other.shape and one.dtype == other.dtype, name
        torch.testing.assert_close(one[:, :4], other[:, :4], rtol=1e-4, atol=1e-7, equal_nan=True, msg=name)
    assert bool(found.adjoint_residual.isnan().all()) and found.adjoint_residual.shape == found.cost.shape
    assert found.active == () and found.weights == {} and found.multipliers == {} and found.violation == ()


LAYOUTS = {
    "data": (lambda: (START, (T, data())), (None, None, 0)),
    "starts": (lambda: (START + 0.1 * torch.linspace(-1, 1, 9, dtype=F64)[:, None], (T, data())), (0, None, 0)),
    "last axis": (lambda: (START, (T, data().T.contiguous())), (None, None, 1)),
    "negative axis": (lambda: (START, (T, data().T.contiguous())), (None, None, -1)),
    "strided": (lambda: (START, (T, data(18)[::2])), (None, None, 0)),
    "all": (lambda: (START.expand(9, 2).clone(), (T.expand(9, 12).clone(), data())), 0),
    "one start for all, last axis": (lambda: (START[:, None] + torch.zeros(9, dtype=F64), (T, data())), (1, None, 0)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_answers_are_those_of_the_front_door(answers, name):
    made, dims = LAYOUTS[name]
    x0, args = made()
    expected = mslsq.least_squares(decay, x0, args, in_dims=dims, solver=PYTHON)
    for _ in range(6):
        found = mslsq.least_squares(decay, x0, args, in_dims=dims, solver=NATIVE)
        assert_same(found, expected)
    assert answers[-1], name
    other = tuple(x * 1.1 if x.shape != T.shape else x for x in args)
    expected = mslsq.least_squares(decay, x0, other, in_dims=dims, solver=PYTHON)
    assert_same(mslsq.least_squares(decay, x0, other, in_dims=dims, solver=NATIVE), expected)
    assert answers[-1]


def test_a_batch_that_takes_no_step_is_answered_too(answers):
    """Among them a problem at its minimum, and one that nothing moves."""
    y = data()
    y[2], y[3] = torch.exp(-0.5 * T), 0.0
    starts = START.repeat(9, 1)
    starts[3] = 0.0
    args, dims = (T, y), (0, None, 0)
    python, native = (dataclasses.replace(solver, max_steps=0) for solver in (PYTHON, NATIVE))
    for k in range(4):
        found = mslsq.least_squares(decay, starts * (1 + 0.1 * k), args, in_dims=dims, solver=native)
        expected = mslsq.least_squares(decay, starts * (1 + 0.1 * k), args, in_dims=dims, solver=python)
        assert_same(found, expected)
        assert bool((found.value == starts * (1 + 0.1 * k)).all())
    assert answers[-2]
    assert mslsq.Status.MAX_STEPS in found.status


def test_pytrees_and_scalars(answers):
    def residual(p, t, y, power):
        return p["a"] * torch.exp(p["b"] * t**power) - y["y"]

    x0 = {"a": torch.ones((), dtype=F64), "b": -0.5 * torch.ones(9, 1, dtype=F64)}
    given = x0, (T, {"y": data()}, 2)
    dims = ({"a": None, "b": 0}, None, {"y": 0}, None)
    expected = mslsq.least_squares(residual, *given, in_dims=dims, solver=PYTHON)
    for _ in range(5):
        found = mslsq.least_squares(residual, *given, in_dims=dims, solver=NATIVE)
    assert found.value["a"].shape == (9,) and found.value["b"].shape == (9, 1)
    torch.testing.assert_close(found.value["a"], expected.value["a"], rtol=1e-9, atol=1e-12)
    assert not answers  # a form of `in_dims` that is looked through in every call
    dims = (None, None, 0, None)
    x0["b"] = x0["b"][0]
    for _ in range(5):
        found = mslsq.least_squares(residual, *given, in_dims=dims, solver=NATIVE)
    expected = mslsq.least_squares(residual, *given, in_dims=dims, solver=PYTHON)
    torch.testing.assert_close(found.value["b"], expected.value["b"], rtol=1e-9, atol=1e-12)
    assert answers[-2]
    found = mslsq.least_squares(residual, x0, (T, {"y": data()}, 1), in_dims=dims, solver=NATIVE)
    expected = mslsq.least_squares(residual, x0, (T, {"y": data()}, 1), in_dims=dims, solver=PYTHON)
    torch.testing.assert_close(found.value["b"], expected.value["b"], rtol=1e-9, atol=1e-12)


def test_another_size_form_or_dtype_is_another_call(answers):
    def call(y, solver=NATIVE):
        return mslsq.least_squares(decay, START.to(y.dtype), (T.to(y.dtype), y), in_dims=(None, None, 0), solver=solver)

    for y in (data(), data(5), data(9000), data().float(), data(1)):
        for _ in range(4):
            found = call(y)
        assert answers[-1]
        expected = call(y, PYTHON)
        assert found.value.dtype == y.dtype and found.history.cost.shape == expected.history.cost.shape
        torch.testing.assert_close(found.value, expected.value, rtol=1e-8 if y.dtype == F64 else 1e-3, atol=1e-6)


def test_tensors_that_a_residual_holds_are_read_in_every_call(answers):
    scale = torch.ones(12, dtype=F64)

    def residual(p, y):
        return p[0] * torch.exp(p[1] * T) - scale * y

    for factor in (1.0, 1.0, 1.0, 1.0, 2.0, 3.0):
        scale.fill_(factor)
        found = mslsq.least_squares(residual, START, (data(),), in_dims=(None, 0), solver=NATIVE)
        torch.testing.assert_close(found.value[:, 0] / factor, torch.linspace(0.5, 1.5, 9, dtype=F64), rtol=0.1, atol=0)
    assert answers[-1]


def test_derivatives_bounds_losses_and_transforms_go_the_usual_way(answers):
    def call(y, **options):
        return mslsq.least_squares(decay, START, (T, y), in_dims=(None, None, 0), solver=NATIVE, **options)

    for _ in range(5):
        plain = call(data())
    assert answers[-1]
    y = data().requires_grad_()
    found = call(y)
    (gradient,) = torch.autograd.grad(found.value.sum(), y)
    assert not answers[-1] and bool(gradient.abs().sum() > 0)
    bounded = call(data(), bounds=(None, torch.tensor([torch.inf, -1.05], dtype=F64)), project_start=True)
    assert bool((bounded.value[:, 1] <= -1.05).all())
    robust = call(data(), loss=mslsq.Huber(1e-3))
    assert not torch.equal(robust.cost, plain.cost)
    stacked = torch.stack((data(), 2 * data()))
    mapped = torch.vmap(lambda y: call(y).value)(stacked)
    torch.testing.assert_close(mapped[0], plain.value, rtol=1e-9, atol=1e-12)
    with torch.enable_grad():
        torch.testing.assert_close(call(data()).value, plain.value)


def test_problems_that_do_not_move_or_do_not_converge(answers):
    y = data()
    y[3] = torch.nan
    for _ in range(5):
        found = mslsq.least_squares(decay, START, (T, y), in_dims=(None, None, 0), solver=NATIVE)
    expected = mslsq.least_squares(decay, START, (T, y), in_dims=(None, None, 0), solver=PYTHON)
    assert torch.equal(found.status, expected.status) and int(found.status[3]) == mslsq.Status.NON_FINITE
    few = dataclasses.replace(NATIVE, max_steps=2)
    for _ in range(5):
        found = mslsq.least_squares(decay, START, (T, data()), in_dims=(None, None, 0), solver=few)
    assert answers[-1] and bool((found.status == mslsq.Status.MAX_STEPS).all())
    exact = START.expand(4, 2).clone()
    y = START[0] * torch.exp(START[1] * T).expand(4, 12)
    for _ in range(4):
        found = mslsq.least_squares(decay, exact, (T, y.clone()), in_dims=(0, None, 0), solver=NATIVE)
        assert bool(found.converged.all())


def test_a_helper_of_the_users_own_that_is_replaced_is_seen(monkeypatch):
    real = torch.exp

    def residual(p, y):
        return p[0] * Scale.of(T, p[1]) - y

    for _ in range(4):
        found = mslsq.least_squares(residual, START, (data(),), in_dims=(None, 0), solver=NATIVE)
    before = found.value
    monkeypatch.setattr(Scale, "of", staticmethod(lambda t, rate: real(2 * rate * t)))
    found = mslsq.least_squares(residual, START, (data(),), in_dims=(None, 0), solver=NATIVE)
    torch.testing.assert_close(2 * found.value[:, 1], before[:, 1], rtol=1e-6, atol=0)


class Scale:
    @staticmethod
    def of(t, rate):
        return torch.exp(rate * t)


def test_what_changes_past_all_that_is_compared_is_said(monkeypatch):
    from mslsq.manifolds import planar

    def residual(p, y):
        return (mslsq.SO2.exp(p) @ mslsq.SO2.exp(y).inverse()).log()

    start, y = torch.zeros(1, dtype=F64), torch.full((4, 1), 0.1, dtype=F64)

    def call():
        return mslsq.least_squares(residual, start, (y,), in_dims=(None, 0), solver=NATIVE).value

    for _ in range(4):
        torch.testing.assert_close(call(), y)
    plain = planar.angle
    monkeypatch.setattr(planar, "angle", lambda z: plain(z) + 0.05 * plain(z).detach() + 0.01)
    with pytest.warns(UnseenChangeWarning, match="'residual'"):
        for _ in range(CHECKED_EVERY + 1):
            found = call()
    assert not torch.allclose(found, y) and math.isfinite(float(found.sum()))


@pytest.mark.slow
def test_nothing_of_the_users_is_kept_alive():
    y = data()

    def call(y):
        return mslsq.least_squares(decay, START, (T, y), in_dims=(None, None, 0), solver=NATIVE)

    for _ in range(5):
        call(y)
    gone = weakref.ref(y)
    del y
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("on_interrupt", ["raise", "return"])
@pytest.mark.parametrize("is_batch", [False, True])
def test_an_interrupt_of_a_call_with_derivatives_is_not_swallowed(answers, monkeypatch, is_batch, on_interrupt):
    solver = dataclasses.replace(NATIVE, on_interrupt=on_interrupt)

    def call(y):
        return mslsq.least_squares(decay, START, (T, y), in_dims=(None, None, 0) if is_batch else None, solver=solver)

    y = (data() if is_batch else data()[0]).requires_grad_()
    for _ in range(6):
        call(y).value.sum().backward()
    assert answers[-1]
    if is_batch:
        plain = direct_batch.solved_by
        monkeypatch.setattr(direct_batch, "solved_by", lambda *given: plain(*given)._replace(interrupted=True))
    else:
        plain_one = OneSolve.solve
        monkeypatch.setattr(OneSolve, "solve", lambda *given: plain_one(*given)._replace(interrupted=True))
    if on_interrupt == "raise":
        with pytest.raises(mslsq.errors.SolveInterrupted):
            call(y)
    else:
        found = call(y)
        of_value, of_cost = (torch.autograd.grad(x.sum(), y)[0] for x in (found.value, found.cost))
        assert bool(of_value.isnan().all())  # where a solve was broken off there is no derivative
        assert bool(of_cost.isnan().all())
    assert answers[-1]
