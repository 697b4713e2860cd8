"""Ready-made cost functions of robotics and vision: what sensors measure of poses and places, and how bodies move.

Poses are variables on `SE2` or `SE3`, or products {"translation": Euclidean(n), "rotation": SO2 or SO3}, whose
translation is in the frame of the world. Lengths are in one unit of your choice, angles in radians, images in pixels.
Where a measurement says nothing (a direction to the place itself, a point behind the camera) residuals stay finite and
their Jacobians are zero; each factor says what it does there.
"""

from mslsq.factors.cameras import (
    EquirectangularProjection,
    FisheyeProjection,
    PinholeProjection,
    RadialTangentialProjection,
)
from mslsq.factors.collision import Collision
from mslsq.factors.inertial import Inertial, Preintegrated, preintegrate
from mslsq.factors.landmarks import Bearing, BearingRange, Landmark, Position, Range
from mslsq.factors.motion import ConstantVelocity, white_acceleration
from mslsq.factors.registration import PointToPlane
from mslsq.factors.stereo import Stereo

__all__ = [
    "Bearing",
    "BearingRange",
    "Collision",
    "ConstantVelocity",
    "EquirectangularProjection",
    "FisheyeProjection",
    "Inertial",
    "Landmark",
    "PinholeProjection",
    "PointToPlane",
    "Position",
    "Preintegrated",
    "RadialTangentialProjection",
    "Range",
    "Stereo",
    "preintegrate",
    "white_acceleration",
]
