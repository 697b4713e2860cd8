"""Maps woven of two fields: their place is known to how far the fields are apart, and the reason says so."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from mslsq.alignment import MapStatus, align
from mslsq.alignment.fields import fields_apart

SCENE = ndimage.gaussian_filter(np.random.default_rng(3).normal(size=(260, 260)), 3.0)
SCENE /= SCENE.std()


def seen(x: float, y: float, size: int = 128) -> np.ndarray:
    down, across = np.mgrid[:size, :size].astype(float)
    return ndimage.map_coordinates(SCENE, [down + 40 + y, across + 40 + x], order=3)


def woven(x: float, y: float, moved: tuple[float, float]) -> np.ndarray:
    """The second field is of an instant later."""
    first, second = seen(x, y), seen(x + moved[0], y + moved[1])
    first[1::2] = second[1::2]
    return first


def apart(raster: np.ndarray) -> float:
    values = torch.from_numpy(np.ascontiguousarray(raster))
    values = values[None] if values.ndim == 2 else values
    return fields_apart(values, torch.ones(values.shape[1:], dtype=torch.bool))


@pytest.mark.parametrize("moved", [(1.0, 0.0), (6.0, 0.0), (-0.4, -2.1), (0.0, -2.0), (3.0, 3.0), (15.0, 0.0)])
def test_the_way_between_two_fields_is_found(moved):
    assert apart(woven(3.0, -2.0, moved)) == pytest.approx(np.hypot(*moved), abs=0.25)
    colours = np.stack([woven(3.0, -2.0, moved), 2 * woven(3.0, -2.0, moved)])
    assert apart(colours) == pytest.approx(np.hypot(*moved), abs=0.25)


def test_plain_maps_noise_and_lines_of_a_scanner_have_no_fields():
    scene, lines = seen(0.0, 0.0), np.where(np.arange(128) % 2 == 0, 0.6, 1.0)[:, None]
    noise = np.random.default_rng(1).normal(size=(128, 128))
    smooth = ndimage.gaussian_filter(SCENE, 6.0)[60:188, 60:188]
    faint = smooth / smooth.std() + 0.05 * noise
    doubled = np.repeat(scene[:64], 2, 0) + 0.01 * noise
    for plain in (
        faint,
        doubled,
        doubled[1:],
        scene,
        scene + 2 * noise,
        noise,
        (scene + 3) * lines,
        np.zeros((128, 128)),
        seen(0.0, 0.0, 9),
    ):
        assert apart(plain) == 0.0


def test_the_place_of_a_woven_map_is_known_to_that_and_no_better():
    reference, still = seen(0.0, 0.0), seen(5.3, -3.1)
    for maps in ([reference, woven(5.3, -3.1, (3.0, 0.0))], [woven(0.0, 0.0, (3.0, 0.0)), still]):
        result = align(maps, model="translation", metric="squared")
        assert result.status[1] == MapStatus.ALIGNED
        off = float((result.transforms[1, :2, 2] + torch.tensor([5.3, -3.1])).norm())
        assert 0.1 < off < 2 * float(result.corner_sigma[1])
        assert float(result.corner_sigma[1]) > 1.0
        assert "alternate" in result.reasons[1]
    plain = align([reference, still], model="translation", metric="squared")
    assert "alternate" not in plain.reasons[1]
    assert float(plain.corner_sigma[1]) < 0.01


def test_the_way_is_in_pixels_of_the_reference():
    down, across = np.mgrid[:256, :256].astype(float) / 2
    large = ndimage.map_coordinates(SCENE, [down + 40, across + 40], order=3)
    later = ndimage.map_coordinates(SCENE, [down + 40, across + 42], order=3)
    large[1::2] = later[1::2]
    assert apart(large) == pytest.approx(4.0, abs=0.25)
    init = torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)).expand(2, 3, 3)
    result = align([seen(0.0, 0.0), large], model="sim2", metric="squared", init=init)
    assert "alternate" in result.reasons[1]
    assert float(result.corner_sigma[1]) == pytest.approx(2.0, abs=0.2)
