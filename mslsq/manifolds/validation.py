"""Are these numbers an element at all? Asked where a user hands them in, and only where looking is free of harm.

The look reads values: one boolean. So it is left out under `torch.func`, while a graph is recorded or compiled, for
subclasses of tensors, and while a CUDA graph is captured; on CUDA it waits for the device, once for a whole batch.
It never changes the numbers: the same code under a transform, where nothing is checked, must mean the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from mslsq.levels import python_numbers
from mslsq.manifolds.errors import ManifoldError
from mslsq.private import is_batched_by_autograd, is_tracing_or_dispatching, transforms_are_active
from mslsq.validation import made_a_tensor

DIGITS = 1e-3
"""How far from one a squared norm may be: quaternions of four digits, as trajectories have them in files, are wrong by
up to 2e-4 and float32's by 1e-6, where components out of order, angles or numbers that are not normalised are off by
far more. Of what is let through, `matrix()` is orthogonal as far; `normalized()` takes the rest away."""

_SKIPPED: ContextVar[bool] = ContextVar("mslsq.manifolds.validation", default=False)


@contextmanager
def unchecked() -> Iterator[None]:
    """Nothing is looked at inside: for code of the user that the engine evaluates where the numbers are its own."""
    token = _SKIPPED.set(True)
    try:
        yield
    finally:
        _SKIPPED.reset(token)


def check_points(element: object, given: object, dim: int) -> None:
    """Raises a ManifoldError for what is no tensor of points of this dimension, which `act` of a group moves."""
    _check_vectors(type(element), "act", "points", given, dim)


def check_tangent(kind: Any, given: object) -> None:
    """Raises a ManifoldError for what is no tensor of tangent vectors, of which `exp` of a group makes elements."""
    _check_vectors(kind, "exp", "tangent vectors", given, kind.tangent_dim)


def check_step(element: Any, given: object) -> None:
    """Raises a ManifoldError for what is no tensor of tangent vectors, by which `retract` moves elements."""
    _check_vectors(type(element), "retract", "tangent vectors", given, element.tangent_dim)


def check_xyt(kind: type, xyt: object, others: tuple[object, ...]) -> None:
    """Raises a ManifoldError for what is no tensor of (x, y, angle), of which `from_xyt` of SE(2) makes elements."""
    if others:
        raise ManifoldError(
            f"{kind.__name__}.from_xyt takes one tensor of shape (..., 3): torch.tensor([x, y, angle]) of numbers, "
            "torch.stack([x, y, angle], -1) of tensors."
        )
    _check_vectors(kind, "from_xyt", "(x, y, angle)", xyt, 3)


def _check_vectors(kind: type, method: str, vectors: str, given: object, dim: int) -> None:
    if isinstance(given, Tensor):
        if given.shape[-1:] != (dim,):
            raise ManifoldError(
                f"{kind.__name__}.{method} takes {vectors}, shape (..., {dim}), not {tuple(given.shape)}."
            )
    elif made_a_tensor(given) or hasattr(given, "storage"):
        how = made_a_tensor(given) or " That is an element: elements are composed by @, and .log() is a tangent vector."
        raise ManifoldError(f"{kind.__name__}.{method} takes a tensor, not {type(given).__name__}.{how}")


def check_element(element: object, method: str, other: object) -> None:
    """Raises a ManifoldError where `other` is of another group, or no element: storages of two groups can be of one
    length, and what comes of them then is a number of no meaning."""
    kind, given = type(element), type(other)
    if given is not kind and not issubclass(given, kind) and not issubclass(kind, given):
        how = f" Make it one: {kind.__name__}(...)." if isinstance(other, Tensor) or made_a_tensor(other) else ""
        raise ManifoldError(f"{kind.__name__}.{method} takes another {kind.__name__}, not {given.__name__}.{how}")


def tolerance(dtype: torch.dtype) -> float:
    """Of squared norms: `DIGITS`, or a few units in the last place where the dtype has fewer."""
    return max(DIGITS, 8 * torch.finfo(dtype).eps)


def may_look(tensor: Tensor) -> bool:
    """Is this a plain tensor with numbers in it, outside of everything that records or transforms?"""
    if _SKIPPED.get() or type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    if not tensor.numel() or not tensor.is_floating_point() or tensor.device.type == "meta":
        return False
    if transforms_are_active() or is_batched_by_autograd(tensor):
        return False
    if torch.compiler.is_compiling() or is_tracing_or_dispatching():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def refuse(
    numbers: Tensor, is_wrong: Callable[[Tensor], Tensor], batch_ndim: int, says: Callable[[str, int], str]
) -> None:
    """Raises a ManifoldError for the first entry of a batch that `is_wrong`, a boolean per entry.

    NaN is nowhere wrong: it can be seen in every result, and a solve that diverges may pass it through.

    Args:
        numbers: (*batch, ...).
        is_wrong: of (entries, ...), a boolean for each entry, False for NaN.
        says: the message, of the entry's name ("entry 3" or nothing for a single one) and its number.
    """
    if not may_look(numbers):
        return
    with torch.no_grad():
        flat = numbers.detach().reshape(-1, *numbers.shape[batch_ndim:])
        wrong = is_wrong(flat)
        if not bool(wrong.any()):
            return
        first = int(wrong.nonzero()[0, 0])
    position = torch.unravel_index(torch.tensor(first, device="cpu"), numbers.shape[:batch_ndim]) if batch_ndim else ()
    where = ", ".join(str(int(axis)) for axis in position)
    several = f" (one of {int(wrong.sum())} such entries)" if int(wrong.sum()) > 1 else ""
    raise ManifoldError(says(f"entry [{where}]" if where else "it", first) + several + ".")


def squared_norm_is_off(parts: Tensor) -> Tensor:
    """(entries, n) → which are not of norm one."""
    return ((parts * parts).sum(-1) - 1).abs() > tolerance(parts.dtype)


def check_matrix(matrix: Tensor, dim: int, kind: str, *, homogeneous: bool, scaled: bool = False) -> None:
    """The argument of `from_matrix`: its shape, and that it is a rotation (times a scale), with a last row (0, .., 1).

    Raises:
        ManifoldError: another shape or dtype; a reflection, a matrix that is not orthogonal, a transposed homogeneous
            one; the entry of the batch is named.
    """
    shapes = [(dim, dim)] if not homogeneous else [(dim, dim + 1), (dim + 1, dim + 1)]
    expected = " or ".join(f"(..., {rows}, {columns})" for rows, columns in shapes)
    if not isinstance(matrix, Tensor) or not matrix.is_floating_point() or tuple(matrix.shape[-2:]) not in shapes:
        given = (
            f"{matrix.dtype} of shape {tuple(matrix.shape)}" if isinstance(matrix, Tensor) else type(matrix).__name__
        )
        raise ManifoldError(f"{kind}.from_matrix takes a floating-point tensor of shape {expected}, got {given}")

    def says(entry: str, first: int) -> str:
        flat = matrix.detach().reshape(-1, *matrix.shape[-2:])[first]
        return f"{kind}.from_matrix: {entry} {_what_is_wrong(flat, dim, scaled)}"

    refuse(matrix, lambda flat: _no_motion(flat, dim, scaled), matrix.ndim - 2, says)


def _no_motion(flat: Tensor, dim: int, scaled: bool) -> Tensor:
    """(entries, rows, columns) → which are no rotation (times a scale), or have another last row."""
    limit = tolerance(flat.dtype)
    linear = flat[:, :dim, :dim]
    gram = linear @ linear.mT
    scale = gram.diagonal(dim1=-2, dim2=-1).mean(-1) if scaled else torch.ones_like(gram[:, 0, 0])
    unit = torch.eye(dim, dtype=flat.dtype, device=flat.device)
    wrong = ((gram - scale[:, None, None] * unit).abs() > limit * scale[:, None, None]).any((-1, -2))
    wrong = wrong | (scale == 0) | (_determinant(linear) < 0)
    if flat.shape[1] > dim:
        last = torch.cat([unit.new_zeros(dim), unit.new_ones(1)])
        wrong = wrong | ((flat[:, dim] - last).abs() > limit).any(-1)
    return wrong


def _determinant(m: Tensor) -> Tensor:
    if m.shape[-1] == 2:
        return m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0]
    return (m[:, 0] * torch.linalg.cross(m[:, 1], m[:, 2], dim=-1)).sum(-1)


def _what_is_wrong(matrix: Tensor, dim: int, scaled: bool) -> str:
    linear = matrix[None, :dim, :dim]
    if bool(_no_motion(matrix[None, :dim], dim, scaled)):
        determinant = float(_determinant(linear))
        if float((linear @ linear.mT - torch.eye(dim, dtype=linear.dtype, device=linear.device)).abs().max()) < DIGITS:
            return f"is a reflection (determinant {determinant:.3g}): swap two axes, or change the sign of one"
        kind = "a rotation times a scale > 0" if scaled else "a rotation"
        return (
            f"is not {kind}: its rows are not orthogonal and of norm {'equal' if scaled else 'one'} up to {DIGITS:g} "
            f"(determinant {determinant:.3g}). The nearest rotation is U @ diag(1, .., det(U @ Vh)) @ Vh of "
            "U, S, Vh = torch.linalg.svd(matrix)"
        )
    return f"has the last row {python_numbers(matrix[dim])}, not (0, .., 0, 1): is it transposed, or a projection"
