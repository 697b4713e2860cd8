"""A solve inside a `torch.compile`d model: a clean graph break, outside of everything Dynamo traces."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from mslsq.private import (
    FakeTensor,
    derivatives_in_inference_mode,
    dynamo_may_look,
    hidden_from_dynamo,
    torch_func_leaves_inference_mode,
)

F = TypeVar("F", bound=Callable[..., object])

REASON = (
    "a least-squares solve runs outside compiled regions: its loop stops early and its derivatives are attached by "
    "rules that Dynamo drops. Without fullgraph=True it is one graph break; LevenbergMarquardt(compile=True) compiles "
    "the steps themselves. To export one with a fixed number of steps: torch.export.export(..., strict=False) of a "
    "LeastSquaresLayer, or mslsq.interop.export."
)


class ExportError(ValueError):
    """A solve or a module cannot be exported as it is; the message says why and what to change."""


def refuse_fake_tensors(tensor: Tensor) -> None:
    """A solve that `torch.export` runs on fake tensors ends in an error of its own about symbols: say it in words."""
    if torch.compiler.is_exporting() and isinstance(tensor, FakeTensor):
        raise ExportError(
            "torch.export is running a solve on tensors without numbers, but a solve reads some when it plans its "
            "structure. Put it into a LeastSquaresLayer with solver=LevenbergMarquardt(max_steps=k, early_stop=False), "
            "or export the module with mslsq.interop.export(module, args)."
        )


def outside_compiled_regions(function: F) -> F:
    """The function, which Dynamo does not look into.

    Dynamo takes two seconds to import, and compiling imports it: until then, and outside of what is compiled, this is
    the function itself (what PyTorch wraps around it takes two microseconds, cold forty).
    Traced, the front doors would end in dozens of graphs and lose the derivative of `autograd.Function`s inside
    `torch.func` (pytorch #192985).

    In inference mode the derivatives of torch 2.9 are zero: there it is left for as long as the function runs.
    """
    disabled: list[Callable[..., object]] = []

    @functools.wraps(function)
    def outside(*args: Any, **options: Any) -> object:
        if torch.is_inference_mode_enabled() and not torch_func_leaves_inference_mode():
            with derivatives_in_inference_mode():
                return outside(*args, **options)
        if not dynamo_may_look():
            return function(*args, **options)
        if not disabled:
            disabled.append(torch.compiler.disable(function, reason=REASON))
        return disabled[0](*args, **options)

    hidden_from_dynamo(outside, REASON)
    return cast(F, outside)
