"""`import mslsq` costs little beside `import torch`: nothing heavy comes along, whatever it is needed for later."""

import os
import subprocess
import sys

import pytest

HEAVY = {
    "scipy.sparse": "130 ms: only one big residual and starts for pose graphs need it",
    "scipy.linalg": "60 ms",
    "numba": "300 ms",
    "llvmlite": "comes with numba",
    "torch._dynamo": "a second: only torch.compile needs it",
    "torch._inductor": "a second: only compile=True needs it",
    "sympy": "300 ms: PyTorch loads it for symbolic shapes",
    "matplotlib": "only pictures need it",
    "PIL": "only pictures need it",
    "hydra": "only the scripts need it",
    "jax": "a peer, in benchmarks alone",
    "mslsq.distributed": "only many processes need it",
    "mslsq.plotting": "stands on the front doors, like a user's code",
    "mslsq.alignment": "stands on the front doors, like a user's code",
    "mslsq.datasets": "stands on the front doors, like a user's code",
}

SMALL_SOLVE = """
import torch, mslsq
pose = mslsq.Variable("pose", mslsq.SE2, count=3)
first, second = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
edges = mslsq.Between(pose[first], pose[second], measured=mslsq.SE2.from_xyt(torch.ones(3, 3)))
problem = mslsq.Problem(edges, mslsq.Prior(pose[[0]], target=mslsq.SE2.identity(1)))
mslsq.solve(problem, {"pose": mslsq.SE2.identity(3)})
"""
"""Jacobians in closed form."""

READ = """
import mslsq.datasets.g2o, mslsq.datasets.toro, mslsq.datasets.bal
"""


def loaded_by(code: str) -> set[str]:
    """The modules that a new process has after `import torch; import numpy` and this."""
    report = "import sys; print('\\n'.join(sys.modules))"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def beside_torch() -> set[str]:
    """What `import torch` loads by itself, in this version."""
    return loaded_by("import torch, numpy")


@pytest.mark.parametrize("code", ["import mslsq", SMALL_SOLVE], ids=["import", "a small solve"])
def test_nothing_heavy_is_imported(code, beside_torch):
    found = (loaded_by(code) - beside_torch) & set(HEAVY)
    assert not found, {name: HEAVY[name] for name in found}


def test_readers_of_files_import_no_sparse_matrices(beside_torch):
    found = (loaded_by(READ) - beside_torch) & (set(HEAVY) - {"mslsq.datasets"})
    assert not found, {name: HEAVY[name] for name in found}


def test_importing_mslsq_loads_nothing_more_of_torch(beside_torch):
    """What `import torch` leaves out is left out for its time: torch._dynamo takes longer than all the rest."""
    assert not {name for name in loaded_by("import mslsq") - beside_torch if name.startswith("torch.")}
