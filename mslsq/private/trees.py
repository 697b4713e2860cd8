"""Pytrees, for `mslsq.pytree` alone."""

from typing import Any

from torch.utils import _pytree as pytree

__all__ = ["children_of", "pytree"]


def children_of(structure: Any) -> list[Any]:
    """The structures of the children of a node; PyTorch 2.9 has them as an attribute, later versions by a method."""
    return structure.children() if hasattr(structure, "children") else structure.children_specs
