"""A layer has the calls of Theseus' own, its solutions, and right gradients in all four backward modes."""

import copy

import pytest
import torch

import mslsq
from mslsq.front import solve as front_solve
from mslsq.interop.theseus import TheseusError, from_theseus_layer
from mslsq.linearize import trace

th = pytest.importorskip(
    "theseus", reason="Theseus is not installed: see scripts/install_theseus.sh", exc_type=ImportError
)
F64 = torch.float64
T = torch.linspace(0, 2, 15, dtype=F64)
MODES = {
    "implicit": {},
    "unroll": {},
    "truncated": {"backward_num_iterations": 5},
    "dlm": {"dlm_epsilon": 1e-4},
}


def error(optim_vars, aux_vars):
    p, y = optim_vars[0].tensor, aux_vars[0].tensor
    return p[:, :1] * torch.exp(p[:, 1:] * T) - y


def layer_of(optimizer=None, **options):
    """Fits of a·exp(b·t)."""
    objective = th.Objective(dtype=F64)
    p = th.Vector(tensor=torch.tensor([[1.0, 0.0]], dtype=F64), name="p")
    y = th.Variable(torch.ones(1, len(T), dtype=F64), name="y")
    weight = th.ScaleCostWeight(torch.ones(1, 1, dtype=F64))
    objective.add(th.AutoDiffCostFunction([p], error, len(T), weight, aux_vars=[y]))
    options = {"max_iterations": 20, "linear_solver_cls": th.CholeskyDenseSolver} | options
    made = (optimizer or th.GaussNewton)(objective, **options)
    made.set_params(abs_err_tolerance=0.0, rel_err_tolerance=0.0)  # its own stop it with parameters off by 1e-5
    return th.TheseusLayer(made)


def data(noise: float, batch: int = 3):
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(batch, 2, generator=generator, dtype=F64) + 0.5
    clean = truth[:, :1] * torch.exp(-truth[:, 1:] * T)
    return clean + noise * torch.randn(clean.shape, generator=generator, dtype=F64)


START = torch.tensor([[1.0, -0.5]], dtype=F64)


def gradient(layer, y, options):
    y = y.clone().requires_grad_()
    values, _ = layer.forward({"y": y, "p": START.expand(len(y), -1).clone()}, options)
    return values["p"].detach(), torch.autograd.grad((values["p"] * torch.tensor([1.0, 2.0])).sum(), y)[0]


@pytest.mark.parametrize("mode", MODES)
def test_without_noise_gradients_are_those_of_theseus(mode):
    y, options = data(0.0), {"backward_mode": mode, **MODES[mode]}
    expected, theirs = gradient(layer_of(), y, options)
    found, ours = gradient(from_theseus_layer(layer_of()), y, options)
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)
    # Direct loss minimisation is a difference, of the size of epsilon in both.
    torch.testing.assert_close(ours, theirs, atol=1e-3 if mode == "dlm" else 1e-7, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_with_noise_gradients_are_those_of_finite_differences(mode):
    """Theseus' implicit ones are off by 1e-2 here, since its Hessian leaves out the second derivatives of the error."""
    y, options = data(0.3), {"backward_mode": mode, **MODES[mode]}
    layer = from_theseus_layer(layer_of())
    _, ours = gradient(layer, y, options)
    step, row = 1e-6, 4
    ends = []
    for sign in (1, -1):
        moved = y.clone()
        moved[:, row] += sign * step
        values, _ = layer.forward({"y": moved, "p": START.expand(len(y), -1).clone()})
        ends.append((values["p"] * torch.tensor([1.0, 2.0])).sum(1))
    expected = (ends[0] - ends[1]) / (2 * step)
    # The differences are known to 1e-5, of solutions to 1e-11 at ±1e-6. Truncated is off by the fifth power of the rate
    # of Gauss–Newton.
    torch.testing.assert_close(ours[:, row], expected, atol={"dlm": 1e-3, "truncated": 1e-4}.get(mode, 1e-5), rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_a_problem_that_fails_has_a_gradient_of_zero_and_harms_no_other(mode):
    y, options = data(0.1), {"backward_mode": mode, **MODES[mode]}
    _, alone = gradient(from_theseus_layer(layer_of()), y, options)
    y[1, 3] = torch.nan
    _, ours = gradient(from_theseus_layer(layer_of()), y, options)
    assert bool((ours[1] == 0).all())
    torch.testing.assert_close(ours[[0, 2]], alone[[0, 2]])


def test_the_account_of_a_solve_is_theseus():
    layer = from_theseus_layer(layer_of(th.LevenbergMarquardt))
    y = data(0.1)
    values, info = layer.forward({"y": y}, {"track_err_history": True, "track_best_solution": True, "damping": 0.1})
    assert list(info.status) == [th.NonlinearOptimizerStatus.CONVERGED] * 3
    assert info.err_history.shape[0] == 3 and info.err_history.isfinite().all()
    torch.testing.assert_close(info.err_history[:, -1], info.best_err)
    torch.testing.assert_close(info.best_solution["p"], values["p"])
    torch.testing.assert_close(layer.objective.error_metric(), info.last_err)


@pytest.mark.parametrize("batch", [1, 3])
def test_states_are_those_of_the_costs_beside_them(batch):
    layer, y = from_theseus_layer(layer_of()), data(0.1, batch)
    options = {"track_err_history": True, "track_state_history": True}
    start = START.expand(batch, -1).clone()
    values, info = layer.forward({"y": y, "p": start}, options)
    states, steps = info.state_history["p"], int(info.solution.num_steps.max())
    assert steps > 2 and states.shape == (batch, 2, info.err_history.shape[-1])
    torch.testing.assert_close(states[..., 0], start)
    torch.testing.assert_close(states[..., -1], values["p"])
    for step in range(steps + 1):
        layer.objective.update({"y": y, "p": states[..., step]})
        torch.testing.assert_close(layer.objective.error_metric(), info.err_history[:, step])


def test_variables_hold_the_solution_and_a_second_call_starts_there():
    layer = from_theseus_layer(layer_of())
    values, _ = layer.forward({"y": data(0.1)})
    torch.testing.assert_close(layer.objective.optim_vars["p"].tensor, values["p"])
    _, info = layer.forward()
    assert int(info.solution.num_steps.max()) <= 1


def test_wrong_names_are_told():
    layer = from_theseus_layer(layer_of())
    with pytest.warns(UserWarning, match="no variable 'yy'.*mean 'y'"):
        layer.forward({"yy": data(0.1)})
    with pytest.raises(TheseusError, match="backwards_mode"):
        layer.forward({"y": data(0.1)}, {"backwards_mode": "implicit"})
    with pytest.raises(TheseusError, match="one of implicit, unroll, truncated, dlm"):
        layer.forward({"y": data(0.1)}, {"backward_mode": "explicit"})
    with pytest.raises(TheseusError, match=r"takes a theseus\.TheseusLayer, not Objective"):
        from_theseus_layer(layer.objective)


@pytest.mark.parametrize("mode", ["implicit", "unroll"])
def test_a_linear_optimizer_takes_one_step_and_has_its_derivative(mode):
    """Of a problem that is not linear as well: there a step is no solution."""
    y = data(0.0)
    found = []
    for make in (lambda layer: layer, from_theseus_layer):
        layer = layer_of()
        linear = th.TheseusLayer(th.LinearOptimizer(layer.objective, th.CholeskyDenseSolver))
        found.append(gradient(make(linear), y, {"backward_mode": mode}))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_calls_that_are_recorded_are_answered_without_a_statement(monkeypatch):
    """With derivatives too: values and gradients stay those of the first calls."""
    monkeypatch.setattr(trace, "TRACE_SECONDS", 0.0)
    monkeypatch.setattr(trace, "TRACE_CALLS", 0)
    layer, y, options = from_theseus_layer(layer_of()), data(0.1, 1), {"backward_mode": "implicit"}
    first = gradient(layer, y, options)
    for _ in range(2):
        gradient(layer, y, options)
    monkeypatch.setattr(front_solve, "stated", None)  # to state the problem fails now
    found = gradient(layer, y, options)
    torch.testing.assert_close(found, first, atol=1e-10, rtol=1e-9)
    other = gradient(layer, y + 0.01, options)
    monkeypatch.undo()
    torch.testing.assert_close(other, gradient(from_theseus_layer(layer_of()), y + 0.01, options), atol=1e-8, rtol=1e-7)


def test_copies_of_layers_and_problems_go_their_own_ways():
    y = torch.exp(-0.5 * T)[None]
    layer = from_theseus_layer(layer_of())
    copied, problem = copy.deepcopy(layer), copy.deepcopy(layer.problem)
    first, other = (each.forward({"y": factor * y})[0]["p"] for each, factor in ((layer, 1), (copied, 2)))
    torch.testing.assert_close(first, torch.tensor([[1.0, -0.5]], dtype=F64))
    torch.testing.assert_close(other, torch.tensor([[2.0, -0.5]], dtype=F64))
    assert copied.objective is not layer.objective
    assert torch.equal(layer.objective.optim_vars["p"].tensor, first)
    start = torch.tensor([[1.0, 0.0]], dtype=F64)
    inputs = problem.inputs({"p": start, "y": 3 * y})
    found = problem.tensors(mslsq.solve(problem, *inputs).value)["p"]
    torch.testing.assert_close(found, torch.tensor([[3.0, -0.5]], dtype=F64))
