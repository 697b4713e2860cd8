"""A model that is too small is told on a coarse level, without a search, and the place is that of the larger one."""

import numpy as np
import pytest
import torch

from mslsq.alignment import MapStatus, align, leads, pairwise, synthetic
from mslsq.alignment.measures import corners, project
from mslsq.alignment.misfit import SAYS, Nesting
from mslsq.alignment.outgrown import SEEN
from mslsq.alignment.rivals import SYMMETRIES

SIZE = 128


def pair(
    name: str, degrees: float, scale: float, noise: float, seed: int = 0
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Two maps, one of them turned and scaled about the middle."""
    return turned_pair(synthetic.base_raster(name), degrees, scale, noise, seed)


def turned_pair(
    base: np.ndarray, degrees: float, scale: float, noise: float, seed: int = 0
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The same of any raster."""
    random = np.random.default_rng(seed)
    c, s, middle = scale * np.cos(np.deg2rad(degrees)), scale * np.sin(np.deg2rad(degrees)), (SIZE - 1) / 2
    turned = np.array([[c, -s, middle - c * middle + s * middle], [s, c, middle - s * middle - c * middle], [0, 0, 1]])
    moving = synthetic.warp_from_base(base, (60, 60), turned, (SIZE, SIZE))
    maps = [base[60 : 60 + SIZE, 60 : 60 + SIZE], moving]
    noisy = [torch.from_numpy(values + noise * random.standard_normal(values.shape)) for values in maps]
    return noisy, torch.from_numpy(turned)


def off(found: torch.Tensor, truth: torch.Tensor) -> float:
    at = corners(SIZE, SIZE, truth)
    return float((project(found, at) - project(truth, at)).square().sum(-1).mean().sqrt())


@pytest.fixture
def no_search(monkeypatch):
    """A search of starts fails."""

    def searched(*_):
        raise AssertionError("a search was begun")

    monkeypatch.setattr(pairwise, "first_starts", searched)


@pytest.mark.parametrize("name", ["camera", "brick", "coffee", "hubble"])
@pytest.mark.parametrize(
    ("asked", "degrees", "scale"), [("translation", 6, 1.0), ("translation", -9, 1.05), ("se2", 4, 1.08)]
)
def test_a_larger_model_is_named_without_a_search(no_search, name, asked, degrees, scale):
    maps, truth = pair(name, degrees, scale, 0.01)
    result = align(maps, model=asked)
    fitting = "sim2" if scale != 1 else "se2"
    assert SAYS in result.reasons[1] and f'Try model="{fitting}"' in result.reasons[1]
    assert result.fitting == ["", fitting]
    if MapStatus(int(result.status[1])).ok:
        assert float(result.corner_sigma[1]) == pytest.approx(off(result.transforms[1], truth), rel=0.1)
    assert off(align(maps, model=fitting).transforms[1], truth) < 0.2


def lamps(seed: int) -> np.ndarray:
    """Forty lamps in the dark, faint ones and bright ones."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:248, :248]
    scene = np.zeros((248, 248))
    for _ in range(40):
        (u, v), reach, bright = random.uniform(0, 248, 2), random.uniform(2, 5), 10 ** random.uniform(-1.2, 0)
        scene += bright * np.exp(-((x - u) ** 2 + (y - v) ** 2) / (2 * reach**2))
    return scene / scene.max()


@pytest.mark.parametrize(
    ("seed", "asked", "degrees", "scale", "fitting"), [(0, "se2", 4, 1.08, "sim2"), (5, "translation", 6, 1.0, "se2")]
)
def test_parts_in_which_noise_hides_the_detail_are_no_uneven_ones(no_search, seed, asked, degrees, scale, fitting):
    """What is dark between lamps agrees by as little as noise leaves: a search took four to eight times as long."""
    maps, _ = turned_pair(lamps(seed), degrees, scale, 0.01)
    assert align(maps, model=asked).fitting == ["", fitting]


def test_a_lead_that_only_a_finer_level_has_needs_no_search_either(no_search, monkeypatch):
    maps, _ = pair("camera", 6.0, 1.0, 0.01)
    standing_on, asked = leads.Pair.standing_on, []

    def none_on_the_coarse_level(pair, position, matrix):
        asked.append(position)
        found = standing_on(pair, position, matrix)
        return found._replace(rival=found.score) if position == pair.searched else found

    monkeypatch.setattr(leads.Pair, "standing_on", none_on_the_coarse_level)
    assert align(maps, model="translation").fitting == ["", "se2"]
    assert asked == [1, 0]


@pytest.mark.parametrize("noise", [0.01, 0.1])
@pytest.mark.parametrize("name", ["camera", "grass", "moon"])
def test_a_model_that_fits_is_placed_as_exactly_as_before(name, noise):
    maps, truth = pair(name, 5.0, 1.0, noise)
    result = align(maps, model="se2")
    assert result.reasons[1] == "Aligned."
    assert off(result.transforms[1], truth) < 4 * float(result.corner_sigma[1])


def test_less_than_a_part_of_a_coarse_sample_is_left_to_finer_levels():
    maps, truth = pair("camera", 0.06, 1.0, 0.01)
    result = align(maps, model="translation")
    error = off(result.transforms[1], truth)
    assert error < SEEN * 2 and SAYS in result.reasons[1]
    assert {stage.level for stage in result.stages if len(stage.rms) > 1} == {0, 1, 2}
    assert float(result.corner_sigma[1]) == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize("name", ["moon", "elevation"])
def test_detail_that_agrees_nearly_entirely_is_asked_on_the_coarse_level_too(name):
    """Of a smooth scene nothing but the residuals shows on a coarse level that the corners are a pixel off."""
    maps, truth = pair(name, 4.0, 1.01, 0.005)
    result = align(maps, model="se2")
    assert {stage.level for stage in result.stages if len(stage.rms) > 1} == {1, 2}
    assert result.fitting == ["", "sim2"]
    assert float(result.corner_sigma[1]) == pytest.approx(off(result.transforms[1], truth), rel=0.1)


@pytest.mark.parametrize(
    ("degrees", "finer", "levels"), [(0.2, True, {1, 2}), (0.2, False, {0, 1, 2}), (0.6, False, {1, 2})]
)
def test_less_than_a_quarter_of_a_coarse_sample_needs_the_next_finer_level(monkeypatch, degrees, finer, levels):
    """Threads too fine for a coarse level had a translation said not to fit, which was right to 0.02 px."""
    maps, _ = pair("camera", degrees, 1.0, 0.01)
    if not finer:
        monkeypatch.setattr(Nesting, "rejects", lambda *_: False)
    result = align(maps, model="translation")
    assert {stage.level for stage in result.stages if len(stage.rms) > 1} == levels


def test_the_last_stage_is_a_look_at_the_finest_level():
    maps, _ = pair("camera", 9.0, 1.05, 0.01)
    result = align(maps, model="translation")
    assert result.stages[-1].level == 0 and len(result.stages[-1].rms) == 1
    assert result.stages[-1].rms[0] > 0.1  # it does not fit


def test_two_scenes_are_not_explained_by_a_larger_model():
    one, other = (synthetic.base_raster(name)[:SIZE, :SIZE] for name in ("grass", "gravel"))
    result = align([one, other], model="translation")
    assert result.aligned == [0] and result.fitting == ["", ""] and SAYS not in result.reasons[1]


@pytest.mark.parametrize(("degrees", "scale"), [(4, 1.08), (1, 1.01)])
def test_rotations_are_asked_about_the_place_of_the_larger_model_by_its_own_precision(monkeypatch, degrees, scale):
    maps, truth = pair("camera", degrees, scale, 0.01)
    asked, turned = [], leads.turned

    def noted(reference, moving, matrix, overlap, turns):
        at = corners(*reference.size, like=matrix)
        factor = max(maps[0].shape) / max(reference.size)
        known = truth.clone()
        known[:2, 2] /= factor
        asked.append((turns, float((project(matrix, at) - project(known, at)).norm(dim=-1).max())))
        return turned(reference, moving, matrix, overlap, turns)

    monkeypatch.setattr(leads, "turned", noted)
    result = align(maps, model="se2")
    assert result.fitting == ["", "sim2"] and float(result.corner_sigma[1]) > 0.5
    (turns, apart), *_ = asked
    assert turns == SYMMETRIES and apart < 0.6  # a sample of a coarse level is a fraction of one off, as grids shift
