"""The lane axis: folding what `vmap` maps into it, and calling a function with lanes or lane by lane.

Every tensor has a leading axis of as many entries as there are lanes, or of one, for what is the same in all lanes.
"""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from mslsq.interop.operators.contract import Contract, Tensors
from mslsq.interop.operators.errors import OperatorError
from mslsq.private import with_autograd


def lanes_of(tensors: Sequence[Tensor]) -> int:
    """The number of lanes."""
    return max(len(tensor) for tensor in tensors)


def kind_of(tensors: Sequence[Tensor]) -> Hashable:
    """The shapes of one lane, dtypes and devices."""
    return tuple((tuple(x.shape[1:]), x.dtype, x.device) for x in tensors)


def folded(tensors: Sequence[Tensor], mapped: Sequence[int | None], count: int) -> list[Tensor]:
    """With the axes that `vmap` maps as the outer part of the lane axis; what was the same in all lanes stays so."""
    moved = [x if axis is None else x.movedim(axis, 0) for x, axis in zip(tensors, mapped, strict=True)]
    lanes = max(x.shape[0 if axis is None else 1] for x, axis in zip(moved, mapped, strict=True))
    result = []
    for x, axis in zip(moved, mapped, strict=True):
        if axis is None and len(x) == 1:
            result.append(x)
            continue
        if axis is None:
            x = x[None]
        if lanes > 1 or axis is None:
            x = x.expand(count, lanes, *x.shape[2:])
        result.append(x.reshape(count * lanes, *x.shape[2:]))
    return result


def unfolded(tensors: Sequence[Tensor], count: int) -> Tensors:
    """The outer part of the lane axis as an axis of its own again, in front."""
    return tuple(x.reshape(count, len(x) // count, *x.shape[1:]) for x in tensors)


def called(
    contract: Contract,
    function: Callable[..., Sequence[Tensor]],
    groups: Sequence[Sequence[Tensor]],
    owners: Sequence[Sequence[int]],
    pieces: int = 1,
) -> list[list[Tensor]]:
    """The results of `function`, called on as few pieces of the lanes as may be, at least `pieces`.

    Args:
        function: takes one tuple for each of `groups`, in the form that the contract gives its tensors.
        groups: tensors with a lane axis (inputs, cotangents, tangents).
        owners: for each tensor of `groups` the input whose form it has; -1 for one that every lane has its own of.

    Returns:
        One list of tensors for each piece. A tensor without a lane axis has got one of length one.
    """
    lanes = lanes_of([x for group in groups for x in group])
    has_own_lanes = [not contract.one_lane and owner not in contract.shared for group in owners for owner in group]
    alone = any(len(x) > 1 and not own for x, own in zip(_all(groups), has_own_lanes, strict=True))
    pieces = lanes if alone or contract.one_lane else pieces
    width = lanes // pieces
    results = []
    for start in range(0, lanes, width):
        given = [
            tuple(
                _piece(x, start, width, not contract.one_lane and owner not in contract.shared)
                for x, owner in zip(group, group_owners, strict=True)
            )
            for group, group_owners in zip(groups, owners, strict=True)
        ]
        with with_autograd(), torch.no_grad():  # the user's code may differentiate something itself
            try:
                results.append(list(function(*given)))
            except (IndexError, RuntimeError, TypeError, ValueError) as error:
                if not isinstance(error, OperatorError):
                    error.add_note(_where(contract, given[0]))
                raise
    return results


def _where(contract: Contract, given: Tensors) -> str:
    """In which operator an error was raised, and what it was called with."""
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(contract.inputs, given, strict=True))
    lead = "" if contract.one_lane else " (lanes='batch': the leading axis is that of the lanes)"
    return f"In the operator {contract.name}, called with {shapes}{lead}."


def _piece(x: Tensor, start: int, width: int, has_lanes: bool) -> Tensor:
    """Contiguous memory, here and nowhere else: foreign code reads it by its own arithmetic."""
    x = x if len(x) == 1 else x[start : start + width]
    return (x.expand(width, *x.shape[1:]) if has_lanes else x[0]).detach().contiguous()


def _all(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [x for group in groups for x in group]


def as_tensors(contract: Contract, what: str, given: object) -> list[Tensor]:
    """The results of one of the functions as a list.

    Raises:
        OperatorError: they are no tensors.
    """
    results = [given] if isinstance(given, Tensor) else list(given) if isinstance(given, tuple | list) else None
    if results is None or not results or not all(isinstance(one, Tensor) for one in results):
        raise OperatorError(f"{contract.name}: {what} must return a tensor or a tuple of tensors, not {given!r}.")
    return results


def summed_to(gradient: Tensor, count: int) -> Tensor:
    """The gradients of neighbouring lanes that share an input, added up: `count` are left."""
    if len(gradient) == count:
        return gradient
    return gradient.reshape(count, len(gradient) // count, *gradient.shape[1:]).sum(1)


def joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
