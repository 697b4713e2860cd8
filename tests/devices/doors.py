"""Every front door as a function of where its tensors are and of how steps are taken: `solve(place, solver)`.

What is returned is compared between devices: the values, whatever else a user reads, and at the end the solution.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

import mslsq
from mslsq import SE3, linear
from mslsq.adjoint import Adjoint
from mslsq.datasets import ring_graph

F64 = torch.float64
Place = Callable[[Any], Any]
Found = tuple[Any, mslsq.Solution]
Door = Callable[[Place, mslsq.LevenbergMarquardt], Found]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def model(p: Tensor, t: Tensor) -> Tensor:
    return p[0] * torch.exp(p[1] * t) + p[2]


def decay(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return model(p, t) - y


T = torch.linspace(0, 1, 16, dtype=F64)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)
Y = 2 * torch.exp(-1.5 * T) + 0.3 + 0.01 * normal(0, 4, 16)
SPOILED = Y.index_fill(1, torch.tensor([3, 11]), 5.0)
BATCH = {"in_dims": (None, None, 0)}


# ---- least_squares


def fitted(place: Place, solver: Any, y: Tensor = Y, **options: Any) -> Found:
    solution = mslsq.least_squares(decay, place(START), place((T, y)), solver=solver, **BATCH, **place(options))
    return (solution.value, solution.cost), solution


def a_batch_of_fits(place: Place, solver: Any) -> Found:
    return fitted(place, solver)


def one_fit(place: Place, solver: Any) -> Found:
    solution = mslsq.least_squares(decay, place(START), place((T, Y[0])), solver=solver)
    return solution.value, solution


def with_bounds(place: Place, solver: Any) -> Found:
    sides = torch.tensor([0.0, -1.2, -1.0], dtype=F64), torch.tensor([3.0, 0.0, 1.0], dtype=F64)
    found, solution = fitted(place, solver, bounds=sides)
    return (found, solution.active), solution


def with_a_loss(kind: type[mslsq.RobustLoss]) -> Door:
    def solve(place: Place, solver: Any) -> Found:
        return fitted(place, solver, SPOILED, loss=kind(0.5))

    return solve


ROUNDS: dict[str, Any] = {"max_rounds": 8, "descents": 2}
"""Of rejection: enough to see what it asks."""


def without_outliers(place: Place, solver: Any, **options: Any) -> Found:
    outer = mslsq.GraduatedNonConvexity(solver, scale=0.05, **ROUNDS | options)
    found, solution = fitted(place, outer, SPOILED)
    return (found, solution.weights), solution


def without_outliers_of_a_scale_that_is_found(place: Place, solver: Any) -> Found:
    found, solution = fitted(place, mslsq.GraduatedNonConvexity(solver, **ROUNDS), SPOILED)
    return (found, solution.weights), solution


def geman_mcclure(place: Place, solver: Any) -> Found:
    return without_outliers(place, solver, loss="geman_mcclure", descents=1)


def from_many_starts(place: Place, solver: Any) -> Found:
    found = mslsq.multi_start(decay, place(START), place((T, Y)), starts=5, solver=solver, **BATCH)
    return (found.minima, found.num_failed, found.solution.value), found.solution


@cache
def prepared_decays(place: Place, solver: Any) -> Any:
    return mslsq.prepared(decay, place(START), place((T, Y)), solver=solver, **BATCH)


def prepared_residual(place: Place, solver: Any) -> Found:
    solution = prepared_decays(place, solver)(place(START), place((T, Y)))
    return solution.value, solution


# ---- curve_fit


def told(fit: mslsq.CurveFit) -> Found:
    return (fit.value, fit.covariance, fit.standard_errors), fit.solution


def one_curve(place: Place, solver: Any, **options: Any) -> Found:
    return told(mslsq.curve_fit(model, *place((T, Y[0], START)), solver=solver, **place(options)))


def curves(place: Place, solver: Any) -> Found:
    options: dict[str, Any] = {"sigma": place(0.01 + 0.01 * T), "in_dims": (None, 0, None, None)}
    return told(mslsq.curve_fit(model, *place((T, Y, START)), solver=solver, **options))


def a_curve_with_a_loss(place: Place, solver: Any) -> Found:
    return told(mslsq.curve_fit(model, *place((T, SPOILED[0], START)), loss=mslsq.Cauchy(0.05), solver=solver))


def a_curve_without_outliers(place: Place, solver: Any) -> Found:
    outer = mslsq.GraduatedNonConvexity(solver, scale=0.05, **ROUNDS)
    return told(mslsq.curve_fit(model, *place((T, SPOILED[0], START)), solver=outer))


def a_curve_with_errors_of_t(place: Place, solver: Any) -> Found:
    return one_curve(place, solver, sigma=0.01, sigma_t=0.02)


def counts(place: Place, solver: Any) -> Found:
    y = (20 * torch.exp(-1.5 * T)).round()

    def mean(p: Tensor, t: Tensor) -> Tensor:
        return torch.exp(p[0] + p[1] * t)

    start = torch.tensor([2.0, -1.0], dtype=F64)
    return told(mslsq.curve_fit(mean, *place((T, y, start)), noise="poisson", solver=solver))


def named_parameters(place: Place, solver: Any) -> Found:
    def named(p: dict[str, Tensor], t: Tensor) -> Tensor:
        return p["a"] * torch.exp(p["b"] * t) + p["c"]

    start = place({"a": START[0], "b": START[1]})
    options: dict[str, Any] = {"fixed": {"c": 0.3}, "bounds": ({"b": -1.2}, None)}
    return told(mslsq.curve_fit(named, *place((T, Y[0])), start, solver=solver, **options))


def amplitudes_apart(place: Place, solver: Any) -> Found:
    def basis(p: Tensor, t: Tensor) -> Tensor:
        return torch.stack((torch.exp(p[0] * t), torch.ones_like(t)), -1)

    return told(mslsq.separable_fit(basis, *place((T, Y[0], START[1:2])), solver=solver))


@cache
def prepared_fit(place: Place, solver: Any) -> Any:
    return mslsq.prepared(mslsq.curve_fit, model, *place((T, Y[0], START)), solver=solver)


def prepared_curve(place: Place, solver: Any) -> Found:
    return told(prepared_fit(place, solver)(*place((T, Y[0], START))))


# ---- problems

CAMERAS, POINTS = 3, 8


@mslsq.cost
def seen(camera: SE3, point: Tensor, pixel: Tensor) -> Tensor:
    x = camera.act(point)
    return x[:2] / x[2] - pixel


class Scene:
    """A small bundle adjustment, all of its tensors moved by `place`."""

    def __init__(self, place: Place, **options: Any):
        point = normal(0, POINTS, 3) + torch.tensor([0.0, 0.0, 6.0], dtype=F64)
        camera = SE3.exp(0.1 * normal(1, CAMERAS, 6))
        of_camera = torch.arange(CAMERAS).repeat_interleave(POINTS)
        of_point = torch.arange(POINTS).repeat(CAMERAS)
        x = camera[of_camera].act(point[of_point])
        self.pixel = place(x[:, :2] / x[:, 2:] + 0.001 * normal(2, CAMERAS * POINTS, 2)).requires_grad_()
        near = {"camera": camera @ SE3.exp(0.02 * normal(3, CAMERAS, 6)), "point": point + 0.05 * normal(4, POINTS, 3)}
        cameras = mslsq.Variable("camera", SE3, count=CAMERAS)
        points = mslsq.Variable("point", mslsq.Euclidean(3), count=POINTS)
        self.start = place(near)
        self.problem = mslsq.Problem(
            seen(cameras[of_camera], points[of_point], pixel=self.pixel, **options),
            mslsq.Prior(cameras[:2], target=place(camera[:2]), weight=mslsq.Scale(100.0)),
        )

    def solved(self, **options: Any) -> mslsq.Solution:
        return mslsq.solve(self.problem, self.start, **options)


@cache
def scene(place: Place) -> Scene:
    """The same for every call: a problem is stated once."""
    return Scene(place)


def scene_by(solver_of_systems: Any) -> Door:
    """A bundle adjustment by a linear solver."""

    def solve(place: Place, solver: Any) -> Found:
        solver = replace(solver, linear_solver=solver_of_systems)
        solution = scene(place).solved(solver=solver, adjoint=mslsq.Detached())
        return solution.value, solution

    return solve


def a_layer(place: Place, solver: Any) -> Found:
    layer = mslsq.LeastSquaresLayer(scene(place).problem, solver=solver)
    solution = layer(scene(place).start, {"seen": {"pixel": scene(place).pixel.detach()}})
    return solution.value, solution


@cache
def prepared_scene(place: Place, solver: Any) -> Any:
    return mslsq.prepared(scene(place).problem, scene(place).start, solver=solver)


def prepared_problem(place: Place, solver: Any) -> Found:
    solution = prepared_scene(place, solver)(scene(place).start)
    return solution.value, solution


@cache
def rings(place: Place) -> tuple[mslsq.Problem, mslsq.SE2]:
    graph = ring_graph(laps=2, per_lap=6).graph
    start = place(mslsq.SE2(graph.poses.storage.expand(3, *graph.poses.storage.shape).clone()))
    return graph.problem(loss=mslsq.Huber(1.0)).to(start.storage.device), start


def graphs(place: Place, solver: Any) -> Found:
    """A batch of pose graphs."""
    problem, start = rings(place)
    solution = mslsq.solve(problem, {"pose": start}, in_dims=({"pose": 0}, None), solver=solver)
    return solution.value, solution


@mslsq.cost
def away(x: Tensor, target: Tensor) -> Tensor:
    return x - target


@mslsq.cost
def on_the_circle(x: Tensor, radius: Tensor) -> Tensor:
    return (x * x).sum()[None] - radius**2


@mslsq.cost
def below(x: Tensor, limit: Tensor) -> Tensor:
    return x[1:] - limit


@cache
def half_a_circle(place: Place) -> mslsq.Problem:
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    one = torch.ones(1, dtype=F64)
    return mslsq.Problem(
        away(x, target=place(torch.tensor([[2.0, 1.0]], dtype=F64))),
        mslsq.Equality(on_the_circle(x, radius=place(one))),
        mslsq.Inequality(below(x, limit=place(0 * one))),
    )


def under_constraints(place: Place, solver: Any) -> Found:
    """Four targets, the nearest points to them on the lower half of a circle."""
    targets = place(torch.tensor([[[2.0, 1.0]], [[1.0, -2.0]], [[-1.0, -1.0]], [[-2.0, 0.5]]], dtype=F64))
    start = {"x": place(torch.tensor([0.3, -0.4], dtype=F64))}
    dims = (None, {"away": {"target": 0}})
    solution = mslsq.solve(half_a_circle(place), start, {"away": {"target": targets}}, in_dims=dims, solver=solver)
    return (solution.value, solution.multipliers, solution.violation), solution


def differentiated(adjoint: Adjoint) -> Door:
    """Fits, and what `backward` brings to their data."""

    def solve(place: Place, solver: Any) -> Found:
        y = place(Y).clone().requires_grad_()
        options = {"solver": solver, "adjoint": adjoint}
        solution = mslsq.least_squares(decay, place(START), (place(T), y), **BATCH, **options)
        (gradient,) = torch.autograd.grad(solution.value.square().sum() + solution.cost.sum(), y)
        return (solution.value, gradient), solution

    return solve


def differentiated_bounds(place: Place, solver: Any) -> Found:
    lower = place(torch.tensor([0.0, -1.2, -1.0], dtype=F64)).requires_grad_()
    solution = mslsq.least_squares(decay, place(START), place((T, Y)), solver=solver, bounds=(lower, None), **BATCH)
    (gradient,) = torch.autograd.grad(solution.value.square().sum(), lower)
    return (solution.value, gradient), solution


ITERATING: dict[str, Any] = {"tolerance": 1e-10, "forcing": "constant", "max_iterations": 40}
"""More iterations than any of the systems has unknowns left."""
LINEAR = {
    "Cholesky": linear.Cholesky(),
    "QR": linear.QR(),
    "SparseCholesky": linear.SparseCholesky(),
    "Schur": linear.Schur(eliminate="point"),
    "conjugate gradients": linear.ConjugateGradient(**ITERATING),
    "matrix-free": linear.ConjugateGradient(matrix_free=True, **ITERATING),
    "jacobi": linear.ConjugateGradient("jacobi", **ITERATING),
    "schur_jacobi": linear.ConjugateGradient("schur_jacobi", **ITERATING),
}
LOSSES = {
    name: with_a_loss(getattr(mslsq, name))
    for name in ("Huber", "SoftL1", "Cauchy", "Arctan", "Tukey", "GemanMcClure", "Welsch", "Barron")
}
ADJOINTS: dict[str, Door] = {
    "Implicit": differentiated(mslsq.Implicit()),
    "Implicit, Gauss-Newton": differentiated(mslsq.Implicit(hessian="gauss_newton", order=1)),
    "Implicit, least norm": differentiated(mslsq.Implicit(gauge="minimum_norm")),
    "Unrolled": differentiated(mslsq.Unrolled()),
    "Truncated": differentiated(mslsq.Truncated(3)),
    "DirectLossMinimization": differentiated(mslsq.DirectLossMinimization()),
    "of bounds": differentiated_bounds,
}
DOORS: dict[str, Door] = {
    "least_squares, a batch": a_batch_of_fits,
    "least_squares, one": one_fit,
    "bounds": with_bounds,
    **LOSSES,
    "GraduatedNonConvexity": without_outliers,
    "GraduatedNonConvexity, no scale": without_outliers_of_a_scale_that_is_found,
    "GraduatedNonConvexity, Geman-McClure": geman_mcclure,
    "multi_start": from_many_starts,
    "prepared": prepared_residual,
    "curve_fit, one": one_curve,
    "curve_fit, a batch": curves,
    "curve_fit, Cauchy": a_curve_with_a_loss,
    "curve_fit, outliers": a_curve_without_outliers,
    "curve_fit, errors of t": a_curve_with_errors_of_t,
    "curve_fit, counts": counts,
    "curve_fit, fixed and bounds": named_parameters,
    "separable_fit": amplitudes_apart,
    "prepared curve_fit": prepared_curve,
    **{f"solve, {name}": scene_by(one) for name, one in LINEAR.items()},
    "LeastSquaresLayer": a_layer,
    "prepared problem": prepared_problem,
    "solve, a batch of graphs": graphs,
    "constraints": under_constraints,
    **{f"derivatives, {name}": door for name, door in ADJOINTS.items()},
}
