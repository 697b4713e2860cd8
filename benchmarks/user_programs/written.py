"""Residuals and costs as different users would write them, by name: what `closed_code.py` counts, all judged here."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import mslsq
from user_programs import costs, functions, objects
from user_programs.compared import PROGRAMS, Program

RESIDUALS: dict[str, Callable[[], Any]] = {**functions.WRITTEN, **objects.WRITTEN}
EVERYONE: dict[str, Callable[[], Any]] = {**RESIDUALS, **costs.WRITTEN}
"""By name what makes (a residual or a `Problem`, the start, the other arguments)."""


def of_the_tangent(problem: mslsq.Problem, values: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """All residuals of a problem with one variable, as a function of a step in its tangent (count × dimension)."""
    ((name, start),) = values.items()

    def residual(step: Tensor) -> Tensor:
        moved = start.retract(step) if isinstance(start, mslsq.SE3) else start + step
        return torch.cat([one.reshape(-1) for one in problem.residuals({name: moved}).values()])

    return residual


def solved_in_the_tangent(problem: mslsq.Problem, values: dict[str, Any]) -> Callable[..., Any]:
    """Solve the problem; its solution as a step from `values`, for the judge."""
    ((name, start),) = values.items()

    def solve() -> Any:
        solution = mslsq.solve(problem, values)
        end = solution.value[name]
        return solution, start.local(end) if isinstance(start, mslsq.SE3) else end - start

    return solve


torch.manual_seed(0)
for _name, _make in RESIDUALS.items():
    PROGRAMS[_name] = Program(*_make(), has_derivative=True, is_scipys=True)
for _name, _make in costs.WRITTEN.items():
    _problem, _values, _ = _make()
    (_start,) = _values.values()
    _tangent = torch.zeros(len(_start), 6 if isinstance(_start, mslsq.SE3) else _start.shape[-1], dtype=functions.F64)
    _ways = of_the_tangent(_problem, _values), solved_in_the_tangent(_problem, _values)
    PROGRAMS[_name] = Program(_ways[0], _tangent, (), False, True, _ways[1])
