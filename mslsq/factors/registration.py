"""Points on surfaces: what aligns scans."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from mslsq.factors.places import ClosedForm, acted_jacobian, pose_of
from mslsq.problem import CostFunction


class PointToPlane(ClosedForm):
    """A point of one scan lies on a plane of another: the residual (1,) is normal · (pose point − on_plane), the
    distance from the plane where the normal has length one (Chen and Medioni, "Object modelling by registration of
    multiple range images", 1992).

    Args:
        pose: of the scan in the frame of the planes, on SE2 or SE3, or a product {"translation", "rotation"}.
        point: (dim,), in the frame of the scan.
        on_plane: (dim,), a point of the plane.
        normal: (dim,), of the plane.

    GTSAM has none by this name; it is the distance in an `OrientedPlane3` that is known.

    >>> factors.PointToPlane(pose, point=scan, on_plane=nearest, normal=normals, loss=mslsq.Huber(0.05))
    """

    closed = 1
    curvature = CostFunction.curvature_from_jacobians

    def residual(
        self, pose: Any, point: Float[Tensor, "dim"], on_plane: Float[Tensor, "dim"], normal: Float[Tensor, "dim"]
    ) -> Float[Tensor, "1"]:
        return (normal * (pose_of(pose).act(point) - on_plane)).sum(-1, keepdim=True)

    def jacobians(
        self, pose: Any, point: Float[Tensor, "dim"], on_plane: Float[Tensor, "dim"], normal: Float[Tensor, "dim"]
    ) -> tuple[Float[Tensor, "1 tangent"]]:
        return (normal[None] @ acted_jacobian(pose, point),)
