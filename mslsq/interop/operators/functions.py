"""The derivatives of a foreign operator under every transform: `torch.autograd.Function`s whose derivatives are again
such Functions, up to the second order.

Operators alone would do less: PyTorch gives a `custom_op` zeros for a tangent under `torch.func.jvp`, without a word.
Where a rule is missing, NotImplementedError says which.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mslsq.interop.operators.lanes import folded, unfolded
from mslsq.interop.operators.registered import Registered
from mslsq.private import transforms_are_active
from mslsq.tracing.operators import REPLACEMENTS


class Forward(Function):
    """The values. apply(registered, *inputs)."""

    @staticmethod
    def forward(registered: Registered, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(registered("forward", inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.registered, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        inputs = ctx.saved_tensors
        gradients = _pulled(ctx.registered, inputs, cotangents, _wanted(ctx, 1, inputs))
        return None, *gradients

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return _pushed(ctx.registered, ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: Any, registered: Registered, *inputs: Tensor) -> Any:
        results = Forward.apply(registered, *folded(inputs, in_dims[1:], info.batch_size))
        return _unfolded(results, info.batch_size)


class Backward(Function):
    """Jᵀ·cotangents for the wanted inputs.
    apply(registered, wanted, groups, number of inputs, *inputs, *cotangents)."""

    @staticmethod
    def forward(registered: Registered, wanted: Any, groups: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(registered("backward", tensors[:count], tensors[count:], wanted, groups))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.registered, ctx.wanted, ctx.groups, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor) -> Any:
        inputs, cotangents = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        by_input: list[Tensor | None] = [None] * ctx.count
        for k, direction in zip(ctx.wanted, directions, strict=True):
            by_input[k] = direction
        wanted = _wanted(ctx, 4, inputs)
        moved, tangents = _moved(by_input)
        seconds = _bent(ctx.registered, inputs, cotangents, moved, tangents, wanted, [len(inputs[k]) for k in wanted])
        needs_values = any(ctx.needs_input_grad[4 + ctx.count :])
        values = _pushed(ctx.registered, inputs, by_input) if needs_values else [None] * len(cotangents)
        return None, None, None, None, *_spread(seconds, wanted, ctx.count), *values

    @staticmethod
    def jvp(ctx: Any, _r: None, _w: None, _g: None, _c: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        inputs, cotangents = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        moved, along = _moved(tangents[: ctx.count])
        parts = []
        if moved:
            parts.append(_bent(ctx.registered, inputs, cotangents, moved, along, ctx.wanted, ctx.groups))
        if any(tangent is not None for tangent in tangents[ctx.count :]):
            changed = [_or_zeros(t, x) for t, x in zip(tangents[ctx.count :], cotangents, strict=True)]
            parts.append(Backward.apply(ctx.registered, ctx.wanted, ctx.groups, ctx.count, *inputs, *changed))
        return tuple(torch.stack(terms).sum(0) for terms in zip(*parts, strict=True))

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, registered: Registered, wanted: Any, groups: Any, count: int, *tensors: Tensor
    ) -> Any:
        lanes = folded(tensors, in_dims[4:], info.batch_size)
        wider = [info.batch_size * group for group in groups]
        return _unfolded(Backward.apply(registered, wanted, wider, count, *lanes), info.batch_size)


class Tangent(Function):
    """J·tangents. apply(registered, moved, number of inputs, *inputs, *tangents of the moved ones)."""

    @staticmethod
    def forward(registered: Registered, moved: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(registered("jvp", tensors[:count], tensors[count:], moved))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.registered, ctx.moved, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        inputs, tangents = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        wanted = _wanted(ctx, 3, inputs)
        groups = [len(inputs[k]) for k in wanted]
        seconds = _bent(ctx.registered, inputs, cotangents, ctx.moved, tangents, wanted, groups)
        gradients: Any = [None] * len(tangents)
        if any(ctx.needs_input_grad[3 + ctx.count :]):
            _look_for(ctx.registered, "backward")
            widths = [len(tangent) for tangent in tangents]
            gradients = Backward.apply(ctx.registered, ctx.moved, widths, ctx.count, *inputs, *cotangents)
        return None, None, None, *_spread(seconds, wanted, ctx.count), *gradients

    @staticmethod
    def jvp(ctx: Any, _r: None, _m: None, _c: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        inputs, along = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if any(tangent is not None for tangent in tangents[: ctx.count]):
            raise NotImplementedError(
                f"{ctx.registered.contract.name} has no second derivative by forward mode twice (jacfwd of jacfwd): "
                "take torch.func.hessian, or reverse mode outside or inside."
            )
        changed = [_or_zeros(t, x) for t, x in zip(tangents[ctx.count :], along, strict=True)]
        return Tangent.apply(ctx.registered, ctx.moved, ctx.count, *inputs, *changed)

    @staticmethod
    def vmap(info: Any, in_dims: Any, registered: Registered, moved: Any, count: int, *tensors: Tensor) -> Any:
        lanes = folded(tensors, in_dims[3:], info.batch_size)
        return _unfolded(Tangent.apply(registered, moved, count, *lanes), info.batch_size)


class Second(Function):
    """The derivative of `Backward` along tangents of the inputs.
    apply(registered, moved, wanted, groups, number of inputs, number of results, *inputs, *cotangents, *tangents)."""

    @staticmethod
    def forward(
        registered: Registered, moved: Any, wanted: Any, groups: Any, count: int, results: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        parts = tensors[:count], tensors[count : count + results], tensors[count + results :]
        return tuple(registered("second", *parts, moved, wanted, groups))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.registered = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise _no_third(ctx.registered)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise _no_third(ctx.registered)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        registered: Registered,
        moved: Any,
        wanted: Any,
        groups: Any,
        count: int,
        results: int,
        *tensors: Tensor,
    ) -> Any:
        lanes = folded(tensors, in_dims[6:], info.batch_size)
        wider = [info.batch_size * group for group in groups]
        return _unfolded(Second.apply(registered, moved, wanted, wider, count, results, *lanes), info.batch_size)


def connect(registered: Registered) -> None:
    """The bare operators get the same derivatives, where a graph that was recorded holds them."""

    def forward(inputs: Sequence[Tensor]) -> list[Tensor]:
        return list(Forward.apply(registered, *inputs))

    def backward(inputs: Any, cotangents: Any, wanted: Any, groups: Any) -> list[Tensor]:
        return list(Backward.apply(registered, wanted, groups, len(inputs), *inputs, *cotangents))

    def jvp(inputs: Any, tangents: Any, moved: Any) -> list[Tensor]:
        return list(Tangent.apply(registered, moved, len(inputs), *inputs, *tangents))

    def second(inputs: Any, cotangents: Any, tangents: Any, moved: Any, wanted: Any, groups: Any) -> list[Tensor]:
        counts = len(inputs), len(cotangents)
        return list(Second.apply(registered, moved, wanted, groups, *counts, *inputs, *cotangents, *tangents))

    for role, rule in {"forward": forward, "backward": backward, "jvp": jvp, "second": second}.items():
        REPLACEMENTS[registered.overloads[role]] = rule
        registered.differentiate(role, _outside_of_transforms(registered, rule))


def _outside_of_transforms(registered: Registered, rule: Any) -> Any:
    def differentiated(*arguments: Any) -> list[Tensor]:
        if transforms_are_active():
            raise NotImplementedError(
                f"The bare operator of {registered.contract.name} inside a transform: call what "
                "mslsq.interop.operators.wrap has returned."
            )
        return rule(*arguments)

    return differentiated


def _pulled(registered: Registered, inputs: Any, cotangents: Any, wanted: list[int]) -> list[Tensor | None]:
    """Jᵀ·cotangents, one per input."""
    _look_for(registered, "backward")
    groups = [len(inputs[k]) for k in wanted]
    gradients = Backward.apply(registered, wanted, groups, len(inputs), *inputs, *cotangents) if wanted else ()
    return _spread(gradients, wanted, len(inputs))


def _pushed(registered: Registered, inputs: Any, tangents: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """J·tangents."""
    _look_for(registered, "jvp")
    moved, along = _moved(tangents)
    return Tangent.apply(registered, moved, len(inputs), *inputs, *along)


def _bent(
    registered: Registered, inputs: Any, cotangents: Any, moved: list[int], along: Any, wanted: Any, groups: Any
) -> tuple[Tensor, ...]:
    """Σ cotangentᵢ ∇²fᵢ · tangents."""
    if not wanted:
        return ()
    _look_for(registered, "second")
    counts = len(inputs), len(cotangents)
    return Second.apply(registered, moved, wanted, groups, *counts, *inputs, *cotangents, *along)


def _look_for(registered: Registered, rule: str) -> None:
    """
    Raises:
        NotImplementedError: the contract has no such rule.
    """
    if getattr(registered.contract, rule) is None:
        raise NotImplementedError(f"{registered.contract.name} has {registered.contract.missing[rule]}.")


def _no_third(registered: Registered) -> NotImplementedError:
    return NotImplementedError(f"{registered.contract.name} has no third derivative.")


def _wanted(ctx: Any, first: int, inputs: Sequence[Tensor]) -> list[int]:
    return [k for k, x in enumerate(inputs) if ctx.needs_input_grad[first + k] and x.is_floating_point()]


def _moved(tangents: Sequence[Tensor | None]) -> tuple[list[int], list[Tensor]]:
    """Which inputs have a tangent, and those."""
    given = [(k, tangent) for k, tangent in enumerate(tangents) if tangent is not None]
    return [k for k, _ in given], [tangent for _, tangent in given]


def _spread(gradients: Sequence[Tensor], wanted: Sequence[int], count: int) -> list[Tensor | None]:
    by_input = dict(zip(wanted, gradients, strict=True))
    return [by_input.get(k) for k in range(count)]


def _or_zeros(tangent: Tensor | None, like: Tensor) -> Tensor:
    return like * 0 if tangent is None else tangent


def _unfolded(results: Sequence[Tensor], count: int) -> Any:
    return unfolded(results, count), (0,) * len(results)
