"""What a linearization keeps for a linear solver: every storage tells the same of one problem."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Bool
from torch import Tensor

import mslsq
from mslsq.linear import QR, Cholesky, ConjugateGradient, Schur, SparseCholesky
from mslsq.linear.dense import DenseSolver
from mslsq.linear.holding import Holding
from mslsq.linear.storage import DenseNormal, Storage, Vector
from mslsq.linearize.linearizer import Linearization, Linearizer
from mslsq.solvers.task import Task

F64 = torch.float64
SOLVERS = [
    Cholesky(),
    QR(),
    SparseCholesky(),
    SparseCholesky("superlu"),
    Schur(eliminate="point"),
    ConjugateGradient(),
    ConjugateGradient(matrix_free=True),
]


@mslsq.cost
def seen(camera: mslsq.Euclidean, point: mslsq.Euclidean, pixel: Tensor) -> Tensor:
    return torch.stack([camera[0] * point[0] + point[1], camera[1] + point[0] * point[1], camera[0]]) - pixel


def problem_and_start(count: int = 5) -> tuple[mslsq.Problem, dict[str, Tensor]]:
    camera = mslsq.Variable("camera", mslsq.Euclidean(2), count=2)
    point = mslsq.Variable("point", mslsq.Euclidean(2), count=count)
    generator = torch.Generator().manual_seed(0)
    i, j = torch.arange(2).repeat_interleave(count), torch.arange(count).repeat(2)
    pixels = torch.randn(2 * count, 3, generator=generator, dtype=F64)
    start = {
        "camera": torch.randn(2, 2, generator=generator, dtype=F64),
        "point": torch.randn(count, 2, generator=generator, dtype=F64),
    }
    return mslsq.Problem(seen(camera[i], point[j], pixel=pixels, name="seen")), start


def at_start(linear: mslsq.linear.LinearSolver, monkeypatch) -> tuple[Linearizer, Linearization, Tensor]:
    """The problem as the solver is bound to it: its linearization and Hessian at the start."""
    from mslsq.solvers import run

    found = []
    real = run.planned

    def planned(task: Task, values, inputs, *rest):
        plan, linearizer, prepared = real(task, values, inputs, *rest)
        model = linearizer.linearize(values, prepared)
        found.append((linearizer, model, linearizer.hessian(values, prepared)))
        return plan, linearizer, prepared

    with monkeypatch.context() as patched:
        patched.setattr(run, "planned", planned)
        problem, start = problem_and_start()
        mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(linear_solver=linear, max_steps=0))
    return found[0]


def linearized(linear: mslsq.linear.LinearSolver, monkeypatch) -> tuple[Storage, Tensor, Tensor, Tensor]:
    """The storage of the solver bound to the problem, its matrix, a Hessian, and the gradient, all at the start."""
    linearizer, model, hessian = at_start(linear, monkeypatch)
    return linearizer.linear_solver.storage, model.matrix, hessian, model.gradient


@pytest.mark.parametrize(
    "linear", SOLVERS, ids=lambda linear: linear.summary() if not isinstance(linear, Schur) else "Schur"
)
def test_every_storage_tells_the_same(linear, monkeypatch):
    reference, normal, exact, gradient = linearized(Cholesky(), monkeypatch)
    storage, matrix, hessian, own_gradient = linearized(linear, monkeypatch)
    A, H = normal[0, 0], exact[0, 0]
    v = torch.randn(1, len(A), generator=torch.Generator().manual_seed(1), dtype=F64)
    assert isinstance(reference, DenseNormal)
    assert torch.allclose(own_gradient, gradient, rtol=1e-12)
    assert torch.allclose(storage.diagonal(matrix)[0], A.diagonal(), rtol=1e-12)
    assert torch.allclose(storage.quadratic(matrix, v), v @ A @ v[0], rtol=1e-12)
    assert torch.allclose(storage.product(hessian, v)[0], H @ v[0], rtol=1e-12)
    assert bool((storage.magnitude(matrix, v)[0] >= (A.abs() @ v[0].abs()) * (1 - 1e-12)).all())
    assert storage.is_dense == (matrix.ndim == 4)
    free = torch.arange(len(A)) % 3 != 1
    assert torch.allclose(storage.normal_product(matrix, v)[0], A @ v[0], rtol=1e-12)
    inner = H * free[:, None] * free
    own = storage.restricted(hessian, free[None])
    times = storage.product(own, v)[0]
    assert torch.allclose(times * free, inner @ v[0], rtol=1e-12, atol=1e-12)
    assert bool((times[~free] / v[0][~free] >= 1).all())


@pytest.mark.parametrize(
    "linear", SOLVERS, ids=lambda linear: linear.summary() if not isinstance(linear, Schur) else "Schur"
)
def test_free_columns_are_solved_for_where_the_others_make_a_move(linear, monkeypatch):
    _, normal, _, gradient = linearized(Cholesky(), monkeypatch)
    linearizer, model, _ = at_start(linear, monkeypatch)
    own, A = linearizer.linear_solver, normal[0, 0]
    free = torch.arange(len(A)) % 3 != 1
    move = torch.randn(len(A), generator=torch.Generator().manual_seed(2), dtype=F64) * ~free
    damping = 1e-2 * A.diagonal()
    rhs = own.storage.moved(model.matrix, model.rhs, free[None], move[None])
    holding = Holding(own.to_accuracy(torch.full((1,), 1e-13, dtype=F64)), free[None])
    step, solved = holding.solve(model.matrix, rhs, damping[None])
    inner = (A + damping.diag())[free][:, free]
    expected = torch.zeros_like(move).masked_scatter(free, torch.linalg.solve(inner, -(gradient[0] + A @ move)[free]))
    assert bool(solved.all())
    torch.testing.assert_close(step[0], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("away", [0.0, 1.0])
def test_the_first_damping_does_not_depend_on_the_storage(count, away):
    problem, start = problem_and_start(count)
    start = {name: value + away for name, value in start.items()}
    first = {
        float(
            mslsq.solve(
                problem, start, solver=mslsq.LevenbergMarquardt(linear_solver=linear, max_steps=1)
            ).history.damping[0]
        )
        for linear in (Cholesky(), QR(), SparseCholesky(), Schur(eliminate="point"))
    }
    assert len(first) == 1


@dataclass(frozen=True)
class LU(DenseSolver):
    """All that a new linear solver takes: what it keeps, and how it solves."""

    @property
    def storage(self) -> Storage:
        return DenseNormal()

    def solve(self, matrix: Tensor, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        if damping is not None:
            matrix = matrix + torch.diag_embed(damping.reshape(matrix.shape[:-1]))
        step, info = torch.linalg.solve_ex(matrix, rhs.reshape(matrix.shape[:-1]))
        return -step.reshape(rhs.shape), (info == 0).all(-1)


def test_a_new_linear_solver_is_one_class():
    problem, start = problem_and_start()
    i, j = torch.arange(2).repeat_interleave(5), torch.arange(5).repeat(2)
    c, p = start["camera"][i], start["point"][j]
    exact = torch.stack([c[:, 0] * p[:, 0] + p[:, 1], c[:, 1] + p[:, 0] * p[:, 1], c[:, 0]], 1)
    noise = torch.randn(10, 3, generator=torch.Generator().manual_seed(2), dtype=F64)
    y = (exact + 1e-3 * noise).requires_grad_()
    found = []
    for linear in (LU(), Cholesky()):
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        solution = mslsq.solve(problem, start, {"seen": {"pixel": y}}, solver=solver)
        assert bool(solution.differentiable)
        found.append((solution.value["point"], torch.autograd.grad(solution.value["point"].sum(), y)[0]))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-8)
