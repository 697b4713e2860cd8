"""The native program of a term's block: residual and Jacobian, whitening inside, from the graph of its own code.

A program bakes in what the residual has read, as a recorded graph does; it belongs to a plan, and lives and dies with
it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mslsq.kernels.build import CompilerError
from mslsq.linearize.agreement import DerivativeMismatchError, compare_program
from mslsq.linearize.blocks import BlockTerm, Values, of_a_block
from mslsq.linearize.ways import sample_at_ends
from mslsq.manifolds.space import ManifoldSpace, Space
from mslsq.native.arrays import input_array, kind_of
from mslsq.native.building import Making, Moves, Written, linearized, moved_at_rest
from mslsq.native.operator import NativeProgram
from mslsq.native.recording import recorded
from mslsq.native.scalars import NotScalarError, Program, Scalar
from mslsq.native.text import Argument
from mslsq.problem.system import Inputs
from mslsq.tracing.graph import TRANSFORM_LOCK, distinct, graph_of
from mslsq.tracing.guard import REMEDIES, DataDependentError


class Draft:
    """The program of a term on its way: its text is written when this is made, what is compiled is compared with
    PyTorch when it is first asked for. Nothing is ever raised: `why_not` says in words why there will be none."""

    def __init__(self, block: BlockTerm, values: Values, inputs: Inputs):
        self.why_not = ""
        self._name = repr(block.term.name)
        self._making: Making | None = None
        with self._saying_why():
            self._making = making_of(block, values, inputs)

    @property
    def sentence(self) -> str:
        """What has become of it, for `verbose`."""
        if self.why_not or self._making is None:
            return f"{self._name} has no native program: {self.why_not}"
        return self._making.build.sentence(self._name)

    def wait(self) -> None:
        """Wait for the compiler."""
        if self._making is not None:
            self._making.wait()

    def program(self, block: BlockTerm, values: Values, inputs: Inputs) -> NativeProgram | None:
        """The program, once it is compiled and if it is right on blocks of this term; `inputs` as given by the user."""
        if self._making is not None and not self.why_not:
            with self._saying_why():
                programs = self._making.programs()
                if programs is not None:
                    compare_program(sample_at_ends(block, values, inputs), replace(block, program=programs[0]))
                    return programs[0]
        return None

    @contextmanager
    def _saying_why(self) -> Iterator[None]:
        try:
            yield
        except (NotScalarError, CompilerError) as error:
            self.why_not = str(error)
        except DerivativeMismatchError:
            self.why_not = "its numbers differ from those of PyTorch"
        except DataDependentError as error:
            self.why_not = f"it has {REMEDIES[error.construct][0]}"
        except (RuntimeError, OSError, ValueError) as error:
            self.why_not = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


@dataclass
class Prospect:
    """What has been spent on steps with a term, and its program once that has paid. Terms of one family share it:
    problems that grow."""

    seconds: float = 0.0
    draft: Draft | None = None
    is_given_up: bool = False
    """Does what the residual reads change unseen? Then a program would be written again and again."""

    def give_up(self) -> None:
        self.draft, self.is_given_up = None, True


def making_of(block: BlockTerm, values: Values, inputs: Inputs) -> Making:
    """The program of a term, with the compiler; `inputs` as given by the user.

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
    return Making([scalars])


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
                moves[space] = moves_of(space, program.dtype)
            found |= moves[space].directions(program, number, first)
        first += space.tangent_dim
    return found


def moves_of(space: Space, dtype: torch.dtype) -> Moves:
    """How a variable follows its tangent; of the library's own manifolds recorded once in a process, which takes 80 of
    the 190 ms of an SE(3) between factor's program. The code of a user's manifold may change under its name."""
    return _kept_moves(space, dtype) if is_of_library(space) else _recorded_moves(space, dtype)


def is_of_library(space: Space) -> bool:
    """Is this one of the library's own manifolds, whose code does not change?"""
    return isinstance(space, ManifoldSpace) and space.manifold.__module__.startswith("mslsq.manifolds.")


def _recorded_moves(space: Space, dtype: torch.dtype) -> Moves:
    # Of a generator of its own: the user's random numbers stay as they are.
    random = space.random(generator=torch.Generator().manual_seed(0), dtype=dtype, device="cpu")
    example = [random, torch.zeros(space.tangent_dim, dtype=dtype, device="cpu")]
    graph = graph_of(lambda x, delta: [space.retract(x, delta)], example, guarded=True, functional=True)
    return moved_at_rest(graph, space.storage_dim, space.tangent_dim, dtype)


_kept_moves = cache(_recorded_moves)


def _arguments(block: BlockTerm, leaves: list[Tensor], names: list[str]) -> list[Argument]:
    """Which tensors have a number of their own for each lane, as `BlockTerm.gather` and `prepare` give them."""
    lanes, _ = block.input_dims(names)
    own = [block.lanes_are_batch or not isinstance(slot.index, int) for slot in block.term.slots]
    own += [lanes[name] is not None for name in names]
    return [Argument(leaf.numel(), has, kind_of(leaf.dtype)) for leaf, has in zip(leaves, own, strict=True)]
