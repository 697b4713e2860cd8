"""The command that solves pose graphs and bundle adjustment: what it writes, says, and refuses."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mslsq
from mslsq.datasets.bal import BundleAdjustment, read_bal, write_bal
from mslsq.datasets.g2o import read_g2o, write_g2o
from mslsq.datasets.synthetic_graphs import ring_graph, sphere_graph

hydra = pytest.importorskip("hydra")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")
command_line = pytest.importorskip("command_line")

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ("before_after.png", "convergence.png")


@pytest.fixture(scope="module")
def script():
    """scripts/solve.py as a module: starting an interpreter for every case would take seconds each."""
    spec = importlib.util.spec_from_file_location("solve_script", ROOT / "scripts" / "solve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def attempt(script, folder, *options):
    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        try:
            settings = hydra.compose("solve", list(options))
        except command_line.CONFIGURATION_ERRORS as error:
            return command_line.refuse(error)
    return command_line.attempt(script.run, settings, folder)


def test_the_command_solves_a_made_up_ring_from_any_directory(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    options = ["synthetic.shape=ring", "synthetic.laps=2", "synthetic.per_lap=12"]
    command = [sys.executable, str(ROOT / "scripts" / "solve.py"), "+experiment=pose_graph", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (metrics,) = (tmp_path / "outputs" / "solve").rglob("metrics.json")
    assert str(metrics.parent.relative_to(tmp_path)) in done.stdout.replace("\n", "")
    assert "step   1" in done.stdout
    figures = json.loads(metrics.read_text())
    assert figures["converged"]
    assert figures["final_position_error"] < figures["start_position_error"]
    for name in ("solved.g2o", *PICTURES):
        assert (metrics.parent / name).stat().st_size > 0
        assert name in done.stdout


def test_a_file_is_solved_to_the_minimum_that_dense_algebra_finds(tmp_path, script):
    graph = sphere_graph(laps=3, per_lap=6).graph
    path = write_g2o(tmp_path / "tiny.g2o.gz", graph)
    assert attempt(script, tmp_path / "run", f"file={path}", "quiet=true") == 0
    dense = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.Cholesky())
    expected = mslsq.solve(graph.problem(), {"pose": graph.poses}, solver=dense)
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert figures["final_cost"] == pytest.approx(float(expected.cost), rel=1e-10)
    assert (figures["poses"], figures["edges"], figures["dimension"]) == (18, 29, 3)
    solved = read_g2o(tmp_path / "run" / "solved.g2o")
    again = mslsq.solve(solved.problem(), {"pose": solved.poses}, solver=mslsq.LevenbergMarquardt(max_steps=1))
    assert float(again.history.cost[0]) == pytest.approx(figures["final_cost"], rel=1e-9)  # what it says is written


def test_a_robust_loss_and_a_start_are_taken(tmp_path, script):
    path = write_g2o(tmp_path / "ring.g2o", ring_graph(laps=2, per_lap=8).graph)
    options = (f"file={path}", "quiet=true")
    assert attempt(script, tmp_path / "plain", *options) == 0
    assert attempt(script, tmp_path / "robust", *options, "loss=cauchy", "init=chordal") == 0
    plain, robust = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("plain", "robust"))
    assert robust["loss"] == "cauchy"
    assert robust["final_cost"] < plain["final_cost"]  # a robust loss is below the square everywhere
    assert robust["start_cost"] != plain["start_cost"]


def small_scene() -> BundleAdjustment:
    """Six cameras on an arc before thirty points, half a pixel of noise, started somewhat off."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    angle = torch.linspace(-0.5, 0.5, 6, dtype=torch.float64)
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    # the cameras turn about y and look along −z at the points' middle, eight units away
    columns = [zero, angle, zero, zero, zero, -8 * one, 500 * one, zero, zero]
    cameras = torch.stack(columns, -1)
    camera, point = torch.meshgrid(torch.arange(6), torch.arange(30), indexing="ij")
    camera, point = camera.reshape(-1), point.reshape(-1)
    exact = BundleAdjustment("scene", cameras, points, camera, point, torch.zeros(180, 2, dtype=torch.float64))
    residual = exact.problem()["snavely_reprojection"].residual
    pixels = torch.func.vmap(residual)(cameras[camera], points[point], exact.pixels)
    pixels = pixels + 0.5 * torch.randn(180, 2, generator=generator, dtype=torch.float64)
    off = points + 0.05 * torch.randn(30, 3, generator=generator, dtype=torch.float64)
    return BundleAdjustment("scene", cameras, off, camera, point, pixels)


def test_a_bundle_adjustment_is_solved_down_to_its_noise(tmp_path, script):
    path = write_bal(tmp_path / "scene.txt.bz2", small_scene())
    assert attempt(script, tmp_path, "+experiment=bundle_adjustment", f"file={path}", "quiet=true") == 0
    figures = json.loads((tmp_path / "metrics.json").read_text())
    # 360 residuals of 0.5 px, 144 unknowns of which 7 are gauge: 0.125 · 223 = 28 expected, its deviation 2.6
    assert figures["start_cost"] > 500
    assert 18 < figures["final_cost"] < 38
    assert read_bal(tmp_path / "solved.txt").points.shape == (30, 3)
    assert all((tmp_path / name).stat().st_size > 0 for name in PICTURES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("linear", ["cholesky", "sparse_cholesky", "schur", "conjugate_gradient"])
def test_every_linear_solver_finds_the_same_bundle_adjustment(tmp_path, script, linear):
    path = write_bal(tmp_path / "scene.txt", small_scene())
    costs = {}
    for name in ("auto", linear):
        options = (f"file={path}", "quiet=true", "max_steps=300", f"linear_solver={name}")
        assert attempt(script, tmp_path / name, "+experiment=bundle_adjustment", *options) == 0
        costs[name] = json.loads((tmp_path / name / "metrics.json").read_text())["final_cost"]
    assert costs[linear] == pytest.approx(costs["auto"], rel=1e-6)


def test_an_interrupted_solve_writes_what_it_has_found(tmp_path, script, capsys, monkeypatch):
    path = write_bal(tmp_path / "scene.txt", small_scene())
    before = signal.getsignal(signal.SIGINT)
    # Ctrl-C while the second step is shown
    monkeypatch.setattr(script, "show_step", lambda info: info.step == 2 and signal.raise_signal(signal.SIGINT))
    assert attempt(script, tmp_path / "run", "+experiment=bundle_adjustment", f"file={path}") == 130
    assert "this step is the last" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) == before
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (figures["interrupted"], figures["steps"]) == (True, 2)
    assert figures["final_cost"] < figures["start_cost"]
    assert read_bal(tmp_path / "run" / "solved.txt").points.shape == (30, 3)


def test_an_interrupt_before_the_solve_is_no_traceback(tmp_path, script, capsys, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "read_bal", interrupted)
    assert attempt(script, tmp_path, "+experiment=bundle_adjustment", "file=scene.txt") == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_graph_in_parts_is_said_to_be_so(tmp_path, script, capsys):
    edges = "EDGE_SE2 0 1 1 0 0 1 0 0 1 0 1\nEDGE_SE2 5 6 1 0 0 1 0 0 1 0 1\n"
    (tmp_path / "parts.g2o").write_text(edges)
    assert attempt(script, tmp_path, f"file={tmp_path / 'parts.g2o'}", "quiet=true") == 0
    assert "in 2 parts" in capsys.readouterr().err
    (tmp_path / "parts.g2o").write_text(edges + "FIX 0 6\n")
    assert attempt(script, tmp_path, f"file={tmp_path / 'parts.g2o'}", "quiet=true") == 0
    assert "parts" not in capsys.readouterr().err


def test_single_precision_is_an_option(tmp_path, script):
    options = ("synthetic.shape=ring", "synthetic.laps=2", "synthetic.per_lap=20", "quiet=true")
    costs = {}
    for dtype in ("float64", "float32"):
        assert attempt(script, tmp_path / dtype, *options, f"dtype={dtype}") == 0
        costs[dtype] = json.loads((tmp_path / dtype / "metrics.json").read_text())["final_cost"]
    assert costs["float32"] == pytest.approx(costs["float64"], rel=1e-3)
    assert costs["float32"] != costs["float64"]


@pytest.mark.sampled(15)
@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["linear_solver=shur"], 2, "Did you mean 'schur'?"),
        (["dtype=half"], 2, "'float64', 'float32'"),
        (["initial_damping=0"], 2, "initial_damping"),
        (["file=nowhere.g2o"], 2, "no such file"),
        (["file={folder}"], 2, "folder"),
        (["file=5"], 2, "no such file"),
        (["file=[a]"], 2, "file: "),
        (["file={bad}"], 2, "bad.g2o:2: expected VERTEX_SE2 id x y theta"),
        (["file={lonely}"], 2, "no edges"),
        (["file={indefinite}"], 2, "not positive definite"),
        (["task=bundle_adjustment"], 2, "needs file="),
        (["task=bundle_adjustment", "file={bad}"], 2, "cameras points observations"),
        (["task=pose_grahp"], 2, "Did you mean 'pose_graph'?"),
        (["+max_stpes=5"], 2, "Did you mean 'max_steps'?"),
        (["max_stpes=5"], 2, "Did you mean 'max_steps'?"),
        (["max_steps=many"], 2, "max_steps: Value 'many' of type 'str' could not be converted to Integer."),
        (["~max_steps"], 2, "max_steps is needed"),
        (["+experiment=pose_grahp"], 2, "Did you mean 'pose_graph'?"),
        (["+synthetic.lap=5"], 2, "Did you mean 'synthetic.laps'?"),
        (["synthetic.shape=torus"], 2, "'sphere', 'ring'"),
        (["synthetic.laps=0"], 2, "laps"),
        (["synthetic.sigma_rotation=-1"], 2, "sigma_rotation"),
        (["loss=hubre"], 2, "Did you mean 'huber'?"),
        (["loss_scale=0"], 2, "loss_scale"),
        (["init=chordl"], 2, "Did you mean 'chordal'?"),
        (["max_steps=0"], 2, "max_steps"),
        (["ftol=-1"], 2, "ftol"),
        (["threads=0"], 2, "threads"),
        (["quiet=perhaps"], 2, "quiet"),
        (["synthetic.laps=2", "synthetic.per_lap=5", "max_steps=1", "strict=true"], 3, ""),
    ],
)
def test_a_command_that_is_not_valid_ends_in_a_message_and_an_exit_code(tmp_path, script, capsys, options, code, says):
    texts = {
        "bad": "VERTEX_SE2 0 0 0 0\nVERTEX_SE2 1 0 0\n",
        "lonely": "VERTEX_SE2 0 0 0 0\n",
        "indefinite": "EDGE_SE2 0 1 1 0 0 1 0 0 -1 0 1\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.g2o").write_text(text)
    names = {"folder": tmp_path} | {name: tmp_path / f"{name}.g2o" for name in texts}
    assert attempt(script, tmp_path / "run", *(option.format(**names) for option in options)) == code
    assert says in capsys.readouterr().err.replace("\n", " ")
