"""What a pose measures of places around it: directions, distances, positions."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.factors.places import direction, length, place_of, pose_of, seen_from
from mslsq.manifolds import UnitVector
from mslsq.problem import CostFunction


class Bearing(CostFunction):
    """The direction from a pose to a place is measured, in the frame of the pose.

    In the plane the residual (1,) is the angle from the measured to the predicted direction, in radians from −π to π
    whatever the turns. In space it is the tangent vector (2,) of the sphere from one to the other, its length the angle
    between them.

    Where the place is that of the pose itself there is no direction: residual and Jacobian are zero there.

    Args:
        pose: a variable on SE2 or SE3, or a product {"translation", "rotation"}.
        place: a point (2,) or (3,), or another pose.
        measured: in the plane angles () or (1,), counterclockwise from the x axis of the pose, in radians; in space
            unit vectors (3,), or `UnitVector`.

    GTSAM: `BearingFactor2D`, `BearingFactorPose2`, `BearingFactor3D`, whose residual in space has the same length in
    another basis.

    >>> factors.Bearing(pose[i], landmark[j], measured=angle, weight=1 / 0.01)
    """

    def residual(self, pose: Any, place: Any, measured: Any) -> Float[Tensor, "rows"]:
        return _turn(seen_from(pose, place), measured)


class Range(CostFunction):
    """The distance between two places is measured: the residual (1,) is the predicted minus the measured one.

    Where both places are the same, the distance has a kink: its Jacobian is zero there.

    Args:
        a, b: points or poses, of which the position counts.
        measured: distances () or (1,).

    GTSAM: `RangeFactor2`, `RangeFactor3` (points), `RangeFactor2D`, `RangeFactor3D` (pose and point),
    `RangeFactorPose2`, `RangeFactorPose3`.

    >>> factors.Range(pose[i], beacon[j], measured=distance, weight=1 / 0.1)
    """

    def residual(self, a: Any, b: Any, measured: Tensor) -> Float[Tensor, "1"]:
        return length(place_of(b) - place_of(a)) - measured.reshape(1)


class BearingRange(CostFunction):
    """Direction and distance from a pose to a place are measured: the residual is that of `Bearing`, then that of
    `Range`, (2,) in the plane and (3,) in space.

    Args:
        pose, place: as for `Bearing`.
        bearing: as `measured` of `Bearing`.
        range: as `measured` of `Range`.
        weight: for instance `mslsq.Diagonal(torch.tensor([1 / 0.01, 1 / 0.1]))`.

    GTSAM: `BearingRangeFactor2D`, `BearingRangeFactorPose2`, `BearingRangeFactor3D`.

    >>> factors.BearingRange(pose[i], landmark[j], bearing=angle, range=distance)
    """

    def residual(self, pose: Any, place: Any, bearing: Any, range: Tensor) -> Float[Tensor, "rows"]:
        seen = seen_from(pose, place)
        return torch.cat((_turn(seen, bearing), length(seen) - range.reshape(1)))


class Landmark(CostFunction):
    """A place is seen with all its coordinates, in the frame of a pose: the residual (dim,) is pose⁻¹ place − measured.

    Args:
        pose: a variable on SE2 or SE3, or a product {"translation", "rotation"}.
        place: a point (2,) or (3,), or another pose.
        measured: (dim,), in the frame of the pose.

    GTSAM: `PoseToPointFactor2D`, `PoseToPointFactor3D`.

    >>> factors.Landmark(pose[i], landmark[j], measured=seen)
    """

    def residual(self, pose: Any, place: Any, measured: Float[Tensor, "dim"]) -> Float[Tensor, "dim"]:
        return seen_from(pose, place) - measured


class Position(CostFunction):
    """The position of a pose is measured in the world, by a satellite receiver say: the residual (dim,) is the
    predicted minus the measured one.

    Args:
        pose: a variable on SE2 or SE3, or a product {"translation", "rotation"}.
        measured: (dim,), Cartesian, in the frame of the world.
        lever: (dim,), where the antenna is in the frame of the pose; at its origin by default.

    GTSAM: `GPSFactor`, `GPSFactorArm`.

    >>> factors.Position(pose[i], measured=fix, lever=mslsq.Shared(antenna), weight=1 / 2.5)
    """

    def residual(
        self, pose: Any, measured: Float[Tensor, "dim"], lever: Float[Tensor, "dim"] | None = None
    ) -> Float[Tensor, "dim"]:
        at = place_of(pose) if lever is None else pose_of(pose).act(lever)
        return at - measured


def _turn(seen: Float[Tensor, "dim"], measured: Any) -> Float[Tensor, "rows"]:
    """From the measured to the predicted direction."""
    if seen.shape[-1] == 2:
        angle = measured.reshape(())
        cosine, sine = angle.cos(), angle.sin()
        predicted = direction(seen, torch.stack((cosine, sine)))
        x, y = predicted.unbind(-1)
        return torch.atan2(cosine * y - sine * x, cosine * x + sine * y).reshape(1)
    measured = measured if isinstance(measured, UnitVector) else UnitVector.from_vector(measured)
    return measured.local(UnitVector(direction(seen, measured.storage)))
