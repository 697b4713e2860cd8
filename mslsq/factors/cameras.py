"""Points seen by cameras: where a lens puts them, minus where they were seen.

The frame of a camera is that of computer vision: x to the right, y down, z forward. Pixels are (u, v), to the right and
down. Intrinsics are a variable (to calibrate) or data, with the same words.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.factors.places import ClosedForm, length, pose_of, seen_from, seen_jacobians
from mslsq.problem import CostFunction

Pixel = Float[Tensor, "2"]
Point = Float[Tensor, "3"]
Intrinsics = Float[Tensor, "n"]

GRAZING = 1e-6
"""The sine of the least angle from the plane of the camera: what is nearer to it, or behind it, is not seen by a lens
that maps straight lines to straight lines."""


class _Projection(ClosedForm):
    """A point is seen at a pixel; a subclass knows the lens."""

    closed = 0

    def residual(
        self,
        pose: Any,
        point: Any,
        intrinsics: Intrinsics,
        pixel: Pixel,
        sensor: Any = None,
        unseen: float = 1000.0,
    ) -> Pixel:
        if sensor is not None:
            pose = pose_of(pose) @ sensor
        predicted, is_seen = self.project(seen_from(pose, point), intrinsics)
        return torch.where(is_seen, self.between(pixel, predicted, intrinsics), unseen)

    @staticmethod
    def project(point: Point, intrinsics: Intrinsics) -> tuple[Pixel, Bool[Tensor, "1"]]:
        """The pixel of a point in the frame of the camera, and whether there is one; finite where there is none."""
        raise NotImplementedError

    @staticmethod
    def between(measured: Pixel, predicted: Pixel, intrinsics: Intrinsics) -> Pixel:
        """What is predicted, from what is measured."""
        return predicted - measured


class PinholeProjection(_Projection):
    """A point seen by a pinhole camera with skew: the residual (2,) is the predicted minus the measured pixel.

    With P the point in the camera's frame and (x, y) = P_xy / P_z:  u = fx x + skew y + cx,  v = fy y + cy.

    A point behind the camera, or within 1e-6 of its plane (P_z ≤ 1e-6 |P|), is not seen: its residual is `unseen` in
    both entries with the Jacobian zero, so that a step that brings it there is judged by its cost.

    Args:
        pose: of the camera in the world (p_world = pose.act(p_camera)), on SE3 or a product {"translation",
            "rotation"}; or of the body that carries it, with `sensor`.
        point: (3,), or a pose.
        intrinsics: (fx, fy, skew, cx, cy) in pixels: a variable `mslsq.Euclidean(5)` by position, or data by keyword.
        pixel: measured, (2,).
        sensor: `mslsq.SE3`, the pose of the camera in the frame of the body, data.
        unseen: the residual of a point that is not seen, in pixels.

    GTSAM: `GenericProjectionFactorCal3_S2` (intrinsics as data), `GeneralSFMFactor2Cal3_S2` (as a variable), whose
    constant for points behind the camera is 2 fx.

    >>> factors.PinholeProjection(pose[i], point[j], intrinsics=mslsq.Shared(K), pixel=uv)
    >>> factors.PinholeProjection(pose[i], point[j], camera[k], pixel=uv)                  # to calibrate
    """

    closed = 3
    curvature = CostFunction.curvature_from_jacobians

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if {"project", "between"} & set(vars(cls)) and "jacobians" not in vars(cls):
            for name in ("jacobians", "curvature"):
                setattr(cls, name, None)  # those of another lens

    @staticmethod
    def project(point: Point, intrinsics: Intrinsics) -> tuple[Pixel, Bool[Tensor, "1"]]:
        flat, is_seen = ideal(point)
        return _pixel(flat, intrinsics), is_seen

    def jacobians(
        self,
        pose: Any,
        point: Any,
        intrinsics: Intrinsics,
        pixel: Pixel,
        sensor: Any = None,
        unseen: float = 1000.0,
    ) -> tuple[Float[Tensor, "2 tangent"], ...]:
        seen, *moved = seen_by_camera(pose, point, sensor)
        flat, flat_moved, is_seen = ideal_jacobian(seen)
        fx, fy, skew, *_ = intrinsics.unbind(-1)
        zero = torch.zeros_like(fx)
        bent = torch.stack((torch.stack((fx, skew)), torch.stack((zero, fy)))) @ flat_moved
        (x, y), one = flat.unbind(-1), torch.where(is_seen[0], 1.0, zero)
        by_lens = torch.stack((torch.stack((x, zero, y, one, zero)), torch.stack((zero, y, zero, zero, one))))
        return (*(bent @ by for by in moved), by_lens)[: len(self.references)]


class RadialTangentialProjection(_Projection):
    """A point seen through a lens with radial and tangential distortion (Brown and Conrady; OpenCV's five parameters).

    With (x, y) = P_xy / P_z and n = x² + y²:

        x' = x (1 + k1 n + k2 n² + k3 n³) + 2 p1 x y + p2 (n + 2x²)
        y' = y (1 + k1 n + k2 n² + k3 n³) + p1 (n + 2y²) + 2 p2 x y

    and u = fx x' + skew y' + cx, v = fy y' + cy. The polynomial is for the image that it was fitted to: far outside of
    it points may fold back into the picture.

    Args:
        pose, point: as for `PinholeProjection`.
        intrinsics: (fx, fy, skew, cx, cy, k1, k2, p1, p2, k3), a variable or data; k3 may be left out, nine numbers.
        pixel, sensor, unseen: as for `PinholeProjection`, with the same rule for what is not seen.

    GTSAM: `GenericProjectionFactorCal3DS2`, `GeneralSFMFactor2Cal3DS2`, which have no k3. OpenCV: `projectPoints`.

    >>> camera = mslsq.Variable("camera", mslsq.Euclidean(10))
    >>> factors.RadialTangentialProjection(pose[i], point[j], camera, pixel=uv), camera.fixed(components=[2, 9])
    """

    @staticmethod
    def project(point: Point, intrinsics: Intrinsics) -> tuple[Pixel, Bool[Tensor, "1"]]:
        flat, is_seen = ideal(point)
        k1, k2, p1, p2 = intrinsics[5:9].unbind(-1)
        k3 = intrinsics[9] if len(intrinsics) > 9 else 0.0
        x, y = flat.unbind(-1)
        n = x * x + y * y
        radial = 1 + n * (k1 + n * (k2 + n * k3))
        distorted = torch.stack(
            (
                x * radial + 2 * p1 * x * y + p2 * (n + 2 * x * x),
                y * radial + p1 * (n + 2 * y * y) + 2 * p2 * x * y,
            )
        )
        return _pixel(distorted, intrinsics), is_seen


class FisheyeProjection(_Projection):
    """A point seen through a fisheye lens (Kannala and Brandt, "A generic camera model and calibration method for
    conventional, wide-angle, and fish-eye lenses", 2006; OpenCV's `fisheye`).

    With θ the angle of the point from the optical axis, from 0 to π, and r = |P_xy|:

        θ' = θ (1 + k1 θ² + k2 θ⁴ + k3 θ⁶ + k4 θ⁸),   (x', y') = θ' P_xy / r

    and u = fx x' + skew y' + cx, v = fy y' + cy. Points behind the camera are seen too; only straight behind it
    (within 1e-6) there is no pixel, and the rule of `PinholeProjection` holds.

    Args:
        pose, point: as for `PinholeProjection`.
        intrinsics: (fx, fy, skew, cx, cy, k1, k2, k3, k4), a variable or data.
        pixel, sensor, unseen: as for `PinholeProjection`.

    GTSAM: `GenericProjectionFactorCal3Fisheye`, `GeneralSFMFactor2Cal3Fisheye`. OpenCV: `fisheye.projectPoints`, for
    points before the camera.

    >>> factors.FisheyeProjection(pose[i], point[j], camera[k], pixel=uv)
    """

    @staticmethod
    def project(point: Point, intrinsics: Intrinsics) -> tuple[Pixel, Bool[Tensor, "1"]]:
        flat, z = point[:2], point[2:]
        squared, depth = (flat * flat).sum(-1, keepdim=True), z * z
        # In the centre of the lens itself squares vanish, and there is no direction.
        is_away = squared + depth > torch.finfo(point.dtype).tiny ** 0.5
        is_seen = is_away & ((z > 0) | (squared > GRAZING**2 * depth))
        # At the axis θ / r is 1/z (1 − r²/3z²): its root has no derivative there.
        at_axis = ~is_away | (squared <= torch.finfo(point.dtype).eps * depth)
        near = torch.where(is_seen & at_axis, z, 1)
        ratio = torch.where(is_seen & at_axis, squared, 0) / (near * near)
        radius = torch.where(at_axis, 1, squared).sqrt()
        angle = torch.atan2(radius, torch.where(at_axis, 1, z))
        n = torch.where(at_axis, ratio, angle * angle)
        scale = torch.where(at_axis, (1 - ratio / 3) / near, angle / radius)
        k1, k2, k3, k4 = intrinsics[5:9].unbind(-1)
        scale = scale * (1 + n * (k1 + n * (k2 + n * (k3 + n * k4))))
        return _pixel(torch.where(is_seen, scale * flat, 0), intrinsics), is_seen


class EquirectangularProjection(_Projection):
    """A point seen in a panorama of 360 × 180 degrees: longitude and latitude, in pixels.

    u = width (λ / 2π) + (width − 1)/2,  v = height (φ / π) + (height − 1)/2 with λ = atan2(P_x, P_z) and
    φ = atan2(P_y, √(P_x² + P_z²)); centres of pixels are at integers. The residual is the predicted minus the measured
    pixel, in u the shorter way around. Straight above and below (within 1e-6) a point has no longitude, and the rule of
    `PinholeProjection` holds.

    Args:
        pose, point: as for `PinholeProjection`.
        intrinsics: (width, height) in pixels.
        pixel, sensor, unseen: as for `PinholeProjection`.

    Neither GTSAM nor OpenCV has it (`SphericalCamera` of GTSAM knows directions); of OpenMVG it is
    `Intrinsic_Spherical`.

    >>> size = mslsq.Shared(torch.tensor([4096.0, 2048.0]))
    >>> factors.EquirectangularProjection(pose[i], point[j], intrinsics=size, pixel=uv)
    """

    @staticmethod
    def project(point: Point, intrinsics: Intrinsics) -> tuple[Pixel, Bool[Tensor, "1"]]:
        x, y, z = point.unbind(-1)
        around = torch.stack((x, z))
        is_seen = (around * around).sum(-1, keepdim=True) > GRAZING**2 * y * y
        around = torch.where(is_seen, around, 1)
        longitude = torch.atan2(around[0], around[1])
        latitude = torch.atan2(y, length(around)[0])
        turns = torch.stack((longitude / (2 * torch.pi), latitude / torch.pi))
        return intrinsics * turns + (intrinsics - 1) / 2, is_seen

    @staticmethod
    def between(measured: Pixel, predicted: Pixel, intrinsics: Intrinsics) -> Pixel:
        u, v = (predicted - measured).unbind(-1)
        width = intrinsics[0]
        return torch.stack((u - width * (u / width).round(), v))


def ideal(point: Point) -> tuple[Float[Tensor, "2"], Bool[Tensor, "1"]]:
    """P_xy / P_z, and whether the camera sees the point; zero where it does not."""
    z = point[2:]
    is_seen = (z > 0) & (z * z > GRAZING**2 * (point * point).sum(-1, keepdim=True))
    return torch.where(is_seen, point[:2], 0) / torch.where(is_seen, z, 1), is_seen


def ideal_jacobian(point: Point) -> tuple[Float[Tensor, "2"], Float[Tensor, "2 3"], Bool[Tensor, "1"]]:
    """`ideal`, and its derivative in the point."""
    flat, is_seen = ideal(point)
    inverse = torch.where(is_seen, 1 / torch.where(is_seen, point[2:], 1), 0)[0]
    (x, y), zero = flat.unbind(-1), torch.zeros_like(inverse)
    rows = torch.stack((inverse, zero, -x * inverse)), torch.stack((zero, inverse, -y * inverse))
    return flat, torch.stack(rows), is_seen


def seen_by_camera(
    pose: Any, point: Any, sensor: Any
) -> tuple[Point, Float[Tensor, "3 tangent"], Float[Tensor, "3 tangent"]]:
    """A point in the frame of the camera, and its derivatives in the tangents of the pose and of the point."""
    seen, by_pose, by_point = seen_jacobians(pose, point)
    if sensor is None:
        return seen, by_pose, by_point
    into = sensor.rotation.matrix().mT
    return into @ (seen - sensor.translation), into @ by_pose, into @ by_point


def _pixel(distorted: Float[Tensor, "2"], intrinsics: Intrinsics) -> Pixel:
    """(fx x + skew y + cx, fy y + cy)."""
    fx, fy, skew, cx, cy = intrinsics[:5].unbind(-1)
    x, y = distorted.unbind(-1)
    return torch.stack((fx * x + skew * y + cx, fy * y + cy))
