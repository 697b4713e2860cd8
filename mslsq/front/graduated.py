"""A statement whose solver is graduated non-convexity: which of its costs may hold outliers, and at which scale."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mslsq.front.batching import sent
from mslsq.front.leaves import LossParameter, loss_inputs, loss_parameter
from mslsq.front.statement import Statement
from mslsq.problem.errors import ProblemError, ShapeError, unknown_name
from mslsq.problem.system import Term
from mslsq.solvers import GraduatedNonConvexity
from mslsq.solvers.graduation import Graduation
from mslsq.solvers.surrogates import RELAXATION, SCALE, SURROGATES

RESIDUAL = "residual"
"""What the weights of a residual without costs are called."""


def graduated(statement: Statement, solver: GraduatedNonConvexity, has_costs: bool) -> tuple[Statement, Graduation]:
    """The statement with the losses of graduated non-convexity, and the rounds.

    Args:
        has_costs: do its terms have names that the user knows?
    """
    names = _names(statement, solver, has_costs)
    like, size = statement.starts[0].tensor, statement.size or 1
    terms, leaves = list(statement.system.terms), list(statement.leaves)
    for number, name in names.items():
        scale = solver.scale[name] if isinstance(solver.scale, Mapping) else solver.scale
        loss = SURROGATES[solver.loss](1.0 if scale is None else scale)
        # Per problem, also of a single one: a transform outside may make it a batch.
        relaxation = torch.zeros(size, dtype=like.dtype, device=like.device)
        parameters = (
            _scale(None if scale is None else loss.scale, relaxation + 1, statement.size),
            loss_parameter(RELAXATION, relaxation, 0),
        )
        terms[number] = replace(terms[number], loss=loss, loss_inputs=loss_inputs(parameters))
        leaves[number] = (*leaves[number], *parameters)
    estimates = solver.scale is None
    # Minima at scales of their own cannot be compared. (By the product of the scales, as least median of squares does,
    # four descents recover 76.8 % of circles with 50 % outliers, one 76.7 %.)
    descents = 1 if estimates else solver.descents
    graduation = Graduation(
        names, solver.in_rounds, solver.rate, solver.max_rounds, descents, solver.steps_per_round is None, estimates
    )
    system = replace(statement.system, terms=tuple(terms))
    return replace(statement, system=system, leaves=tuple(leaves)), graduation


def _scale(given: Tensor | None, per_problem: Tensor, size: int | None) -> LossParameter:
    """The scale as an input of the solve; `per_problem` where it is to be estimated."""
    if given is None:
        return loss_parameter(SCALE, per_problem, 0)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != size):
        expected = "()" if size is None else f"(), or ({size},) with one scale per problem"
        raise ShapeError(
            f"GraduatedNonConvexity: scale has shape {tuple(given.shape)}; expected {expected}. For blocks of "
            "different accuracy whiten the residuals (a weight per block)."
        )
    return loss_parameter(SCALE, sent(given, per_problem.device, per_problem.dtype), 0 if given.ndim else None)


def _names(statement: Statement, solver: GraduatedNonConvexity, has_costs: bool) -> dict[int, str]:
    """The terms that may hold outliers, and what their weights are called."""
    terms = statement.system.terms
    if not has_costs:
        if solver.costs is not None:
            raise ProblemError(
                f"GraduatedNonConvexity(costs={list(solver.costs)!r}): a residual has no costs, each of its entries "
                "may be an outlier. Leave costs out; or build a Problem of costs, some of which may hold outliers."
            )
        if isinstance(solver.scale, Mapping):
            raise ProblemError("GraduatedNonConvexity: scale by cost is for a Problem; a residual has one scale.")
        _check_loss(terms[0], "loss")
        return {0: RESIDUAL}
    numbers = {term.name: number for number, term in enumerate(terms)}
    chosen = tuple(numbers if solver.costs is None else solver.costs)
    for name in chosen:
        if name not in numbers:
            raise unknown_name("cost of GraduatedNonConvexity", name, numbers)
    if isinstance(solver.scale, Mapping):
        _check_scales(solver.scale, chosen)
    for name in chosen:
        _check_loss(terms[numbers[name]], f"Cost {name!r}: loss")
    return {numbers[name]: name for name in chosen}


def _check_scales(scales: Mapping[str, Any], chosen: tuple[str, ...]) -> None:
    for name in scales:
        if name not in chosen:
            raise unknown_name("cost in scale of GraduatedNonConvexity", name, chosen)
    for name in chosen:
        if name not in scales:
            raise ProblemError(
                f"GraduatedNonConvexity: scale has no entry for cost {name!r}; it has "
                f"{', '.join(map(repr, scales)) or 'none'}."
            )


def _check_loss(term: Term, where: str) -> None:
    if term.loss is not None:
        raise ProblemError(
            f"{where}={type(term.loss).__name__}: GraduatedNonConvexity brings the loss of the costs that may hold "
            "outliers. Leave this one out, or name the other costs: GraduatedNonConvexity(costs=[...])."
        )
