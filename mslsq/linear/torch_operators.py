"""Kernels as operators of PyTorch, so that a step that calls them can be recorded, replayed and compiled.

What `torch.library.custom_op` does, without Dynamo: its wrapper imports that at the first call, two seconds of a
process that has a pose graph to solve and nothing to compile.
"""

from collections.abc import Callable
from typing import Any

import torch

from mslsq.private import enter_directly

_LIBRARY = torch.library.Library("mslsq", "DEF")

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""By the name of an operator, what it was made of."""


class Registered:
    """A function of tensors and lists as the operator `mslsq::name`; it changes no argument and has no derivative."""

    def __init__(self, name: str, function: Callable[..., Any]):
        self.name = f"mslsq::{name}"
        _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()))
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        self._overload = getattr(torch.ops.mslsq, name).default
        enter_directly(self._overload, function)
        FUNCTIONS[self.name] = function

    def __call__(self, *args: Any) -> Any:
        return self._overload(*args)

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Shapes and dtypes of the result, for a trace without numbers.

        `torch.library.register_fake` comes to the same, but looks its caller's source up: a twentieth of our import.
        """
        _LIBRARY.impl(self.name.partition("::")[2], function, "Meta")
        return function


def registered(name: str) -> Callable[[Callable[..., Any]], Registered]:
    """Decorator: the function becomes the operator of that name; its annotations are the schema."""
    return lambda function: Registered(name, function)
