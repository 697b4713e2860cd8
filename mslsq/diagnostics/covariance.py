"""Marginal covariances of variables at a solution, from the inverse of the normal equations."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.diagnostics.constrained import active_jacobian, check_size, penalized, projected_inverse
from mslsq.diagnostics.dense_factor import SingularCovarianceError, factorised, half_inverse, singular
from mslsq.diagnostics.located import Located, located
from mslsq.diagnostics.marginals import joint, marginals
from mslsq.manifolds import Manifold
from mslsq.problem import Problem, Shared
from mslsq.problem.errors import unknown_name
from mslsq.solution import Solution
from mslsq.validation import instance_of


@outside_compiled_regions
def covariance(
    problem: Problem,
    solution: Solution | Mapping[str, Any],
    name: str | Sequence[str],
    index: Any = None,
    data: Mapping[str, Mapping[str, Any]] | None = None,
) -> Float[Tensor, "... tangent tangent"]:
    """The marginal covariance of blocks of a variable, their blocks of (JᵀJ)⁻¹ at the solution; or the joint one of
    several variables.

    Residuals are taken to be whitened by their weights, so that their variance is one: without weights, or with
    weights known but for a factor, multiply by the reduced chi-square, 2 · cost / (rows − columns). Robust losses enter
    as they do in the solver. The covariance is that of the tangent of `retract`, in its order. A variable on one of its
    bounds counts as known: its rows and columns are zero, and it adds nothing to the covariance of others. Under
    constraints it is that of the directions which equalities and strictly active inequalities leave free,
    Z (Zᵀ JᵀJ Z)⁻¹ Zᵀ with Z the null space of their Jacobian, formed densely; an inequality that is just met and has no
    multiplier counts as absent.

    Large problems are factorised by blocks, and only the blocks asked for are computed (Takahashi's recursion), never
    the inverse.

    Args:
        problem: the one that was solved.
        solution: what `mslsq.solve` returned for this problem, of one problem or of a batch; or values of all variables
            of one problem, as `solve` takes them, where no solve is at hand.
        name: of the variable; a list of names for the joint covariance of variables, with all that is between them.
        index: which blocks: an integer, or anything that `variable[index]` takes; all of them by default. For a list of
            names a dict by name.
        data: as given to `solve`; for a batched solution, tensors with one axis more than the problem's own are taken
            as batched.

    Returns:
        (tangent, tangent) for an integer or a variable with `count=None`, else (blocks, tangent, tangent); a batch in
        front. Blocks held fixed have zero covariance. Of a list of names one matrix (n, n), n the tangents of all
        blocks: in the order of the names, then of the blocks.

    Raises:
        SingularCovarianceError: JᵀJ is singular; the message names a variable that is not determined. In a batch such
            entries are NaN instead, and an error is raised only if all are.
        UnknownNameError: there is no such variable.

    >>> mslsq.covariance(problem, solution, "pose", 3)          # (6, 6)
    >>> mslsq.covariance(problem, solution, ["pose", "landmark"], {"pose": 3, "landmark": [0, 1]})     # (12, 12)
    """
    instance_of("covariance: problem", problem, Problem)
    names = [name] if isinstance(name, str) else list(name)
    for one in names:
        if one not in problem.variables:
            raise unknown_name("variable", one, problem.variables)
    if not isinstance(solution, (Solution, Mapping)):
        raise TypeError(
            f"covariance takes the Solution that mslsq.solve returned, or values by variable, not "
            f"{type(solution).__name__}."
        )
    batched = isinstance(solution, Solution) and solution.cost.ndim > 0
    in_dims = (0, _dims_of(problem, data)) if batched else None
    values = solution.value if isinstance(solution, Solution) else solution
    point = located(problem, values, data, in_dims, takes_constraints=True)
    if point.constraints is not None:
        result, single = _under_constraints(point, solution, names, name, index)
    elif not isinstance(name, str):
        result, single = _joint(point, names, index), False
    else:
        blocks, single = _chosen(problem, name, index)
        result = _blocks(point, name, blocks)
    if single:
        result = result[:, 0]
    return result if batched else result[0]


def _chosen(problem: Problem, name: str, index: Any) -> tuple[Tensor, bool]:
    """The numbers of the blocks asked for, and whether it is a single one without an axis."""
    variable = problem.variables[name]
    if variable.count is None:
        if index not in (None, 0):
            raise IndexError(f"Variable {name!r} is a single block (count=None): leave index out, it was {index!r}.")
        return torch.zeros(1, dtype=torch.int64, device="cpu"), True
    if index is None:
        return torch.arange(variable.count, device="cpu"), False
    chosen = variable[index].index
    return (torch.tensor([chosen], device="cpu"), True) if isinstance(chosen, int) else (chosen, False)


def _blocks(point: Located, name: str, blocks: Tensor) -> Float[Tensor, "batch blocks tangent tangent"]:
    """Diagonal blocks of (JᵀJ)⁻¹, in which what a bound holds is known."""
    matrix, free = _normal_equations(point)
    result = _inverse_blocks(point, matrix, name, blocks)
    return result if free is None else _known(result, free, point.columns(name)[blocks.to(free.device)])


def _normal_equations(point: Located) -> tuple[Tensor, Tensor | None]:
    """JᵀJ of what no bound holds, and which columns that are; None where there are no bounds."""
    matrix, free = point.linearization().matrix, point.free_of_bounds()
    if free is None:
        return matrix, None
    return point.linearizer.linear_solver.storage.restricted(matrix, free), free


def _known(covariance: Tensor, free: Tensor, columns: Tensor) -> Tensor:
    """A covariance of these columns, (batch, ..., k, k), with zeros for those that bounds hold."""
    own = torch.nn.functional.pad(free, (0, 1), value=True)[:, columns]
    return torch.where(own[..., :, None] & own[..., None, :], covariance, 0)


def _inverse_blocks(
    point: Located, matrix: Tensor, name: str, blocks: Tensor
) -> Float[Tensor, "batch blocks tangent tangent"]:
    """Diagonal blocks of the inverse of the normal equations."""
    if point.pattern is not None:
        return _sparse_blocks(point, matrix, name, blocks)
    batch, size = len(matrix), matrix.shape[-1]
    factor, scale, regular = factorised(point, matrix)
    columns = point.columns(name)[blocks.to(matrix.device)]
    free = columns < point.structure.num_columns
    if not point.structure.num_columns:  # all is held fixed
        return matrix.new_zeros(batch, *columns.shape, columns.shape[1])
    # Of a block that is held in part the columns that move say to which component it belongs.
    columns = torch.where(free, columns, columns.amin(1, keepdim=True))
    columns = torch.where(free.any(1, keepdim=True), columns, 0)
    # Σ_bb = (H E)ᵀ (H E), E the columns of the identity that belong to the block.
    component, place = (columns // max(size, 1))[:, 0], columns % max(size, 1)
    half = half_inverse(factor, scale).mT[:, component[:, None], place]
    result = torch.where(free[:, :, None] & free[:, None], half @ half.mT, 0)
    return torch.where(regular[:, None, None, None], result, torch.nan)


def _under_constraints(
    point: Located, solution: Solution | Mapping[str, Any], names: list[str], name: str | Sequence[str], index: Any
) -> tuple[Float[Tensor, "batch *blocks k k"], bool]:
    """The covariance under constraints, and whether it is that of a single block."""
    whole = _whole_under_constraints(point, solution if isinstance(solution, Solution) else None)
    if not isinstance(name, str):
        columns, single = _columns_of(point, names, index), False
    else:
        blocks, single = _chosen(point.problem, name, index)
        columns = point.columns(name)[blocks.to(whole.device)]
    return whole[:, columns[..., :, None], columns[..., None, :]], single


def _whole_under_constraints(point: Located, solution: Solution | None) -> Float[Tensor, "batch n n"]:
    """Of all columns, with a last one of zeros for what is held fixed."""
    check_size(point)
    if not point.linearizer.assemblies:
        raise SingularCovarianceError(
            "covariance: the problem has constraints alone; without a cost nothing is measured."
        )
    matrix, free = _normal_equations(point)
    matrix = _in_one(matrix)
    rows = active_jacobian(point, solution, matrix)
    if free is not None:
        rows = torch.where(free[:, None], rows, 0)
    penalty, rows = penalized(matrix, rows)
    factor, scale, regular = factorised(point, penalty[:, None])
    scale = scale[:, 0]
    result = projected_inverse(factor[:, 0], rows / scale[:, None]) / (scale[:, :, None] * scale[:, None])
    result = torch.where(regular[:, None, None], result, torch.nan)
    if free is not None:
        result = torch.where(free[:, :, None] & free[:, None], result, 0)
    return torch.nn.functional.pad(result, (0, 1, 0, 1))


def _in_one(matrix: Float[Tensor, "batch components size size"]) -> Float[Tensor, "batch n n"]:
    """Normal equations of parts that nothing couples as one matrix."""
    batch, components, size, _ = matrix.shape
    whole = matrix.new_zeros(batch, components, size, components, size)
    own = torch.arange(components, device=matrix.device)
    whole[:, own, :, own] = matrix.transpose(0, 1)
    return whole.reshape(batch, components * size, components * size)


def _joint(point: Located, names: list[str], index: Any) -> Float[Tensor, "batch k k"]:
    """The covariance of all blocks of all names together."""
    columns = _columns_of(point, names, index)
    matrix, unbound = _normal_equations(point)
    free = (columns < point.structure.num_columns).nonzero()[:, 0]
    result = matrix.new_zeros(len(matrix), len(columns), len(columns))
    if not len(free):
        return result
    own = columns[free]
    if point.pattern is not None:
        between, regular, missing = joint(point, matrix, own)
        if not bool(regular.any()):
            raise singular(point, missing)
    else:
        between = _dense_joint(point, matrix, own)
    result[:, free[:, None], free] = between
    return result if unbound is None else _known(result, unbound, columns)


def _columns_of(point: Located, names: list[str], index: Any) -> Tensor:
    """The columns of all blocks asked for of several variables."""
    if index is not None and not isinstance(index, Mapping):
        raise TypeError(f"covariance of several variables takes index as a dict by name, not {type(index).__name__}.")
    for one in index or {}:
        if one not in names:
            raise unknown_name("variable in index", one, names)
    if not names:
        raise ValueError("covariance: the list of names is empty.")
    chosen = [_chosen(point.problem, name, (index or {}).get(name))[0] for name in names]
    parts = [
        point.columns(name)[blocks.to(point.structure.columns[0].device)]
        for name, blocks in zip(names, chosen, strict=True)
    ]
    return torch.cat([part.reshape(-1) for part in parts])


def _dense_joint(point: Located, matrix: Tensor, columns: Tensor) -> Float[Tensor, "batch k k"]:
    """Σ = (H E)ᵀ (H E), zero between parts of the problem that nothing connects."""
    size = matrix.shape[-1]
    factor, scale, regular = factorised(point, matrix)
    component, place = columns // size, columns % size
    half = half_inverse(factor, scale).mT[:, component, place]
    together = component[:, None] == component
    result = torch.where(together, half @ half.mT, 0)
    return torch.where(regular[:, None, None], result, torch.nan)


def _sparse_blocks(
    point: Located, matrix: Tensor, name: str, blocks: Tensor
) -> Float[Tensor, "batch blocks tangent tangent"]:
    """The same from block-sparse normal equations."""
    result, regular, missing = marginals(point, matrix, name, blocks)
    if bool(regular.any()):
        return result
    raise singular(point, missing)


def _dims_of(problem: Problem, data: Mapping[str, Mapping[str, Any]] | None) -> Any:
    """`in_dims` of the data of a batched solution: 0 for tensors with one axis more than the problem's own."""
    if data is None:
        return None
    dims = {}
    for cost_name, replaced in data.items():
        cost = problem[cost_name]
        dims[cost_name] = {name: _dims_of_one(cost, name, value) for name, value in replaced.items()}
    return dims


def _dims_of_one(cost: Any, name: str, value: Any) -> Any:
    given, structure = pytree.flatten(value, is_leaf=lambda x: isinstance(x, (Manifold, Shared)))
    dims = []
    for leaf, tensor_name in zip(given, cost.names_in_state(name), strict=True):
        inner = leaf.value if isinstance(leaf, Shared) else leaf
        tensor = inner.storage if isinstance(inner, Manifold) else inner
        dims.append(0 if tensor.ndim > cost.get_parameter_or_buffer(tensor_name).ndim else None)
    return pytree.unflatten(dims, structure)
