"""A problem without some of its blocks: they are marginalised, and what they say of the others stays as a prior."""

from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.diagnostics.dense_factor import SingularCovarianceError
from mslsq.diagnostics.located import located
from mslsq.linear import QR
from mslsq.problem import CostFunction, MarginalPrior, Problem, ProblemError
from mslsq.problem.constraints import Constraint
from mslsq.problem.errors import unknown_name
from mslsq.problem.joined_blocks import Part
from mslsq.problem.restricted import Masks, numbers_within, restricted, smaller_variables, touched_blocks, used_blocks
from mslsq.problem.variable import Blocks, Fixed, Variable
from mslsq.validation import instance_of

NAME = "marginal_prior"


@outside_compiled_regions
def marginalized(
    problem: Problem, values: Mapping[str, Any], blocks: Mapping[str, Any]
) -> tuple[Problem, dict[str, Any]]:
    """The problem without these blocks of its variables, and the values of what remains: a window that slides.

    The costs that refer to the blocks are linearised at `values`, weights and losses included, and the blocks
    eliminated from them. What they say of the others stays as one `mslsq.problem.MarginalPrior`, dense over all blocks
    that they were joined to; a later call whose blocks this prior refers to takes it up. Where residuals are linear
    and without losses, what remains has the solution and the covariance of the whole problem; elsewhere, to first order
    in how far the others move from `values` later on. So marginalise at a solution, and the oldest blocks first.

    The factor of the prior comes from an orthogonal factorisation of the Jacobian, so that a firm prior does not drown
    weak measurements: JᵀJ is never formed. Directions of which the costs say nothing stay free. Blocks on which a
    variable is held count as known.

    Args:
        problem: its constraints do not refer to the blocks; their variables have no bounds.
        values: of all variables, as `mslsq.solve` takes its start, of one problem: `solution.value`.
        blocks: by the name of a variable, which of its blocks: anything that `variable[index]` takes, `None` for all.

    Returns:
        The smaller problem and its values. Costs and variables keep their names; those without blocks left are gone.
        Blocks behind the ones that went take their numbers. The prior carries no derivatives; the data of the costs
        that stay do.

    Raises:
        UnknownNameError: there is no such variable.
        ProblemError: a constraint refers to the blocks, they have bounds, values have another shape, or nothing would
            remain.
        SingularCovarianceError: the costs do not determine the blocks, given all others.

    >>> problem, values = mslsq.marginalized(problem, solution.value, {"pose": [0]})
    >>> len(values["pose"]) == problem.variables["pose"].count
    """
    instance_of("marginalized: problem", problem, Problem)
    gone = {name: _mask(problem, name, blocks) for name in problem.variables}
    for name in blocks:
        if name not in problem.variables:
            raise unknown_name("variable", name, problem.variables)
    touched = {cost.name: touched_blocks(cost, gone) for cost in problem}
    _check(problem, gone, touched)
    storages = {name: _storage(variable, values) for name, variable in problem.variables.items()}
    stays = {name: ~mask for name, mask in gone.items()}
    parts = restricted(problem, stays, {name: ~mask for name, mask in touched.items()})
    if any(mask.any() for mask in touched.values()):
        with torch.no_grad():
            found = _eliminated(problem, storages, gone, touched)
        parts = _with_prior(parts, problem, stays, found)
    if not any(not isinstance(part, Fixed) for part in parts):
        raise ProblemError("marginalized: no cost would remain, nothing is left to be solved for. Take fewer blocks.")
    smaller = Problem(*parts)
    return smaller, {name: _like(values[name], problem, name, storages, stays) for name in smaller.variables}


class Eliminated(NamedTuple):
    """What some costs say of the blocks that stay."""

    blocks: list[tuple[str, int]]
    """By the name of a variable, and the block's number in the whole problem."""
    targets: tuple[Any, ...]
    """Of each where it stands, with an axis of one block in front."""
    factor: Float[Tensor, "rows tangents"]
    offset: Float[Tensor, "rows"]


def _eliminated(problem: Problem, storages: Mapping[str, Tensor], gone: Masks, touched: Masks) -> Eliminated:
    """The costs that refer to the blocks, linearised; and the blocks eliminated.

    With J = [A B] of the blocks that go and that stay, and QR of [A B r] = [[R_aa R_ab q_a], [0 R_bb q_b]], the least
    cost over the former is ½‖R_bb δ + q_b‖² and a constant.
    """
    near: dict[str, Tensor] = {name: torch.zeros_like(mask) for name, mask in gone.items()}
    for cost in problem:
        used_blocks(cost, touched[cost.name], near)
    part = Problem(*restricted(problem, near, touched, bounded=False))
    at = {name: _of_count(storages[name][near[name].to(storages[name].device)], part, name) for name in part.variables}
    point = located(part, at, linear_solver=QR())
    linearization = point.linearization()
    triangle = torch.block_diag(*linearization.matrix[0])
    columns = {name: point.columns(name) for name in problem.variables if name in part.variables}
    goes = {name: gone[name][near[name]].to(triangle.device) for name in columns}
    held = point.structure.num_columns
    first = torch.cat([columns[name][goes[name]].reshape(-1) for name in columns])
    first = first[first < held]
    stays = [
        (name, block, numbers)
        for name in columns
        for block, numbers, leaves in zip(near[name].nonzero()[:, 0].tolist(), columns[name], goes[name], strict=True)
        if not leaves and bool((numbers < held).any())
    ]
    every = torch.cat([first.new_zeros(0), *(numbers for *_, numbers in stays)])
    free = every < held
    joint = torch.cat((triangle[:, torch.cat((first, every[free]))], linearization.rhs[0][:, None]), -1)
    joint = torch.linalg.qr(joint, mode="r").R
    _check_determined(joint[: len(first), : len(first)], first, columns, problem)
    below = joint[len(first) : len(first) + int(free.sum())]
    factor = below.new_zeros(len(below), len(every))
    factor[:, free] = below[:, len(first) : -1]
    targets = tuple(problem.variables[name].space.wrap(storages[name][[block]]) for name, block, _ in stays)
    return Eliminated([(name, block) for name, block, _ in stays], targets, factor, below[:, -1])


def _check_determined(triangle: Tensor, first: Tensor, columns: Mapping[str, Tensor], problem: Problem) -> None:
    """SingularCovarianceError where the blocks that go are not determined by the costs that refer to them."""
    lengths = torch.linalg.vector_norm(triangle, dim=0)
    regular = triangle.diagonal().abs() > torch.finfo(triangle.dtype).eps * len(triangle) * lengths
    if len(triangle) < len(first):
        regular = torch.nn.functional.pad(regular, (0, len(first) - len(triangle)))
    if bool(regular.all()):
        return
    wrong = int(first[(~regular).nonzero()[0, 0]])
    name = next(name for name, own in columns.items() if bool((own == wrong).any()))
    raise SingularCovarianceError(
        f"marginalized: the costs that refer to the blocks do not determine those of {name!r}, even where all others "
        f"are known. mslsq.explain(problem, values) says what is not; hold it, or take a Prior on it."
    )


def _with_prior(parts: list[Part], problem: Problem, stays: Masks, found: Eliminated) -> list[Part]:
    """The parts and the prior, of the same variables."""
    if not found.blocks:
        return parts
    variables = smaller_variables(problem, stays)
    taken = {part.name for part in parts if isinstance(part, CostFunction)}
    taken |= {part.cost.name for part in parts if isinstance(part, Constraint)}
    names = (NAME if number == 1 else f"{NAME}_{number}" for number in count(1))
    references = [Blocks(variables[name], numbers_within(stays[name])[[block]]) for name, block in found.blocks]
    prior = MarginalPrior(
        *references,
        targets=found.targets,
        factor=found.factor[None],
        offset=found.offset[None],
        name=next(name for name in names if name not in taken),
    )
    return [*parts, prior]


def _mask(problem: Problem, name: str, blocks: Mapping[str, Any]) -> Tensor:
    """(count,) which blocks of a variable are to go."""
    variable = problem.variables[name]
    mask = torch.zeros(variable.num_blocks, dtype=torch.bool, device="cpu")
    if name in blocks:
        index = blocks[name]
        mask[slice(None) if index is None or variable.count is None else variable[index].index] = True
    return mask


def _check(problem: Problem, gone: Masks, touched: Masks) -> None:
    """Can a prior stand for what refers to these blocks?"""
    for cost in problem:
        if problem.kinds[cost.name].is_constraint and bool(touched[cost.name].any()):
            raise ProblemError(
                f"marginalized: constraint {cost.name!r} refers to the blocks, and a prior cannot stand for it. Leave "
                "them in, or hold them by variable.fixed(index)."
            )
    for name, variable in problem.variables.items():
        if bool(gone[name].any()) and not (variable.lower is None and variable.upper is None):
            raise ProblemError(
                f"marginalized: variable {name!r} has bounds, and what is cut off by them is no Gaussian. Leave its "
                "blocks in, or hold them by variable.fixed(index) in a problem without its bounds."
            )


def _storage(variable: Variable, values: Mapping[str, Any]) -> Tensor:
    """(count, storage) of a variable."""
    if variable.name not in values:
        raise ProblemError(f"marginalized: values has nothing for variable {variable.name!r}.")
    storage = variable.space.unwrap(values[variable.name]).detach()
    expected = (variable.num_blocks, variable.space.storage_dim)
    if storage.shape != (expected if variable.count is not None else expected[1:]):
        raise ProblemError(
            f"marginalized: variable {variable.name!r} has values of shape {tuple(storage.shape)}; expected "
            f"{expected}. Of a batch take one problem after the other."
        )
    return storage.reshape(expected)


def _of_count(storage: Tensor, problem: Problem, name: str) -> Tensor:
    """Storage as values of a variable: without the axis of blocks where it is a single one."""
    return storage[0] if problem.variables[name].count is None else storage


def _like(given: Any, problem: Problem, name: str, storages: Mapping[str, Tensor], stays: Masks) -> Any:
    """The values of the blocks that stay, in the form in which the user gave them."""
    storage = _of_count(storages[name][stays[name].to(storages[name].device)], problem, name)
    return storage if isinstance(given, Tensor) else problem.variables[name].space.wrap(storage)
