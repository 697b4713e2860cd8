"""Where a pose or a point is, and lengths and directions that have a derivative at zero."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import SE2, SE3


def pose_of(value: Any) -> Any:
    """A pose: itself, or the one of a product {"translation": Euclidean(n), "rotation": SO2 or SO3}."""
    if not isinstance(value, Mapping):
        return value
    translation, rotation = value["translation"], value["rotation"]
    kind = SE2 if translation.shape[-1] == 2 else SE3
    return kind.from_parts(rotation, translation)


def place_of(value: Any) -> Float[Tensor, "dim"]:
    """The position of a pose, or of a point."""
    if isinstance(value, Mapping):
        return value["translation"]
    return value if isinstance(value, Tensor) else value.translation


def seen_from(pose: Any, point: Any) -> Float[Tensor, "dim"]:
    """A point, or the position of a pose, in the frame of a pose."""
    pose = pose_of(pose)
    return pose.rotation.inverse().act(place_of(point) - pose.translation)


def length(x: Float[Tensor, "dim"]) -> Float[Tensor, "1"]:
    """|x|, with the derivative zero at x = 0."""
    squared = (x * x).sum(-1, keepdim=True)
    none = squared <= torch.finfo(x.dtype).tiny
    return torch.where(none, 0, torch.where(none, 1, squared).sqrt())


def direction(x: Float[Tensor, "dim"], otherwise: Float[Tensor, "dim"]) -> Float[Tensor, "dim"]:
    """x / |x|; at x = 0 `otherwise`, with the derivative zero."""
    squared = (x * x).sum(-1, keepdim=True)
    none = squared <= torch.finfo(x.dtype).tiny
    return torch.where(none, otherwise, x * torch.where(none, 1, squared).rsqrt())
