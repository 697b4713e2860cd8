"""Pose graphs written one record per line: vertices, edges with their information, fixed vertices.

What g2o and TORO have in common. A format is a few `Record`s, which say how a pose and a triangle are written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.datasets.lines import integers, malformed, numbers, read_lines, write_lines
from mslsq.datasets.pose_graph import PoseGraph
from mslsq.initialization import spanning_tree
from mslsq.manifolds import SE2, SE3

__all__ = ["Record", "read_records", "write_records"]


@dataclass(frozen=True)
class Record:
    """How poses of one kind are written: the tag and the numbers of a vertex, and of an edge with its information."""

    manifold: type[SE2] | type[SE3]
    vertex: str
    edge: str
    words: str
    """Names of the numbers of a pose."""
    elements: Callable[[Float[Tensor, "rows numbers"]], Any]
    """Poses from their numbers; NaN where the numbers are no pose."""
    numbers_of: Callable[[Any], Float[Tensor, "rows numbers"]]
    """The inverse of `elements`."""
    triangle: tuple[tuple[int, int], ...]
    """(row, column) of the information matrix' entries, in the order in which they are written."""

    @cached_property
    def size(self) -> int:
        return len(self.words.split())


def upper_triangle(size: int) -> tuple[tuple[int, int], ...]:
    """The entries of an upper triangle, row by row."""
    return tuple((i, j) for i in range(size) for j in range(i, size))


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


def read_records(path: str | Path, records: Sequence[Record], ignored: Sequence[str], what: str) -> PoseGraph:
    """Read a pose graph of the format `what`, with lines of the tags `ignored` left out."""
    kinds = {tag: record for record in records for tag in (record.vertex, record.edge)}
    path = Path(path).expanduser()
    lines = read_lines(path)
    rows = Rows()
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if words and not words[0].startswith("#") and words[0] not in ignored:
            _take(path, number, words, rows, kinds)
    kind = rows.kind
    if kind is None or not (rows.poses or rows.edges):
        malformed(path, max(len(lines), 1), f"poses or edges before the file ends: is this a {what} pose graph?")
    given = bool(rows.poses)
    if not given:
        rows.vertices = {number: row for row, number in enumerate(sorted({end for pair in rows.ends for end in pair}))}
    first, second = _ends(path, rows)
    fixed = [_row(path, line, rows, number, "FIX") for line, number in rows.fixed]
    table = np.array(rows.edges, dtype=np.float64).reshape(-1, kind.size + len(kind.triangle))
    measured = _elements(path, kind, table[:, : kind.size], rows.edge_lines)
    if given:
        poses = _elements(path, kind, np.array(rows.poses, dtype=np.float64), rows.pose_lines)
    else:
        poses = kind.manifold.identity(len(rows.vertices), dtype=torch.float64, device="cpu")
    graph = PoseGraph(
        name=path.name.split(".")[0],
        poses=poses,
        first=first,
        second=second,
        measured=measured,
        information=_symmetric(torch.from_numpy(table[:, kind.size :]), kind),
        ids=torch.tensor(list(rows.vertices), dtype=torch.int64, device="cpu"),
        fixed=torch.tensor(sorted(set(fixed)), dtype=torch.int64, device="cpu"),
    )
    return graph if given else graph.at(spanning_tree(first, second, measured, len(rows.vertices)))


def write_records(path: str | Path, graph: PoseGraph, records: Sequence[Record]) -> Path:
    """Write a pose graph in the record of its kind; the file is whole or not there."""
    kind = next(record for record in records if isinstance(graph.poses, record.manifold))
    ids = graph.ids.tolist()
    lines = [
        f"{kind.vertex} {number} {_words(row)}" for number, row in zip(ids, _table(kind, graph.poses), strict=True)
    ]
    lines += [f"FIX {ids[row]}" for row in graph.fixed.tolist()]
    row, column = zip(*kind.triangle, strict=True)
    information = graph.information.detach().cpu()[:, list(row), list(column)].tolist()
    edges = zip(graph.first.tolist(), graph.second.tolist(), _table(kind, graph.measured), information, strict=True)
    lines += [f"{kind.edge} {ids[i]} {ids[j]} {_words(row)} {_words(entries)}" for i, j, row, entries in edges]
    return write_lines(Path(path).expanduser(), lines)


def _take(path: Path, line: int, words: list[str], rows: Rows, kinds: dict[str, Record]) -> None:
    """One record."""
    tag = words[0]
    if tag == "FIX":
        rows.fixed += [(line, number) for number in integers(path, line, words[1:], "FIX and numbers of vertices")]
        return
    kind = kinds.get(tag)
    if kind is None:
        malformed(path, line, f"one of {', '.join(kinds)}, FIX", tag)
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
    dim = kind.manifold.tangent_dim
    what = f"{tag} i j {kind.words} and the upper triangle of a {dim} x {dim} information matrix"
    i, j = integers(path, line, words[1:3] if len(words) > 2 else [], what)
    if i == j:
        malformed(path, line, "an edge between two vertices", f"{tag} {i} {j}")
    rows.ends.append((i, j))
    rows.edges.append(numbers(path, line, words[3:], kind.size + len(kind.triangle), what))
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
    table = torch.tensor(pairs, dtype=torch.int64, device="cpu").reshape(-1, 2)
    return table[:, 0].contiguous(), table[:, 1].contiguous()


def _row(path: Path, line: int, rows: Rows, number: int, who: str) -> int:
    if number not in rows.vertices:
        malformed(path, line, f"vertices of the file ({len(rows.vertices)}) after {who}; there is no vertex {number}")
    return rows.vertices[number]


def _elements(path: Path, kind: Record, table: np.ndarray, lines: list[int]) -> Any:
    """Poses from the numbers of the file, or a complaint about the first that is none."""
    poses = kind.elements(torch.from_numpy(np.ascontiguousarray(table)))
    wrong = (~poses.storage.isfinite().all(-1)).nonzero()[:, 0].tolist()
    if wrong:
        row = wrong[0]
        malformed(path, lines[row], f"a pose {kind.words}, quaternions of norm one", _words(table[row].tolist()))
    return poses


def _symmetric(entries: Tensor, kind: Record) -> Tensor:
    """Matrices from their triangles."""
    place = torch.empty(kind.manifold.tangent_dim, kind.manifold.tangent_dim, dtype=torch.int64, device="cpu")
    for position, (i, j) in enumerate(kind.triangle):
        place[i, j] = place[j, i] = position
    return entries[:, place]


def _table(kind: Record, poses: SE2 | SE3) -> list[list[float]]:
    return kind.numbers_of(poses.detach()).cpu().tolist()


def _words(row: list[float]) -> str:
    return " ".join(repr(value) for value in row)
