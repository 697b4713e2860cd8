"""The native program of a term's block: residual and Jacobian, whitening inside, from the graph of its own code.

A program bakes in what the residual has read, as a recorded graph does: a plan that has one watches what it reads.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import cache, partial
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, fx

from mslsq.kernels.build import CompilerError
from mslsq.linearize import terms_of_library
from mslsq.linearize.agreement import DerivativeMismatchError, compare_program
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.first_block import of_a_block
from mslsq.linearize.ways import sample_at_ends
from mslsq.manifolds.space import ManifoldSpace, Space
from mslsq.native import noted
from mslsq.native.arrays import input_array, kind_of
from mslsq.native.building import Kept, Making, Written, linearized
from mslsq.native.cuda.programs import CudaMaking, making
from mslsq.native.curvature import Motion
from mslsq.native.moves import Moves, moved_at_rest
from mslsq.native.noted import Noted
from mslsq.native.operator import NativeProgram
from mslsq.native.processor import VECTOR_BYTES, target
from mslsq.native.recording import recorded
from mslsq.native.scalars import NotScalarError, Program, Scalar
from mslsq.native.text import Argument
from mslsq.problem.system import Inputs
from mslsq.tracing.graph import TRANSFORM_LOCK, by_place, distinct, graph_of
from mslsq.tracing.guard import REMEDIES, DataDependentError

P = TypeVar("P")


class Quiet:
    """What is on its way and may come to nothing: that is never raised, `why_not` says it in words."""

    why_not = ""

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


class Drafted(Quiet):
    """One program on its way: the text is written when this is made, and what is compiled is taken up when it is asked
    for."""

    _making: Any = None
    _program: Any = None

    def wait(self, patience: float = math.inf) -> None:
        """Wait for the compiler, at most that number of seconds."""
        if self._making is not None and self._program is None and not self.why_not:
            self._making.wait(patience)

    @property
    def is_ready(self) -> bool:
        """Is the program compiled, and nothing known against it?"""
        if self._program is None and self._making is not None and not self.why_not:
            with self._saying_why():
                self._take_up()
        return self._program is not None and not self.why_not

    def _take_up(self) -> None:
        """`_program` of what is compiled by now, if it is."""
        self._program = self._making.program()


class Pending(Quiet, Generic[P]):
    """Programs of a term on their way: the text is written when this is made, what is compiled is compared with PyTorch
    when it is first asked for. Nothing is ever raised: `why_not` says in words why there will be none.

    Subclasses say what is written, and what it is compared with.
    """

    what: ClassVar[str] = ""
    """What the programs compute, of a term of that name."""

    def __init__(self, block: BlockTerm, values: Values, inputs: Inputs, compiled: bool = True):
        self._name = f"{self.what}{block.term.name!r}"
        self._making: Making[Any] | Kept[Any] | CudaMaking[Any] | None = None
        self._scalars: list[Any] = []
        self._compared: P | None = None
        self._device = values[0].device
        with self._saying_why(), TRANSFORM_LOCK, torch.no_grad():
            dtype = values[0].dtype
            if dtype not in (torch.float64, torch.float32):
                raise NotScalarError(f"programs are of float64 and float32, the variables are of {dtype}")

            def written(storages: tuple[Tensor, ...], first: Inputs) -> list[Any]:
                return self.written(block, storages, dict(first))

            self._scalars = of_a_block(written, block.term, block.batched, values, inputs)
            if compiled:
                self.compile()

    def written(self, block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> list[Any]:
        """The programs as scalars, recorded at the numbers of one block.

        Raises:
            NotScalarError: there is none; names the operation.
            DataDependentError, RuntimeError: no graph can be recorded.
        """
        raise NotImplementedError

    def checked(self, block: BlockTerm, values: Values, inputs: Inputs, programs: list[Any]) -> P:
        """The programs, compared with PyTorch on blocks of the term. DerivativeMismatchError where they differ."""
        raise NotImplementedError

    @property
    def sentence(self) -> str:
        """What has become of it, for `verbose`."""
        if self.why_not or self._making is None:
            return f"{self._name} has no native program: {self.why_not}"
        return self._making.build.sentence(self._name)

    def compile(self) -> None:
        """Begin with the compiler, if that has not been done. CompilerError where there is none."""
        if self._making is None and self._scalars:
            self._making = making(self._scalars, self._device)

    def load(self) -> bool:
        """Take what was compiled before; False where it would take the compiler."""
        if self._making is None and self._scalars and self._device.type == "cpu":
            with self._saying_why():
                self._making = Making.if_kept(self._scalars)
        return self._making is not None

    @property
    def is_settled(self) -> bool:
        """Is the compiler done with it, or is there nothing to compile?"""
        return bool(self.why_not) or self._making is None or self._making.is_settled

    def wait(self, patience: float = math.inf) -> None:
        """Wait for the compiler, at most that number of seconds."""
        if self._making is not None:
            self._making.wait(patience)

    def program(self, block: BlockTerm, values: Values, inputs: Inputs) -> P | None:
        """The program, once it is compiled and if it is right on blocks of this term; `inputs` as given by the user.

        It is compared once: the other sizes of a problem that grows take it as it is (of 28 ms that a pose added to 450
        takes, comparing it for every size was 5).
        """
        if self._compared is None and self._making is not None and not self.why_not:
            with self._saying_why():
                programs = self._making.programs()
                if programs is not None:
                    self._scalars.clear()  # megabytes
                    self._compared = self.checked(block, values, inputs, programs)
        return self._compared


class Draft(Pending[NativeProgram]):
    """Residual and Jacobian. Where a process before has noted which text their graph becomes, and the program is kept,
    it is taken without the text (unless it may not be: who wants the scalars)."""

    has_left_sign = False
    """Has the folder of programs been told (`linearize.signs`)?"""
    _to_note: tuple[list[str], int, frozenset[int]] | None = None
    """The keys of the text (`native.noted`), how many inputs it is given, and which of them it reads."""

    def __init__(
        self, block: BlockTerm, values: Values, inputs: Inputs, compiled: bool = True, may_be_kept: bool = True
    ):
        self._given, self._may_be_kept = (values, inputs), may_be_kept
        super().__init__(block, values, inputs, compiled)
        del self._given

    def written(self, block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> list[Any]:
        is_given = block.term.jacobians is not None
        function = block.linearization_of_block if is_given else block.residual_of_block
        arguments = arguments_of(block, storages, first)
        key_of_term = terms_of_library.key_of_term(block, *self._given, arguments)
        if self._is_kept(key_of_term, block, arguments, storages[0].dtype):
            return []
        graph = graph_of_block(function, storages, first)
        key = _key_of_text(block, graph, storages, arguments)
        if self._is_kept(key, block, arguments, storages[0].dtype):
            return []
        program, outputs = scalars_of(graph, storages, first)
        residual: list[Scalar] = list(outputs[0].reshape(-1))
        if is_given:
            jacobian = list(outputs[1].reshape(-1))
        else:
            jacobian = linearized(program, residual, motion_of(block, program).directions, sum(block.tangents))
        made = Written.of(program, arguments, residual, jacobian)
        keys = [one for one in (key_of_term, key) if one is not None]
        self._to_note = (keys, len(arguments), made.used) if keys else None
        return [made]

    def _is_kept(self, key: str | None, block: BlockTerm, arguments: tuple[Argument, ...], dtype: torch.dtype) -> bool:
        """Has a process before noted a text under this key, whose program is there? It is taken then."""
        known = noted.find(key) if key is not None and self._may_be_kept else None
        if known is None or known.inputs != len(arguments):
            return False
        form = arguments, known.used, partial(NativeProgram, rows=block.rows, columns=sum(block.tangents))
        self._making = Kept.found(known.digest, [form], dtype)
        return self._making is not None

    def leave_note(self) -> None:
        """Note which text the graph became, for processes that only load the program."""
        if self._to_note is not None and isinstance(self._making, Making):
            keys, inputs, used = self._to_note
            for key in keys:
                noted.note(key, Noted(self._making.build.digest, inputs, used))

    def checked(self, block: BlockTerm, values: Values, inputs: Inputs, programs: list[Any]) -> NativeProgram:
        compare_program(sample_at_ends(block, values, inputs), replace(block, program=programs[0]))
        return programs[0]


@dataclass
class Prospect:
    """What has been spent on steps with a term, and its program once that has paid. Terms of one family share it:
    problems that grow."""

    seconds: float = 0.0
    draft: Draft | None = None
    second: Any = None
    """Gradient and exact Hessian, for derivatives of solutions..."""
    mixed: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """... and the mixed derivatives, by the inputs that they are taken in (`linearize.second_order`)."""
    has_looked: bool = False
    """Has it been looked for among those of processes before?"""
    is_given_up: bool = False
    """Does what the residual reads change unseen? Then a program would be written again and again."""

    def give_up(self) -> None:
        self.draft, self.second, self.is_given_up = None, None, True
        self.mixed.clear()


def graph_of_block(
    function: Callable[..., Any], storages: tuple[Tensor, ...], first: dict[str, Tensor]
) -> fx.GraphModule:
    """A function of storages and inputs of one block, recorded at these numbers to be read."""
    leaves = distinct([*storages, *first.values()])
    return graph_of(by_place(function, len(storages), first), leaves, guarded=True, functional=True)


def scalars_of(
    graph: fx.GraphModule, storages: tuple[Tensor, ...], first: dict[str, Tensor]
) -> tuple[Program, list[Any]]:
    """The graph of a function of storages and inputs of one block as scalars: the program, and arrays of outputs."""
    program = Program(storages[0].dtype)
    leaves = [*storages, *first.values()]
    return program, recorded(program, graph, [input_array(number, leaf) for number, leaf in enumerate(leaves)])


def _key_of_text(
    block: BlockTerm, graph: fx.GraphModule, storages: tuple[Tensor, ...], arguments: Sequence[Argument]
) -> str | None:
    """By which a process finds what is noted of the program of a graph; None where nothing can be: manifolds of the
    user's own may change under their names."""
    spaces = [block.system.unknowns[slot.unknown].space for slot in block.term.slots]
    if not all(space.is_euclidean or is_of_library(space) for space in spaces) or storages[0].device.type != "cpu":
        return None
    named = [(space.name, space.storage_dim, space.tangent_dim) for space in spaces]
    is_given = block.term.jacobians is not None
    return noted.key_of(graph, VECTOR_BYTES[target()], is_given, tuple(named), tuple(map(astuple, arguments)))


def motion_of(block: BlockTerm, program: Program, twice: bool = False) -> Motion:
    """How the storages of a block follow its joint tangent; `twice` with second derivatives."""
    one, first = program.constant(1, "real"), 0
    directions: dict[int, dict[int, Scalar]] = {}
    bends: list[tuple[int, int, int, Scalar]] = []
    moves: dict[Space, Moves] = {}
    for number, slot in enumerate(block.term.slots):
        space = block.system.unknowns[slot.unknown].space
        if space.is_euclidean:
            directions |= {program.input(number, k, "real").number: {first + k: one} for k in range(space.tangent_dim)}
        else:
            if space not in moves:
                moves[space] = moves_of(space, program.dtype)
            directions |= moves[space].directions(program, number, first)
            bends += moves[space].bends(program, number, first) if twice else []
        first += space.tangent_dim
    return Motion(directions, bends, first)


def moves_of(space: Space, dtype: torch.dtype) -> Moves:
    """How a variable follows its tangent; of the library's own manifolds recorded once in a process, which takes 80 of
    the 190 ms of an SE(3) between factor's program. The code of a user's manifold may change under its name."""
    return kept_moves(space, dtype) if is_of_library(space) else _recorded_moves(space, dtype)


def is_of_library(space: Space) -> bool:
    """Is it a manifold of the library's own, whose code does not change?"""
    return isinstance(space, ManifoldSpace) and space.is_of_library


def _recorded_moves(space: Space, dtype: torch.dtype) -> Moves:
    # Of a generator of its own: the user's random numbers stay as they are.
    random = space.random(generator=torch.Generator().manual_seed(0), dtype=dtype, device="cpu")
    example = [random, torch.zeros(space.tangent_dim, dtype=dtype, device="cpu")]
    graph = graph_of(lambda x, delta: [space.retract(x, delta)], example, guarded=True, functional=True)
    return moved_at_rest(graph, space.storage_dim, space.tangent_dim, dtype)


kept_moves = cache(_recorded_moves)


def arguments_of(block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> tuple[Argument, ...]:
    """Which tensors have a number of their own for each lane, as `BlockTerm.gather` and `prepare` give them."""
    lanes, _ = block.input_dims(first)
    own = [block.lanes_are_batch or not slot.is_shared for slot in block.term.slots]
    own += [lanes[name] is not None for name in first]
    leaves = [*storages, *first.values()]
    return tuple(Argument(leaf.numel(), has, kind_of(leaf.dtype)) for leaf, has in zip(leaves, own, strict=True))
