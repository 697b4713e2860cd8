"""CONTRIBUTING.md is true: its files exist, its tower is the import linter's, and each thing that it tells of can
be added in the files that it names and no others."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
NAMED = re.compile(r"`([\w./-]+/[\w./-]+)`")

Edits = dict[str, list[tuple[str, str]] | str]
"""What is done to each file: replacements, or the whole of a new one."""


def rows(first_column: str) -> list[list[str]]:
    """The cells of the table that begins with this heading."""
    table = PAGE.split(f"| {first_column} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def files_to_touch(thing: str) -> set[str]:
    (row,) = [row for row in rows("to add") if row[0] == thing]
    return set(NAMED.findall(row[1] + row[2]))


def test_every_file_that_the_page_names_exists():
    elsewhere = ("build/", "../")
    named = {path for path in NAMED.findall(PAGE) if "NAME" not in path and not path.startswith(elsewhere)}
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    folders = {Path(path).parent for path in NAMED.findall(PAGE) if "NAME" in path}
    assert [folder for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []


def test_the_tower_is_that_of_the_import_linter():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (tower,) = [contract for contract in contracts if contract["type"] == "layers"]
    linted = [set(re.findall(r"\w+", layer)) for layer in tower["layers"]]
    assert [set(re.findall(r"`(\w+)`", row[1])) for row in rows("floor")] == linted
    assert [int(row[0]) for row in rows("floor")] == list(range(len(linted), 0, -1))


EXPORTED = '__version__ = "0.1.0"\n\n__all__ = [\n'


def exported(line: str, name: str) -> list[tuple[str, str]]:
    """The package's own `__init__.py` with one name more."""
    return [(EXPORTED, f'{line}\n{EXPORTED}    "{name}",\n')]


def listed(line: str, name: str) -> list[tuple[str, str]]:
    """The `__init__.py` of a room with one name more."""
    return [("\n__all__ = [\n", f'{line}\n\n__all__ = [\n    "{name}",\n')]


LOSS: Edits = {
    "mslsq/losses/logarithmic.py": '''"""The logarithm of the squared residual."""

import torch

from mslsq.losses.robust_loss import RobustLoss


class Logarithmic(RobustLoss):
    """ρ(s) = c² log(1 + s/c²)."""

    tuning = 2.385

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        return c2 * torch.log1p(s / c2)

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        weight = 1 / (1 + s / c2)
        return c2 * torch.log1p(s / c2), weight, -weight * weight / c2
''',
    "mslsq/losses/__init__.py": [
        ("__all__ = [", 'from mslsq.losses.logarithmic import Logarithmic\n\n__all__ = ["Logarithmic", ')
    ],
    "mslsq/__init__.py": exported("from mslsq.losses import Logarithmic", "Logarithmic"),
}
USES_LOSS = """
y = torch.tensor([1.0, 1.1, 0.9, 50.0], dtype=torch.float64)
found = [
    mslsq.least_squares(lambda x: x - y, torch.ones(1, dtype=torch.float64), loss=loss).value
    for loss in (mslsq.Logarithmic(0.3), mslsq.Cauchy(0.3))
]
assert torch.allclose(*found, atol=1e-9)
"""

SOLVER: Edits = {
    "mslsq/solvers/fixed_damping.py": '''"""Levenberg's method with one damping for all steps."""

from dataclasses import dataclass

import torch

from mslsq.solvers.gauss_newton import StepLength
from mslsq.solvers.solver import Proposal, Solver


@dataclass(frozen=True)
class FixedDamping(Solver):
    """Solves (JᵀJ + μ I) p = −Jᵀr with a constant μ."""

    mu: float = 1e-3

    def start(self, model, linear, sizes):
        return StepLength(torch.ones_like(model.cost))

    def propose(self, model, state, linear):
        damping = torch.full_like(model.gradient, self.mu)
        step, solved = linear.solve(model.matrix, model.rhs, damping)
        predicted = -0.5 * (model.gradient * step).sum(-1)
        return Proposal(step, predicted, solved, torch.ones_like(solved), damping)

    def update(self, state, model, proposal, gain, accepted, linear):
        return state

    def exhausted(self, state):
        return torch.zeros_like(state.length, dtype=torch.bool)

    def damping(self, state):
        return torch.full_like(state.length, self.mu)
''',
    "mslsq/solvers/__init__.py": [
        ("__all__ = [", 'from mslsq.solvers.fixed_damping import FixedDamping\n\n__all__ = ["FixedDamping", ')
    ],
    "mslsq/__init__.py": exported("from mslsq.solvers import FixedDamping", "FixedDamping"),
}
USES_SOLVER = """
t = torch.linspace(0, 1, 20, dtype=torch.float64)
truth = torch.tensor([2.0, 1.0], dtype=torch.float64)
decay = lambda p: p[0] * torch.exp(-p[1] * t)
solver = mslsq.FixedDamping(mu=1e-4)
solution = mslsq.least_squares(lambda p: decay(p) - decay(truth), 0.9 * truth, solver=solver)
assert solution.converged and torch.allclose(solution.value, truth, atol=1e-6), solution.message()
"""

LINEAR_SOLVER: Edits = {
    "mslsq/linear/elimination_with_pivots.py": '''"""LU factorisation with pivots of the normal equations."""

from dataclasses import dataclass

import torch

from mslsq.linear.dense import DenseSolver
from mslsq.linear.storage import DenseNormal, Storage


@dataclass(frozen=True)
class LU(DenseSolver):
    """LU factorisation of JᵀJ, dense."""

    @property
    def storage(self) -> Storage:
        return DenseNormal()

    def solve(self, matrix, rhs, damping):
        if damping is not None:
            matrix = matrix + torch.diag_embed(damping.reshape(matrix.shape[:-1]))
        step, info = torch.linalg.solve_ex(matrix, rhs.reshape(matrix.shape[:-1]))
        return -step.reshape(rhs.shape), (info == 0).all(-1)
''',
    "mslsq/linear/__init__.py": listed("from mslsq.linear.elimination_with_pivots import LU", "LU"),
}
USES_LINEAR_SOLVER = """
x = mslsq.Variable("x", mslsq.Euclidean(1), count=3)
target = torch.ones(3, 1, dtype=torch.float64)
problem = mslsq.Problem(mslsq.Prior(x, target=target))
data = target.clone().requires_grad_()
solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.LU())
solution = mslsq.solve(problem, {"x": 0 * target}, {"prior": {"target": data}}, solver=solver)
solution.value["x"].sum().backward()
assert torch.allclose(solution.value["x"], target) and torch.allclose(data.grad, target)
"""

MANIFOLD: Edits = {
    "mslsq/manifolds/positive.py": '''"""Positive numbers, moved by factors."""

from __future__ import annotations

import torch

from mslsq.manifolds.base import Manifold


class Positive(Manifold):
    """A number > 0: `retract` multiplies by exp(δ)."""

    storage_dim = 1
    tangent_dim = 1

    def retract(self, delta):
        return self._wrap(self.storage * delta.exp())

    def local(self, other):
        return (other.storage / self.storage).log()

    @classmethod
    def identity(cls, *batch_shape, dtype=None, device=None):
        return cls._wrap(torch.ones(*batch_shape, 1, dtype=dtype, device=device))
''',
    "mslsq/manifolds/__init__.py": listed("from mslsq.manifolds.positive import Positive", "Positive"),
    "mslsq/__init__.py": exported("from mslsq.manifolds import Positive", "Positive"),
}
USES_MANIFOLD = """
size = mslsq.Variable("size", mslsq.Positive, count=2)
seen = torch.tensor([[2.0], [5.0]], dtype=torch.float64)
problem = mslsq.Problem(mslsq.Prior(size, target=mslsq.Positive(seen)))
solution = mslsq.solve(problem, {"size": mslsq.Positive.identity(2, dtype=torch.float64)})
assert torch.allclose(solution.value["size"].storage, seen)
"""

FACTOR: Edits = {
    "mslsq/factors/height.py": '''"""The height of a pose is measured."""

from mslsq.factors.places import place_of
from mslsq.problem import CostFunction


class Height(CostFunction):
    """The residual (1,) is the height of a pose or a point, minus measured."""

    def residual(self, pose, measured):
        return place_of(pose)[2:] - measured
''',
    "mslsq/factors/__init__.py": listed("from mslsq.factors.height import Height", "Height"),
}
USES_FACTOR = """
from mslsq import factors
pose = mslsq.Variable("pose", mslsq.SE3)
cost = factors.Height(pose, measured=torch.tensor([[3.0]], dtype=torch.float64))
assert mslsq.check_jacobian(cost).ok
assert mslsq.solve(mslsq.Problem(cost), {"pose": mslsq.SE3.identity(dtype=torch.float64)}).cost < 1e-20
"""

COST: Edits = {
    "mslsq/problem/distance.py": '''"""A distance between two points is measured."""

import torch

from mslsq.problem.cost import CostFunction


class Distance(CostFunction):
    """The residual is |a − b| − measured."""

    def residual(self, a, b, measured):
        return torch.linalg.vector_norm(a - b)[None] - measured

    def jacobians(self, a, b, measured):
        direction = ((a - b) / torch.linalg.vector_norm(a - b))[None]
        return direction, -direction
''',
    "mslsq/problem/__init__.py": listed("from mslsq.problem.distance import Distance", "Distance"),
    "mslsq/__init__.py": exported("from mslsq.problem import Distance", "Distance"),
}
USES_COST = """
point = mslsq.Variable("point", mslsq.Euclidean(2), count=3)
i, j = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2])
cost = mslsq.Distance(point[i], point[j], measured=torch.tensor([[3.0], [4.0], [5.0]], dtype=torch.float64))
assert cost.name == "distance" and mslsq.check_jacobian(cost).ok
start = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
solution = mslsq.solve(mslsq.Problem(cost, point.fixed([0])), {"point": start})
assert solution.cost < 1e-20
"""

MODEL: Edits = {
    "mslsq/alignment/models.py": [
        (
            "class Homography(Warp):",
            '''class Stretched(Affine):
    """A similarity and a stretch along the axes: the first five generators."""

    storage_dim = 6
    tangent_dim = 5

    def retract(self, delta):
        return super().retract(torch.nn.functional.pad(delta, (0, 1)))

    def local(self, other):
        return super().local(other)[..., :5]


class Homography(Warp):''',
        ),
        ('    "affine": Affine,\n', '    "stretched": Stretched,\n    "affine": Affine,\n'),
    ],
}
USES_MODEL = """
from mslsq.alignment import align, synthetic

pair = synthetic.make_pair("camera", "sim2", seed=1, size=128)
starts = torch.stack([torch.eye(3).double(), pair.transform])
result = align([pair.reference, pair.moving], model="stretched", init=starts)
assert result.aligned == [0, 1] and result.covariance.shape[-1] == 5, result.message()
assert (result.transforms[1] - pair.transform).abs().max() < 0.1
"""

METRIC: Edits = {
    "mslsq/alignment/metrics/logarithm.py": '''"""Logarithms of values."""

from dataclasses import dataclass
from typing import ClassVar

from mslsq.alignment.metrics.metric import Metric


@dataclass(frozen=True)
class Logarithm(Metric):
    """log(3 + I): what a power or a factor changes least."""

    name: ClassVar[str] = "logarithm"
    words: ClassVar[str] = "the logarithms of the values"

    def level(self, level):
        return level.with_raster((level.raster + 3.0).clamp(min=0.1).log())
''',
    "mslsq/alignment/metrics/__init__.py": [
        (
            "from mslsq.alignment.metrics.metric import",
            "from mslsq.alignment.metrics.logarithm import Logarithm\nfrom mslsq.alignment.metrics.metric import",
        ),
        ("        Occupancy(),\n", "        Occupancy(),\n        Logarithm(),\n"),
    ],
}
USES_METRIC = """
from mslsq.alignment import align, synthetic

pair = synthetic.make_pair("camera", "translation", seed=1, size=128)
result = align([pair.reference, pair.moving], model="translation", metric="logarithm")
assert result.metrics == ["", "logarithm"], result.message()
assert (result.transforms[1] - pair.transform).abs().max() < 0.2
"""

FIGURE: Edits = {
    "mslsq/alignment/measures.py": [
        (
            "def corners(",
            '''def turn_degrees(transform: Float[Tensor, "3 3"]) -> float:
    """The angle by which a warp turns the x axis, in degrees."""
    return float(torch.rad2deg(torch.atan2(transform[1, 0], transform[0, 0])))


def corners(''',
        )
    ],
    "mslsq/alignment/outputs.py": [
        ("import corner_error\n", "import corner_error, turn_degrees\n"),
        (
            '            "gain": _number(result.gain[i]),\n',
            '            "turn_degrees": turn_degrees(result.transforms[i]) if status.ok else None,\n'
            '            "gain": _number(result.gain[i]),\n',
        ),
        ('keep = ("scene",', 'keep = ("turn_degrees", "scene",'),
    ],
}
USES_FIGURE = """
import json
from pathlib import Path
from mslsq.alignment import align
from mslsq.alignment.outputs import Aligned, write_metrics
from mslsq.alignment.scenes import scene_from_bundled

options = {"count": 2, "size": 96, "model": "translation", "shift": 3.0, "degrees": 0.0, "noise": 0.0}
scene = scene_from_bundled("camera", **options, name="scene")
result = align([raster.values for raster in scene.rasters], model="translation")
written = json.loads(write_metrics([Aligned(scene, result)], Path("."), 1.0).read_text())
assert all(abs(record["turn_degrees"]) < 1e-9 for record in written["maps"]), written
"""

KERNEL: Edits = {
    "mslsq/kernels/source/sum_of_squares.cpp": """// The sum of squares of an array.

#include "export.h"
#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

MSLSQ_EXPORT(sum_of_squares, f64)(i64 n, const double* x, double* sum) {
    sum[0] = 0;
    for (i64 k = 0; k < n; k++) sum[0] += x[k] * x[k];
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
""",
}
USES_KERNEL = """
from mslsq.kernels import Kernel, run_on

_sum_of_squares = Kernel("sum_of_squares", "nTT")

def sum_of_squares(x):
    if run_on(x.device):
        total = x.new_empty(1)
        _sum_of_squares(len(x), x.contiguous(), total)
        return total[0]
    return x @ x

x = torch.arange(4.0, dtype=torch.float64)
assert run_on(x.device) and sum_of_squares(x) == 14.0
"""

ADDITIONS = {
    "a loss": (LOSS, USES_LOSS),
    "a solver": (SOLVER, USES_SOLVER),
    "a linear solver": (LINEAR_SOLVER, USES_LINEAR_SOLVER),
    "a manifold": (MANIFOLD, USES_MANIFOLD),
    "a factor of a sensor": (FACTOR, USES_FACTOR),
    "a cost": (COST, USES_COST),
    "an alignment model": (MODEL, USES_MODEL),
    "an image metric": (METRIC, USES_METRIC),
    "a figure of an alignment": (FIGURE, USES_FIGURE),
    "a kernel": (KERNEL, USES_KERNEL),
}


def test_the_page_says_of_each_thing_what_to_touch():
    assert [row[0] for row in rows("to add")] == list(ADDITIONS)


def copy_with(edits: Edits, folder: Path) -> None:
    """The package in another folder, edited."""
    shutil.copytree(ROOT / "mslsq", folder / "mslsq", ignore=shutil.ignore_patterns("__pycache__"))
    for name, change in edits.items():
        path = folder / name
        assert path.exists() != isinstance(change, str), f"{name} is new, or it is not"
        text = change if isinstance(change, str) else path.read_text("utf-8")
        for old, new in () if isinstance(change, str) else change:
            assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
            text = text.replace(old, new)
        path.write_text(text, "utf-8")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "thing",
    [pytest.param(t, marks=[pytest.mark.kernels, pytest.mark.slow] if t == "a kernel" else []) for t in ADDITIONS],
)
def test_a_thing_is_added_in_the_files_that_the_page_names_and_in_no_others(thing, tmp_path):
    edits, use = ADDITIONS[thing]
    named = files_to_touch(thing)
    touched = {path for path in edits if path in named}
    for path in set(edits) - touched:  # the new file, whose name the page leaves open
        touched.add(str(Path(path).parent / f"NAME{Path(path).suffix}"))
    assert touched == named
    copy_with(edits, tmp_path)
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "MSLSQ_CACHE_DIR": str(tmp_path / "cache"),
    }
    program = f"import torch, mslsq\nassert mslsq.__file__.startswith({str(tmp_path)!r})\n{use}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
