"""Data of a subclass of torch.Tensor (a parameter, an image with annotations) are plain tensors to a solve."""

import pytest
import torch
from torch import Tensor, nn

import mslsq

F64 = torch.float64
TIMES = torch.linspace(0, 1, 12, dtype=F64)
DATA = 2 * torch.exp(-1.3 * TIMES) + 0.05 * torch.sin(17 * TIMES)
START = torch.tensor([1.0, 1.0], dtype=F64)


class Annotated(Tensor):
    """Keeps its class through operations."""


class Image(Tensor):
    """Gives plain tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return (
            super().__torch_function__(func, (Tensor,), args, kwargs or {}).as_subclass(Tensor)
            if func
            in (
                torch.exp,
                torch.sub,
            )
            else super().__torch_function__(func, types, args, kwargs or {})
        )


KINDS = {
    "parameter": lambda x: nn.Parameter(x.clone(), requires_grad=False),
    "buffer": lambda x: nn.Buffer(x.clone()),
    "annotated": lambda x: x.clone().as_subclass(Annotated),
    "image": lambda x: x.clone().as_subclass(Image),
}


def residual(p, t, y):
    return p[0] * torch.exp(-p[1] * t) - y


@pytest.mark.kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("error")
def test_a_solve_its_gradient_and_a_prepared_one_are_those_of_plain_tensors(kind):
    of = KINDS[kind]
    solver = mslsq.LevenbergMarquardt(native="wait")
    y = DATA.clone().requires_grad_()
    plain = mslsq.least_squares(residual, START, (TIMES, y), solver=solver)
    (expected,) = torch.autograd.grad(plain.value.sum(), y)
    prepared = mslsq.prepared(residual, START, (of(TIMES), of(DATA)), solver=solver)
    for _ in range(3):
        given = of(DATA).requires_grad_()
        for found in (
            mslsq.least_squares(residual, START, (of(TIMES), given), solver=solver),
            prepared(START, (of(TIMES), given)),
        ):
            assert type(found.value) is Tensor
            torch.testing.assert_close(found.value, plain.value, rtol=1e-9, atol=0)
            (gradient,) = torch.autograd.grad(found.value.sum(), given)
            torch.testing.assert_close(gradient.as_subclass(Tensor), expected, rtol=1e-6, atol=1e-9)
    held = of(DATA)
    closed = mslsq.least_squares(lambda p: residual(p, TIMES, held), START, solver=solver)
    torch.testing.assert_close(closed.value, plain.value, rtol=1e-9, atol=0)
