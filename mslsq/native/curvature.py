"""Gradient, Hessian and mixed derivatives of the cost of a block, as scalars of its program.

With y(δ) the storages moved by a joint tangent δ, f the cost and M = ∂y/∂δ at δ = 0, the gradient is g = Mᵀ ∂f/∂y. It
is differentiated by vertex elimination as if M were constant, Mᵀ (∂²f/∂y²) M, and the retraction's own curvature
Σ ∂f/∂yₖ ∂²yₖ/∂δ² is added. So a Hessian needs no second derivative rule of any operation, and no graph of the
retraction. An SE(3) between factor takes 811 operations for its gradient and 7,400 for its Hessian.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from mslsq.native import derivative
from mslsq.native.scalars import Program, Scalar

LARGEST_CURVATURE = 20_000
"""Operations of a Hessian or of a mixed derivative that is compiled: it runs once in a solve, not in every step, and
7,400 take the compiler 2 seconds."""


class Motion(NamedTuple):
    """How the storages of a block follow its joint tangent."""

    directions: Mapping[int, Mapping[int, Scalar]]
    """By the number of a storage's input node, its derivative in each column of the tangent."""
    bends: Sequence[tuple[int, int, int, Scalar]]
    """Second derivatives: the number of the node, two columns (the second not the larger), and the derivative."""
    columns: int


def gradient(program: Program, cost: Scalar, motion: Motion) -> list[Scalar]:
    """∂cost/∂δ, its M constant: what it is to be differentiated as."""
    return _in_tangent(program, _partials(program, cost, list(motion.directions)), motion)


def hessian(program: Program, cost: Scalar, motion: Motion) -> list[Scalar]:
    """∂²cost/∂δ², row by row. Its lower triangle is computed."""
    size = motion.columns
    partials = _partials(program, cost, list(motion.directions))
    lower = derivative.jacobian(program, _in_tangent(program, partials, motion), motion.directions, size)
    for entry, column, other, bend in motion.bends:
        if entry in partials:
            _add(lower[column], other, partials[entry] * bend)
    zero = program.constant(0, "real")
    full = [[lower[max(a, b)][min(a, b)] for b in range(size)] for a in range(size)]
    return [zero if entry is None else entry for row in full for entry in row]


def mixed(
    program: Program, cost: Scalar, motion: Motion, along: Sequence[Scalar], data: Sequence[Scalar]
) -> list[Scalar]:
    """∂/∂data of the derivative of the cost along a tangent.

    Args:
        along: the tangent, constant.
        data: input nodes.
    """
    zero, one = program.constant(0, "real"), program.constant(1, "real")
    parts = [part * move for part, move in zip(gradient(program, cost, motion), along, strict=True)]
    slope = reduce(Scalar.__add__, parts)
    identity = {entry.number: {column: one} for column, entry in enumerate(data)}
    (found,) = derivative.jacobian(program, [slope], identity, len(data))
    return [zero if entry is None else entry for entry in found]


def _partials(program: Program, cost: Scalar, entries: Sequence[int]) -> dict[int, Scalar]:
    """∂cost/∂y by the numbers of the storages' input nodes, of those on which it depends."""
    one = program.constant(1, "real")
    identity = {entry: {column: one} for column, entry in enumerate(entries)}
    (found,) = derivative.jacobian(program, [cost], identity, len(entries))
    return {entry: slope for entry, slope in zip(entries, found, strict=True) if slope is not None}


def _in_tangent(program: Program, partials: Mapping[int, Scalar], motion: Motion) -> list[Scalar]:
    """Mᵀ ∂cost/∂y with a constant M."""
    found: list[Scalar | None] = [None] * motion.columns
    for entry, slope in partials.items():
        for column, move in motion.directions[entry].items():
            _add(found, column, slope * (move if move.value is not None else move.apply("held")))
    zero = program.constant(0, "real")
    return [zero if slope is None else slope for slope in found]


def _add(entries: list[Scalar | None], place: int, slope: Scalar) -> None:
    before = entries[place]
    entries[place] = slope if before is None else before + slope
