"""What of a scalar program is known beforehand."""

import math
import operator

import pytest
import torch

from mslsq.native.replaying import ReplayedVector
from mslsq.native.scalars import Program
from mslsq.native.text import Argument


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_what_is_computed_of_nan_is_nan(operation):
    program = Program(torch.float64)
    x, nan = program.input(0, 0, "real"), program.constant(math.nan, "real")
    assert math.isnan(operation(x, nan).value) and math.isnan(operation(nan, x).value)


def test_the_branch_of_nan_that_is_not_taken_has_no_part_in_derivatives():
    """As where a factor is NaN unless its matrix is positive definite: of NaN · x that is not chosen the derivative
    is 0 · NaN (gradients of Theseus' motion planner were NaN)."""
    program = Program(torch.float64)
    x = program.input(0, 0, "real")
    chosen = x.is_above(0.0).choose(x * x, x * math.nan)
    vector = ReplayedVector(program, [Argument(1, has_lanes=True)], [chosen.number])
    at = torch.tensor([[2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    vector.filled([at], [0], 1, 2).sum().backward()
    assert at.grad is not None and at.grad.tolist() == [[4.0, 6.0]]


def test_a_multiple_of_a_double_is_one_of_the_number():
    """The derivative of ½x² is x, which does not overflow where x + x does."""
    program = Program(torch.float64)
    x, y = (program.input(0, entry, "real") for entry in range(2))
    assert ((x + x) * 0.5).number == x.number
    assert (3.0 * (x + x)).number == (x * 6.0).number
    assert program.nodes[((x + y) * 0.5).number].operation == "mul"
    assert program.nodes[((x + x) * 1e-300).number].operands[0] == (x + x).number
