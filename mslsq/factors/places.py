"""Where a pose or a point is, with its Jacobian; lengths and directions that have a derivative at zero."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import SE2, SE3, SO3
from mslsq.problem import CostFunction


class ClosedForm(CostFunction):
    """Base of factors that write Jacobians of their first variables. Where more is a variable, a measurement say, all
    come from automatic differentiation."""

    closed: ClassVar[int]
    """Of how many arguments `jacobians` knows the derivative; it returns those of the variables among them."""

    def __init__(self, *variables: Any, **options: Any):
        super().__init__(*variables, **options)
        if len(self.references) > self.closed:
            self.jacobians = self.curvature = None


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


def place_jacobian(value: Any) -> Float[Tensor, "dim tangent"]:
    """The derivative of `place_of` in the tangent of a pose, or of a point."""
    at = place_of(value)
    unit = torch.eye(at.shape[-1], dtype=at.dtype, device=at.device)
    if isinstance(value, Tensor):
        return unit
    is_product = isinstance(value, Mapping)
    turned = unit.new_zeros(len(unit), 1 if len(unit) == 2 else 3)
    return _in_order(value, unit if is_product else value.rotation.matrix(), turned)


def acted_jacobian(pose: Any, point: Float[Tensor, "dim"]) -> Float[Tensor, "dim tangent"]:
    """The derivative of `pose_of(pose).act(point)` in the tangent of the pose."""
    into_world = pose_of(pose).rotation.matrix()
    unit = torch.eye(len(into_world), dtype=into_world.dtype, device=into_world.device)
    return _in_order(pose, unit if isinstance(pose, Mapping) else into_world, -(into_world @ _turning(point)))


def seen_jacobians(
    pose: Any, point: Any
) -> tuple[Float[Tensor, "dim"], Float[Tensor, "dim tangent"], Float[Tensor, "dim tangent"]]:
    """`seen_from`, and its derivatives in the tangents of the pose and of the point (or pose) that is seen."""
    seen, from_world = seen_from(pose, point), pose_of(pose).rotation.matrix().mT
    unit = torch.eye(len(from_world), dtype=seen.dtype, device=seen.device)
    moved = from_world if isinstance(pose, Mapping) else unit
    return seen, _in_order(pose, -moved, _turning(seen)), from_world @ place_jacobian(point)


def _turning(point: Float[Tensor, "dim"]) -> Float[Tensor, "dim angles"]:
    """The derivative of exp(φ)⁻¹ point at φ = 0."""
    if point.shape[-1] == 3:
        return SO3.hat(point)
    x, y = point.unbind(-1)
    return torch.stack((y, -x))[:, None]


def _in_order(pose: Any, moved: Tensor, turned: Tensor) -> Tensor:
    """The columns of translation and rotation, as the tangent of the pose has them."""
    if not isinstance(pose, Mapping):
        return torch.cat((moved, turned), -1)
    parts = {"translation": moved, "rotation": turned}
    return torch.cat([parts[name] for name in pose], -1)
