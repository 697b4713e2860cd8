"""Reader and writer of g2o pose graphs: what files say, and what is said about files that are wrong."""

import bz2
import gzip
from typing import Any

import pytest
import torch

import mslsq
from mslsq.datasets.g2o import read_g2o, write_g2o
from mslsq.datasets.nist import MalformedFileError

PLANE = """# a comment
VERTEX_SE2 3 0 0 0
VERTEX_SE2 7 1 0.5 1.5707963267948966

FIX 7
EDGE_SE2 3 7 1 0.5 1.5 1 2 3 4 5 6
"""
UPPER = " ".join(str(n) for n in range(1, 22))
SPACE = f"""VERTEX_SE3:QUAT 0 0 0 0 0 0 0 1
VERTEX_SE3:QUAT 1 1 2 3 0 0 0.70711 0.70711
EDGE_SE3:QUAT 0 1 1 2 3 0 0 0.70711 0.70711 {UPPER}
"""


def written(folder, text, name="graph.g2o"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_graph_in_the_plane_is_read_as_written(tmp_path):
    graph = read_g2o(written(tmp_path, PLANE))
    assert isinstance(graph.poses, mslsq.SE2)
    assert (graph.name, graph.dimension) == ("graph", 2)
    assert graph.ids.tolist() == [3, 7]
    assert graph.fixed.tolist() == [1]
    assert (graph.first.tolist(), graph.second.tolist()) == ([0], [1])
    # a quarter turn: cos is zero up to the rounding of pi
    expected = torch.tensor([[0.0, 0.0, 1.0, 0.0], [1.0, 0.5, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(graph.poses.storage, expected, atol=1e-15, rtol=0)
    assert graph.information.tolist() == [[[1, 2, 3], [2, 4, 5], [3, 5, 6]]]


def test_a_graph_in_space_has_quaternions_of_norm_one_and_a_symmetric_information(tmp_path):
    graph = read_g2o(written(tmp_path, SPACE))
    assert isinstance(graph.poses, mslsq.SE3)
    root = 0.5**0.5
    assert graph.measured.storage[0].tolist() == pytest.approx([1, 2, 3, 0, 0, root, root], abs=1e-15)
    information = graph.information[0]
    assert torch.equal(information, information.mT)
    assert information[0].tolist() == [1, 2, 3, 4, 5, 6]
    assert information[5].tolist() == [6, 11, 15, 18, 20, 21]


@pytest.mark.parametrize(("suffix", "opener"), [(".gz", gzip.open), (".bz2", bz2.open)])
def test_compression_is_seen_from_the_suffix(tmp_path, suffix, opener):
    path = tmp_path / f"graph.g2o{suffix}"
    with opener(path, "wt") as stream:
        stream.write(SPACE)
    assert len(read_g2o(path).measured) == 1
    again = read_g2o(write_g2o(tmp_path / f"again.g2o{suffix}", read_g2o(path)))
    assert again.ids.tolist() == [0, 1]


@pytest.mark.parametrize("text", [PLANE, SPACE], ids=["plane", "space"])
def test_writing_and_reading_gives_the_graph_back(tmp_path, text):
    graph = read_g2o(written(tmp_path, text))
    again = read_g2o(write_g2o(tmp_path / "folder" / "again.g2o", graph))
    # all digits are written; angles and norms are computed once more, which costs a rounding
    torch.testing.assert_close(again.poses.storage, graph.poses.storage, atol=1e-15, rtol=1e-15)
    torch.testing.assert_close(again.measured.storage, graph.measured.storage, atol=1e-15, rtol=1e-15)
    for name in ("information", "ids", "first", "second", "fixed"):
        assert torch.equal(getattr(again, name), getattr(graph, name))


def test_a_write_that_fails_halfway_leaves_the_old_file(tmp_path, monkeypatch):
    path = written(tmp_path, PLANE)
    graph = read_g2o(path)

    def full(temporary, target):
        assert temporary.read_text().startswith("VERTEX_SE2 3 ")
        raise OSError("no space left on the disk")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        write_g2o(path, graph)
    assert path.read_text() == PLANE
    assert list(tmp_path.iterdir()) == [path]


def test_edges_alone_start_from_a_walk_over_them(tmp_path):
    # 10 → 12 forwards, 11 → 12 against the arrow: p11 = p12 (−2, 0) turned by a quarter
    text = """EDGE_SE2 10 12 1 0 1.5707963267948966 1 0 0 1 0 1
EDGE_SE2 11 12 2 0 0 1 0 0 1 0 1
"""
    graph = read_g2o(written(tmp_path, text))
    assert graph.ids.tolist() == [10, 11, 12]
    expected = [[0, 0, 1, 0], [1, -2, 0, 1], [1, 0, 0, 1]]
    torch.testing.assert_close(graph.poses.storage, torch.tensor(expected, dtype=torch.float64), atol=1e-15, rtol=1e-15)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "g2o pose graph"),
        ("# nothing\n", 1, "g2o pose graph"),
        ("FIX 0\n", 1, "g2o pose graph"),
        ("VERTEX_SE2 0 0 0\n", 1, "VERTEX_SE2 id x y theta"),
        ("VERTEX_SE2 0 0 0 0\nVERTEX_SE2 0 1 0 0\n", 2, "in line 1 too"),
        ("VERTEX_SE2 zero 0 0 0\n", 1, "whole numbers"),
        ("VERTEX_SE2 9223372036854775808 0 0 0\n", 1, "below 2**63"),
        ("VERTEX_SE2 0 0 nan 0\n", 1, "finite"),
        ("VERTEX_SE2 0 0 1,5 0\n", 1, "1,5"),
        ("VERTEX_SE2 0 0 1_5 0\n", 1, "1_5"),
        ("VERTEX_SE2 0 0 0 0 # home\n", 1, "'#'"),
        ("EDGE_SE2 0 1 1 0 0 1 0 0 1 0 1 7\n", 1, "9 finite numbers, not 10"),
        ("VERTEX_XY 0 0 0\n", 1, "VERTEX_XY"),
        ("EDGE_SE2 0 1 1 0 0 1 0 0 1 0\n", 1, "upper triangle of a 3 x 3"),
        ("EDGE_SE2 0\n", 1, "EDGE_SE2 i j"),
        ("EDGE_SE2 4 4 1 0 0 1 0 0 1 0 1\n", 1, "two vertices"),
        ("VERTEX_SE2 0 0 0 0\n\nEDGE_SE2 0 9 1 0 0 1 0 0 1 0 1\n", 3, "no vertex 9"),
        ("VERTEX_SE2 0 0 0 0\nFIX 5\n", 2, "no vertex 5"),
        ("VERTEX_SE2 0 0 0 0\nFIX\n", 2, "FIX"),
        ("VERTEX_SE2 0 0 0 0\nVERTEX_SE3:QUAT 1 0 0 0 0 0 0 1\n", 2, "one dimension"),
        ("VERTEX_SE3:QUAT 0 0 0 0 0 0 0 1\nVERTEX_SE3:QUAT 1 0 0 0 0 0 0 0\n", 2, "quaternion"),
        ("VERTEX_SE2 0 0 0 0\nVERTEX_SE2 1 0 0 ü\n", 2, "ASCII"),
    ],
)
def test_a_malformed_line_is_named_with_what_was_expected(tmp_path, text, line, says):
    path = tmp_path / "bad.g2o"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MalformedFileError) as caught:
        read_g2o(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert says in message


def test_a_file_of_windows_is_read_as_any_other(tmp_path):
    (tmp_path / "graph.g2o").write_bytes(
        b"\xef\xbb\xbf" + PLANE.removeprefix("# a comment\n").replace("\n", "\r\n").encode()
    )
    assert torch.equal(read_g2o(tmp_path / "graph.g2o").information, read_g2o(written(tmp_path, PLANE)).information)


def test_an_archive_that_does_not_say_so_is_recognised(tmp_path):
    (tmp_path / "graph.g2o").write_bytes(gzip.compress(PLANE.encode()))
    with pytest.raises(MalformedFileError, match=r"name must end in \.gz"):
        read_g2o(tmp_path / "graph.g2o")


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    path = written(tmp_path, PLANE)

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(PermissionError):
        read_g2o(path)


def test_a_damaged_archive_and_a_missing_file_are_said_to_be_so(tmp_path):
    (tmp_path / "bad.g2o.gz").write_bytes(b"no archive")
    with pytest.raises(MalformedFileError, match="damaged"):
        read_g2o(tmp_path / "bad.g2o.gz")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read_g2o(tmp_path / "none.g2o")


@pytest.mark.parametrize(
    ("name", "poses", "edges", "cost"),
    [  # ½ Σ |r|² of the log-map residual at the file's start, by GTSAM
        ("sphere2500", 2500, 4949, 1305657.71),
        ("parking-garage", 1661, 6275, 8363.601948),
        ("input_M3500_g2o", 3500, 5453, 1317356.273),
        ("intel", 1728, 2512, 276.9978978),
        ("smallGrid3D", 125, 297, 83894.33),
    ],
)
def test_the_public_graphs_have_their_published_counts_and_start_costs(shared_data, name, poses, edges, cost):
    graph = read_g2o(shared_data / "g2o" / f"{name}.g2o.gz")
    assert (len(graph.poses), len(graph.measured)) == (poses, edges)
    at: Any = graph.poses
    residual = graph.measured.between(at[graph.first].between(at[graph.second])).log()
    start = 0.5 * torch.einsum("er,ers,es->", residual, graph.information, residual)
    # as many digits as the published numbers have; quaternions of six digits are normalised by all
    assert float(start) == pytest.approx(cost, rel=1e-8 if cost > 1e5 else 1e-7)


def test_the_problem_of_a_graph_reaches_the_published_optimum(shared_data):
    graph = read_g2o(shared_data / "g2o" / "smallGrid3D.g2o.gz")
    solution = mslsq.solve(graph.problem(), {"pose": graph.poses}, adjoint=mslsq.Detached())
    assert float(solution.history.cost[0]) == pytest.approx(83894.33, rel=1e-7)
    assert float(solution.cost) == pytest.approx(517.9253324, rel=1e-9)  # GTSAM's


def test_a_fixed_pose_of_the_file_is_held_and_else_the_first_one(tmp_path):
    text = PLANE.replace("1 2 3 4 5 6", "9 0 0 9 0 9").replace("1 0.5 1.5 ", "3 0 0 ")
    graph = read_g2o(written(tmp_path, text))
    value = mslsq.solve(graph.problem(), {"pose": graph.poses}).value["pose"]
    assert torch.equal(value.storage[1], graph.poses.storage[1])
    free = read_g2o(written(tmp_path, text.replace("FIX 7\n", "")))
    value = mslsq.solve(free.problem(), {"pose": free.poses}).value["pose"]
    # one edge can be met exactly, the anchor as well
    torch.testing.assert_close(value.storage[0], free.poses.storage[0], atol=1e-9, rtol=0)


FIXED = """VERTEX_SE2 0 0 0 0
VERTEX_SE2 1 5 5 1
VERTEX_SE2 2 2.5 0.5 0.2
VERTEX_SE2 3 9 9 2
VERTEX_SE2 4 7 7 0.5
VERTEX_SE2 5 8 7 0.5
FIX 2 3
EDGE_SE2 0 1 1 0 0.1 1 0 0 1 0 1
EDGE_SE2 1 2 1 0 0.1 1 0 0 1 0 1
EDGE_SE2 2 3 1 0 0.1 1 0 0 1 0 1
EDGE_SE2 4 5 2 0 0 1 0 0 1 0 1
"""


@pytest.mark.parametrize("init", ["from_edges", "from_chords"])
def test_a_start_made_of_edges_leaves_fixed_poses_and_one_of_every_part_where_they_are(tmp_path, init):
    graph = read_g2o(written(tmp_path, FIXED))
    start: Any = getattr(graph, init)().poses
    given: Any = graph.poses
    assert torch.equal(start.storage[[2, 3]], given.storage[[2, 3]])
    # pose 4 begins a part of its own; 5 is two units ahead of it
    torch.testing.assert_close(start.storage[4], given.storage[4], atol=1e-15, rtol=0)
    torch.testing.assert_close(given[4].between(start[5]).xyt(), torch.tensor([2.0, 0, 0], dtype=torch.float64))
    # 0 and 1 are seen from the pose that is fixed
    torch.testing.assert_close(start[1].between(start[2]).storage, graph.measured.storage[1])
    held = mslsq.solve(graph.problem(), {"pose": start}).value["pose"]
    assert torch.equal(held.storage[[2, 3]], given.storage[[2, 3]])
    assert graph.part.tolist() == [0, 0, 0, 0, 4, 4]


def test_edges_alone_with_fixed_poses_start_from_a_walk_too(tmp_path):
    text = "FIX 11 12\nEDGE_SE2 10 11 1 0 0 1 0 0 1 0 1\nEDGE_SE2 11 12 1 0 0 1 0 0 1 0 1\n"
    assert read_g2o(written(tmp_path, text)).poses.translation.tolist() == [[0, 0], [1, 0], [2, 0]]


def test_an_information_that_is_not_positive_definite_is_named_by_the_poses_of_its_edge(tmp_path):
    graph = read_g2o(written(tmp_path, PLANE))
    with pytest.raises(ValueError, match="from pose 3 to pose 7 is not positive definite"):
        graph.problem()
