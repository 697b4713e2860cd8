"""Other libraries' Cholesky factorisations: the same steps as the library's own kernels, failures marked, never
raised."""

import gc
import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.func import jacrev

import mslsq
from mslsq.linear.block_structure import analyze
from mslsq.linear.sparse.backends import BACKENDS, BackendMissingError, NotPositiveDefiniteError, lower_triangle

F64 = torch.float64


MODULES = {"pardiso": ["pypardiso"], "cholmod": ["sksparse", "kvxopt"], "mumps": ["mumps"], "superlu": ["scipy"]}


def of(backend: str):
    there = any(importlib.util.find_spec(module) for module in MODULES[backend])
    install = pytest.mark.skipif(not there, reason=f"not installed: pip install {BACKENDS[backend]}")
    return pytest.param(backend, marks=install)


each = pytest.mark.parametrize("backend", [of(backend) for backend in MODULES])


def systems(batch: int = 4) -> tuple:
    """Definite matrices of one structure with blocks of several sizes, damping and right-hand sides."""
    structure = analyze(np.array([3, 2, 2, 1, 3]), np.array([1, 2, 4, 3]), np.array([0, 1, 0, 2]))
    generator = torch.Generator().manual_seed(0)
    values = 0.3 * torch.randn(batch, structure.num_values, generator=generator, dtype=F64)
    values[:, structure.diagonal_index] = 4.0
    damping, rhs = torch.rand(2, batch, 11, generator=generator, dtype=F64)
    return structure, values, damping, rhs


@each
@pytest.mark.parametrize("dtype, tolerance", [(F64, 1e-12), (torch.float32, 1e-5)])
def test_it_solves_what_our_own_kernels_solve(backend, dtype, tolerance):
    structure, *tensors = systems()
    values, damping, rhs = (t.to(dtype) for t in tensors)
    own = mslsq.linear.SparseCholesky().bound(structure, {})
    other = mslsq.linear.SparseCholesky(backend).bound(structure, {})
    for shift in (damping, None):
        expected, _ = own.solve(values, rhs, shift)
        step, solved = other.solve(values, rhs, shift)
        assert solved.all() and step.dtype == dtype
        torch.testing.assert_close(step, expected, rtol=tolerance, atol=tolerance)


@each
def test_entries_without_a_factor_are_marked_again_and_again(backend):
    structure, values, damping, rhs = systems()
    broken = values.clone()
    broken[1, structure.diagonal_index[4]] = -3.0
    broken[2, 0] = torch.nan
    other = mslsq.linear.SparseCholesky(backend).bound(structure, {})
    clean, _ = other.solve(values, rhs, damping)
    for _ in range(5):  # a library that keeps a failed factor would hand out the last good one
        step, solved = other.solve(broken, rhs, damping)
        assert solved.tolist() == [True, False, False, True]
        assert torch.equal(step[[0, 3]], clean[[0, 3]]) and torch.isnan(step[1:3]).all()


def chain(count: int, seed: int) -> tuple:
    """A factorisation's arguments: the lower triangle of a random definite band matrix, its entries, and all of it."""
    structure = analyze(np.full(count, 2), np.arange(1, count), np.arange(count - 1))
    lower, place = lower_triangle(structure)
    values = 0.2 * np.random.default_rng(seed).standard_normal(structure.num_values)
    values[structure.diagonal_index.numpy()] = 3.0
    whole = np.zeros((lower.size, lower.size))
    whole[lower.rows, np.repeat(np.arange(lower.size), np.diff(lower.indptr))] = values[place]
    return lower, values[place], whole + np.tril(whole, -1).T


def factorization(backend: str):
    return importlib.import_module(f"mslsq.linear.sparse.backends.{backend}").Factorization


@each
def test_several_factors_live_side_by_side_and_take_many_right_hand_sides(backend):
    problems = [chain(count, seed) for seed, count in enumerate((1, 2, 40, 9))]
    alive = [factorization(backend)(lower) for lower, _, _ in problems]
    for own, (_, entries, _) in zip(alive, problems, strict=True):
        own.factor(entries)
    rng = np.random.default_rng(9)
    for k in (1, 3):
        for own, (lower, _, whole) in zip(alive, problems, strict=True):
            rhs = rng.standard_normal((lower.size, k))
            before = rhs.copy()
            np.testing.assert_allclose(own.solve(rhs), np.linalg.solve(whole, rhs), rtol=1e-11, atol=1e-12)
            np.testing.assert_array_equal(rhs, before)


@each
def test_threads_factor_different_structures_at_the_same_time(backend):
    # MUMPS without its lock fails in most runs of this size. PARDISO takes 0.27 s to find MKL, each time.
    size, repeats = (50, 3) if backend == "pardiso" else (600, 20)
    problems = [chain(size + seed, seed) for seed in range(3)]

    def work(problem) -> float:
        lower, entries, whole = problem
        worst = 0.0
        for _ in range(repeats):
            own = factorization(backend)(lower)
            own.factor(entries)
            rhs = np.ones((lower.size, 1))
            worst = max(worst, float(np.abs(whole @ own.solve(rhs) - rhs).max()))
            del own
            gc.collect(0)
        return worst

    with ThreadPoolExecutor(3) as pool:
        assert max(pool.map(work, problems)) < 1e-12  # of matrices whose condition is below 10


@each
@pytest.mark.parametrize("pivot", [-1e-3, 0.0])
def test_an_indefinite_matrix_has_no_factor(backend, pivot):
    lower, entries, _ = chain(5, 0)
    diagonal = np.zeros_like(entries)
    diagonal[lower.indptr[:-1]] = 1.0
    diagonal[lower.indptr[6]] = pivot
    own = factorization(backend)(lower)
    with pytest.raises(NotPositiveDefiniteError):
        own.factor(diagonal)
    # One that is not alone on the diagonal: A - 10 I has only negative eigenvalues.
    with pytest.raises(NotPositiveDefiniteError):
        own.factor(np.where(diagonal != 0, entries - 10.0, entries))
    own.factor(entries)


def test_superlu_answers_everything_without_our_kernels(monkeypatch):
    structure, values, damping, rhs = systems()
    values[2, structure.diagonal_index[4]] = -3.0
    own = mslsq.linear.SparseCholesky().bound(structure, {})
    factor, definite = own.definite_factor(values)[:2]
    expected = own.storage.product(values, rhs), own.solve_factored(factor, rhs), own.solve(values, rhs, damping)[0]

    def absent(*_):
        raise AssertionError("a kernel was called")

    for name in ("factor", "solve"):
        monkeypatch.setattr(f"mslsq.linear.sparse.solver.{name}", absent)
    other = mslsq.linear.SparseCholesky("superlu").bound(structure, {})
    factor, found = other.definite_factor(values)[:2]
    assert found.tolist() == definite.tolist() == [True, True, False, True]
    results = (
        other.storage.product(values, rhs),
        other.solve_factored(factor, rhs),
        other.solve(values, rhs, damping)[0],
    )
    assert torch.isfinite(results[1]).all()  # of the indefinite one too: its part of the gradient is multiplied by zero
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result[definite], wanted[definite], rtol=1e-12, atol=1e-12)


@mslsq.cost
def bend(a: torch.Tensor, b: torch.Tensor, measured: torch.Tensor) -> torch.Tensor:
    return b - torch.sin(a) - measured


@each
def test_a_whole_solve_recorded_with_derivatives(backend, capsys):
    count = 30
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=count)
    i = torch.arange(count - 1)
    generator = torch.Generator().manual_seed(0)
    measured = torch.randn(count - 1, 2, generator=generator, dtype=F64)
    anchor = mslsq.Prior(x, target=torch.zeros(count, 2, dtype=F64), weight=2.0)
    problem = mslsq.Problem(bend(x[i], x[i + 1], measured=measured), anchor)
    start = {"x": torch.zeros(count, 2, dtype=F64)}

    def end(data: torch.Tensor, name: str, **options) -> torch.Tensor:
        linear = mslsq.linear.SparseCholesky(name)
        solver = mslsq.LevenbergMarquardt(linear_solver=linear, trace="always", **options)
        return mslsq.solve(problem, start, {"bend": {"measured": data}}, solver=solver).value["x"][-1]

    torch.testing.assert_close(end(measured, backend, verbose=True), end(measured, "mslsq"), rtol=0, atol=1e-8)
    assert f"SparseCholesky ({backend})" in capsys.readouterr().out
    derivatives = [jacrev(lambda data, name=name: end(data, name))(measured) for name in (backend, "mslsq")]
    torch.testing.assert_close(*derivatives, rtol=0, atol=1e-6)


def test_a_missing_library_is_said_with_what_to_install(monkeypatch):
    structure, *_ = systems()
    monkeypatch.setitem(sys.modules, "pypardiso", None)
    monkeypatch.setitem(sys.modules, "pypardiso.pardiso_wrapper", None)
    with pytest.raises(BackendMissingError, match="needs pypardiso"):
        mslsq.linear.SparseCholesky("pardiso").bound(structure, {})
