"""Maps that are bent: fields that no warp makes, how large they are, and what they do to standard errors."""

import numpy as np
import pytest
import torch

from mslsq.alignment import synthetic
from mslsq.alignment.joint import cells, distortion, sandwich
from mslsq.alignment.joint.cells import Scores
from mslsq.alignment.joint.dense import Dense, settle, weights_of
from mslsq.alignment.joint.distortion import Fields, deviation, displacements
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.joint.state import Coordinates, State
from mslsq.alignment.linking import Linker
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.mosaics import cut, ring
from mslsq.alignment.options import Options
from mslsq.alignment.prepared import prepare

LIKE = torch.zeros((), dtype=torch.float64)


def base(name):
    raster = synthetic.base_raster(name)
    return (raster - raster.min()) / np.ptp(raster)


def dense_at_truth(mosaic, model, pairs):
    """All pairs from both sides, the reference held, and the truth."""
    linker = Linker(prepare(mosaic.maps, None)[0], Options(model=model), "auto")
    frame, count = linker.frame(0), len(mosaic.maps)
    coordinates = Coordinates(frame, {i: linker.frame(i) for i in range(count)}, MODELS[model])
    warps = frame.from_pixels(mosaic.transforms).numpy()
    state = State(warps / warps[:, 2:, 2:], np.zeros((count, 2)))
    both = [pair for a, b in pairs for pair in ((a, b), (b, a))]
    overlaps = [Overlap.of(linker, *pair, coordinates.between(state, *pair), reference=0) for pair in both]
    free = np.ones((count, MODELS[model].tangent_dim + 2))
    free[0] = 0
    return Dense(overlaps, weights_of(overlaps), coordinates, free, linker.options.correlated), state


def three_maps(model):
    mosaic = cut(base("camera"), [(200, 200), (230, 210), (215, 240)], 72, 0, model=model)
    return dense_at_truth(mosaic, model, [(0, 1), (0, 2), (1, 2)])


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize(("height", "width"), [(80, 80), (60, 140)])
def test_fields_are_orthonormal_and_no_step_of_a_warp(model, height, width):
    kind, frame = MODELS[model], Frame(height, width, LIKE)
    along = (np.arange(200) + 0.5) / 100 - 1
    side = np.stack(np.meshgrid(along, along), -1).reshape(-1, 2)
    points = side * (frame.centre / frame.half).numpy()
    fields = Fields.of(frame, kind.tangent_dim).at(points)
    products = np.einsum("ndj,ndk->jk", fields, fields) / len(points)
    np.testing.assert_allclose(products, np.eye(20 - kind.tangent_dim), atol=2e-3)
    small, at = 1e-4, torch.from_numpy(points)
    for k in range(kind.tangent_dim):
        step = torch.zeros(kind.tangent_dim, dtype=torch.float64)
        step[k] = small
        moved = ((kind.identity(dtype=torch.float64).retract(step).act(at) - at) / small).numpy()
        assert np.abs(np.einsum("nd,ndk->k", moved, fields) / len(points)).max() < 1e-3


def test_a_place_is_moved_by_what_both_maps_are_bent():
    """The point at which one map shows what the other does, by fixed-point iteration without a derivative."""
    dense, state = three_maps("homography")
    frames, small = dense.coordinates.frames, 1e-5
    fields = {i: Fields.of(frame, 8) for i, frame in frames.items()}
    one = cells.table(dense, state, 0, 8.0)
    first, second = displacements(one, frames, fields)
    random = np.random.default_rng(0)
    a, b = small * random.standard_normal((2, fields[0].count))
    inverse = np.linalg.inv(one.between)

    def through(matrix, points):
        moved = np.concatenate([points, np.ones_like(points[:, :1])], 1) @ matrix.T
        return moved[:, :2] / moved[:, 2:]

    aim = through(one.between, one.points + fields[0].at(one.points) @ a)
    there = aim
    for _ in range(20):
        there = aim - fields[1].at(there) @ b
    exact = through(inverse, there) - one.points
    np.testing.assert_allclose(first @ a + second @ b, exact, atol=1e-3 * np.abs(exact).max())


def test_tables_add_up_and_some_samples_tell_as_much(monkeypatch):
    dense, state = three_maps("sim2")
    state = settle(dense, state, 50).state
    seen = Scores.of(dense, state)
    assert seen is not None
    np.testing.assert_allclose(seen.scores.sum(0), dense.system(state).gradient[seen.free], rtol=1e-6, atol=1e-6)
    for one in seen.tables:
        np.testing.assert_allclose(one.both.sum(0), one.bread, rtol=1e-9, atol=1e-7)
    root = seen.found.root
    np.testing.assert_allclose(
        root.T @ dense.system(state).matrix[np.ix_(seen.free, seen.free)] @ root, np.eye(12), atol=1e-9
    )
    whole = seen.leverage
    assert 12 / len(seen.number) / 12 < whole < 0.5
    monkeypatch.setattr(cells, "SUBSET", 1000)
    few = Scores.of(dense, state)
    assert few is not None and few.leverage == pytest.approx(whole, rel=0.1)
    monkeypatch.setattr(cells, "LEVERS", 4000)
    fewer = Scores.of(dense, state)
    assert fewer is not None and 0.3 * whole < fewer.leverage < 2 * whole


@pytest.mark.parametrize("tau", [0.0, 0.05, 1.0])
def test_a_deviation_is_found_where_scores_show_it(tau):
    random, found = np.random.default_rng(3), []
    for _ in range(40):
        shown = random.standard_normal((60, 60)) * np.geomspace(10, 0.01, 60)
        score = random.standard_normal(60) + tau * shown @ random.standard_normal(60)
        found.append(deviation(score, shown))
    mean = np.sqrt(np.mean(np.square(found)))
    assert mean < 0.015 if tau == 0 else mean == pytest.approx(tau, rel=0.25)
    assert deviation(np.zeros(3), np.zeros((3, 3))) == 0.0


def mosaic_errors(name, seed, **options):
    """Squared errors per dimension of a ring, in the variances of `sandwich` and of `distortion`."""
    mosaic = cut(base(name), ring(6, 0.62 * 96, (250, 250)), 96, seed, **options)
    dense, start = dense_at_truth(mosaic, "sim2", [(i, (i + 1) % 6) for i in range(6)])
    state, kind = settle(dense, start, 100).state, MODELS["sim2"]
    found = distortion.covariance(dense, state, {})
    means = []
    for spread in (sandwich.covariance(dense, state, {}), found.covariance):
        each = []
        for i in range(1, 6):
            one, other = (kind.from_matrix(torch.from_numpy(warps[i])) for warps in (state.warps, start.warps))
            off = one.local(other).numpy()
            each.append(off @ np.linalg.solve(spread[i, :, i], off) / 4)
        means.append(np.mean(each))
    return means[0], means[1], found


def test_bent_maps_have_errors_as_large_as_stated_where_noise_alone_does_not_say_so():
    bent = [mosaic_errors("gravel", seed, drift=0.3) for seed in range(4)]
    alone, both = np.mean([one[0] for one in bent]), np.mean([one[1] for one in bent])
    assert both < 0.6 * alone and 0.3 < both < 2
    assert all(found.share > 0.5 for *_, found in bent)
    assert np.mean([found.sigma for *_, found in bent]) == pytest.approx(0.3 * np.sqrt(2 / 3 * 4 / 45), rel=0.4)


def test_maps_that_are_not_bent_have_little_more_than_noise():
    plain = [mosaic_errors("grass", seed) for seed in range(4)]
    alone, both = np.mean([one[0] for one in plain]), np.mean([one[1] for one in plain])
    assert 0.6 * alone < both <= 1.1 * alone
    assert np.mean([found.share for *_, found in plain]) < 0.35


def test_what_is_held_stays_held():
    dense, state = three_maps("sim2")
    state = settle(dense, state, 50).state
    found = distortion.covariance(dense, state, {0: np.zeros((4, 4))})
    spread = found.covariance.reshape(12, 12)
    assert not spread[:4].any() and not spread[:, :4].any()
    assert np.linalg.eigvalsh(spread[4:, 4:]).min() > 0
