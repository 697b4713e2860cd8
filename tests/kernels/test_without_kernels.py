"""Without compiled kernels large problems are solved all the same: by SciPy's SuperLU and PyTorch's operations."""

import pytest
import torch

import mslsq
import mslsq.kernels.library as library
from mslsq.datasets.synthetic_graphs import ring_graph

F64 = torch.float64
EXACT_ITERATIONS = mslsq.linear.ConjugateGradient(tolerance=1e-12, forcing="constant")


@pytest.fixture
def no_kernels(monkeypatch):
    def missing():
        raise library.KernelsMissingError("the compiled kernels are missing")

    monkeypatch.setattr(library, "_library", missing)
    monkeypatch.setattr(library.Kernel, "__call__", lambda self, *_: missing())
    library._missing.cache_clear()
    yield
    library._missing.cache_clear()


def bundle():
    """Seven numbers a camera, three a point; positions that cameras measure in two coordinates each."""
    generator = torch.Generator().manual_seed(0)
    camera = mslsq.Variable("camera", mslsq.Euclidean(7), count=10)
    point = mslsq.Variable("point", mslsq.Euclidean(3), count=150)
    i = torch.arange(10).repeat_interleave(60)
    j = torch.randint(150, (600,), generator=generator)

    @mslsq.cost
    def seen(c, p, *, measured):
        return torch.stack((p[0] + c[6] + 0.1 * c[:3] @ p, p[1] + p[2] - c[6] + 0.1 * c[3:6] @ p)) - measured

    measured = torch.randn(600, 2, generator=generator, dtype=F64)
    problem = mslsq.Problem(
        seen(camera[i], point[j], measured=measured, loss=mslsq.Huber(1.0)),
        mslsq.Prior(camera, target=torch.zeros(10, 7, dtype=F64)),
        mslsq.Prior(point, target=torch.zeros(150, 3, dtype=F64), name="points"),
    )
    start = {"camera": torch.ones(10, 7, dtype=F64), "point": torch.ones(150, 3, dtype=F64)}
    return problem, start


def solved(make, linear, **options):
    problem, start = make()
    solver = mslsq.LevenbergMarquardt(linear_solver=linear, **options)
    return mslsq.solve(problem, start, solver=solver)


def graph():
    made = ring_graph(laps=3, per_lap=40).graph
    return made.problem(loss=mslsq.Huber(1.0)), {"pose": made.poses}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [graph, bundle])
@pytest.mark.parametrize(
    "linear",
    [
        "auto",
        mslsq.linear.SparseCholesky(),
        mslsq.linear.Schur(),
        mslsq.linear.ConjugateGradient(tolerance=1e-13, forcing="constant"),
        mslsq.linear.ConjugateGradient(tolerance=1e-13, forcing="constant", matrix_free=True),
    ],
    ids=["auto", "sparse", "schur", "iterative", "matrix-free"],
)
def test_large_problems_are_solved_with_a_warning(make, linear, no_kernels):
    if make is graph and isinstance(linear, mslsq.linear.Schur):
        pytest.skip("poses touch each other: there is nothing to eliminate")
    expected = solved(make, mslsq.linear.Cholesky())
    with pytest.warns(library.KernelsMissingWarning, match="missing"):
        found = solved(make, linear)
    assert bool(found.converged)
    torch.testing.assert_close(found.cost, expected.cost, rtol=1e-9, atol=0)


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore::mslsq.kernels.library.KernelsMissingWarning")
@pytest.mark.parametrize("linear", ["auto", EXACT_ITERATIONS], ids=["auto", "iterative"])
def test_derivatives_go_through_such_a_solve(linear, no_kernels):
    problem, start = bundle()
    target = torch.randn(600, 2, dtype=F64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    gradients = []
    for chosen in (linear, mslsq.linear.Cholesky()):
        solver = mslsq.LevenbergMarquardt(linear_solver=chosen, gtol=1e-12)
        solution = mslsq.solve(problem, start, {"seen": {"measured": target}}, solver=solver)
        gradients.append(torch.autograd.grad(solution.value["point"].sum(), target)[0])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::mslsq.kernels.library.KernelsMissingWarning")
def test_one_big_residual_is_solved_dense(no_kernels):
    start = torch.zeros(600, dtype=F64)
    solution = mslsq.least_squares(lambda x: torch.cat((x[1:] - x[:-1] - 0.1, x[:1])), start)
    torch.testing.assert_close(solution.value, 0.1 * torch.arange(600, dtype=F64), rtol=1e-5, atol=1e-5)
