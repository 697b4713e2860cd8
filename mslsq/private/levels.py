"""Levels of `torch.func` and of forward mode, and the wrappers of their tensors."""

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad

from mslsq.private.modes import is_tracing_or_dispatching


def outside_of_transforms() -> Any:
    """A context in which no `torch.func` transform is running."""
    return temporarily_clear_interpreter_stack()


def transforms_are_active() -> bool:
    """Is a `torch.func` transform running?"""
    return bool(_functorch.get_interpreter_stack())


def forward_modes_are_nested() -> bool:
    """Is a `torch.func` transform of forward mode running inside of another one?"""
    stack = _functorch.get_interpreter_stack() or ()
    return sum(level.key() == _functorch.TransformType.Jvp for level in stack) > 1


def is_differentiated_once_at_most() -> bool:
    """Can at most a first derivative be taken of what is computed now, in reverse mode?

    That is where gradients are off, but for one `vjp`, whose results are not differentiated again. Not where something
    writes down what is computed: that may be differentiated later.
    """
    if forward_level_is_open() or is_tracing_or_dispatching():
        return False
    levels = [level for level in _functorch.get_interpreter_stack() or () if level.key() != _OF_VMAP]
    if not levels:
        return not torch.is_grad_enabled()
    is_derivative = len(levels) == 1 and levels[0].key() == _functorch.TransformType.Grad
    return is_derivative and not _functorch.CGradInterpreterPtr(levels[0]).prevGradMode()


_OF_VMAP = _functorch.TransformType.Vmap


def is_functionalizing() -> bool:
    """Is the innermost `torch.func` transform `functionalize`? It cannot look through a `torch.autograd.Function`."""
    stack = _functorch.get_interpreter_stack()
    return bool(stack) and stack[-1].key() == _functorch.TransformType.Functionalize


def is_wrapped(tensor: Tensor) -> bool:
    """Is this a tensor inside a `torch.func` transform?"""
    return _functorch.is_functorch_wrapped_tensor(tensor)


def has_escaped(tensor: Tensor) -> bool:
    """Has it been wrapped by a `torch.func` transform that has ended since?"""
    if not is_wrapped(tensor):
        return False
    running = {level.level(): level.key() for level in _functorch.get_interpreter_stack() or ()}
    while is_wrapped(tensor):
        if running.get(level_of(tensor)) not in _kinds(tensor):
            return True
        tensor = unwrapped(tensor)
    return False


def _kinds(tensor: Tensor) -> tuple[Any, ...]:
    """The transforms whose wrapper the outermost one can be."""
    kinds = _functorch.TransformType
    if is_batched(tensor):
        return (kinds.Vmap,)
    return (kinds.Grad, kinds.Jvp) if is_differentiated(tensor) else (kinds.Functionalize,)


def is_differentiated(tensor: Tensor) -> bool:
    """Is the outermost wrapper that of a derivative (`grad`, `jvp`, `jacfwd`)?"""
    return _functorch.is_gradtrackingtensor(tensor)


def is_batched(tensor: Tensor) -> bool:
    """Is the outermost wrapper that of `vmap`?"""
    return _functorch.is_batchedtensor(tensor)


def is_batched_by_autograd(tensor: Tensor) -> bool:
    """Is it one of the cotangents of `torch.autograd.grad(..., is_grads_batched=True)`?"""
    return _functorch.is_legacy_batchedtensor(tensor)


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor without its outermost wrapper."""
    return _functorch.get_unwrapped(tensor)


def level_of(tensor: Tensor) -> int:
    """The level of the outermost wrapper."""
    return _functorch.maybe_get_level(tensor)


def batch_dimension(tensor: Tensor) -> int:
    """The axis along which the outermost wrapper, one of `vmap`, maps."""
    return _functorch.maybe_get_bdim(tensor)


def rebatched(inner: Tensor, like: Tensor) -> Tensor:
    """`inner` in a wrapper of `vmap` like the outermost one of `like`."""
    return _functorch._add_batch_dim(inner, batch_dimension(like), level_of(like))


def forward_level_is_open() -> bool:
    """Is a level of `torch.autograd.forward_ad` open?"""
    return forward_ad._current_level >= 0


def forward_mode_again() -> Any:
    """A context with forward mode on, as it is not inside the `jvp` of an `autograd.Function`."""
    return forward_ad._set_fwd_grad_enabled(True)
