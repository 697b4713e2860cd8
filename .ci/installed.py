"""Is the package that is installed here the one expected? `python -I .ci/installed.py "with kernels"` (or "without").

A large sparse problem is solved with the packaged kernels, and no warning; or without any, one warning that says so and
the same answer.
"""

import sys
import warnings
from pathlib import Path

import torch

import mslsq
from mslsq.datasets.synthetic_graphs import ring_graph
from mslsq.kernels import KernelsMissingWarning, target
from mslsq.kernels.build import NAME, CompilerError, compiler


def solved(linear_solver: mslsq.linear.Cholesky | mslsq.linear.SparseCholesky) -> torch.Tensor:
    made = ring_graph(laps=3, per_lap=40).graph
    solver = mslsq.LevenbergMarquardt(linear_solver=linear_solver)
    return mslsq.solve(made.problem(), {"pose": made.poses}, solver=solver).cost


def check(with_kernels: bool) -> None:
    package = Path(mslsq.__file__).parent
    assert package.is_relative_to(sys.prefix), f"this is not what was installed: {package}"
    try:
        raise AssertionError(f"there is a compiler: {compiler()}")
    except CompilerError:
        pass
    assert (package / "kernels" / NAME).exists() == with_kernels, f"kernels in {package}: {not with_kernels}"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = solved(mslsq.linear.SparseCholesky())
    missing = [one for one in said if issubclass(one.category, KernelsMissingWarning)]
    assert len(missing) == (0 if with_kernels else 1), [str(one.message) for one in said]
    torch.testing.assert_close(found, solved(mslsq.linear.Cholesky()), rtol=1e-9, atol=0)
    print(f"{package}: solved with {f'the kernels for {target()}' if with_kernels else 'SciPy, and a warning'}")


check({"with kernels": True, "without kernels": False}[sys.argv[1]])
