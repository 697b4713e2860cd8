"""What is kept between the solves of one problem at one set of shapes: structure, ways to differentiate, graphs."""

from collections.abc import Hashable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from mslsq.linear import LinearSolver
from mslsq.linear.iterative.block_rows import BlockRows
from mslsq.linearize.assembly import Assembly
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.compressed import CompressedPlan
from mslsq.linearize.derivatives import Way
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.pattern import Pattern, Placement
from mslsq.linearize.programs import Prospect
from mslsq.linearize.second_order import MixedProgram
from mslsq.linearize.trace import Execution, Notes
from mslsq.native.choice import Native
from mslsq.native.operator import NativeProgram, SecondOrder
from mslsq.native.replaying import ReplayedProgram
from mslsq.problem.structure import Structure
from mslsq.problem.system import System
from mslsq.ranks import ALONE, Ranks
from mslsq.tracing.recording import Recorded

LARGEST_STEP = 20_000
"""Columns of block-sparse normal equations whose steps are recorded as a whole. The operations around linearization and
factorisation take a millisecond of Python: four times as long as these of a sphere of 60 poses (354 columns), a quarter
of a step of parking-garage (9,966) and a tenth of one of sphere2500 (15,000)."""

LARGEST_SHARED = 1000
"""Columns of those whose plan is kept for other problems that are alike."""


@dataclass
class Plan:
    """What is kept between solves of one problem at one set of shapes: structure, sizes, graphs. Holds no tensor of
    the user's."""

    structure: Structure
    pattern: Pattern | None
    """Of block-sparse normal equations; None where they are dense."""
    placements: tuple[Placement, ...]
    """Per term, where its blocks go."""
    sizes: tuple[tuple[int, int], ...]
    """Per term: rows of the residual of one block, and how many are complex."""
    ways: dict[int, Way] = field(default_factory=dict)
    """By term: how it is differentiated, where that is not the ordinary way."""
    prospects: dict[int, Prospect] = field(default_factory=dict)
    """By term: its native program on its way..."""
    programs: dict[int, NativeProgram] = field(default_factory=dict)
    """... and where it is there, fixed as long as the plan lives."""
    native: "Plan | None" = field(default=None, init=False)
    """The same with programs, for solves that may run them..."""
    patience: float = field(default=0.0, init=False)
    """Seconds that a solve is to wait for programs although it does not wish so: what its steps would take without."""
    tried: frozenset[int] = field(default=frozenset(), init=False)
    """... and the terms that had one, or none, when that was made."""
    pays_after: float = field(default=0.0, init=False)
    """Seconds of solves from which on programs of some terms alone are worth that all graphs are recorded again."""
    without: "Plan | None" = field(default=None, init=False, repr=False)
    """Of a plan with programs: the one without."""
    seconds: dict[int, SecondOrder] = field(default_factory=dict)
    """By term: gradient and exact Hessian as programs of scalars, where they are there..."""
    guards: dict[int, ReplayedProgram] = field(default_factory=dict)
    """... with residual and Jacobian of the same recording, for the comparison with the user's Python..."""
    mixed: dict[tuple[int, tuple[str, ...]], MixedProgram] = field(default_factory=dict)
    """... and mixed derivatives, by the term and its inputs."""
    replaced: list[SecondOrder | MixedProgram] = field(default_factory=list)
    """What has been replaced in these two: a graph that is running may still name it."""
    whole: Any = None
    """What is known of a native program of whole solves (`solvers.whole_solves`)..."""
    holds_whole: bool = False
    """... has it been taken up..."""
    whole_witness: Recorded | None = None
    """... and which graph is it that was compared with the user's Python when it was?"""
    ends_witness: dict[Hashable, Recorded | None] = field(default_factory=dict)
    """The same of programs for the ends of whole solves, by their names (`adjoint.ends`)."""
    steps: Any = None
    """What is known of a native program of steps alone (`solvers.native_steps`)."""
    rows: BlockRows | None = None
    """Where the blocks of every term stand, if normal equations are never formed."""
    ranks: Ranks = ALONE
    """The processes that solve the problem together, each with its own terms here."""
    changes_unseen: bool = False
    """Does a residual read what no key can hold? Then its ways are chosen again in every solve."""
    has_users_manifold: bool = False
    """Is a variable on a manifold whose code may change under its name?"""
    hessians_checked: bool = False
    """Have second derivatives been compared with plain reverse mode?"""
    rounding: dict[int, float] = field(default_factory=dict)
    """By term: how many times what its derivative tells of rounding its numbers were allowed to differ by, for the
    solves that may not ask."""
    calls: int = 0
    """Solves so far."""
    has_gone_stale: bool = False
    """Was something recorded found to differ from the user's Python?"""
    trusted: Any = field(default=None, init=False, repr=False)
    """What is known of the code that it was made of (`front.trust`)."""
    loops: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """By solver the short way around its recorded steps (`solvers.short_loop`)."""
    parts: dict[int, "Plan"] = field(default_factory=dict, init=False, repr=False)
    """For parts of the batch, by their sizes (`solvers.compaction`)."""
    notes: Notes = field(default_factory=Notes)
    """What was found while planning."""

    def __post_init__(self) -> None:
        self.execution = Execution(self.is_large, self.notes)

    def of_batch(self, size: int) -> "Plan":
        """The same for a part of its batch of this many problems, two or more, with graphs of its own."""
        if size not in self.parts:
            part = replace(self, ways=dict(self.ways), notes=Notes(), rounding=dict(self.rounding))
            part.execution.why_eager = self.execution.why_eager
            part.execution.needs_witness = self.execution.needs_witness
            self.parts[size] = part
        return self.parts[size]

    def with_programs(self, programs: dict[int, NativeProgram]) -> "Plan":
        """The same with native programs, and with graphs of its own: they are recorded again at once where that has
        paid before."""
        notes = Notes(self.notes.text)
        placements = tuple(
            placement.with_segments(programs[number].dtype) if number in programs else placement
            for number, placement in enumerate(self.placements)
        )
        native = replace(self, programs=programs, placements=placements, ways=dict(self.ways), notes=notes)
        native.without, native.execution = self, self.execution.again(notes)
        return native

    @property
    def plain(self) -> "Plan":
        """The plan without programs: one for all solves at these shapes."""
        return self.without or self

    @property
    def compressed(self) -> CompressedPlan | None:
        """Of a system that is one big residual, if its sparsity is made use of."""
        return self.ways[0].sparsity if 0 in self.ways else None

    @property
    def is_large(self) -> bool:
        """Are the normal equations too large to be dense? Then it is single functions that are recorded, not steps."""
        return self.pattern is not None or self.rows is not None

    @property
    def records_steps(self) -> bool:
        """Is a step recorded as one graph? Of what is larger only the linearization is: nearly all of the time goes
        there and to the factorisation, recording takes half as long, and a rejected trial need not be linearized."""
        if not self.ranks.is_alone:
            return False  # what processes tell each other is in no graph
        if not self.is_large:
            return True
        is_small = self.pattern is not None and self.structure.size <= LARGEST_STEP and self.is_on_cpu
        return is_small and self.compressed is None

    @property
    def may_be_shared(self) -> bool:
        """May it serve other problems that are alike, longer than the one it was made for lives? It is small then, and
        all that it depends on is in its key."""
        is_known = not self.changes_unseen and not self.execution.why_eager and not self.has_users_manifold
        is_small = not self.is_large or self.structure.size <= LARGEST_SHARED
        return is_small and self.records_steps and self.compressed is None and is_known

    @property
    def is_for_programs(self) -> bool:
        """Does `compile=True` mean native programs here, not PyTorch's compiler? Where single functions are compiled
        and not steps, on a CPU: a program takes a second to compile instead of a minute, and runs as fast or faster."""
        return self.is_large and self.is_on_cpu and self.compressed is None

    @property
    def is_on_cpu(self) -> bool:
        return self.structure.columns[0].device.type == "cpu"

    def may_be_asked(self, early_stop: bool) -> bool:
        """May a solve read numbers to decide what it does next? Of another device than a CPU not where it takes a fixed
        number of steps: reading waits for all that was asked of the device before."""
        return early_stop or self.is_on_cpu

    def may_have_programs(self, wish: Native) -> bool:
        """May its blocks be linearized by native programs in a solve that wishes so? On a GPU only where it waits for
        them: none has been timed there, by which it could be said when they pay."""
        on_gpu = self.structure.columns[0].device.type == "cuda" and wish == "wait"
        return wish != "never" and self.compressed is None and (self.is_on_cpu or on_gpu)

    @property
    def holds_residuals(self) -> bool:
        """Has a residual been rewritten as a graph?"""
        return any(way.residual is not None for way in self.ways.values())

    @property
    def holds_programs(self) -> bool:
        """Has a residual been written as a native program?"""
        return bool(self.programs) or self.holds_whole

    def second_order(self, number: int, native: bool, replayed: bool) -> SecondOrder | None:
        """The programs of the second derivatives of a term, if a solve that uses what is compiled (`native`), and what
        PyTorch runs (`replayed`), may take them: it must notice if they go stale. What it compares with the user's
        Python is the residual and Jacobian of a program or of a graph, that were made when they were."""
        found = self.seconds.get(number)
        if found is None or not (native if found.is_compiled else replayed):
            return None
        guarded = (native and number in self.programs) or number in self.guards or self.execution.is_witnessed
        return found if guarded else None

    def take_up(self, known: MutableMapping[Any, Any], key: Hashable, program: SecondOrder | MixedProgram) -> None:
        """Enter a program in `seconds` or `mixed`; graphs that were recorded with another one go. As long as a term has
        no second derivatives as a program, none of the others' is called."""
        is_first = key not in known
        if not is_first:
            self.replaced.append(known[key])
        known[key] = program
        if (is_first and known is self.mixed) or len(self.seconds) < len(self.sizes):
            return  # no graph was recorded with another one
        for plan in (self.plain, self.plain.native):
            if plan is not None:
                plan.execution.keep_steps_alone()

    def has_second_order(self, native: bool, replayed: bool) -> bool:
        """Are there programs of the second derivatives of all terms?"""
        return all(self.second_order(number, native, replayed) is not None for number in range(len(self.sizes)))

    def blocks(
        self,
        system: System,
        batch: int,
        batched: tuple[frozenset[str], ...],
        native: bool = False,
        replayed: bool = False,
    ) -> tuple[BlockTerm, ...]:
        """The terms of a system for this plan, ready to be mapped, each in its way; `native` with their programs,
        `replayed` with those that PyTorch runs."""
        found = []
        for number, (term, own, size) in enumerate(zip(system.terms, batched, self.sizes, strict=True)):
            program = self.programs.get(number) if native else None
            second = self.second_order(number, native, replayed)
            block = BlockTerm(term, system, batch, own, *size, program=program, second=second)
            found.append(block.going(self.ways.get(number, block.way)))
        return tuple(found)

    def linearizer(
        self,
        system: System,
        batch: int,
        batched: tuple[frozenset[str], ...],
        linear_solver: LinearSolver,
        fused: bool = False,
        differentiable: bool = False,
        native: bool = False,
        replayed: bool = False,
    ) -> Linearizer:
        """The functions of a system for this plan; `differentiable` where linearizations are to carry derivatives,
        `native` where they may be native programs, which have none, `replayed` where second derivatives may be programs
        that PyTorch runs."""
        storage = linear_solver.storage
        sparse = storage.is_normal and not storage.is_dense
        blocks = self.blocks(system, batch, batched, native, replayed)
        assemblies = tuple(
            Assembly(block, self.structure, placement, sparse, fused, differentiable)
            for block, placement in zip(blocks, self.placements, strict=True)
        )
        return Linearizer(system, self.structure, assemblies, linear_solver, self.ranks)
