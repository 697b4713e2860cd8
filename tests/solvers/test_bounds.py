"""Bounds on variables: the minimum within them, for every method and storage, and nothing outside of them evaluated."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

import mslsq
from mslsq.datasets import classic
from mslsq.linear import QR, Cholesky
from tests.linear.test_storage import SOLVERS

F64, F32 = torch.float64, torch.float32
INF = math.inf
METHODS = [mslsq.LevenbergMarquardt, mslsq.GaussNewton, mslsq.Dogleg]
T = torch.linspace(0, 3, 30, dtype=F64)
BOXES = [
    ([0.0, 0.0, 0.0], [INF, INF, INF]),
    ([0.0, 0.0, 0.5], [INF, INF, INF]),
    ([0.0, 0.0, 0.0], [1.5, 1.0, 0.1]),
    ([0.0, 2.0, 0.0], [3.0, INF, INF]),
    ([0.0, 0.0, 0.4], [1.4, 0.9, 0.4]),
]


def measured(count: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (30,) if count is None else (count, 30)
    return 2 * torch.exp(-1.2 * T) + 0.3 + 0.05 * torch.randn(shape, generator=generator, dtype=F64)


def decay(p: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * T.to(p)) + p[2] - y


def reference(y: Tensor, lower: Any, upper: Any) -> tuple[np.ndarray, float]:
    """SciPy's `trf`, tightly; an entry with equal bounds is taken out."""
    low, high = np.array(lower), np.array(upper)
    free = low < high

    def residual(z: np.ndarray) -> np.ndarray:
        p = low.copy()
        p[free] = z
        return decay(torch.as_tensor(p), y).numpy()

    start = np.clip(np.array([1.0, 1.0, 0.3]), low + 1e-3, np.minimum(high - 1e-3, 10))[free]
    options = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    found = scipy.optimize.least_squares(residual, start, bounds=(low[free], high[free]), **options)
    value = low.copy()
    value[free] = found.x
    return value, float(found.cost)


def start_within(lower: Any, upper: Any, dtype: torch.dtype = F64) -> Tensor:
    low, high = torch.tensor(lower, dtype=dtype), torch.tensor(upper, dtype=dtype)
    return torch.tensor([1.0, 1.0, 0.3], dtype=dtype).clamp(low, high)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("linear", [Cholesky(), QR()], ids=["Cholesky", "QR"])
@pytest.mark.parametrize("method", METHODS)
def test_the_minimum_is_that_of_scipy(method, linear, box):
    y = measured()
    expected, cost = reference(y, *box)
    solution = mslsq.least_squares(
        decay, start_within(*box), (y,), bounds=box, solver=method(linear_solver=linear, trace="always")
    )
    assert bool(solution.converged)
    torch.testing.assert_close(solution.value, torch.as_tensor(expected), rtol=1e-6, atol=1e-8)
    assert float(solution.cost) <= cost * (1 + 1e-12)
    lower, upper = (torch.tensor(side, dtype=F64) for side in box)
    assert torch.equal(solution.active == -1, solution.value == lower)
    assert torch.equal(solution.active == 1, (solution.value == upper) & (lower < upper))


@pytest.mark.parametrize("kind", METHODS)
def test_watsons_problem_in_gays_box(kind):
    """Of D. M. Gay (1984); the minimum as published, Σr² = 0.37401397e-1."""
    lower = torch.tensor([-1e-5, 0, 0, 0, 0, -3, 0, -3, 0], dtype=F64)
    upper = torch.tensor([1e-5, 0.9, 0.1, 1, 1, 0, 4, 0, 2], dtype=F64)
    watson = classic.PROBLEMS["watson"].residual
    found = mslsq.least_squares(watson, torch.zeros(9, dtype=F64), bounds=(lower, upper), solver=kind())
    assert bool(found.converged) and int((found.active != 0).sum()) == 5
    assert abs(2 * float(found.cost) - 0.37401397e-1) < 2e-9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [None, 5])
def test_no_point_outside_is_evaluated(noting, method, batch):
    """Not even where the library compares its derivatives with PyTorch's, near the start."""
    lower, upper = (torch.tensor(side, dtype=F64) for side in BOXES[2])
    noted, outside = noting(lambda p: (p < lower) | (p > upper))
    options = {"in_dims": (None, 0), "adjoint": mslsq.Implicit()} if batch else {}
    y = measured(batch).requires_grad_()
    solution = mslsq.least_squares(
        lambda p, y: decay(noted(p), y),
        lower.clone(),
        (y,),
        bounds=(lower, upper),
        solver=method(trace="never"),
        **options,
    )
    assert bool(solution.converged.all()) and len(outside) > 5 and not any(outside)


def test_a_residual_that_is_not_finite_outside_is_never_sent_there():
    def residual(p: Tensor, y: Tensor) -> Tensor:
        return p[0] * torch.sqrt(p[1]) * T + torch.log(p[0] + 1e-300) * 0 - y

    solution = mslsq.least_squares(
        residual,
        torch.tensor([1.0, 1.0], dtype=F64),
        (-0.5 * T,),
        bounds=(1e-3, 5.0),
        solver=mslsq.LevenbergMarquardt(),
    )
    assert bool(solution.converged) and bool(torch.isfinite(solution.history.cost[: int(solution.num_steps) + 1]).all())
    assert solution.active.tolist() == [-1, -1]


def test_each_problem_of_a_batch_has_bounds_of_its_own_and_ends_as_alone():
    y = measured(len(BOXES))
    y[3] = torch.nan
    lower, upper = (torch.tensor([box[side] for box in BOXES], dtype=F64) for side in (0, 1))
    start = torch.stack([start_within(*box) for box in BOXES])
    solver = mslsq.LevenbergMarquardt(trace="always")
    together = mslsq.least_squares(decay, start, (y,), in_dims=0, bounds=(lower, upper), solver=solver)
    mapped = torch.vmap(
        lambda x, y, lower, upper: mslsq.least_squares(decay, x, (y,), bounds=(lower, upper), solver=solver)
    )(start, y, lower, upper)
    assert int(together.status[3]) == mslsq.Status.NON_FINITE
    for number, box in enumerate(BOXES):
        alone = mslsq.least_squares(decay, start[number], (y[number],), bounds=box, solver=solver)
        for found in (together, mapped):
            assert int(found.status[number]) == int(alone.status)
            assert torch.equal(found.active[number], alone.active)
            if number != 3:
                torch.testing.assert_close(found.value[number], alone.value, rtol=1e-9, atol=1e-12)


def test_float32():
    solution = mslsq.least_squares(
        decay, start_within(*BOXES[2], F32), (measured().to(F32),), bounds=BOXES[2], solver=mslsq.LevenbergMarquardt()
    )
    expected, _ = reference(measured(), *BOXES[2])
    assert solution.value.dtype == F32 and bool(solution.converged)
    torch.testing.assert_close(solution.value.double(), torch.as_tensor(expected), rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_bounds_that_are_not_met_change_no_step(method):
    y = measured(20)
    start = torch.tensor([1.0, 1.0, 0.3], dtype=F64)
    solver = method(native="never", trace="always")
    free = mslsq.least_squares(decay, start, (y,), in_dims=(None, 0), solver=solver)
    bounded = mslsq.least_squares(decay, start, (y,), in_dims=(None, 0), solver=solver, bounds=(-100.0, 100.0))
    assert torch.equal(bounded.num_steps, free.num_steps) and torch.equal(bounded.status, free.status)
    torch.testing.assert_close(bounded.value, free.value, rtol=1e-12, atol=0)
    assert not bool(bounded.active.any())


@pytest.mark.parametrize("method", METHODS)
def test_once_a_bound_is_met_steps_are_those_of_the_problem_without_that_variable(method):
    def residual(p: Tensor) -> Tensor:
        return torch.stack([torch.exp(p[0]) - 2, p[1] + 1 + p[0], p[0] * p[2] - p[0]])

    def without(p: Tensor) -> Tensor:
        return residual(torch.stack([p[0], torch.zeros_like(p[0]), p[1]]))

    solution = mslsq.least_squares(
        residual, torch.ones(3, dtype=F64), bounds=([-5.0, 0.0, -5.0], None), solver=method()
    )
    reduced = mslsq.least_squares(without, torch.ones(2, dtype=F64), solver=method())
    assert solution.active.tolist() == [0, -1, 0] and bool(solution.converged)
    assert int(solution.num_steps) <= int(reduced.num_steps) + 1


def test_a_variable_may_take_the_influence_of_another_with_it_onto_its_bound():
    """With an amplitude of zero the rate has no influence: its column vanishes, and the step there is no failure."""
    y = -0.2 * torch.exp(-T) + 0.7
    solution = mslsq.least_squares(decay, torch.tensor([1.0, 1.0, 0.3], dtype=F64), (y,), bounds=([0, 0, -INF], None))
    assert bool(solution.converged) and float(solution.value[0]) == 0 and int(solution.num_steps) < 20
    torch.testing.assert_close(solution.value[2], y.mean(), rtol=1e-9, atol=0)


@mslsq.cost
def seen(camera: mslsq.Euclidean, point: mslsq.Euclidean, pixel: Tensor) -> Tensor:
    return torch.stack([camera[0] * point[0] + point[1], camera[1] + point[0] * point[1], camera[0]]) - pixel


def bounded_problem(lower: Any = None, upper: Any = None) -> tuple[mslsq.Problem, dict[str, Tensor]]:
    camera = mslsq.Variable("camera", mslsq.Euclidean(2), count=2)
    point = mslsq.Variable("point", mslsq.Euclidean(2), count=8, lower=lower, upper=upper)
    generator = torch.Generator().manual_seed(0)
    i, j = torch.arange(2).repeat_interleave(8), torch.arange(8).repeat(2)
    pixels = torch.randn(16, 3, generator=generator, dtype=F64)
    start = {
        "camera": torch.randn(2, 2, generator=generator, dtype=F64),
        "point": torch.rand(8, 2, generator=generator, dtype=F64) * 0.2,
    }
    return mslsq.Problem(seen(camera[i], point[j], pixel=pixels, name="seen"), camera.fixed([0])), start


@pytest.mark.parametrize(
    "linear",
    SOLVERS,
    ids=lambda linear: f"{type(linear).__name__}{getattr(linear, 'backend', '')}{getattr(linear, 'matrix_free', '')}",
)
@pytest.mark.parametrize("method", METHODS)
def test_every_storage_finds_the_same(method, linear):
    lower = torch.tensor([-0.1, -INF], dtype=F64)
    problem, start = bounded_problem(lower, 0.3)
    expected = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(linear_solver=Cholesky()))
    solution = mslsq.solve(problem, start, solver=method(linear_solver=linear))
    assert bool(expected.converged) and bool(solution.converged)
    torch.testing.assert_close(solution.cost, expected.cost, rtol=1e-9, atol=0)
    torch.testing.assert_close(solution.value["point"], expected.value["point"], rtol=1e-4, atol=1e-5)
    assert torch.equal(solution.active["point"], expected.active["point"])
    assert int((solution.active["point"] == -1).sum()) > 1 and int((solution.active["point"] == 1).sum()) > 1
    assert not bool(solution.active["camera"].any())


def test_data_replace_the_bounds_of_one_call_and_may_be_mapped():
    problem, start = bounded_problem(-0.1, 0.3)
    own = mslsq.solve(problem, start)
    upper = torch.tensor([0.3, 0.25], dtype=F64)
    both = mslsq.solve(
        problem,
        start,
        data={"bounds": {"point": (-0.1, upper)}},
        in_dims=(None, {"bounds": {"point": (None, 0)}}),
    )
    torch.testing.assert_close(both.value["point"][0], own.value["point"], rtol=1e-6, atol=1e-8)
    assert float(both.value["point"][1].max()) == 0.25
    free = mslsq.solve(problem, start, data={"bounds": {"point": (None, None)}})
    assert free.active == () and float(free.value["point"].max()) > 0.3


def test_large_residuals_that_are_compressed_have_bounds():
    count = 400
    target = torch.linspace(-1, 1, count, dtype=F64)

    def residual(x: Tensor) -> Tensor:
        return torch.cat([x - target, 0.5 * (x[1:] - x[:-1])])

    solution = mslsq.least_squares(residual, torch.zeros(count, dtype=F64), bounds=(-0.5, 0.25))
    matrix = np.vstack([np.eye(count), 0.5 * np.diff(np.eye(count), axis=0)])
    expected = scipy.optimize.lsq_linear(
        matrix, np.concatenate([target.numpy(), np.zeros(count - 1)]), bounds=(-0.5, 0.25), tol=1e-14
    )
    assert bool(solution.converged)
    torch.testing.assert_close(solution.value, torch.as_tensor(expected.x), rtol=1e-6, atol=1e-7)
    assert int((solution.active != 0).sum()) > 100


def test_robust_losses_and_blocks_of_programs():
    y = measured(40)
    y[:, ::7] += 3.0

    def call(native: str) -> mslsq.Solution:
        solver = mslsq.LevenbergMarquardt(native=native, trace="always")  # pyright: ignore[reportArgumentType]
        start = torch.tensor([1.0, 1.0, 0.3], dtype=F64)
        options = {"loss": mslsq.Huber(0.1), "bounds": ([0, 0, 0.35], [INF, 1.5, INF]), "project_start": True}
        return mslsq.least_squares(decay, start, (y,), in_dims=(None, 0), solver=solver, **options)

    plain, native = call("never"), call("wait")
    assert bool(plain.converged.all()) and bool((plain.active != 0).any())
    torch.testing.assert_close(native.value, plain.value, rtol=1e-6, atol=1e-8)


def test_an_unbounded_solve_has_no_active_bounds():
    assert mslsq.least_squares(decay, torch.ones(3, dtype=F64), (measured(),)).active == ()
    same = mslsq.least_squares(decay, torch.ones(3, dtype=F64), (measured(),), bounds=(None, INF))
    assert same.active == ()


ROSENBROCK = [
    ([-2.0, 1.0], ([-INF, -1.5], INF)),
    ([2.0, 2.0], ([-INF, 1.5], INF)),
    ([-2.0, 2.0], ([-INF, 1.5], INF)),
    ([0.0, 2.0], ([-INF, 1.5], [1.0, INF])),
    ([2.0, 2.0], ([1.0, 1.5], [3.0, 3.0])),
    ([-1.2, 1.0], ([-50.0, 0.0], [0.5, 100.0])),
]
"""The bounded Rosenbrock problems of SciPy's own tests of `least_squares`."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("start", "bounds"), ROSENBROCK)
def test_rosenbrock_within_the_bounds_of_scipys_tests(method, start, bounds):
    def residual(x: Tensor) -> Tensor:
        return torch.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])

    x0 = torch.tensor(start, dtype=F64)
    solution = mslsq.least_squares(residual, x0, bounds=bounds, solver=method(gtol=1e-9))
    assert bool(solution.converged) and float(solution.gradient_norm) < 1e-5
    low, high = (np.broadcast_to(np.asarray(side, dtype=float), 2) for side in bounds)
    best = min(
        scipy.optimize.least_squares(
            lambda x: residual(torch.as_tensor(x)).numpy(),
            start,
            bounds=(low, high),
            method=name,
            xtol=1e-15,
            ftol=1e-15,
        ).cost
        for name in ("trf", "dogbox")
    )
    assert float(solution.cost) <= best * (1 + 1e-6) + 1e-12
