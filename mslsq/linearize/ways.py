"""Finds, once per plan, a way to differentiate each term that gives what plain reverse mode gives.

PyTorch's rules for transforms are not all right: `vmap(jacfwd(torch.linalg.det))` is silently wrong,
`vmap(jacrev(...))` of `torch.cdist` too, and `clone().as_strided(...)` reads the wrong numbers where the lanes stand
last in memory. So the batched residual and Jacobian, and the gradient and Hessian that derivatives use, are compared
on a few lanes with unbatched reverse mode. The point is the start, moved a little: at the start itself there may be
kinks and ties, and zeros hide differences.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp
from torch.utils._python_dispatch import TorchDispatchMode

from mslsq.linearize import independent
from mslsq.linearize.blocks import BlockTerm, Values, first_block
from mslsq.linearize.capture import CaptureError, capture
from mslsq.linearize.compressed import CompressedTerm
from mslsq.linearize.derivatives import Mode, Way
from mslsq.linearize.inplace import InPlaceResidualWarning, inplace_advice
from mslsq.linearize.locating import faulty_operator
from mslsq.linearize.operators import REWRITTEN
from mslsq.linearize.sample import Sample, product, sample_of
from mslsq.linearize.trace import TRANSFORM_LOCK
from mslsq.problem.errors import ProblemError, SecondDerivativeError
from mslsq.problem.system import Inputs

MANY_ROWS = 1000
"""A Jacobian with so many rows is not made by one backward pass per row without a word: 3,136 rows take minutes."""


class DerivativeMismatchError(RuntimeError):
    """No way of differentiating a residual gives what PyTorch's plain reverse mode gives."""


class UndifferentiableResidualError(RuntimeError):
    """PyTorch cannot differentiate an operator of a residual under its transforms, in any mode."""


class NonDeterministicResidualError(RuntimeError):
    """Two evaluations of a residual at one point differ."""


class SlowResidualWarning(UserWarning):
    """A residual can only be differentiated slowly."""


@dataclass(frozen=True)
class Found:
    way: Way
    note: str = ""
    """Why it is not the ordinary one, for `verbose`."""


class Observer(TorchDispatchMode):
    """Which operators a residual uses, and whether it switches gradients off."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[Any] = set()
        self.switches_gradients_off = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(func)
        self.switches_gradients_off |= not torch.is_grad_enabled()
        return func(*args, **(kwargs or {}))


def way_of(block: BlockTerm, values: Values, inputs: Inputs) -> Found:
    """The way to differentiate a term, checked; `inputs` as given by the user.

    Raises:
        ProblemError: the residual itself complains.
        CaptureError: `vmap` cannot map it, and it cannot be rewritten; names the line at fault.
        NonDeterministicResidualError: two evaluations of it differ.
        UndifferentiableResidualError: PyTorch raises in every way; names its reason.
        DerivativeMismatchError: no way gives the derivatives of plain reverse mode.
    """
    sample = sample_at_ends(block, values, inputs)
    reason = _reason_to_rewrite(block, values, inputs)
    failures: list[Exception] = []

    def first_of(ways: Iterator[Found | Exception]) -> Found | None:
        for found in ways:
            if isinstance(found, Found):
                return found
            failures.append(found)
            if isinstance(found, ProblemError):
                raise found
        return None

    found = None if reason else first_of(_modes(block, sample, Way()))
    if found is not None:
        return found
    if _any_wrong(failures):
        check_deterministic(sample)
    try:
        captured = captured_residual(block, values, inputs)
    except CaptureError:
        if not reason and not _any_wrong(failures):
            raise
    else:
        wrong = _any_wrong(failures)
        found = first_of(_modes(block, sample, Way(residual=captured)))
        if found is not None:
            advice = inplace_advice(captured.in_place, block.term.name)
            if advice:
                warnings.warn(advice, InPlaceResidualWarning, stacklevel=2)
            why = reason or ("its batched derivatives are wrong in PyTorch" if wrong else "it writes in place")
            return dataclasses.replace(found, note=f"the residual of {block.term.name!r} is rewritten: {why}")
    found = first_of(_modes(block, sample, Way())) if reason else None
    if found is not None:
        return found
    if not _any_wrong(failures):
        raise UndifferentiableResidualError(
            f"The residual of {block.term.name!r} cannot be differentiated: PyTorch's transforms raise "
            f"{type(failures[0]).__name__}: {_first_line(failures[0])} Write it with other operations, or give the "
            "Jacobian yourself (jac=, or jacobians of a CostFunction)."
        ) from failures[0]
    return _lane_by_lane(block, sample)


def _any_wrong(failures: list[Exception]) -> bool:
    """Did a way give wrong numbers, rather than none?"""
    return any(isinstance(failure, DerivativeMismatchError) for failure in failures)


def sample_at_ends(block: BlockTerm, values: Values, inputs: Inputs) -> Sample:
    """The first and the last block of the first and the last problem, moved a little."""
    problems = sorted({0, block.batch - 1})
    blocks = sorted({0, block.term.num_blocks - 1})
    with independent.plain_python(), torch.no_grad():
        return sample_of(block, values, inputs, problems, blocks).moved()


def captured_residual(block: BlockTerm, values: Values, inputs: Inputs) -> Any:
    """The residual of one block as a rewritten graph."""
    storages, first = first_block(block.term, block.batched, values, inputs)
    with TRANSFORM_LOCK:
        return capture(block.term.residual, (block.values_of_block(storages), first), name=block.term.name)


def _reason_to_rewrite(block: BlockTerm, values: Values, inputs: Inputs) -> str:
    """Why the residual must not be differentiated as it is written; empty where nothing speaks against it."""
    storages, first = first_block(block.term, block.batched, values, inputs)
    tensors = [*storages, *first.values()]
    counted = not any(tensor.is_inference() for tensor in tensors)  # inference tensors count no versions
    before = [tensor._version for tensor in tensors] if counted else []
    observer = Observer()
    with independent.plain_python(), observer:
        block.term.residual(block.values_of_block(storages), first)
    if counted and [tensor._version for tensor in tensors] != before:
        # Under `vmap` that may work silently, and change the user's data once per step.
        return "it writes into its arguments"
    if block.term.jacobians is not None:
        return ""  # nothing is differentiated, or in second order only
    if observer.switches_gradients_off:
        return "it uses torch.no_grad(), which forward mode does not respect"
    rewritten = sorted({operator._schema.name.removeprefix("aten::") for operator in observer.operators & REWRITTEN})
    return f"{', '.join(rewritten)} cannot be differentiated as is in PyTorch" if rewritten else ""


def _modes(block: BlockTerm, sample: Sample, way: Way) -> Iterator[Found | Exception]:
    """The way in forward and in reverse mode, the cheaper one first: what was found, or what is wrong with it."""
    if block.term.jacobians is not None:
        yield _tried(block, sample, way)
        return
    first: Mode = block.jacobian_mode
    second: Mode = "reverse" if first == "forward" else "forward"
    found = _tried(block, sample, dataclasses.replace(way, jacobian=first))
    yield found
    if isinstance(found, NotImplementedError) and block.rows > MANY_ROWS:
        _say_slow(block, found)
    yield _tried(block, sample, dataclasses.replace(way, jacobian=second))


def _tried(block: BlockTerm, sample: Sample, way: Way) -> Found | Exception:
    """Found where residual and Jacobian of this way are those of plain reverse mode."""
    candidate = sample.going(block.going(way))
    try:
        with TRANSFORM_LOCK, torch.no_grad():
            residual, jacobian = candidate.linearizations()
        note = "" if block.term.jacobians is not None else _compared(sample, candidate.block, residual, jacobian)
    except Exception as error:
        return error
    return Found(way, note)


def _compared(sample: Sample, block: BlockTerm, residual: Tensor, jacobian: Tensor) -> str:
    """Compare with plain reverse mode; a note where nothing could be compared.

    Raises:
        DerivativeMismatchError: they differ.
    """
    u = independent.irregular(residual.shape[1], residual)
    pulled = product(block, u[None, :, None], jacobian)
    size = product(block, u.abs()[None, :, None], jacobian.abs())
    for (problem, lane), storages, inputs in sample.each():
        place = (problem, slice(None), lane)
        try:
            r, expected = independent.pullback(sample.block, storages, inputs, u)
        except RuntimeError:  # an operator without a derivative in reverse mode
            return _compared_with_differences(sample, block, residual, jacobian)
        if not (_agree(residual[place], r, r.abs()) and _agree(pulled[place], expected, size[place])):
            raise DerivativeMismatchError(f"wrong derivatives of {block.term.name!r}")
    return ""


def _compared_with_differences(sample: Sample, block: BlockTerm, residual: Tensor, jacobian: Tensor) -> str:
    """The same by central differences."""
    unchecked = f"not checked: the Jacobian of {block.term.name!r}, which plain reverse mode cannot take"
    if isinstance(block, CompressedTerm):
        return unchecked
    v = independent.irregular(jacobian.shape[2], residual)
    for (problem, lane), storages, inputs in sample.each():
        own = jacobian[problem, :, :, lane]
        try:
            expected = independent.directional_difference(sample.block, storages, inputs, v)
        except RuntimeError:
            return unchecked
        if not _agree(own @ v, expected, own.abs() @ v.abs(), differences=True):
            raise DerivativeMismatchError(f"wrong derivatives of {block.term.name!r}")
    return ""


CANCELLED = 1e5
"""Units in the last place of the numbers that a derivative is a sum of, which may cancel in it."""


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


def _lane_by_lane(block: BlockTerm, sample: Sample) -> Found:
    """The way without `vmap`, for operators whose batching rules are wrong; a warning names the operator."""
    name = block.term.name
    way = Way(jacobian="row by row", hessian="row by row", lane_by_lane=True)
    found = _tried(block, sample, way)
    operator = faulty_operator(sample)
    if not isinstance(found, Found):
        raise DerivativeMismatchError(
            f"The derivatives of the residual of {name!r} differ from those of PyTorch's plain reverse mode, in "
            f"every way that was tried{f'; {operator} seems to be at fault' if operator else ''}. Write it with other "
            "operations, or give the Jacobian yourself (jac=, or jacobians of a CostFunction)."
        ) from found
    at_fault = f"because of {operator}" if operator else "and no single operator is at fault"
    warnings.warn(
        f"PyTorch's batched derivatives of the residual of {name!r} are wrong {at_fault}. Right ones are computed "
        f"in a loop over {block.lanes * block.outer} blocks and {block.rows} rows, which is slow. Other operations, or "
        "a Jacobian of your own (jac=, or jacobians of a CostFunction), avoid that.",
        SlowResidualWarning,
        stacklevel=2,
    )
    return Found(way, f"{name!r} is differentiated block by block {at_fault}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _say_slow(block: BlockTerm, error: NotImplementedError) -> None:
    warnings.warn(
        f"The Jacobian of {block.term.name!r} has {block.rows:,} rows and {sum(block.tangents)} columns, and is made "
        f"by a backward pass per row, since an operator has no derivative in forward mode ({_first_line(error)}). Other "
        "operations, or a Jacobian of your own (jac=), are many times faster.",
        SlowResidualWarning,
        stacklevel=2,
    )


# ---- gradient and Hessian, when somebody differentiates


def hessian_way_of(block: BlockTerm, way: Way, values: Values, inputs: Inputs) -> Found | None:
    """The way in which gradient, Hessian and mixed derivative are right too; None where `way` is already."""
    term = block.term
    if term.curvature is not None:
        return None  # in closed form: `check_jacobian` is for those
    sample = sample_at_ends(block, values, inputs)
    try:
        expected = [
            (place, independent.hessian_product(sample.block, storages, inputs, _direction(block, storages)))
            for place, storages, inputs in sample.each()
        ]
    except (RuntimeError, NotImplementedError):
        expected = None  # no double backward: nothing to compare with
    failures: list[Exception] = []
    for candidate in _hessian_ways(block, way, values, inputs):
        try:
            _compare_hessian(sample.going(block.going(candidate)), expected)
        except Exception as error:
            failures.append(error)
            continue
        if candidate == way:
            return None
        return Found(candidate, f"second derivatives of {term.name!r} are taken in another way: {failures[0]}")
    if not _any_wrong(failures):
        raise SecondDerivativeError(
            f"Derivatives of a solution need second derivatives of the residual of {term.name!r}, and one is missing: "
            f"{_first_line(failures[-1])} Write the residual with other operations, give its curvature "
            "(CostFunction.curvature), or ask for no derivative: adjoint=mslsq.Detached()."
        ) from failures[-1]
    check_deterministic(sample)
    operator = faulty_operator(sample)
    raise DerivativeMismatchError(
        f"The second derivatives of the residual of {term.name!r} differ from those of PyTorch's plain reverse "
        f"mode{f' because of {operator}' if operator else ''}, so nothing can be differentiated through this "
        "solve. Write the residual with other operations, or give its curvature (CostFunction.curvature)."
    )


def _hessian_ways(block: BlockTerm, way: Way, values: Values, inputs: Inputs) -> Iterator[Way]:
    """The present way, the same in reverse mode, rewritten, lane by lane."""
    yield way
    for mode in ("reverse", "row by row"):  # `jacrev` under a second `vmap` writes in place in some operators
        yield dataclasses.replace(way, hessian=mode)
    if isinstance(block, CompressedTerm) or way.lane_by_lane:
        return
    if way.residual is None:
        try:
            captured = captured_residual(block, values, inputs)
        except CaptureError:
            captured = None
        if captured is not None:
            yield dataclasses.replace(way, residual=captured)
            for mode in ("reverse", "row by row"):
                yield dataclasses.replace(way, residual=captured, hessian=mode)
    yield Way(jacobian="row by row", hessian="row by row", lane_by_lane=True)


def _compare_hessian(candidate: Sample, expected: list[Any] | None) -> None:
    """Compare gradient, Hessian and mixed derivative with double backward.

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
    steepness, height = jacobian.norm(), residual.norm()
    for (problem, lane), (g, hv, _) in expected:
        v = independent.irregular(len(g), g)
        own = _hessian_times(block, hessian[problem, ..., lane], v)
        size = _hessian_times(block, hessian[problem, ..., lane].abs(), v.abs())
        if not (
            _agree(gradient[problem, :, lane], g, g.abs(), terms=steepness * height)
            and _agree(own, hv, size, terms=steepness**2)
        ):
            raise wrong
    for name, tensor in [pair for found in mixed for pair in found.items()]:
        parts = [one[name] for _, (_, _, one) in expected]
        largest = candidate.inputs[name].abs().amax() if candidate.inputs[name].numel() else steepness
        terms = steepness * height / torch.where(largest > 0, largest, 1)
        if len(parts) == 1:
            agree = _agree(tensor.reshape(parts[0].shape), parts[0], parts[0].abs(), terms=terms)
        else:
            size = torch.stack([part.abs().sum() for part in parts]).sum()
            agree = _agree(tensor.sum(), torch.stack([part.sum() for part in parts]).sum(), size, terms=terms)
        if not agree:
            raise wrong


def _direction(block: BlockTerm, storages: tuple[Tensor, ...]) -> Tensor:
    return independent.irregular(sum(block.tangents), storages[0])


def _hessian_times(block: BlockTerm, hessian: Tensor, v: Tensor) -> Tensor:
    if not isinstance(block, CompressedTerm):
        return hessian @ v
    row, column = (torch.from_numpy(part).to(v.device) for part in block.plan.lower)
    product = torch.zeros_like(v).index_add(0, row, hessian * v[column])
    off = row != column
    return product.index_add(0, column[off], (hessian * v[row])[off])


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
