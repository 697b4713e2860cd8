"""Looking through the levels of `torch.func`: who differentiates a tensor, and the tensor without that.

The wrappers and their order are PyTorch's own business (`torch._C._functorch`); only this file knows them.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack


def anybody_differentiates(tensors: Iterable[Tensor]) -> bool:
    """Is one of the tensors tracked by backward, by `grad`/`vjp`/`jacrev` or by `jvp`/`jacfwd`, at any level?

    `requires_grad` alone does not tell: it is False for a `vmap` inside `grad`.
    """
    return any(_is_tracked(tensor) for tensor in tensors)


def _is_tracked(tensor: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_gradtrackingtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad and torch.is_grad_enabled()


def constant(tensor: Tensor) -> Tensor:
    """The same numbers with derivative zero at every level, still mapped by every `vmap` that maps the tensor.

    `detach` under a transform detaches from the innermost level alone; and an `autograd.Function` with a derivative
    rule of its own is silently wrong under `jacfwd(jacfwd(...))` (pytorch #197867). So the differentiating wrappers
    are taken off, and the mapping ones put on again.
    """
    if _functorch.is_gradtrackingtensor(tensor):
        return constant(_functorch.get_unwrapped(tensor))
    if _functorch.is_batchedtensor(tensor):
        inner = constant(_functorch.get_unwrapped(tensor))
        return _functorch._add_batch_dim(inner, _functorch.maybe_get_bdim(tensor), _functorch.maybe_get_level(tensor))
    with temporarily_clear_interpreter_stack():
        return tensor.detach()


def transforms_are_active() -> bool:
    """Is a `torch.func` transform running?"""
    return bool(_functorch.get_interpreter_stack())


def count_levels(tensors: Iterable[Tensor]) -> int:
    """How many nested derivatives are being taken of these tensors: one per level of `torch.func`, one for
    `backward`."""
    levels: set[int] = set()
    for tensor in tensors:
        while _functorch.is_functorch_wrapped_tensor(tensor):
            if _functorch.is_gradtrackingtensor(tensor):
                levels.add(_functorch.maybe_get_level(tensor))
            tensor = _functorch.get_unwrapped(tensor)
        if tensor.requires_grad and torch.is_grad_enabled():
            levels.add(0)
    return len(levels)
