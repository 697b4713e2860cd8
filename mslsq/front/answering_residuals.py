"""Calls of a residual that differ in nothing but numbers: what they have in common, and how they are answered at once.

What a call has shown to hold for every call like it is kept here: shapes, what the residual reads, the way to its
program. What no call can show is compared in each, as every solve compares it (`solvers.witness`); where the code is
closed (`closed_costs`) there is no such thing, and it is compared in turn.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint
from mslsq.front.batching import Axes
from mslsq.front.closed_costs import Turns, closed_callable
from mslsq.front.direct import Direct, Found, is_plain
from mslsq.front.direct_batch import DirectBatch
from mslsq.front.residual_statement import stated_residual
from mslsq.front.statement import RESIDUAL_AND_JACOBIAN, Solved, jacobian_mode_of
from mslsq.front.trust import compare_next
from mslsq.levels import modes_of_a_residual
from mslsq.linearize.baked import global_key, tensor_key
from mslsq.linearize.derivatives import Mode
from mslsq.linearize.trace import Wish
from mslsq.problem.leaf import LeafSpace
from mslsq.problem.system import residual_vector
from mslsq.solution import Solution
from mslsq.solvers.outer import OuterSolver
from mslsq.solvers.solver import Solver
from mslsq.solvers.witness_of_one import agrees
from mslsq.tracing.reading.closed import Closed
from mslsq.tracing.reading.inputs import Collected
from mslsq.tracing.reading.noted import Noted
from mslsq.tracing.reading.values import SCALARS, TENSORS, value_of


@dataclass(frozen=True, eq=False)
class ResidualCall:
    """A residual with a start and arguments, as a call gives them, without a Jacobian, a loss or bounds."""

    residual: Callable[..., Any]
    arguments: tuple[Any, tuple[Any, ...]]
    """The start, and the arguments of the residual behind it."""
    solver: Solver | OuterSolver | None
    adjoint: Adjoint | None
    in_dims: int | tuple[int | None, ...] | None
    options: tuple[Hashable, ...]
    """All else that a call depends on besides its residual and its arguments."""

    @staticmethod
    def of(
        residual: Any,
        x0: Any,
        args: Any,
        solver: Solver | OuterSolver | None,
        adjoint: Adjoint | None,
        in_dims: Any = None,
    ) -> "ResidualCall | None":
        """The call, where calls like it may be answered at once; None of others."""
        if not callable(residual) or type(args) is not tuple or isinstance(solver, OuterSolver) or not is_plain():
            return None
        if not all(dim is None or type(dim) is int for dim in (in_dims if type(in_dims) is tuple else (in_dims,))):
            return None
        options = solver, adjoint, in_dims, global_key()
        return ResidualCall(residual, (x0, args), solver, adjoint, in_dims, options)


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of calls like one before. Holds no tensor and no function of the user's."""

    form: pytree.Form
    kinds: list[Hashable]
    """What every leaf of the arguments has in common with those of such a call."""
    options: tuple[Hashable, ...]
    state: tuple[Any, ...]
    """All that the residual reads besides its arguments, but for what no key can hold."""
    spaces: tuple[LeafSpace, ...]
    """Of the leaves of the start."""
    names: tuple[str, ...]
    """What the leaves of the arguments behind the start, and then the tensors that the residual holds, are called
    among the inputs; empty for what is no tensor."""
    axes: tuple[int | None, ...]
    """Of the leaves of the start, and of all these, the batch axis."""
    size: int | None
    """Of the batch; None of one problem."""
    direct: Direct | DirectBatch
    wish: Wish
    closed: Closed | None
    """Where its code reads nothing but what is compared here."""
    noted: Noted | None
    """By which it is seen at once that it reads the same."""
    turns: Turns

    @staticmethod
    def of(
        call: ResidualCall, collected: Collected, direct: Direct | DirectBatch, solved: Solved, axes: Axes
    ) -> "Known | None":
        form = pytree.Form(call.arguments)
        if not form.fits(call.arguments):
            return None
        leaves = form.leaves(call.arguments)
        if not all(type(leaf) in TENSORS or type(leaf) in SCALARS for leaf in leaves):
            return None
        (given,) = solved.statement.leaves
        by_tensor = {id(leaf.tensor): leaf.name for leaf in given}
        spaces = tuple(unknown.space for unknown in solved.statement.system.unknowns)
        assert all(isinstance(space, LeafSpace) for space in spaces)
        if not all(space.is_euclidean for space in spaces):
            return None  # a residual is given elements, the leaves of the form are storages
        behind = [*leaves[len(spaces) :], *collected.tensors.values()]
        names = tuple(by_tensor[id(leaf)] if isinstance(leaf, Tensor) else "" for leaf in behind)
        if [name for name in names if name] != [leaf.name for leaf in given]:
            return None  # one tensor in two places
        kinds = [kind_of_leaf(leaf) for leaf in leaves]
        state, wish = state_of(collected), solved.solver.execution
        is_plain = pytree.is_of_library(call.arguments) and all(
            type(x) in SCALARS or type(x) in TENSORS for x in leaves
        )
        closed = closed_callable(collected) if is_plain else None
        if closed is None and solved.is_batch:
            return None  # what is compared in every call is stated
        noted = None if closed is None else Noted.of(collected, looks_at_objects=True)
        dims = (*[axis for own in axes.of for axis in own], *[None] * len(collected.tensors))
        like, size = (form, kinds, call.options, state), solved.statement.size
        return Known(*like, spaces, names, dims, size, direct, wish, closed, noted, Turns())  # type: ignore[arg-type]

    def leaves_of(self, call: ResidualCall) -> list[Any] | None:
        """The leaves of its arguments, if it differs in nothing but numbers, and in what its residual reads."""
        if not self.form.fits(call.arguments) or call.options != self.options:
            return None
        leaves = self.form.leaves(call.arguments)
        return leaves if list(map(kind_of_leaf, leaves)) == self.kinds else None

    def answer_at_once(self, call: ResidualCall, leaves: list[Any] | None = None) -> "Answered | None":
        """What the program answers to such a call where nothing that its residual reads has changed; else None. Not
        where it is its turn to be compared with it, and batches or tensors that the residual holds take the long way.

        Args:
            leaves: those of its arguments, where it is known to differ in nothing but numbers.
        """
        is_due = self.turns.is_next_due
        if self.noted is None or self.closed is None or (is_due and (self.size is not None or self.noted.tensors)):
            return None
        leaves = self.leaves_of(call) if leaves is None else leaves
        if leaves is None or not self.noted.holds(call.residual) or not self.closed.holds:
            return None
        held = [x() for x in self.noted.tensors]
        if [None if x is None else tensor_key(x) for x in held] != [key for _, key in self.state[-1]]:
            return None
        inputs = self._inputs(leaves, held)
        starts = self._starts(leaves)
        found = self.direct.found(starts, (inputs,))
        if found is None:
            return None
        self.turns.is_due()
        is_right = not is_due or self._agrees(found, starts, inputs, self._residual(call, leaves), in_turn=True)
        return Answered(call, self, found, inputs, is_right)

    def _starts(self, leaves: list[Any]) -> tuple[Tensor, ...]:
        """(batch or 1, 1, storage) of every unknown."""
        starts = leaves[: len(self.spaces)]
        if self.size is None:
            return tuple([x.reshape(1, 1, -1) for x in starts])
        shared = [axis is None for axis in self.axes]
        moved = [x.movedim(axis, 0) if axis else x for x, axis in zip(starts, self.axes, strict=False)]
        shaped = [x.reshape(1 if one else self.size, 1, -1) for x, one in zip(moved, shared, strict=False)]
        return tuple([x.expand(self.size, 1, -1) for x in shaped])

    def _inputs(self, leaves: list[Any], held: Iterable[Any]) -> dict[str, Tensor]:
        """By name, from the leaves of the arguments and from the tensors that the residual holds."""
        count = len(self.spaces)
        named = zip(self.names, (*leaves[count:], *held), self.axes[count:], strict=True)
        return {name: x.movedim(axis, 0) if axis else x for name, x, axis in named if name}

    def answer(self, call: ResidualCall, collected: Collected) -> "Answered | None":
        """What the program answers to such a call; None where it takes more than the program."""
        leaves = self.form.leaves(call.arguments)
        if self.size is not None and (self.turns.is_next_due or not (self.closed and self.closed.holds)):
            self.turns.is_due()
            compare_next(self.direct.plan)
            return None
        inputs = self._inputs(leaves, collected.tensors.values())
        starts = self._starts(leaves)
        found = self.direct.found(starts, (inputs,))
        if found is None:
            return None
        is_closed = self.closed is not None and self.closed.holds
        if is_closed and not self.turns.is_due():
            return Answered(call, self, found, inputs, True)
        is_right = self._agrees(found, starts, inputs, self._residual(call, leaves, collected), in_turn=is_closed)
        return Answered(call, self, found, inputs, is_right)

    def _agrees(
        self,
        found: Found,
        starts: tuple[Tensor, ...],
        inputs: dict[str, Tensor],
        residual: Callable[[tuple[Tensor, ...]], Tensor],
        in_turn: bool,
    ) -> bool:
        """Is what the program has found that of the user's Python?"""
        assert isinstance(self.direct, Direct)  # batches were told before
        return agrees(self.direct.plan, self.wish, starts, found.storages, inputs, residual, in_turn)

    def _residual(
        self, call: ResidualCall, leaves: list[Any], collected: Collected | None = None
    ) -> Callable[[tuple[Tensor, ...]], Float[Tensor, "rows"]]:
        """The user's own, of storages.

        Args:
            collected: what it reads, where tensors are among that.
        """
        count, dtype = len(self.spaces), leaves[0].dtype

        def residual(storages: tuple[Tensor, ...]) -> Tensor:
            shaped = zip(self.spaces, storages, strict=True)
            x0 = [x if space.shape == x.shape else space.wrap(x) for space, x in shaped]
            x, args = self.form.tree([*x0, *[_own(leaf) for leaf in leaves[count:]]])
            held = {} if collected is None else {name: _own(x) for name, x in collected.tensors.items()}
            with modes_of_a_residual():
                if collected is not None and held:
                    output = collected.applied(held, lambda function: function(x, *args))
                else:
                    output = call.residual(x, *args)
            return residual_vector(output)[0].to(dtype)

        return residual


@dataclass(frozen=True, eq=False)
class Answered:
    """The solution of a call that a program has answered, with what `Solved` tells of other calls."""

    call: ResidualCall
    known: Known
    found: Found
    inputs: dict[str, Tensor]
    is_right: bool
    """Is what the program has solved the residual of this call?"""

    @property
    def is_batch(self) -> bool:
        return self.known.size is not None

    @property
    def solution(self) -> Solution:
        return self.found.solution

    @property
    def solver(self) -> Solver:
        return self.known.direct.solver

    @property
    def jacobian_mode(self) -> Mode:
        return jacobian_mode_of(self.known.direct.plan)

    def normal_equations(self) -> tuple[float, np.ndarray] | None:
        """The cost at the solution, and JᵀJ, (columns, columns), of all entries of the unknowns in order; None where
        the program does not have them like that."""
        solved, structure = self.found.solved, self.known.direct.plan.structure
        if solved is None or not structure.natural or structure.num_components != 1:
            return None
        cost, entries = solved.cost_and_matrix
        return cost, entries.reshape(structure.size, structure.size)

    def residual_and_jacobian(self) -> tuple[Float[Tensor, "1 rows"], Float[Tensor, "1 rows columns"]]:
        """At the solution."""
        plan, solver = self.known.direct.plan, self.solver
        graph = plan.execution.known(RESIDUAL_AND_JACOBIAN, self.known.wish)
        if graph is None or self.is_batch:
            statement = stated_residual(self.call.residual, *self.call.arguments, in_dims=self.call.in_dims).statement
            solved = Solved(statement, self.solution, self.found.storages, plan, solver, (self.inputs,))
            return solved.residual_and_jacobian()
        residual, jacobian = graph(self.found.storages, self.inputs)
        return residual[0].movedim(-1, 0), jacobian[0].movedim(-1, 0)


def _own(leaf: Any) -> Any:
    """A tensor in memory of its own, as all that a residual is given: it may write there."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().clone() if leaf.requires_grad else leaf.clone()


def state_of(collected: Collected) -> tuple[Any, ...]:
    """All that a residual reads besides its arguments, but for what no key can hold; the last are its tensors."""
    return collected.codes, collected.scalars, tuple([(name, tensor_key(x)) for name, x in collected.tensors.items()])


def kind_of_leaf(leaf: Any) -> Hashable:
    """What a leaf has in common with others: everything but the numbers in a tensor."""
    return (type(leaf), tensor_key(leaf)) if isinstance(leaf, Tensor) else value_of(leaf, type(leaf))
