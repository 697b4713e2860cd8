"""The example shows what it claims, and the code on the page about Theseus runs."""

import importlib.util
from pathlib import Path

import pytest
import torch

th = pytest.importorskip("theseus", reason="no Theseus: see scripts/install_theseus.sh", exc_type=ImportError)
ROOT = Path(__file__).resolve().parents[3]


def test_gradients_of_the_example_are_right_here_and_not_there(tmp_path):
    pytest.importorskip("matplotlib")
    path = ROOT / "examples/theseus_objective.py"
    spec = importlib.util.spec_from_file_location("theseus_objective", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    errors = module.main(["--out", str(tmp_path)])
    assert errors["mslsq"] < 1e-3 < 1e-2 < errors["Theseus"]
    assert (tmp_path / "theseus_objective.png").stat().st_size > 10_000


def test_the_code_of_the_page_runs():
    import mslsq

    text = (ROOT / "docs/how_to/theseus.md").read_text("utf-8")
    blocks = [part.partition("```")[0] for part in text.split("```python no-run\n")[1:]]
    objective = th.Objective(dtype=torch.float64)
    x, y = torch.linspace(0, 1, 5, dtype=torch.float64)[None], torch.ones(1, 5, dtype=torch.float64)
    data = [th.Variable(x.clone(), name="x"), th.Variable(y.clone(), name="y")]
    v = th.Vector(1, name="v", dtype=torch.float64)
    weight = th.ScaleCostWeight(torch.ones(1, 1, dtype=torch.float64))

    def error(optim_vars, aux_vars):
        return optim_vars[0].tensor * aux_vars[0].tensor - aux_vars[1].tensor

    objective.add(th.AutoDiffCostFunction([v], error, 5, weight, aux_vars=data))
    w = mslsq.Variable("w", mslsq.Euclidean(2), count=3)
    edges = mslsq.Difference(w[:2], w[1:], measured=torch.zeros(2, 2, dtype=torch.float64))
    names = {"th": th, "x": x, "y": y, "objective": objective, "edges": edges}
    names["optimizer"] = th.GaussNewton(objective, linear_solver_cls=th.CholeskyDenseSolver)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
    expected = (x * y).sum() / (x * x).sum()
    torch.testing.assert_close(names["values"]["v"][0, 0], expected)
    assert sorted(names["variables"]) == ["w_0", "w_1", "w_2"]
