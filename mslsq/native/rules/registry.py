"""The rules by the name of PyTorch's operation, without overload; the modules beside this one fill it."""

from collections.abc import Callable
from typing import Any

RULES: dict[str, Callable[..., Any]] = {}
"""`rule(recorder, *args, **kwargs)` takes an operation's arguments with arrays in place of tensors."""


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the rule of operations of these names."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register
