"""Scale maps from ratios: exact without noise, robust to outliers, honest about cells that nothing determines."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mslsq import ProblemError, Status
from mslsq.alignment.scale_scene import read_ratios, relative_error, synthetic_ratios
from mslsq.alignment.scale_sync import scale_sync

REPOSITORY = Path(__file__).parents[2]


def all_pairs(maps: int) -> torch.Tensor:
    return torch.tensor([(i, j) for i in range(maps) for j in range(maps) if i != j])


def exact(maps: int = 4, cells: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    truth = torch.exp(torch.randn(maps, cells, dtype=torch.float64, generator=generator))
    truth = truth / truth[0]
    pairs = all_pairs(maps)
    return truth, truth[pairs[:, 1]] / truth[pairs[:, 0]], pairs


def test_exact_ratios_give_the_exact_scales():
    truth, ratios, pairs = exact()
    result = scale_sync(ratios, pairs)
    torch.testing.assert_close(result.scales, truth, rtol=1e-9, atol=0)
    assert bool((result.inliers > 0.99).all())


@pytest.mark.parametrize("size", [(16, 16), (64, 64)])
def test_a_fifth_of_outliers_and_a_fifth_missing_leave_one_percent(size):
    scene = synthetic_ratios(8, size, seed=3)
    result = scale_sync(scene.ratios, scene.pairs)
    error = relative_error(scene.truth, result.scales)[1:]
    answered = torch.isfinite(error)
    assert answered.double().mean() > 0.99
    # 1 % noise on some 9 good ratios a map: a median error of 0.5 % is what averaging allows.
    assert error[answered].median() < 0.01
    assert (error[answered] < 0.05).double().mean() > 0.98


def test_a_gross_outlier_gets_no_weight():
    truth, ratios, pairs = exact()
    ratios = ratios * (
        1 + 0.01 * torch.randn(ratios.shape, dtype=ratios.dtype, generator=torch.Generator().manual_seed(1))
    )
    ratios[0, 2] *= 10
    result = scale_sync(ratios, pairs)
    assert result.inliers[0, 2] < 0.05
    assert relative_error(truth, result.scales)[:, 2].max() < 0.05


def test_a_cell_that_nothing_determines_is_singular_alone():
    truth, ratios, pairs = exact()
    broken = ratios.clone()
    broken[(pairs == 3).any(1), 1] = torch.nan  # in cell 1 nothing leads to map 3
    result = scale_sync(broken, pairs)
    assert Status(int(result.status[1])) is Status.SINGULAR
    assert torch.isnan(result.scales[:, 1]).all()
    others = [0, 2, 3, 4, 5]
    torch.testing.assert_close(result.scales[:, others], truth[:, others], rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r, p: (r[:-1], p), "one map of ratios per row"),
        (lambda r, p: (r, p[:, :1]), r"\(pairs, 2\)"),
        (lambda r, p: (r.long(), p), "floating point"),
        (lambda r, p: (r * torch.nan, p), "nothing is observed"),
        (lambda r, p: (r, torch.where(p == 3, 4, p)), "map 3"),
        (lambda r, p: (r, torch.zeros_like(p)), "two different maps"),
    ],
)
def test_what_makes_no_sense_is_said_in_words(change, words):
    _, ratios, pairs = exact()
    with pytest.raises(ProblemError, match=words):
        scale_sync(*change(ratios, pairs))


def test_a_file_that_is_no_archive_is_named(tmp_path):
    file = tmp_path / "ratios.npz"
    with pytest.raises(ValueError, match="does not exist"):
        read_ratios(file)
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"ratios\.npz cannot be read"):
        read_ratios(file)


def test_the_experiment_runs_from_the_command_line(tmp_path):
    command = [
        sys.executable,
        "scripts/align.py",
        "+experiment=scale_sync",
        "scale_sync.size=[12,12]",
        "scale_sync.maps=4",
    ]
    done = subprocess.run(
        [*command, f"hydra.run.dir={tmp_path}"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"scales.npz", "scales.png", "metrics.json"} <= {path.name for path in tmp_path.iterdir()}


def test_a_misspelt_option_of_the_experiment_is_refused(tmp_path):
    command = [sys.executable, "scripts/align.py", "+experiment=scale_sync", "+scale_sync.outlier=0.1"]
    done = subprocess.run(
        [*command, f"hydra.run.dir={tmp_path}"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "outliers" in done.stderr
