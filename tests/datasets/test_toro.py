"""Reader and writer of TORO pose graphs."""

import math

import pytest
import torch
from scipy.spatial.transform import Rotation

from mslsq.datasets.nist import MalformedFileError
from mslsq.datasets.toro import read_toro, write_toro

UPPER = " ".join(str(n) for n in range(1, 22))
PLANE = "VERTEX2 0 0 0 0\nVERTEX2 1 1 2 0.5\nEDGE2 0 1 1 2 0.5 1 2 3 4 5 6\n"
SPACE = f"VERTEX3 0 0 0 0 0 0 0\nVERTEX3 1 1 2 3 0.3 -0.4 2.5\nEDGE3 0 1 1 2 3 0.3 -0.4 2.5 {UPPER}\n"


def test_the_information_of_the_plane_is_written_with_the_angle_before_the_corners(tmp_path):
    (tmp_path / "plane.graph").write_text(PLANE)
    graph = read_toro(tmp_path / "plane.graph")
    assert graph.information.tolist() == [[[1, 2, 5], [2, 3, 6], [5, 6, 4]]]
    expected = torch.tensor([1, 2, math.cos(0.5), math.sin(0.5)], dtype=torch.float64)
    torch.testing.assert_close(graph.poses.storage[1], expected)


def test_angles_in_space_turn_about_x_then_y_then_z(tmp_path):
    (tmp_path / "space.graph").write_text(SPACE)
    graph = read_toro(tmp_path / "space.graph")
    expected = Rotation.from_euler("xyz", [0.3, -0.4, 2.5]).as_matrix()
    torch.testing.assert_close(graph.measured.matrix()[0, :3, :3], torch.from_numpy(expected))


@pytest.mark.parametrize("text", [PLANE, SPACE], ids=["plane", "space"])
def test_writing_and_reading_gives_the_graph_back(tmp_path, text):
    (tmp_path / "graph.graph").write_text(text)
    graph = read_toro(tmp_path / "graph.graph")
    again = read_toro(write_toro(tmp_path / "again.graph.gz", graph))
    # angles cost two roundings of numbers up to three
    torch.testing.assert_close(again.measured.storage, graph.measured.storage, atol=4e-15, rtol=0)
    assert torch.equal(again.information, graph.information)


def test_a_g2o_file_is_not_a_toro_file(tmp_path):
    (tmp_path / "graph.g2o").write_text("VERTEX_SE2 0 0 0 0\n")
    with pytest.raises(MalformedFileError, match=r"graph\.g2o:1: expected one of VERTEX2, EDGE2, VERTEX3, EDGE3, FIX"):
        read_toro(tmp_path / "graph.g2o")
