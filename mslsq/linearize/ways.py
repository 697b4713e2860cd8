"""Finds, once per plan, a way to differentiate each term that gives what plain reverse mode gives.

PyTorch's rules for transforms are not all right: `vmap(jacfwd(torch.linalg.det))` is silently wrong,
`vmap(jacrev(...))` of `torch.cdist` too, and `clone().as_strided(...)` reads the wrong numbers where the lanes stand
last in memory. So the batched residual and Jacobian, and the gradient and Hessian that derivatives use, are compared
on a few lanes with unbatched reverse mode. The point is the start, moved a little: at the start itself there may be
kinks and ties, and zeros hide differences.
"""

import dataclasses
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.linearize import independent
from mslsq.linearize.agreement import (
    DerivativeMismatchError,
    check_collected,
    check_deterministic,
    compare_hessian,
    compare_jacobian,
    compare_residual,
    double_backward,
)
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.derivatives import Mode, Way
from mslsq.linearize.first_block import explained, of_a_block
from mslsq.linearize.locating import faulty_operator, said_of_half
from mslsq.linearize.pairs import BroadcastResidualWarning, Differences, Followed
from mslsq.linearize.sample import Sample, sample_of
from mslsq.private import DispatchMode, is_operator, operator_name, version_of
from mslsq.problem.errors import ProblemError, SecondDerivativeError
from mslsq.problem.system import Inputs
from mslsq.tracing.capture import CaptureError, capture
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.tracing.inplace import InPlaceResidualWarning, inplace_advice
from mslsq.tracing.operators import Composed, must_be_rewritten
from mslsq.tracing.remedies import OF_FORWARD_MODE, remedy

MANY_ROWS = 1000
"""With this many rows, a Jacobian made by one backward pass per row causes a warning: 3,136 rows take minutes."""


class UndifferentiableResidualError(RuntimeError):
    """PyTorch cannot differentiate an operator of a residual under its transforms, in any mode."""


class SlowResidualWarning(UserWarning):
    """A residual can only be differentiated slowly."""


@dataclass(frozen=True)
class Found:
    way: Way
    note: str = ""
    """Why it is not the ordinary one, for `verbose`."""


class Observer(DispatchMode):
    """Which operators of a residual must be rewritten, and whether it switches gradients off."""

    supports_higher_order_operators = True
    """It sees `torch.cond` and the like, to refuse them."""

    def __init__(self, name: str, differences: Differences) -> None:
        super().__init__()
        self.name = name
        self.differences = differences
        self.operators: set[Any] = set()
        self.switches_gradients_off = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_operator(func):
            raise UndifferentiableResidualError(
                f"The residual of {self.name!r} uses torch's higher-order operator {str(func)!r}, which PyTorch does "
                "not differentiate under its transforms. For torch.cond write torch.where(condition, a, b), for loops "
                "plain Python over sizes, for attention scaled_dot_product_attention."
            )
        if must_be_rewritten(func, args):
            self.operators.add(func)
        self.switches_gradients_off |= not torch.is_grad_enabled()
        output = func(*args, **(kwargs or {}))
        self.differences.see(func, args, output)
        return output


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
    not_captured: CaptureError | None = None
    try:
        captured = captured_residual(block, values, inputs)
    except CaptureError as error:
        if not reason and not _any_wrong(failures):
            raise
        not_captured = error
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
    is_explained = _any_wrong(failures) or any(map(remedy, failures))
    if not_captured is not None and not_captured.line is not None and not is_explained:
        raise not_captured  # it names the line
    if not _any_wrong(failures):
        others = "Write it with other operations, or give the Jacobian yourself (jac=, or jacobians of a CostFunction)."
        # That a user's autograd.Function has no forward mode says nothing where reverse mode fails as well.
        error = next((error for error in failures if OF_FORWARD_MODE not in str(error)), failures[0])
        if block.term.jacobians is not None:
            raise UndifferentiableResidualError(
                f"The Jacobian that was given for {block.term.name!r} (jac=, or jacobians of a CostFunction) cannot be "
                f"evaluated for many blocks at once: {type(error).__name__}: {_first_line(error).rstrip('.')}. Write "
                "it with PyTorch's operations, or leave it out."
            ) from error
        raise UndifferentiableResidualError(
            f"The residual of {block.term.name!r} cannot be differentiated: PyTorch's transforms raise "
            f"{type(error).__name__}: {_first_line(error).rstrip('.')}. {remedy(error) or others}"
        ) from error
    return _lane_by_lane(block, sample)


def _any_wrong(failures: list[Exception]) -> bool:
    """Did a way give wrong numbers, rather than none?"""
    return any(isinstance(failure, DerivativeMismatchError) for failure in failures)


def sample_at_ends(block: BlockTerm, values: Values, inputs: Inputs) -> Sample:
    """The first, the middle and the last problem, or block of a single problem, moved a little.

    Not two lanes: a rule that moves numbers from one lane to another twice would seem right.
    """
    batch, count = block.batch, block.term.num_blocks
    problems = sorted({0, batch // 2, batch - 1})
    blocks = sorted({0, count // 2, count - 1} if len(problems) == 1 else {0, count - 1})
    with independent.plain_python(), torch.no_grad():
        return sample_of(block, [values], inputs, problems, blocks).moved()


def captured_residual(block: BlockTerm, values: Values, inputs: Inputs) -> Any:
    """The residual of one block as a rewritten graph."""

    def captured(storages: tuple[Tensor, ...], first: Inputs) -> Any:
        return capture(block.term.residual, (block.values_of_block(storages), first), name=block.term.name)

    with TRANSFORM_LOCK:
        try:
            return of_a_block(captured, block.term, block.batched, values, inputs)
        except CaptureError as error:
            hint = block.term.hint(error) if block.term.hint is not None else ""
            if not hint:
                raise
            raise CaptureError(f"{error}\n{hint}", error.line) from error


def _reason_to_rewrite(block: BlockTerm, values: Values, inputs: Inputs) -> str:
    """Why the residual must not be differentiated as it is written; empty where nothing speaks against it."""
    is_differentiated = block.term.jacobians is None
    observers: list[Observer] = []
    composed = Composed(values=True)

    def writes_into_arguments(storages: tuple[Tensor, ...], first: Inputs) -> bool:
        tensors = [*storages, *first.values()]
        before = [version_of(tensor) for tensor in tensors]
        x = block.values_of_block(storages)
        differences = Differences(leaf for leaf in pytree.leaves(x) if isinstance(leaf, Tensor))
        observers.append(Observer(block.term.name, differences))
        watched = observers[-1] if is_differentiated else Followed(differences)
        with explained(block.term), independent.plain_python(), watched, composed:
            output = block.term.residual(x, first)
        advice = differences.advice(output, f"The residual of {block.term.name!r}")
        if advice:
            warnings.warn(advice, BroadcastResidualWarning, stacklevel=2)
        return [version_of(tensor) for tensor in tensors] != before

    if of_a_block(writes_into_arguments, block.term, block.batched, values, inputs):
        # Under `vmap` that may work silently, and change the user's data once per step.
        return "it writes into its arguments"
    observer = observers[-1]
    if observer.switches_gradients_off:
        return "it uses torch.no_grad(), which forward mode does not respect"
    rewritten = sorted({operator_name(operator) for operator in observer.operators} | composed.met)
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
            alone = candidate.mapped(candidate.block.residual_of_block)  # without `jvp` other operators run
        compare_residual(candidate.block, residual, alone)
        note = "" if block.term.jacobians is not None else compare_jacobian(sample, candidate.block, residual, jacobian)
    except Exception as error:
        return error
    return Found(way, note)


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
            f"{said_of_half(sample)}"
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
        f"by a backward pass per row, since an operator has no derivative in forward mode ({_first_line(error)}). "
        "Other operations, or a Jacobian of your own (jac=), are many times faster.",
        SlowResidualWarning,
        stacklevel=2,
    )


# ---- gradient and Hessian, for derivatives through the solve


def hessian_way_of(block: BlockTerm, way: Way, values: Values, inputs: Inputs, is_known: bool = False) -> Found | None:
    """The way in which gradient, Hessian and mixed derivative are right too; None where `way` is already, which
    `is_known` from another problem with the same cost.

    Raises:
        UncollectedTensorError: the residual depends on a tensor that requires grad and is no input.
        SecondDerivativeError: an operator has none.
        DerivativeMismatchError: no way gives those of plain reverse mode.
    """
    term = block.term
    is_closed = term.curvature is not None  # `check_jacobian` is for those
    if is_closed and term.is_of_library:
        return None
    sample = sample_at_ends(block, values, inputs)
    check_collected(sample)
    if is_closed or is_known:
        return None
    expected = double_backward(sample)
    failures: list[Exception] = []
    for candidate in _hessian_ways(block, way, values, inputs):
        try:
            compare_hessian(sample.going(block.going(candidate)), expected)
        except Exception as error:
            failures.append(error)
            continue
        if candidate == way:
            return None
        return Found(candidate, f"second derivatives of {term.name!r} are taken in another way: {failures[0]}")
    if not _any_wrong(failures):
        known = next((error for error in failures if remedy(error)), None)
        error = failures[-1] if known is None else known
        others = "Write the residual with other operations, or give its curvature (CostFunction.curvature)."
        raise SecondDerivativeError(
            f"Derivatives of a solution need second derivatives of the residual of {term.name!r}, and one is missing: "
            f"{_first_line(error)} {remedy(error) or others} Or ask for none: adjoint=mslsq.Detached()."
        ) from error
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
    if way.lane_by_lane or way.sparsity is not None:
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
