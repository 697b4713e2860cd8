"""When one big residual is worth compressing, and the plan for it: components, block-sparse, or dense."""

import dataclasses
import os
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.linear.block_structure import analyze
from mslsq.linear.choice import blocks_are_faster
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.compressed import (
    CompressedPlan,
    TooDenseError,
    compressed_plan_of,
    dependence_of,
    reverse_compression_of,
)
from mslsq.linearize.derivatives import Way
from mslsq.linearize.first_block import first_block
from mslsq.linearize.independent import irregular
from mslsq.linearize.pattern import Pattern, placement_of
from mslsq.linearize.plan import Plan
from mslsq.linearize.sample import SMALL_MOVE
from mslsq.private import vjp
from mslsq.problem.errors import ProblemError
from mslsq.problem.structure import SMALL, Structure, numbered_by_component
from mslsq.problem.system import Inputs, residual_vector
from mslsq.solvers.linear_choice import LARGEST_DENSE
from mslsq.solvers.solver import Solver
from mslsq.tracing.capture import Captured, capture
from mslsq.tracing.graph import TRANSFORM_LOCK, by_place, distinct, forget_example, graph_of
from mslsq.tracing.inplace import InPlaceResidualWarning, inplace_advice
from mslsq.tracing.rewrites import make_transformable

WORTH_LOOKING = 1_000_000
"""Numbers in the dense Jacobians of a batch from which the sparsity is looked for (or more than LARGEST_DENSE columns):
looking takes some 50 ms, as long as a dozen steps with such Jacobians. 64 chains of 290 unknowns: 0.06 ms a step each
instead of 9."""
FEWER = 4
"""Compressing pays where it takes this many times fewer derivatives than there are columns."""
DENSITY = 0.3
"""Above that share of non-zeros JᵀJ is factored as a dense matrix."""

Linearized = Callable[[tuple[Tensor, ...], Inputs], tuple[Tensor, Tensor]]
"""Residual and entries of the Jacobian as a function of storages and inputs."""


def compressed_plan(
    solver: Solver, blocks: tuple[BlockTerm, ...], values: Values, inputs: tuple[Inputs, ...]
) -> tuple[Plan | None, str]:
    """The plan that makes use of the sparsity of one big residual, or None; and in words what was found.

    Raises:
        ProblemError: the sparsity is of no use, and the dense Jacobian would not fit into memory.
    """
    if not _is_one_big_residual(blocks, solver):
        return None, ""
    block, (storages, first) = blocks[0], first_block(blocks[0].term, blocks[0].batched, values, inputs[0])
    try:
        with TRANSFORM_LOCK, torch.no_grad():
            captured = capture(block.term.residual, (block.values_of_block(storages), first), name=block.term.name)
            if captured.graph is None:
                raise TooDenseError("it holds a torch.autograd.Function, which no graph can look into")
            _check_capture(block, captured, storages, first)
            for node in captured.graph.graph.nodes:
                node.meta.clear()  # a fake tensor each: 15 MB for 56 slices
            block = block.going(Way(residual=captured))
            found = _compressed(block, storages, first, inputs[0])
            compressed, linearization = _recorded(block, found, storages, first)
            # A single problem needs no `vmap`: a last axis of one entry would cost copies in every operation.
            way = Way(captured, lane_by_lane=block.batch == 1, sparsity=compressed, linearization=linearization)
            plan = _placed(solver, block.going(way), compressed)
    except Exception as reason:
        # Whatever goes wrong while looking: the dense path asks for nothing but derivatives, and says what it lacks.
        _check_dense_fits(blocks[0], values[0], reason)
        return None, f"no use is made of the sparsity of {block.term.name!r}: {reason}"
    plan.ways[0] = way
    advice = inplace_advice(captured.in_place, block.term.name)
    if advice:
        warnings.warn(advice, InPlaceResidualWarning, stacklevel=2)
    return plan, compressed.summary()


def _check_capture(block: BlockTerm, captured: Captured, storages: tuple[Tensor, ...], first: Inputs) -> None:
    """The graph must give what the user's function gives: no later check would notice a difference."""

    def of(residual: Callable[..., Any]) -> Tensor:
        copies = tuple(x.clone() for x in storages)  # in-place residuals may write into their inputs
        given = {name: tensor.clone() for name, tensor in first.items()}
        return residual_vector(residual(block.values_of_block(copies), given))[0]

    found, expected = of(captured), of(block.term.residual)
    scale = float(torch.where(torch.isfinite(expected), expected, 0).abs().amax()) if len(expected) else 0.0
    # Rounding is far below; a graph that is wrong is wrong by far.
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * scale, equal_nan=True):
        raise TooDenseError("its graph does not give the same numbers as itself")


def _is_one_big_residual(blocks: tuple[BlockTerm, ...], solver: Solver) -> bool:
    """One block of one term, on all unknowns, large, without Jacobian of its own, for normal equations."""
    if len(blocks) != 1:
        return False
    block, term = blocks[0], blocks[0].term
    columns = sum(block.tangents)
    return (
        term.num_blocks == 1
        and term.jacobians is None
        and (term.loss is None or term.elementwise_loss)
        and all(unknown.count == 1 and unknown.free is None for unknown in block.system.unknowns)
        and [slot.unknown for slot in term.slots] == list(range(len(block.system.unknowns)))
        and (columns > LARGEST_DENSE or (columns > SMALL and columns * block.rows * block.batch >= WORTH_LOOKING))
        and solver.linear.takes_compressed
    )


def _compressed(block: BlockTerm, storages: tuple[Tensor, ...], first: Inputs, inputs: Inputs) -> CompressedPlan:
    """The pattern of the residual, coloured."""

    def moved(delta: Tensor, storages: tuple[Tensor, ...], inputs: Inputs) -> Tensor:
        return block.residual_of_block(block._retracted(storages, delta), inputs)

    varying = block.batched if block.batch > 1 else frozenset[str]()
    columns = sum(block.tangents)
    # No intermediate pattern fuller than what would be of use in the end: a network is given up after some layers.
    largest = max(WORTH_LOOKING, block.rows * columns // FEWER)
    dependence = dependence_of(moved, columns, storages, first, varying, largest)
    return compressed_plan_of(dependence, block.pairs, inputs, storages[0].device, storages[0].dtype)


def _recorded(
    block: BlockTerm, compressed: CompressedPlan, storages: tuple[Tensor, ...], first: Inputs
) -> tuple[CompressedPlan, Linearized]:
    """The same with its linearization recorded, in reverse mode where an operation does not know the other, and
    checked."""

    def recorded(compressed: CompressedPlan) -> Linearized:
        if compressed.jacobian.colors * FEWER > compressed.columns:
            raise TooDenseError(
                f"it takes {compressed.jacobian.colors:,} derivatives for {compressed.columns:,} unknowns"
            )
        return _recorded_linearization(block.going(Way(sparsity=compressed)), storages, first)

    try:
        linearization = recorded(compressed)
    except NotImplementedError as reason:
        reverse = reverse_compression_of(compressed.sets, compressed.device, compressed.dtype)
        if reverse is None or not compressed.jacobian.forward:
            raise TooDenseError(f"an operation has no derivative in forward mode ({reason})") from reason
        compressed = dataclasses.replace(compressed, jacobian=reverse)
        linearization = recorded(compressed)
    # At the start there may be zeros: a little away from it as well.
    columns = sum(block.tangents)
    moved = block._retracted(storages, SMALL_MOVE * irregular(columns, storages[0]))
    if block.bounds is not None:
        least, most = ([x[0, 0] for x in side] for side in block.bounds)
        moved = tuple(x.clamp(low, high) for x, low, high in zip(moved, least, most, strict=True))
    sparse = block.going(Way(sparsity=compressed, linearization=linearization))
    if not all(_pattern_holds(sparse, at, first) for at in (storages, moved)):
        raise TooDenseError("the derivatives found by its sparsity are not those of reverse mode")
    return compressed, linearization


def _recorded_linearization(block: BlockTerm, storages: tuple[Tensor, ...], inputs: Inputs) -> Linearized:
    """`linearization_of_block` as a plain graph, without transforms.

    Recording a step that holds them takes a second for 56 slices; a step that holds this graph a tenth of that, and
    need not be recorded at all.
    """
    names, example = list(inputs), distinct([*storages, *inputs.values()])
    graph = graph_of(by_place(block.linearization_of_block, len(storages), names), example)
    graph = forget_example(make_transformable(graph, example))

    def replayed(storages: tuple[Tensor, ...], inputs: Inputs) -> tuple[Tensor, Tensor]:
        residual, entries = graph.forward(*storages, *(inputs[name] for name in names))
        return residual, entries

    return replayed


def _pattern_holds(block: BlockTerm, storages: tuple[Tensor, ...], inputs: Inputs) -> bool:
    """Do the entries give the product Jᵀu that reverse mode gives, for a random u?

    A pattern that lacks an entry must not be used, whatever the reason: a wrong rule, a derivative
    that forward mode does not know (custom operators without one give zeros).
    """
    function, at = block._in_tangent(lambda moved: block.residual_of_block(moved, inputs), storages)
    residual, entries = block.linearization_of_block(storages, inputs)
    u = torch.randn(len(residual), generator=torch.Generator().manual_seed(0), dtype=residual.dtype, device="cpu").to(
        residual.device
    )
    (expected,) = vjp(function, at)[1](u)

    def pulled(entries: Tensor, u: Tensor) -> Tensor:
        return block.way.layout.pulled(entries[None, :, None], u[None, :, None]).reshape(-1)

    found, size = pulled(entries, u), pulled(entries.abs(), u.abs())
    # Rounding of a sum of products; where numbers are not finite nothing can be told.
    allowed = 1e6 * torch.finfo(expected.dtype).eps * (size + size.mean())
    return bool((((found - expected).abs() <= allowed) | ~torch.isfinite(expected) | ~torch.isfinite(found)).all())


def _placed(solver: Solver, block: BlockTerm, compressed: CompressedPlan) -> Plan:
    """Small dense systems where components are small, block-sparse where they are large, dense where all is full."""
    labels, sizes = compressed.components()
    tangents, device, n = block.tangents, compressed.device, compressed.columns
    largest, total = int(sizes.max()), int((sizes.astype(np.int64) ** 2).sum())
    padded = len(sizes) * largest**2
    split = len(sizes) > 1 and padded <= max(4 * total, 10_000)
    structure, pattern = _numbered(labels if split else np.zeros(n, np.int64), tangents, device), None
    full = compressed.gram.nnz > DENSITY * n * n and solver.linear.is_open
    wanted = solver.linear.wants_sparse(structure.size)
    may_want = solver.linear.may_want_sparse(structure.size, structure.num_components, block.batch)
    if (wanted or may_want) and not (full and not split) and device.type == "cpu":
        ends = np.cumsum([0, *tangents])
        pieces = tuple(np.arange(start, stop) for start, stop in pairwise(ends))
        pattern = Pattern(analyze(np.ones(n, np.int64), *compressed.lower, device=device), pieces)
        if wanted or blocks_are_faster(pattern.structure, block.batch):
            structure = _numbered(np.zeros(n, np.int64), tangents, device)
        else:
            pattern = None
    if pattern is None and not _fits(structure.num_components * structure.size**2 * 4, block, compressed.dtype):
        raise TooDenseError(
            f"its normal equations are {structure.num_components} dense systems of {structure.size:,} unknowns"
        )
    return Plan(structure, pattern, (placement_of(block, structure, pattern),), ((block.rows, block.pairs),))


def _numbered(labels: np.ndarray, tangents: list[int], device: torch.device) -> Structure:
    """The structure whose parts are these, entry by entry of the joint tangent."""
    structure = numbered_by_component([np.ones((len(labels), 1), bool)], [labels], np.bincount(labels), device)
    pieces = structure.columns[0].reshape(-1).split(tangents)
    natural = structure.num_components == 1
    return dataclasses.replace(structure, columns=tuple(piece[None] for piece in pieces), natural=natural)


def _check_dense_fits(block: BlockTerm, start: Tensor, reason: Exception) -> None:
    """An error that says what to do where the dense Jacobian would not fit."""
    columns = sum(block.tangents)
    if _fits(3 * block.rows * columns + 2 * columns**2, block, start.dtype):
        return
    raise ProblemError(
        f"The residual of {block.term.name!r} has {block.rows:,} entries of {columns:,} unknowns: its dense Jacobian "
        f"does not fit into memory, and its sparsity is of no use: {reason}. Write sums over all unknowns as many "
        "small terms (one per unknown or per neighbouring pair), or state the problem as cost functions over blocks: "
        "mslsq.solve(mslsq.Problem(...))."
    ) from reason


def _fits(numbers: int, block: BlockTerm, dtype: torch.dtype) -> bool:
    """Does that many numbers per problem fit into half the machine's memory?"""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on this system: nothing is refused
        return True
    return numbers * block.batch * dtype.itemsize <= memory // 2
