"""Components of a tangent by number or name, and which sets of them can be held while the others move."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.manifolds.space import Space
from mslsq.private import outside_of_transforms
from mslsq.problem.errors import IndexRangeError, ProblemError, unknown_name

Components = Any  # int, str, slice, sequence of int or str, mask of shape (tangent,), or None

HELD = 1e-9
"""What is held may change by that much in two steps of order one: rounding is 1e-15, turning and moving changes 0.1."""


def checked_components(name: str, space: Space, components: Components) -> tuple[int, ...]:
    """The numbers of components of the tangent, ascending; all of them for None.

    Args:
        name: of the variable, for errors.

    Raises:
        IndexRangeError: a number that the tangent does not have, or no number.
        ProblemError: a name that it does not have; no component at all.
    """
    dim = space.tangent_dim
    if components is None:
        return tuple(range(dim))
    if isinstance(components, slice):
        numbers = list(range(dim))[components]
    elif isinstance(components, (str, int)):
        numbers = _numbers(name, space, components)
    else:
        entries = components.tolist() if isinstance(components, Tensor | np.ndarray) else list(components)
        entries = entries if isinstance(entries, list) else [entries]
        if entries and all(isinstance(entry, bool) for entry in entries):
            if len(entries) != dim:
                raise IndexRangeError(
                    f"Variable {name!r}: a mask of components must have one entry per dimension of the tangent of "
                    f"{space.name}, {dim}, not {len(entries)}."
                )
            entries = [number for number, held in enumerate(entries) if held]
        numbers = [number for entry in entries for number in _numbers(name, space, entry)]
    if not numbers:
        raise ProblemError(
            f"Variable {name!r}: components={components!r} names no component. Leave it out to hold whole blocks."
        )
    return tuple(sorted(set(numbers)))


def _numbers(name: str, space: Space, entry: Any) -> list[int]:
    dim = space.tangent_dim
    if isinstance(entry, str):
        if entry not in space.tangent_parts:
            raise unknown_name(f"component of variable {name!r}", entry, space.tangent_parts)
        part = space.tangent_parts[entry]
        return list(range(part.start, part.stop))
    if isinstance(entry, bool) or not isinstance(entry, int) or not -dim <= entry < dim:
        raise IndexRangeError(
            f"Variable {name!r}: the tangent of {space.name} has components 0 to {dim - 1}; {entry!r} is none of them."
        )
    return [entry % dim]


def check_can_be_held(name: str, space: Space, free: Tensor) -> None:
    """Refuses components that do not stay: two steps along the free ones must be one step along the free ones.

    Where that is so, the blocks that can be reached from a start are those `value` with `start.local(value)` zero in
    the components that are held, whatever the steps (a subgroup moves them); a minimum among these is well defined.
    Where it is not, steps lead out of them, and the "solution" depends on the way there.

    Args:
        name: of the variable.
        free: (count, tangent) bool, the components that move.

    Raises:
        ProblemError: such components; it names them and what moves.
    """
    if space.is_euclidean:
        return
    for pattern in torch.unique(free, dim=0):
        if bool(pattern.all()) or not bool(pattern.any()):
            continue
        drift = _drift(space, pattern)
        if bool((drift > HELD).any()):
            held = (~pattern).nonzero()[:, 0].tolist()
            moved = (drift > HELD).nonzero()[:, 0].tolist()
            raise ProblemError(
                f"Variable {name!r}: components {held} of the tangent of {space.name} cannot be held while "
                f"{pattern.nonzero()[:, 0].tolist()} move: {moved} would change after two steps. Tangents are in the "
                "frame of the block itself, which turns. Hold the rotation too, or that part of it which mixes them "
                "(of SE3 [2, 3, 4] leaves motions in the plane of the start), or state the variable as a product, "
                '{"translation": mslsq.Euclidean(3), "rotation": mslsq.SO3}, whose translation is in the frame of the '
                "world."
            )


def _drift(space: Space, free: Tensor) -> Tensor:
    """(tangent,) How much each component that is held changes by two steps along the others, from random elements."""
    with outside_of_transforms(), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        start = space.random(8, generator=generator, dtype=torch.float64, device="cpu")
        first, second = (
            0.7 * torch.randn(2, 8, space.tangent_dim, generator=generator, dtype=torch.float64, device="cpu") * free
        )
        change = space.local(start, space.retract(space.retract(start, first), second))
    return torch.where(free, 0, change.abs().amax(0))
