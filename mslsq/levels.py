"""Looking through the levels of `torch.func`: which derivatives are taken of a tensor, and the tensor without them.

The wrappers and their order are PyTorch's own business: no other file looks at them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from mslsq.private import (
    forward_level_is_open,
    is_batched,
    is_differentiated,
    is_wrapped,
    level_of,
    outside_of_transforms,
    rebatched,
    transforms_are_active,
    unwrapped,
    without_dispatch_modes,
)


def constant(tensor: Tensor) -> Tensor:
    """The same numbers with derivative zero at every level, still mapped by every `vmap` that maps the tensor.

    `detach` under a transform detaches from the innermost level alone; and an `autograd.Function` with a derivative
    rule of its own is silently wrong under `jacfwd(jacfwd(...))` (pytorch #197867). So the differentiating wrappers
    are taken off, and the mapping ones put on again.
    """
    return at_the_bottom(tensor, torch.Tensor.detach) if transforms_are_active() else tensor.detach()


def modes_of_a_residual() -> Any:
    """The modes in which the code of a user is always called: gradients on, inference mode off.

    Reverse mode calls it with gradients on whatever the caller set, a value is evaluated with them off. A residual that
    asks (`torch.is_grad_enabled()`, also in a library of its own) would be two functions, and a graph kept of one of
    them would answer for the other. Nothing it is given requires grad: this builds no graph.
    """
    if torch.is_inference_mode_enabled():
        return _outside_of_inference_mode()
    return nullcontext() if torch.is_grad_enabled() else torch.enable_grad()


@contextmanager
def _outside_of_inference_mode() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def python_numbers(tensor: Tensor) -> Any:
    """`tensor.tolist()`, also inside of a derivative: there torch 2.9 puts a wrapper around whatever tensor is given,
    reads the memory of the wrapper, which has none, and raises. What a `vmap` maps has no such list: that raises."""
    below = constant(tensor)
    with outside_of_transforms():
        return below.tolist()


def largest_number(tensor: Tensor) -> float:
    """The largest entry of all lanes, also while a graph is recorded; for what guards itself against other numbers."""
    with outside_of_transforms(), without_dispatch_modes():
        plain = _plain(tensor).detach()
        return plain.max().item() if plain.numel() else 0


def kept_tensors(arrays: Iterable[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays as tensors that are kept from one call to the next, on a CPU in the same memory: made outside of all
    transforms, which wrap whatever is made inside of them, and whose wrappers are of no use afterwards."""
    with outside_of_transforms():
        return [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays]


def count_transforms(tensors: Iterable[Tensor]) -> int:
    """How many nested derivatives `torch.func` is taking of these tensors."""
    if not transforms_are_active():
        return 0
    return len(frozenset().union(*(_levels(tensor)[1] for tensor in tensors)))


def backward_may_come(tensor: Tensor) -> bool:
    """Does the tensor underneath all transforms require grad? (`requires_grad` itself is False for a `vmap` inside
    `grad`.)"""
    return torch.is_grad_enabled() and _plain(tensor).requires_grad


def belongs_to(tensor: Tensor, mask: Tensor) -> bool:
    """Does the derivative in the tensor belong to the problem of the mask alone?

    Not where a `vmap` that maps the problem does not map the tensor, and a derivative is taken of it outside of that
    `vmap`: that derivative is a sum over problems. (Inside of it each problem has a derivative of its own.)
    """
    mapped, differentiated = _levels(tensor)
    if backward_may_come(tensor):
        differentiated = differentiated | {0}
    outermost = min(differentiated, default=0)
    return all(level in mapped or outermost > level for level in _levels(mask)[0])


def has_plain_tangent(tensor: Tensor) -> bool:
    """Does it carry a tangent of `torch.autograd.forward_ad` itself, not of `jvp` or `jacfwd`?"""
    if not forward_level_is_open():
        return False
    with outside_of_transforms():
        return forward_ad.unpack_dual(_plain(tensor)).tangent is not None


def at_the_bottom(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`function` of the tensor underneath all transforms, constant for those that differentiate, mapped by those that
    map."""
    if is_differentiated(tensor):
        return at_the_bottom(unwrapped(tensor), function)
    if is_batched(tensor):
        return rebatched(at_the_bottom(unwrapped(tensor), function), like=tensor)
    with outside_of_transforms():
        return function(tensor)


def _plain(tensor: Tensor) -> Tensor:
    while is_wrapped(tensor):
        tensor = unwrapped(tensor)
    return tensor


def _levels(tensor: Tensor) -> tuple[frozenset[int], frozenset[int]]:
    """The levels at which a tensor is mapped, and those at which it is differentiated."""
    mapped, differentiated = set(), set()
    while is_wrapped(tensor):
        kind = differentiated if is_differentiated(tensor) else mapped
        kind.add(level_of(tensor))
        tensor = unwrapped(tensor)
    return frozenset(mapped), frozenset(differentiated)
