"""A room with a ball in it, seen by a moving camera: depth with known scale fields, for trying and testing."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import SO3
from mslsq.alignment.scales.views import DepthViews
from mslsq.validation import integer, number

HALF = (2.0, 1.5, 3.0)
"""Half the room's width, height and length in metres; the cameras stand near its middle."""
BALL, RADIUS = (0.3, 0.5, 1.6), 0.5


class Room(NamedTuple):
    """Views with wrong depths, and what these are to be multiplied by."""

    views: DepthViews
    truth: Float[Tensor, "views height width"]


def room(
    views: int = 6,
    size: tuple[int, int] = (96, 128),
    amplitude: float = 0.1,
    noise: float = 0.005,
    outliers: float = 0.05,
    baseline: float = 0.25,
    seed: int = 0,
) -> Room:
    """Depth of a box-shaped room and a ball, divided by smooth fields exp(f) with f of standard deviation `amplitude`.

    Cameras are `baseline` metres apart (standard deviation per axis) and look down the room, turned by some ten
    degrees. Depths carry relative `noise`; a share of `outliers` is wrong by a factor of e or so.
    """
    integer("views", views, 2)
    for name, value in (("amplitude", amplitude), ("noise", noise), ("baseline", baseline)):
        number(name, value, least=0)
    number("outliers", outliers, least=0, below=1)
    height, width = size
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")  # noqa: E731
    focal = 0.9 * width
    camera = torch.tensor(
        [[focal, 0.0, (width - 1) / 2], [0.0, focal, (height - 1) / 2], [0.0, 0.0, 1.0]],
        dtype=torch.float64,
        device="cpu",
    )
    poses = torch.eye(4, dtype=torch.float64, device="cpu").repeat(views, 1, 1)
    poses[:, :3, :3] = SO3.exp(math.radians(10) * normal(views, 3)).matrix()
    poses[:, :3, 3] = baseline * normal(views, 3)
    exact = torch.stack([_seen(camera, pose, height, width) for pose in poses])
    field = torch.nn.functional.interpolate(
        normal(views, 1, 3, 4), size=size, mode="bicubic", align_corners=True
    )[:, 0]  # fmt: skip
    field = amplitude * field / field.std().clamp(min=1e-12)
    truth = (field - field.mean()).exp()
    wrong = torch.rand(exact.shape, generator=generator, dtype=torch.float64, device="cpu") < outliers
    factor = (1 + noise * normal(*exact.shape)) * torch.where(wrong, normal(*exact.shape).exp(), 1)
    return Room(DepthViews(exact * factor / truth, camera.expand(views, 3, 3), poses), truth)


def _seen(camera: Tensor, pose: Tensor, height: int, width: int) -> Float[Tensor, "height width"]:
    """Depth along the optical axis: the nearer of the box, from inside, and the ball."""
    y, x = torch.meshgrid(torch.arange(height, device="cpu"), torch.arange(width, device="cpu"), indexing="ij")
    pixel = torch.stack([x, y, torch.ones_like(x)], -1).to(camera)
    ray = pixel @ torch.linalg.inv_ex(camera).inverse.T @ pose[:3, :3].T
    origin, half = pose[:3, 3], camera.new_tensor(HALF)
    walls = ((half * ray.sign() - origin) / ray).nan_to_num(nan=torch.inf).amin(-1)
    toward = camera.new_tensor(BALL) - origin
    a, b, c = (ray**2).sum(-1), (ray * toward).sum(-1), (toward**2).sum() - RADIUS**2
    root = b**2 - a * c
    ball = torch.where(root > 0, (b - root.clamp(min=0).sqrt()) / a, torch.inf)
    return torch.minimum(walls, torch.where(ball > 0, ball, torch.inf))
