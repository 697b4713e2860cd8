"""The pullback of a batch in which some problems have no derivative: it is computed as if each were one that has."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mslsq.adjoint.attachment import per_entry
from mslsq.linearize.blocks import Values
from mslsq.problem.system import Inputs

if TYPE_CHECKING:
    from mslsq.adjoint.attachment import Attachment
    from mslsq.adjoint.pullback import Way


def can_be_spared(attachment: "Attachment") -> bool:
    """Have some problems a derivative beside others that have none, and do their numbers fit in the others' place?"""
    if not attachment.asks or not bool(attachment.answer.differentiable.any()):
        return False
    batched = zip(attachment.inputs, attachment.call.task.batched, strict=True)
    return all(_is_dense(x) for given, names in batched for name, x in given.items() if name in names)


def sparing_failed(way: "Way", attachment: "Attachment", fill: float) -> "Way":
    """That pullback for a batch in which some problems failed: `fill` for the data that are theirs alone, and nothing
    for what they share.

    In the place of each is one that has a derivative, with no cotangent: zero times what there may be at a point where
    a solve has failed would be NaN.
    """
    failed, batched = attachment.failed, attachment.call.task.batched
    lanes = failed.nonzero()[:, 0]
    instead = int((~failed).nonzero()[0, 0])

    def spared(x: Tensor) -> Tensor:
        x = x.detach().clone()
        x[lanes] = x[instead].clone()
        return x

    def found(values: Values, inputs: tuple[Inputs, ...], towards: Values) -> list[Tensor]:
        own = tuple(
            [
                {name: spared(x) if name in names else x for name, x in given.items()}
                for given, names in zip(inputs, batched, strict=True)
            ]
        )
        cotangents = tuple([torch.where(per_entry(failed, g), 0, g) for g in towards])
        pulled = iter(way(tuple(map(spared, values)), own, cotangents))
        wanted = [
            name in names
            for given, names in zip(attachment.inputs, batched, strict=True)
            for name, x in given.items()
            if x.requires_grad
        ]
        return [_filled(next(pulled), failed, fill) if is_own else next(pulled) for is_own in wanted]

    return found


def _filled(gradient: Tensor, failed: Tensor, fill: float) -> Tensor:
    return torch.where(per_entry(failed, gradient), fill, gradient)


def _is_dense(x: Tensor) -> bool:
    """Would a copy have the same strides? Graphs are recorded for these."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
