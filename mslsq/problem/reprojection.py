"""Reprojection errors: where a camera sees a point, minus where it was seen, with Jacobians in closed form."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import SE3, SO3
from mslsq.manifolds.components import cat_matrices, matmul, stack
from mslsq.manifolds.lie_group import dot, hat
from mslsq.problem.cost import CostFunction

Pixel = Float[Tensor, "2"]


class Reprojection(CostFunction):
    """A point seen by a pinhole camera with radial distortion: the residual is the predicted minus the measured pixel.

    The camera's frame is that of computer vision: x to the right, y down, z forward. `pose` is the pose of the camera
    IN the world (p_world = pose.act(p_camera)), the same convention as odometry and `Between` use; for extrinsics
    (world to camera) give their inverse. With P = pose⁻¹ point, p = P_xy / P_z and n = |p|²,

        pixel = focal · (1 + k1 n + k2 n²) · p + principal_point.

    A point in the camera's plane (P_z = 0) has no pixel: its residual is not finite. Points behind the camera are
    projected through its centre, not left out.

    Args:
        pose: variable on SE3.
        point: variable on Euclidean(3).
        pixel: measured pixels (2,), one per observation.
        focal: focal length in pixels, a number, or a tensor () or (2,) for (fx, fy).
        principal_point: (2,), zero by default.
        distortion: (k1, k2), none by default.

    The last three have one entry per observation, or are `Shared`.

    >>> K = mslsq.Shared(torch.tensor([525.0, 525.0])), mslsq.Shared(torch.tensor([319.5, 239.5]))
    >>> Reprojection(pose[i], point[j], pixel=uv, focal=K[0], principal_point=K[1], loss=mslsq.Huber(1.0))
    """

    curvature = CostFunction.curvature_from_jacobians

    def residual(
        self,
        pose: SE3,
        point: Float[Tensor, "3"],
        pixel: Pixel,
        focal: Tensor | float,
        principal_point: Pixel | None = None,
        distortion: Float[Tensor, "2"] | None = None,
    ) -> Pixel:
        seen = _in_camera(pose, point)
        predicted = focal * _Projected.of(seen, distortion).distorted
        if principal_point is not None:
            predicted = predicted + principal_point
        return predicted - pixel

    def jacobians(
        self,
        pose: SE3,
        point: Float[Tensor, "3"],
        pixel: Pixel,
        focal: Tensor | float,
        principal_point: Pixel | None = None,
        distortion: Float[Tensor, "2"] | None = None,
    ) -> tuple[Float[Tensor, "2 6"], Float[Tensor, "2 3"]]:
        seen = _in_camera(pose, point)
        along = _Projected.of(seen, distortion).jacobian()
        if isinstance(focal, Tensor):
            focal = focal.reshape(-1, 1)
        along = focal * along
        # pose ⊞ (ρ, φ) sees exp(−(ρ, φ)) P ≈ P − ρ − φ × P.
        rotation = pose.rotation.inverse().matrix()
        return torch.cat([-along, along @ hat(seen)], -1), along @ rotation


class SnavelyReprojection(CostFunction):
    """A point seen by a camera of nine parameters, as in the BAL data sets: the residual is the predicted minus the
    measured pixel.

    The camera is (w, t, f, k1, k2): a rotation vector, a translation, the focal length in pixels, radial distortion. It
    looks along the negative z axis, pixels are measured from the image's centre, y up:

        P = exp(w) X + t,   p = −P_xy / P_z,   n = |p|²,   pixel = f · (1 + k1 n + k2 n²) · p

    (Agarwal, Snavely, Seitz, Szeliski, "Bundle adjustment in the large", ECCV 2010).

    Args:
        camera: variable on Euclidean(9).
        point: variable on Euclidean(3).
        pixel: measured pixels (2,), one per observation.

    >>> camera = mslsq.Variable("camera", mslsq.Euclidean(9), count=49)
    >>> point = mslsq.Variable("point", mslsq.Euclidean(3), count=7776)
    >>> SnavelyReprojection(camera[i], point[j], pixel=uv)
    """

    curvature = CostFunction.curvature_from_jacobians

    def residual(self, camera: Float[Tensor, "9"], point: Float[Tensor, "3"], pixel: Pixel) -> Pixel:
        seen = SO3.exp(camera[..., :3]).act(point) + camera[..., 3:6]
        return camera[..., 6:7] * _Projected.of(seen, camera[..., 7:], facing=-1.0).distorted - pixel

    def jacobians(
        self, camera: Float[Tensor, "9"], point: Float[Tensor, "3"], pixel: Pixel
    ) -> tuple[Float[Tensor, "2 9"], Float[Tensor, "2 3"]]:
        rotation = SO3.exp(camera[..., :3])
        turned = rotation.act(point)
        focal = camera[..., 6:7]
        projected = _Projected.of(turned + camera[..., 3:6], camera[..., 7:], facing=-1.0)
        along = focal[..., None] * projected.jacobian()
        # exp(w + dw) X ≈ exp(J_l dw) exp(w) X, and a small turn φ moves y by φ × y = −hat(y) φ.
        by_rotation = -matmul(matmul(along, hat(turned)), SO3.left_jacobian(camera[..., :3]))
        n, p = projected.squared, projected.ideal
        by_lens = [column[..., None] for column in (projected.distorted, focal * n * p, focal * n * n * p)]
        return cat_matrices([by_rotation, along, *by_lens], -1), matmul(along, rotation.matrix())

    def broadcasts(self) -> bool:
        return True


class _Projected(NamedTuple):
    """A point of the camera's frame on its image plane at distance one, before and after distortion."""

    ideal: Float[Tensor, "2"]
    """p = facing · P_xy / P_z."""
    squared: Float[Tensor, "1"]
    """n = |p|²."""
    factor: Float[Tensor, "1"]
    """1 + k1 n + k2 n²."""
    growth: Float[Tensor, "1"] | None
    """The factor's derivative in n; None without distortion."""
    scale: Float[Tensor, "1"]
    """facing / P_z."""
    facing: float

    @classmethod
    def of(cls, seen: Float[Tensor, "3"], distortion: Float[Tensor, "2"] | None, facing: float = 1.0) -> Any:
        scale = facing / seen[..., 2:]
        p = seen[..., :2] * scale
        n = dot(p, p)
        if distortion is None:
            return cls(p, n, torch.ones_like(n), None, scale, facing)
        k1, k2 = distortion[..., :1], distortion[..., 1:]
        return cls(p, n, 1.0 + n * (k1 + n * k2), k1 + 2.0 * n * k2, scale, facing)

    @property
    def distorted(self) -> Float[Tensor, "2"]:
        return self.factor * self.ideal

    def jacobian(self) -> Float[Tensor, "2 3"]:
        """d distorted / d P: for p scale · [I, −facing · p], for the lens L = factor · I + 2 growth p pᵀ, together
        scale · [L, −facing · (factor + 2 growth n) p]."""
        x, y = self.ideal.unbind(-1)
        first = second = along = self.factor[..., 0]
        mixed = torch.zeros_like(x)
        if self.growth is not None:
            double = 2.0 * self.growth[..., 0]
            first, second, mixed = first + double * x * x, second + double * y * y, double * x * y
            along = along + double * self.squared[..., 0]
        entries = [first, mixed, -self.facing * along * x, mixed, second, -self.facing * along * y]
        return self.scale[..., None] * stack(entries, like=self.ideal).unflatten(-1, (2, 3))


def _in_camera(pose: SE3, point: Float[Tensor, "3"]) -> Float[Tensor, "3"]:
    return pose.rotation.inverse().act(point - pose.translation)
