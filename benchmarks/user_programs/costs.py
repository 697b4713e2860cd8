"""Cost functions of users."""

import einops
import numpy as np
import torch
from torch import nn

import mslsq
from user_programs.functions import F64
from user_programs.objects import Settings

POSES = mslsq.SE3.exp(0.1 * torch.arange(24, dtype=F64).reshape(4, 6).cos())
PIXELS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=F64)
UP = torch.tensor([0.0, 0.0, 1.0], dtype=F64)


class RelativePose(mslsq.CostFunction):
    def residual(self, a, b, measured):
        return (measured.inverse() @ (a.inverse() @ b)).log()


class Upright(mslsq.CostFunction):
    """A global tensor, and an index written into a fresh tensor."""

    def residual(self, pose, tilt):
        r = torch.zeros(3, dtype=tilt.dtype)
        r[:3] = pose.rotation.act(UP) - UP
        return r * tilt


class Pinhole(mslsq.CostFunction):
    """A camera matrix as a NumPy array in an attribute."""

    K = np.array([[500.0, 0.0, 320.0], [0.0, 500.0, 240.0], [0.0, 0.0, 1.0]])

    def residual(self, pose, point, pixel):
        q = torch.as_tensor(self.K) @ pose.act(point + 5 * UP)
        return q[:2] / q[2] - pixel


class Weighted(mslsq.CostFunction):
    """Settings in an object."""

    def __init__(self, *variables, settings, **data):
        super().__init__(*variables, **data)
        self.settings = settings

    def residual(self, pose, target):
        scale = self.settings.weight / sum(self.settings.scales)
        return scale * (target.inverse() @ pose).log()


class Learned(mslsq.CostFunction):
    """A small network weighs the residual."""

    def __init__(self, *variables, **data):
        super().__init__(*variables, **data)
        self.net = nn.Sequential(nn.Linear(2, 4, dtype=F64), nn.Tanh(), nn.Linear(4, 1, dtype=F64))
        self.requires_grad_(False)

    def residual(self, pose, pixel):
        return self.net(pixel + pose.translation[:2]) * pose.log()


class Patches(mslsq.CostFunction):
    def residual(self, pose, pixel):
        moved = einops.repeat(pixel, "c -> n c", n=3) * pose.translation[0]
        return einops.rearrange(moved, "n c -> (n c)")


class Bounded(mslsq.CostFunction):
    """Names a cost's own attributes, and branches on a flag."""

    limit = 1.0
    squared = True

    def residual(self, pose, pixel):
        violation = torch.relu(pose.translation.norm() - self.limit)
        return violation[None] ** 2 if self.squared else violation[None]


class WithJacobians(mslsq.CostFunction):
    def residual(self, offset, pixel):
        return offset[:2] - pixel

    def jacobians(self, offset, pixel):
        J = torch.zeros(2, 3, dtype=pixel.dtype)
        J[0, 0] = 1.0
        J[1, 1] = 1.0
        return (J,)


def on_poses(kind, **data):
    pose = mslsq.Variable("pose", mslsq.SE3, count=4)
    return mslsq.Problem(kind(pose, **data)), {"pose": POSES}, ()


def relative_poses():
    pose = mslsq.Variable("pose", mslsq.SE3, count=4)
    i = torch.arange(3)
    return mslsq.Problem(RelativePose(pose[i], pose[i + 1], measured=POSES[:3])), {"pose": POSES}, ()


def by_decorator():
    @mslsq.cost
    def near(pose, target):
        return (target.inverse() @ pose).log()

    return on_poses(near, target=POSES)


def with_jacobians():
    offset = mslsq.Variable("offset", mslsq.Euclidean(3), count=4)
    return mslsq.Problem(WithJacobians(offset, pixel=PIXELS)), {"offset": torch.ones(4, 3, dtype=F64)}, ()


WRITTEN = {
    "relative_pose_cost": relative_poses,
    "cost_by_decorator": by_decorator,
    "upright_cost": lambda: on_poses(Upright, tilt=torch.ones(4, 1, dtype=F64)),
    "pinhole_cost": lambda: on_poses(Pinhole, point=torch.ones(4, 3, dtype=F64), pixel=PIXELS),
    "weighted_cost": lambda: on_poses(Weighted, target=POSES, settings=Settings()),
    "learned_cost": lambda: on_poses(Learned, pixel=PIXELS),
    "patches_cost": lambda: on_poses(Patches, pixel=PIXELS),
    "bounded_cost": lambda: on_poses(Bounded, pixel=PIXELS),
    "cost_with_jacobians": with_jacobians,
}
