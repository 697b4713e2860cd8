"""Derivatives of an operator that PyTorch's autograd can differentiate by itself, outside of its transforms."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mslsq.interop.operators.contract import Backward, Second, Tensors
from mslsq.interop.operators.errors import OperatorError
from mslsq.private import with_autograd

Forward = Callable[..., Tensor | Sequence[Tensor]]


def backward_of(name: str, names: tuple[str, ...], forward: Forward) -> Backward:
    """The `backward` of a contract from the operator's own."""

    def backward(inputs: Tensors, cotangents: Tensors, wanted: Sequence[int]) -> list[Tensor | None]:
        with with_autograd():
            leaves = [x.detach().clone().requires_grad_(k in wanted) for k, x in enumerate(inputs)]
            gradients = _pulled(name, names, forward, leaves, cotangents, wanted, keep=False)
        return _by_input(gradients, wanted, len(inputs))

    return backward


def second_of(name: str, names: tuple[str, ...], forward: Forward) -> Second:
    """The `second` of a contract from the operator's double backward: ∇²f is symmetric, so that the derivative of
    Jᵀg along v is the gradient of ⟨Jᵀg, v⟩."""

    def second(inputs: Tensors, cotangents: Tensors, tangents: Tensors, wanted: Sequence[int]) -> list[Tensor | None]:
        differentiable = [k for k, x in enumerate(inputs) if x.is_floating_point()]
        with with_autograd():
            leaves = [x.detach().clone().requires_grad_(k in differentiable) for k, x in enumerate(inputs)]
            used = [k for k in differentiable if k in wanted or bool((tangents[k] != 0).any())]
            gradients = _pulled(name, names, forward, leaves, cotangents, used, keep=True)
            along = torch.stack([(g * tangents[k]).sum() for g, k in zip(gradients, used, strict=True)]).sum()
            if along.grad_fn is None:
                raise NotImplementedError(
                    f"{name}: its backward cannot be differentiated once more; give second=, or second='differences'."
                )
            results = torch.autograd.grad(along, [leaves[k] for k in wanted], allow_unused=True, materialize_grads=True)
        return _by_input(results, wanted, len(inputs))

    return second


def _pulled(
    name: str,
    names: tuple[str, ...],
    forward: Forward,
    leaves: list[Tensor],
    cotangents: Tensors,
    wanted: Sequence[int],
    keep: bool,
) -> tuple[Tensor, ...]:
    results = forward(*leaves)
    results = (results,) if isinstance(results, Tensor) else tuple(results)
    if not any(one.requires_grad for one in results):
        raise OperatorError(
            f"{name}: backward='autograd' was asked for, but autograd does not see this operator: its result does not "
            "require grad. Give backward= as a function."
        )
    gradients = torch.autograd.grad(
        results, [leaves[k] for k in wanted], cotangents, create_graph=keep, allow_unused=True
    )
    for k, gradient in zip(wanted, gradients, strict=True):
        if gradient is None:
            raise OperatorError(
                f"{name}: autograd finds no way from the result to {names[k]!r}; a derivative of zero would be silent. "
                f"Where it does not depend on {names[k]!r}, detach it before the call."
            )
    return gradients


def _by_input(results: Sequence[Tensor], wanted: Sequence[int], count: int) -> list[Tensor | None]:
    by_input = dict(zip(wanted, results, strict=True))
    return [by_input.get(k) for k in range(count)]
