"""Maps of ROS: thresholds and unknown cells as map_server reads them, origins with yaw, and back."""

import math

import numpy as np
import pytest
import torch

from mslsq.alignment import GeoreferenceError, RasterError
from mslsq.alignment.canvas import Canvas
from mslsq.alignment.coordinates.merging import merged, nearest_on
from mslsq.alignment.coordinates.ros import RosMap, read_yaml, yaml_of
from mslsq.alignment.rasters import read_raster, write_raster

PIL = pytest.importorskip("PIL.Image")
pytest.importorskip("yaml")

GREYS = np.array([[0, 80, 205], [254, 100, 101], [255, 30, 230]], np.uint8)
LINES = {
    "image": "map.pgm",
    "resolution": 0.05,
    "origin": "[-1.0, -2.0, 0.0]",
    "negate": 0,
    "occupied_thresh": 0.65,
    "free_thresh": 0.196,
}


def written(folder, values=GREYS, name="map.pgm", **changes):
    PIL.fromarray(values).save(folder / name)
    lines = {**LINES, "image": name, **changes}
    (folder / "map.yaml").write_text("".join(f"{k}: {v}\n" for k, v in lines.items() if v is not None))
    return folder / "map.yaml"


def test_trinary_knows_what_lies_beyond_the_thresholds(tmp_path):
    raster = read_raster(written(tmp_path))
    p = (255 - GREYS.astype(float)) / 255
    assert (raster.mask.numpy() == ((p > 0.65) | (p < 0.196))).all() and not raster.mask[0, 2]
    assert (raster.values[0].numpy() == GREYS).all() and raster.kind.nodata == 205
    negated = read_raster(written(tmp_path, negate=1))
    assert (negated.mask.numpy() == ((1 - p > 0.65) | (1 - p < 0.196))).all()


def test_raw_is_percent_and_unknown_above(tmp_path):
    raster = read_raster(written(tmp_path, mode="raw"))
    assert (raster.mask.numpy() == (GREYS <= 100)).all()


@pytest.mark.parametrize("said", [{"negate": 1}, {"mode": "raw"}], ids=["negated", "raw"])
def test_maps_are_compared_with_dark_walls_whatever_their_own_greys_are(tmp_path, said):
    wall, free = (255, 0) if said.get("negate") else (100, 0)
    greys = np.full((4, 5), free, np.uint8)
    greys[1] = wall
    raster = read_raster(written(tmp_path, greys, **said))
    seen = raster.luminance()[0]
    assert (seen[1] == 0).all() and (seen[[0, 2, 3]] == 255).all() and (raster.values[0].numpy() == greys).all()


def test_scale_has_unknown_cells_where_alpha_is_none(tmp_path):
    alpha = np.full_like(GREYS, 255)
    alpha[0] = 0
    raster = read_raster(written(tmp_path, np.stack([GREYS, alpha], -1), "map.png", mode="scale"))
    assert (raster.mask.numpy() == (alpha > 0)).all()
    half = RosMap(0.6, 0.2, mode="scale").occupancy(np.array([[255 * 0.6]]))
    assert half[0, 0] == pytest.approx(0.5)


def test_the_origin_is_the_lower_left_corner_and_yaw_turns_about_it(tmp_path):
    plain = read_raster(written(tmp_path)).georeference
    assert plain.to_world([[-0.5, 2.5]])[0] == pytest.approx([-1.0, -2.0])
    assert plain.to_world([[-0.5, -0.5]])[0] == pytest.approx([-1.0, -1.85]), "rows go down"
    turned = read_raster(written(tmp_path, origin=f"[-1.0, -2.0, {math.pi / 2}]")).georeference
    assert turned.to_world([[-0.5, 2.5]])[0] == pytest.approx([-1.0, -2.0])
    assert turned.to_world([[2.5, 2.5]])[0] == pytest.approx([-1.0, -1.85])


@pytest.mark.parametrize("mode", ["trinary", "scale", "raw"])
@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("thresholds", [(0.65, 0.196), (0.65, 0.25), (0.9, 0.1)])
def test_occupancy_survives_being_written(mode, negate, thresholds):
    ros = RosMap(*thresholds, negate, mode)
    occupancy = np.array([[0.0, 1.0, np.nan]])
    again = ros.occupancy(ros.grey(occupancy).astype(float))
    if mode == "scale":  # alpha says what is unknown
        assert again[0, :2].tolist() == [0, 1]
    else:
        assert np.array_equal(again, occupancy, equal_nan=True)


@pytest.mark.parametrize("yaw", [0.0, 0.3, -2.0])
def test_a_yaml_says_what_was_read(tmp_path, yaw):
    path = written(tmp_path, origin=f"[3.0, -4.0, {yaw}]")
    raster = read_raster(path)
    (tmp_path / "again.yaml").write_text(yaml_of("map.pgm", 3, raster.georeference, raster.kind.ros))
    again = read_yaml(tmp_path / "again.yaml")
    assert again.origin == pytest.approx((3.0, -4.0, yaw)) and again.resolution == pytest.approx(0.05)
    assert again.ros == raster.kind.ros


def test_pixels_that_are_no_squares_have_no_yaml(tmp_path):
    georeference = read_raster(written(tmp_path)).georeference
    matrix = georeference.matrix @ np.diag([1, 2, 1])
    with pytest.raises(GeoreferenceError, match="square pixels"):
        yaml_of("map.pgm", 3, type(georeference)(matrix), RosMap(0.65, 0.2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": "other.pgm"}, r"picture .*other\.pgm is not there"),
        ({"resolution": None}, "the key 'resolution' is missing"),
        ({"resolution": 0}, "resolution must be above 0"),
        ({"resolution": -1}, "resolution is a number from 0"),
        ({"occupied_tresh": 0.6}, "no key 'occupied_tresh'. Did you mean 'occupied_thresh'"),
        ({"origin": "[0, 0]"}, r"origin is \[x, y, yaw\]"),
        ({"origin": "[0, .nan, 0]"}, r"origin is \[x, y, yaw\]"),
        ({"mode": "trinery"}, "Did you mean 'trinary'"),
        ({"free_thresh": 0.7}, "must be below occupied_thresh"),
        ({"image": "'"}, "no yaml"),
    ],
)
def test_a_yaml_that_makes_no_sense_is_refused_by_name(tmp_path, changes, words):
    path = written(tmp_path)
    lines = {**LINES, **changes}
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items() if value is not None))
    with pytest.raises(RasterError, match=words):
        read_raster(path)


def test_keys_of_other_programs_are_let_be(tmp_path):
    assert read_raster(written(tmp_path, cost_table="none")).kind.ros.mode == "trinary"


def test_a_wall_in_one_map_is_a_wall_of_the_merged_one():
    ros = RosMap(0.65, 0.196)
    wall, free, unknown = 0.0, 254.0, 205.0
    rows = [[wall, wall, wall, unknown], [wall, free, unknown, unknown], [free, free, unknown, unknown]]
    layers = [(torch.tensor([[row]]), torch.tensor([[one != unknown for one in row]]), ros) for row in rows]
    greys, known = merged(layers[:2], ros)
    assert greys[0, 0].tolist() == [0, 0, 0, 205] and known[0].tolist() == [True, True, True, False]
    greys, _ = merged(layers, ros)
    assert greys[0, 0].tolist() == [0, 0, 0, 205]
    greys, known = merged(layers[2:], ros)
    assert greys[0, 0].tolist() == [255, 255, 205, 205] and known[0].tolist() == [True, True, False, False]


def test_cells_stay_what_they_are_when_a_map_is_turned():
    values = torch.from_numpy(np.random.default_rng(0).choice([0.0, 254.0], (1, 20, 20)))
    turn = torch.tensor([[0.8, -0.6, 5.0], [0.6, 0.8, -3.0], [0, 0, 1]]).double()
    seen, known = nearest_on(Canvas(0, 0, 20, 20), values, torch.ones(20, 20, dtype=torch.bool), turn)
    assert set(seen[0][known].tolist()) == {0.0, 254.0} and not bool(known.all())


@pytest.mark.parametrize("mode", ["trinary", "scale"])
def test_a_map_of_ros_is_written_as_one(tmp_path, mode):
    alpha = np.full_like(GREYS, 255)
    alpha[0, 0] = 0
    values, name = (GREYS, "map.pgm") if mode == "trinary" else (np.stack([GREYS, alpha], -1), "map.png")
    raster = read_raster(written(tmp_path, values, name, mode=mode))
    out = write_raster(tmp_path / "out.x", raster.values, raster.mask, raster.kind)
    (tmp_path / "out.yaml").write_text(yaml_of(out.name, 3, raster.georeference, raster.kind.ros))
    again = read_raster(tmp_path / "out.yaml")
    assert torch.equal(again.mask, raster.mask)
    assert torch.equal(again.values[0][again.mask], raster.values[0][raster.mask])
