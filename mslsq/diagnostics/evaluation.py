"""What a problem costs at given values, term by term: GTSAM's `graph.error(values)`, Ceres' `Problem::Evaluate`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.diagnostics.located import Located, located
from mslsq.linearize.robust import losses
from mslsq.problem import Problem
from mslsq.solvers.constraint_terms import by_problem
from mslsq.tracing.graph import TRANSFORM_LOCK


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A problem at given values. With `in_dims` every tensor has a batch axis in front."""

    cost: Float[Tensor, "*batch"]
    """½ Σ ρ(‖r‖²) over all costs; constraints add nothing."""
    residuals: dict[str, Float[Tensor, "*batch blocks rows"]] = field(repr=False)
    """By the name of the cost: times its weight, before its loss. Complex residuals are pairs (real, imaginary). A
    constraint is under the name of its cost: zero, or at most zero, where it holds."""
    block_costs: dict[str, Float[Tensor, "*batch blocks"]] = field(repr=False)
    """By the name of the cost, ½ρ of every block: the largest are what fits worst. Constraints are not here."""

    @property
    def costs(self) -> dict[str, Float[Tensor, "*batch"]]:
        """What each cost adds to `cost`."""
        return {name: blocks.sum(-1) for name, blocks in self.block_costs.items()}

    def __repr__(self) -> str:
        if self.cost.ndim:
            return f"Evaluation(cost of shape {tuple(self.cost.shape)}, costs {', '.join(self.block_costs)})"
        parts = ", ".join(f"{name}={float(cost):.6g}" for name, cost in self.costs.items())
        return f"Evaluation(cost={float(self.cost):.6g}, {parts})"


@outside_compiled_regions
def evaluate(
    problem: Problem,
    values: Mapping[str, Any],
    data: Mapping[str, Mapping[str, Any]] | None = None,
    in_dims: Any = None,
) -> Evaluation:
    """Cost and residuals of a problem at given values, without a step. Differentiable in values and data.

    Args:
        problem: cost functions over variables.
        values: of all variables, as `mslsq.solve` takes its start.
        data: as for `mslsq.solve`: {name of a cost: {name of its data: a tensor}} in place of its own.
        in_dims: as for `mslsq.solve`, which of `values` and `data` have a batch axis.

    Raises:
        ProblemError: a name that is not known, a wrong shape, dtype or device; the message says which.

    >>> found = mslsq.evaluate(problem, {"pose": poses})
    >>> found.cost, found.costs["between"], found.residuals["between"].shape      # (blocks, rows)
    >>> worst = found.block_costs["between"].topk(5).indices
    """
    return _evaluated(problem, values, data, in_dims, is_weighted=True)


@outside_compiled_regions
def raw_residuals(
    problem: Problem, values: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Float[Tensor, "blocks rows"]]:
    """What the cost functions return, for all their blocks: `Problem.residuals`."""
    return _evaluated(problem, values, data, None, is_weighted=False).residuals


def _evaluated(problem: Problem, values: Any, data: Any, in_dims: Any, is_weighted: bool) -> Evaluation:
    """An evaluation, whose residuals have been multiplied by their weights or not."""
    point = located(problem, values, data, in_dims, takes_constraints=True)
    with TRANSFORM_LOCK:
        residuals, block_costs = _of_costs(point, is_weighted)
        if point.constraints is not None:
            terms, linearizer, plain = point.constraints
            of_constraints = terms.residuals(linearizer, point.stated.values, plain)
            residuals |= {terms.names[number]: residual for number, residual in of_constraints.items()}
    cost = torch.stack([blocks.sum(-1) for blocks in block_costs.values()]).sum(0)
    if point.stated.size is None:
        cost = cost[0]
        residuals = {name: residual[0] for name, residual in residuals.items()}
        block_costs = {name: blocks[0] for name, blocks in block_costs.items()}
    return Evaluation(cost, {cost.name: residuals[cost.name] for cost in problem}, block_costs)


def _of_costs(point: Located, is_weighted: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Residuals and costs of all blocks, by the names of the costs; the batch axis first."""
    residuals, block_costs = {}, {}
    for block, given in zip(point.linearizer.blocks, point.inputs, strict=True):
        residual = block.residuals(point.stated.values, given)
        residuals[block.term.name] = by_problem(block, residual)
        block_costs[block.term.name] = 0.5 * by_problem(block, losses(block, residual, given)).sum(-1)
        if not is_weighted and block.term.whiten is not None:
            plain = replace(block, term=replace(block.term, whiten=None, whiten_jacobian=None))
            residuals[block.term.name] = by_problem(block, plain.residuals(point.stated.values, given))
    return residuals, block_costs
