"""A variable that a residual changes with and has no derivative in is named; what only looks like it is not."""

import warnings

import pytest
import torch

import mslsq
from mslsq.errors import (
    CutDerivativeWarning,
    DerivativeMismatchError,
    LoadedParameterError,
    NonFiniteDerivativeWarning,
)

F64 = torch.float64
T = torch.linspace(0.1, 2, 12, dtype=F64)
Y = 2 * torch.exp(-1.1 * T) + 0.3
START = torch.tensor([1.2, 0.7], dtype=F64)
FEW = mslsq.LevenbergMarquardt(max_steps=2, native="never")


class Straight(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):  # pyright: ignore[reportIncompatibleMethodOverride]
        return 0 * g

    @staticmethod
    def jvp(ctx, t):  # pyright: ignore[reportIncompatibleMethodOverride]
        return 0 * t


def without_gradients(p, t, y):
    with torch.no_grad():
        shape = torch.exp(-p[1] * t)
    return p[0] * shape - y


def said(solve):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        solve()
    return [str(one.message) for one in seen if one.category is CutDerivativeWarning]


@pytest.mark.parametrize(
    "residual",
    [
        lambda p, t, y: p[0] * torch.exp(-p.data[1] * t) - y,
        lambda p, t, y: p[0] * torch.exp(-p[1].clone().detach() * t) - y,
        lambda p, t, y: p[0] * torch.exp(-torch.tensor(p[1]) * t) - y,
        lambda p, t, y: p[0] * Straight.apply(-p[1] * t) - y,
        without_gradients,
    ],
)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_variable_without_a_derivative_is_named(residual, dtype):
    data = T.to(dtype), Y.to(dtype)
    (message,) = said(lambda: mslsq.least_squares(residual, START.to(dtype), data, solver=FEW))
    assert "changes with x0[1]" in message and ".data" in message


@pytest.mark.parametrize(
    "residual",
    [
        lambda p, t, y: p[0] * t - y,
        lambda p, t, y: (p[0] * t + torch.relu(p[1] - 5)) - y,
        lambda p, t, y: (p[0] * t + (p[1] - 0.7) ** 2) - y,
        lambda p, t, y: (p[0] * t + (p[1] - 0.7).abs() ** 1.5) - y,
        lambda p, t, y: (p[0] * t + torch.round(p[1])) - y,
        lambda p, t, y: p[0] * t / (1 + (p[0] * t + p[1] - y).detach() ** 2) + p[1] - y,
        lambda p, t, y: p[0] * t + torch.where(p[1] > 3, p[1] * t, torch.zeros_like(t)) - y,
    ],
)
def test_a_derivative_that_is_zero_rightly_is_no_reason(residual):
    assert not said(lambda: mslsq.least_squares(residual, START, (T, Y), solver=FEW))


def test_another_cost_may_move_what_this_one_takes_for_constant():
    x, s = mslsq.Variable("x", mslsq.Euclidean(1)), mslsq.Variable("s", mslsq.Euclidean(1))

    @mslsq.cost
    def weighted(x, s, y):
        return (x - y) / s.detach()

    @mslsq.cost
    def spread(x, s, y):
        return s - (x.detach() - y).abs()

    start, y = {"x": torch.zeros(1, dtype=F64), "s": torch.ones(1, dtype=F64)}, Y[:, None]
    both = mslsq.Problem(weighted(x, s, y=y), spread(x, s, y=y))
    assert not said(lambda: mslsq.solve(both, start, solver=FEW))
    alone = mslsq.Problem(weighted(x, s, y=y))
    (message,) = said(lambda: mslsq.solve(alone, start, solver=FEW))
    assert "changes with s," in message
    held = mslsq.Problem(weighted(x, s, y=y), s.fixed())
    assert not said(lambda: mslsq.solve(held, start, solver=FEW))


def test_an_element_of_a_group_is_one_variable():
    pose, scale = mslsq.Variable("pose", mslsq.SE2), mslsq.Variable("scale", mslsq.Euclidean(1))

    @mslsq.cost
    def moved(pose, scale, a, b):
        return scale * (mslsq.SE2(pose.storage.detach()).act(a)) - b

    a = torch.randn(5, 2, dtype=F64, generator=torch.Generator().manual_seed(1))
    problem = mslsq.Problem(moved(pose, scale, a=a, b=2 * a + 1))
    start = {"pose": mslsq.SE2.identity(dtype=F64), "scale": torch.ones(1, dtype=F64)}
    (message,) = said(lambda: mslsq.solve(problem, start, solver=FEW))
    assert "changes with pose," in message


NET = torch.nn.Linear(1, 1).double()


def by_data(p, t):
    NET.weight.data = p[:1, None]
    return NET(t[:, None])[:, 0] + p[1]


def by_copy(p, t):
    with torch.no_grad():
        NET.weight.copy_(p[:1, None])
    return NET(t[:, None])[:, 0] + p[1]


def by_item(p, t):
    NET.weight.data[0] = p[0]
    return NET(t[:, None])[:, 0] + p[1]


def by_vector(p, t):
    torch.nn.utils.vector_to_parameters(p, NET.parameters())
    return NET(t[:, None])[:, 0]


def by_dict(p, t):
    NET.load_state_dict({"weight": p[:1, None], "bias": p[1:]})
    return NET(t[:, None])[:, 0]


@pytest.mark.parametrize("model", [by_data, by_copy, by_item, by_vector, by_dict])
def test_variables_written_into_a_module_are_refused(model):
    with pytest.raises(LoadedParameterError, match="functional_call"):
        mslsq.least_squares(lambda p: model(p, T) - Y, START, solver=FEW)


def test_what_the_refusal_says_works():
    start = {name: parameter.detach() for name, parameter in NET.named_parameters()}

    def residual(parameters):
        return torch.func.functional_call(NET, parameters, (T[:, None],))[:, 0] - Y

    solution = mslsq.least_squares(residual, start)
    line = torch.linalg.lstsq(torch.stack([T, torch.ones_like(T)], 1), Y).solution
    torch.testing.assert_close(solution.value["weight"][0, 0], line[0])
    torch.testing.assert_close(solution.value["bias"][0], line[1])


def test_a_module_that_normalises_its_own_parameters_does_not_end_the_process():
    net = torch.nn.Linear(1, 1).double()

    def residual(p):
        net.weight.data = net.weight.data / net.weight.data.norm()
        return net(p[0] * T[:, None])[:, 0] + p[1] - Y

    with pytest.raises(LoadedParameterError, match=r"\.data = "):
        mslsq.least_squares(residual, START)


def test_a_derivative_that_is_no_number_is_told_with_the_usual_cause():
    t = torch.linspace(0, 2, 12, dtype=F64)

    def residual(p, t):
        return torch.where(t > 0, p[0] * torch.log(t) / (t + 1), p[1]) + p[1] - Y

    with pytest.warns(NonFiniteDerivativeWarning, match=r"torch\.where"):
        assert not mslsq.least_squares(residual, START, (t,), solver=FEW).converged

    def safe(p, t):
        return torch.where(t > 0, p[0] * torch.log(torch.where(t > 0, t, 1.0)) / (t + 1), p[1]) + p[1] - Y

    with warnings.catch_warnings():
        warnings.simplefilter("error", NonFiniteDerivativeWarning)
        assert mslsq.least_squares(safe, START, (t,)).converged


def test_data_in_half_precision_are_named():
    with pytest.raises(DerivativeMismatchError, match=r"computes in torch\.float16"):
        mslsq.least_squares(lambda p, t, y: p[0] * torch.exp(-p[1] * t) - y, START, (T.half(), Y), solver=FEW)
