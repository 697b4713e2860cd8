"""`torch.ldexp` by integers: PyTorch's derivative is zero where the exponent is negative (torch 2.13)."""

import pytest
import torch

import mslsq

F64 = torch.float64
T = torch.linspace(0.1, 2, 10, dtype=F64)
Y = 2 * torch.exp(-1.1 * T)
EXPONENTS = torch.tensor([-3, -2, -1, 0, 1] * 2)


def by_function(p, y):
    return torch.ldexp(p[0] * T, other=EXPONENTS) + p[1] - y


def by_method(p, y):
    return (p[0] * T).ldexp(EXPONENTS) + p[1] - y


def by_parts(p, y):
    mantissa, exponent = torch.frexp(p[0] * T)
    return torch.ldexp(mantissa, exponent + EXPONENTS) + p[1] - y


@pytest.mark.parametrize("residual", [by_function, by_method, by_parts])
@pytest.mark.parametrize("trace", ["never", "always"])
def test_a_line_scaled_by_powers_of_two_is_fitted_as_by_least_squares(residual, trace):
    y = Y.clone().requires_grad_()
    solver = mslsq.LevenbergMarquardt(trace=trace, native="never")
    solution = mslsq.least_squares(residual, torch.tensor([0.8, 0.4], dtype=F64), (y,), solver=solver)
    inverse = torch.linalg.pinv(torch.stack([T * 2.0**EXPONENTS, torch.ones_like(T)], 1))
    torch.testing.assert_close(solution.value.detach(), inverse @ Y, rtol=1e-8, atol=0)
    (found,) = torch.autograd.grad(solution.value[0], y)
    torch.testing.assert_close(found, inverse[0], rtol=1e-10, atol=1e-12)
