"""`model="piecewise"`: bends with a known truth are found, with honest standard errors, and written with their maps."""

import json

import numpy as np
import pytest
import scipy.interpolate
import scipy.ndimage
import torch

from mslsq.alignment import Alignment, AlignmentOptionError, align
from mslsq.alignment.bending import Bending, _State, least_determinant, prior_of
from mslsq.alignment.bends import Bend, grid_of, splines
from mslsq.alignment.models import Frame
from mslsq.alignment.output_names import output_names
from mslsq.alignment.outputs import Aligned, describe, write_maps, write_transforms
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.prepared import prepare
from mslsq.alignment.rasters import read_raster
from mslsq.alignment.scenes import Scene
from mslsq.alignment.synthetic import base_raster

SIZE = 128
TURN = np.array([[0.9992, -0.04, 5.0], [0.04, 0.9992, -4.0], [0, 0, 1]])


def shift_at(points, amplitude):
    """A bend of one period along the reference."""
    along = 2 * np.pi * points / SIZE
    return amplitude * np.stack([np.sin(along[:, 1] + 0.3), np.cos(along[:, 0])], -1) / np.sqrt(2)


def bent_pair(name="camera", amplitude=3.0, noise=0.01, seed=0):
    """Two maps of one raster, the second sampled once, by a quintic spline, at T(u + s(u)) turned around."""
    random = np.random.default_rng(seed)
    base = scipy.ndimage.gaussian_filter(base_raster(name), 0.8)
    base = (base - base.min()) / np.ptp(base)
    corner = [(side - SIZE) // 2 for side in base.shape]
    grid = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE)), -1).reshape(-1, 2).astype(float)
    back = np.linalg.inv(TURN)
    unbent = grid @ back[:2, :2].T + back[:2, 2]
    at = unbent
    for _ in range(60):
        at = unbent - shift_at(at, amplitude)
    where = [at[:, 1] + corner[0], at[:, 0] + corner[1]]
    moving = 1.1 * scipy.ndimage.map_coordinates(base, where, order=5, mode="mirror").reshape(SIZE, SIZE) - 0.05
    reference = base[corner[0] : corner[0] + SIZE, corner[1] : corner[1] + SIZE]
    return [torch.from_numpy(image + noise * random.standard_normal(image.shape)) for image in (reference, moving)]


def inner_points():
    at = torch.linspace(14, SIZE - 15, 15, dtype=torch.float64)
    return torch.stack(torch.meshgrid(at, at, indexing="xy"), -1).reshape(-1, 2)


def errors(result, amplitude):
    """Distances in the map from where the truth puts points of the reference."""
    points = inner_points()
    moved = points.numpy() + shift_at(points.numpy(), amplitude)
    truth = torch.from_numpy(moved @ TURN[:2, :2].T + TURN[:2, 2])
    return (result.to_map(1, points) - truth).norm(dim=1)


@pytest.fixture(scope="module")
def maps():
    return bent_pair()


@pytest.fixture(scope="module")
def bent(maps):
    return align(maps, model="piecewise")


def test_a_bend_is_found_where_a_similarity_is_pixels_off(maps, bent):
    stiff = align(maps, model="sim2")
    assert bent.aligned == [0, 1] and bent.reasons[1] == "Aligned. Bent."
    assert errors(stiff, 3.0).square().mean().sqrt() > 1.5
    assert errors(bent, 3.0).square().mean().sqrt() < 0.12
    assert abs(float(bent.gain[1]) - 1 / 1.1) < 3e-3 and abs(float(bent.bias[1]) - 0.05 / 1.1) < 3e-3
    assert float(bent.ncc[1]) > float(stiff.ncc[1])


def test_the_standard_errors_hold_and_say_more_noise():
    """Squared errors over their variance, of which the mean is 1 where standard errors are right."""
    sigmas = []
    for noise in (0.01, 0.05):
        result = align(bent_pair(noise=noise), model="piecewise")
        grid = result.bends[1]
        assert grid is not None
        normalised = (errors(result, 3.0) / grid.sigma(inner_points())).square().mean()
        assert 0.3 < float(normalised) < 2.0
        sigmas.append(float(result.corner_sigma[1]))
    assert sigmas[0] < sigmas[1]


def test_maps_that_do_not_bend_lose_little():
    assert errors(align(bent_pair(amplitude=0.0), model="piecewise"), 0.0).square().mean().sqrt() < 0.12


def test_the_spline_is_scipys_and_its_derivative_that_of_differences():
    at = torch.linspace(0, 4, 41, dtype=torch.float64)
    values, slopes = splines(at, 7)
    for k in range(7):
        knots = np.arange(k - 3, k + 2, dtype=float)
        expected = scipy.interpolate.BSpline.basis_element(knots, extrapolate=False)(at.numpy())
        assert np.allclose(values[:, k], np.nan_to_num(expected), atol=1e-14)
    step = 1e-6
    differences = (splines(at + step, 7)[0] - splines(at - step, 7)[0]) / (2 * step)
    assert (slopes - differences).abs().max() < 1e-8
    assert torch.allclose(values.sum(1), torch.ones(41, dtype=torch.float64))


@pytest.mark.parametrize("loss", [None, "cauchy"])
def test_the_gradient_of_the_solve_is_that_of_finite_differences(maps, loss):
    rasters, _, _ = prepare([one[:48, :64] for one in maps], None)
    frame = Frame(48, 64, rasters[0].values)
    levels = [raster.pyramid(1, raster.mean, raster.spread, 1.0)[0] for raster in rasters]
    bending = Bending(PairLevel.of(levels[0], levels[1], frame, 0), torch.eye(3).double(), (48, 64), loss, np.ones(2))
    prior = prior_of(48, 64, frame.half)
    random = np.random.default_rng(1)
    state = _State(0.01 * random.standard_normal(len(prior) - 2), np.array([0.1, -0.2]))
    valid = bending.look(state.shifts)[1] & bending.level.known
    normal = bending.normal(state, valid, 0.5, prior)
    for index in (40, 57, 160, len(prior) - 2, len(prior) - 1):
        costs = []
        for sign in (1, -1):
            step = np.zeros(len(prior))
            step[index] = sign * 1e-6
            moved = _State(state.shifts + step[:-2], state.value + step[-2:])
            costs.append(bending.normal(moved, valid, 0.5, prior).cost)
        difference = (costs[0] - costs[1]) / 2e-6
        assert abs(normal.gradient[index] - difference) < 1e-5 * max(1.0, abs(difference))


def test_the_grid_covers_the_reference_and_the_field_is_constant_beyond():
    step, rows, columns = grid_of(40, 100)
    assert columns == 11 and (rows - 3) * step >= 39
    random = torch.Generator().manual_seed(0)
    bend = Bend(torch.randn(2, rows, columns, generator=random, dtype=torch.float64), step, (40, 100), torch.eye(0))
    inside, outside = (torch.tensor([[x, 20.0]], dtype=torch.float64) for x in (99.0, 140.0))
    assert torch.equal(bend.at(inside), bend.at(outside))


def test_a_grid_that_folds_is_known():
    step, rows, columns = grid_of(64, 64)
    shifts = torch.zeros(2, rows, columns, dtype=torch.float64)
    assert least_determinant(Bend(shifts, step, (64, 64), torch.eye(0))) == pytest.approx(1.0)
    shifts[0, :, 5] = 3 * step
    assert least_determinant(Bend(shifts, step, (64, 64), torch.eye(0))) < 0


def test_what_is_written_is_bent_and_says_how(tmp_path, maps, bent):
    names = ["one.npy", "two.npy"]
    for name, values in zip(names, maps, strict=True):
        np.save(tmp_path / name, values.numpy())
    scene = Scene("bent", names, [read_raster(tmp_path / name) for name in names])
    item = Aligned(scene, bent)
    planned = output_names([scene], [0])
    (tmp_path / "out").mkdir()
    written = json.loads(write_transforms([item], tmp_path / "out", {}, {}, planned).read_text())
    record = written["maps"][1]["bend"]
    assert written["maps"][0]["bend"] is None and "cubic B-spline" in record["convention"]
    # By the words of the convention alone.
    shifts, matrix = np.array(record["shifts"]), np.array(written["maps"][1]["matrix"])
    x, y = 30.0, 77.0
    cubic = scipy.interpolate.BSpline.basis_element(np.arange(-2.0, 3.0), extrapolate=False)
    by_row = np.nan_to_num(cubic((y - record["top"]) / record["step"] - np.arange(shifts.shape[1])))
    by_column = np.nan_to_num(cubic((x - record["left"]) / record["step"] - np.arange(shifts.shape[2])))
    there = matrix @ [x + by_row @ shifts[0] @ by_column, y + by_row @ shifts[1] @ by_column, 1]
    assert np.allclose(there[:2], bent.to_map(1, torch.tensor([[x, y]], dtype=torch.float64))[0])

    write_maps(item, tmp_path / "out", planned[0])
    resampled = np.load(tmp_path / "out" / "aligned" / "two.npy").squeeze()
    inner = (slice(14, -14), slice(14, -14))
    residual = (float(bent.gain[1]) * resampled + float(bent.bias[1]) - maps[0].numpy())[inner]
    assert np.sqrt((residual**2).mean()) < 0.03
    assert describe(item)[1]["status"] == "aligned"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"joint": True}, "joint=False"), ({"metric": "occupancy"}, "model='se2'")],
)
def test_what_cannot_bend_says_what_to_do(maps, options, words):
    with pytest.raises(AlignmentOptionError, match=words):
        align(maps, model="piecewise", **options)


def test_maps_are_not_added_to_bent_ones(maps, bent):
    assert isinstance(bent, Alignment)
    with pytest.raises(AlignmentOptionError, match="place all again"):
        align([*maps, maps[1]], model="piecewise", previous=bent)


def test_a_map_without_a_match_is_left_out_and_not_bent(maps):
    other = bent_pair("retina")[1]
    result = align([maps[0], other], model="piecewise")
    assert result.aligned == [0] and result.bends == [None, None]
