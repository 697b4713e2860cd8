"""What a pose measures of places around it: directions, distances, positions."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.factors.places import (
    ClosedForm,
    acted_jacobian,
    direction,
    length,
    place_jacobian,
    place_of,
    pose_of,
    seen_from,
    seen_jacobians,
)
from mslsq.manifolds import UnitVector
from mslsq.problem import CostFunction

Jacobians = tuple[Float[Tensor, "rows tangent"], ...]


class Bearing(ClosedForm):
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

    closed = 2
    curvature = CostFunction.curvature_from_jacobians

    def residual(self, pose: Any, place: Any, measured: Any) -> Float[Tensor, "rows"]:
        return _turn(seen_from(pose, place), measured)

    def jacobians(self, pose: Any, place: Any, measured: Any) -> Jacobians:
        seen, *moved = seen_jacobians(pose, place)
        turned = _turn_jacobian(seen, measured)
        return tuple(turned @ by for by in moved[: len(self.references)])


class Range(ClosedForm):
    """The distance between two places is measured: the residual (1,) is the predicted minus the measured one.

    Where both places are the same, the distance has a kink: its Jacobian is zero there.

    Args:
        a, b: points or poses, of which the position counts.
        measured: distances () or (1,).

    GTSAM: `RangeFactor2`, `RangeFactor3` (points), `RangeFactor2D`, `RangeFactor3D` (pose and point),
    `RangeFactorPose2`, `RangeFactorPose3`.

    >>> factors.Range(pose[i], beacon[j], measured=distance, weight=1 / 0.1)
    """

    closed = 2
    curvature = CostFunction.curvature_from_jacobians

    def residual(self, a: Any, b: Any, measured: Tensor) -> Float[Tensor, "1"]:
        return length(place_of(b) - place_of(a)) - measured.reshape(1)

    def jacobians(self, a: Any, b: Any, measured: Tensor) -> Jacobians:
        way = place_of(b) - place_of(a)
        ahead = direction(way, torch.zeros_like(way))[None]
        return (-(ahead @ place_jacobian(a)), ahead @ place_jacobian(b))[: len(self.references)]


class BearingRange(ClosedForm):
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

    closed = 2
    curvature = CostFunction.curvature_from_jacobians

    def residual(self, pose: Any, place: Any, bearing: Any, range: Tensor) -> Float[Tensor, "rows"]:
        seen = seen_from(pose, place)
        return torch.cat((_turn(seen, bearing), length(seen) - range.reshape(1)))

    def jacobians(self, pose: Any, place: Any, bearing: Any, range: Tensor) -> Jacobians:
        seen, *moved = seen_jacobians(pose, place)
        both = torch.cat((_turn_jacobian(seen, bearing), direction(seen, torch.zeros_like(seen))[None]))
        return tuple(both @ by for by in moved[: len(self.references)])


class Landmark(ClosedForm):
    """A place is seen with all its coordinates, in the frame of a pose: the residual (dim,) is pose⁻¹ place − measured.

    Args:
        pose: a variable on SE2 or SE3, or a product {"translation", "rotation"}.
        place: a point (2,) or (3,), or another pose.
        measured: (dim,), in the frame of the pose.

    GTSAM: `PoseToPointFactor2D`, `PoseToPointFactor3D`; `KnownLandmarkFactorPose2`, `KnownLandmarkFactorPose3` where
    the place is known.

    >>> factors.Landmark(pose[i], landmark[j], measured=seen)
    """

    closed = 2
    curvature = CostFunction.curvature_from_jacobians

    def residual(self, pose: Any, place: Any, measured: Float[Tensor, "dim"]) -> Float[Tensor, "dim"]:
        return seen_from(pose, place) - measured

    def jacobians(self, pose: Any, place: Any, measured: Float[Tensor, "dim"]) -> Jacobians:
        return seen_jacobians(pose, place)[1 : 1 + len(self.references)]


class Position(ClosedForm):
    """The position of a pose is measured in the world, by a satellite receiver say: the residual (dim,) is the
    predicted minus the measured one.

    Args:
        pose: a variable on SE2 or SE3, or a product {"translation", "rotation"}.
        measured: (dim,), Cartesian, in the frame of the world.
        lever: (dim,), where the antenna is in the frame of the pose; at its origin by default.

    GTSAM: `GPSFactor`, `GPSFactorArm`.

    >>> factors.Position(pose[i], measured=fix, lever=mslsq.Shared(antenna), weight=1 / 2.5)
    """

    closed = 1
    curvature = CostFunction.curvature_from_jacobians

    def residual(
        self, pose: Any, measured: Float[Tensor, "dim"], lever: Float[Tensor, "dim"] | None = None
    ) -> Float[Tensor, "dim"]:
        at = place_of(pose) if lever is None else pose_of(pose).act(lever)
        return at - measured

    def jacobians(
        self, pose: Any, measured: Float[Tensor, "dim"], lever: Float[Tensor, "dim"] | None = None
    ) -> Jacobians:
        return (place_jacobian(pose) if lever is None else acted_jacobian(pose, lever),)


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


def _turn_jacobian(seen: Float[Tensor, "dim"], measured: Any) -> Float[Tensor, "rows dim"]:
    """The derivative of `_turn` in what is seen.

    In space, with a and v the directions, B the basis at a, w = Bᵀv, c = aᵀv and θ the angle, θ w/|w| moves by
    (θ/|w| (I − ŵŵᵀ) + c ŵŵᵀ) Bᵀ dv − w aᵀ dv with dv = (I − vvᵀ) ds/|s|.
    """
    squared = (seen * seen).sum(-1)
    none = squared <= torch.finfo(seen.dtype).tiny
    inverse = torch.where(none, 0, torch.where(none, 1, squared).reciprocal())
    if seen.shape[-1] == 2:
        x, y = seen.unbind(-1)
        return (torch.stack((-y, x)) * inverse)[None]
    measured = measured if isinstance(measured, UnitVector) else UnitVector.from_vector(measured)
    basis, ahead, v = measured.basis(), measured.storage, direction(seen, measured.storage)
    w, along = basis.mT @ v, (ahead * v).sum(-1)
    sine = length(w)[0]
    ratio = torch.where(sine > 0, torch.atan2(sine, along) / torch.where(sine > 0, sine, 1), 1)
    unit = direction(w, torch.zeros_like(w))
    turned = ratio * basis.mT + (along - ratio) * unit[:, None] * (basis @ unit) - w[:, None] * ahead
    flat = turned - (turned @ v)[:, None] * v
    return flat * inverse.sqrt()
