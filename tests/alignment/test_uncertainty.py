"""The covariance of a placement: the inverse of the normal equations of its samples, by automatic differentiation."""

import pytest
import torch

import mslsq
from mslsq.alignment import MapStatus, align, belief, models, synthetic
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.mosaics import cut
from mslsq.alignment.objective import Photometric
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import build
from mslsq.alignment.spread import mad_sigma, residual_at
from mslsq.alignment.uncertainty import tangent_covariance

SIZE = 40
FREE = {"gain_bias": (1.0, 1.0), "gain": (1.0, 0.0), "bias": (0.0, 1.0), "none": (0.0, 0.0)}


def pair(raster):
    """A raster against itself with noise, on the finest level, and where it was placed."""
    noise = 0.01 * torch.randn(raster.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    known = torch.ones(raster.shape[-2:], dtype=torch.bool)
    reference, moving = (build(one, known, 1, 0.0)[0] for one in (raster, raster + noise))
    level = PairLevel.of(reference, moving, models.Frame(SIZE, SIZE, raster), 0)
    matrix = models.Rigid.identity(dtype=torch.float64).retract(torch.tensor([0.01, -0.02, 0.005]).double()).matrix()
    return Estimate(matrix, torch.tensor([0.02, -0.01], dtype=torch.float64), "given"), level


def scenery():
    y, x = torch.meshgrid(*[torch.arange(SIZE, dtype=torch.float64)] * 2, indexing="ij")
    return (torch.sin(x / 3) * torch.cos(y / 4) + 0.05 * x)[None]


@pytest.mark.parametrize("value", FREE)
@pytest.mark.parametrize("model", ["translation", "se2", "affine"])
def test_it_is_the_inverse_of_the_normal_equations_with_gain_and_bias_marginalised(model, value):
    estimate, level = pair(scenery())
    freedom = torch.tensor(FREE[value], dtype=torch.float64)
    found = tangent_covariance(estimate, level, Options(model=model, value=value, prefilter=0.0), freedom)
    warp = models.MODELS[model].from_matrix(estimate.matrix)
    residual, valid = residual_at(estimate, level)
    cost = Photometric(
        mslsq.Variable("warp", models.MODELS[model]),
        mslsq.Variable("value", mslsq.Euclidean(2)),
        **{name: mslsq.Shared(given) for name, given in level.data(valid, freedom).items()},
    )
    data = level.data(valid, freedom)
    one_by_one = ("point", "target", "valid")

    def residuals(step):
        at, corrected = warp.retract(step[:-2]), estimate.value + step[-2:]
        one = lambda *mine: cost.residual(at, corrected, **(data | dict(zip(one_by_one, mine, strict=True))))  # noqa: E731
        return torch.func.vmap(one)(*(data[name] for name in one_by_one)).reshape(-1)

    jacobian = torch.func.jacfwd(residuals)(torch.zeros(warp.tangent_dim + 2, dtype=torch.float64))
    free = torch.cat([torch.ones(warp.tangent_dim), freedom]).bool()
    covariance = torch.linalg.inv(jacobian[:, free].T @ jacobian[:, free])[: warp.tangent_dim, : warp.tangent_dim]
    expected = mad_sigma(residual, valid) ** 2 * covariance
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def test_samples_that_say_nothing_leave_no_covariance():
    estimate, level = pair(scenery())
    level.moving.coefficients.zero_()
    options = Options(model="translation", value="none", prefilter=0.0)
    assert tangent_covariance(estimate, level, options, torch.zeros(2, dtype=torch.float64)).isnan().all()


def test_noise_is_not_taken_for_detail():
    """A smooth scene in noise of a tenth of its range: standard errors of JᵀJ alone are four times too small."""
    base = synthetic.base_raster("moon")
    base = (base - base.min()) / (base.max() - base.min())
    kind, squares = models.MODELS["sim2"], []
    for seed in range(6):
        mosaic = cut(base, [(200, 200), (225, 210)], 80, seed, noise=0.08)
        result = align(mosaic.maps, init=mosaic.transforms, min_detail=-1, min_ncc=-1, min_lead=0)
        frame = models.Frame(80, 80, mosaic.transforms)
        found, true = (kind.from_matrix(frame.from_pixels(one[1])) for one in (result.transforms, mosaic.transforms))
        off = found.local(true)
        squares.append(float(off @ torch.linalg.solve(result.covariance[1], off)) / 4)
    assert 0.3 < sum(squares) / len(squares) < 2  # 1.5 here, 19 by JᵀJ


def test_standard_errors_hold_where_noise_is_as_strong_as_the_scene():
    """They were twice too large: noise of the two maps is as little correlated with each other as its slopes are."""
    base = synthetic.base_raster("camera")
    noise, kind, squares = float(base.std()), models.MODELS["sim2"], []
    base = base / noise
    for seed in range(8):
        mosaic = cut(base, [(150 + 9 * seed, 200), (160 + 9 * seed, 205)], 128, seed, noise=1.0)
        result = align(mosaic.maps, init=mosaic.transforms, min_detail=-1, min_ncc=-1, min_lead=0)
        frame = models.Frame(128, 128, mosaic.transforms)
        found, true = (kind.from_matrix(frame.from_pixels(one[1])) for one in (result.transforms, mosaic.transforms))
        off = found.local(true)
        squares.append(float(off @ torch.linalg.solve(result.covariance[1], off)) / 4)
    assert 0.35 < sum(squares) / len(squares) < 1.6


def test_a_place_of_which_a_direction_is_undetermined_is_not_believed(monkeypatch):
    """As the ends of two lines that lie on each other: an affine warp may stretch them."""
    pair = synthetic.make_pair("camera", "affine", seed=1, size=96)
    assert align([pair.reference, pair.moving], model="affine").aligned == [0, 1]

    def undetermined(estimate, *_):
        return estimate.matrix.new_full((6, 6), float("nan"))

    monkeypatch.setattr(belief, "tangent_covariance", undetermined)
    result = align([pair.reference, pair.moving], model="affine")
    assert result.status[1] == MapStatus.AMBIGUOUS and "undetermined" in result.reasons[1]
