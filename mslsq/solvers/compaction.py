"""What is left of a batch: problems that have stopped are not stepped on with those that have not.

A step costs what its batch costs, and a batch in which one problem in a hundred needs two hundred steps would take two
hundred full ones. Once most have stopped, the rest goes on as a batch of its own. The sizes of such batches are powers
of two, filled up with problems that stand still, so that few graphs are recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.problem.system import Inputs
from mslsq.pytree import map_leaves
from mslsq.solution import Status
from mslsq.solvers.choices import creep_of, linearizer_of
from mslsq.solvers.runner import Runner
from mslsq.solvers.state import Record, State
from mslsq.solvers.task import Task
from mslsq.solvers.witness import Witness
from mslsq.tracing.graph import TRANSFORM_LOCK

SHARE = 4
"""The rest goes on alone once it is at most one problem in this number."""

LEAST = 50_000
"""Numbers in the Jacobians of a batch below which a step takes what its operators take, however few the problems."""

PATIENCE = 5
"""Steps with such a rest before it goes on alone: most batches end within a few."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch that can be stepped, and all that it is made of."""

    task: Task
    plan: Plan
    linearizer: Linearizer
    prepared: TermInputs
    inputs: tuple[Inputs, ...]
    """The users' tensors."""
    witness: Witness
    native: bool
    """May blocks be linearized by native programs?"""
    differentiated: bool

    def runner(self, is_looked_at: bool) -> Runner:
        """What steps it."""
        creep = creep_of(self.task, self.linearizer.linear_solver)
        return Runner(self.plan, self.linearizer, self.task.solver, self.prepared, self.witness, creep, is_looked_at)

    @property
    def may_shrink(self) -> bool:
        """Can a part of it be solved alone, and would that be less work?"""
        blocks = self.linearizer.blocks
        numbers = sum(block.rows * sum(block.tangents) * block.term.num_blocks for block in blocks) * self.task.batch
        return self.task.ranks.is_alone and self.plan.compressed is None and numbers >= LEAST

    def part(self, places: Int[Tensor, "part"]) -> "Batch":
        """The batch of the problems at these places."""
        task = self.task.of_batch(len(places), self.task.batched)
        inputs = tuple(
            {name: x.index_select(0, places) if name in own else x for name, x in given.items()}
            for own, given in zip(task.batched, self.inputs, strict=True)
        )
        plan = self.plan.of_batch(len(places))
        linearizer = linearizer_of(task, plan, self.native)
        witness = Witness(task, plan, linearizer.blocks, inputs, self.differentiated)
        prepared = linearizer.prepare(inputs)
        return replace(
            self, task=task, plan=plan, linearizer=linearizer, prepared=prepared, inputs=inputs, witness=witness
        )


@dataclass(frozen=True, eq=False)
class Remaining:
    """The problems that are stepped, some or all of a batch, and how all of it stands."""

    batch: Batch
    runner: Runner
    state: State
    """Of the problems that are stepped."""
    record: Record
    """Of their last step."""
    start: Values
    """Where they began to be stepped together."""
    before: "Remaining | None" = None
    """What they are a part of; None of the whole batch."""
    places: Int[Tensor, "remaining"] | None = None
    """Where in that they are, the filling left out."""
    patience: int = PATIENCE

    @classmethod
    def of(cls, batch: Batch, runner: Runner, state: State, record: Record) -> "Remaining":
        """All of a batch."""
        return cls(batch, runner, state, record, state.values)

    def stepped(self, bends: bool) -> "Remaining":
        """After one more step; `bends` if one of the problems creeps."""
        state, record = self.runner.step(self.state, bends)
        return replace(self, state=state, record=record)

    def looked_at(self, count: int) -> "Remaining":
        """What goes on, where `count` are running: a smaller batch, if that has become worth it."""
        total = len(self.state.status)
        if count == 0 or count * SHARE > total or not self.batch.may_shrink:
            return self
        if self.patience > 0:
            return replace(self, patience=self.patience - 1)
        places = (self.state.status == Status.RUNNING).nonzero()[:, 0]
        size = max(2, 1 << (count - 1).bit_length())
        filled = torch.cat((places, places[:1].expand(size - count)))

        def taken(x: Tensor) -> Tensor:
            return x.index_select(0, filled) if len(x) == total else x

        part, values = self.batch.part(filled), map_leaves(taken, self.state.values)
        runner, box = part.runner(is_looked_at=True), map_leaves(taken, self.state.box)
        begun, _ = runner.start(values, box)
        stands = torch.arange(size, device=filled.device) >= count
        kept = map_leaves(taken, self.state._replace(values=(), model=(), box=()))
        status = torch.where(stands, int(Status.MAX_STEPS), kept.status)
        state = kept._replace(values=values, model=begun.model, status=status, box=box)
        return Remaining(part, runner, state, map_leaves(taken, self.record), values, self, places)

    def of_all(self, what: Callable[["Remaining"], Tensor]) -> Tensor:
        """Something of every problem of the whole batch; of one that has stopped as it was when it was stepped last."""
        own = what(self)
        if self.before is None or self.places is None:
            return own
        return self.before.of_all(what).index_copy(0, self.places, own[: len(self.places)])

    def all_records(self) -> Record:
        """The last step, of the whole batch."""
        return Record(*(self.of_all(lambda part, n=n: part.record[n]) for n in range(len(Record._fields))))

    def all_values(self) -> Values:
        """The variables of the whole batch."""
        return tuple(self.of_all(lambda part, n=n: part.state.values[n]) for n in range(len(self.state.values)))

    def all_matrices(self) -> Tensor:
        """The matrix of the whole batch at `all_values`: storages may differ from part to part."""
        if self.before is None:
            return self.state.model.matrix
        whole = self.before
        while whole.before is not None:
            whole = whole.before
        with TRANSFORM_LOCK, torch.no_grad():
            return whole.batch.linearizer.linearize(self.all_values(), whole.batch.prepared).matrix

    def disagrees(self) -> Tensor | None:
        """Does a graph of one of the parts differ from the user's Python? None where there is nothing to compare."""
        if self.before is None:
            return None  # that is the solve's to ask
        found = (self.batch.witness.disagrees(self.start, self.state.values), self.before.disagrees())
        asked = [answer for answer in found if answer is not None]
        return torch.stack(asked).any() if asked else None
