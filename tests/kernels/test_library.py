"""The compiled kernels: handed arrays safely, and the same on every instruction set."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import mslsq.kernels.library as library
from mslsq.kernels import Kernel
from mslsq.kernels.build import CompilerError, build, sources_hash, targets
from tests.kernels.instruction_sets import arrays_of_both

pytestmark = pytest.mark.kernels
coloring = Kernel("greedy_coloring", "nllll")
product = Kernel("symmetric_product", "nnnTnTTnlnl")


def test_the_library_says_which_sources_it_was_made_of():
    assert library._library()[0].mslsq_sources().decode() == sources_hash()


def test_an_array_of_the_wrong_type_is_refused_before_its_memory_is_read():
    start, neighbour, order, colors = np.array([0, 1, 2]), np.array([1, 0]), np.arange(2), np.empty(2, np.int64)
    coloring(2, start, neighbour, order, colors)
    assert colors.tolist() == [0, 1]
    with pytest.raises(TypeError, match="int32"):
        coloring(2, start.astype(np.int32), neighbour, order, colors)
    with pytest.raises(ValueError, match="not contiguous"):
        coloring(2, np.zeros(6, np.int64)[::2], neighbour, order, colors)
    table, x = torch.zeros(0, 7, dtype=torch.int64), torch.zeros(1, 2)
    with pytest.raises(TypeError, match="expected float64 or float32"):
        product(1, 1, 2, x.half(), 0, x, x, 0, table, 0, table)
    with pytest.raises(TypeError, match="float64"):
        product(1, 1, 2, x, 0, x.double(), x, 0, table, 0, table)
    with pytest.raises(ValueError, match="not contiguous"):
        product(1, 1, 2, x, 0, torch.zeros(2, 2).T, x, 0, table, 0, table)


def test_what_does_not_compile_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(CompilerError, match="false"):
        build(tmp_path / "library.so")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_kept_where_that_is_asked_for():
    """Ten tensors of 64 MB one after the other: mapped again they take ten times their pages' faults, kept once."""
    program = """
import resource, torch, mslsq.kernels
assert mslsq.kernels.keep_freed_memory()
torch.ones(2**23, dtype=torch.float64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**23, dtype=torch.float64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) <= 2 * 2**26 // 4096  # pages of two tensors, not of ten


SOLVE = """
import torch, mslsq, numpy as np
from mslsq.linear.block_structure import analyze
from mslsq.linear.sparse.multifrontal import factor, solve
torch.manual_seed(0)
rng = np.random.default_rng(0)
found = []
for dtype in (np.float64, np.float32):  # a Cholesky with blocks of two sizes, one and many right-hand sides
    sizes = rng.integers(1, 8, 60)
    rows, cols = rng.integers(0, 60, 150), rng.integers(0, 60, 150)
    structure = analyze(sizes, rows, cols)
    values = 0.1 * rng.standard_normal((2, structure.num_values))
    values[:, structure.diagonal_index.numpy()] = 20
    matrix, plan = torch.from_numpy(values.astype(dtype)), structure.elimination.packed
    factored = factor(matrix, matrix.new_zeros(0), *plan)
    for k in (1, 11):
        rhs = torch.from_numpy(rng.standard_normal((2, structure.num_unknowns, k)).astype(dtype))
        found.append(solve(*factored, rhs, *plan).numpy())
camera, point = mslsq.Variable("camera", mslsq.Euclidean(9), 12), mslsq.Variable("point", mslsq.Euclidean(3), 80)
@mslsq.cost
def seen(c, p, *, seen_at):
    return torch.stack((c[:3] @ p + c[6] * p[0] ** 2, c[3:6] @ p + c[7] * c[8])) - seen_at
i, j = torch.randint(12, (600,)), torch.randint(80, (600,))
problem = mslsq.Problem(seen(camera[i], point[j], seen_at=torch.randn(600, 2, dtype=torch.float64)),
    mslsq.Prior(camera, target=torch.zeros(12, 9, dtype=torch.float64)),
    mslsq.Prior(point, target=torch.ones(80, 3, dtype=torch.float64), name="points"))
start = {"camera": torch.randn(12, 9, dtype=torch.float64), "point": torch.randn(80, 3, dtype=torch.float64)}
iterative = mslsq.linear.ConjugateGradient(tolerance=1e-12, forcing="constant")
for linear in (mslsq.linear.Schur(), mslsq.linear.SparseCholesky(), iterative):
    solver = mslsq.LevenbergMarquardt(linear_solver=linear, max_steps=6)
    found.append(mslsq.solve(problem, start, solver=solver).value["point"].numpy())
np.savez(OUT, *found)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", [name for name in targets() if name != "avx512"])
def test_every_instruction_set_gives_the_same_numbers(target, tmp_path):
    for one, other in arrays_of_both(SOLVE, target, tmp_path):
        assert np.isfinite(one).all()
        tolerance = 1e-4 if one.dtype == np.float32 else 1e-8  # sums in another order, six steps of them
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_arrays_that_may_not_be_written_and_empty_ones_are_read_too():
    parent, order = np.array([2, 2, -1], np.int32), np.empty(3, np.int32)
    parent.flags.writeable = False
    postorder = Kernel("postorder", "nii")
    postorder(3, parent, order)
    assert order.tolist() == [0, 1, 2]
    postorder(0, parent[:0], np.empty(0, np.int32))
