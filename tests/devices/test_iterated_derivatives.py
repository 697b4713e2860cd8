"""Derivatives that conjugate gradients solve for, on another device: the CPU's numbers, one question a solve."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mslsq
from mslsq import linear
from mslsq.adjoint import Adjoint
from mslsq.linear.block_structure import analyze
from mslsq.linear.iterative.accurate import Foreseen, solve_accurately
from mslsq.linear.iterative.linear_operators import Formed, FormedPlan
from tests.devices.claimed import REAL, Device, assert_same, here, there
from tests.devices.doors import normal, scene
from tests.devices.elsewhere import elsewhere

pytestmark = pytest.mark.fake_cuda

SOLVERS = {
    "stored": linear.ConjugateGradient(derivatives="iterative"),
    "matrix-free": linear.ConjugateGradient(matrix_free=True),
}


def unmoved(tree: Any) -> Any:
    return tree


def differentiated(place: Callable[[Any], Any], name: str, adjoint: Adjoint, **options: Any) -> tuple[Tensor, Tensor]:
    """The gradient of a bundle adjustment in its pixels, and how many steps were taken."""
    made = scene(place)
    solver = mslsq.LevenbergMarquardt(linear_solver=SOLVERS[name], **options)
    solution = made.solved(solver=solver, adjoint=adjoint)
    (gradient,) = torch.autograd.grad(solution.value["point"].square().sum(), made.pixel)
    return gradient, solution.num_steps


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
@elsewhere
def test_the_solves_of_an_implicit_derivative_ask_once_each(name: str, device: Device):
    for _ in range(2):  # what the first solves take is not known
        device.transfers.clear()
        gradient, steps = differentiated(there, name, mslsq.Implicit(order=1))
        asked = device.transfers.total()
    around, solves = 2 + 8, 4  # as in test_front_doors; the probe, a move, and back
    assert REAL is not None or asked <= int(here(steps)) + around + solves, device.transfers
    assert_same(
        gradient, differentiated(unmoved, name, mslsq.Implicit(order=1))[0], rtol=1e-5
    )  # both end within tolerances


def system(place: Callable[[Any], Any]) -> tuple[Formed, Tensor]:
    """Forty equations in blocks of four, whose eigenvalues lie between 1 and 300, and three right-hand sides."""
    where = place(torch.zeros(1)).device
    structure = analyze(np.full(10, 4), *np.tril_indices(10, -1), device=where)
    matrix = normal(0, 40, 40)
    matrix = matrix @ matrix.T + torch.eye(40, dtype=matrix.dtype)
    known = analyze(np.full(10, 4), *np.tril_indices(10, -1), device=torch.device("cpu"))
    values = torch.zeros(1, known.num_values, dtype=matrix.dtype)
    values[0, known.entries.place] = matrix[known.entries.row, known.entries.column]
    return Formed(place(values), None, FormedPlan.of(structure), False), place(normal(1, 3, 40))


@elsewhere
def test_a_solve_that_is_foreseen_asks_once_and_one_that_may_not_ask_never(device: Device):
    operator, rhs = system(there)
    expected = solve_accurately(*system(unmoved), 200)
    assert bool(expected.converged.all())

    def asked(**options: Any) -> int:
        device.transfers.clear()
        found = solve_accurately(operator, rhs, 200, **options)
        total = device.transfers.total()
        assert_same(found.solution, expected.solution, rtol=1e-8)
        assert bool(here(found.converged).all())
        return total

    foreseen = Foreseen()
    first, again = asked(foreseen=foreseen), asked(foreseen=foreseen)
    assert REAL is not None or (first > 4 and again == 1)
    assert REAL is not None or asked(asks=False) == 0
    short = Foreseen(3)  # too few: it goes on, and knows better afterwards
    assert REAL is not None or asked(foreseen=short) > 1
    assert short.iterations is not None and short.iterations > 30
    assert REAL is not None or asked(foreseen=short) == 1
