"""A call like the one before: the native program of its solve answers it, and is compared with the user's Python.

A statement, a plan and the loop around a program take 0.5 ms of Python to find out what the call before has found out.
What is known of calls is kept by the code of their residual.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mslsq.adjoint import Adjoint
from mslsq.front.answering_residuals import Answered, Known, ResidualCall, state_of
from mslsq.front.batching import Axes
from mslsq.front.callables import name_of
from mslsq.front.closed_costs import distrust_callable
from mslsq.front.direct import Direct
from mslsq.front.direct_batch import DirectBatch
from mslsq.front.outer import solved
from mslsq.front.plans import keep_apart, kept_for_callable
from mslsq.front.residual_statement import stated_residual
from mslsq.front.statement import Solved, heed_interrupt
from mslsq.solvers.outer import OuterSolver
from mslsq.solvers.solver import Solver
from mslsq.solvers.witness_of_one import has_one_witness
from mslsq.tracing.reading.inputs import Collected, collect

KNOWN = 8
"""Kinds of calls that are kept for one code: one front door may serve several models."""


def solved_residual(
    residual: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...],
    solver: Solver | OuterSolver | None,
    adjoint: Adjoint | None,
    **options: Any,
) -> Solved | Answered:
    """The solution of a residual, at once where the call is like one before.

    Args:
        options: those of `stated_residual`.

    Raises:
        ProblemError: something is wrong with the shapes, dtypes or arguments; the message says what.
    """
    is_bare = options.get("jac") is None and options.get("loss") is None and options.get("bounds") is None
    call = ResidualCall.of(residual, x0, args, solver, adjoint, options.get("in_dims")) if is_bare else None
    at_once = None if call is None else answered(call)
    if at_once is not None:
        return at_once
    stated = stated_residual(residual, x0, args, **options)
    ended = solved(stated.statement, solver, adjoint, has_costs=False)
    if call is not None:
        remember(call, ended, stated.callables.residual.collected, stated.axes)
        keep_apart(call.residual)
    return ended


def answered(call: ResidualCall, like: Known | None = None) -> Answered | None:
    """The answer; None where this call is not known, or where it takes more than the program.

    Args:
        like: what is known of a call that differs from this one in nothing but numbers, and in what its residual
            reads.

    Raises:
        SolveInterrupted: a KeyboardInterrupt has ended the solve.
    """
    if like is not None:
        answer = like.answer_at_once(call, like.form.leaves(call.arguments))
        if answer is not None:
            return _judged(answer)
    kept = kept_for_callable(call.residual).calls
    if not kept:
        return None
    for one in tuple(kept):
        answer = one.answer_at_once(call)
        if answer is not None:
            return _judged(answer)
    collected = collect(call.residual)
    known = _known(call, kept, collected)
    answer = None if known is None else known.answer(call, collected)
    return None if answer is None else _judged(answer)


def _judged(answer: Answered) -> Answered | None:
    """The answer; None where it is not that of the user's Python: calls like it are forgotten."""
    call, known = answer.call, answer.known
    if answer.is_right:
        if answer.found.interrupted:
            heed_interrupt(answer.solution, answer.solver)
        return answer
    kept = kept_for_callable(call.residual).calls
    kept[:] = [one for one in kept if one is not known]
    if known.closed is not None and known.closed.holds:
        distrust_callable(collect(call.residual), name_of(call.residual))
    if answer.found.interrupted:
        raise KeyboardInterrupt  # what was found is of a residual that has changed
    return None


def remember(call: ResidualCall, ended: Solved, collected: Collected, axes: Axes) -> None:
    """Keep what a solve has shown of calls like this one."""
    kept = kept_for_callable(call.residual).calls
    direct: Direct | DirectBatch | None = DirectBatch.of(ended)
    if not ended.is_batch and has_one_witness(ended.plan):
        direct = Direct.of(ended.statement, ended.solver, ended.plan)
    if direct is None:
        return
    like = _known(call, kept, collected)
    if like is not None and like.direct.plan is ended.plan:
        return
    known = Known.of(call, collected, direct, ended, axes)
    if known is not None:
        known = replace(known, direct=direct.with_derivatives(ended, call.adjoint))
        kept[:] = [known, *(one for one in kept if one is not like)][:KNOWN]


def _known(call: ResidualCall, kept: list[Any], collected: Collected) -> Known | None:
    """What is known of calls that differ from this one in nothing but numbers, and in what no key can hold."""
    state = state_of(collected)
    return next((one for one in tuple(kept) if one.state == state and one.leaves_of(call) is not None), None)
