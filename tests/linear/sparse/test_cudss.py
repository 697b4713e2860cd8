"""cuDSS: the whole solve on a GPU, and without one how nvmath's solver is used, with one in its place that counts."""

import gc
import sys
import types

import numpy as np
import pytest
import torch
from torch.func import jacrev

import mslsq
from mslsq.linear.block_structure import analyze
from mslsq.linear.sparse.backends import BackendMissingError, cudss

F64 = torch.float64


class DirectSolver:
    """Solves as nvmath's of that name does: by pointers to the operands of its making, planned for their shapes."""

    made = 0
    plans = 0
    freed = 0

    def __init__(self, a: torch.Tensor, b: torch.Tensor, *, options: types.SimpleNamespace) -> None:
        assert a.layout == torch.sparse_csr and a.crow_indices().dtype == torch.int32
        assert (options.sparse_system_type, options.sparse_system_view) == ("SPD", "UPPER")
        self.indptr, self.columns, self.entries, self.rhs = a.crow_indices(), a.col_indices(), a.values(), b
        self.factor = None
        DirectSolver.made += 1

    def plan(self) -> None:
        DirectSolver.plans += 1

    def factorize(self) -> types.SimpleNamespace:
        whole = torch.zeros(len(self.rhs), len(self.rhs), dtype=F64)
        rows = torch.repeat_interleave(self.indptr.diff())
        whole[rows, self.columns.long()] = self.entries
        assert torch.equal(whole, whole.triu())
        self.factor, info = torch.linalg.cholesky_ex(whole.triu(1).T + whole)
        return types.SimpleNamespace(info=int(info))

    def solve(self) -> torch.Tensor:
        return torch.cholesky_solve(self.rhs[:, None], self.factor)[:, 0]

    def free(self) -> None:
        DirectSolver.freed += 1


@pytest.fixture
def stand_in(monkeypatch):
    """nvmath's module with that solver in it, for the CPU."""
    module = types.ModuleType("nvmath.sparse.advanced")
    module.DirectSolver, module.DirectSolverOptions = DirectSolver, types.SimpleNamespace
    module.DirectSolverMatrixType = types.SimpleNamespace(SPD="SPD")
    module.DirectSolverMatrixViewType = types.SimpleNamespace(UPPER="UPPER")
    bindings = types.ModuleType("nvmath.bindings.cudss")
    bindings.get_property = lambda which: 0
    for name in ("nvmath", "nvmath.sparse", "nvmath.bindings"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "nvmath.sparse.advanced", module)
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cudss", bindings)
    monkeypatch.setattr(cudss, "DEVICE", "cpu")
    for count in ("made", "plans", "freed"):
        monkeypatch.setattr(DirectSolver, count, 0)
    return bindings


def systems(batch: int = 3, device: str = "cpu") -> tuple:
    pairs = np.array([1, 2, 4, 3]), np.array([0, 1, 0, 2])
    structure = analyze(np.array([3, 2, 2, 1, 3]), *pairs, device=torch.device(device))
    diagonal = structure.diagonal_index.cpu()
    generator = torch.Generator().manual_seed(0)
    values = 0.3 * torch.randn(batch, structure.num_values, generator=generator, dtype=F64)
    values[:, diagonal] = 4.0
    values[1, diagonal[4]] = -3.0
    damping, rhs = torch.rand(2, batch, 11, generator=generator, dtype=F64)
    return structure, *(tensor.to(device) for tensor in (values, damping, rhs))


def compare(other: mslsq.linear.SparseCholesky, device: str, tolerance: float) -> None:
    """Steps, products and derivatives of a batch, one of its matrices indefinite, beside those of our own kernels."""
    structure, *tensors = systems()
    values, damping, rhs = tensors
    own = mslsq.linear.SparseCholesky().bound(structure, {})
    there = [tensor.to(device) for tensor in tensors]
    for shift, moved in ((damping, there[1]), (None, None)):
        expected, good = own.solve(values, rhs, shift)
        step, solved = other.solve(there[0], there[2], moved)
        assert solved.tolist() == good.tolist() == [True, False, True]
        torch.testing.assert_close(step.cpu()[good], expected[good], rtol=tolerance, atol=tolerance)
    factor, definite = other.definite_factor(there[0])[:2]
    assert definite.tolist() == [True, False, True]
    results = other.solve_factored(factor, there[2]), other.storage.product(there[0], there[2])
    wanted = own.solve_factored(own.definite_factor(values).factor, rhs), own.storage.product(values, rhs)
    for result, expected in zip(results, wanted, strict=True):
        torch.testing.assert_close(result.cpu()[good], expected[good], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(other.storage.diagonal(there[0]).cpu(), own.storage.diagonal(values))


def test_one_plan_serves_a_batch_and_its_derivatives(stand_in):
    structure, *_ = systems()
    compare(mslsq.linear.SparseCholesky("cudss").bound(structure, {}), "cpu", 1e-12)
    # `compare` has a structure of its own: one analysis
    assert (DirectSolver.made, DirectSolver.plans) == (1, 1)


def test_a_structure_that_is_gone_frees_what_it_held_on_the_device(stand_in):
    structure, values, damping, rhs = systems()
    mslsq.linear.SparseCholesky("cudss").bound(structure, {}).solve(values, rhs, damping)
    assert DirectSolver.freed == 0
    del structure
    gc.collect()
    assert DirectSolver.freed == 1


def test_what_is_missing_is_said(stand_in, monkeypatch):
    structure, *_ = systems()

    def not_found(which):
        raise RuntimeError("libcudss.so.0: not found")

    monkeypatch.setattr(stand_in, "get_property", not_found)
    with pytest.raises(BackendMissingError, match="nvmath-python"):
        mslsq.linear.SparseCholesky("cudss").bound(structure, {})


def test_a_problem_on_the_cpu_is_told_to_move(stand_in, monkeypatch):
    structure, values, damping, rhs = systems()
    monkeypatch.setattr(cudss, "DEVICE", "cuda")
    with pytest.raises(ValueError, match="is on cpu"):
        mslsq.linear.SparseCholesky("cudss").bound(structure, {}).solve(values, rhs, damping)


@pytest.mark.parametrize(("backend", "there"), [("auto", True), ("mslsq", False), ("pardiso", False), ("cudss", True)])
def test_devices_other_than_the_cpu_have_it_where_it_is_installed(monkeypatch, backend, there):
    solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.SparseCholesky(backend))
    structure, *_ = systems()
    for installed in (False, True):
        monkeypatch.setattr("mslsq.linear.sparse.solver.is_installed", lambda found=installed: found)
        expected = there and (installed or backend == "cudss")
        assert solver.linear.is_sparse_anywhere(structure, {}) == expected
        if expected:
            assert solver.linear.chosen(11, True, on_cpu=False).summary() == "SparseCholesky (cudss)"
        assert isinstance(solver.linear.chosen(11, False, on_cpu=False), mslsq.linear.Cholesky)


@mslsq.cost
def bend(a: torch.Tensor, b: torch.Tensor, measured: torch.Tensor) -> torch.Tensor:
    return b - torch.sin(a) - measured


def end_of_a_chain(data: torch.Tensor, linear, device: str = "cpu") -> torch.Tensor:
    """The last variable of a chain of 200, as a function of its measurements."""
    count = 200
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=count)
    i = torch.arange(count - 1)
    anchor = mslsq.Prior(x, target=torch.zeros(count, 2, dtype=F64), weight=2.0)
    problem = mslsq.Problem(bend(x[i], x[i + 1], measured=torch.zeros(count - 1, 2, dtype=F64)), anchor).to(device)
    solver = mslsq.LevenbergMarquardt(linear_solver=linear, verbose=True)
    start = {"x": torch.zeros(count, 2, dtype=F64, device=device)}
    return mslsq.solve(problem, start, {"bend": {"measured": data}}, solver=solver).value["x"][-1]


MEASURED = torch.randn(199, 2, generator=torch.Generator().manual_seed(0), dtype=F64)


def with_derivatives(data: torch.Tensor, linear, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    return end_of_a_chain(data, linear, device), jacrev(lambda moved: end_of_a_chain(moved, linear, device))(data)


def test_a_whole_solve_and_its_derivatives_use_nothing_else(stand_in, capsys):
    expected = with_derivatives(MEASURED, mslsq.linear.SparseCholesky("mslsq"))
    capsys.readouterr()
    for result, wanted in zip(with_derivatives(MEASURED, mslsq.linear.SparseCholesky("cudss")), expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=1e-8)
    assert "SparseCholesky (cudss)" in capsys.readouterr().out


@pytest.mark.cuda
@pytest.mark.skipif(not cudss.is_installed(), reason="needs a GPU and nvmath-python[cu13] with cuDSS")
def test_on_a_gpu_it_solves_what_our_own_kernels_solve():
    structure, *_ = systems(device="cuda")
    compare(mslsq.linear.SparseCholesky("cudss").bound(structure, {}), "cuda", 1e-11)


@pytest.mark.cuda
@pytest.mark.skipif(not cudss.is_installed(), reason="needs a GPU and nvmath-python[cu13] with cuDSS")
@pytest.mark.parametrize("choice", ["auto", mslsq.linear.SparseCholesky()])
def test_on_a_gpu_a_large_problem_takes_it_by_itself(choice, capsys):
    expected = with_derivatives(MEASURED, mslsq.linear.SparseCholesky("mslsq"))
    capsys.readouterr()
    for result, wanted in zip(with_derivatives(MEASURED.cuda(), choice, "cuda"), expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted, rtol=0, atol=1e-8)
    assert "SparseCholesky (cudss)" in capsys.readouterr().out
