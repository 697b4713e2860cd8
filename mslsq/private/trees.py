"""Pytrees, for `mslsq.pytree` alone."""

from torch.utils import _pytree as pytree

__all__ = ["pytree"]
