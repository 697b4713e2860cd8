"""Residuals that PyTorch does not evaluate under its transforms: errors say what to write instead, and that works."""

import pytest
import torch

import mslsq
from mslsq.errors import CaptureError, ProblemError, SecondDerivativeError, UndifferentiableResidualError

F64 = torch.float64
T = torch.linspace(0, 2, 30, dtype=F64)
START = torch.tensor([1.0, -1.0], dtype=F64)
SLOPE = -2.6 * torch.exp(-1.3 * T)


def value(p, t):
    return (p[0] * torch.exp(p[1] * t)).sum()


def in_the_points(p, y):
    t = T.clone().requires_grad_()
    return torch.autograd.grad(value(p, t), t, create_graph=True)[0] - y


def in_the_points_where_gradients_are_on(p, y):
    with torch.enable_grad():
        return in_the_points(p, y)


def in_the_variables(p, y):
    return torch.cat([torch.autograd.grad(value(p, T), p, create_graph=True)[0], p])


def backward(p, y):
    t = T.clone().requires_grad_()
    value(p, t).backward()
    return t.grad - y


@pytest.mark.parametrize("native", ["never", "wait"])
@pytest.mark.parametrize(
    "residual",
    [in_the_points, in_the_points_where_gradients_are_on, in_the_variables, backward],
    ids=lambda residual: residual.__name__,
)
def test_derivatives_by_autograd_are_refused_with_what_to_write(residual, native):
    with pytest.raises(
        (ProblemError, CaptureError, UndifferentiableResidualError), match=r"torch\.func\.grad\("
    ) as caught:
        mslsq.least_squares(residual, START, (SLOPE,), solver=mslsq.LevenbergMarquardt(native=native))
    assert residual.__name__ in str(caught.value)


@pytest.mark.parametrize("native", ["never", "wait"])
def test_what_is_to_be_written_is_solved(native):
    found = mslsq.least_squares(
        lambda p, y: torch.func.grad(lambda t: value(p, t))(T) - y,
        START,
        (SLOPE,),
        solver=mslsq.LevenbergMarquardt(native=native),
    )
    torch.testing.assert_close(found.value, torch.tensor([2.0, -1.3], dtype=F64))


def normalized(**options):
    net = torch.nn.Sequential(torch.nn.Linear(1, 3, dtype=F64), torch.nn.BatchNorm1d(3, dtype=F64, **options))
    return net, lambda p, t: p[0] * torch.exp(p[1] * t) + net(t[:, None]).sum(-1)


@pytest.mark.parametrize("of", ["variables", "points", "weights"])
def test_a_batch_normalization_that_updates_its_statistics_is_named(of):
    net, residual = normalized()
    net.requires_grad_(of == "weights")
    t = T.clone().requires_grad_(of == "points")
    function = (lambda p, t: residual(p, t * p[0])) if of == "variables" else residual
    with pytest.raises((UndifferentiableResidualError, SecondDerivativeError), match=r"\.eval\(\) on the network"):
        mslsq.least_squares(function, START, (t,))


def test_one_that_has_none_to_update_is_solved_and_differentiated():
    _, residual = normalized(track_running_stats=False)
    t = T.clone().requires_grad_()
    assert torch.autograd.grad(mslsq.least_squares(residual, START, (t,)).value.sum(), t)[0].isfinite().all()
