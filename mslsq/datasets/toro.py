"""Pose graphs in the text format of TORO, in the plane and in space: reader and writer.

One record per line (Grisetti, Stachniss, Grzonka, Burgard, "A tree parameterization for efficiently computing maximum
likelihood maps using gradient descent", RSS 2007; https://openslam-org.github.io/toro)::

    VERTEX2 id x y theta
    EDGE2 i j dx dy dtheta  + information xx xy yy tt xt yt
    VERTEX3 id x y z roll pitch yaw
    EDGE3 i j dx dy dz roll pitch yaw  + 21 entries of the upper triangle, row by row

Rotations in space are R = Rz(yaw) Ry(pitch) Rx(roll).
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.datasets.pose_graph import PoseGraph
from mslsq.datasets.records import Record, read_records, upper_triangle, write_records
from mslsq.manifolds import SE2, SE3, SO3

__all__ = ["read_toro", "write_toro"]


def _from_angles(values: Float[Tensor, "rows 6"]) -> SE3:
    roll, pitch, yaw = (
        SO3.exp(angle[:, None] * axis)
        for angle, axis in zip(values[:, 3:].T, torch.eye(3, device="cpu").to(values), strict=True)
    )
    return SE3.from_parts(yaw @ pitch @ roll, values[:, :3])


def _to_angles(poses: SE3) -> Float[Tensor, "rows 6"]:
    """At a pitch of ±90 degrees, where roll and yaw turn about one axis, any of the pairs that fit."""
    r = poses.normalized().rotation.matrix()
    roll = torch.atan2(r[:, 2, 1], r[:, 2, 2])
    pitch = torch.atan2(-r[:, 2, 0], torch.hypot(r[:, 0, 0], r[:, 1, 0]))
    yaw = torch.atan2(r[:, 1, 0], r[:, 0, 0])
    return torch.cat([poses.translation, torch.stack([roll, pitch, yaw], -1)], -1)


PLANE_TRIANGLE = ((0, 0), (0, 1), (1, 1), (2, 2), (0, 2), (1, 2))
RECORDS = (
    Record(SE2, "VERTEX2", "EDGE2", "x y theta", SE2.from_xyt, SE2.xyt, PLANE_TRIANGLE),
    Record(SE3, "VERTEX3", "EDGE3", "x y z roll pitch yaw", _from_angles, _to_angles, upper_triangle(6)),
)


def read_toro(path: str | Path) -> PoseGraph:
    """Read one pose graph; ``.gz`` and ``.bz2`` are decompressed, all else is as in `read_g2o`.

    The information of angles is taken as that of the rotation vector: the same for small rotations.

    >>> graph = read_toro("manhattan.graph")  # doctest: +SKIP
    """
    return read_records(path, RECORDS, (), "TORO")


def write_toro(path: str | Path, graph: PoseGraph) -> Path:
    """Write a pose graph, compressed by the suffix, with all digits of float64; the file is whole or not there."""
    return write_records(path, graph, RECORDS)
