"""Operators of `torch.library.custom_op` and `torch.ops` tell their tensors themselves."""

import pytest
import torch

import mslsq
from mslsq.interop import operators


@torch.library.custom_op("mslsq_tests::squares", mutates_args=())
def squares(x: torch.Tensor, power: float = 2.0) -> torch.Tensor:
    return x**power


@squares.register_fake
def _(x, power=2.0):
    return torch.empty_like(x)


def backward(inputs, cotangents):
    return (2 * inputs[0] * cotangents[0],)


@pytest.mark.parametrize("given", ["definition", "packet", "overload"])
def test_no_names_are_asked_for(given):
    packet = torch.ops.mslsq_tests.squares
    function = {"definition": squares, "packet": packet, "overload": packet.default}[given]
    operator = operators.wrap(function, backward=backward)
    x = torch.tensor([1.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(torch.func.jacrev(operator)(x), torch.diag(2 * x))
    solution = mslsq.least_squares(lambda p: operator(p) - 4, x)
    torch.testing.assert_close(solution.value, torch.full_like(x, 2))


def test_messages_name_the_operator():
    with pytest.raises(operators.OperatorError, match=r"mslsq_tests::squares has no input 'y'.*It has x"):
        operators.wrap(squares, backward=backward, shared=("y",))
