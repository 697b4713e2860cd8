"""Every example runs, shows what it claims to show, and leaves its picture."""

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def run(tmp_path):
    """Runs an example in this process; returns what its `main` does and checks that there is a picture."""
    before = torch.get_default_dtype()

    def run_example(name: str, *arguments: str):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        result = module.main(["--out", str(tmp_path), *arguments])
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        return result

    yield run_example
    torch.set_default_dtype(before)


def test_stated_standard_errors_cover_the_errors(run):
    # 600 numbers, those of one fit correlated: the share varies by about 0.012
    assert run("curve_fit", "--count", "200") == pytest.approx(0.95, abs=0.04)


def test_a_robust_loss_survives_wrong_loop_closures(run):
    errors = run("pose_graph")
    assert errors["Geman-McClure"] < 0.2 * errors["start"] < 0.2 * errors["least squares"]


def test_a_map_that_grows_is_as_sure_as_it_says(run):
    found = run("bearing_range_slam")
    assert found["SLAM"] < 0.05 * found["dead reckoning"]
    assert found["share of landmarks within 95 %"] > 0.85  # 30 landmarks with common errors


@pytest.mark.slow
def test_learned_weights_are_better_than_equal_ones(run):
    # 25 of the 150 steps: most of the way to the true weights
    errors = run("learned_weight", "--steps", "25")
    assert errors["learned"] < 0.6 * errors["equal"]
    assert errors["learned"] > 0.9 * errors["true"]  # nothing is better than the truth, but for chance


@pytest.mark.slow
def test_least_squares_come_closer_than_adam_in_the_same_time(run):
    # 100 times and more in its 8 seconds
    errors = run("train_by_least_squares", "--seconds", "2.5")
    assert errors["least squares"] < 0.1 * errors["Adam"]


@pytest.mark.slow
def test_complex_residuals_find_shifts_as_sure_as_they_say(capsys):
    spec = importlib.util.spec_from_file_location("fourier_shift", EXAMPLES / "fourier_shift.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    errors = module.main(["--count", "60"])
    assert errors["phase"] < 0.02 * errors["whole pixels"]
    assert errors["errors / standard errors"] == pytest.approx(1.0, abs=0.15)  # 120 numbers: 0.065 by chance
    assert "phase" in capsys.readouterr().out


def test_every_example_is_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) < 100, f"{path.name} is long for an example"
