"""How often a device is asked: all front doors x linear solvers x adjoints, counted on the claimed device.

    python -m tests.devices.questions                 # more than an hour of one core; a table to paste
    python -m tests.devices.questions --door "a batch of fits" --early-stop

Every combination is solved, differentiated and counted in a call like one before it: forward, the questions beyond one
for each step, with the steps in brackets; backward, the questions of one reverse pass. Without an early stop both
have to be zero. What is refused here has to be refused on the CPU as well. `test_questions.py` has a few of them.
"""

import argparse
import itertools
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

import mslsq
from mslsq import linear
from mslsq.adjoint import Adjoint
from tests.devices.claimed import Device, claimed_device, here, there
from tests.devices.doors import (
    BATCH,
    F64,
    SPOILED,
    START,
    Place,
    T,
    Y,
    decay,
    half_a_circle,
    model,
    normal,
    rings,
)

STEPS = 3
"""Of a solve without an early stop."""
AROUND = 2
"""Questions of a solve besides one for each step."""
ITERATING: dict[str, Any] = {"tolerance": 1e-8, "forcing": "constant", "max_iterations": 10}
"""As many as the largest of the systems has unknowns."""
LINEAR: dict[str, linear.LinearSolver | str] = {
    "auto": "auto",
    "Cholesky": linear.Cholesky(),
    "QR": linear.QR(),
    "UnrolledCholesky": linear.UnrolledCholesky(),
    "SparseCholesky": linear.SparseCholesky(),
    "Schur": linear.Schur(eliminate="point"),
    "Schur, iterated": linear.Schur(eliminate="point", reduced="iterative"),
    "conjugate gradients": linear.ConjugateGradient(**ITERATING),
    "matrix-free": linear.ConjugateGradient(matrix_free=True, **ITERATING),
    "jacobi": linear.ConjugateGradient("jacobi", **ITERATING),
    "schur_jacobi": linear.ConjugateGradient("schur_jacobi", **ITERATING),
}
ADJOINTS: dict[str, Adjoint] = {
    "Detached": mslsq.Detached(),
    "Implicit": mslsq.Implicit(),
    "Gauss-Newton": mslsq.Implicit(hessian="gauss_newton", order=1),
    "least norm": mslsq.Implicit(gauge="minimum_norm"),
    "Unrolled": mslsq.Unrolled(),
    "Truncated": mslsq.Truncated(2),
    "DirectLoss": mslsq.DirectLossMinimization(),
}
How = dict[str, Any]
"""`solver` and `adjoint`."""
Found = tuple[Any, mslsq.Solution, Tensor]
"""What is differentiated, the solution, and with respect to what."""
Door = Callable[[Place, How], Found]


def of_fits(data: Tensor, **options: Any) -> Door:
    def solve(place: Place, how: How) -> Found:
        y = place(data).clone().requires_grad_()
        batch = BATCH if data.ndim == 2 else {}
        given = {name: place(option) for name, option in options.items()}
        solution = mslsq.least_squares(decay, place(START), (place(T), y), **batch, **given, **how)
        return solution.value, solution, y

    return solve


def of_curves(data: Tensor) -> Door:
    def solve(place: Place, how: How) -> Found:
        y = place(data).clone().requires_grad_()
        dims = {"in_dims": (None, 0, None, None)} if data.ndim == 2 else {}
        fit = mslsq.curve_fit(model, place(T), y, place(START), sigma=place(0.01 + 0.01 * T), **dims, **how)
        return fit.value, fit.solution, y

    return solve


def without_outliers(place: Place, how: How) -> Found:
    solver = mslsq.GraduatedNonConvexity(how["solver"], scale=0.05, max_rounds=4, descents=1)
    return of_fits(SPOILED)(place, how | {"solver": solver})


def from_many_starts(place: Place, how: How) -> Found:
    y = place(Y).clone().requires_grad_()
    found = mslsq.multi_start(decay, place(START), (place(T), y), starts=3, **BATCH, **how)
    return found.solution.value, found.solution, y


@cache
def prepared_by(place: Place, solver: Any, adjoint: Any) -> Any:
    return mslsq.prepared(decay, place(START), place((T, Y)), solver=solver, adjoint=adjoint, **BATCH)


def prepared(place: Place, how: How) -> Found:
    y = place(Y).clone().requires_grad_()
    solution = prepared_by(place, how["solver"], how["adjoint"])(place(START), (place(T), y))
    return solution.value, solution, y


@mslsq.cost
def between(camera: Tensor, point: Tensor, seen: Tensor) -> Tensor:
    return torch.tanh(point - camera) - seen


class Sight:
    """Points seen by two cameras, in the plane: of a bundle adjustment what matters to a solver, at little cost."""

    def __init__(self, place: Place):
        of_camera, of_point = torch.arange(2).repeat_interleave(3), torch.arange(3).repeat(2)
        camera, point = 0.3 * normal(1, 2, 2), 0.5 * normal(2, 3, 2)
        seen = torch.tanh(point[of_point] - camera[of_camera]) + 0.01 * normal(3, 6, 2)
        self.seen = place(seen).requires_grad_()
        cameras, points = (mslsq.Variable(*named) for named in SIGHTED)
        self.start = place({"camera": camera + 0.05, "point": point - 0.05})
        self.problem = mslsq.Problem(
            between(cameras[of_camera], points[of_point], seen=self.seen),
            mslsq.Prior(cameras, target=place(camera), weight=mslsq.Scale(10.0)),
        )


SIGHTED = ("camera", mslsq.Euclidean(2), 2), ("point", mslsq.Euclidean(2), 3)
sight = cache(Sight)
"""The same for every call: a problem is stated once."""


def adjusted(place: Place, how: How) -> Found:
    own = sight(place)
    solution = mslsq.solve(own.problem, own.start, **how)
    return solution.value["point"], solution, own.seen


def layer(place: Place, how: How) -> Found:
    own = sight(place)
    solution = mslsq.LeastSquaresLayer(own.problem, **how)(own.start, {"between": {"seen": own.seen}})
    return solution.value["point"], solution, own.seen


def graphs(place: Place, how: How) -> Found:
    problem, start = rings(place)
    moved = start.storage.clone().requires_grad_()
    solution = mslsq.solve(problem, {"pose": mslsq.SE2(moved)}, in_dims=({"pose": 0}, None), **how)
    return solution.value["pose"].storage, solution, moved


def constrained(place: Place, how: How) -> Found:
    targets = place(torch.tensor([[[2.0, 1.0]], [[1.0, -2.0]]], dtype=F64)).requires_grad_()
    start = {"x": place(torch.tensor([0.3, -0.4], dtype=F64))}
    data, dims = {"away": {"target": targets}}, (None, {"away": {"target": 0}})
    solution = mslsq.solve(half_a_circle(place), start, data, in_dims=dims, **how)
    return solution.value["x"], solution, targets


SIDES = torch.tensor([0.0, -1.2, -1.0], dtype=F64), torch.tensor([3.0, 0.0, 1.0], dtype=F64)
DOORS: dict[str, Door] = {
    "bundle adjustment": adjusted,
    "a batch of fits": of_fits(Y),
    "graphs, a batch": graphs,
    "one fit": of_fits(Y[0]),
    "fits with bounds": of_fits(Y, bounds=SIDES),
    "curve_fit, one": of_curves(Y[0]),
    "constraints": constrained,
    "GraduatedNonConvexity": without_outliers,
    "multi_start": from_many_starts,
    "curve_fit, a batch": of_curves(Y),
    "prepared": prepared,
    "layer": layer,
    "fits with Cauchy": of_fits(SPOILED, loss=mslsq.Cauchy(0.5)),
}


@dataclass(frozen=True)
class Count:
    """Of a combination: steps, questions of the solve, questions of its reverse pass."""

    steps: int
    forward: int
    backward: int

    def excess(self, early_stop: bool) -> int:
        """What is asked in a solve beyond one question a step."""
        return self.forward - (self.steps if early_stop else 0)


def how(linear_solver: str, adjoint: str, early_stop: bool) -> How:
    solver = mslsq.LevenbergMarquardt(linear_solver=LINEAR[linear_solver])
    if not early_stop:
        solver = replace(solver, early_stop=False, max_steps=STEPS)
    return {"solver": solver, "adjoint": ADJOINTS[adjoint]}


def counted(device: Device, door: str, linear_solver: str, adjoint: str, early_stop: bool) -> Count:
    """In a call like one before it; in one like two, where that asked more often than it may."""
    given = how(linear_solver, adjoint, early_stop)
    counts: list[tuple[int, int]] = []
    steps = 0
    while len(counts) < 2 or (len(counts) == 2 and sum(counts[-1]) > (steps + AROUND if early_stop else 0)):
        device.transfers.clear()
        value, solution, by = DOORS[door](there, given)
        forward = device.transfers.total()
        device.transfers.clear()
        if value.requires_grad:
            torch.autograd.grad(value.square().sum(), by, allow_unused=True)
        counts.append((forward, device.transfers.total()))
        steps = int(here(solution.num_steps).max())
    return Count(steps, *(min(each[1:]) for each in zip(*counts, strict=True)))


def cell(device: Device, early_stop: bool, *names: str) -> str:
    """Of the table: questions beyond one a step, and of the reverse pass; what is refused, by the error's name."""
    try:
        count = counted(device, *names, early_stop)
    except Exception as error:
        try:
            DOORS[names[0]](lambda tree: tree, how(*names[1:], early_stop))
        except type(error):
            return f"refused ({type(error).__name__})"
        return f"FAILS HERE ALONE ({type(error).__name__}: {str(error).splitlines()[0][:60]})"
    return f"{count.excess(early_stop):+d}/{count.backward} ({count.steps})" if early_stop else (
        f"{count.forward}/{count.backward}"
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--door", choices=DOORS, action="append", help="this door alone")
    parser.add_argument("--linear", choices=LINEAR, action="append", help="this linear solver alone")
    parser.add_argument("--early-stop", action="store_true", help="with an early stop alone")
    parser.add_argument("--no-early-stop", action="store_true", help="without an early stop alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    stops = [True] if options.early_stop else [False] if options.no_early_stop else [False, True]
    began = time.process_time()
    with claimed_device() as device:
        print(f"| door | linear solver | early stop | {' | '.join(ADJOINTS)} |")
        print("|---" * (3 + len(ADJOINTS)) + "|")
        for door, solver, early_stop in itertools.product(options.door or DOORS, options.linear or LINEAR, stops):
            cells = [cell(device, early_stop, door, solver, adjoint) for adjoint in ADJOINTS]
            print(f"| {door} | {solver} | {'yes' if early_stop else 'no'} | {' | '.join(cells)} |", flush=True)
    print(f"\n{time.process_time() - began:.0f} s of processor time.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
