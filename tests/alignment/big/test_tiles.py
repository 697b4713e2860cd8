"""Which tiles are used, and that a tile says what the whole raster says of the same pixels."""

import numpy as np
import pytest
import torch

from mslsq.alignment.big import tiles
from mslsq.alignment.big.memory import affordable_tiles, bytes_of, fits_whole
from mslsq.alignment.curvature import samples
from mslsq.alignment.descent import Between
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.options import AlignmentOptionError
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import Level

RANDOM = np.random.default_rng(0)
AT = Between(np.array([[1.02, 0.01, 0.003], [-0.012, 0.99, 0.01], [0.004, 0.002, 1.0]]), np.array([0.1, -0.05]))


def test_the_tiles_with_the_largest_information_are_used():
    directions = RANDOM.standard_normal((40, 4, 4))
    information = np.einsum("nij,nkj->nik", directions, directions)
    information[7] *= 400
    information[11] = 0.0
    used = tiles.chosen(information, np.zeros(40, int), 10)
    assert 7 in used and 11 not in used and len(set(used.tolist())) == 10
    chance = [np.linalg.slogdet(information[RANDOM.permutation(40)[:10]].sum(0))[1] for _ in range(200)]
    assert np.linalg.slogdet(information[used].sum(0))[1] > max(chance)


def test_every_cell_of_the_overlap_has_a_tile():
    information = np.tile(np.eye(3), (60, 1, 1)) * np.linspace(1, 9, 60)[:, None, None]
    cells = np.arange(60) // 10
    assert set(cells[tiles.chosen(information, cells, 12)].tolist()) == set(range(6))


def test_few_tiles_are_all_used_and_candidates_are_the_same_each_time():
    information = np.tile(np.eye(3), (5, 1, 1))
    assert tiles.chosen(information, np.zeros(5, int), 8).tolist() == [0, 1, 2, 3, 4]
    grid = np.stack(np.meshgrid(np.arange(40), np.arange(30)), -1).reshape(-1, 2)
    first = tiles.candidates(grid, 20)
    assert np.array_equal(first, tiles.candidates(grid, 20)) and len(first) == 60
    assert len(set(tiles.cells_of(grid, 10)[first].tolist())) == len(set(tiles.cells_of(grid, 10).tolist()))


def test_tiles_lie_where_both_maps_hold_data():
    own = tiles.Ground(torch.ones(32, 32, dtype=torch.bool), 32)
    half = own.mask.clone()
    half[:, :16] = False
    shift = torch.tensor([[1.0, 0, 0], [0, 1, -512], [0, 0, 1]], dtype=torch.float64)
    found, total = tiles.in_overlap((1024, 1024), 1, shift, own, tiles.Ground(half, 32))
    assert total == 16
    assert found.tolist() == [[2, 2], [2, 3], [3, 2], [3, 3]]


@pytest.fixture
def levels():
    """Two levels of random pixels (a random spline is as good as any)."""
    made = [Level(torch.from_numpy(RANDOM.standard_normal((2, 60, 70))), torch.ones(60, 70).bool(), 1) for _ in "ab"]
    return made, Frame(60, 70, made[0].raster)


def seen(level, coefficients, valid, model="homography"):
    return Overlap(0, 1, level, coefficients, MODELS[model], np.ones(2), valid, 1.0, None)


@pytest.mark.kernels
def test_a_tile_has_the_normal_equations_of_its_pixels_in_the_whole(levels):
    (one, other), frame = levels
    top, left, side = 17, 20, 24
    whole = PairLevel.of(one, other, frame, 0)
    valid = torch.zeros(60, 70, dtype=torch.bool)
    valid[top : top + side, left : left + side] = True
    valid = valid.reshape(-1) & whole.look(torch.from_numpy(AT.matrix))[1]
    cut = Level(one.raster[:, top : top + side, left : left + side].contiguous(), torch.ones(side, side).bool(), 1)
    tile = PairLevel.of(cut, other, frame, 0, corner=(left, top))
    ours = seen(tile, cut.coefficients, tile.look(torch.from_numpy(AT.matrix))[1])
    theirs = seen(whole, one.coefficients, valid)
    assert ours.count == theirs.count > 400
    for mine, their in zip(ours.normal_equations(AT), theirs.normal_equations(AT), strict=True):
        np.testing.assert_allclose(mine, their, rtol=1e-9, atol=1e-9)


@pytest.mark.kernels
@pytest.mark.parametrize("factor", [1, 2])
def test_the_gradient_of_a_tile_is_that_of_its_cost_by_finite_differences(levels, factor):
    (one, other), _ = levels
    one, other = (Level(level.raster, level.mask, factor) for level in (one, other))
    frame = Frame(900, 1100, one.raster)
    tile = PairLevel.of(one, other, frame, 0, corner=(300.0, 200.5), origin=(310.0, 190.0))
    at = Between(np.array([[1.001, 0.002, 0.01], [-0.001, 0.999, 0.004], [1e-3, -2e-3, 1.0]]), np.array([0.1, -0.2]))
    inner = seen(tile, one.coefficients, tile.look(torch.from_numpy(at.matrix))[1])
    assert inner.count > 500
    kind, step = MODELS["homography"], 1e-7
    gradient = inner.normal_equations(at).gradient
    for k, unit in enumerate(np.eye(10)):
        up, down = (inner.normal_equations(at.moved(kind, sign * step * unit)).cost for sign in (1, -1))
        assert (up - down) / (2 * step) == pytest.approx(gradient[k], rel=1e-5, abs=1e-4 * np.abs(gradient).max())
    by_samples = sum(
        torch.einsum("ncu,nc->u", part.jacobian, part.residual)
        for part in samples(tile, one.coefficients, kind, np.ones(2), at, inner.valid.nonzero()[:, 0])
    )
    np.testing.assert_allclose(by_samples.numpy(), gradient, rtol=1e-9)


def test_memory_is_a_size_in_words():
    assert bytes_of("4GB") == 4_000_000_000 and bytes_of("2 GiB") == 2**31 and bytes_of(3e9) == 3_000_000_000
    for wrong in ("much", "4 XB", "10MB", -1, "nan", None):
        with pytest.raises(AlignmentOptionError, match="a size like '4GB'"):
            bytes_of(wrong)
    assert affordable_tiles(bytes_of("4GB"), 128) == 128 and affordable_tiles(bytes_of("1.5GB"), 128) < 128
    assert fits_whole(2 * 2000**2, bytes_of("4GB")) and not fits_whole(2 * 20000**2, bytes_of("4GB"))
