"""A solve inside a `torch.compile`d model: a clean graph break, outside of everything Dynamo traces."""

from collections.abc import Callable
from typing import TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., object])

REASON = (
    "a least-squares solve runs outside compiled regions: its loop stops early and its derivatives are attached by "
    "rules that Dynamo drops. Without fullgraph=True it is one graph break; LevenbergMarquardt(compile=True) compiles "
    "the steps themselves."
)


def outside_compiled_regions(function: F) -> F:
    """The function, which Dynamo does not look into.

    Traced, the front doors would end in dozens of graphs and lose the derivative of `autograd.Function`s inside
    `torch.func` (pytorch #192985).
    """
    return cast(F, torch.compiler.disable(function, reason=REASON))
