"""What the two libraries call an element, and how it is stored in each.

| Theseus | its tensor, one element | here | its storage |
|---|---|---|---|
| `Vector(n)`, `Point2`, `Point3` | (n,) | `Euclidean(n)` | (n,) |
| `SO2` | (cos, sin) | `SO2` | (cos, sin) |
| `SE2` | (x, y, cos, sin) | `SE2` | (x, y, cos, sin) |
| `SO3` | rotation matrix (3, 3) | `SO3` | (qx, qy, qz, qw) |
| `SE3` | [R | t], (3, 4) | `SE3` | (x, y, z, qx, qy, qz, qw) |

Quaternions of Theseus are (w, x, y, z). Tangents are the same: the translation first, then the rotation, perturbations
on the right. The cost is ½ Σ (weighted residual)² in both, and a robust loss is applied to the squared norm of a block.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mslsq.interop.theseus.library import TheseusError, library
from mslsq.manifolds import SE2, SE3, SO2, SO3, Euclidean, LieGroup


@dataclass(frozen=True)
class Kind:
    """A kind of variable of Theseus: its class and the shape of one element."""

    theseus: type
    shape: tuple[int, ...]
    group: type[LieGroup] | None
    """The group here; None for Euclidean variables."""

    @property
    def manifold(self) -> Any:
        return Euclidean(self.shape[0]) if self.group is None else self.group

    @property
    def name(self) -> str:
        return f"{self.theseus.__name__}({self.shape[0]})" if self.group is None else self.theseus.__name__

    def storage(self, tensor: Tensor) -> Tensor:
        """The storage here of elements of Theseus (*batch, *shape)."""
        return self.group.from_matrix(tensor).storage if self.group in (SO3, SE3) else tensor

    def element(self, tensor: Tensor) -> Any:
        """What `mslsq` calls elements of Theseus (*batch, *shape)."""
        return tensor if self.group is None else self.group(self.storage(tensor))

    def tensor(self, value: Any) -> Tensor:
        """The tensor of Theseus, (*batch, *shape), of an element here or of its storage."""
        if self.group is None:
            return value
        element = self.group(value) if isinstance(value, Tensor) else value
        if self.group in (SO3, SE3):
            return element.matrix()[..., :3, :]
        return element.storage


def kind_of(variable: Any) -> Kind:
    """The kind of a variable.

    Raises:
        TheseusError: its class is none of Theseus' own.
    """
    th = library()
    shape = tuple(variable.shape[1:])
    for theseus, group in ((th.SE3, SE3), (th.SO3, SO3), (th.SE2, SE2), (th.SO2, SO2)):
        if isinstance(variable, theseus):
            return Kind(theseus, shape, group)
    if isinstance(variable, th.Vector) and len(shape) == 1:  # Point2 and Point3 are vectors
        return Kind(th.Vector, shape, None)
    raise TheseusError(
        f"Variable {variable.name!r} is a {type(variable).__name__}: only Theseus' own Vector, Point2, Point3, SO2, "
        "SE2, SO3 and SE3 have a counterpart here. For a manifold of your own subclass mslsq.Manifold and write the "
        "cost as an mslsq.CostFunction."
    )


def moved_element(space: Any, tensor: Tensor, delta: Tensor) -> Any:
    """What a residual here is given for an element of Theseus, moved by a tangent vector."""
    if space.is_euclidean:
        return tensor + delta
    group = next(group for group in (SO2, SE2, SO3, SE3) if group.__name__ == space.name)
    element = group.from_matrix(tensor) if group in (SO3, SE3) else group(tensor)
    return element.retract(delta)


def batch_size(tensors: dict[str, Tensor]) -> int:
    """The batch size of all tensors, each of which has it or one.

    Raises:
        TheseusError: two of them do not agree; they are named.
    """
    size, first = 1, ""
    for name, tensor in tensors.items():
        if len(tensor) != 1 and size not in (1, len(tensor)):
            raise TheseusError(
                f"The batch sizes do not agree: {first!r} has {size}, {name!r} has {len(tensor)}. Each is 1 or the "
                "same."
            )
        if len(tensor) != 1:
            size, first = len(tensor), name
    return size


def stacked(tensors: list[Tensor]) -> tuple[Tensor, int | None]:
    """Tensors of Theseus (1 or batch, *shape), one per block: (blocks, *shape) without a batch axis, or (batch, blocks,
    *shape) and its axis."""
    size = max(len(tensor) for tensor in tensors)
    if size == 1:
        return torch.cat(tensors), None
    return torch.stack([tensor.expand(size, *tensor.shape[1:]) for tensor in tensors], 1), 0


def shared(tensor: Tensor) -> tuple[Tensor, int | None]:
    """A tensor of Theseus (1 or batch, *shape) that all blocks share."""
    return (tensor[0], None) if len(tensor) == 1 else (tensor, 0)
