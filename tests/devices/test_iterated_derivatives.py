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
from mslsq.datasets import ring_graph
from mslsq.linear.block_structure import analyze
from mslsq.linear.iterative.accurate import Foreseen, solve_accurately
from mslsq.linear.iterative.linear_operators import Formed, FormedPlan
from tests.devices.claimed import NAME, REAL, Device, assert_same, here, there
from tests.devices.doors import normal, scene
from tests.devices.elsewhere import elsewhere

pytestmark = pytest.mark.fake_cuda

SOLVERS = {
    "stored": linear.ConjugateGradient(derivatives="iterative"),
    "matrix-free": linear.ConjugateGradient(matrix_free=True),
}


ITERATIVE = linear.ConjugateGradient(derivatives="iterative", tolerance=1e-9, forcing="constant", max_iterations=24)


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


def small_graph(place: Callable[[Any], Any], **options: Any) -> Callable[[], tuple[Tensor, Tensor]]:
    """Solves a small pose graph: the gradient in where it starts, by its steps taken again, and how many there were."""
    graph = ring_graph(laps=1, per_lap=4).graph
    problem = graph.problem() if place is unmoved else graph.problem().to(f"{NAME}:0")
    begun = graph.poses.retract(0.1 * normal(0, *graph.poses.storage.shape[:-1], graph.poses.tangent_dim))
    start = place(begun.storage).requires_grad_()
    solver = mslsq.LevenbergMarquardt(linear_solver=ITERATIVE, **options)

    def solved() -> tuple[Tensor, Tensor]:
        given = {"pose": type(graph.poses)(start)}
        solution = mslsq.solve(problem, given, solver=solver, adjoint=mslsq.Unrolled())
        (gradient,) = torch.autograd.grad(solution.value["pose"].storage.square().sum(), start)
        return gradient, solution.num_steps

    return solved


@elsewhere
@pytest.mark.slow
def test_steps_that_are_taken_again_make_the_iterations_that_they_made(device: Device):
    """Each step asks once, and so does each solve of the backward pass."""
    solved = small_graph(there, max_steps=3)
    for _ in range(2):  # what the first solves take is not known
        device.transfers.clear()
        gradient, steps = solved()
    asked = device.transfers.total()
    assert int(here(steps)) == 3
    around = 5  # before the first step; which were accepted, has one failed, have all moved
    assert REAL is not None or asked <= 2 * 3 + around, device.transfers
    assert_same(gradient, small_graph(unmoved, max_steps=3)()[0], rtol=1e-6)  # as exactly as steps are solved


@elsewhere
def test_steps_that_may_not_ask_are_taken_again_without_asking(device: Device):
    solved = small_graph(there, early_stop=False, max_steps=2)
    for _ in range(2):
        device.transfers.clear()
        solved()
    assert REAL is not None or not device.transfers, device.transfers


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
