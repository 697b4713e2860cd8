"""The native program of a term's block: residual and Jacobian, whitening inside, from the graph of its own code.

A program bakes in what the residual has read, as a recorded graph does; it belongs to a plan, and lives and dies with
it.
"""

import os
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from mslsq.kernels.build import CompilerError
from mslsq.linearize.agreement import DerivativeMismatchError, compare_program
from mslsq.linearize.blocks import BlockTerm, Values, of_a_block
from mslsq.linearize.ways import sample_at_ends
from mslsq.manifolds.space import Space
from mslsq.native.arrays import input_array, kind_of
from mslsq.native.building import Moves, Written, linearized, moved_at_rest, native_programs
from mslsq.native.operator import NativeProgram
from mslsq.native.recording import recorded
from mslsq.native.scalars import NotScalarError, Program, Scalar
from mslsq.native.text import Argument
from mslsq.problem.system import Inputs
from mslsq.tracing.graph import TRANSFORM_LOCK, distinct, graph_of
from mslsq.tracing.guard import REMEDIES, DataDependentError

Native = Literal["never", "wait"]


def wished() -> Native:
    """Are native programs made? `$MSLSQ_NATIVE`: never (the default), or wait: at once, while the solve waits."""
    value = os.environ.get("MSLSQ_NATIVE", "never")
    if value not in ("never", "wait"):
        raise ValueError(f"MSLSQ_NATIVE={value}: expected never or wait.")
    return value


@dataclass(frozen=True)
class Attempt:
    """What came of making a program."""

    program: NativeProgram | None
    why_not: str = ""
    """In words; empty where there is one."""


def attempted(block: BlockTerm, values: Values, inputs: Inputs) -> Attempt:
    """The native program of a term, compared with PyTorch on a few blocks; `inputs` as given by the user."""
    try:
        program = program_of(block, values, inputs)
        sample = sample_at_ends(block, values, inputs)
        compare_program(sample, replace(block, program=program))
    except (NotScalarError, CompilerError) as error:
        why = str(error)
    except DerivativeMismatchError:
        why = "its numbers differ from those of PyTorch"
    except DataDependentError as error:
        why = f"it has {REMEDIES[error.construct][0]}"
    except (RuntimeError, OSError) as error:
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    else:
        return Attempt(program)
    return Attempt(None, f"{block.term.name!r} has no native program: {why}")


def program_of(block: BlockTerm, values: Values, inputs: Inputs) -> NativeProgram:
    """The program of a term.

    Raises:
        NotScalarError: it has none; names the operation.
        CompilerError: there is no compiler.
        DataDependentError, RuntimeError: no graph can be recorded.
    """
    dtype = values[0].dtype
    if dtype not in (torch.float64, torch.float32):
        raise NotScalarError(f"programs are of float64 and float32, the variables are of {dtype}")

    def written(storages: tuple[Tensor, ...], first: Inputs) -> Written:
        return _written(block, storages, dict(first))

    with TRANSFORM_LOCK, torch.no_grad():
        scalars = of_a_block(written, block.term, block.batched, values, inputs)
    return native_programs([scalars])[0]


def _written(block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> Written:
    """Residual and Jacobian of a block as scalars, recorded at these numbers."""
    names, slots = list(first), len(storages)
    is_given = block.term.jacobians is not None
    function = block.linearization_of_block if is_given else block.residual_of_block

    def flat(*leaves: Tensor) -> Any:
        return function(tuple(leaves[:slots]), dict(zip(names, leaves[slots:], strict=True)))

    leaves = [*storages, *first.values()]
    graph = graph_of(flat, distinct(leaves), guarded=True, functional=True)
    program = Program(storages[0].dtype)
    outputs = recorded(program, graph, [input_array(number, leaf) for number, leaf in enumerate(leaves)])
    residual: list[Scalar] = list(outputs[0].reshape(-1))
    if is_given:
        jacobian = list(outputs[1].reshape(-1))
    else:
        jacobian = linearized(program, residual, _directions(block, program), sum(block.tangents))
    return Written.of(program, _arguments(block, leaves, names), residual, jacobian)


def _directions(block: BlockTerm, program: Program) -> dict[int, dict[int, Scalar]]:
    """By entry of the storages, how it follows the joint tangent."""
    one, first = program.constant(1, "real"), 0
    found: dict[int, dict[int, Scalar]] = {}
    moves: dict[Space, Moves] = {}
    for number, slot in enumerate(block.term.slots):
        space = block.system.unknowns[slot.unknown].space
        if space.is_euclidean:
            found |= {program.input(number, k, "real").number: {first + k: one} for k in range(space.tangent_dim)}
        else:
            if space not in moves:
                moves[space] = _moves(space, program.dtype)
            found |= moves[space].directions(program, number, first)
        first += space.tangent_dim
    return found


def _moves(space: Space, dtype: torch.dtype) -> Moves:
    example = [space.random(dtype=dtype), torch.zeros(space.tangent_dim, dtype=dtype)]
    graph = graph_of(lambda x, delta: [space.retract(x, delta)], example, guarded=True, functional=True)
    return moved_at_rest(graph, space.storage_dim, space.tangent_dim, dtype)


def _arguments(block: BlockTerm, leaves: list[Tensor], names: list[str]) -> list[Argument]:
    """Which tensors have a number of their own for each lane, as `BlockTerm.gather` and `prepare` give them."""
    lanes, _ = block.input_dims(names)
    own = [block.lanes_are_batch or not isinstance(slot.index, int) for slot in block.term.slots]
    own += [lanes[name] is not None for name in names]
    return [Argument(leaf.numel(), has, kind_of(leaf.dtype)) for leaf, has in zip(leaves, own, strict=True)]
