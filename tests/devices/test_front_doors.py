"""Every front door on another device: the CPU's numbers, no tensor of two devices, few questions to the device."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import mslsq
from mslsq import linear
from mslsq.datasets import ring_graph
from mslsq.linear.block_structure import analyze
from tests.devices.claimed import NAME, REAL, Device, NoFormError, TwoDevicesError, assert_same, here, there
from tests.devices.doors import BATCH, DOORS, LOSSES, START, T, Y, decay, scene
from tests.devices.elsewhere import elsewhere

pytestmark = pytest.mark.fake_cuda
F64 = torch.float64

STEPS = 8
"""Enough for every door."""

AROUND = 2
"""Questions of a solve besides one for each step."""

MORE = {
    # What a fit is asked of its arguments and its covariance, once a call.
    "curve_fit, errors of t": 4,
    "curve_fit, counts": 2,
    "curve_fit, fixed and bounds": 1,
    "separable_fit": 7,  # two solves, the steps of the second are told
    "multi_start": 20,  # so are those of the last
    # Each descent is a solve of its own, and compared with the one before.
    "GraduatedNonConvexity": 8,
    "GraduatedNonConvexity, no scale": 8,
    "GraduatedNonConvexity, Geman-McClure": 8,
    "curve_fit, outliers": 10,
    # Derivatives are asked for once a call: does each exist, is a problem just short of its minimum?
    **{name: 8 for name in DOORS if name.startswith("derivatives")},
    "prepared problem": 4,  # whose pixels require grad
}

ITERATING = {f"solve, {name}" for name in ("conjugate gradients", "matrix-free", "jacobi", "schur_jacobi")}
"""Doors whose steps iterate: they make a number of iterations that the loop has asked for."""


def unmoved(tree: Any) -> Any:
    return tree


def asked_by(name: str, solver: mslsq.LevenbergMarquardt, device: Device) -> tuple[int, int]:
    """How often a door asks the device in a call like one before, and how many steps it takes; what it finds is what it
    finds on the CPU."""
    door = DOORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        door(there, solver)  # whatever is planned is planned once
        counts = []
        for _ in range(2):  # in one call a recording may be begun: once it has taken enough time
            device.transfers.clear()
            found, solution = door(there, solver)
            counts.append(device.transfers.total())
        asked = min(counts)
        expected, _ = door(unmoved, solver)
    assert_same(found, expected)
    return asked, int(here(solution.num_steps).max())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in DOORS if name != "constraints"])
@elsewhere
def test_a_step_asks_the_device_once(name: str, device: Device):
    asked, steps = asked_by(name, mslsq.LevenbergMarquardt(), device)
    assert asked <= steps + AROUND + MORE.get(name, 0), device.transfers


@pytest.mark.slow
@elsewhere
def test_a_round_under_constraints_asks_once_beside_its_steps(device: Device):
    asked, steps = asked_by("constraints", mslsq.LevenbergMarquardt(), device)
    rounds = 4  # of seven or eight steps
    assert asked <= steps + rounds + AROUND + 2, device.transfers


ALIKE = {*LOSSES, "prepared", "prepared problem", "prepared curve_fit", "curve_fit, Cauchy", "curve_fit, outliers"}
"""Doors behind which a solve without an early stop does nothing that another one does not."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ITERATING - {"solve, matrix-free"} else ())
        for name in DOORS
        if name != "constraints" and name not in ALIKE
    ],
)
@elsewhere
def test_without_an_early_stop_the_device_is_never_asked(name: str, device: Device):
    asked, _ = asked_by(name, mslsq.LevenbergMarquardt(early_stop=False, max_steps=STEPS), device)
    assert asked == 0, device.transfers


@elsewhere
def test_a_start_outside_of_its_bounds_is_nan_where_it_may_not_be_asked(device: Device):
    lower = torch.tensor([[0.0, -2.0, -1.0], [0.0, -0.5, -1.0], [0.0, -2.0, -1.0], [0.0, -2.0, 1.0]], dtype=F64)
    solver = mslsq.LevenbergMarquardt(early_stop=False, max_steps=STEPS)
    given = {"bounds": there((lower, lower + 4)), "solver": solver, **BATCH}
    mslsq.least_squares(decay, there(START), there((T, Y)), **given)  # whatever is planned is planned once
    device.transfers.clear()
    solution = mslsq.least_squares(decay, there(START), there((T, Y)), **given)
    assert REAL is not None or not device.transfers
    inside = torch.tensor([True, False, True, False])  # -1 is below -0.5, 0 below 1
    found = here(solution)
    assert torch.equal(found.status == mslsq.Status.NON_FINITE, ~inside)
    assert torch.equal(found.value.isnan().all(1), ~inside) and torch.equal(found.cost.isnan(), ~inside)
    alone = mslsq.least_squares(decay, START, (T, Y[inside]), bounds=(lower[0], lower[0] + 4), solver=solver, **BATCH)
    torch.testing.assert_close(found.value[inside], alone.value)
    with pytest.raises(mslsq.ProblemError, match="outside of its bounds"):
        mslsq.least_squares(decay, there(START), there((T, Y)), **given | {"solver": mslsq.LevenbergMarquardt()})


@elsewhere
def test_what_cuda_refuses_is_refused(device: Device):
    if REAL is not None:
        pytest.skip("it does")
    x, y = there(torch.ones(3)), torch.ones(3)
    with pytest.raises(TwoDevicesError, match=r"aten::add.*\(3,\) on cpu"):
        x + y
    with pytest.raises((RuntimeError, TypeError), match="numpy"):
        x.numpy()
    with pytest.raises(NoFormError, match="mkldnn"):
        torch.ops.aten.mkldnn_linear(x[None], x[None])
    structure = analyze(np.array([2, 1]), np.array([1]), np.array([0]), device=torch.device("cpu"))
    values = there(torch.ones(1, structure.num_values, dtype=F64))
    with pytest.raises(ValueError, match="in the CPU's memory"):
        linear.SparseCholesky().bound(structure, {}).solve(values, there(torch.ones(1, 3, dtype=F64)), None)


@elsewhere
def test_questions_inside_of_operators_are_counted(device: Device):
    """Conjugate gradients are one operator; alone, its loop asks the device by itself."""
    if REAL is not None:
        pytest.skip("a GPU does not count")
    size = 3
    structure = analyze(np.array([size]), np.array([0]), np.array([0]), device=torch.device(f"{NAME}:0"))
    solver = linear.ConjugateGradient("jacobi", tolerance=1e-10).bound(structure, {})
    factor = torch.tril(torch.ones(size, size, dtype=F64))
    matrix, rhs = (factor @ factor.T).reshape(1, -1), torch.ones(1, size, dtype=F64)
    given = there(matrix), there(rhs), None
    solver.solve(*given)
    device.transfers.clear()
    step, _ = solver.solve(*given)
    assert device.transfers.total() >= 1
    assert_same(step, -torch.cholesky_solve(rhs.mT, factor).mT)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("early_stop", [True, False])
@elsewhere
@pytest.mark.slow
def test_a_reduced_system_is_iterated_on_without_more_questions(early_stop: bool, device: Device):
    schur = linear.Schur(eliminate="point", reduced="iterative")
    solver = mslsq.LevenbergMarquardt(linear_solver=schur, early_stop=early_stop, max_steps=20 if early_stop else 2)

    def adjusted(place: Any) -> mslsq.Solution:
        return scene(place).solved(solver=solver, adjoint=mslsq.Detached())

    adjusted(there)
    device.transfers.clear()
    found = adjusted(there)
    asked, steps = device.transfers.total(), int(here(found.num_steps).max())
    assert REAL is not None or asked <= (steps + AROUND if early_stop else 0), device.transfers
    if early_stop:  # else the first steps are of another accuracy
        assert_same(found.cost, adjusted(unmoved).cost)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("preconditioner", ["block_jacobi", "jacobi"])
@elsewhere
@pytest.mark.slow
def test_iterations_that_were_not_enough_are_made_up_for(preconditioner: Any, device: Device):
    """Steps of this ring take up to fifty iterations; the first ones are allowed far fewer."""
    graph = ring_graph(laps=3, per_lap=10).graph
    solver = mslsq.LevenbergMarquardt(linear_solver=linear.ConjugateGradient(preconditioner))
    expected = mslsq.solve(graph.problem(), {"pose": graph.poses}, solver=solver)
    problem = graph.problem().to(f"{NAME}:0")
    start = {"pose": there(graph.poses)}
    mslsq.solve(problem, start, solver=solver)
    device.transfers.clear()
    found = mslsq.solve(problem, start, solver=solver)
    asked, steps = device.transfers.total(), int(here(found.num_steps))
    assert REAL is not None or asked <= steps + AROUND, device.transfers
    assert found.converged and steps <= int(expected.num_steps) + 6
    assert_same(found.cost, expected.cost, rtol=1e-9)
