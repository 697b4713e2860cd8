"""Reader and writer of BAL problems."""

import bz2

import pytest
import torch

from mslsq.datasets.bal import read_bal, write_bal
from mslsq.datasets.nist import MalformedFileError

CAMERA = "0.1 0.2 0.3\n1 2 3\n500 -0.1 0.01"
TINY = f"2 1 2\n\n0 0 1.5 -2.5\n1 0 3 4\n\n{CAMERA}\n{CAMERA}\n7\n8\n9\n"


def written(folder, text):
    path = folder / "problem.txt"
    path.write_text(text)
    return path


def test_a_problem_is_read_as_written(tmp_path):
    scene = read_bal(written(tmp_path, TINY))
    assert scene.cameras.shape == (2, 9)
    assert scene.cameras[1].tolist() == [0.1, 0.2, 0.3, 1, 2, 3, 500, -0.1, 0.01]
    assert scene.points.tolist() == [[7, 8, 9]]
    assert (scene.camera.tolist(), scene.point.tolist()) == ([0, 1], [0, 0])
    assert scene.pixels.tolist() == [[1.5, -2.5], [3, 4]]


def test_writing_and_reading_gives_the_problem_back(tmp_path):
    scene = read_bal(written(tmp_path, TINY))
    again = read_bal(write_bal(tmp_path / "again.txt.bz2", scene))
    for name in ("cameras", "points", "camera", "point", "pixels"):
        assert torch.equal(getattr(again, name), getattr(scene, name))
    assert bz2.decompress((tmp_path / "again.txt.bz2").read_bytes()).startswith(b"2 1 2\n")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "cameras points observations"),
        ("2 1\n", 1, "cameras points observations"),
        ("2 1 many\n", 1, "whole numbers"),
        ("2 0 2\n", 1, "none of them zero"),
        ("2 1 2\n0 0 1 1\n", 2, "the file ends after 1"),
        (TINY.replace("1 0 3 4", "1 0 3"), 4, "camera point u v"),
        (TINY.replace("1 0 3 4", "2 0 3 4"), 4, "a camera below 2"),
        (TINY.replace("1 0 3 4", "1 -1 3 4"), 4, "whole numbers"),
        (TINY.replace("1 0 3 4", "1 0 3 inf"), 4, "finite"),
        (TINY.replace("500", "f"), 8, "cameras and points"),
        (TINY.removesuffix("9\n"), 13, "the file has 20"),
        (TINY + "10\n", 15, "the file has 22"),
    ],
)
def test_a_malformed_line_is_named_with_what_was_expected(tmp_path, text, line, says):
    path = written(tmp_path, text)
    with pytest.raises(MalformedFileError) as caught:
        read_bal(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert says in str(caught.value)


def test_the_ladybug_problem_has_its_published_start_cost(shared_data):
    scene = read_bal(shared_data / "bal" / "problem-49-7776-pre.txt.bz2")
    assert (len(scene.cameras), len(scene.points), len(scene.pixels)) == (49, 7776, 31843)
    cost = scene.problem()["snavely_reprojection"]
    residual = torch.func.vmap(cost.residual)(scene.cameras[scene.camera], scene.points[scene.point], scene.pixels)
    assert float(0.5 * residual.square().sum()) == pytest.approx(850912.4607, rel=1e-10)  # Ceres'
