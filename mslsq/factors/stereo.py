"""Points seen by a rectified pair of cameras."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.factors.cameras import ideal, ideal_jacobian, seen_by_camera
from mslsq.factors.places import ClosedForm, pose_of, seen_from
from mslsq.problem import CostFunction


class Stereo(ClosedForm):
    """A point seen by a rectified pair of cameras: the residual (3,) is the predicted minus the measured
    (u_left, u_right, v).

    u_left = fx x + cx, u_right = u_left − fx baseline / P_z, v = fy y + cy, with P in the frame of the left camera and
    (x, y) = P_xy / P_z. What is not seen has the residual `unseen` in all entries, as for
    `PinholeProjection`.

    Args:
        pose, point: as for `PinholeProjection`; the pose of the left camera.
        intrinsics: (fx, fy, cx, cy, baseline), a variable or data; the baseline in the unit of the points.
        pixel: (u_left, u_right, v), (3,).
        sensor, unseen: as for `PinholeProjection`.

    GTSAM: `GenericStereoFactor3D`, whose calibration has a skew too, and does not use it.

    >>> factors.Stereo(pose[i], point[j], intrinsics=mslsq.Shared(K), pixel=seen)
    """

    closed = 3
    curvature = CostFunction.curvature_from_jacobians

    def residual(
        self,
        pose: Any,
        point: Any,
        intrinsics: Float[Tensor, "5"],
        pixel: Float[Tensor, "3"],
        sensor: Any = None,
        unseen: float = 1000.0,
    ) -> Float[Tensor, "3"]:
        if sensor is not None:
            pose = pose_of(pose) @ sensor
        seen = seen_from(pose, point)
        flat, is_seen = ideal(seen)
        (fx, fy, cx, cy, baseline), (x, y) = intrinsics.unbind(-1), flat.unbind(-1)
        left = fx * x + cx
        right = left - fx * baseline / torch.where(is_seen, seen[2:], 1)[0]
        return torch.where(is_seen, torch.stack((left, right, fy * y + cy)) - pixel, unseen)

    def jacobians(
        self,
        pose: Any,
        point: Any,
        intrinsics: Float[Tensor, "5"],
        pixel: Float[Tensor, "3"],
        sensor: Any = None,
        unseen: float = 1000.0,
    ) -> tuple[Float[Tensor, "3 tangent"], ...]:
        seen, *moved = seen_by_camera(pose, point, sensor)
        flat, flat_moved, is_seen = ideal_jacobian(seen)
        (fx, fy, _, _, baseline), (x, y) = intrinsics.unbind(-1), flat.unbind(-1)
        inverse = torch.where(is_seen, 1 / torch.where(is_seen, seen[2:], 1), 0)[0]
        zero, one = torch.zeros_like(fx), torch.where(is_seen[0], 1.0, torch.zeros_like(fx))
        left, down = fx * flat_moved[0], fy * flat_moved[1]
        nearer = torch.stack((zero, zero, fx * baseline * inverse * inverse))
        bent = torch.stack((left, left + nearer, down))
        by_lens = torch.stack(
            (
                torch.stack((x, zero, one, zero, zero)),
                torch.stack((x - baseline * inverse, zero, one, zero, -fx * inverse)),
                torch.stack((zero, y, zero, one, zero)),
            )
        )
        return (*(bent @ by for by in moved), by_lens)[: len(self.references)]
