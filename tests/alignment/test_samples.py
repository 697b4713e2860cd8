"""What a placement is judged by, computed by kernels and in PyTorch's operations: the same numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mslsq.alignment import (
    apertures,
    curvature,
    descent,
    estimate,
    evenness,
    evidence,
    fields,
    measures,
    models,
    noise,
    passes,
    prepared,
    pyramid,
    rivals,
    shifts,
    spread,
    twice,
)  # fmt: skip
from mslsq.alignment.descent import Between
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.pair_level import PairLevel
from mslsq.kernels import available
from tests.alignment.test_passes import pair_level, scenery, warp_of

pytestmark = pytest.mark.skipif(not available(), reason="needs the compiled kernels")

MODULES = estimate, evenness, evidence, fields, measures, noise, prepared, pyramid, rivals, shifts, spread, twice


@pytest.fixture
def both(monkeypatch):
    """A function's answer with the kernels and without them."""

    def answers(function):
        found = function()
        for module in MODULES:
            monkeypatch.setattr(module, "may_read", lambda *_: False)
        return found, function()

    return answers


def here(channels=1, gain=0.3):
    level = pair_level(channels)
    matrix = warp_of(models.Similarity).matrix()
    return Estimate(matrix, torch.tensor([gain, 0.2], dtype=torch.float64), "test"), level


@pytest.mark.parametrize("count", [1, 2, 7, 2048, 2049, 40_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_spread_of_numbers(count, dtype, both):
    values = scenery(1, 1, count).reshape(-1).to(dtype)
    found, expected = both(lambda: measures.nmad_and_deviation(values))
    assert found == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros(5000),
        torch.cat([torch.zeros(4000), torch.ones(3000)]),
        torch.arange(9000.0),
        torch.stack([torch.full((8000,), 5.0), torch.arange(8000.0)], 1).reshape(-1),
    ],
    ids=["one number", "two numbers", "sorted", "every second the same"],
)  # fmt: skip
def test_the_spread_of_numbers_whose_median_a_few_of_them_do_not_tell(values, both):
    found, expected = both(lambda: measures.nmad_and_deviation(values.double()))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_spread_of_residuals_and_what_varies_slowly_in_them(channels, both):
    at, level = here(channels)
    found, expected = both(
        lambda: (
            *spread.spread_over([at], [level]),
            evenness.unevenness(level, at),
            level.share(level.known, at.matrix),
        )
    )
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [(1, 37, 70), (2, 300, 301), (1, 2, 9), (1, 3, 3)])
@pytest.mark.parametrize("holes", [0.0, 0.05, 1.0])
def test_the_noise_of_a_raster(shape, holes, both):
    raster = scenery(*shape)
    mask = torch.rand(shape[1:], generator=torch.Generator().manual_seed(3)) >= holes
    found, expected = both(lambda: noise.measured(raster, mask, 1.0))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [(1, 40, 61), (3, 25, 30), (1, 2, 9)])
@pytest.mark.parametrize("holes", [0.0, 0.2, 1.0])
def test_rows_beside_the_rows_around_them(shape, holes, both):
    raster = scenery(*shape)
    mask = torch.rand(shape[1:], generator=torch.Generator().manual_seed(3)) >= holes
    found, expected = both(lambda: fields._sums(raster, mask))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 96, 131), (2, 64, 50)])
@pytest.mark.parametrize("holes", ["none", "few", "many", "all but a strip"])
def test_a_pyramid_made_at_once_is_that_of_its_levels(shape, holes, dtype, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    raster, some = scenery(*shape).to(dtype), torch.rand(shape[1:], generator=torch.Generator().manual_seed(3))
    mask = some >= {"none": 0.0, "few": 0.01, "many": 0.7, "all but a strip": 0.0}[holes]
    if holes == "all but a strip":
        mask[20:], raster[:, 20:] = False, float("nan")
    found = pyramid.build(raster, mask, 3, 1.0)
    if holes == "none":  # of the smaller one the coarsest level is mostly border
        assert len(pyramid._built(raster, mask, 3, 1.0)) == (3 if shape[1] == 96 else 2)
    monkeypatch.setattr(pyramid, "_built", lambda *_: [])
    for level, expected in zip(found, pyramid.build(raster, mask, 3, 1.0), strict=True):
        assert torch.equal(level.mask, expected.mask) and level.noise == expected.noise
        assert level.valid_pixels == expected.valid_pixels == int(level.mask.sum()) and level.factor == expected.factor
        assert torch.equal(level.raster, expected.raster)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 37, 64), (1, 40, 51)])
def test_every_few_pixels_of_a_masked_blur_are_those_of_all(shape, every, both):
    raster = scenery(*shape)
    mask = torch.rand(shape[1:], generator=torch.Generator().manual_seed(3)) >= 0.1
    mask[:, :3], mask[30:] = False, True  # rows that are alike, and full ones
    found, expected = both(lambda: pyramid.masked_blur(raster, mask, 1.6, every))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("holes", [0.0, 0.002, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("every", [1, 2])
def test_what_a_blurred_level_trusts_and_how_its_holes_are_filled(holes, every, both):
    raster = scenery(2, 45, 62)
    mask = torch.rand(45, 62, generator=torch.Generator().manual_seed(3)) >= holes
    blurred = pyramid.masked_blur(raster, mask, 1.0, every)
    found, expected = both(lambda: pyramid.settled(blurred[0].clone(), blurred[1], mask, every))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_glance_sees_what_a_look_does_of_a_few_samples():
    at, level = here(2)
    looked, valid = level.look(at.matrix)
    values, seen = passes.seen(level, at.matrix, 3)
    assert torch.equal(seen, valid)
    assert torch.equal(values[:, ::3], looked.T[:, ::3])
    assert not values[:, 1::3].any() and not values[:, 2::3].any()


def test_which_samples_are_valid_is_known_without_their_values():
    at, level = here(2)
    valid = level.valid(at.matrix)
    assert 0 < int(valid.count_nonzero()) < len(valid)
    assert torch.equal(valid, level.look(at.matrix)[1])
    assert level.valid(at.matrix) is level.look(at.matrix)[1]


def test_a_level_keeps_its_detail_and_one_with_other_values_has_its_own():
    level = pyramid.Level(scenery(1, 40, 53), torch.ones(40, 53, dtype=torch.bool), 1)
    detail = shifts.whitened_once(level)
    assert detail.dtype == torch.float32 and shifts.whitened_once(level) is detail
    torch.testing.assert_close(detail.double(), shifts.whitened(level), rtol=0, atol=1e-4)
    other = replace(level, raster=scenery(1, 40, 53, seed=4))
    assert not torch.equal(shifts.whitened_once(other), detail)


RECTANGLES = {
    "a rectangle": (slice(3, 40), slice(2, 60)),
    "one row": (slice(20, 21), slice(2, 60)),
    "all": (slice(None), slice(None)),
    "nothing": (slice(0), slice(0)),
}


@pytest.mark.parametrize("hole", [False, True])
@pytest.mark.parametrize("name", RECTANGLES)
def test_masks_that_are_rectangles_and_all_but(name, hole, both):
    """The kernel compares with a rectangle's sides where a mask is one."""
    at, level = here(1)
    mask = torch.zeros_like(level.moving.mask)
    mask[RECTANGLES[name]] = True
    if hole:
        mask[20, 30] = ~mask[20, 30]
    level = replace(level, moving=replace(level.moving, mask=mask), _last={})
    found, expected = both(lambda: level._looked(at.matrix))
    assert torch.equal(found[1], expected[1])
    assert bool(found[1].any()) == bool(expected[1].any())


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("side", [8, 16])
def test_the_blocks_that_show_something(channels, side, both):
    one, other = scenery(channels, 60, 75), scenery(channels, 60, 75, seed=4)
    valid = torch.rand(60, 75, generator=torch.Generator().manual_seed(3)) > 0.2
    valid[:side, :side], valid[30:, :20] = True, False
    one[:, :16, 30:48] = 0.5  # flat in one map, and beside it in both
    other[:, :16, 32:48] = 0.2
    noises = noise.Noise(1e-4, 1.0), noise.Noise(2e-4, 1.0)
    found, expected = both(lambda: evidence._compared(one, other, valid, side, noises, 1))
    assert 0 < len(found.correlation) < found.count < 60 * 75 / side**2
    assert found.count == expected.count
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("count", [0, 1, 5, 60])
def test_what_blocks_say_of_their_own(count, monkeypatch):
    random = np.random.default_rng(count)
    at = np.stack(np.divmod(random.permutation(80)[:count], 8), -1).astype(float)
    one, other = random.standard_normal((2, count, 2)) * [1.0, 0.1]  # edges, most of them along one way
    slopes = np.stack([one[:, 0] * other[:, 0], one.prod(-1) + other.prod(-1), one[:, 1] * other[:, 1]], -1)
    slopes[random.random(count) < 0.3] = [1.0, 0.0, 0.0]  # ways that lie along rows
    agreement = random.random(count)
    found = apertures.independent_both(slopes, at, agreement)
    monkeypatch.setattr(apertures, "available", lambda: False)
    assert found == pytest.approx(apertures.independent_both(slopes, at, agreement), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
def test_gain_and_bias_from_the_spreads_of_both_maps(channels, both):
    at, level = here(channels)
    freedom = torch.ones(2, dtype=torch.float64)
    found, expected = both(lambda: estimate.with_values(at, level, freedom).value)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    nowhere = replace(level, known=torch.zeros_like(level.known), _last={})
    assert estimate.with_values(at, nowhere, freedom).value.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("lag", [(5, -7), (-6, 4), (0, 9), (1000, 0)])
def test_residuals_beside_themselves(channels, lag, both):
    at, level = here(channels)
    found, expected = both(lambda: twice.at_lag(level, at, lag))
    assert found == pytest.approx(expected, rel=1e-9)
    assert bool(found) == (lag[0] < 1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitened_detail(dtype, both):
    raster = scenery(2, 40, 53).to(dtype) ** 3  # with numbers beyond three standard deviations
    level = pyramid.Level(raster, torch.rand(40, 53, generator=torch.Generator().manual_seed(3)) > 0.1, 1)
    found, expected = both(lambda: shifts.whitened(level))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_where_a_placement_would_fit_as_well(seed, both):
    """The map as it lies on the canvas, and the highest peak but its own, across the seam of the shifts too."""
    level = lambda seed: pyramid.Level(scenery(1, 40, 50, seed), torch.ones(40, 50, dtype=torch.bool), 2)  # noqa: E731
    matrix = torch.tensor([[0.9, -0.1, 3.0], [0.1, 0.9, -2.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    found, expected = both(lambda: rivals.standing(level(seed), level(seed + 10), matrix, 0.1))
    assert found.shift == expected.shift
    assert found[:2] == pytest.approx(expected[:2], abs=1e-5)


@pytest.mark.parametrize("broken", [[], [(0, 3, 4)], [(1, 0, 0), (0, 5, 6)]])
@pytest.mark.parametrize("masked", [0.1, 0.0])
def test_what_is_known_of_a_map_before_it_is_used(broken, masked, both):
    values = 1e4 + scenery(2, 20, 31)
    for k, place in enumerate(broken):
        values[place] = float("nan") if k else float("inf")
    mask = torch.rand(20, 31, generator=torch.Generator().manual_seed(3)) >= masked
    found, expected = both(lambda: (lambda known: (prepared._survey(values, known), known))(mask.clone()))
    assert torch.equal(found[1], expected[1])
    assert found[0] == pytest.approx(expected[0], rel=1e-12)


@pytest.mark.parametrize("holes", ["a border", "a few", "many"])
def test_holes_are_filled(holes, both):
    raster, mask = scenery(2, 60, 70), torch.ones(60, 70, dtype=torch.bool)
    if holes == "a border":
        mask[:3], mask[:, -2:] = False, False
    else:
        mask &= torch.rand(60, 70, generator=torch.Generator().manual_seed(3)) > (0.01 if holes == "a few" else 0.6)
    found, expected = both(lambda: pyramid.fill(raster, mask))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", list(models.MODELS.values()))
def test_products_of_jacobians_and_scores(channels, kind):
    at, level = here(channels)
    own = scenery(channels, 37, 70, seed=9)
    chosen = level.look(at.matrix)[1].nonzero()[::3, 0]
    place = Between(descent.model_matrix(kind, at.matrix.numpy()), at.value.numpy())
    found = curvature.products(level, own, kind, np.ones(2), place, chosen)
    unknowns = kind.tangent_dim + 2
    expected = np.zeros((3, unknowns, unknowns))
    for seen in curvature.samples(level, own, kind, np.ones(2), place, chosen):
        scores = (seen.residual[..., None] * seen.jacobian).sum(1)
        expected[0] += torch.einsum("ncu,ncv->uv", seen.jacobian, seen.jacobian).numpy()
        expected[1] += (scores.T @ scores).numpy()
        expected[2] += torch.einsum("ncu,ncv->uv", seen.jacobian, seen.of_target).numpy()
    assert found.both is not None
    for mine, theirs in zip((found.own, found.scores, found.both), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11 * np.abs(theirs).max())
    assert curvature.products(level, None, kind, np.ones(2), place, chosen).both is None


@pytest.mark.parametrize("loss", [None, "cauchy", "tukey"])
@pytest.mark.parametrize("freedom", [(1.0, 1.0), (0.0, 1.0), (0.0, 0.0)])
@pytest.mark.parametrize("kind", list(models.MODELS.values()))
def test_compiled_steps_are_those_of_the_descent(kind, loss, freedom):
    """The same costs step by step, from where few steps do and from where the secant correction learns."""
    level = pair_level()
    known = level.known.reshape(37, 70)
    blurred = pyramid.masked_blur(level.planes.reshape(1, 37, 70), known, 2.0)[0]
    smooth = pyramid.Level(blurred, known, 1)
    level = PairLevel.of(smooth, smooth, level.frame, 0)
    free = np.concatenate([np.ones(kind.tangent_dim), freedom]) > 0
    for size in (0.005, 0.05):
        start = Between(descent.model_matrix(kind, warp_of(kind, size).matrix().numpy()), np.array([0.1, 0.05]))
        valid = level.look(torch.from_numpy(start.matrix))[1]
        equations = passes.Pass(level, np.array(freedom), valid, kind.tangent_dim, loss, 0.5)
        found = descent.descend_pair(equations, kind, start, free, 40, 0.01, 0.5)
        moved = lambda at, step: at.moved(kind, step)  # noqa: E731
        last = {"untried": descent.UNTRIED, "rate": 0.5}
        expected = descent.descend(lambda at, of=equations: of(*at), moved, start, free, 40, 0.01, **last)
        assert found.rate == pytest.approx(expected.rate, rel=1e-4)
        assert found.status == expected.status
        assert found.costs == pytest.approx(expected.costs, rel=1e-6)
        np.testing.assert_allclose(found.state.matrix, expected.state.matrix, rtol=0, atol=1e-7)
        np.testing.assert_allclose(found.state.value, expected.state.value, rtol=0, atol=1e-7)
        np.testing.assert_allclose(found.normal.matrix, expected.normal.matrix, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", list(models.MODELS.values()))
def test_the_matrix_of_a_model_is_the_one_that_the_model_makes(kind):
    matrix = torch.tensor([[1.1, -0.3, 0.4], [0.25, 0.9, -0.2], [0.05, -0.02, 1.3]], dtype=torch.float64)
    expected = kind.from_matrix(matrix).matrix()
    expected = (expected / expected[2, 2]).numpy()
    np.testing.assert_allclose(descent.model_matrix(kind, matrix.numpy()), expected, rtol=0, atol=1e-15)


def test_a_level_of_single_precision_is_judged_too():
    at, level = here()
    single = replace(level, planes=level.planes.float(), moving=level.moving.with_raster(level.moving.raster.float()))
    assert spread.spread_at(at, single)[0] == pytest.approx(spread.spread_at(at, level)[0], rel=1e-4)
