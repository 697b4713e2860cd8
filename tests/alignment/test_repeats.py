"""What repeats itself, told by what does not: stains of a chessboard, but not the ends of equal rooms."""

import numpy as np
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align

SIZE, SIDE, NOISE = 128, 220, 0.01
RANDOM = np.random.default_rng(4)
DOWN, ACROSS = (np.mgrid[:SIDE, :SIDE] + 0.5) * (2 * np.pi / 22)
SQUARES = scipy.ndimage.gaussian_filter(np.sign(np.sin(ACROSS) * np.sin(DOWN)), 1.0)
STAINS = scipy.ndimage.gaussian_filter(RANDOM.standard_normal((SIDE, SIDE)), 4.0)
STAINS /= STAINS.std()


def placed(stains: float, moved: tuple[int, int] = (17, -6)):
    """Two views of one board, with noise of their own."""
    board = SQUARES + stains * STAINS
    views = (board[40 + y : 40 + y + SIZE, 40 + x : 40 + x + SIZE] for x, y in ((0, 0), moved))
    maps = [torch.from_numpy(view + NOISE * RANDOM.standard_normal(view.shape)) for view in views]
    result = align(maps)
    return MapStatus(int(result.status[1])), result.transforms[1][:2, 2].numpy(), result.reasons[1]


def test_stains_tell_the_squares_of_a_chessboard():
    """Refused before, as most blocks agree two squares on: where nothing but noise is left here, and more than that
    there, this is the place."""
    status, shift, _ = placed(stains=0.25)
    assert status.ok and np.hypot(*(shift - (-17, 6))) < 0.05


def test_squares_alone_are_ambiguous():
    assert placed(stains=0.0)[0] == MapStatus.AMBIGUOUS
    status, _, reason = placed(stains=0.02)
    assert status == MapStatus.AMBIGUOUS, reason


def test_equal_rooms_with_faint_noise_are_ambiguous():
    """Their ends differ by far more than noise at the other place, which is how far each robot has seen: laid one room
    aside, the rooms alone would fit. (Robots' maps have no such noise, their pictures have.)"""
    row, random = np.full((180, 400), 0.5), np.random.default_rng(0)
    for left in range(20, 380, 60):
        row[40:140, left : left + 63] = 0.0
        row[43:137, left + 3 : left + 60] = 1.0
    one, other = row.copy(), row.copy()
    one[:, 263:], other[:, :80], other[:, 323:] = 0.5, 0.5, 0.5
    seen = [torch.from_numpy(view + 0.002 * random.standard_normal(view.shape)) for view in (one, other)]
    result = align(seen, model="se2")
    assert result.status[1] == MapStatus.AMBIGUOUS and "repeats itself" in result.reasons[1]
