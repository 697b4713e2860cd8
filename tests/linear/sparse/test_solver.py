"""Block-sparse normal equations: the same costs and steps as dense ones, and the same derivatives."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

import mslsq
from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.sparse.multifrontal import factor_into

DENSE, SPARSE = mslsq.linear.Cholesky(), mslsq.linear.SparseCholesky()
ITERATIVE, MATRIX_FREE = mslsq.linear.ConjugateGradient(), mslsq.linear.ConjugateGradient(matrix_free=True)


def ring(count: int = 12, seed: int = 0) -> tuple[mslsq.Problem, mslsq.SE2, torch.Tensor]:
    """A ring of SE(2) poses with chords, landmarks seen from some of them, robust losses, the first pose held."""
    generator = torch.Generator().manual_seed(seed)
    truth = mslsq.SE2.random(count, generator=generator, dtype=torch.float64)
    i = torch.cat((torch.arange(count), torch.arange(0, count, 3)))
    j = torch.cat((torch.roll(torch.arange(count), -1), (torch.arange(0, count, 3) + count // 2) % count))
    noise = 0.05 * torch.randn(len(i), 3, generator=generator, dtype=torch.float64)
    measured = (truth[i].inverse() @ truth[j]).retract(noise)
    pose = mslsq.Variable("pose", mslsq.SE2, count=count)
    problem = mslsq.Problem(
        mslsq.Between(pose[i], pose[j], measured=measured, weight=5.0, loss=mslsq.Cauchy(1.0)), pose.fixed([0])
    )
    start = truth.retract(0.1 * torch.randn(count, 3, generator=generator, dtype=torch.float64))
    return problem, start, measured.storage


@mslsq.cost
def sighting(pose: mslsq.SE2, landmark: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return pose.inverse().act(landmark) - seen


def with_landmarks() -> tuple[mslsq.Problem, dict]:
    """Two kinds of unknowns, of three and two columns, some held fixed, in blocks that share a variable too."""
    problem, start, _ = ring()
    generator = torch.Generator().manual_seed(5)
    pose = problem.variables["pose"]
    landmark = mslsq.Variable("landmark", mslsq.Euclidean(2), count=7)
    who = torch.randint(12, (40,), generator=generator)
    what = torch.cat((torch.arange(7), torch.randint(7, (33,), generator=generator)))
    places = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    seen = start[who].inverse().act(places[what]) + 0.02 * torch.randn(40, 2, generator=generator, dtype=torch.float64)
    same = mslsq.Difference(landmark[[1, 2, 2]], landmark[[2, 3, 1]], measured=places[[2, 3, 1]] - places[[1, 2, 2]])
    whole = mslsq.Problem(
        *problem, sighting(pose[who], landmark[what], seen=seen), same, pose.fixed([0]), landmark.fixed([3])
    )
    return whole, {"pose": start, "landmark": places + 0.1}


@pytest.mark.parametrize("solver", [mslsq.LevenbergMarquardt, mslsq.GaussNewton, mslsq.Dogleg])
def test_sparse_takes_the_steps_of_dense(solver):
    problem, values = with_landmarks()
    dense = mslsq.solve(problem, values, solver=solver(linear_solver=DENSE, max_steps=30))
    sparse = mslsq.solve(problem, values, solver=solver(linear_solver=SPARSE, max_steps=30))
    steps = min(int(dense.num_steps), int(sparse.num_steps)) - 1  # at the minimum rounding decides which step is last
    torch.testing.assert_close(
        dense.history.cost[: steps + 1], sparse.history.cost[: steps + 1], rtol=1e-10, atol=1e-10
    )
    for name in values:
        a, b = dense.value[name], sparse.value[name]
        a, b = (x.storage if isinstance(x, mslsq.Manifold) else x for x in (a, b))
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def test_a_batch_of_one_structure_equals_solving_one_by_one():
    problem, start, _ = ring()
    noise = 0.05 * torch.randn(3, 12, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    starts = mslsq.manifolds.stack([start.retract(noise[k]) for k in range(3)])
    solver = mslsq.LevenbergMarquardt(linear_solver=SPARSE)
    batch = mslsq.solve(problem, {"pose": starts}, in_dims=({"pose": 0}, None), solver=solver)
    for k in range(3):
        single = mslsq.solve(problem, {"pose": starts[k]}, solver=solver)
        torch.testing.assert_close(batch.cost[k], single.cost, rtol=1e-12, atol=0)
        torch.testing.assert_close(batch.value["pose"].storage[k], single.value["pose"].storage, rtol=0, atol=1e-9)


@pytest.mark.parametrize("linear", [SPARSE, ITERATIVE, MATRIX_FREE])
def test_a_nan_problem_does_not_disturb_its_batch_mates(linear):
    problem, start, measured = ring()
    data = torch.stack([measured, measured * torch.nan, measured])
    solution = mslsq.solve(
        problem,
        {"pose": start},
        {"between": {"measured": data}},
        in_dims=(None, {"between": {"measured": 0}}),
        solver=mslsq.LevenbergMarquardt(linear_solver=linear),
    )
    assert mslsq.Status(int(solution.status[1])) is mslsq.Status.NON_FINITE
    assert torch.equal(solution.value["pose"].storage[0], solution.value["pose"].storage[2])
    assert bool(solution.converged[0])


def test_a_recorded_step_takes_the_same_steps():
    problem, start, _ = ring()
    eager = mslsq.solve(problem, {"pose": start}, solver=mslsq.LevenbergMarquardt(linear_solver=SPARSE, trace="never"))
    graph = mslsq.solve(problem, {"pose": start}, solver=mslsq.LevenbergMarquardt(linear_solver=SPARSE, trace="always"))
    torch.testing.assert_close(eager.cost, graph.cost, rtol=1e-13, atol=0)


def test_float32_stays_float32():
    problem, start, _ = ring()
    solution = mslsq.solve(
        problem.to(torch.float32),
        {"pose": start.to(torch.float32)},
        solver=mslsq.LevenbergMarquardt(linear_solver=SPARSE),
    )
    assert solution.cost.dtype == torch.float32
    assert bool(solution.converged)


@pytest.mark.kernels
def test_large_systems_are_sparse_by_themselves(capsys):
    count = 200
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=count)
    index = torch.arange(count - 1)
    problem = mslsq.Problem(
        mslsq.Difference(x[index], x[index + 1], measured=torch.ones(count - 1, 2, dtype=torch.float64)), x.fixed([0])
    )
    start = torch.zeros(count, 2, dtype=torch.float64)
    solution = mslsq.solve(problem, {"x": start}, solver=mslsq.LevenbergMarquardt(verbose=True))
    assert "SparseCholesky (mslsq) of 398" in capsys.readouterr().out
    torch.testing.assert_close(solution.value["x"][:, 0], torch.arange(count, dtype=torch.float64))


@pytest.mark.kernels
def test_a_batch_of_graphs_is_sparse_by_itself_where_a_single_one_is_dense(capsys):
    # 64 rings of 30 poses: dense matrices take five times as long as blocks; a single one takes the same either way
    problem, start, measured = ring(31)
    noise = 0.01 * torch.randn(64, len(measured), 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    batch = mslsq.SE2(measured.expand(64, -1, -1)).retract(noise).storage.requires_grad_()
    values, slopes = {}, {}
    for name, linear in {"auto": "auto", "dense": DENSE}.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear, verbose=name == "auto", max_steps=4)
        options = {"in_dims": (None, 0), "solver": solver, "adjoint": mslsq.Implicit(failed="zero")}
        values[name] = mslsq.solve(problem, {"pose": start}, {"between": {"measured": batch}}, **options)
    assert "SparseCholesky (mslsq) of 90" in capsys.readouterr().out
    torch.testing.assert_close(values["auto"].history.cost, values["dense"].history.cost, rtol=1e-10, atol=0)
    for name, linear in {"auto": "auto", "dense": DENSE}.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear, gtol=1e-12, ftol=0)
        solution = mslsq.solve(
            problem, {"pose": start}, {"between": {"measured": batch}}, in_dims=(None, 0), solver=solver
        )
        (slopes[name],) = torch.autograd.grad(solution.value["pose"].storage.square().sum(), batch)
    torch.testing.assert_close(slopes["auto"], slopes["dense"], rtol=1e-6, atol=1e-8)
    mslsq.solve(problem, {"pose": start}, solver=mslsq.LevenbergMarquardt(verbose=True, max_steps=1))
    assert "Cholesky of 90" in capsys.readouterr().out


def graph_function(linear: mslsq.linear.LinearSolver):
    problem, start, measured = ring()
    generator = torch.Generator().manual_seed(3)
    directions = torch.randn(2, *measured.shape, generator=generator, dtype=torch.float64)
    weights = torch.randn(2, *start.storage.shape, generator=generator, dtype=torch.float64)
    solver = mslsq.LevenbergMarquardt(linear_solver=linear, ftol=0, gtol=1e-13, xtol=1e-15, max_steps=100)

    def function(a: torch.Tensor) -> torch.Tensor:
        moved = measured + 0.05 * (a[:, None, None] * directions).sum(0)
        solution = mslsq.solve(problem, {"pose": start}, {"between": {"measured": moved}}, solver=solver)
        return (solution.value["pose"].storage * weights).sum((1, 2))

    return function


POINT = torch.tensor([0.3, -0.2], dtype=torch.float64)


@pytest.mark.slow
def test_first_derivatives_agree_with_differences_and_with_dense():
    sparse, dense = graph_function(SPARSE), graph_function(DENSE)
    h = 1e-4
    basis = torch.eye(2, dtype=torch.float64)
    differences = torch.stack([(sparse(POINT + h * e) - sparse(POINT - h * e)) / (2 * h) for e in basis], 1)
    for transform in (jacrev, jacfwd):
        derivative = transform(sparse)(POINT)
        torch.testing.assert_close(derivative, differences, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(derivative, jacrev(dense)(POINT), rtol=1e-10, atol=1e-11)
    mapped = vmap(jacrev(sparse))(torch.stack([POINT, 0.5 * POINT]))
    torch.testing.assert_close(mapped[0], differences, rtol=1e-6, atol=1e-7)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("outer", "inner"), [(jacfwd, jacrev), (jacrev, jacrev), (jacrev, jacfwd), (jacfwd, jacfwd)])
def test_second_derivatives_agree_with_differences_of_first_ones(outer, inner):
    sparse = graph_function(SPARSE)
    h = 1e-4
    basis = torch.eye(2, dtype=torch.float64)
    first = jacrev(sparse)
    differences = torch.stack([(first(POINT + h * e) - first(POINT - h * e)) / (2 * h) for e in basis], 2)
    torch.testing.assert_close(outer(inner(sparse))(POINT), differences, rtol=1e-5, atol=1e-6)


def test_an_unknown_backend_is_an_error():
    with pytest.raises(ValueError, match="backend"):
        mslsq.linear.SparseCholesky(backend="cholmd")


def systems(count: int) -> tuple[BlockStructure, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A chain of blocks, matrices (count, batch, values), right-hand sides, shifts."""
    structure = analyze(np.array([2, 3, 2, 1]), np.array([1, 2, 3]), np.array([0, 1, 2]))
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(count, 3, structure.num_values, generator=generator, dtype=torch.float64)
    values[..., structure.diagonal_index] = 12.0
    rhs = torch.randn(count, 3, 8, generator=generator, dtype=torch.float64)
    return structure, values, rhs, torch.rand_like(rhs)


def test_factors_in_the_memory_of_others_are_equal_to_the_bit():
    """Also after a matrix that has none, for another batch, for float32, and in inference mode."""
    structure, values, rhs, shift = systems(4)
    solver = SPARSE.bound(structure, {}).with_workspace()
    values[1, 2, structure.diagonal_index] = -1.0
    given = [
        *zip(values, rhs, shift, strict=True),
        (values[0].float(), rhs[0].float(), None),
        (values[2], rhs[2], None),
    ]
    given += [(values[3, :1], rhs[3, :1], shift[3, :1]), (values[3], rhs[3], shift[3])]
    for _ in range(2):
        for one in given:
            fresh = SPARSE.bound(structure, {})
            step, solved = solver.solve(*one)
            assert torch.equal(solved, fresh.solve(*one)[1])
            assert torch.equal(step.nan_to_num(7), fresh.solve(*one)[0].nan_to_num(7))
            assert len(solver.workspace) == 1
            recorded = torch.func.functionalize(solver.solve)(*one)  # as operators, whose factors are tensors
            assert torch.equal(recorded[0].nan_to_num(7), step.nan_to_num(7))
    with torch.inference_mode():
        assert torch.equal(solver.solve(values[0], rhs[0], None)[0], fresh.solve(values[0], rhs[0], None)[0])
    values[0, 0, structure.diagonal_index] = -1.0
    assert solver.solve(values[0], rhs[0], None)[1].tolist() == [False, True, True]


def test_threads_do_not_share_the_memory_of_factors():
    structure, values, rhs, shift = systems(16)
    solver = SPARSE.bound(structure, {}).with_workspace()
    fresh = [SPARSE.bound(structure, {}) for _ in values]
    expected = [one.solve(*given)[0] for one, *given in zip(fresh, values, rhs, shift, strict=True)]

    def solved(k: int) -> bool:
        return torch.equal(solver.solve(values[k % 16], rhs[k % 16], shift[k % 16])[0], expected[k % 16])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(solved, range(2000)))


def test_the_memory_of_factors_goes_with_a_solve(monkeypatch):
    """Also where its problem, its solver and what is prepared of it stay."""
    made = []

    def noted(factors: torch.Tensor, *given: Any) -> torch.Tensor:
        made.append(weakref.ref(factors))
        return factor_into(factors, *given)

    monkeypatch.setattr("mslsq.linear.sparse.solver.factor_into", noted)
    problem, start, _ = ring()
    solver = mslsq.LevenbergMarquardt(linear_solver=SPARSE, trace="never")
    prepared = mslsq.prepared(problem, {"pose": start}, solver=solver)
    for solve in (lambda: mslsq.solve(problem, {"pose": start}, solver=solver), lambda: prepared({"pose": start})):
        made.clear()
        solution = solve()
        assert solution.converged and len(made) > 3 and len(set(made)) == 1
        gc.collect()
        assert made[0]() is None
