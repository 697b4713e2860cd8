"""Are the Jacobians right? Those written by hand, and those of autodiff, against finite differences."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import hessian, jacfwd

from mslsq import pytree
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.diagnostics.ridders import central_differences
from mslsq.front.problem_statement import stated
from mslsq.manifolds import Manifold
from mslsq.manifolds.space import Space
from mslsq.problem import CostFunction, Problem
from mslsq.problem.errors import ProblemError, ShapeError
from mslsq.problem.leaf import leaf_space
from mslsq.problem.system import Term, residual_like, residual_vector
from mslsq.tracing.graph import TRANSFORM_LOCK

TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-2}
"""Relative: what extrapolated differences resolve with room to spare; they reach 1e-9 and 1e-4."""
NEGLIGIBLE = {torch.float64: 1e-4, torch.float32: 1e-2}
"""Entries that are a smaller share of the largest of their column are compared with that share."""
SAMPLE = 16
"""Blocks checked by default, spread evenly: an error in a formula shows in most of them."""


@dataclass(frozen=True)
class JacobianCheck:
    """The worst entry found. `bool(check)` is `check.ok`; `str(check)` says it in words."""

    ok: bool
    worst_error: float
    """|given − expected| relative to the larger of the two, what differences cannot resolve taken off."""
    tolerance: float
    name: str
    """Of the cost or residual."""
    source: str
    """Whose Jacobian it is: "jacobians" (or "jac") as written by the user, or "autodiff"; or the user's "curvature"."""
    variable: str
    block: int
    row: int
    column: int
    given: float
    expected: float
    """By finite differences."""
    num_blocks: int
    """How many blocks were checked."""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        blocks = f"{self.num_blocks} blocks" if self.num_blocks > 1 else "one block"
        if self.ok:
            return (
                f"{self.name}: the Jacobian agrees with finite differences in {blocks}; "
                f"worst relative error {self.worst_error:.1e} of {self.tolerance:.0e} allowed ({self.source})."
            )
        hint = (
            "The formula is wrong there, or not with respect to the tangent of retract (a perturbation on the right)."
            if self.source != "autodiff"
            else "The residual is not smooth there, or hides a dependence (detach, rounding) from differentiation."
        )
        if self.source == "curvature":
            return (
                f"{self.name}: curvature is wrong in block {self.block}, row {self.row}, column {self.column} of "
                f"{self.variable}: it says {self.given:.8g}, nested autodiff says {self.expected:.8g} (relative error "
                f"{self.worst_error:.1e}, {self.tolerance:.0e} allowed). Its symmetric part must be Σ cotangentᵢ "
                "∇²residualᵢ of the residual before its weight, in the joint tangent of all variables."
            )
        return (
            f"{self.name}: the Jacobian by {self.source} is wrong in block {self.block}, with respect to "
            f"{self.variable}, row {self.row}, column {self.column}: it says {self.given:.8g}, finite differences say "
            f"{self.expected:.8g} (relative error {self.worst_error:.1e}, {self.tolerance:.0e} allowed). {hint}"
        )


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
        return _worst([check_jacobian(cost, values, data=data, blocks=blocks, rtol=rtol) for cost in costs])
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
    term, spaces = statement.system.terms[0], [unknown.space for unknown in statement.system.unknowns]
    chosen = _sample(term.num_blocks) if blocks is None else [int(block) for block in blocks]
    checks = []
    for block in chosen:
        storages = [_of_block(statement.values[slot.unknown][0], slot.index, block) for slot in term.slots]
        inputs = {
            name: tensor[block] if name in term.per_block else tensor for name, tensor in statement.inputs[0].items()
        }
        check = _check_block(
            cost.name,
            "jacobians",
            [spaces[slot.unknown] for slot in term.slots],
            [repr(reference.variable.name)[1:-1] for reference in cost.references],
            storages,
            lambda values, inputs=inputs: term.residual(tuple(values), inputs),
            _jacobians_of(term, inputs),
            rtol,
        )
        checks.append(replace(check, block=block, num_blocks=len(chosen)))
        if term.curvature is not None:
            own = [spaces[slot.unknown] for slot in term.slots]
            names = [repr(reference.variable.name)[1:-1] for reference in cost.references]
            bent = _check_curvature(term, own, names, storages, inputs, rtol)
            checks.append(replace(bent, block=block, num_blocks=len(chosen)))
    return _worst(checks)


def _check_curvature(
    term: Term,
    spaces: list[Space],
    variables: list[str],
    storages: list[Tensor],
    inputs: Mapping[str, Tensor],
    rtol: float | None,
) -> JacobianCheck:
    """Of one block: Σ wᵢ ∇²rᵢ by `curvature`, against nested autodiff of wᵀr, for a w of many signs. (Autodiff itself
    is compared with finite differences beside this.)"""
    sizes = [space.tangent_dim for space in spaces]

    def output(delta: Float[Tensor, "tangent"]) -> Any:
        moved = [s.wrap(s.retract(x, d)) for s, x, d in zip(spaces, storages, delta.split(sizes), strict=True)]
        return term.residual(tuple(moved), inputs)

    zero = storages[0].new_zeros(sum(sizes))
    with torch.no_grad():
        at = output(zero)
        rows = len(residual_vector(at)[0])
        weights = torch.cos(1.0 + torch.arange(rows, dtype=zero.dtype, device=zero.device))
    with TRANSFORM_LOCK:
        expected = hessian(lambda delta: (residual_vector(output(delta))[0].to(zero.dtype) * weights).sum())(zero)
        assert term.curvature is not None  # the callers have checked
        values = tuple(s.wrap(x) for s, x in zip(spaces, storages, strict=True))
        found = term.curvature(residual_like(at, weights), values, inputs).detach()
    tolerance = TOLERANCES.get(zero.dtype, 2e-2) if rtol is None else rtol
    if found.shape != expected.shape:
        raise ShapeError(
            f"{term.name}: curvature returned {tuple(found.shape)}; expected {tuple(expected.shape)}, a matrix in the "
            "joint tangent of all variables."
        )
    found = 0.5 * (found + found.mT)
    errors = _relative_errors(found, expected.detach(), torch.zeros_like(found))
    row, column = divmod(int(errors.argmax()), errors.shape[1])
    worst = float(errors[row, column])
    labels = [(name, number) for name, size in zip(variables, sizes, strict=True) for number in range(size)]
    variable, own = labels[column]
    return JacobianCheck(
        worst <= tolerance,
        worst,
        tolerance,
        term.name,
        "curvature",
        variable,
        0,
        row,
        own,
        float(found[row, column]),
        float(expected[row, column]),
        1,
    )


def _jacobians_of(term: Term, inputs: Mapping[str, Tensor]) -> Callable[[list[Any]], list[Tensor]] | None:
    """The Jacobians as a solve gets them: together with the residual where the term has that, and of a term that takes
    many blocks at once those of the first of two equal ones."""
    if term.jacobians is None:
        return None
    both, alone = term.residual_and_jacobians, term.jacobians

    def jacobians(values: tuple[Any, ...], given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return alone(values, given) if both is None else both(values, given)[1]

    if not term.broadcasts:
        return lambda values: list(jacobians(tuple(values), inputs))

    def of_two(values: list[Any]) -> list[Tensor]:
        leaves, structure = pytree.flatten(tuple(values))
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

    def given(values: list[Any]) -> list[Tensor]:
        assert jac is not None
        parts = pytree.leaves(jac(pytree.unflatten(values, structure), *args))
        return [part.reshape(-1, space.tangent_dim) for part, space in zip(parts, spaces, strict=True)]

    return _check_block(
        getattr(residual, "__name__", type(residual).__name__),
        "jac",
        list(spaces),
        names,
        storages,
        lambda values: residual(pytree.unflatten(list(values), structure), *args),
        None if jac is None else given,
        rtol,
    )


def _check_block(
    name: str,
    source: str,
    spaces: list[Space],
    variables: list[str],
    storages: list[Tensor],
    residual: Callable[[list[Any]], Any],
    jacobians: Callable[[list[Any]], list[Tensor]] | None,
    rtol: float | None,
) -> JacobianCheck:
    """One block: its Jacobians with respect to the joint tangent of its variables."""
    sizes = [space.tangent_dim for space in spaces]

    def moved(delta: Float[Tensor, "tangent"]) -> Float[Tensor, "rows"]:
        pieces = delta.split(sizes)
        values = [s.wrap(s.retract(x, d)) for s, x, d in zip(spaces, storages, pieces, strict=True)]
        return residual_vector(residual(values))[0]

    zero = storages[0].new_zeros(sum(sizes))
    tolerance = TOLERANCES.get(zero.dtype, 2e-2) if rtol is None else rtol
    steps = torch.cat([_typical_step(s, x) for s, x in zip(spaces, storages, strict=True)])
    with torch.no_grad():
        expected, uncertainty = central_differences(moved, zero, steps)
    with TRANSFORM_LOCK:
        found = {"autodiff": jacfwd(moved)(zero).detach()}
    if jacobians is not None:
        with torch.no_grad():
            parts = jacobians([s.wrap(x) for s, x in zip(spaces, storages, strict=True)])
        found[source] = _joined(parts, sizes, expected.shape[0], name, source)
    labels = [variable for variable, size in zip(variables, sizes, strict=True) for _ in range(size)]
    starts = [sum(sizes[:number]) for number, size in enumerate(sizes) for _ in range(size)]
    checks = []
    for which, jacobian in found.items():
        errors = _relative_errors(jacobian, expected, uncertainty)
        row, column = divmod(int(errors.argmax()), errors.shape[1])
        worst = float(errors[row, column])
        checks.append(
            JacobianCheck(
                worst <= tolerance,
                worst,
                tolerance,
                name,
                which,
                labels[column],
                0,
                row,
                column - starts[column],
                float(jacobian[row, column]),
                float(expected[row, column]),
                1,
            )
        )
    return _worst(checks)


def _relative_errors(given: Tensor, expected: Tensor, uncertainty: Tensor) -> Tensor:
    """|given − expected| beyond the uncertainty, relative to the entry, or to its column where it is negligible."""
    column = expected.abs().amax(0, keepdim=True)
    size = torch.maximum(torch.maximum(given.abs(), expected.abs()), NEGLIGIBLE.get(column.dtype, 1e-2) * column)
    difference = ((given - expected).abs() - uncertainty).clamp(min=0)
    error = torch.where(difference > 0, difference / torch.where(size > 0, size, 1), 0)
    return torch.where(torch.isfinite(given) & torch.isfinite(expected), error, torch.inf)


def _joined(parts: list[Tensor], sizes: list[int], rows: int, name: str, source: str) -> Tensor:
    real = [torch.stack((p.real, p.imag), 1).flatten(0, 1) if p.is_complex() else p for p in parts]
    wanted = [(rows, size) for size in sizes]
    if [tuple(part.shape) for part in real] != wanted:
        raise ShapeError(
            f"{name}: {source} returned {', '.join(str(tuple(part.shape)) for part in parts)}; "
            f"expected one (rows, tangent) per variable, {', '.join(map(str, wanted))}."
        )
    return torch.cat(real, -1)


def _typical_step(space: Space, storage: Tensor) -> Tensor:
    """The first, largest step of the differences: a fraction of a Euclidean entry, of one elsewhere."""
    if space.is_euclidean:
        size = storage.abs()
        return 0.05 * torch.where(size > 0, size, 1)
    return 0.05 * storage.new_ones(space.tangent_dim)


def _of_block(storages: Tensor, index: Tensor | int, block: int) -> Tensor:
    return storages[index if isinstance(index, int) else int(index[block])]


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
        values[name] = variable.space.random(*shape, generator=generator, dtype=dtype)
    return values


def _worst(checks: list[JacobianCheck]) -> JacobianCheck:
    return max(checks, key=lambda check: math.inf if math.isnan(check.worst_error) else check.worst_error)
