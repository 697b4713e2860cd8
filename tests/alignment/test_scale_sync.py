"""Scale maps from ratios: exact without noise, robust to outliers, honest about cells that nothing determines."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mslsq import ProblemError, Status
from mslsq.alignment.scale_scene import read_scene, relative_error, synthetic_ratios
from mslsq.alignment.scale_sync import scale_sync
from mslsq.alignment.scales import given as given_module
from mslsq.alignment.scales.cells import LIMIT, STARTING, robust_logs
from mslsq.alignment.scales.descent import descend
from mslsq.alignment.scales.given import Given, measured
from mslsq.alignment.scales.graph import components, free_maps, graph_of
from mslsq.alignment.scales.room import room

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
    assert scene.truth is not None
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


def test_a_map_that_nothing_leads_to_is_lost_in_its_cell_alone():
    truth, ratios, pairs = exact()
    broken = ratios.clone()
    broken[(pairs == 3).any(1), 1] = torch.nan  # in cell 1 nothing leads to map 3
    result = scale_sync(broken, pairs)
    assert torch.isnan(result.scales[3, 1])
    assert result.component[:, 1].tolist() == [0, 0, 0, -1]
    known = torch.isfinite(result.scales)
    assert int(known.sum()) == truth.numel() - 1
    torch.testing.assert_close(result.scales[known], truth[known], rtol=1e-9, atol=0)
    assert (result.status == int(Status.STEP_TOLERANCE)).all()


@pytest.mark.parametrize("reference", [0, 2, None])
def test_every_component_of_a_cell_is_answered_in_its_own_gauge(reference):
    truth, ratios, pairs = exact(5)
    split = (pairs[:, 0] < 2) != (pairs[:, 1] < 2)
    ratios[split, 0] = torch.inf  # maps 0 and 1, maps 2, 3 and 4
    result = scale_sync(ratios, pairs, reference=reference)
    assert result.component[:, 0].tolist() == [0, 0, 2, 2, 2]
    for maps in ([0, 1], [2, 3, 4]):
        unit = truth[reference, 0] if reference in maps else truth[maps, 0].log().mean().exp()
        torch.testing.assert_close(result.scales[maps, 0], truth[maps, 0] / unit, rtol=1e-9, atol=0)
    said = "are not joined to the reference" in result.message()
    assert said == (reference is not None)


def test_a_cell_without_ratios_is_singular_alone():
    truth, ratios, pairs = exact()
    ratios[:, 2] = torch.tensor([torch.nan, -1.0, 0.0] * 4)
    result = scale_sync(ratios, pairs)
    assert torch.isnan(result.scales[:, 2]).all()
    assert result.status.tolist() == [int(Status.SINGULAR) if i == 2 else int(Status.STEP_TOLERANCE) for i in range(6)]
    torch.testing.assert_close(result.scales[:, 3:], truth[:, 3:], rtol=1e-9, atol=0)


def robust_cost(logs: torch.Tensor, ratios: torch.Tensor, pairs: torch.Tensor, scale: float) -> torch.Tensor:
    """½ Σ ρ of the documentation, written down once more."""
    first, second = pairs.T
    residual = logs[first] + ratios.log() - logs[second]
    return 0.5 * (residual**2 / (1 + residual**2 / scale**2)).sum(0)


def test_the_answer_is_a_minimum_of_the_stated_cost_and_none_is_lower_nearby():
    scene = synthetic_ratios(6, (8, 8), outliers=0.4, missing=0.0, seed=11)
    ratios, noise = scene.ratios.flatten(1), 0.01
    result = scale_sync(ratios, scene.pairs, noise=noise)
    logs, scale = result.scales.log(), 3.787 * noise
    here = robust_cost(logs, ratios, scene.pairs, scale)
    gradient = torch.func.grad(lambda x: robust_cost(x, ratios, scene.pairs, scale).sum())(logs)
    assert gradient.abs().max() < 1e-9
    generator = torch.Generator().manual_seed(0)
    for size in (1e-4, 1e-3, 1e-2):
        away = size * torch.randn(logs.shape, dtype=torch.float64, generator=generator)
        away[0] = 0
        other = robust_cost(logs + away, ratios, scene.pairs, scale)
        assert size > 1e-3 or (other > here).all()
    # From the truth, which no method knows, descent finds a lower minimum in few cells.
    assert scene.truth is not None
    truth = scene.truth.flatten(1).log()
    assert (robust_cost(truth, ratios, scene.pairs, scale) < here).double().mean() < 0.1


def test_kernel_and_operations_take_the_same_steps():
    scene = synthetic_ratios(5, (9, 7), outliers=0.3, missing=0.4, seed=2)
    graph = graph_of(scene.pairs, 5)
    logs, trust, observed = measured(Given(scene.ratios.flatten(1), scene.pairs, None, graph), slice(None))
    free = free_maps(components(observed, graph))
    scale = torch.full((63,), 0.03, dtype=torch.float64)
    x, steps = robust_logs(graph, logs, trust, free, scale)
    again, again_steps = descend(graph, logs, trust, free, scale, STARTING, LIMIT)
    torch.testing.assert_close(x, again, rtol=0, atol=1e-12)
    assert torch.equal(steps, again_steps)


def test_chunks_do_not_change_the_answer(monkeypatch):
    scene = synthetic_ratios(5, (10, 9), seed=4)
    whole = scale_sync(scene.ratios, scene.pairs, noise=0.01)
    monkeypatch.setattr(given_module, "ENTRIES", 320)  # sixteen cells
    parts = scale_sync(scene.ratios, scene.pairs, noise=0.01)
    for name in ("scales", "component", "status", "inliers", "standard_errors", "support"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-12, atol=0, equal_nan=True)


def test_the_order_of_a_pair_and_its_repetitions_do_not_matter():
    truth, ratios, pairs = exact()
    result = scale_sync(torch.cat([ratios, 1 / ratios]), torch.cat([pairs, pairs.flip(1)]))
    torch.testing.assert_close(result.scales, truth, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("maps", "outliers", "missing"), [(8, 0.0, 0.0), (8, 0.2, 0.2), (2, 0.0, 0.3)])
def test_noise_and_standard_errors_are_those_of_the_errors(maps, outliers, missing):
    scene = synthetic_ratios(maps, (48, 48), outliers=outliers, missing=missing, seed=21)
    result = scale_sync(scene.ratios, scene.pairs)
    assert result.noise == pytest.approx(0.01, rel=0.15)
    assert scene.truth is not None
    z = ((result.scales - scene.truth) / result.standard_errors)[1:]
    z = z[torch.isfinite(z)]
    assert 0.85 < 1.4826 * float(z.abs().median()) < 1.15
    assert (result.standard_errors[0] == 0)[torch.isfinite(result.scales[0])].all()


def test_support_says_where_a_single_ratio_stands():
    _, ratios, pairs = exact()
    ratios[(pairs == 3).any(1) & ~((pairs[:, 0] == 0) & (pairs[:, 1] == 3)), 1] = torch.nan
    support = scale_sync(ratios, pairs).support
    assert support[3, 1] == pytest.approx(1.0)
    assert support[3, 0] == pytest.approx(6.0)


def test_derivatives_are_those_of_finite_differences():
    _, ratios, pairs = exact(4, 3)
    generator = torch.Generator().manual_seed(5)
    ratios = ratios * (1 + 0.01 * torch.randn(ratios.shape, dtype=ratios.dtype, generator=generator))
    ratios[0, 1] *= 3
    ratios[5, 0] = torch.nan
    ratios[(pairs == 3).any(1), 2] = torch.nan
    weight = 0.5 + torch.rand(ratios.shape, dtype=ratios.dtype, generator=generator)

    def scales(ratios, weight):
        found = scale_sync(ratios, pairs, weight=weight, noise=0.01).scales
        return torch.where(torch.isfinite(found), found, 0)

    reverse = torch.func.jacrev(scales, argnums=(0, 1))(ratios, weight)
    torch.testing.assert_close(torch.func.jacfwd(scales)(ratios, weight), reverse[0], rtol=0, atol=1e-12)
    step = 1e-6
    for argument, derivative in enumerate(reverse):
        for entry in [(0, 0), (0, 1), (7, 1), (5, 0), (11, 2), (3, 2)]:
            change = torch.zeros_like(ratios)
            change[entry] = step
            moved = [(scales(ratios + s * change, weight), scales(ratios, weight + s * change)) for s in (1, -1)]
            numeric = (moved[0][argument] - moved[1][argument]) / (2 * step)
            torch.testing.assert_close(derivative[..., entry[0], entry[1]], numeric, rtol=1e-6, atol=1e-7)
    leaf = ratios.clone().requires_grad_()
    scales(leaf, weight).sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, reverse[0].sum((0, 1)), rtol=0, atol=1e-12)


def test_single_precision_is_answered_in_it():
    scene = synthetic_ratios(5, (12, 12), seed=6)
    single = scale_sync(scene.ratios.float(), scene.pairs)
    double = scale_sync(scene.ratios, scene.pairs)
    assert single.scales.dtype == single.inliers.dtype == single.standard_errors.dtype == torch.float32
    known = torch.isfinite(double.scales)
    assert (single.scales[known] / double.scales[known] - 1).abs().median() < 1e-5


@pytest.mark.parametrize("outliers", [0.0, 0.9])
def test_whatever_is_given_comes_back_finite_or_missing(outliers):
    scene = synthetic_ratios(4, (10, 10), outliers=outliers, seed=1)
    ratios = scene.ratios.clone()
    ratios[:, 0] = torch.tensor([torch.nan, torch.inf, 0.0, -1.0, 1e300, 1e-300]).repeat(20).reshape(12, 10)
    result = scale_sync(ratios, scene.pairs)
    seen = result.component >= 0
    assert torch.isfinite(result.scales[seen & (result.status != int(Status.MAX_STEPS))]).all()
    assert torch.isnan(result.scales[~seen]).all()
    assert torch.isfinite(result.inliers).all()


def test_equal_maps_have_equal_scales():
    result = scale_sync(torch.ones(12, 5, dtype=torch.float64), all_pairs(4))
    torch.testing.assert_close(result.scales, torch.ones(4, 5, dtype=torch.float64), rtol=0, atol=1e-15)
    assert result.noise == 0


def test_vmap_is_refused_in_words():
    _, ratios, pairs = exact()
    with pytest.raises(ProblemError, match="one more axis of cells"):
        torch.func.vmap(lambda r: scale_sync(r, pairs).scales)(ratios.expand(2, -1, -1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r, p: (r[:-1], p), "one map of ratios per row"),
        (lambda r, p: (r, p[:, :1]), r"\(pairs, 2\)"),
        (lambda r, p: (r.long(), p), "floating point"),
        (lambda r, p: (r * torch.nan, p), "nothing is observed"),
        (lambda r, p: (r, torch.where(p == 3, 4, p)), "map 3"),
        (lambda r, p: (r, torch.zeros_like(p)), "two different maps"),
        (lambda r, p: (r[:0], p[:0]), "no ratios"),
    ],
)
def test_what_makes_no_sense_is_said_in_words(change, words):
    _, ratios, pairs = exact()
    with pytest.raises(ProblemError, match=words):
        scale_sync(*change(ratios, pairs))


def test_a_file_that_is_no_archive_is_named(tmp_path):
    file = tmp_path / "ratios.npz"
    with pytest.raises(ValueError, match="does not exist"):
        read_scene(file)
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"ratios\.npz cannot be read"):
        read_scene(file)


@pytest.mark.slow
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


@pytest.mark.slow
def test_views_from_a_file_become_fields(tmp_path):
    scene = room(views=3, size=(24, 32), amplitude=0.02)
    file = tmp_path / "views.npz"
    views = scene.views
    np.savez(file, truth=scene.truth, depths=views.depths, intrinsics=views.intrinsics[0], poses=views.poses)
    command = [sys.executable, "scripts/align.py", "+experiment=scale_sync", f"scale_sync.file={file}"]
    done = subprocess.run(
        [*command, "scale_sync.grid=[2,3]", f"hydra.run.dir={tmp_path}"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "metrics.json").read_text())
    assert figures["noise"] < figures["noise_before"]
    assert np.load(tmp_path / "scales.npz")["scales"].shape == (3, 24, 32)
    assert (tmp_path / "scales.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"ratios": np.ones((1, 4, 4))}, "no array 'pairs'"),
        ({"ratios": np.ones((1, 4, 4)), "pairs": np.array([[0.0, 1.0]])}, "pairs must be integers"),
        ({"ratios": np.ones((1, 4, 4), complex), "pairs": np.array([[0, 1]])}, "ratios must be real"),
        ({"ratios": np.ones((1, 4)), "pairs": np.array([[0, 1]]), "truth": np.ones((1, 4))}, "truth must have shape"),
        ({"depths": np.ones((2, 4, 4))}, "no array 'intrinsics'"),
        ({"pictures": np.ones(3)}, "Ratios come as ratios and pairs"),
    ],
)
def test_what_a_file_lacks_is_said(tmp_path, content, words):
    np.savez(tmp_path / "scene.npz", **content)
    with pytest.raises(ValueError, match=words):
        read_scene(tmp_path / "scene.npz")


@pytest.mark.slow
def test_a_misspelt_option_of_the_experiment_is_refused(tmp_path):
    command = [sys.executable, "scripts/align.py", "+experiment=scale_sync", "+scale_sync.outlier=0.1"]
    done = subprocess.run(
        [*command, f"hydra.run.dir={tmp_path}"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "outliers" in done.stderr
