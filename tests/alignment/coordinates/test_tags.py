"""A GeoTIFF's tags, moved with the first pixel."""

import numpy as np
import pytest

from mslsq.alignment.coordinates.tags import matrix_of, moved

BY_TIE = ((33550, 12, 3, (30.0, 20.0, 0.0)), (33922, 12, 6, (0.0, 0.0, 0.0, 5e5, 4e6, 0.0)))
BY_MATRIX = ((34264, 12, 16, (8.0, 6.0, 0, 5e5, 6.0, -8.0, 0, 4e6, 0, 0, 0, 0, 0, 0, 0, 1.0)),)


@pytest.mark.parametrize("tags", [BY_TIE, BY_MATRIX], ids=["tie point", "matrix"])
def test_the_tags_move_with_the_first_pixel(tags):
    there = matrix_of(moved(tags, -40, 7))
    here = matrix_of(tags) @ [[1, 0, -40], [0, 1, 7], [0, 0, 1]]
    assert np.abs(there - here).max() < 1e-6


def test_control_points_are_no_affine_map():
    assert matrix_of(((33922, 12, 12, (0.0,) * 12),)) is None
