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

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.datasets.pose_graph import PoseGraph
from mslsq.datasets.records import Record, read_records, upper_triangle, write_records
from mslsq.manifolds import SE2, SE3

__all__ = ["read_g2o", "write_g2o"]


def _from_quaternions(values: Float[Tensor, "rows 7"]) -> SE3:
    """Files carry some six digits; a norm far from one is no rotation but a column out of place."""
    unit = (values[:, 3:].norm(dim=-1, keepdim=True) - 1).abs() < 0.1
    return SE3._wrap(torch.where(unit, values, torch.nan)).normalized()


RECORDS = (
    Record(SE2, "VERTEX_SE2", "EDGE_SE2", "x y theta", SE2.from_xyt, SE2.xyt, upper_triangle(3)),
    Record(
        SE3,
        "VERTEX_SE3:QUAT",
        "EDGE_SE3:QUAT",
        "x y z qx qy qz qw",
        _from_quaternions,
        lambda poses: poses.normalized().storage,
        upper_triangle(6),
    ),
)
IGNORED = ("PARAMS_SE2OFFSET", "PARAMS_SE3OFFSET")
"""Sensor offsets, which only records that are not read here refer to."""


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
    return read_records(path, RECORDS, IGNORED, "g2o")


def write_g2o(path: str | Path, graph: PoseGraph) -> Path:
    """Write a pose graph, compressed by the suffix, with all digits of float64; the file is whole or not there.

    >>> write_g2o("solved.g2o", graph.at(solution.value["pose"]))  # doctest: +SKIP
    """
    return write_records(path, graph, RECORDS)
