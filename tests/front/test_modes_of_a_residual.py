"""A residual that asks for PyTorch's modes is one function, however the solve is called and whatever it is kept as."""

import contextlib

import pytest
import torch

import mslsq

F64 = torch.float64
T = torch.linspace(0.1, 2, 20, dtype=F64)
Y = 2 * torch.exp(-T)
START = torch.tensor([1.5, 0.7], dtype=F64)
CALLERS = [contextlib.nullcontext, torch.no_grad, torch.inference_mode, contextlib.nullcontext]


def asks(p, t, y):
    amplitude = p[0]
    if torch.is_grad_enabled():
        amplitude = 2 * amplitude
    if torch.is_inference_mode_enabled():
        amplitude = 4 * amplitude
    if torch.is_autocast_enabled("cpu"):
        amplitude = 8 * amplitude
    return amplitude * torch.exp(-p[1] * t) - y


class Asks(mslsq.CostFunction):
    def residual(self, p, t, y):
        return asks(p, t, y)


def by_a_residual(solver):
    return mslsq.least_squares(asks, START, (T, Y), solver=solver).value


def by_a_cost(solver):
    problem = mslsq.Problem(Asks(mslsq.Variable("p", mslsq.Euclidean(2)), t=T[None], y=Y[None]))
    return mslsq.solve(problem, {"p": START}, solver=solver).value["p"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("door", [by_a_residual, by_a_cost])
@pytest.mark.parametrize("options", [{"trace": "never"}, {"trace": "always"}, {"native": "never"}], ids=str)
def test_gradients_are_on_and_other_modes_off_whatever_the_caller_set(door, options):
    solver = mslsq.LevenbergMarquardt(**options)
    for caller in [*CALLERS, lambda: torch.autocast("cpu")]:
        for _ in range(2):
            with caller():
                assert abs(float(door(solver)[0]) - 1) < 1e-6, caller
