"""cuDSS: the whole solve on a GPU; without one how it is called, with a library in its place that factors densely."""

import ctypes
import functools
import gc
import importlib
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import jacrev

import mslsq
from mslsq.kernels.build import compiler
from mslsq.linear.block_structure import analyze
from mslsq.linear.sparse.backends import BackendMissingError, cudss, cudss_library, cudss_proof
from mslsq.linear.sparse.backends.cudss_library import ANALYSIS, FACTORIZATION, SOLVE, Cudss

F64 = torch.float64


@pytest.fixture(scope="module")
def substitute(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("cudss") / "libcudss.so.1"
    text = Path(__file__).with_name("cudss_substitute.cpp")
    subprocess.run([*compiler(), "-std=c++17", "-O1", "-shared", "-fPIC", str(text), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture
def stand_in(substitute: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """That library in the place of cuDSS, for the CPU."""
    substitute.substitute_reset()
    known = Cudss(substitute)
    for module in (cudss, cudss_proof):
        monkeypatch.setattr(module, "cudss", lambda: known)
    monkeypatch.setattr(cudss, "DEVICE", "cpu")
    monkeypatch.setattr(cudss_proof, "_read", functools.cache(dict))
    return substitute


@pytest.fixture(params=["alone", "together"])
def proved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Have batches proved themselves?"""
    monkeypatch.setattr(cudss, "is_proved", lambda what, device: what == request.param)
    return request.param == "together"


def executed(stand_in: ctypes.CDLL) -> list[int]:
    return [stand_in.substitute_count(phase) for phase in (ANALYSIS, FACTORIZATION, SOLVE)]


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


def test_a_batch_and_its_derivatives_are_solved(stand_in, proved):
    structure, *_ = systems()
    compare(mslsq.linear.SparseCholesky("cudss").bound(structure, {}), "cpu", 1e-12)
    # `compare` has a structure of its own: one analysis for single matrices, and one for three of them and an identity.
    assert executed(stand_in)[0] == (2 if proved else 1)


def test_a_batch_is_one_factorisation_where_that_has_proved_itself(stand_in, proved):
    structure, values, damping, rhs = systems()
    good = values[[0, 2, 0, 2, 2]]
    solver = mslsq.linear.SparseCholesky("cudss").bound(structure, {})
    solver.solve(good, rhs[[0, 2, 0, 2, 2]], damping[[0, 2, 0, 2, 2]])
    assert executed(stand_in) == ([1, 1, 1] if proved else [1, 5, 5])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bad", [[0], [4], [1, 3], [0, 1, 2, 3, 4]])
def test_a_matrix_without_a_factor_is_found_at_every_place_and_harms_no_other(stand_in, proved, bad):
    structure, values, damping, rhs = systems()
    batch = values[0].repeat(5, 1)
    batch[bad] = values[1]
    batch[0, 0] = torch.nan if bad == [4] else batch[0, 0]
    solver, own = mslsq.linear.SparseCholesky("cudss"), mslsq.linear.SparseCholesky()
    given = batch, rhs[0].repeat(5, 1), damping[0].repeat(5, 1)
    solutions, solved = solver.bound(structure, {}).solve(*given)
    expected, known = own.bound(structure, {}).solve(*given)
    assert torch.equal(solved, known) and not solved[bad].any()
    torch.testing.assert_close(solutions[solved], expected[known], rtol=1e-12, atol=1e-12)
    assert solutions[~solved].isnan().all()


def test_a_batch_that_becomes_smaller_is_planned_by_halves(stand_in, monkeypatch):
    monkeypatch.setattr(cudss, "is_proved", lambda what, device: True)
    structure, values, _, rhs = systems()
    solver = mslsq.linear.SparseCholesky("cudss").bound(structure, {})
    own = mslsq.linear.SparseCholesky().bound(structure, {})
    for count in (8, 7, 5, 4, 3, 2, 1, 8):
        given = values[:1].repeat(count, 1) * torch.arange(1.0, count + 1, dtype=F64)[:, None], rhs[:1].repeat(count, 1)
        torch.testing.assert_close(solver.solve(*given, None), own.solve(*given, None))
    assert executed(stand_in)[0] == 5  # 8, 4, 2, 1, and 8 once more: two are kept


@pytest.mark.sampled(1)
def test_a_structure_that_is_gone_frees_what_it_held_on_the_device(stand_in, proved):
    gc.collect()
    before = stand_in.substitute_alive()
    structure, values, damping, rhs = systems()
    mslsq.linear.SparseCholesky("cudss").bound(structure, {}).solve(values, rhs, damping)
    assert stand_in.substitute_alive() > before
    del structure
    gc.collect()
    assert stand_in.substitute_alive() == before


def test_what_is_missing_is_said(monkeypatch):
    structure, *_ = systems()
    monkeypatch.setattr(cudss_library, "_candidates", lambda: iter(["/nowhere/libcudss.so.1"]))
    cudss_library.cudss.cache_clear()
    with pytest.raises(BackendMissingError, match="nvidia-cudss-cu13"):
        mslsq.linear.SparseCholesky("cudss").bound(structure, {})


def test_another_version_is_refused(substitute, monkeypatch):
    substitute.substitute_version(2)
    try:
        with pytest.raises(ImportError, match=r"cuDSS 2.0.0 was found, and 1.0"):
            Cudss(substitute)
    finally:
        substitute.substitute_version(1)


def test_a_call_that_fails_is_said(stand_in):
    with pytest.raises(RuntimeError, match="cudssConfigSet of cuDSS failed: invalid value"):
        cudss.cudss().call("cudssConfigSet", None, 3, None, 4)


def test_what_has_proved_itself_is_kept_by_device_and_version(stand_in, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("MSLSQ_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(cudss_proof, "cudss", lambda: Cudss(stand_in))
    cudss_proof._read.cache_clear()
    cpu = torch.device("cpu")
    assert not cudss_proof.is_proved("alone", cpu)
    path = cudss_proof.record(cpu, ["alone"])
    assert "cpu, cuDSS 1.0.0" in path.read_text()
    assert cudss_proof.is_proved("alone", cpu) and not cudss_proof.is_proved("together", cpu)
    cudss_proof.record(cpu, ["alone", "together"])
    assert cudss_proof.is_proved("together", cpu)
    path.write_text("{")  # cut off
    cudss_proof._read.cache_clear()
    assert not cudss_proof.is_proved("alone", cpu)
    cudss_proof._read.cache_clear()


def test_a_problem_on_the_cpu_is_told_to_move(stand_in, monkeypatch):
    structure, values, damping, rhs = systems()
    monkeypatch.setattr(cudss, "DEVICE", "cuda")
    with pytest.raises(ValueError, match="is on cpu"):
        mslsq.linear.SparseCholesky("cudss").bound(structure, {}).solve(values, rhs, damping)


@pytest.mark.parametrize(("backend", "there"), [("auto", True), ("mslsq", False), ("pardiso", False), ("cudss", True)])
def test_devices_other_than_the_cpu_have_it_where_it_has_proved_itself(monkeypatch, backend, there):
    solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.SparseCholesky(backend))
    structure, *_ = systems()
    for installed in (False, True):
        monkeypatch.setattr("mslsq.linear.sparse.solver.is_taken", lambda found=installed: found)
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


def test_a_whole_solve_and_its_derivatives_use_nothing_else(stand_in, proved, capsys):
    expected = with_derivatives(MEASURED, mslsq.linear.SparseCholesky("mslsq"))
    capsys.readouterr()
    for result, wanted in zip(with_derivatives(MEASURED, mslsq.linear.SparseCholesky("cudss")), expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=1e-8)
    assert "SparseCholesky (cudss)" in capsys.readouterr().out


needs_it = pytest.mark.skipif(
    not (torch.cuda.is_available() and cudss.is_installed()), reason="needs a GPU and cuDSS 1.0 (nvidia-cudss-cu13)"
)


@pytest.mark.cuda
@needs_it
def test_on_a_gpu_it_solves_what_our_own_kernels_solve(proved):
    structure, *_ = systems(device="cuda")
    compare(mslsq.linear.SparseCholesky("cudss").bound(structure, {}), "cuda", 1e-11)


@pytest.mark.cuda
@needs_it
@pytest.mark.parametrize("choice", ["auto", mslsq.linear.SparseCholesky()])
def test_on_a_gpu_a_large_problem_takes_it_by_itself(choice, proved, capsys, monkeypatch):
    monkeypatch.setattr("mslsq.linear.sparse.solver.is_taken", lambda: True)
    expected = with_derivatives(MEASURED, mslsq.linear.SparseCholesky("mslsq"))
    capsys.readouterr()
    for result, wanted in zip(with_derivatives(MEASURED.cuda(), choice, "cuda"), expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted, rtol=0, atol=1e-8)
    assert "SparseCholesky (cudss)" in capsys.readouterr().out


@pytest.fixture
def proving(stand_in, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What `make cuda` asks, in small on the CPU; its records go to a folder of their own."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    monkeypatch.setenv("MSLSQ_CACHE_DIR", str(tmp_path / "kept"))
    cudss_module = importlib.import_module("cuda_cudss")
    monkeypatch.setattr(cudss_module, "REPEATS", 1)
    return cudss_module


def test_what_make_cuda_asks_is_answered(proving, monkeypatch, capsys):
    ways = {"dense": 3.0, "cuDSS": 2.0, "cuDSS, one after the other": 2.0, "cuDSS, together": 1.0}
    monkeypatch.setattr(proving, "seconds", lambda work, device: (work(), ways[times.pop(0)])[1])
    times = ["dense", "cuDSS", "dense", "cuDSS, one after the other", "cuDSS, together"]
    assert proving.look(torch.device("cpu"), small=True) == ["alone", "together"]
    page = capsys.readouterr().out
    assert page.count("| yes") == 5 and "Proved: alone, together; kept in " in page


@pytest.mark.parametrize(
    ("slow", "expected"), [("cuDSS", []), ("cuDSS, together", ["alone"]), ("cuDSS, one after the other", None)]
)
def test_what_is_slower_has_not_proved_itself(proving, monkeypatch, slow, expected):
    times = ["dense", "cuDSS", "dense", "cuDSS, one after the other", "cuDSS, together"]
    monkeypatch.setattr(proving, "seconds", lambda work, device: 9.0 if times.pop(0) == slow else len(times) + 1.0)
    _, proved = proving.prove(torch.device("cpu"), small=True)
    assert proved == (["alone", "together"] if expected is None else expected)


def test_a_library_that_does_not_tell_of_a_pivot_in_a_batch_has_not_proved_itself(proving, substitute, monkeypatch):
    monkeypatch.setattr(proving, "seconds", lambda work, device: 1.0)
    substitute.substitute_silent(1)
    try:
        rows, proved = proving.prove(torch.device("cpu"), small=True)
    finally:
        substitute.substitute_silent(0)
    assert "together" not in proved and [row[-1] for row in rows] == ["yes", "yes", "yes", "yes", "no"]
