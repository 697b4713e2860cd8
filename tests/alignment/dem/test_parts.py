"""The parts: derivatives, the same minimum as the solver's, columns, statistics, blunders, blocks, outlines."""

import numpy as np
import pytest
import torch

import mslsq
from mslsq.alignment import CoregistrationError, Georeference, coregister, coregister_blocks, stable_terrain
from mslsq.alignment.dem import correlation
from mslsq.alignment.dem.bias import Bias, Frame, legendre
from mslsq.alignment.dem.blunders import blunders
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.dem.correlation import Field, mean_squares
from mslsq.alignment.dem.fitting import fit
from mslsq.alignment.dem.pair import pair_of
from mslsq.alignment.dem.statistics import slope_and_aspect, statistics
from mslsq.alignment.dem.uncertainty import correlation_length
from mslsq.alignment.measures import summary
from mslsq.alignment.sampling import sample_at, sample_with_gradient_at


@pytest.fixture
def comparison(pair):
    made = pair(side=64)
    models = pair_of(made.reference, made.dem, 30.0, None, None, None)
    return Comparison.of(Pyramids.of(models, 1), 0, Bias.named("plane+scale")).valid(np.array([0.3, -1.0]))


@pytest.mark.parametrize("loss", [None, "tukey", "cauchy"])
def test_gradient_and_cost_agree_with_finite_differences(comparison, loss):
    state = comparison.state(Solved(np.array([0.3, -1.0]), np.array([3.0, 0.5, -0.2, 0.4])))
    of = lambda x: comparison.normal_equations(x, loss, 0.8)  # noqa: E731
    steps = 1e-6 * np.eye(len(state))
    numeric = np.array([(of(state + step).cost - of(state - step).cost) / 2e-6 for step in steps])
    np.testing.assert_allclose(of(state).gradient, numeric, rtol=1e-5, atol=1e-6 * np.abs(numeric).max())


def test_the_fit_ends_where_the_solver_of_the_library_ends(comparison):
    start = Solved(np.array([0.3, -1.0]), np.zeros(4))
    found = fit(comparison, start, "tukey")
    samples, positions = found.samples, found.samples.positions(np.zeros(2))

    def residual(x):
        sampled = sample_at(samples.dem.coefficients, positions - x[:2])[0]
        return sampled + samples.columns @ x[2:] - samples.target

    def jacobian(x):
        _, slope = sample_with_gradient_at(samples.dem.coefficients, positions - x[:2])
        return torch.cat([-slope[0], samples.columns], -1)

    at = torch.from_numpy(np.concatenate([found.at.shift, found.at.bias]))
    solution = mslsq.least_squares(
        residual, at + 0.01, jac=jacobian, loss=mslsq.Tukey(mslsq.Tukey.tuning * found.scale)
    )
    assert bool(solution.converged)
    torch.testing.assert_close(solution.value, at, rtol=0, atol=2e-4)


def test_columns_have_no_mean_over_the_rectangle_and_are_named():
    model = Bias.named("cubic+elevation")
    assert model.names == ["z", "x", "y", "x2", "xy", "y2", "x3", "x2y", "xy2", "y3", "h", "h2", "h3"]
    assert Bias.named("plane").within(model) == [0, 1, 2]
    assert Bias.named("scale").within(model) == [0, 10]
    t = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    middle = (t[1:] + t[:-1]) / 2
    for n, values in enumerate(legendre(middle, 3)):
        assert float(values.mean()) == pytest.approx(1.0 if n == 0 else 0.0, abs=1e-6)
    frame = Frame((50.0, 40.0), 100.0, 10.0)
    columns = Bias.named("plane+scale").columns(
        torch.tensor([[100.0, 0.0]], dtype=torch.float64), torch.tensor([110.0], dtype=torch.float64), frame
    )
    assert columns.tolist() == [[1.0, 1.0, 1.0, 1.0]]  # the north-east corner, one unit above the median


def test_statistics_are_those_of_numpy_and_of_the_terrain():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(1001)
    found = summary(values)
    assert found["mean"] == pytest.approx(values.mean())
    assert found["rmse"] == pytest.approx(np.sqrt((values**2).mean()))
    assert found["nmad"] == pytest.approx(1.4826 * np.median(np.abs(values - np.median(values))))
    metres = np.diag([10.0, -10.0])
    y, x = np.mgrid[:50, :60].astype(float)
    slope, aspect = slope_and_aspect(10 * x, metres)  # rises to the east at 45°: it faces west
    assert slope[5, 5] == pytest.approx(45) and aspect[5, 5] == pytest.approx(270)
    slope, aspect = slope_and_aspect(10 * y, metres)  # rises to the south: it faces north
    assert aspect[5, 5] % 360 == pytest.approx(0, abs=1e-9)
    stable = x < 30
    of = statistics(np.where(stable, 1.0, 5.0), 3 * x, metres, stable, np.zeros_like(stable))
    assert of.whole["mean"] == 1.0 and of.by_mask["masked"]["mean"] == 5.0
    assert of.by_slope["10-20 deg"]["count"] == stable.sum()
    assert of.by_aspect["W"]["count"] == stable.sum() and np.isnan(of.by_aspect["N"]["mean"])


def test_blunders_are_found_and_cliffs_are_not():
    _, x = torch.meshgrid(torch.arange(60.0), torch.arange(60.0), indexing="ij")
    terrain = (20 * torch.sin(x / 9) + 300 * (x > 30) + 0.1 * torch.randn(60, 60)).double()
    known = torch.ones(60, 60, dtype=torch.bool)
    assert not bool(blunders(terrain, known).any())
    terrain[10, 10], terrain[40, 50] = -9999, 4000
    assert torch.nonzero(blunders(terrain, known)).tolist() == [[10, 10], [40, 50]]


@pytest.mark.parametrize("sigma", [0.0, 8.0])
def test_the_correlation_length_is_that_of_the_residuals(comparison, sigma):
    from scipy import ndimage

    rng = np.random.default_rng(2)
    size = (400, 400)
    field = rng.standard_normal(size) if sigma == 0 else ndimage.gaussian_filter(rng.standard_normal(size), sigma)
    rows, columns = np.mgrid[:400, :400]
    pixels = torch.from_numpy(np.stack([columns.ravel(), rows.ravel()], -1).astype(float))
    samples = Comparison(
        comparison.pair,
        Bias(),
        comparison.frame,
        1,
        comparison.dem,
        pixels,
        pixels[:, 0],
        pixels[:, :1],
        pixels[:, :1],
        size,
    )
    length = correlation_length(samples, torch.from_numpy(field.ravel()))
    # exp(-d²/4σ²) is a tenth at 3.03 σ; white noise is correlated within half a cell of 8 at most
    assert length == pytest.approx(3.03 * sigma, abs=8) if sigma else length <= 4


def test_blunders_beside_holes_are_found():
    _, x = torch.meshgrid(torch.arange(60.0), torch.arange(60.0), indexing="ij")
    terrain = (20 * torch.sin(x / 9) + 0.1 * torch.randn(60, 60)).double()
    terrain[20:30, 20:30] = torch.nan
    terrain[10, 10] = -9999
    assert torch.nonzero(blunders(terrain, terrain.isfinite())).tolist() == [[10, 10]]


def test_heights_are_those_of_the_mean_where_errors_are_skewed(pair):
    made = pair()
    skewed = np.random.default_rng(3).exponential(2.0, made.dem.shape)  # its mode is 0, its mean 2 m
    found = coregister(made.reference, made.dem - skewed, pixel_size=30.0)
    error = found.shift[2] - made.shift[2] - 2.0
    assert abs(error) < 4 * found.standard_errors[2] < 0.12
    assert np.nanmean(found.apply(made.dem - skewed) - made.reference) == pytest.approx(0, abs=1e-3)


def test_a_scale_that_also_stretches_detail_is_found_within_its_error(pair):
    made = pair()
    found = coregister(made.reference, 0.98 * made.dem, pixel_size=30.0, bias="scale")
    error = found.coefficients["h"] / found.frame.unit - 0.02
    assert abs(error) < 3 * found.coefficient_errors["h"] / found.frame.unit < 4e-4
    left = found.apply(0.98 * made.dem) - made.truth
    assert np.nanstd(left) < 0.31  # the noise of the pixels, and no detail


SIDE = 12
PLACES = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), -1).reshape(-1, 2)
COUNTS, CONSTANT, MEAN = np.full(SIDE**2, 400.0), np.ones((SIDE**2, 1)), np.full((SIDE**2, 1), SIDE**-2.0)
TILT = np.sqrt(3) * (2 * (PLACES[:, :1] + 0.5) / SIDE - 1)


def test_a_common_error_of_cells_is_known_from_their_contrasts():
    from scipy import ndimage

    rng = np.random.default_rng(0)
    squares, stated = [], []
    for _ in range(40):
        field = ndimage.gaussian_filter(rng.standard_normal((60, 60)), 2)[20:32, 20:32]  # falls to 1/e within 4 cells
        means = 15 * field.ravel() + 0.05 * rng.standard_normal(SIDE**2)
        found = mean_squares(Field(means - means.mean(), COUNTS, PLACES, CONSTANT), MEAN)
        squares.append(means.mean() ** 2)
        stated.append(found[0, 0])
    assert 0.5 < np.mean(squares) / np.mean(stated) < 1.5
    white = mean_squares(Field(rng.standard_normal(SIDE**2), COUNTS, PLACES, CONSTANT), MEAN)
    assert 0.6 < white[0, 0] * SIDE**2 < 2.5  # what white cells have by themselves
    few = Field(np.zeros(6), COUNTS[:6], PLACES[:6], CONSTANT[:6])
    assert np.isnan(mean_squares(few, MEAN[:6])).all()


def test_a_tilt_that_is_missing_says_nothing_of_a_mean_and_all_of_a_half():
    rng = np.random.default_rng(1)
    means = 3 * TILT[:, 0] + 0.1 * rng.standard_normal(SIDE**2)
    halves = np.where(PLACES[:, :1] < SIDE / 2, 2 * MEAN, 0.0)
    influences = np.concatenate([MEAN, halves], 1)
    blind = mean_squares(Field(means - means.mean(), COUNTS, PLACES, CONSTANT), influences)
    found = mean_squares(Field(means - means.mean(), COUNTS, PLACES, CONSTANT, [TILT]), influences)
    assert found[0, 0] < 0.02 * blind[0, 0] and found[0, 0] * SIDE**2 < 3 * 0.1**2
    half = means[PLACES[:, 0] < SIDE / 2].mean()
    assert found[1, 1] == pytest.approx(half**2, rel=0.1)  # what was seen of it is its error


def test_what_cells_have_in_common_is_that_of_their_points():
    # the mean over two cells of exp(-d), by many random points
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 1, (2, 200_000, 2))
    of = lambda step: np.exp(-np.hypot(*(points[0] - points[1] + step).T) / 2.0).mean()  # noqa: E731
    found = correlation._between_cells(correlation._exponential, 2.0, 4)
    assert found[1, 0] == pytest.approx(of([1, 0]) / of([0, 0]), rel=0.03)
    assert found[2, 3] == pytest.approx(of([2, 3]) / of([0, 0]), rel=0.03)


def test_blocks_follow_a_shift_that_grows_and_refuse_flat_ground():
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:192, :192].astype(float)
    hills = lambda x: 40 * np.sin(x / 7) * np.cos(y / 9) + 25 * np.sin((x + 2 * y) / 23)  # noqa: E731
    reference, dem = hills(x), hills(x + x / 192 - 0.5) - 3
    for raster in (reference, dem):
        raster[:72, :72] = np.median(raster)
        raster += 0.2 * rng.standard_normal(raster.shape)
    found = coregister_blocks(reference, dem, pixel_size=10.0, block=64, find_changes=False)
    assert np.isnan(found.shifts[0, 0]).all() and "vertical" in found.reasons[0][0]
    np.testing.assert_allclose(found.shifts[1:, :, 0], [[-3.3, 0, 3.3]] * 2, atol=0.35)
    np.testing.assert_allclose(found.shifts[1:, :, 2], 3.0, atol=0.3)
    assert found.variation > 10
    field = found.at([[32, 140], [160, 140]])
    assert field[0, 0] < -1.5 and field[1, 0] > 1.5
    better, whole = (np.nanstd((one.apply(dem) - reference)[70:]) for one in (found, found.whole))
    assert better < 0.6 * whole
    assert "of 9 blocks" in found.message()
    with pytest.raises(CoregistrationError, match="block"):
        coregister_blocks(reference, dem, pixel_size=10.0, block=8)


def test_outlines_become_a_mask_on_the_raster(tmp_path):
    geopandas = pytest.importorskip("geopandas")
    pytest.importorskip("rasterio")
    from shapely.geometry import box

    here = Georeference.from_geotransform((500000, 10, 0, 4600000, 0, -10), "EPSG:32632")
    outlines = geopandas.GeoDataFrame(geometry=[box(500100, 4599800, 500200, 4599900)], crs="EPSG:32632")
    mask = stable_terrain(outlines, (50, 60), here)
    assert not mask[11:19, 11:19].any() and mask[:9].all() and mask[:, 22:].all()
    file = tmp_path / "glaciers.gpkg"
    outlines.to_crs("EPSG:4326").to_file(file)
    assert (stable_terrain(file, (50, 60), here) != mask).sum() <= 44  # its border, turned by a projection
    assert stable_terrain(outlines, (50, 60), here, buffer=30).sum() < mask.sum()
    with pytest.raises(CoregistrationError, match="no outline touches"):
        stable_terrain(outlines.translate(1e5).to_frame("geometry"), (50, 60), here)
    with pytest.raises(CoregistrationError, match="cannot be read"):
        stable_terrain(tmp_path / "none.gpkg", (50, 60), here)


def nees(pair, seeds, spoil=lambda dem, seed: dem, **options):
    """Squared errors in units of the stated covariance, per dimension."""
    out = []
    for seed in seeds:
        made = pair(d=(0.3 + 0.1 * (seed % 7), -0.45), noise=1.0, seed=seed)
        found = coregister(made.reference, spoil(made.dem, seed), pixel_size=30.0, **options)
        error = found.shift - made.shift
        out.append(error @ np.linalg.solve(found.covariance, error) / 3)
    return np.array(out)


@pytest.mark.slow
def test_standard_errors_are_those_of_the_errors(pair):
    # its standard deviation is 0.26; that white noise has no long range is not known: errors are stated too large
    assert 0.25 < nees(pair, range(10), find_changes=False).mean() < 1.7


@pytest.mark.slow
def test_standard_errors_cover_the_errors_under_model_error(pair):
    from scipy import ndimage

    def correlated(dem, seed):
        field = ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal(dem.shape), 6, mode="wrap")
        return dem + field / field.std()

    def tilted(dem, seed):
        return dem + np.linspace(-4, 4, dem.shape[1])

    assert 0.3 < nees(pair, range(100)).mean() < 1.5
    assert nees(pair, range(60), correlated).mean() < 2
    assert nees(pair, range(60), tilted).mean() < 2
