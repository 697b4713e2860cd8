"""Graphs around native programs alone: none of the user's Python is in them.

The programs are compared with it themselves, and a graph is named after those that it calls. So it needs no witness of
its own, and is recorded in the first call of a solve that waits for its programs; elsewhere it becomes a program when
the steps have become one.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.plan import Plan
from mslsq.linearize.programs import is_of_library
from mslsq.linearize.second_order import MixedProgram
from mslsq.native.operator import SecondOrder
from mslsq.solvers.solver import Solver
from mslsq.tracing.recording import Recorded


def may_be_around(plan: Plan, linearizer: Linearizer) -> bool:
    """Are factors by blocks and manifolds such that what calls programs for the blocks could be such a graph?"""
    linear = linearizer.linear_solver
    if linear.storage.is_dense or not linear.factors_can_be_recorded or not plan.records_steps:
        return False
    spaces = [unknown.space for unknown in linearizer.system.unknowns]
    return all(space.is_euclidean or is_of_library(space) for space in spaces)


def hessian_name(programs: Iterable[SecondOrder], kind: str) -> str:
    """Of the Hessian by these programs of all terms. A graph that calls programs is of those: it goes when better ones
    come."""
    return f"native hessian {[program.hessian.number for program in programs]}, {kind}"


CURVATURE = "curvature"
"""Of the Hessian of the normal equations and of what they lack."""


def hessian_of_python(kind: str) -> str:
    """Of the Hessian of what the user wrote, by no programs."""
    return f"hessian, {kind}"


def look_name(hessian: str, solver: Solver) -> str:
    """Of all that is found out at once at an end, with the Hessian of this name."""
    return f"factored {hessian}, ftol {solver.ftol}, xtol {solver.xtol}"


def pullback_name(programs: Mapping[int, MixedProgram]) -> str:
    """Of the pullback to inputs by these programs, by the numbers of their terms."""
    return f"pullback by {[(term, program.vector.number) for term, program in programs.items()]}"


def graph_around(plan: Plan, solver: Solver, name: str, function: Callable[..., Any], *example: Any) -> Recorded | None:
    """The graph of that name, or its native program; None where there is none yet."""
    wish, execution = solver.execution, plan.execution
    waits = wish.native == "wait" and wish.trace == "auto"
    return execution.graph(
        name,
        wish._replace(trace="always") if waits else wish,
        function,
        *example,
        calls_programs_alone=True,
        is_wanted=waits or execution.has_program("step", wish),
    )
