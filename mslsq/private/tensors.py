"""Tensors: how often they were written, and how they are made."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor


def version_of(tensor: Tensor) -> int:
    """How often a tensor has been written to. Inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def empty_maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Callable[[], Tensor]:
    """What makes a tensor on the CPU whose numbers are to be written: by Inductor's own entry, in half of the time."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    fast = getattr(guards, "_empty_strided_cpu", None)
    if fast is None:
        return functools.partial(torch.empty_strided, shape, strides, dtype=dtype)
    return functools.partial(fast, shape, strides, dtype)


def is_lazy_zero(tensor: Tensor) -> bool:
    """Is it one of PyTorch's tensors of zeros that have no memory?"""
    return tensor._is_zerotensor()
