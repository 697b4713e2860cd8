"""What pictures of a comparison show, pixel by pixel."""

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
from mslsq.alignment.rasters import read_raster
from mslsq.alignment.report import Comparison, figures, picture_of, sheet_of, views
from mslsq.alignment.report.comparisons import LARGEST_SIDE, checkerboard, reduced
from mslsq.alignment.report.encoding import data_addresses
from mslsq.alignment.report.figures import coloured


def comparison(height=64, width=96, noise=0.1, shift=1.0):
    generator = torch.Generator().manual_seed(0)
    reference = torch.rand(height, width, generator=generator, dtype=torch.float64)
    known = torch.ones(height, width, dtype=torch.bool)
    seen = known.clone()
    seen[:, :10] = False
    after = reference + noise * torch.randn(height, width, generator=generator, dtype=torch.float64)
    before = reference + shift * torch.randn(height, width, generator=generator, dtype=torch.float64)
    return Comparison("a", reference, known, (before, seen), (after, seen), "caption", "m")


def test_the_scale_of_a_difference_holds_99_percent_of_it_and_a_few_outliers_do_not_stretch_it():
    item = comparison()
    sheet = sheet_of(item)
    difference = (item.after[0] - item.reference)[:, 10:].numpy()
    assert np.mean(np.abs(difference) <= sheet.limit) == pytest.approx(0.99, abs=2e-3)
    assert sheet.limit == pytest.approx(0.2576, rel=0.1)  # of a normal distribution of 0.1
    assert np.isnan(sheet.difference[:, :10]).all() and not np.isnan(sheet.difference[:, 10:]).any()
    item.after[0][5, 50:60] = 1e6
    assert sheet_of(item).limit == pytest.approx(sheet.limit, rel=0.1)
    assert sheet.values == "m"


def test_the_histogram_has_all_pixels_before_and_after():
    item = comparison()
    found = sheet_of(item).residuals
    assert found.before.sum() == pytest.approx(1) and found.after.sum() == pytest.approx(1)
    assert found.rms == pytest.approx(0.1, rel=0.05) and found.rms_before == pytest.approx(1.0, rel=0.05)
    assert found.spread == pytest.approx(0.1, rel=0.05)
    empty = Comparison("a", item.reference, ~item.known, item.before, item.after, "")
    assert sheet_of(empty).residuals is None


def test_a_difference_is_red_above_and_blue_below_and_white_at_none():
    red, white, blue, none = coloured(np.array([[1.0, 0.0, -1.0, np.nan]]), 1.0)[0].astype(int)
    assert red[0] > red[2] + 50 and blue[2] > blue[0] + 50
    assert white.min() > 240 and (none == 225).all()


def test_squares_of_a_checkerboard_are_of_the_reference_and_the_map_by_turns():
    known = torch.ones(16, 16, dtype=torch.bool)
    board = checkerboard(torch.zeros(16, 16), known, torch.ones(16, 16), known, (0.0, 1.0))
    assert (board[:2, :2] == 0).all() and (board[:2, 2:4] > 0.9).all() and (board[2:4, :2] > 0.9).all()


def test_large_rasters_are_shown_by_the_means_of_their_known_pixels():
    values = torch.full((10, 2 * LARGEST_SIDE + 1), 3.0, dtype=torch.float64)
    known = torch.ones_like(values, dtype=torch.bool)
    values[:, ::2], known[:, ::2] = float("nan"), False
    known[:, :30] = False
    small, seen = reduced(values, known)
    assert small.shape[1] <= LARGEST_SIDE
    assert torch.allclose(small[:, 10:-1], torch.tensor(3.0, dtype=torch.float64))
    assert not seen[:, :9].any()
    assert picture_of(values[None], known).shape == (*small.shape, 3)


@pytest.mark.parametrize("side", [LARGEST_SIDE, 2 * LARGEST_SIDE + 1])
def test_scales_say_that_they_are_of_means_where_pictures_are_reduced(side):
    values = torch.zeros(10, side, dtype=torch.float64)
    known = torch.ones_like(values, dtype=torch.bool)
    noise = torch.randn(values.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sheet = sheet_of(Comparison("a", values, known, (noise, known), (noise, known), ""))
    page, figure = views.comparison(sheet, "a", 10**6, True), figures.overlay_figure([sheet])
    titles = [axis.get_title() for axis in figure.axes]
    if side <= LARGEST_SIDE:
        assert sheet.means == 1 and "means of" not in page + "".join(titles)
        return
    assert sheet.means == 3 and 2.0 < sheet.residuals.rms / (sheet.limit / 2.58) < 4.0
    assert "means of 3 × 3 pixels" in page and any("means of 3 × 3 pixels" in title for title in titles)


def test_a_flat_raster_and_one_that_agrees_to_the_bit_are_shown():
    item = comparison(noise=0.0, shift=0.0)
    assert sheet_of(item).limit == 1.0
    flat = torch.zeros(8, 8, dtype=torch.float64)
    known = torch.ones(8, 8, dtype=torch.bool)
    assert sheet_of(Comparison("a", flat, known, (flat, known), (flat, known), "")).before.shape == (8, 8, 3)


def test_pictures_keep_to_their_budget():
    noise = np.random.default_rng(0).integers(0, 255, (450, 350, 3), dtype=np.uint8)
    for budget in (400_000, 60_000):
        found = data_addresses([noise, noise], budget)
        assert sum(map(len, found)) <= budget
        assert all(address.startswith("data:image/") for address in found)
    drawing = np.full((300, 300, 3), 255, np.uint8)
    assert data_addresses([drawing], 100_000)[0].startswith("data:image/png")


def test_walls_of_one_pixel_stay_in_the_picture_of_a_large_mosaic(tmp_path):
    picture = np.full((60, 900, 3), 255, np.uint8)
    picture[:, 10::20] = 0  # 45 walls
    drawn = read_raster(figures.mosaics([("", picture)], tmp_path / "mosaic.png")).values[:3].mean(0).numpy()
    row = drawn[drawn.shape[0] // 2]
    assert len(row) < 900 and ((row[1:] < 230) & (row[:-1] >= 230)).sum() == 45
