"""Resampling onto the reference, mosaics and their position in the world."""

import torch

from mslsq.alignment import canvas as room
from mslsq.alignment.canvas import Canvas
from mslsq.alignment.measures import project


def shift(x, y):
    return torch.tensor([[1, 0, x], [0, 1, y], [0, 0, 1]], dtype=torch.float64)


def test_a_whole_pixel_shift_copies_values_and_says_where_they_are_known():
    values = torch.rand(2, 12, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(12, 15, dtype=torch.bool)
    mask[5, 6] = False
    seen, known = room.resample(values, mask, shift(3, -2), Canvas(0, 0, 12, 15))
    assert known[2:, :12].sum() == 10 * 12 - 1
    assert not known[7, 3]
    assert not known[:2].any()
    torch.testing.assert_close(seen[:, 2:6, :12], values[:, 0:4, 3:], rtol=0, atol=1e-12)


def test_resampling_never_leaves_the_range_of_the_map():
    values = (torch.rand(1, 30, 30, generator=torch.Generator().manual_seed(1)) > 0.5).double()
    seen, known = room.resample(values, torch.ones(30, 30, dtype=torch.bool), shift(0.5, 0.3), Canvas(0, 0, 30, 30))
    assert seen[:, known].min() >= 0
    assert seen[:, known].max() <= 1


def test_the_canvas_holds_every_map():
    transforms = [shift(0, 0), shift(40, -7.5), torch.diag(torch.tensor([0.5, 0.5, 1.0], dtype=torch.float64))]
    sizes = [(50, 60), (50, 60), (40, 80)]
    canvas = room.canvas_around(sizes, transforms, (50, 60))
    assert (canvas.left, canvas.top) == (-40, 0)
    for (height, width), transform in zip(sizes, transforms, strict=True):
        corner = torch.tensor([[0.0, 0], [width - 1, height - 1]], dtype=torch.float64)
        inside = project(torch.linalg.inv(transform), corner)
        assert (inside >= torch.tensor([canvas.left, canvas.top])).all()
        last = torch.tensor([canvas.left + canvas.width - 1, canvas.top + canvas.height - 1])
        assert (inside <= last).all()


def test_a_wild_warp_does_not_make_a_wild_canvas():
    tiny = torch.diag(torch.tensor([1e-4, 1e-4, 1.0], dtype=torch.float64))
    canvas = room.canvas_around([(50, 60)], [tiny], (50, 60))
    assert max(canvas.height, canvas.width) <= room.LARGEST_CANVAS


def test_a_blend_is_the_mean_where_known():
    one, two = torch.ones(1, 2, 2), 3 * torch.ones(1, 2, 2)
    here = torch.tensor([[True, True], [False, False]])
    there = torch.tensor([[True, False], [True, False]])
    values, known = room.blend([(one, here), (two, there)])
    assert values[0].tolist() == [[2, 1], [3, 0]]
    assert known.tolist() == [[True, True], [True, False]]
