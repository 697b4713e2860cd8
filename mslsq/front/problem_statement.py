"""A problem, a start and data as a statement: names, shapes, dtypes, devices are checked here, once, in words."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import sent, taken_apart
from mslsq.front.bounds import Bound, StatedBounds, bounded, of_shape, pair_of, refuse_manifold, tensor_like
from mslsq.front.costs import stated_cost
from mslsq.front.leaves import Leaf, SharedOrPerBlock, Start
from mslsq.front.plans import kept_for
from mslsq.front.statement import Statement
from mslsq.front.trust import trust_of_costs
from mslsq.levels import python_numbers
from mslsq.linearize.blocks import Values
from mslsq.manifolds.space import Space
from mslsq.private import disable_proxy_modes_tracing
from mslsq.problem import Problem
from mslsq.problem.errors import (
    DeviceError,
    DtypeError,
    ProblemError,
    ShapeError,
    check_start,
    unknown_name,
)
from mslsq.problem.layout import check_dense
from mslsq.problem.system import System, Term, Unknown
from mslsq.problem.variable import Variable
from mslsq.validation import boolean

BOUNDS = "bounds"
"""Where `data` hold bounds of variables, and not the data of a cost."""


def stated(
    problem: Problem,
    values: Mapping[str, Any],
    data: Mapping[str, Mapping[str, Any]] | None,
    in_dims: Any = None,
    project_start: bool = False,
) -> Statement:
    """What the user said, as a statement; arguments as for `mslsq.solve`.

    Raises:
        ProblemError: a name that is not known, a wrong shape, dtype or device; the message says which.
    """
    data = {} if data is None else data
    boolean("project_start", project_start, ProblemError)
    _check_names(problem, values, data)
    values = {name: values[name] for name in problem.variables}
    arguments = taken_apart(values, {name: dict(replaced) for name, replaced in data.items()})
    axes = arguments.axes(in_dims)
    # Axes in the places of the leaves, not by the leaves' identity: one tensor may stand in two places.
    value_axes, data_axes = map(pytree.unflatten, axes.of, arguments.structures)

    starts = tuple(
        _start(variable, values[name], pytree.leaves(value_axes[name])) for name, variable in problem.variables.items()
    )
    kept = kept_for(problem)
    terms, leaves = [], []
    for cost in problem:
        term, own = stated_cost(problem, kept.changes, cost, data.get(cost.name, {}), data_axes.get(cost.name, {}))
        terms.append(term)
        leaves.append(own)
    _check_agreement(problem, starts, leaves)
    leaves = [tuple([_followed(leaf, starts[0].tensor) for leaf in own]) for own in leaves]
    for name, variable in problem.variables.items():
        _check_numbers(variable, values[name])

    forms = tuple([_Form.of(variable, values[name]) for name, variable in problem.variables.items()])

    def in_users_form(storages: Values) -> dict[str, Any]:
        return {form.name: form.like_start(storage) for form, storage in zip(forms, storages, strict=True)}

    def entries_in_users_form(entries: Values) -> dict[str, Any]:
        return {form.name: form.without_block(x) for form, x in zip(forms, entries, strict=True)}

    system = _system(problem, tuple(terms), starts[0].tensor)
    unknowns, bounds = _bounded(
        problem, system.unknowns, data.get(BOUNDS, {}), data_axes.get(BOUNDS, {}), starts[0].tensor, axes.size
    )
    return Statement(
        replace(system, unknowns=unknowns),
        starts,
        tuple(leaves),
        axes.size,
        kept.plans,
        in_users_form,
        entries_in_users_form,
        StatedBounds(bounds, project_start),
        trust_of_costs(problem, terms),
    )


def _bounded(
    problem: Problem,
    unknowns: tuple[Unknown, ...],
    replaced: Mapping[str, Any],
    axes: Mapping[str, Any],
    like: Tensor,
    size: int | None,
) -> tuple[tuple[Unknown, ...], dict[str, Bound]]:
    """The unknowns, told which are bounded, and their bounds: those of the variables, or those that data replace."""
    for name in replaced:
        if name not in problem.variables:
            raise unknown_name("variable", name, problem.variables)
    sides, dims = [], []
    for name, variable in problem.variables.items():
        is_own = name not in replaced
        sides.append((variable.lower, variable.upper) if is_own else pair_of(replaced[name], _where(name)))
        dims.append((None, None) if is_own else pair_of(axes[name], _where(name)))

    def to_bound(number: int, given: Any, side: str) -> Bound | None:
        unknown = unknowns[number]
        what = f"The {side} bound of {unknown.name!r}"
        tensor = tensor_like(given, like, what)
        if tensor is None:
            return None
        refuse_manifold(unknown.space, what)
        shape, axis = (unknown.count, unknown.space.storage_dim), dims[number][side == "upper"]
        if axis is None:
            if tensor.ndim > len(shape):
                raise ShapeError(
                    f"{what} has shape {tuple(tensor.shape)}; expected {shape}, or what broadcasts. A batch is "
                    "declared by in_dims."
                )
            return of_shape(tensor, shape, None, shape, what)
        each = tensor.movedim(axis, 0)
        each = each.reshape(len(each), *(1,) * (len(shape) + 1 - each.ndim), *each.shape[1:])
        return of_shape(each, shape, size, shape, what)

    return bounded(unknowns, sides, to_bound)


def _where(name: str) -> str:
    return f"data['bounds'][{name!r}]"


def _check_names(problem: Problem, values: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    if not isinstance(values, Mapping):
        names = ", ".join(f"{name!r}: ..." for name in problem.variables)
        raise ProblemError(f"values must be a dict by variable name, {{{names}}}, not {type(values).__name__}.")
    for name in values:
        if name not in problem.variables:
            raise unknown_name("variable", name, problem.variables)
    for name in problem.variables:
        if name not in values:
            raise ProblemError(
                f"values has no start for variable {name!r}; it has {', '.join(map(repr, values)) or 'nothing'}."
            )
    if not isinstance(data, Mapping):
        raise ProblemError(f"data must be a dict by cost name, not {type(data).__name__}.")
    for name, replaced in data.items():
        if name == BOUNDS:
            continue
        if name not in {cost.name for cost in problem}:
            raise unknown_name("cost", name, [cost.name for cost in problem])
        if not isinstance(replaced, Mapping):
            raise ProblemError(f"data[{name!r}] must be a dict by name of the data, not {type(replaced).__name__}.")


def _start(variable: Variable, value: Any, part_axes: list[int | None]) -> Start:
    """The start of a variable; `part_axes` are the batch axes of its parts."""
    axes = set(part_axes)
    if len(axes) > 1:
        raise ShapeError(
            f"Variable {variable.name!r}: in_dims must be the same for all parts of a product, "
            f"not {sorted(map(str, axes))}."
        )
    axis = next(iter(axes), None)
    try:
        storage = variable.space.unwrap(value)
    except ValueError as error:
        raise ShapeError(f"Variable {variable.name!r}: {error}") from None
    expected = (variable.space.storage_dim,) if variable.count is None else (variable.count, variable.space.storage_dim)
    shape = list(storage.shape)
    if axis is not None:
        del shape[axis]
    if tuple(shape) != expected:
        more = "" if axis is None else f", and a batch axis at {axis}"
        raise ShapeError(
            f"Variable {variable.name!r}: the start has storage of shape {tuple(storage.shape)}; "
            f"expected {expected}{more}. A batch is declared by in_dims."
        )
    check_start(f"Variable {variable.name!r}: the start", storage)
    check_dense({"the start": storage}, f"Variable {variable.name!r}: ")
    return Start(variable.name, storage, axis, is_single=variable.count is None)


def _check_numbers(variable: Variable, value: Any) -> None:
    """Last of all, when shapes and dtypes are right: is a start given as plain storage one of elements?"""
    try:
        variable.space.check(value)
    except ValueError as error:
        raise ProblemError(f"Variable {variable.name!r}: {error}") from None


def _system(problem: Problem, terms: tuple[Term, ...], like: Tensor) -> System:
    unknowns = []
    with disable_proxy_modes_tracing():
        for name, variable in problem.variables.items():
            free = problem.free_entries(variable)
            unknowns.append(
                Unknown(name, variable.space, variable.num_blocks, None if free is None else sent(free, like.device))
            )
        key = tuple(
            (u.name, u.space, u.count, None if u.free is None else tuple(python_numbers(u.free.reshape(-1))))
            for u in unknowns
        )
    return System(tuple(unknowns), terms, key)


class _Form(NamedTuple):
    """In which form the user has given a variable. Holds nothing of the problem: plans keep it."""

    name: str
    is_single: bool
    space: Space | None
    """Of elements; None of plain storage."""

    @staticmethod
    def of(variable: Variable, given: Any) -> "_Form":
        return _Form(variable.name, variable.count is None, None if isinstance(given, Tensor) else variable.space)

    def without_block(self, x: Tensor) -> Tensor:
        """(*batch, count, ...), without the axis of blocks where there is one block that has none."""
        return x[..., 0, :] if self.is_single else x

    def like_start(self, storage: Tensor) -> Any:
        """A result (*batch, count, storage) in the type of the start."""
        storage = self.without_block(storage)
        return storage if self.space is None else self.space.wrap(storage)


def _check_agreement(problem: Problem, starts: tuple[Start, ...], leaves: list[tuple[Leaf, ...]]) -> None:
    """Start and data have one dtype and live on one device."""
    first = starts[0]
    for start in starts[1:]:
        if start.tensor.dtype != first.tensor.dtype:
            raise DtypeError(
                f"The start of {start.name!r} is {start.tensor.dtype}, that of {first.name!r} is {first.tensor.dtype}."
            )
        if start.tensor.device != first.tensor.device:
            raise DeviceError(
                f"The start of {start.name!r} is on {start.tensor.device}, that of {first.name!r} on "
                f"{first.tensor.device}."
            )
    for cost, own in zip(problem, leaves, strict=True):
        for leaf in own:
            _check_agrees(cost.name, leaf, first)


def _followed(leaf: Leaf, like: Tensor) -> Leaf:
    """Numbers (the weight 2.0, the loss `Huber(1.0)`) go to the device of the start, and as weights and parameters of
    losses to its dtype; `_check_agrees` lets them pass."""
    tensor = leaf.tensor
    is_number = isinstance(leaf, SharedOrPerBlock) and not tensor.ndim and tensor.is_floating_point()
    tensor = sent(tensor, like.device, like.dtype if is_number else None)
    return leaf if tensor is leaf.tensor else leaf.replaced(tensor, leaf.axis)


def _check_agrees(cost: str, leaf: Leaf, start: Start) -> None:
    tensor, like = leaf.tensor, start.tensor
    if tensor.device != like.device and tensor.ndim:
        raise DeviceError(
            f"{cost}.{leaf.name} is on {tensor.device}, the start on {like.device}: use problem.to(device)."
        )
    if leaf.has_dtype_of_start and tensor.is_floating_point() and tensor.ndim and tensor.dtype != like.dtype:
        raise DtypeError(
            f"{cost}.{leaf.name} is {tensor.dtype}, the start of {start.name!r} is {like.dtype}: convert one of them, "
            "for instance problem.to(torch.float64); nothing is rounded silently."
        )
