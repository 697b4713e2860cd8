"""Conjugate gradients as a linear solver: the steps of direct ones, inexact steps to the same optimum, exact
derivatives."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, vmap

import mslsq
from mslsq.datasets.bal import read_bal
from mslsq.linear.block_products import block_product, block_table, product, symmetric_product_of, transposed
from mslsq.linear.block_structure import analyze
from mslsq.linear.independent_kinds import EliminationError
from mslsq.linear.iterative.block_rows import (
    HessianBlocks,
    JacobianBlocks,
    Term,
    TermPlan,
    added_normal,
    added_symmetric,
)
from tests.linear.sparse.test_solver import POINT, graph_function, ring, with_landmarks

ConjugateGradient = mslsq.linear.ConjugateGradient
F64 = torch.float64
ALL_OPTIONS = [
    {"preconditioner": "block_jacobi"},
    {"preconditioner": "jacobi"},
    {"preconditioner": "schur_jacobi"},
    {"matrix_free": True},
    {"matrix_free": True, "preconditioner": "jacobi"},
]


def sightings(dtype: torch.dtype = F64) -> tuple[mslsq.Problem, dict]:
    """Poses and landmarks that do not touch each other, robust, the first pose held."""
    problem, values = with_landmarks()
    costs = [cost for cost in problem if not isinstance(cost, mslsq.Difference)]
    pose = problem.variables["pose"]
    values = {name: value.to(dtype) for name, value in values.items()}
    return mslsq.Problem(*costs, pose.fixed([0])).to(dtype), values


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", ALL_OPTIONS)
@pytest.mark.parametrize("solver", [mslsq.LevenbergMarquardt, mslsq.GaussNewton, mslsq.Dogleg])
def test_tight_steps_are_those_of_dense_cholesky(options, solver):
    problem, values = sightings()
    dense = mslsq.solve(problem, values, solver=solver(linear_solver=mslsq.linear.Cholesky(), max_steps=8))
    tight = ConjugateGradient(**options, tolerance=1e-13, forcing="constant")
    iterated = mslsq.solve(problem, values, solver=solver(linear_solver=tight, max_steps=8))
    torch.testing.assert_close(dense.history.cost, iterated.history.cost, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_inexact_steps_reach_the_same_optimum(options):
    problem, values = sightings()
    exact = mslsq.solve(problem, values)
    inexact = mslsq.solve(problem, values, solver=mslsq.LevenbergMarquardt(linear_solver=ConjugateGradient(**options)))
    assert bool(inexact.converged)
    torch.testing.assert_close(exact.cost, inexact.cost, rtol=1e-10, atol=0)
    torch.testing.assert_close(exact.value["landmark"], inexact.value["landmark"], rtol=0, atol=1e-5)


def test_blocks_that_share_a_variable_and_fixed_ones_count_once():
    """A cost between a landmark and itself: the columns of both slots are the same ones."""
    problem, values = with_landmarks()
    formed, free = (
        mslsq.solve(
            problem,
            values,
            solver=mslsq.LevenbergMarquardt(
                linear_solver=ConjugateGradient(matrix_free=flag, tolerance=1e-13, forcing="constant"), max_steps=6
            ),
        )
        for flag in (False, True)
    )
    torch.testing.assert_close(formed.history.cost, free.history.cost, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(formed.value["landmark"], free.value["landmark"], rtol=1e-8, atol=1e-8)


def test_many_samples_of_one_model_without_normal_equations():
    """All blocks share their variables, and single blocks have the batch as lanes."""
    t = torch.linspace(0, 2, 40, dtype=F64)
    y = 2 * torch.exp(-torch.tensor([[0.5], [1.0], [1.5]], dtype=F64) * t)

    @mslsq.cost
    def sample(p: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (p[0] * torch.exp(-p[1] * t) - y)[None]

    p = mslsq.Variable("p", mslsq.Euclidean(2))
    problem = mslsq.Problem(sample(p, t=t, y=y[0]), mslsq.Prior(p, target=torch.zeros(1, 2, dtype=F64), weight=1e-6))
    solver = mslsq.LevenbergMarquardt(linear_solver=ConjugateGradient(matrix_free=True))
    start = {"p": torch.ones(2, dtype=F64)}
    batch = mslsq.solve(problem, start, {"sample": {"y": y}}, in_dims=(None, {"sample": {"y": 0}}), solver=solver)
    rates = batch.value["p"].reshape(3, 2)[:, 1]
    torch.testing.assert_close(rates, torch.tensor([0.5, 1.0, 1.5], dtype=F64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("matrix_free", [False, True])
def test_one_big_residual_is_compressed_first(matrix_free):
    """A chain of 400 unknowns in one vector: never a dense Jacobian."""
    t = torch.linspace(0, 1, 400, dtype=F64).sin()

    def smooth(x, t):
        return torch.cat((x - t, 3 * (x[1:] - x[:-1])))

    linear = ConjugateGradient(matrix_free=matrix_free)
    start = torch.zeros(400, dtype=F64)
    iterated, direct = (
        mslsq.least_squares(smooth, start, args=(t,), solver=mslsq.LevenbergMarquardt(linear_solver=chosen))
        for chosen in (linear, mslsq.linear.Cholesky())
    )
    torch.testing.assert_close(iterated.value, direct.value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{"preconditioner": "schur_jacobi"}, {"matrix_free": True}])
def test_a_recorded_step_takes_the_same_steps(options):
    problem, values = sightings()
    costs = []
    for trace in ("never", "always"):
        solver = mslsq.LevenbergMarquardt(linear_solver=ConjugateGradient(**options), trace=trace, max_steps=6)
        costs.append(mslsq.solve(problem, values, solver=solver).history.cost)
    torch.testing.assert_close(costs[0], costs[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_float32_stays_float32(options):
    problem, values = sightings(torch.float32)
    solution = mslsq.solve(problem, values, solver=mslsq.LevenbergMarquardt(linear_solver=ConjugateGradient(**options)))
    exact = mslsq.solve(*sightings())
    assert solution.cost.dtype == torch.float32
    torch.testing.assert_close(solution.cost.double(), exact.cost, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"derivatives": "iterative"},
        pytest.param({"derivatives": "direct"}, marks=pytest.mark.slow),
        pytest.param({"matrix_free": True}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.sampled(1)
def test_derivatives_are_those_of_a_direct_solver(options):
    direct, iterated = graph_function(mslsq.linear.SparseCholesky()), graph_function(ConjugateGradient(**options))
    for transform in (jacrev, jacfwd, hessian):
        torch.testing.assert_close(transform(iterated)(POINT), transform(direct)(POINT), rtol=1e-9, atol=1e-10)
    points = torch.stack([POINT, 0.5 * POINT])
    torch.testing.assert_close(vmap(jacrev(iterated))(points), vmap(jacrev(direct))(points), rtol=1e-9, atol=1e-10)


def test_a_solution_tells_how_well_its_adjoint_was_solved():
    problem, start, measured = ring()
    solver = mslsq.LevenbergMarquardt(linear_solver=ConjugateGradient(matrix_free=True))
    data = {"between": {"measured": measured.clone().requires_grad_()}}
    solution = mslsq.solve(problem, {"pose": start}, data, solver=solver)
    assert bool(solution.differentiable)
    assert float(solution.adjoint_residual.detach()) < 1e-9


@pytest.mark.slow
def test_a_real_bundle_adjustment_comes_as_far_as_ceres_in_thirty_steps(shared_data):
    scene = read_bal(shared_data / "bal" / "problem-49-7776-pre.txt.bz2")
    solver = mslsq.LevenbergMarquardt(max_steps=30, linear_solver=ConjugateGradient("schur_jacobi"))
    solution = mslsq.solve(scene.problem(), {"camera": scene.cameras, "point": scene.points}, solver=solver)
    assert float(solution.cost) <= 13344.4  # Ceres' DENSE_SCHUR after thirty steps


def test_a_hessian_that_is_not_definite_has_no_derivative():
    """The chain's gauge is free: its Hessian is singular, and conjugate gradients see that."""
    problem, start, measured = ring()
    free = mslsq.Problem(*[cost for cost in problem if isinstance(cost, mslsq.Between)])
    linear = ConjugateGradient(derivatives="iterative")
    solver = mslsq.LevenbergMarquardt(linear_solver=linear, max_steps=50)
    data = {"between": {"measured": measured.clone().requires_grad_()}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = mslsq.solve(free, {"pose": start}, data, solver=solver)
    assert not bool(solution.differentiable)


def test_an_unconverged_adjoint_is_said_and_never_a_number(monkeypatch):
    sizes = np.full(40, 1)
    structure = analyze(sizes, np.arange(1, 40), np.arange(39))
    values = torch.zeros(1, structure.num_values, dtype=F64)
    values[0, structure.diagonal_index] = 2.0
    values[0, structure.offset_of(np.arange(1, 40), np.arange(39))[0]] = -1.0
    linear = ConjugateGradient(derivatives="iterative").bound(structure, {})
    right = torch.ones(1, 40, dtype=F64)
    assert torch.isfinite(linear.solve_factored(values, right)).all()
    monkeypatch.setattr(ConjugateGradient, "_most_iterations", lambda self, columns: 5)
    assert torch.isnan(linear.solve_factored(values, right)).all()
    factored = linear.definite_factor(values)
    assert not factored.definite.any()
    assert (factored.undecided > 1e-9).all()


def test_the_linear_residual_is_reported():
    structure = analyze(np.array([2, 3]), np.array([1]), np.array([0]))
    values = torch.zeros(1, structure.num_values, dtype=F64)
    values[:, structure.diagonal_index] = 2.0
    linear = ConjugateGradient(derivatives="iterative").bound(structure, {})
    rhs = torch.arange(5, dtype=F64)[None]
    factor, usable, undecided = linear.definite_factor(values)
    assert usable.all()
    assert undecided.isnan().all()
    solution = linear.solve_factored(factor, rhs)
    assert float(linear.relative_residual(values, solution, rhs)) < 1e-14
    torch.testing.assert_close(linear.relative_residual(values, 0.9 * solution, rhs), torch.full((1,), 0.1, dtype=F64))


@pytest.mark.kernels
def test_every_kernel_agrees_with_pytorch_and_with_the_dense_matrix(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    sizes = np.array([3, 2, 2, 1, 3])
    structure, again = (analyze(sizes, np.array([1, 2, 4, 3]), np.array([0, 1, 0, 2])) for _ in range(2))
    values = torch.randn(2, structure.num_values, generator=generator, dtype=F64)
    x = torch.randn(6, 11, generator=generator, dtype=F64)
    dense = torch.zeros(2, 11, 11, dtype=F64)
    for e, (i, j) in enumerate(zip(structure.rows, structure.cols, strict=True)):
        h, w, at = sizes[i], sizes[j], structure.offsets[e]
        block = values[:, at : at + h * w].reshape(2, h, w)
        block = block.tril() + block.tril(-1).mT if i == j else block
        dense[:, structure.starts[i] : structure.starts[i] + h, structure.starts[j] : structure.starts[j] + w] = block
        dense[:, structure.starts[j] : structure.starts[j] + w, structure.starts[i] : structure.starts[i] + h] = (
            block.mT
        )
    expected = torch.einsum("bij,bkj->bki", dense, x.reshape(2, 3, 11)).reshape(6, 11)
    forms = [symmetric_product_of(structure)]
    with monkeypatch.context() as without:
        without.setattr("mslsq.linear.block_products.run_on", lambda device: False)
        forms.append(symmetric_product_of(again))
    assert not forms[0].entries and not forms[1].tables
    for form in forms:
        torch.testing.assert_close(product(values, x, form), expected)
    # The part of A with the rows of blocks 1, 3 and 4 and the columns of the others, and its transpose.
    rows = np.isin(np.repeat(np.arange(5), sizes), [1, 3, 4])
    numbers = [np.where(side, np.cumsum(side) - 1, -1) for side in (rows, ~rows)]
    starts = np.array([numbers[0 if rows[s] else 1][s] for s in structure.starts[:-1]])
    crossing = rows[structure.starts[structure.rows]] & ~rows[structure.starts[structure.cols]]
    other = ~rows[structure.starts[structure.rows]] & rows[structure.starts[structure.cols]]
    tables = block_table(structure, starts)
    both = np.concatenate((tables[crossing], transposed(tables[other])))
    part = dense[:, rows][:, :, ~rows]
    for table, to, matrix in ((both, 0, part), (transposed(both), 1, part.mT)):
        z = torch.randn(6, matrix.shape[2], generator=generator, dtype=F64)
        wanted = torch.einsum("bij,bkj->bki", matrix, z.reshape(2, 3, -1)).reshape(6, -1)
        for kernels in (True, False):
            with monkeypatch.context() as without:
                without.setattr("mslsq.linear.block_products.run_on", lambda device, kernels=kernels: kernels)
                entries = partial(structure.entries_between, numbers[to], numbers[1 - to])
                form = block_product(matrix.shape[1], (table,), entries, structure.device)
            torch.testing.assert_close(product(values, z, form), wanted)


@pytest.mark.kernels
def test_products_from_blocks_agree_on_every_device_form():
    generator = torch.Generator().manual_seed(1)
    lanes, rows, tangent, n = 150, 2, 5, 20  # more lanes than the kernels take together
    jacobian = torch.randn(2, rows, tangent, lanes, generator=generator, dtype=F64)
    gram = torch.einsum("bral,brcl->bacl", jacobian, jacobian).contiguous()
    columns = torch.randint(n + 1, (tangent, lanes), generator=generator)
    x = torch.randn(6, n + 1, generator=generator, dtype=F64)
    anywhere = added_normal(torch.zeros_like(x), jacobian, columns, x)
    torch.testing.assert_close(added_symmetric(torch.zeros_like(x), gram, columns, x), anywhere)
    by_kernels = [torch.zeros_like(x), torch.zeros_like(x)]
    for form, matrix, out in zip((JacobianBlocks, HessianBlocks), (jacobian, gram), by_kernels, strict=True):
        form._added(out, matrix.flatten(1), Term(0, matrix, TermPlan(matrix.shape[1], columns, ())), x)
    torch.testing.assert_close(by_kernels[0], anywhere)
    torch.testing.assert_close(by_kernels[1], anywhere)


def test_matrix_free_keeps_nothing_larger_than_the_blocks(monkeypatch):
    """Costs that touch twelve blocks each: their normal equations have 78 blocks per cost, the Jacobian one row."""
    count, terms = 400, 2000
    generator = torch.Generator().manual_seed(0)
    x = mslsq.Variable("x", mslsq.Euclidean(1), count=count)
    index = torch.stack([torch.randperm(count, generator=generator)[:12] for _ in range(terms)], 1)

    class Sum(mslsq.CostFunction):
        def residual(self, *parts, target):
            return torch.cat(parts).sum()[None] - target

    target = torch.randn(terms, 1, generator=generator, dtype=F64)
    problem = mslsq.Problem(Sum(*(x[row] for row in index), target=target))
    start = {"x": torch.zeros(count, 1, dtype=F64)}
    sizes = {}
    for matrix_free in (False, True):
        seen = []

        def noted(self, matrix, rhs, damping, original=ConjugateGradient.solve, seen=seen):
            seen.append(matrix.shape[1])
            return original(self, matrix, rhs, damping)

        monkeypatch.setattr(ConjugateGradient, "solve", noted)
        linear = ConjugateGradient(matrix_free=matrix_free, tolerance=1e-10, forcing="constant")
        solver = mslsq.LevenbergMarquardt(linear_solver=linear, max_steps=3, trace="never")
        solution = mslsq.solve(problem, start, solver=solver)
        monkeypatch.undo()
        sizes[matrix_free] = seen[0], float(solution.cost)
    assert sizes[True][0] == terms * 12
    assert sizes[True][0] * 2 < sizes[False][0]
    assert sizes[True][1] == pytest.approx(sizes[False][1], rel=1e-9)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"preconditioner": "ilu"}, "preconditioner must be one of"),
        ({"tolerance": 0.0}, "tolerance must be a number between 0 and 1"),
        ({"max_iterations": 0}, "positive integer"),
        ({"matrix_free": True, "preconditioner": "schur_jacobi"}, "leave matrix_free out"),
        ({"eliminate": "point"}, "goes with preconditioner"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ConjugateGradient(**options)


@pytest.mark.kernels
def test_it_is_chosen_where_a_factor_is_too_large_and_verbose_says_so(monkeypatch, capsys):
    monkeypatch.setattr("mslsq.linear.choice.LARGEST_FACTOR", 1000)
    count = 200
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=count)
    index = torch.arange(count - 1)
    steps = torch.ones(count - 1, 2, dtype=F64)
    problem = mslsq.Problem(mslsq.Difference(x[index], x[index + 1], measured=steps), x.fixed([0]))
    solver = mslsq.LevenbergMarquardt(verbose=True)
    solution = mslsq.solve(problem, {"x": torch.zeros(count, 2, dtype=F64)}, solver=solver)
    assert "ConjugateGradient (block_jacobi; a factor would hold" in capsys.readouterr().out
    torch.testing.assert_close(solution.value["x"][:, 0], torch.arange(count, dtype=F64), rtol=0, atol=1e-4)


def test_what_cannot_be_eliminated_is_said():
    structure = analyze(np.array([2, 2, 2]), np.array([1, 2]), np.array([0, 1]))
    kinds = {"pose": np.array([0, 1]), "point": np.array([2]), "held": np.array([-1])}
    linear = ConjugateGradient("schur_jacobi")
    assert linear.bound(structure, kinds).eliminated.tolist() == [False, False, True]
    for name, words in (
        ("pose", r"pose\[0\] and pose\[1\].*block_jacobi"),
        ("landmark", "no variable of that name"),
        ("held", "held fixed"),
    ):
        with pytest.raises(EliminationError, match=words):
            replace(linear, eliminate=name).bound(structure, kinds)
    with pytest.raises(EliminationError, match="Take preconditioner='block_jacobi'"):
        linear.bound(structure, {"pose": np.array([0, 1, 2])})
    apart = analyze(np.array([2, 2]), np.array([], int), np.array([], int))
    with pytest.raises(EliminationError, match="all there is"):
        replace(linear, eliminate="point").bound(apart, {"point": np.array([0, 1])})
