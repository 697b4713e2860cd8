"""Activations and normalisations in a residual: derivatives through the solve are those of finite differences.

The derivative of layer normalisation's forward derivative is silently wrong in PyTorch, and the slope of `hardsigmoid`
has the digits of float32 there.
"""

import functools

import pytest
import torch
import torch.nn.functional as F

import mslsq

F64 = torch.float64
TIMES = torch.linspace(-2, 2, 8, dtype=F64)
START = torch.tensor([0.9, 0.2], dtype=F64)
DATA = torch.tensor([0.3, -0.2, 0.5, 0.1, 0.7, -0.4, 0.2, 0.6], dtype=F64)
SPREAD = torch.tensor([0.8, 1.1, -0.7, 0.4, 1.3, -1.2, 0.6, 0.2], dtype=F64)
FUNCTIONS = {
    "layer_norm": lambda v, y: F.layer_norm(v, (8,), 1 + 0.1 * y, y.flip(0)),
    "layer_norm of rows": lambda v, y: F.layer_norm(v.reshape(2, 4), (4,), y[:4]).reshape(-1),
    "group_norm": lambda v, y: F.group_norm(v.reshape(1, 4, 2), 2, y[:4]).reshape(-1),
    "instance_norm": lambda v, y: F.instance_norm(v.reshape(1, 2, 4)).reshape(-1),
    "batch_norm": lambda v, y: F.batch_norm(v.reshape(4, 2), y[:2], 1 + y[2:4] ** 2).reshape(-1),
    "rms_norm": lambda v, y: F.rms_norm(v, (8,), 1 + y),
    "hardsigmoid": lambda v, y: F.hardsigmoid(v),
    "hardswish": lambda v, y: F.hardswish(v),
}
SOLVER = mslsq.LevenbergMarquardt(max_steps=200, ftol=0, gtol=1e-13, xtol=1e-13)


def residual(p, y, name):
    curve = FUNCTIONS[name](p[0] * TIMES + p[1] * SPREAD**2 + SPREAD, y)
    return torch.cat([curve - y, 0.3 * (p - 1)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gradient_through_a_solve_is_that_of_finite_differences_in_every_mode(name):
    own = functools.partial(residual, name=name)

    def end(y):
        return mslsq.least_squares(own, START, (y,), solver=SOLVER).value @ torch.tensor([1.0, 2.0], dtype=F64)

    solution = mslsq.least_squares(own, START, (DATA,), solver=SOLVER)
    assert solution.cost > 1e-2
    reverse = torch.func.grad(end)(DATA)
    h = 1e-4 * torch.eye(8, dtype=F64)
    beside = mslsq.least_squares(
        own, solution.value, (torch.cat([DATA + h, DATA - h]),), in_dims=(None, 0), solver=SOLVER
    )
    ahead, behind = (beside.value @ torch.tensor([1.0, 2.0], dtype=F64)).unflatten(0, (2, 8))
    # the solves end within 1e-9 of their minima
    torch.testing.assert_close(reverse, (ahead - behind) / 2e-4, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(torch.func.jacfwd(end)(DATA), reverse, rtol=1e-8, atol=1e-9)
    batch = torch.func.vmap(torch.func.grad(end))(torch.stack([DATA * 1.01, DATA]))
    torch.testing.assert_close(batch[1], reverse, rtol=1e-7, atol=1e-8)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.filterwarnings("error")
def test_anomaly_mode_is_not_disturbed_by_a_problem_that_fails():
    y = torch.stack([DATA, DATA * torch.nan, DATA.flip(0)])

    def gradient(y):
        spread = SPREAD.clone().requires_grad_()
        found = mslsq.least_squares(
            lambda p, y, s: p[0] * torch.exp(p[1] * TIMES) * s - y,
            START,
            (y, spread),
            in_dims=(None, 0, None),
            adjoint=mslsq.Implicit(failed="zero"),
        )
        return torch.autograd.grad(found.value[[0, -1]].sum(), spread)[0]

    expected = gradient(y[[0, 2]])
    with torch.autograd.set_detect_anomaly(True):
        torch.testing.assert_close(gradient(y), expected)
