"""Parts of a program that become a loop: each copy, with its own leaves, computes what it computed by itself."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mslsq.native.arrays import input_array
from mslsq.native.copies import Copies, Copying, affine
from mslsq.native.operations import OPERATIONS
from mslsq.native.recording import recorded
from mslsq.native.scalars import Program, Scalar
from mslsq.tracing.graph import TRANSFORM_LOCK, graph_of

F64 = torch.float64
Residual = Callable[[Tensor, Tensor, Tensor], Tensor]
P, T, Y = 0, 1, 2
"""The inputs: parameters, which all copies read alike, and two of data."""


def rows_of(residual: Residual, points: int = 6) -> tuple[Program, list[Scalar]]:
    """The rows of a residual of (p, t, y) as scalars."""
    example = [torch.rand(size, dtype=F64) + 0.5 for size in (3, points, points)]
    with TRANSFORM_LOCK, torch.no_grad():
        graph = graph_of(lambda *x: [residual(*x).reshape(-1)], example, guarded=True, functional=True)
        program = Program(F64)
        outputs = recorded(program, graph, [input_array(number, x) for number, x in enumerate(example)])
    return program, list(outputs[0])


def copies_of(program: Program, rows: list[Scalar]) -> list[Copies]:
    return Copying(program, frozenset((T, Y)), 3).found([[row] for row in rows], [None] * len(rows))


def value(program: Program, output: Scalar, inputs: dict[int, list[float]]) -> float:
    """A scalar, by PyTorch's own operations."""
    known: dict[int, Tensor] = {}
    for number in program.needed([output.number]):
        node = program.nodes[number]
        if node.operation == "constant":
            kind = {"real": F64, "integer": torch.int64, "boolean": torch.bool}[node.kind]
            known[number] = torch.tensor(node.detail[0], dtype=kind)
        elif node.operation == "input":
            known[number] = torch.tensor(inputs[node.detail[0]][node.detail[1]], dtype=F64)
        else:
            known[number] = OPERATIONS[node.operation].meaning(*(known[operand] for operand in node.operands))
    return float(known[output.number])


def check(residual: Residual, points: int = 6) -> list[Copies]:
    """Every copy computes its row; the copies found."""
    program, rows = rows_of(residual, points)
    found = copies_of(program, rows)
    assert sorted(member for copies in found for member in copies.members) == list(range(len(rows)))
    generator = torch.Generator().manual_seed(5)
    inputs = {
        n: (torch.rand(size, generator=generator, dtype=F64) + 0.3).tolist()
        for n, size in enumerate((3, points, points))
    }
    for copies in found:
        for k, member in enumerate(copies.members):
            leaves = [x.entries[k] if x.tensor is None else inputs[x.tensor][int(x.entries[k])] for x in copies.leaves]
            own = value(program, copies.outputs[0], inputs | {copies.number: leaves})
            np.testing.assert_allclose(own, value(program, rows[member], inputs), rtol=1e-12, err_msg=f"row {member}")
    return found


@pytest.mark.parametrize(
    ("residual", "groups"),
    [
        (lambda p, t, y: p[0] * torch.exp(-p[1] * t) + p[2] - y, 1),
        (lambda p, t, y: t * p[0] * t - y, 1),
        (lambda p, t, y: p[0] * torch.linspace(0.25, 7, 6, dtype=F64) - y, 1),  # constants differ
        (lambda p, t, y: torch.cat([p[0] * t - y, p[1:]]), 3),  # a prior on two parameters
        (lambda p, t, y: p[0] * t - t[0] * p[1], 2),  # the first row reads one number where the others read two
        (lambda p, t, y: (p[0] * t[0]).sin() * t - y, 2),
        (lambda p, t, y: p[0] * t - y.sum(), 2),
        (lambda p, t, y: (p[0] * t - y).flip(0), 1),
        (lambda p, t, y: p[0] * t[torch.tensor([3, 1, 1, 5, 0, 2])] - y, 1),
        (lambda p, t, y: torch.where(t > p[0], p[1] * y, t), 1),
        (lambda p, t, y: t**2 * p[0] + y * t, 1),
        (lambda p, t, y: p.sum() + 0 * t, 1),
        (lambda p, t, y: p, 3),
    ],
)
def test_rows_of_the_same_code_are_one_group(residual, groups):
    found = check(residual)
    assert len(found) <= groups


def test_what_all_rows_have_in_common_is_no_part_of_the_loop():
    program, rows = rows_of(lambda p, t, y: (p[0].exp() + p[1]).sin() * t - y)
    (copies,) = copies_of(program, rows)
    varying = {n for n in program.needed([copies.outputs[0].number]) if program.nodes[n].operation in ("exp", "sin")}
    leaves = {program.input(copies.number, k, "real").number for k in range(len(copies.leaves))}
    assert len(copies.leaves) == 2
    for number in varying:
        assert not leaves & set(program.needed([number]))


def test_a_row_that_shares_a_number_of_another_but_not_its_leaf_is_no_copy():
    def residual(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        wave = (t * p[0]).sin()
        return torch.stack([wave[0] * t[0], wave[1] * t[1], wave[0] * t[2]])

    assert [copies.members for copies in check(residual)] == [(0, 1), (2,)]


def test_rows_with_different_keys_are_no_copies():
    program, rows = rows_of(lambda p, t, y: p[0] * t - y)
    found = Copying(program, frozenset((T, Y)), 3).found([[row] for row in rows], [0, 0, 1, 1, 1, 0])
    assert [copies.members for copies in found] == [(0, 1, 5), (2, 3, 4)]


ONE: list[Callable[[Tensor], Tensor]] = [
    torch.sin, torch.exp, torch.neg, lambda x: x.roll(1), lambda x: x.flip(0), lambda x: x.cumsum(0),
    lambda x: x - x[0], lambda x: x - x.mean(), lambda x: x * 2, lambda x: x * torch.arange(6.0, dtype=F64),
    lambda x: x.clamp(0.2, 2), lambda x: torch.where(x > 1, x, 2 - x), lambda x: x.abs() + 1,
    lambda x: x[torch.tensor([0, 0, 1, 4, 4, 5])],
]  # fmt: skip
TWO: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.mul,
    torch.sub,
    torch.maximum,
    lambda a, b: a / (b * b + 1),
]


def random_residual(seed: int) -> Residual:
    chosen = random.Random(seed)

    def function(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        picks = random.Random(chosen.getstate()[1][1] + seed)
        known = [t, y, p[0] * t, p[1].expand(6), p[2] * y]
        for _ in range(picks.randint(1, 6)):
            if picks.random() < 0.5:
                known.append(picks.choice(ONE)(picks.choice(known)))
            else:
                known.append(picks.choice(TWO)(known[-1], picks.choice(known)))
        return known[-1]

    return function


def test_copies_of_random_residuals_compute_their_rows():
    sizes = [len(check(random_residual(seed))) for seed in range(150)]
    assert sum(size == 1 for size in sizes) > 30  # many are one loop, and not only what has no data at all


def test_evenly_spaced_entries_need_no_table():
    assert affine((3, 5, 7)) == (3, 2)
    assert affine((4, 4)) == (4, 0)
    assert affine((1,)) == (1, 0)
    assert affine((0, 1, 3)) is None
