"""Pose graphs with known truth: a ring in the plane and a sphere in space, started from their noisy odometry."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.datasets.pose_graph import PoseGraph
from mslsq.initialization import spanning_tree
from mslsq.manifolds import SE2, SE3, SO3
from mslsq.validation import integer, number

__all__ = ["SyntheticGraph", "ring_graph", "sphere_graph"]


@dataclass(frozen=True)
class SyntheticGraph:
    """A pose graph, and where its poses really are; the first pose of both is the same."""

    graph: PoseGraph
    truth: SE2 | SE3


def ring_graph(
    laps: int = 3, per_lap: int = 100, sigma_translation: float = 0.02, sigma_rotation: float = 0.01, seed: int = 0
) -> SyntheticGraph:
    """Laps of a circle of 10 m in the plane, every pose seen from that of the lap before."""
    count = _checked(laps, per_lap, sigma_translation, sigma_rotation)
    angle = torch.arange(count, dtype=torch.float64, device="cpu") * (2 * torch.pi / per_lap)
    truth = SE2.from_xyt(torch.stack([10 * angle.cos(), 10 * angle.sin(), angle + torch.pi / 2], -1))
    sigma = torch.tensor([sigma_translation] * 2 + [sigma_rotation], dtype=torch.float64, device="cpu")
    return _measured("ring", truth, per_lap, sigma, seed)


def sphere_graph(
    laps: int = 20, per_lap: int = 40, sigma_translation: float = 0.05, sigma_rotation: float = 0.02, seed: int = 0
) -> SyntheticGraph:
    """A spiral of `laps` turns up a sphere of 10 m, every pose seen from the one below it."""
    count = _checked(laps, per_lap, sigma_translation, sigma_rotation)
    turn = torch.arange(count, dtype=torch.float64, device="cpu") * (2 * torch.pi / per_lap)
    height = torch.linspace(-0.45 * torch.pi, 0.45 * torch.pi, count, dtype=torch.float64, device="cpu")
    outward = torch.stack([height.cos() * turn.cos(), height.cos() * turn.sin(), height.sin()], -1)
    ahead = torch.stack([-turn.sin(), turn.cos(), torch.zeros_like(turn)], -1)
    rotation = SO3.from_matrix(torch.stack([ahead, torch.linalg.cross(outward, ahead), outward], -1))
    truth = SE3.from_parts(rotation, 10 * outward)
    sigma = torch.tensor([sigma_translation] * 3 + [sigma_rotation] * 3, dtype=torch.float64, device="cpu")
    return _measured("sphere", truth, per_lap, sigma, seed)


def _checked(laps: int, per_lap: int, *sigmas: float) -> int:
    integer("laps", laps, 1)
    integer("per_lap", per_lap, 3)
    for name, value in zip(("sigma_translation", "sigma_rotation"), sigmas, strict=True):
        number(name, value, above=0)
    return laps * per_lap


def _measured(name: str, truth: SE2 | SE3, per_lap: int, sigma: Float[Tensor, "tangent"], seed: int) -> SyntheticGraph:
    """Odometry first, then the pose one lap on; the start follows the odometry, so that its errors add up."""
    count = truth.shape[0]
    own = torch.arange(count, device="cpu")
    first = torch.cat((own[:-1], own[:-per_lap]))
    second = torch.cat((own[1:], own[per_lap:]))
    generator = torch.Generator().manual_seed(seed)
    noise = sigma * torch.randn(len(first), len(sigma), generator=generator, dtype=torch.float64, device="cpu")
    measured = truth[first].between(truth[second]).retract(noise)  # type: ignore[arg-type]
    odometry = slice(0, count - 1)
    start = truth[0] @ spanning_tree(first[odometry], second[odometry], measured[odometry], count)  # type: ignore[operator]
    graph = PoseGraph(
        name=name,
        poses=start,
        first=first,
        second=second,
        measured=measured,
        information=sigma.pow(-2).diag().expand(len(first), -1, -1).clone(),
        ids=own,
        fixed=torch.zeros(0, dtype=torch.int64, device="cpu"),
    )
    return SyntheticGraph(graph, truth)
