"""The passes over samples by kernels, beside automatic differentiation of the cost and beside PyTorch's operations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import mslsq
from mslsq.alignment import (
    align,
    candidates,
    grids,
    measures,
    models,
    passes,
    pyramid,
    refine,
    sampling,
    spread,
)
from mslsq.alignment import pair_level as levels_of_pairs
from mslsq.alignment.descent import UNFINISHED, Between, descend, step_matrix
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.measures import corner_error, project
from mslsq.alignment.objective import LOSSES, Photometric
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.synthetic import make_pair
from mslsq.kernels import available
from mslsq.kernels.build import targets
from mslsq.linearize.robust import LEAST_CURVATURE
from tests.kernels.instruction_sets import arrays_of_both

pytestmark = pytest.mark.skipif(not available(), reason="needs the compiled kernels")

VALUE = np.array([0.2, -0.1])
FREE = np.ones(2)
START = Between(np.eye(3), np.zeros(2))


def scenery(channels=1, height=37, width=70, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(channels, height, width, dtype=torch.float64, generator=generator)


def pair_level(channels=1, dtype=torch.float64):
    """A reference and a map of other sizes, both with holes; 70 columns fill no whole number of a kernel's pieces."""
    generator = torch.Generator().manual_seed(1)
    masks = [torch.rand(shape, generator=generator) > 0.1 for shape in ((37, 70), (45, 66))]
    reference, moving = scenery(channels), scenery(channels, 45, 66, seed=2)
    levels = [pyramid.Level(one.to(dtype), mask, 1) for one, mask in zip((reference, moving), masks, strict=True)]
    return PairLevel.of(levels[0], levels[1], models.Frame(37, 70, reference.to(dtype)), 0)


def warp_of(kind, size=0.05):
    generator = torch.Generator().manual_seed(3)
    step = size * torch.randn(kind.tangent_dim, dtype=torch.float64, generator=generator)
    return kind.identity(dtype=torch.float64).retract(step)


def residuals_and_jacobian(level, warp, valid):
    """By forward mode through the cost that `mslsq.solve` is given, sample by sample: no formula of ours."""
    freedom = torch.ones(2, dtype=torch.float64)
    data = level.data(valid, freedom)
    shared: Any = {name: mslsq.Shared(given) for name, given in data.items()}
    cost = Photometric(mslsq.Variable("warp", type(warp)), mslsq.Variable("value", mslsq.Euclidean(2)), **shared)
    mine = ("point", "target", "valid")

    def residuals(step):
        at, value = warp.retract(step[:-2]), torch.from_numpy(VALUE) + step[-2:]
        one = lambda *own: cost.residual(at, value, **(data | dict(zip(mine, own, strict=True))))  # noqa: E731
        return torch.func.vmap(one)(*(data[name] for name in mine))

    zero = torch.zeros(warp.tangent_dim + 2, dtype=torch.float64)
    return residuals(zero), torch.func.jacfwd(residuals)(zero)


@pytest.mark.parametrize("loss", [None, *LOSSES])
@pytest.mark.parametrize("model", models.MODELS)
def test_the_normal_equations_are_those_of_automatic_differentiation(model, loss):
    level, kind, scale = pair_level(), models.MODELS[model], 0.8
    warp = warp_of(kind)
    valid = level.look(warp.matrix())[1]
    assert 0.3 < float(valid.double().mean()) < 0.9  # holes, and samples that fall outside
    r, jacobian = (x[:, 0] for x in residuals_and_jacobian(level, warp, valid))
    rho, slope, bend = r * r, torch.ones_like(r), torch.zeros_like(r)
    if loss is not None:
        rho, slope, bend = LOSSES[loss](torch.tensor(scale, dtype=torch.float64)).derivatives(r * r)
    kept = 1 + 2 * r * r * bend / torch.where(slope > 0, slope, 1)
    weight = slope * torch.where(kept >= LEAST_CURVATURE, kept, 1)
    matrix = warp.matrix().numpy()
    found = passes.normal_equations(level, matrix / matrix[2, 2], VALUE, FREE, valid, kind.tangent_dim, loss, scale)
    assert found.samples == int(valid.sum())
    # Sums of some thousand terms in another order.
    np.testing.assert_allclose(found.cost, 0.5 * float(rho.sum()), rtol=1e-12)
    gradient = (jacobian.T @ (slope * r)).numpy()
    np.testing.assert_allclose(found.gradient, gradient, rtol=0, atol=1e-11 * np.abs(gradient).max())
    expected = (jacobian.T @ (weight[:, None] * jacobian)).numpy()
    np.testing.assert_allclose(found.matrix, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("loss", [None, "cauchy"])
def test_channels_are_one_block_and_held_values_have_no_influence(loss):
    level, kind = pair_level(channels=3), models.Similarity
    warp = warp_of(kind)
    valid = level.look(warp.matrix())[1]
    r, jacobian = residuals_and_jacobian(level, warp, valid)
    squared = (r * r).sum(1)
    rho, slope = squared, torch.ones_like(squared)
    if loss is not None:
        rho, slope, _ = LOSSES[loss](torch.tensor(1.5, dtype=torch.float64)).derivatives(squared)
    matrix = warp.matrix().numpy()
    found = passes.normal_equations(level, matrix, VALUE, FREE, valid, 4, loss, 1.5)
    np.testing.assert_allclose(found.cost, 0.5 * float(rho.sum()), rtol=1e-12)
    expected = torch.einsum("n,nci,ncj->ij", slope, jacobian, jacobian).numpy()
    np.testing.assert_allclose(found.matrix, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    held = passes.normal_equations(level, matrix, VALUE, np.zeros(2), valid, 4, loss, 1.5)
    assert not held.gradient[4:].any()
    assert not held.matrix[4:].any()


def test_single_precision_agrees_to_single_precision():
    warp = warp_of(models.Affine)
    double, single = pair_level(), pair_level(dtype=torch.float32)
    valid = double.look(warp.matrix())[1]
    found = [passes.normal_equations(one, warp.matrix().numpy(), VALUE, FREE, valid, 6) for one in (double, single)]
    np.testing.assert_allclose(found[1].matrix, found[0].matrix, rtol=0, atol=1e-4 * np.abs(found[0].matrix).max())
    np.testing.assert_allclose(found[1].cost, found[0].cost, rtol=1e-5)


def test_the_number_of_threads_changes_no_bit():
    level, warp = pair_level(), warp_of(models.Homography)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            values, valid = passes.seen(level, warp.matrix())
            matrix = passes.normal_equations(level, warp.matrix().numpy(), VALUE, FREE, valid, 8, "cauchy").matrix
            found.append((values, valid, torch.from_numpy(matrix)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("size", [0.05, 0.5])
def test_what_is_seen_is_the_spline_where_both_hold_data(size):
    level = pair_level(channels=2)
    matrix = warp_of(models.Homography, size).matrix()
    values, valid = passes.seen(level, matrix)
    pixels = project(matrix, level.points) * level.to_level[0] + level.to_level[1:]
    assert torch.equal(valid, level.known & grids.inside(pixels, level.moving.mask))
    expected = torch.func.vmap(sampling.sample, in_dims=(None, 0), out_dims=1)(
        level.moving.coefficients, torch.nan_to_num(pixels)
    )
    torch.testing.assert_close(values[:, valid], expected[:, valid], rtol=0, atol=1e-12)
    assert not values[:, ~valid].any()


MOVES = (0.0, 0.0), (3.0, -2.0), (2.0 + 0.9e-6, -0.9e-6), (0.5, 1.1e-6), (-4.25, 7.5)


@pytest.mark.parametrize("sides", [(0, 45, 0, 66), (3, 45, 0, 40), (0, 30, 5, 66), (9, 10, 8, 60)])
def test_a_mask_that_is_a_rectangle_holds_what_any_mask_does(sides):
    """The kernel compares with its sides, and never looks at it; a millionth of a pixel beyond them is still within."""
    level, everywhere = pair_level(), torch.ones(40 * 70, dtype=torch.bool)
    mask = torch.zeros(45, 66, dtype=torch.bool)
    mask[slice(*sides[:2]), slice(*sides[2:])] = True
    geometry = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    for moved in MOVES:
        matrix = torch.eye(3, dtype=torch.float64)
        matrix[:2, 2] = torch.tensor(moved)
        pixels = grids.pixel_grid(40, 70, matrix) + matrix[:2, 2]
        values, valid = passes.warped(level.moving.coefficients, mask, (40, 70), everywhere, geometry, matrix)
        assert torch.equal(valid, grids.inside(pixels, mask))
        expected = torch.func.vmap(sampling.sample, in_dims=(None, 0), out_dims=1)(level.moving.coefficients, pixels)
        torch.testing.assert_close(values[:, valid], expected[:, valid], rtol=0, atol=1e-12)
        assert not values[:, ~valid].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_points_anywhere_are_sampled_as_in_pytorch(dtype):
    coefficients = sampling.spline_coefficients(scenery(2, 12, 9).to(dtype))
    points = (torch.rand(300, 2, generator=torch.Generator().manual_seed(0)) * 40 - 15).to(dtype)
    expected = torch.func.vmap(sampling.sample, in_dims=(None, 0), out_dims=1)(coefficients, points)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(sampling.sample_at(coefficients, points), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_points_of_one_row_have_the_bits_that_each_has_alone(dtype):
    """The sums down the columns are made once for all of them, with and without a gradient, across borders too."""
    coefficients = sampling.spline_coefficients(scenery(2, 12, 90).to(dtype))
    for apart in (1, 2, 3):
        for x, y in ((-3.3, 5.25), (8.0, 5.0), (40.7, -1.5), (2.2, 12.9)):
            points = torch.tensor([[x + apart * k, y] for k in range(61)], dtype=dtype)
            together = (
                sampling.sample_at(coefficients, points),
                *sampling.sample_with_gradient_at(coefficients, points),
            )
            one_by_one = [
                (
                    sampling.sample_at(coefficients, one[None]),
                    *sampling.sample_with_gradient_at(coefficients, one[None]),
                )
                for one in points
            ]
            for found, expected in zip(together, zip(*one_by_one, strict=True), strict=True):
                assert torch.equal(found, torch.cat(expected, 1))


@pytest.mark.parametrize("model", models.MODELS)
def test_a_step_is_that_of_the_manifold(model):
    kind = models.MODELS[model]
    step = np.linspace(-0.2, 0.3, kind.tangent_dim)
    warp = warp_of(kind)
    moved = warp.matrix().numpy() @ step_matrix(kind, step)
    expected = warp.retract(torch.from_numpy(step)).matrix().numpy()
    np.testing.assert_allclose(moved / moved[2, 2], expected / expected[2, 2], rtol=0, atol=1e-14)

    class Derived(kind):
        """Goes twice as far."""

        def retract(self, delta):
            return super().retract(2 * delta)

    np.testing.assert_allclose(step_matrix(Derived, step), step_matrix(kind, 2 * step), rtol=0, atol=1e-14)


@pytest.mark.parametrize("loss", [None, "cauchy"])
@pytest.mark.parametrize("model", ["translation", "sim2", "homography"])
def test_a_descent_ends_where_solve_does(model, loss):
    pair = make_pair("camera", model, seed=1, size=96)
    known = torch.ones(96, 96, dtype=torch.bool)
    reference, moving = (pyramid.build(one[None], known, 1)[0] for one in (pair.reference, pair.moving))
    frame = models.Frame(96, 96, pair.reference)
    level, freedom = PairLevel.of(reference, moving, frame, 0), torch.ones(2, dtype=torch.float64)
    start = Estimate(frame.from_pixels(pair.transform), torch.zeros(2, dtype=torch.float64), "truth")
    arguments = [start], level, model, loss, freedom, 50, "finest"
    (found,) = refine.refine(*arguments)
    valid = [level.look(start.matrix)[1]]
    scale = 1.0 if loss is None else LOSSES[loss].tuning * spread.spread_at(start, level)[0]
    (expected,) = refine._by_solve(*arguments, valid, [scale])
    apart = corner_error(frame.to_pixels(found.estimate.matrix), frame.to_pixels(expected.estimate.matrix), 96, 96)
    # Both stop within a twentieth of a standard error; these are some hundredths of a pixel.
    assert apart < 2e-3
    # The last cost is what the last step promises.
    assert found.costs[-1] == pytest.approx(expected.costs[-1], rel=1e-5)
    assert found.status in (mslsq.Status.COST_TOLERANCE, mslsq.Status.STEP_TOLERANCE)
    assert found.costs == sorted(found.costs, reverse=True)


def moved(kind):
    """A step of one pair."""
    return lambda at, step: at.moved(kind, step)


def test_a_cost_that_is_no_number_ends_a_descent():
    nothing = passes.NormalEquations(5, float("nan"), np.zeros(4), np.eye(4))
    found = descend(lambda _: nothing, moved(models.Translation), START, np.ones(4, bool), 9, 0.1)
    assert found.status == mslsq.Status.NON_FINITE


def test_steps_out_of_this_world_are_not_tried():
    """Almost nothing is known of the scale here: the first steps would be e^1000."""
    tried = []

    def evaluate(at):
        tried.append(at.matrix)
        gradient = np.array([1e-3, 0, 0, -1.0, 0, 0])
        return passes.NormalEquations(100, 1.0 if len(tried) == 1 else 2.0, gradient, np.diag([1, 1, 1, 1e-3, 1, 1.0]))

    found = descend(evaluate, moved(models.Similarity), START, np.ones(6, bool), 40, 0.1)
    assert found.status in (mslsq.Status.MAX_STEPS, mslsq.Status.STALLED)
    assert np.abs(tried).max() < np.exp(10)


def test_noise_in_the_normal_equations_does_not_slow_a_descent():
    """JᵀJ is up to fifty times the Hessian here, as noise makes it. Without the correction it takes 317 steps."""
    hessian = np.diag([1.0, 0.1, 0.02, 0.5, 1, 1])
    hessian[0, 1] = hessian[1, 0] = 0.2

    def evaluate(at):
        off = np.concatenate([at[:4] - [0.01, -0.02, 0.03, 0.005], at[4:]])
        return passes.NormalEquations(1000, 50 + 0.5 * off @ hessian @ off, hessian @ off, np.eye(6))

    taken = descend(evaluate, lambda at, step: at + step, np.zeros(6), np.ones(6, bool), 40, 1e-6, variance=1.0)
    assert taken.status not in UNFINISHED
    np.testing.assert_allclose(taken.state[:4], [0.01, -0.02, 0.03, 0.005], atol=1e-5)


def finest_of(model, size, seed=1):
    """The finest level of a drawn pair, and an estimate half a pixel off."""
    pair = make_pair("camera", model, seed=seed, size=size)
    known = torch.ones(size, size, dtype=torch.bool)
    reference, moving = (pyramid.build(one[None], known, 1)[0] for one in (pair.reference, pair.moving))
    frame = models.Frame(size, size, pair.reference)
    start = Estimate(frame.from_pixels(pair.transform), torch.zeros(2, dtype=torch.float64), "truth")
    off = torch.tensor([[1.0, 0, 1 / size], [0, 1, -1 / size], [0, 0, 1]], dtype=torch.float64)
    return PairLevel.of(reference, moving, frame, 0), replace(start, matrix=start.matrix @ off)


@pytest.mark.parametrize("loss", [None, "cauchy"])
def test_steps_with_a_quarter_of_the_samples_lead_to_the_minimum_of_all(monkeypatch, loss):
    level, start = finest_of("se2", 192)
    assert level.thinned.known.numel() * 4 == level.known.numel()
    solve = lambda: refine.refine([start], level, "se2", loss, torch.ones(2).double(), 50, "finest")[0]  # noqa: E731
    quick = solve()
    monkeypatch.setattr(PairLevel, "thinned", property(lambda self: self))
    whole = solve()
    at = Between(whole.estimate.matrix.numpy(), whole.estimate.value.numpy())
    normal = passes.normal_equations(level, *at, FREE, whole.valid, 3)
    moved = (torch.linalg.inv(whole.estimate.matrix) @ quick.estimate.matrix).numpy()
    away = np.array([moved[0, 2], moved[1, 2], moved[1, 0], *(quick.estimate.value - whole.estimate.value)])
    spread_of_one = 2 * normal.cost / normal.samples
    # Standard errors of independent samples: both end within a twentieth of the same minimum.
    assert (away @ normal.matrix @ away / spread_of_one) ** 0.5 < 0.1
    assert quick.costs[-1] == pytest.approx(whole.costs[-1], rel=1e-5)
    assert len(quick.costs) > 2


def test_the_samples_of_a_level_without_a_prefilter_are_not_thinned():
    level, _ = finest_of("se2", 192)
    sharp = replace(level, noise=level.noise._replace(square=0.08), _last={})
    assert sharp.thinned is sharp
    assert level.thinned.thinned is level.thinned


def test_a_last_step_is_not_tried_where_the_rate_says_that_it_is_enough():
    asked = []

    def evaluate(at):
        asked.append(at)
        off = at[0] - 3.0  # steps leave a tenth of the way
        return passes.NormalEquations(1000, 500 + 0.45 * float(off) ** 2, np.array([0.9 * off]), np.array([[1.0]]))

    arguments = evaluate, lambda at, step: at + step, np.array([1.0]), np.ones(1, bool), 40, 0.05
    tried, count = descend(*arguments), len(asked)
    untried = descend(*arguments, untried=1.0)
    assert len(asked) - count < count
    assert abs(untried.state[0] - 3.0) < 0.05 > abs(tried.state[0] - 3.0)
    assert untried.rate == pytest.approx(0.1, rel=0.1)
    assert untried.costs[-1] == pytest.approx(evaluate(untried.state).cost, abs=1e-2)


# ---- what pyramids and judgements are made of


@pytest.fixture
def in_pytorch(monkeypatch):
    """A switch that takes the kernels away from the alignment."""

    def switch():
        for module in (sampling, pyramid, measures):
            monkeypatch.setattr(module, "may_read", lambda *_: False)
        for module in (passes, levels_of_pairs):
            monkeypatch.setattr(module, "run_on", lambda _: False)

    return switch


@pytest.mark.parametrize("shape", [(37, 70), (5, 300), (300, 4), (1, 1), (2, 9)])
@pytest.mark.parametrize("every", [1, 2])
def test_masked_blurs_are_those_of_pytorch(shape, every, in_pytorch):
    raster = scenery(2, *shape)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(4)) > 0.3
    mask[: shape[0] // 2] = True  # whole rows of data take another way
    raster[:, ~mask] = float("nan")
    found = pyramid.masked_blur(raster, mask, 3.0, every)
    in_pytorch()
    expected = pyramid.masked_blur(raster, mask, 3.0, every)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("border", ["mirror", "zero"])
@pytest.mark.parametrize("shape", [(37, 70), (3, 65), (1, 1)])
def test_convolutions_and_spline_filters_are_those_of_pytorch(shape, border, in_pytorch):
    raster, kernel = scenery(2, *shape), pyramid.gaussian_kernel(2.0, scenery())

    def both():
        along = [sampling.convolve_axis(raster, kernel, axis, border) for axis in (-1, -2)]
        return [*along, sampling.spline_coefficients(raster), sampling.spline_coefficients(raster.float()).double()]

    found = both()
    in_pytorch()
    for one, other, tolerance in zip(found, both(), (1e-14, 1e-14, 1e-13, 1e-5), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def test_correlations_of_rasters_and_of_their_detail_are_those_of_pytorch(in_pytorch):
    a, b = 4e4 + scenery(2), scenery(2) + scenery(2, seed=5)  # a mean far from zero must not cost digits
    mask = torch.rand(37, 70, generator=torch.Generator().manual_seed(6)) > 0.2
    found = measures.ncc_and_detail(a, b, mask, 3.0)
    in_pytorch()
    whole, detail = measures.ncc_and_detail(a, b, mask, 3.0)
    assert found[0] == pytest.approx(whole, abs=1e-12)
    assert found[1] == pytest.approx(detail, abs=1e-7)  # in single precision


def test_derivatives_of_a_blur_do_not_go_through_the_kernel():
    raster, mask = scenery(1, 6, 7).requires_grad_(), torch.ones(6, 7, dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda r: pyramid.masked_blur(r, mask, 1.0)[0], (raster,))
    tangent = torch.func.jvp(lambda r: pyramid.masked_blur(r, mask, 1.0)[0], (raster.detach(),), (scenery(1, 6, 7),))[1]
    torch.testing.assert_close(tangent, pyramid.masked_blur(scenery(1, 6, 7), mask, 1.0)[0])


def test_an_alignment_without_kernels_ends_at_the_same_place(in_pytorch):
    pair = make_pair("camera", "sim2", seed=1, size=96)
    found = align([pair.reference, pair.moving])
    in_pytorch()
    slowly = align([pair.reference, pair.moving])
    assert corner_error(found.transforms[1], slowly.transforms[1], 96, 96) < 1e-3
    assert float(found.corner_sigma[1]) == pytest.approx(float(slowly.corner_sigma[1]), rel=1e-3)


# ---- what is left out


def placed(pair, monkeypatch, searched, **options):
    """The alignment, which took a search or did not."""
    counted = []
    search = candidates.starts.search
    monkeypatch.setattr(candidates.starts, "search", lambda *given: counted.append(1) or search(*given))
    result = align([pair.reference, pair.moving], **options)
    assert bool(counted) == searched
    return result


def test_a_pair_that_phase_correlation_finds_is_not_searched(monkeypatch):
    pair = make_pair("camera", "se2", seed=1, size=128)
    result = placed(pair, monkeypatch, searched=False, model="se2")
    again = placed(pair, monkeypatch, searched=True, model="se2", init="search")
    assert corner_error(result.transforms[1], again.transforms[1], 128, 128) < 1e-3


def test_a_turned_map_is_searched(monkeypatch):
    pair = make_pair("camera", "se2", seed=1, size=128)
    turned = replace(pair, moving=pair.moving.rot90(2))
    half_turn = torch.tensor([[-1.0, 0, 127], [0, -1, 127], [0, 0, 1]]).double()
    result = placed(turned, monkeypatch, searched=True, model="se2")
    assert corner_error(result.transforms[1], half_turn @ pair.transform, 128, 128) < 0.1


def test_the_last_solve_uses_all_pixels(monkeypatch):
    pair = make_pair("camera", "sim2", seed=1, size=128)
    expected = align([pair.reference, pair.moving])
    of = PairLevel.of
    sampled = staticmethod(lambda r, m, frame, index, most=6000: of(r, m, frame, index, most))
    monkeypatch.setattr(PairLevel, "of", sampled)
    found = align([pair.reference, pair.moving])
    assert [stage.level for stage in found.stages].count(0) == 2
    # A hundredth of a standard error (0.01 px), twice.
    assert corner_error(found.transforms[1], expected.transforms[1], 128, 128) < 1e-3
    # The noise is estimated from fewer residuals, the rest is the same.
    assert float(found.corner_sigma[1]) == pytest.approx(float(expected.corner_sigma[1]), rel=0.1)


# ---- every instruction set

PASSES = """
import numpy as np
import torch
from mslsq.alignment import align, measures, models, passes, pyramid, sampling
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.synthetic import make_pair

generator = torch.Generator().manual_seed(0)
found = []
for dtype in (torch.float64, torch.float32):
    reference, moving = (torch.randn(2, *shape, generator=generator).to(dtype) for shape in ((37, 70), (45, 66)))
    masks = [torch.rand(one.shape[1:], generator=generator) > 0.1 for one in (reference, moving)]
    pair = [pyramid.Level(one, mask, 1) for one, mask in zip((reference, moving), masks)]
    level = PairLevel.of(*pair, models.Frame(37, 70, reference), 0)
    step = 0.05 * torch.randn(8, generator=generator).double()
    warp = models.Homography.identity(dtype=torch.float64).retract(step).matrix()
    values, valid = passes.seen(level, warp)
    found += [values, valid, *pyramid.masked_blur(reference, masks[0], 3.0, 2)]
    found += [torch.tensor(measures.ncc_and_detail(reference, reference.flip(2), masks[0], 3.0)).to(dtype)]
    found += [sampling.sample_at(pair[1].coefficients, (torch.rand(50, 2, generator=generator) * 90 - 20).to(dtype))]
    row = torch.tensor([[x + 0.3, 5.25] for x in range(-2, 60)], dtype=dtype)
    found += sampling.sample_with_gradient_at(pair[1].coefficients, row)
    for loss in passes.KINDS_OF_LOSS:
        normal = passes.normal_equations(level, warp.numpy(), np.array([0.2, 0.1]), np.ones(2), valid, 8, loss, 0.8)
        found += [torch.from_numpy(normal.matrix / np.abs(normal.matrix).max()).to(dtype)]
pair = make_pair("camera", "sim2", seed=1, size=96)
found += [align([pair.reference, pair.moving]).transforms]
np.savez(OUT, *(one.numpy() for one in found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", [name for name in targets() if name not in ("avx512", "neon")])
def test_every_instruction_set_sees_the_same(target, tmp_path):
    for one, other in arrays_of_both(PASSES, target, tmp_path):
        tolerance = 1e-4 if one.dtype == np.float32 else 1e-10  # sums in another order
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
