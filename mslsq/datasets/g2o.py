"""Pose graphs in the text format of g2o, in the plane and in space: reader and writer.

One record per line (Kümmerle, Grisetti, Strasdat, Konolige, Burgard, "g2o: A general framework for graph optimization",
ICRA 2011)::

    VERTEX_SE2 id x y theta
    EDGE_SE2 i j dx dy dtheta  + 6 entries of the information matrix
    VERTEX_SE3:QUAT id x y z qx qy qz qw
    EDGE_SE3:QUAT i j dx dy dz qx qy qz qw  + 21 entries
    FIX id ...

The entries are those of the upper triangle, row by row, translation before rotation.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.datasets.lines import integers, malformed, numbers, read_lines, write_lines
from mslsq.datasets.pose_graph import PoseGraph
from mslsq.manifolds import SE2, SE3

__all__ = ["read_g2o", "write_g2o"]


@dataclass(frozen=True)
class Record:
    """How a pose is written: the tag and the numbers of a vertex, and of an edge without its information."""

    manifold: type[SE2] | type[SE3]
    vertex: str
    edge: str
    size: int
    words: str

    @property
    def tangent(self) -> int:
        return self.manifold.tangent_dim

    @property
    def triangle(self) -> int:
        """Entries of the upper triangle of an information matrix."""
        return self.tangent * (self.tangent + 1) // 2


PLANE = Record(SE2, "VERTEX_SE2", "EDGE_SE2", 3, "x y theta")
SPACE = Record(SE3, "VERTEX_SE3:QUAT", "EDGE_SE3:QUAT", 7, "x y z qx qy qz qw")
KINDS = {record.vertex: record for record in (PLANE, SPACE)} | {record.edge: record for record in (PLANE, SPACE)}
IGNORED = ("PARAMS_SE2OFFSET", "PARAMS_SE3OFFSET")
"""Sensor offsets, which only records that are not read here refer to."""


@dataclass
class Rows:
    """What the lines of a file say, with the line of each for complaints."""

    kind: Record | None = None
    vertices: dict[int, int] = field(default_factory=dict)
    """Row of `poses` by the vertex' number in the file."""
    poses: list[list[float]] = field(default_factory=list)
    pose_lines: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    edges: list[list[float]] = field(default_factory=list)
    edge_lines: list[int] = field(default_factory=list)
    fixed: list[tuple[int, int]] = field(default_factory=list)
    """(line, number)"""


def read_g2o(path: str | Path) -> PoseGraph:
    """Read one pose graph; ``.gz`` and ``.bz2`` are decompressed, quaternions normalised.

    Where a file has edges only, its poses (in the order of their numbers) start from a spanning tree of the edges.
    Lines that begin with # and sensor offsets are skipped.

    Raises:
        OSError: there is no such file.
        MalformedFileError (a ValueError): a line that is not understood, a number missing or not finite, an edge of
            a vertex that does not exist, plane and space mixed; the message names the file, the line, and what was
            expected.

    >>> graph = read_g2o("shared/data/g2o/sphere2500.g2o.gz")  # doctest: +SKIP
    >>> graph.poses, len(graph.measured)  # doctest: +SKIP
    """
    path = Path(path).expanduser()
    lines = read_lines(path)
    rows = Rows()
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if words and not words[0].startswith("#") and words[0] not in IGNORED:
            _take(path, number, words, rows)
    kind = rows.kind
    if kind is None or not (rows.poses or rows.edges):
        malformed(path, max(len(lines), 1), "poses or edges before the file ends: is this a g2o pose graph?")
    given = bool(rows.poses)
    if not given:
        rows.vertices = {number: row for row, number in enumerate(sorted({end for pair in rows.ends for end in pair}))}
    first, second = _ends(path, rows)
    fixed = [_row(path, line, rows, number, "FIX") for line, number in rows.fixed]
    table = np.array(rows.edges, dtype=np.float64).reshape(-1, kind.size + kind.triangle)
    measured = _elements(path, kind, table[:, : kind.size], rows.edge_lines)
    if given:
        poses = _elements(path, kind, np.array(rows.poses, dtype=np.float64), rows.pose_lines)
    else:
        poses = kind.manifold.identity(len(rows.vertices), dtype=torch.float64)
    graph = PoseGraph(
        name=path.name.split(".")[0],
        poses=poses,
        first=first,
        second=second,
        measured=measured,
        information=_symmetric(torch.from_numpy(table[:, kind.size :]), kind.tangent),
        ids=torch.tensor(list(rows.vertices), dtype=torch.int64),
        fixed=torch.tensor(sorted(set(fixed)), dtype=torch.int64),
    )
    return graph if given else graph.from_edges()


def write_g2o(path: str | Path, graph: PoseGraph) -> Path:
    """Write a pose graph, compressed by the suffix, with all digits of float64; the file is whole or not there.

    >>> write_g2o("solved.g2o", graph.at(solution.value["pose"]))  # doctest: +SKIP
    """
    kind = PLANE if isinstance(graph.poses, SE2) else SPACE
    ids = graph.ids.tolist()
    lines = [f"{kind.vertex} {number} {_words(row)}" for number, row in zip(ids, _numbers_of(graph.poses), strict=True)]
    lines += [f"FIX {ids[row]}" for row in graph.fixed.tolist()]
    upper = torch.triu_indices(kind.tangent, kind.tangent)
    information = graph.information.detach().cpu()[:, upper[0], upper[1]].tolist()
    edges = zip(graph.first.tolist(), graph.second.tolist(), _numbers_of(graph.measured), information, strict=True)
    lines += [f"{kind.edge} {ids[i]} {ids[j]} {_words(row)} {_words(entries)}" for i, j, row, entries in edges]
    return write_lines(Path(path).expanduser(), lines)


def _take(path: Path, line: int, words: list[str], rows: Rows) -> None:
    """One record."""
    tag = words[0]
    if tag == "FIX":
        rows.fixed += [(line, number) for number in integers(path, line, words[1:], "FIX and numbers of vertices")]
        return
    kind = KINDS.get(tag)
    if kind is None:
        malformed(path, line, f"one of {', '.join(KINDS)}, FIX", tag)
    if rows.kind not in (None, kind):
        assert rows.kind is not None
        malformed(path, line, f"{rows.kind.vertex} or {rows.kind.edge}, like above (one file, one dimension)", tag)
    rows.kind = kind
    if tag == kind.vertex:
        (number,) = integers(path, line, words[1:2], f"{tag} and the number of a vertex")
        if number in rows.vertices:
            malformed(path, line, f"a vertex once; {number} is in line {rows.pose_lines[rows.vertices[number]]} too")
        rows.vertices[number] = len(rows.poses)
        rows.poses.append(numbers(path, line, words[2:], kind.size, f"{tag} id {kind.words}"))
        rows.pose_lines.append(line)
        return
    what = f"{tag} i j {kind.words} and the upper triangle of a {kind.tangent} x {kind.tangent} information matrix"
    i, j = integers(path, line, words[1:3] if len(words) > 2 else [], what)
    if i == j:
        malformed(path, line, "an edge between two vertices", f"{tag} {i} {j}")
    rows.ends.append((i, j))
    rows.edges.append(numbers(path, line, words[3:], kind.size + kind.triangle, what))
    rows.edge_lines.append(line)


def _ends(path: Path, rows: Rows) -> tuple[Tensor, Tensor]:
    """The edges' ends as rows of the poses."""
    try:
        pairs = [(rows.vertices[i], rows.vertices[j]) for i, j in rows.ends]
    except KeyError:
        pairs = [
            (_row(path, line, rows, i, "the edge"), _row(path, line, rows, j, "the edge"))
            for line, (i, j) in zip(rows.edge_lines, rows.ends, strict=True)
        ]
    table = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return table[:, 0].contiguous(), table[:, 1].contiguous()


def _row(path: Path, line: int, rows: Rows, number: int, who: str) -> int:
    if number not in rows.vertices:
        malformed(path, line, f"vertices of the file ({len(rows.vertices)}) after {who}; there is no vertex {number}")
    return rows.vertices[number]


def _elements(path: Path, kind: Record, table: np.ndarray, lines: list[int]) -> Any:
    """Elements of SE(2) or SE(3); a quaternion without direction is an error."""
    values = torch.from_numpy(np.ascontiguousarray(table))
    if kind is PLANE:
        return SE2.from_xyt(values)
    # files carry some six digits; a norm far from one is no rotation but a column out of place
    wrong = ((values[:, 3:].norm(dim=-1) - 1).abs() > 0.1).nonzero()[:, 0].tolist()
    if wrong:
        row = wrong[0]
        malformed(path, lines[row], "a quaternion qx qy qz qw of norm one", _words(table[row, 3:].tolist()))
    return SE3(values).normalized()


def _symmetric(entries: Tensor, size: int) -> Tensor:
    """Matrices from their upper triangles, row by row."""
    upper = torch.triu_indices(size, size)
    place = torch.empty(size, size, dtype=torch.int64)
    place[upper[0], upper[1]] = torch.arange(entries.shape[-1])
    place[upper[1], upper[0]] = torch.arange(entries.shape[-1])
    return entries[:, place]


def _numbers_of(poses: SE2 | SE3) -> list[list[float]]:
    values = poses.xyt() if isinstance(poses, SE2) else poses.normalized().storage
    return values.detach().cpu().tolist()


def _words(row: list[float]) -> str:
    return " ".join(repr(value) for value in row)
