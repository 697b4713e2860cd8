"""Looking through the levels of `torch.func`: who differentiates a tensor, and the tensor without that.

The wrappers and their order are PyTorch's own business (`torch._C._functorch`); only this file knows them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _autograd, _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad


def constant(tensor: Tensor) -> Tensor:
    """The same numbers with derivative zero at every level, still mapped by every `vmap` that maps the tensor.

    `detach` under a transform detaches from the innermost level alone; and an `autograd.Function` with a derivative
    rule of its own is silently wrong under `jacfwd(jacfwd(...))` (pytorch #197867). So the differentiating wrappers
    are taken off, and the mapping ones put on again.
    """
    return at_the_bottom(tensor, torch.Tensor.detach)


def kept_tensors(arrays: Iterable[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays as tensors that are kept from one call to the next, on a CPU in the same memory: made outside of all
    transforms, which wrap whatever is made inside of them, and whose wrappers are of no use afterwards."""
    with temporarily_clear_interpreter_stack():
        return [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays]


def outside_of_transforms() -> Any:
    """A context in which no `torch.func` transform is running."""
    return temporarily_clear_interpreter_stack()


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Leave aside what the caller does with tensors saved for backward (`torch.utils.checkpoint`, `save_on_cpu`):
    `torch.func.vjp` raises where anybody does. What is saved in here is kept as it is."""
    suspended = []
    if _autograd._saved_tensors_hooks_get_disabled_error_message() is None:  # a transform has none
        while (hooks := _autograd._top_saved_tensors_default_hooks(True)) is not None:
            _autograd._pop_saved_tensors_default_hooks()
            suspended.append(hooks)
    try:
        yield
    finally:
        for pack, unpack in reversed(suspended):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


def transforms_are_active() -> bool:
    """Is a `torch.func` transform running?"""
    return bool(_functorch.get_interpreter_stack())


def is_batched_by_autograd(tensor: Tensor) -> bool:
    """Is this one of many cotangents of `torch.autograd.grad(..., is_grads_batched=True)`? It has a `vmap` of its
    own."""
    return _functorch.is_legacy_batchedtensor(tensor)


def count_transforms(tensors: Iterable[Tensor]) -> int:
    """How many nested derivatives `torch.func` is taking of these tensors."""
    return len(frozenset().union(*(_levels(tensor)[1] for tensor in tensors)))


def backward_may_come(tensor: Tensor) -> bool:
    """Does the tensor underneath all transforms require grad? (`requires_grad` itself is False for a `vmap` inside
    `grad`.)"""
    plain = _plain(tensor)
    return plain.requires_grad and torch.is_grad_enabled()


def belongs_to(tensor: Tensor, mask: Tensor) -> bool:
    """Does the derivative in the tensor belong to the problem of the mask alone?

    Not where a `vmap` that maps the problem does not map the tensor, and somebody outside of that `vmap`
    differentiates it: that derivative is a sum over problems. (Inside of it each problem has a derivative of its own.)
    """
    mapped, differentiated = _levels(tensor)
    if backward_may_come(tensor):
        differentiated = differentiated | {0}
    outermost = min(differentiated, default=0)
    return all(level in mapped or outermost > level for level in _levels(mask)[0])


def has_plain_tangent(tensor: Tensor) -> bool:
    """Does it carry a tangent of `torch.autograd.forward_ad` itself, not of `jvp` or `jacfwd`?"""
    if forward_ad._current_level < 0:
        return False
    with temporarily_clear_interpreter_stack():
        return forward_ad.unpack_dual(_plain(tensor)).tangent is not None


def at_the_bottom(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`function` of the tensor underneath all transforms, constant for those that differentiate, mapped by those that
    map."""
    if _functorch.is_gradtrackingtensor(tensor):
        return at_the_bottom(_functorch.get_unwrapped(tensor), function)
    if _functorch.is_batchedtensor(tensor):
        inner = at_the_bottom(_functorch.get_unwrapped(tensor), function)
        return _functorch._add_batch_dim(inner, _functorch.maybe_get_bdim(tensor), _functorch.maybe_get_level(tensor))
    with temporarily_clear_interpreter_stack():
        return function(tensor)


def _plain(tensor: Tensor) -> Tensor:
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def _levels(tensor: Tensor) -> tuple[frozenset[int], frozenset[int]]:
    """The levels at which a tensor is mapped, and those at which it is differentiated."""
    mapped, differentiated = set(), set()
    while _functorch.is_functorch_wrapped_tensor(tensor):
        kind = differentiated if _functorch.is_gradtrackingtensor(tensor) else mapped
        kind.add(_functorch.maybe_get_level(tensor))
        tensor = _functorch.get_unwrapped(tensor)
    return frozenset(mapped), frozenset(differentiated)
