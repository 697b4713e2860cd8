"""Modes: what sees the operations that run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import _pop_mode_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack

from mslsq.private.compilers import spare_dynamo


class DispatchMode(TorchDispatchMode):
    """A `TorchDispatchMode` that does not import Dynamo when it is first used, as those of PyTorch do."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        spare_dynamo(cls.__torch_dispatch__)


@contextmanager
def without_modes() -> Iterator[None]:
    """No mode of any kind is active: tensors are real, and nothing is written down."""
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        for _ in range(torch._C._len_torch_function_stack()):
            stack.enter_context(_pop_mode_temporarily())
        yield


def dispatch_modes() -> list[Any]:
    """The dispatch modes that are active, the innermost last."""
    return _get_current_dispatch_mode_stack()


def without_dispatch_modes() -> Any:
    """A context in which no dispatch mode is active."""
    return _disable_current_modes()


def is_tracing_or_dispatching() -> bool:
    """Is a `torch.jit` trace or a dispatch mode (`make_fx`, fake tensors) active?"""
    return torch._C._get_tracing_state() is not None or bool(torch._C._len_torch_dispatch_stack())


def function_modes_are_active() -> bool:
    """Does a mode of PyTorch, such as `torch.set_default_device`, see the functions that are called?"""
    return bool(torch._C._len_torch_function_stack())
