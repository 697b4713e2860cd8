"""A prepared solve gives what its front door gives, for other numbers, and says so when what it holds has changed."""

import copy
import dataclasses
import pickle

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, vmap

import mslsq
from mslsq import pytree
from mslsq.front import prepared_call as room
from mslsq.solution import History
from mslsq.solvers import whole_solves

F64 = torch.float64
T = torch.linspace(0, 2, 15, dtype=F64)
RECORDED = mslsq.GaussNewton(trace="always")


def decay(p, t, y):
    return p[0] * torch.exp(p[1] * t) - y


def data(scale=2.0, rate=-1.5):
    return scale * torch.exp(rate * T) + 0.01 * torch.sin(40 * T)


def start():
    return torch.tensor([1.0, -1.0], dtype=F64)


@pytest.mark.parametrize("solver", [None, RECORDED, mslsq.Dogleg(trace="always")])
def test_calls_give_what_the_front_door_gives(solver):
    fit = mslsq.prepared(decay, start(), (T, data()), solver=solver)
    for k in range(5):
        x0, y = start() * (1 + 0.1 * k), data(1 + k, -1 - 0.2 * k)
        found, expected = fit(x0, (T, y)), mslsq.least_squares(decay, x0, (T, y), solver=solver)
        torch.testing.assert_close(found.value, expected.value, rtol=1e-12, atol=1e-12)
        assert int(found.num_steps) == int(expected.num_steps) and int(found.status) == int(expected.status)
        assert found.history.cost.shape == expected.history.cost.shape


def test_batches_losses_auxiliary_outputs_and_trees():
    def residual(p, t, y):
        predicted = p["scale"] * torch.exp(p["rate"] * t)
        return predicted - y, {"predicted": predicted}

    x0 = {"scale": torch.ones((), dtype=F64), "rate": -torch.ones((), dtype=F64)}
    y = torch.stack([data(1.0 + k) for k in range(4)])
    options = {"has_aux": True, "loss": mslsq.Huber(0.1), "in_dims": (None, None, 0), "solver": RECORDED}
    fit = mslsq.prepared(residual, x0, (T, y), **options)
    for shift in (0.0, 0.5, 1.0):
        found, aux = fit(x0, (T, y + shift))
        expected, expected_aux = mslsq.least_squares(residual, x0, (T, y + shift), **options)
        torch.testing.assert_close(found.value, expected.value)
        torch.testing.assert_close(aux, expected_aux)


class Seen(mslsq.CostFunction):
    def residual(self, a, b, measured):
        return (measured.inverse() @ (a.inverse() @ b)).log()


def chain(count=5):
    torch.manual_seed(0)
    truth = mslsq.SE2.random(count, dtype=F64)
    pose, i = mslsq.Variable("pose", mslsq.SE2, count=count), torch.arange(count - 1)
    measured = truth[i].between(truth[i + 1])
    problem = mslsq.Problem(Seen(pose[i], pose[i + 1], measured=measured), pose.fixed([0]))
    return problem, {"pose": truth.retract(0.05 * torch.randn(count, 3, dtype=F64))}, measured


def test_problems_are_solved_for_other_starts_and_data():
    problem, values, measured = chain()
    solve = mslsq.prepared(problem, values, {"seen": {"measured": measured}}, solver=RECORDED)
    for k in range(4):
        moved = measured.retract(torch.full((4, 3), 0.1 * k, dtype=F64))
        found = solve(values, {"seen": {"measured": moved}})
        expected = mslsq.solve(problem, values, {"seen": {"measured": moved}}, solver=RECORDED)
        assert isinstance(found.value["pose"], mslsq.SE2)
        torch.testing.assert_close(found.value["pose"].storage, expected.value["pose"].storage)
    held_back = mslsq.prepared(problem, values)
    torch.testing.assert_close(
        held_back(values).value["pose"].storage, mslsq.solve(problem, values).value["pose"].storage
    )


def closed_form(y, basis):
    """The minimum of |p · basis − y|²."""
    return basis @ y / (basis @ basis)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("solver", [None, RECORDED])
def test_derivatives_pass_through_under_every_transform(solver):
    basis = torch.exp(-T)
    fit = mslsq.prepared(lambda p, y: p * basis - y, torch.zeros(1, dtype=F64), (T,), solver=solver)

    def minimum(y):
        return fit(torch.zeros(1, dtype=F64), (y,)).value[0]

    y, expected = data(), basis / (basis @ basis)
    for _ in range(3):  # the first call is a check, the others are not
        leaf = y.clone().requires_grad_()
        minimum(leaf).backward()
        torch.testing.assert_close(leaf.grad, expected)
        for transform in (grad, jacrev, jacfwd):
            torch.testing.assert_close(transform(minimum)(y), expected)
        squared = jacfwd(grad(lambda y: minimum(y) ** 2))(y)
        torch.testing.assert_close(squared, 2 * torch.outer(expected, expected))
        many = torch.stack([y, 2 * y, y - 1])
        torch.testing.assert_close(vmap(minimum)(many), torch.stack([closed_form(row, basis) for row in many]))


def test_tensors_that_are_held_are_read_in_every_call():
    gain = torch.nn.Parameter(torch.tensor(2.0, dtype=F64))
    fit = mslsq.prepared(lambda p, y: gain * p - y, torch.zeros(15, dtype=F64), (T,), solver=RECORDED)
    for value in (2.0, 4.0, 5.0):
        with torch.no_grad():
            gain.fill_(value)
        found = fit(torch.zeros(15, dtype=F64), (T,)).value
        torch.testing.assert_close(found, T / value)
        (slope,) = torch.autograd.grad(found.sum(), gain)
        torch.testing.assert_close(slope, -T.sum() / value**2)


class Model:
    rate = 1.0

    def __call__(self, p, y):
        return p * torch.exp(-self.rate * T) - y


@pytest.mark.parametrize("change", ["class attribute", "method", "generator"])
def test_hidden_state_that_changes_is_an_error_at_the_next_check(monkeypatch, change):
    monkeypatch.setattr(room, "CHECKED_EVERY", 4)
    generator = torch.Generator().manual_seed(1)

    class Own(Model):
        def __call__(self, p, y):
            return super().__call__(p, y) * (generator.initial_seed() if change == "generator" else 1)

    fit = mslsq.prepared(Own(), torch.zeros(1, dtype=F64), (T,), solver=RECORDED)
    x0, y = torch.zeros(1, dtype=F64), data()
    for _ in range(2):
        torch.testing.assert_close(fit(x0, (y,)).value[0], closed_form(y, torch.exp(-T)))
    if change == "class attribute":
        Own.rate = 2.0
    elif change == "method":
        Own.__call__ = lambda self, p, y: p - y
    else:
        generator.manual_seed(3)
    with pytest.raises(mslsq.errors.HiddenStateError, match="has changed"):
        for _ in range(4):
            fit(x0, (y,))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((torch.zeros(2, dtype=F64), (T[:5], T[:5], 1.0)), mslsq.errors.ShapeError, "prepared for"),
        ((torch.zeros(2), (T, T, 1.0)), mslsq.errors.DtypeError, "float64"),
        ((torch.zeros(2, dtype=F64), (T, T, 2.0)), mslsq.ProblemError, "another value"),
        ((torch.zeros(2, dtype=F64), (T, T)), mslsq.ProblemError, "structure"),
        ((torch.zeros(2, dtype=F64), (T, torch.stack([T, T], 1)[:, 0], 1.0)), mslsq.errors.ShapeError, "contiguous"),
    ],
)
def test_arguments_that_are_not_like_the_example_are_refused(arguments, error, says):
    fit = mslsq.prepared(lambda p, t, y, power: decay(p, t, y) ** power, start(), (T, T, 1.0))
    with pytest.raises(error, match=says):
        fit(*arguments)


@pytest.mark.parametrize("batched", [False, True])
def test_curve_fits_have_their_covariance(batched):
    def model(p, t):
        return p[0] * torch.exp(p[1] * t)

    y = torch.stack([data(1.0 + k) for k in range(3)]) if batched else data()
    options = {"in_dims": (None, 0, None, None) if batched else None, "solver": RECORDED, "absolute_sigma": True}
    fit = mslsq.prepared(mslsq.curve_fit, model, T, y, start(), sigma=0.1, **options)
    for k in range(4):
        moved, sigma = y * (1 + 0.3 * k), 0.1 + 0.05 * k
        found = fit(T, moved, start(), sigma=sigma)
        expected = mslsq.curve_fit(model, T, moved, start(), sigma=sigma, **options)
        torch.testing.assert_close(found.value, expected.value)
        torch.testing.assert_close(found.covariance, expected.covariance)
        torch.testing.assert_close(found.standard_errors, expected.standard_errors)


def test_options_of_a_residual_are_refused_for_a_problem():
    problem, values, _ = chain()
    with pytest.raises(mslsq.ProblemError, match="options of a residual"):
        mslsq.prepared(problem, values, loss=mslsq.Huber(1.0))


def test_one_tensor_in_two_places_is_two_arguments():
    fit = mslsq.prepared(lambda p, a, b: p * a - b, torch.zeros(15, dtype=F64), (T + 1, T + 1), solver=RECORDED)
    for _ in range(3):
        both = T + 1
        torch.testing.assert_close(fit(torch.zeros(15, dtype=F64), (both, both)).value, torch.ones(15, dtype=F64))
        torch.testing.assert_close(fit(torch.zeros(15, dtype=F64), (both, 2 * both)).value, 2 * torch.ones_like(T))


NATIVE = mslsq.LevenbergMarquardt(native="wait", max_steps=30)


def same_solutions(found, expected):
    """Are these equal in every field?"""
    for name in ("cost", "status", "num_steps", "num_evaluations", "gradient_norm", "differentiable"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-15, msg=name)
    for name, column in zip(History.__dataclass_fields__, expected.history.columns, strict=True):
        torch.testing.assert_close(
            getattr(found.history, name), column, rtol=1e-12, atol=1e-15, equal_nan=True, msg=name
        )
    assert bool(found.adjoint_residual.isnan()) and found.active == () and found.weights == {}


def test_calls_that_a_native_program_answers_are_those_of_the_front_door():
    x0 = {"scale": torch.ones((), dtype=F64), "rates": -torch.ones(1, dtype=F64)}

    def residual(p, t, y):
        return p["scale"] * torch.exp(p["rates"] * t) - y

    for function, begin in ((decay, start()), (residual, x0)):
        fit = mslsq.prepared(function, begin, (T, data()), solver=NATIVE)
        for k in range(4):
            y = data(1 + k, -1 - 0.2 * k)
            found, expected = fit(begin, (T, y)), mslsq.least_squares(function, begin, (T, y), solver=NATIVE)
            torch.testing.assert_close(found.value, expected.value, rtol=1e-14, atol=0)
            same_solutions(found, expected)
    assert fit._fixed.direct is not None  # the calls took the short way


def test_short_ways_end_where_steps_run_out_and_see_gradients_of_zero():
    few = mslsq.prepared(decay, start(), (T, data()), solver=mslsq.LevenbergMarquardt(native="wait", max_steps=2))
    for _ in range(2):
        assert int(few(start(), (T, data())).status) == mslsq.Status.MAX_STEPS
    still = mslsq.prepared(lambda p, y: p**2 - y, torch.zeros(15, dtype=F64), (T,), solver=NATIVE)
    for _ in range(2):
        with pytest.warns(UserWarning, match="influence"):
            still(torch.zeros(15, dtype=F64), (T,))


def test_short_ways_read_numbers_that_are_stored_negated():
    at = torch.tensor([1 + 1j], dtype=torch.complex128)
    negated = at.conj().imag
    assert negated.is_neg()
    fit = mslsq.prepared(lambda p, y: torch.exp(p) - y, negated, (torch.ones(1, dtype=F64),), solver=NATIVE)
    for _ in range(2):
        torch.testing.assert_close(
            fit(negated, (torch.ones(1, dtype=F64),)).history.cost[0], (torch.exp(negated) - 1)[0] ** 2 / 2
        )


def test_a_solution_that_is_not_read_yet_copies_pickles_and_maps_like_another():
    fit = mslsq.prepared(decay, start(), (T, data()), solver=NATIVE)
    expected = fit(start(), (T, data()))
    for copied in (
        lambda x: x,
        copy.copy,
        copy.deepcopy,
        lambda x: pickle.loads(pickle.dumps(x)),
        lambda x: dataclasses.replace(x, active=()),
        lambda x: pytree.map_leaves(torch.clone, x),
    ):
        found = copied(fit(start(), (T, data())))
        torch.testing.assert_close(found.value, expected.value)
        same_solutions(found, expected)
    with pytest.raises(AttributeError, match="costs"):
        _ = fit(start(), (T, data())).costs


@pytest.mark.parametrize("steps_done", [False, True])
def test_an_interrupt_of_a_short_way_has_the_best_point(monkeypatch, steps_done):
    fit = mslsq.prepared(decay, start(), (T, data()), solver=NATIVE)
    fit(start(), (T, data()))
    program = whole_solves.program_in_use(fit._fixed.task.pinned.plan)._one.program
    advance, calls = program.advance, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 1:
            if steps_done:
                advance(*arguments)
            raise KeyboardInterrupt
        return advance(*arguments)

    monkeypatch.setattr(program, "advance", interrupted)
    with pytest.raises(mslsq.errors.SolveInterrupted) as caught:
        fit(start(), (T, data()))
    found = caught.value.solution
    assert bool(found.converged) == steps_done
    if not steps_done:
        assert int(found.status) == mslsq.Status.INTERRUPTED
        torch.testing.assert_close(found.value, start())
        assert bool(found.history.cost[0].isfinite()) and bool(found.history.cost[1:].isnan().all())
    torch.testing.assert_close(fit(start(), (T, data())).value, fit(start(), (T, data())).value)
