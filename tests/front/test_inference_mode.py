"""Every front door works in `torch.inference_mode`, where the derivatives of torch 2.9 itself are zero."""

import pytest
import torch

import mslsq

F64 = torch.float64
T = torch.linspace(0, 1, 12, dtype=F64)
Y = 2 * torch.exp(-T) + 0.01 * torch.sin(40 * T)
START = torch.ones(2, dtype=F64)


def model(p, t):
    return p[0] * torch.exp(p[1] * t)


def captured(t, y, solver):
    return mslsq.least_squares(lambda p: model(p, t) - y, START, solver=solver).value


def given(t, y, solver):
    return mslsq.least_squares(lambda p, t, y: model(p, t) - y, START, (t, y), solver=solver).value


def fitted(t, y, solver):
    fit = mslsq.curve_fit(model, t, y, START, solver=solver)
    return torch.cat([fit.value, fit.covariance.flatten()])


@mslsq.cost
def decay(x: mslsq.Euclidean, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return model(x, t) - y


def layered(t, y, solver):
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    problem = mslsq.Problem(decay(x, t=t[None], y=y[None], name="decay"))
    layer = mslsq.LeastSquaresLayer(problem, solver)
    found = layer({"x": START}).value
    return torch.cat([found["x"], mslsq.covariance(problem, found, "x").flatten()])


@pytest.mark.parametrize("trace", ["never", "always"])
@pytest.mark.parametrize("door", [captured, given, fitted, layered])
def test_the_answer_is_that_outside_of_it_wherever_the_data_was_made(door, trace):
    solver = mslsq.LevenbergMarquardt(trace=trace)
    expected = door(T, Y, solver)
    with torch.inference_mode():
        for t, y in ((T, Y), (T.clone(), Y.clone())):
            found = door(t, y, solver)
            assert not found.requires_grad
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-15)
        assert torch.is_inference_mode_enabled()


def test_a_jacobian_is_checked_in_it_too():
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    problem = mslsq.Problem(decay(x, t=T[None], y=Y[None], name="decay"))
    with torch.inference_mode():
        check = mslsq.check_jacobian(problem["decay"], {"x": START})
    assert check.ok
