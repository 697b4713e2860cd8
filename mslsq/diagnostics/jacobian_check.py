"""Are the Jacobians right? Those written by hand, and those of autodiff, against finite differences."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.diagnostics.checked_block import CheckedBlock, JacobianCheck, worst
from mslsq.front.problem_statement import stated
from mslsq.manifolds import Manifold
from mslsq.problem import CostFunction, Problem
from mslsq.problem.errors import ProblemError
from mslsq.problem.leaf import leaf_space
from mslsq.problem.system import Term

SAMPLE = 16
"""Blocks checked by default, spread evenly: an error in a formula shows in most of them."""


@outside_compiled_regions
def check_jacobian(
    cost_or_residual: CostFunction | Problem | Callable[..., Any],
    values: Any = None,
    args: tuple[Any, ...] = (),
    *,
    jac: Callable[..., Any] | None = None,
    data: Mapping[str, Any] | None = None,
    blocks: Iterable[int] | None = None,
    rtol: float | None = None,
) -> JacobianCheck:
    """Compare Jacobians with central finite differences, extrapolated (Ridders).

    Args:
        cost_or_residual: a `CostFunction`, a `Problem` (all its costs), or a plain `residual(x, *args)` as for
            `least_squares`.
        values: for a cost, the values of its variables by name as for `solve` (others may be among them), at random by
            default; for a plain residual the point x, any pytree of tensors and manifold elements.
        args: further arguments of a plain residual.
        jac: the Jacobian of a plain residual, `jac(x, *args)` as for `least_squares`.
        data: for a cost, what replaces its data, by name.
        blocks: which blocks of a cost to check; up to 16 spread over all by default.
        rtol: relative error allowed; 1e-5 in float64, 2e-2 in float32.

    Returns:
        The worst entry of the hand-written Jacobian, if there is one, of automatic differentiation, and of a
        hand-written `curvature`: `check.ok`, `print(check)`.

    >>> assert mslsq.check_jacobian(cost, {"pose": poses}), "jacobians() is wrong"
    """
    if isinstance(cost_or_residual, Problem):
        costs = list(cost_or_residual)
        return worst([check_jacobian(cost, values, data=data, blocks=blocks, rtol=rtol) for cost in costs])
    if isinstance(cost_or_residual, CostFunction):
        return _check_cost(cost_or_residual, values, data, blocks, rtol)
    if not callable(cost_or_residual):
        raise ProblemError(f"check_jacobian takes a cost function or a callable, not {cost_or_residual!r}.")
    return _check_residual(cost_or_residual, values, tuple(args), jac, rtol)


def _check_cost(cost: CostFunction, values: Any, data: Any, blocks: Any, rtol: float | None) -> JacobianCheck:
    problem = Problem(cost)
    values = _random_values(problem) if values is None else values
    given = {name: values[name] for name in problem.variables if name in values}
    statement = stated(problem, given, None if data is None else {cost.name: data})
    term, unknowns = statement.system.terms[0], statement.system.unknowns
    spaces = [unknowns[slot.unknown].space for slot in term.slots]
    names = [repr(reference.variable.name)[1:-1] for reference in cost.references]
    chosen = _sample(term.num_blocks) if blocks is None else [int(block) for block in blocks]
    checks = []
    for number in chosen:
        storages = [statement.values[slot.unknown][0][slot.of_block(number)] for slot in term.slots]
        inputs = {
            name: tensor[number] if name in term.per_block else tensor for name, tensor in statement.inputs[0].items()
        }
        residual = partial(lambda inputs, values: term.residual(values, inputs), inputs)
        block = CheckedBlock(cost.name, spaces, names, storages, residual, rtol)
        found = [block.jacobians("jacobians", _jacobians_of(term, inputs))]
        if term.curvature is not None:
            found.append(block.curvature(term.curvature, inputs))
        checks += [replace(check, block=number, num_blocks=len(chosen)) for check in found]
    return worst(checks)


def _jacobians_of(term: Term, inputs: Mapping[str, Tensor]) -> Callable[[tuple[Any, ...]], list[Tensor]] | None:
    """The Jacobians as a solve gets them: together with the residual where the term has that, and of a term that takes
    many blocks at once those of the first of two equal ones."""
    if term.jacobians is None:
        return None
    both, alone = term.residual_and_jacobians, term.jacobians

    def jacobians(values: tuple[Any, ...], given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return alone(values, given) if both is None else both(values, given)[1]

    if not term.broadcasts:
        return lambda values: list(jacobians(values, inputs))

    def of_two(values: tuple[Any, ...]) -> list[Tensor]:
        leaves, structure = pytree.flatten(values)
        twice = [torch.stack([leaf, leaf], -1).movedim(-1, 0) for leaf in leaves]
        given = {
            name: torch.stack([tensor, tensor], -1).movedim(-1, 0) if name in term.per_block else tensor
            for name, tensor in inputs.items()
        }
        parts = jacobians(pytree.unflatten(twice, structure), given)
        return [part.expand(2, *part.shape[-2:])[0] for part in parts]

    return of_two


def _check_residual(
    residual: Callable[..., Any], x: Any, args: tuple[Any, ...], jac: Callable[..., Any] | None, rtol: float | None
) -> JacobianCheck:
    leaves, structure = pytree.flatten(x, is_leaf=lambda value: isinstance(value, Manifold))
    names = [f"x[{number}]" for number in range(len(leaves))] if len(leaves) > 1 else ["x"]
    spaces = [leaf_space(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
    storages = [space.unwrap(leaf) for space, leaf in zip(spaces, leaves, strict=True)]

    def given(values: tuple[Any, ...]) -> list[Tensor]:
        assert jac is not None
        parts = pytree.leaves(jac(pytree.unflatten(list(values), structure), *args))
        return [part.reshape(-1, space.tangent_dim) for part, space in zip(parts, spaces, strict=True)]

    name = getattr(residual, "__name__", type(residual).__name__)
    applied = lambda values: residual(pytree.unflatten(list(values), structure), *args)  # noqa: E731
    return CheckedBlock(name, spaces, names, storages, applied, rtol).jacobians("jac", None if jac is None else given)


def _sample(count: int) -> list[int]:
    if count <= SAMPLE:
        return list(range(count))
    return [round(number * (count - 1) / (SAMPLE - 1)) for number in range(SAMPLE)]


def _random_values(problem: Problem) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    tensors = [t for t in [*problem.parameters(), *problem.buffers()] if t.is_floating_point() and t.ndim]
    dtype = tensors[0].dtype if tensors else torch.get_default_dtype()
    values = {}
    for name, variable in problem.variables.items():
        shape = () if variable.count is None else (variable.count,)
        values[name] = variable.space.random(*shape, generator=generator, dtype=dtype, device="cpu")
    return values
