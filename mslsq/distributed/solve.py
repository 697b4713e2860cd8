"""`solve` over the ranks of a process group: one problem, its blocks on several ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed as dist

from mslsq.adjoint import Adjoint, Detached, Implicit
from mslsq.adjoint.adjoint import unprepared
from mslsq.adjoint.outputs import Ended, Prepared
from mslsq.adjoint.solve import SolvedSystem
from mslsq.distributed.agreement import check_agreement
from mslsq.distributed.derivatives import Minimum, OverRanks
from mslsq.distributed.group import Together
from mslsq.distributed.refusals import refuse_adjoint, refuse_statement, refuse_surroundings, solver_over_ranks
from mslsq.distributed.statement import SharedStatement, shared_statement
from mslsq.front.problem_statement import stated
from mslsq.levels import backward_may_come, constant
from mslsq.problem import Problem
from mslsq.ranks import RanksError
from mslsq.solution import Solution
from mslsq.solvers import LevenbergMarquardt, Solver
from mslsq.solvers.run import Outcome, run
from mslsq.solvers.task import Task
from mslsq.validation import instance_of, number, one_of

TIMEOUT = 60.0
"""Seconds that a rank waits for the others."""


def solve(
    problem: Problem,
    values: Mapping[str, Any],
    data: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    holds: Literal["whole", "part"] = "whole",
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    group: Any = None,
    timeout: float = TIMEOUT,
) -> Solution:
    """Minimise the cost of one problem whose blocks lie on several ranks. Every rank calls it and gets the solution.

    The solution is that of `mslsq.solve` on one process, to 1e-9: sums are added in another order. Each rank evaluates
    its own blocks; cost, gradient and normal equations are summed (dense, or block-sparse in one pattern), or with
    `ConjugateGradient(matrix_free=True)` the products. All ranks stop at the same step with the same status.

    Args:
        problem: as for `mslsq.solve`; without bounds and constraints. The variables, what is held of them, and their
            start are the same on every rank.
        values: as for `mslsq.solve`, the same on every rank.
        data: as for `mslsq.solve`.
        holds: what each rank has stated: the "whole" problem, of which it takes its share, consecutive blocks of every
            cost; or its own "part", blocks that no other rank has. A cost may be missing on a rank with "part".
        solver: `LevenbergMarquardt()` by default; `GaussNewton`, `Dogleg`.
        adjoint: `Implicit()` by default; `Detached()`. First derivatives, by `backward()`, which every rank calls with
            the same loss. The gradient of a tensor with an entry per block stays on the rank that has it (`"part"`),
            that of all others is summed, and the same everywhere.
        group: a process group of `torch.distributed`; all processes by default.
        timeout: seconds that a rank waits for the others before it raises `RankLostError`.

    Raises:
        RanksError: there is no process group, or the ranks cannot go on together; on all of them.
        ProblemError: as `mslsq.solve`, or what cannot be solved over ranks.

    >>> mslsq.distributed.initialize()                        # torchrun --nproc-per-node=4 this_file.py
    >>> solution = mslsq.distributed.solve(problem, {"pose": T0})
    """
    instance_of("distributed.solve: problem", problem, Problem)
    one_of("distributed.solve: holds", holds, ("whole", "part"), ValueError)
    ranks = ranks_of(group, timeout)
    with ranks.as_one():
        found = _Call.stated(ranks, problem, values, data, holds == "whole", solver, adjoint).solved()
    statement, chosen, system = found
    return statement.own.given_back(system, chosen, statement.own.inputs).solution


def ranks_of(group: Any, timeout: float) -> Together:
    """The ranks of a group.

    Raises:
        RanksError: there is no process group.
    """
    number("distributed: timeout", timeout, above=0)
    if not dist.is_available() or not dist.is_initialized():
        raise RanksError(
            "There is no process group. Start the program by `torchrun --nproc-per-node=N file.py`, and call "
            "mslsq.distributed.initialize() (or torch.distributed.init_process_group) first."
        )
    on_gpu = dist.get_backend(group) == "nccl"
    return Together(
        group, timeout, torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    )


@dataclass(frozen=True, eq=False)
class _Call:
    """A call, checked: every rank has the same."""

    ranks: Together
    shared: SharedStatement
    solver: Solver
    adjoint: Implicit | Detached

    @staticmethod
    def stated(
        ranks: Together,
        problem: Problem,
        values: Any,
        data: Any,
        holds_whole: bool,
        solver: Any,
        adjoint: Any,
    ) -> "_Call":
        refuse_surroundings("distributed.solve")
        whole = stated(problem, values, data)
        refuse_statement(whole)
        chosen = solver_over_ranks(LevenbergMarquardt() if solver is None else solver, ranks)
        shared = shared_statement(whole, holds_whole, ranks.rank, ranks.count)
        call = _Call(ranks, shared, chosen, refuse_adjoint(Implicit() if adjoint is None else adjoint))
        check_agreement(ranks, shared, chosen)
        return call

    def solved(self) -> tuple[SharedStatement, Solver, SolvedSystem]:
        """The solution as the engine has it."""
        own = self.shared.own
        task = replace(own.task(self.solver), ranks=self.ranks, is_trial=True)
        tensors = [leaf.tensor for leaves in self.shared.whole.leaves for leaf in leaves]
        asks = any(map(backward_may_come, tensors)) and isinstance(self.adjoint, Implicit)
        (is_differentiated,) = self.ranks.any(asks)
        values = tuple(constant(x) for x in own.values)
        inputs = tuple({name: constant(tensor) for name, tensor in given.items()} for given in own.inputs)
        with torch.no_grad():
            outcome = run(task, values, inputs, differentiated=is_differentiated)
            outcome = self._of_the_first(outcome)
            ended = Ended(_eager(task), values, outcome, {}, inputs)
            prepared = self.adjoint.prepare(ended) if is_differentiated else unprepared(ended)
        found, cost = outcome.values, outcome.cost
        if is_differentiated:
            prepared = self._agreed(prepared)
            assert isinstance(self.adjoint, Implicit)
            minimum = Minimum(self.ranks, self.shared, task, outcome, prepared, self.adjoint)
            *attached, cost = OverRanks.apply(minimum, *tensors)
            found = tuple(attached)
        solution = Solution(
            found,
            cost,
            outcome.status,
            outcome.num_steps,
            outcome.num_evaluations,
            outcome.gradient_norm,
            prepared.differentiable,
            outcome.history,
            prepared.residual,
        )
        return self.shared, self.solver, SolvedSystem(solution, outcome.planned[0], outcome.interrupted)

    def _of_the_first(self, outcome: Outcome) -> Outcome:
        """What the first rank has come to."""
        own = [*outcome.values, outcome.cost, outcome.status, outcome.num_steps, outcome.gradient_norm]
        *values, cost, status, steps, norm = self.ranks.agreed(own)
        return replace(outcome, values=tuple(values), cost=cost, status=status, num_steps=steps, gradient_norm=norm)

    def _agreed(self, prepared: Prepared) -> Prepared:
        differentiable, residual = self.ranks.agreed((prepared.differentiable, prepared.residual))
        return prepared._replace(differentiable=differentiable, residual=residual)


def _eager(task: Task) -> Task:
    """The same without graphs: what ranks tell each other is in none."""
    return replace(task, solver=replace(task.solver, trace="never"))
