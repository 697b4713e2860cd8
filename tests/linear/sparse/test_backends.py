"""Other libraries' Cholesky factorisations: the same steps as the library's own kernels, failures marked, never
raised."""

import importlib.util
import sys

import numpy as np
import pytest
import torch
from torch.func import jacrev

import mslsq
from mslsq.linear.block_structure import analyze
from mslsq.linear.sparse.backends import BackendMissingError

F64 = torch.float64


def installed(backend: str) -> bool:
    modules = {"pardiso": ["pypardiso"], "cholmod": ["sksparse", "kvxopt"]}[backend]
    return any(importlib.util.find_spec(module) for module in modules)


each = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=f"the library for {name} is missing"))
        for name in ("pardiso", "cholmod")
    ],
)


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
