"""Do transforms give what PyTorch's plain reverse mode gives? Residuals, Jacobians, Hessians and mixed derivatives of a
few lanes are compared.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mslsq.linearize import independent
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.sample import Sample
from mslsq.native.operator import SecondOrder
from mslsq.private import jvp
from mslsq.problem.system import Inputs
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.tracing.reading.exchange import UncollectedTensorError, nodes_of


class DerivativeMismatchError(RuntimeError):
    """No way of differentiating a residual gives what PyTorch's plain reverse mode gives."""


class NonDeterministicResidualError(RuntimeError):
    """Two evaluations of a residual at one point differ."""


CANCELLED = 1e5
"""Units in the last place of the numbers that a derivative is a sum of, which may cancel in it."""


def compare_residual(block: BlockTerm, residual: Tensor, alone: Tensor) -> None:
    """Compare the residual that comes with a Jacobian with the one that comes without.

    Raises:
        DerivativeMismatchError: they differ.
    """
    if not _agree(residual, alone, alone.abs()):
        raise DerivativeMismatchError(f"two residuals of {block.term.name!r}")


def compare_jacobian(sample: Sample, block: BlockTerm, residual: Tensor, jacobian: Tensor) -> str:
    """Compare with plain reverse mode; a note where nothing could be compared.

    Raises:
        DerivativeMismatchError: they differ.
    """
    u = independent.irregular(residual.shape[1], residual)
    pulled = block.way.layout.pulled(jacobian, u[None, :, None])
    size = block.way.layout.pulled(jacobian.abs(), u.abs()[None, :, None])
    lanes = list(sample.each())
    found = independent.pullbacks(sample.block, [(storages, inputs) for _, storages, inputs in lanes], u, True)
    for ((problem, lane), _, _), (r, expected) in zip(lanes, found, strict=True):
        place = (problem, slice(None), lane)
        if r is None or expected is None:  # an operator without a derivative in reverse mode
            return _compare_with_differences(sample, block, residual, jacobian)
        if not (_agree(residual[place], r, r.abs()) and _agree(pulled[place], expected, size[place])):
            raise DerivativeMismatchError(f"wrong derivatives of {block.term.name!r}")
    return ""


def compare_program(sample: Sample, block: BlockTerm) -> None:
    """Compare the native program of a term with what its transforms give.

    Raises:
        DerivativeMismatchError: they differ.
    """
    with TRANSFORM_LOCK, torch.no_grad():
        expected = sample.linearizations()
        native = sample.going(block)
        found, alone = native.linearizations(), native.residuals()
    for own, right in zip((*found, alone), (*expected, expected[0]), strict=True):
        if not _agree(own, right, right.abs()):
            raise DerivativeMismatchError(f"the native program of {block.term.name!r}")


def _compare_with_differences(sample: Sample, block: BlockTerm, residual: Tensor, jacobian: Tensor) -> str:
    """The same by central differences."""
    unchecked = f"not checked: the Jacobian of {block.term.name!r}, which plain reverse mode cannot take"
    v = independent.irregular(sum(block.tangents), residual)
    pushed = block.way.layout.pushed(jacobian, v[None, :, None])
    size = block.way.layout.pushed(jacobian.abs(), v.abs()[None, :, None])
    for (problem, lane), storages, inputs in sample.each():
        place = (problem, slice(None), lane)
        try:
            expected = independent.directional_difference(sample.block, storages, inputs, v)
        except RuntimeError:
            return unchecked
        if not _agree(pushed[place], expected, size[place], differences=True):
            raise DerivativeMismatchError(f"wrong derivatives of {block.term.name!r}")
    return ""


def double_backward(sample: Sample) -> list[Any] | None:
    """By lane the gradient g, Hv and ∂(gᵀv) in the inputs, by plain reverse mode; None where an operator lacks that."""
    try:
        return [
            (place, independent.hessian_product(sample.block, storages, inputs, _direction(sample.block, storages)))
            for place, storages, inputs in sample.each()
        ]
    except (RuntimeError, NotImplementedError):
        return None


def compare_hessian(candidate: Sample, expected: list[Any] | None) -> None:
    """Compare gradient, Hessian and mixed derivative with `double_backward`, where there is one.

    Raises:
        DerivativeMismatchError: they differ. Whatever an operator raises that has no such derivative.
    """
    block = candidate.block
    with TRANSFORM_LOCK, torch.no_grad():
        gradient = candidate.mapped(block.gradient_of_block)
        hessian = candidate.mapped(block.hessian_of_block)
        residual, jacobian = candidate.linearizations()
    with TRANSFORM_LOCK:
        mixed = [_mixed(candidate, _along_gradient)]
        with contextlib.suppress(NotImplementedError):  # then derivatives do without forward mode
            mixed.append(_mixed(candidate, _slope))
    if expected is None:
        return
    wrong = DerivativeMismatchError("its batched second derivatives are wrong in PyTorch")
    if not _second_order_agrees(block, gradient, hessian, _terms(residual, jacobian), expected):
        raise wrong
    if not all(_mixed_agrees(candidate, found, _terms(residual, jacobian), expected) for found in mixed):
        raise wrong


def compare_second_order(sample: Sample, second: SecondOrder, expected: list[Any]) -> None:
    """Compare native gradients and Hessians with `double_backward`.

    Raises:
        DerivativeMismatchError: they differ.
    """
    block = dataclasses.replace(sample.block, second=second)
    with TRANSFORM_LOCK, torch.no_grad():
        gradient = block.gradients_of(sample.storages, sample.inputs)
        hessian = block.hessians_of(sample.storages, sample.inputs)
        terms = _terms(*sample.linearizations())
    if not _second_order_agrees(block, gradient, hessian, terms, expected):
        raise DerivativeMismatchError(f"the native second derivatives of {block.term.name!r}")


def compare_mixed(sample: Sample, along: Callable[[Tensor], dict[str, Tensor]], expected: list[Any]) -> None:
    """Compare native mixed derivatives with `double_backward`.

    Args:
        along: by input ∂(gᵀv), (outer, entries, lanes), of a v for all blocks.

    Raises:
        DerivativeMismatchError: they differ.
    """
    with TRANSFORM_LOCK, torch.no_grad():
        found = along(_direction(sample.block, sample.storages))
        steepness, height = _terms(*sample.linearizations())
    for (problem, lane), (_, _, right) in expected:
        for name, tensor in found.items():
            own, one = tensor[problem, :, lane], right[name].reshape(-1)
            largest = sample.inputs[name].abs().amax()
            terms = steepness * height / torch.where(largest > 0, largest, 1)
            if not _agree(own, one, one.abs(), terms=terms):
                raise DerivativeMismatchError(f"the native mixed derivatives of {sample.block.term.name!r}")


def _terms(residual: Tensor, jacobian: Tensor) -> tuple[Tensor, Tensor]:
    """How large Jacobians and residuals are. A problem whose data are not finite is one of the lanes, and must not hide
    what the others are made of."""
    steepness, height = (x.nan_to_num(0, 0, 0).norm() for x in (jacobian, residual))
    return steepness, height


def _second_order_agrees(
    block: BlockTerm, gradient: Tensor, hessian: Tensor, terms: tuple[Tensor, Tensor], expected: list[Any]
) -> bool:
    """Are these the gradients and the products Hv?"""
    steepness, height = terms
    for (problem, lane), (g, hv, _) in expected:
        v = independent.irregular(len(g), g)
        own = block.way.layout.hessian_times(hessian[problem, ..., lane], v)
        size = block.way.layout.hessian_times(hessian[problem, ..., lane].abs(), v.abs())
        if not (
            _agree(gradient[problem, :, lane], g, g.abs(), terms=steepness * height)
            and _agree(own, hv, size, terms=steepness**2)
        ):
            return False
    return True


def _mixed_agrees(
    candidate: Sample, found: dict[str, Tensor], terms: tuple[Tensor, Tensor], expected: list[Any]
) -> bool:
    """Are these the mixed derivatives, added up over the lanes where they share an input?"""
    steepness, height = terms
    for name, tensor in found.items():
        parts = [one[name] for _, (_, _, one) in expected]
        largest = candidate.inputs[name].abs().amax() if candidate.inputs[name].numel() else steepness
        rounding = steepness * height / torch.where(largest > 0, largest, 1)
        if len(parts) == 1:
            agree = _agree(tensor.reshape(parts[0].shape), parts[0], parts[0].abs(), terms=rounding)
        else:
            size = torch.stack([part.abs().sum() for part in parts]).sum()
            agree = _agree(tensor.sum(), torch.stack([part.sum() for part in parts]).sum(), size, terms=rounding)
        if not agree:
            return False
    return True


def check_deterministic(sample: Sample) -> None:
    """Two evaluations at one point must agree.

    Raises:
        NonDeterministicResidualError: they do not.
    """
    for _, storages, inputs in sample.each():
        copies = tuple(x.clone() for x in storages), {name: x.clone() for name, x in inputs.items()}
        with independent.plain_python():
            first = sample.block.residual_of_block(storages, inputs).detach()
            second = sample.block.residual_of_block(*copies).detach()
        if first.shape != second.shape or not torch.allclose(first, second, rtol=1e-12, atol=0, equal_nan=True):
            raise NonDeterministicResidualError(
                f"Two evaluations of the residual of {sample.block.term.name!r} at one point differ. A residual must "
                "be a function of its inputs: put modules with dropout or batch normalisation into eval(), draw random "
                "numbers outside and pass them in args, and keep no counter inside."
            )


def check_collected(sample: Sample) -> None:
    """No graph of the residual may lead to a tensor that is no input: its derivative would be lost.

    Raises:
        UncollectedTensorError: one does.
    """
    for _, storages, inputs in sample.each():
        with independent.plain_python(), contextlib.suppress(RuntimeError):  # such as a matrix that cannot be factored
            first = _leaves(sample.block.residual_of_block(storages, inputs))
            if not first:
                continue
            # A leaf that the residual makes for itself is another one each time.
            again = _leaves(sample.block.residual_of_block(storages, inputs))
            known = {id(leaf) for leaf in first}
            lost = [leaf for leaf in again if id(leaf) in known]
            if lost:
                _refuse_uncollected(sample.block.term.name, lost[0])


def _refuse_uncollected(name: str, lost: Tensor) -> None:
    raise UncollectedTensorError(
        f"The residual of {name!r} depends on a tensor of shape {tuple(lost.shape)} that requires grad and was not "
        "found among what it reads (an attribute whose name is made while it runs, the inside of a library's object). "
        "It would lose its derivative: pass it in args (or as data of the cost), or hold it in a closure, a list or a "
        "module."
    )


def _leaves(output: Tensor) -> list[Tensor]:
    """The leaves of the graph that a tensor was made by."""
    return [node.variable for node in nodes_of(output) if hasattr(node, "variable")]


def _agree(
    found: Tensor, expected: Tensor, size: Tensor, differences: bool = False, terms: Tensor | float = 0.0
) -> bool:
    """Is there no more than rounding between them? NaN equals NaN. A wrong rule is wrong by far.

    `size` is that of the result; `terms` of what it is a sum of, where that may cancel.
    """
    if found.shape != expected.shape:
        return False
    double = found.dtype == torch.float64
    relative = (1e-4 if double else 3e-2) if differences else (1e-6 if double else 3e-3)
    finite = torch.isfinite(size)
    largest = torch.where(finite, size, 0).amax() if size.numel() else size.sum()
    rounding = CANCELLED * torch.finfo(found.dtype).eps * terms
    close = (found - expected).abs() <= relative * (torch.where(finite, size, 0) + largest) + rounding
    same = (found == expected) | (found.isnan() & expected.isnan())
    return bool((close | same).all())


def _direction(block: BlockTerm, storages: tuple[Tensor, ...]) -> Tensor:
    return independent.irregular(sum(block.tangents), storages[0])


def _along_gradient(block: BlockTerm, storages: tuple[Tensor, ...], inputs: Inputs) -> Tensor:
    """gᵀv by reverse mode."""
    return block.gradient_of_block(storages, inputs) @ _direction(block, storages)


def _slope(block: BlockTerm, storages: tuple[Tensor, ...], inputs: Inputs) -> Tensor:
    """gᵀv by forward mode."""
    function, at = block._in_tangent(lambda moved: block.cost_of_block(moved, inputs), storages)
    pair: Any = jvp(function, (at,), (_direction(block, storages),))
    return pair[1]


def _mixed(candidate: Sample, along: Callable[[BlockTerm, tuple[Tensor, ...], Inputs], Tensor]) -> dict[str, Tensor]:
    """∂(gᵀv) in the inputs, added up over the lanes where they share one, by backward through what is batched."""
    block = candidate.block
    with independent.plain_python():
        real = {n: x.detach().clone().requires_grad_() for n, x in candidate.inputs.items() if x.is_floating_point()}
        if not real:
            return {}
        given = candidate.of(candidate.storages, {**candidate.inputs, **real})
        total = given.mapped(lambda storages, inputs: along(block, storages, inputs)).sum()
        if not total.requires_grad:
            return {name: torch.zeros_like(x) for name, x in real.items()}
        found = torch.autograd.grad(total, list(real.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(real, found, strict=True))
