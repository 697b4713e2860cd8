"""A part of a problem: some blocks of its costs, over some blocks of its variables, numbered from zero."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mslsq.problem.constraints import parts_of
from mslsq.problem.cost import CostFunction
from mslsq.problem.joined_blocks import Part, taken
from mslsq.problem.problem import Problem
from mslsq.problem.variable import Blocks, Fixed, Variable

Masks = Mapping[str, Bool[Tensor, "blocks"]]
"""By the name of a variable or of a cost function, which of its blocks."""


def restricted(problem: Problem, kept: Masks, chosen: Masks, bounded: bool = True) -> list[Part]:
    """The parts of a smaller problem.

    Args:
        kept: by variable; the chosen blocks of costs refer to no others.
        chosen: by cost; one without any is left out.
        bounded: do the variables keep their bounds?
    """
    variables = smaller_variables(problem, kept, bounded)
    numbers = {name: numbers_within(mask) for name, mask in kept.items()}
    costs = [
        taken(cost, chosen[cost.name], [_within(one, chosen[cost.name], variables, numbers) for one in cost.references])
        for cost in problem
        if bool(chosen[cost.name].any())
    ]
    known = {one.variable.name for cost in costs for one in cost.references}
    return [*parts_of(costs, problem.kinds), *_held(problem, kept, known, variables, numbers)]


def smaller_variables(problem: Problem, kept: Masks, bounded: bool = True) -> dict[str, Variable]:
    """The variables with those of their blocks that are kept, where there are some."""
    return {
        name: _smaller(variable, kept[name], bounded)
        for name, variable in problem.variables.items()
        if bool(kept[name].any())
    }


def numbers_within(mask: Bool[Tensor, "blocks"]) -> Int[Tensor, "blocks"]:
    """What each of the blocks of the mask is called among these alone."""
    return mask.cumsum(0) - 1


def touched_blocks(cost: CostFunction, masks: Masks) -> Bool[Tensor, "blocks"]:
    """Which blocks of a cost refer to one of these blocks of variables."""
    found = torch.zeros(cost.num_blocks, dtype=torch.bool, device="cpu")
    for one in cost.references:
        found = found | masks[one.variable.name][_numbers_of(one)]
    return found


def used_blocks(cost: CostFunction, chosen: Bool[Tensor, "blocks"], masks: Mapping[str, Tensor]) -> None:
    """Mark in `masks` what these blocks of a cost refer to."""
    for one in cost.references:
        index = _numbers_of(one).expand(cost.num_blocks)[chosen]
        masks[one.variable.name][index] = True


def _smaller(variable: Variable, mask: Tensor, bounded: bool) -> Variable:
    if variable.count is None and (bounded or variable.lower is variable.upper is None):
        return variable
    sides = [_of_blocks(side, variable, mask) if bounded else None for side in (variable.lower, variable.upper)]
    return Variable(variable.name, variable.manifold, None if variable.count is None else int(mask.sum()), *sides)


def _of_blocks(bound: Any, variable: Variable, mask: Tensor) -> Any:
    """The bound of these blocks: what all blocks share stays."""
    shape = (variable.num_blocks, variable.space.storage_dim)
    whole = bound if bound is None or isinstance(bound, Tensor) else torch.as_tensor(bound, device="cpu")
    if whole is None or whole.ndim < 2:
        return bound
    return whole.expand(shape)[mask.to(whole.device)]


def _within(one: Blocks, chosen: Tensor, variables: Mapping[str, Variable], numbers: Mapping[str, Tensor]) -> Blocks:
    variable = variables[one.variable.name]
    if isinstance(one.index, int):
        return Blocks(variable, int(numbers[variable.name][one.index]))
    return Blocks(variable, numbers[variable.name][one.index[chosen.to(one.index.device)].cpu()])


def _numbers_of(one: Blocks) -> Tensor:
    return torch.tensor([one.index], device="cpu") if isinstance(one.index, int) else one.index.cpu()


def _held(
    problem: Problem,
    kept: Masks,
    known: set[str],
    variables: Mapping[str, Variable],
    numbers: Mapping[str, Tensor],
) -> list[Fixed]:
    """What is held of the variables that the costs refer to."""
    held = []
    for fixed in problem.fixed:
        name = fixed.variable.name
        index = fixed.index.cpu()
        index = index[kept[name][index]]
        if name in known and len(index):
            held.append(Fixed(variables[name], numbers[name][index], fixed.components))
    return held
