"""From a problem, a start and its data to a system: names, shapes, dtypes, devices are checked here, once, in words."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import batch_size, mapped_dims, take
from mslsq.manifolds import Manifold
from mslsq.private import disable_proxy_modes_tracing, version_of
from mslsq.problem import CostFunction, Problem, Shared
from mslsq.problem.errors import DeviceError, DtypeError, ProblemError, ShapeError, unknown_name
from mslsq.problem.layout import check_dense
from mslsq.problem.system import Inputs, Slot, System, Term, Unknown
from mslsq.problem.variable import Blocks, Variable
from mslsq.tracing.reading.changes import Changes
from mslsq.tracing.reading.inputs import Collected, collect_module

_CHANGES: "weakref.WeakKeyDictionary[Problem, Changes]" = weakref.WeakKeyDictionary()
"""The memory of the states in which a problem was solved."""


@dataclass(frozen=True, eq=False)
class StatedProblem:
    """A problem with its start and data as the engine takes them: plain data and tensors."""

    system: System
    values: tuple[Tensor, ...]
    """Per variable (batch, count, storage)."""
    inputs: tuple[dict[str, Tensor], ...]
    """Per cost its tensors by name; those in `batched` have the batch axis first."""
    batched: tuple[frozenset[str], ...]
    size: int | None
    """The size of the batch; None where nothing is mapped (the batch axis of `values` is then 1)."""


def stated(
    problem: Problem, values: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]] | None, in_dims: Any = None
) -> StatedProblem:
    """What the user said, as a system; arguments as for `mslsq.solve`.

    Raises:
        ProblemError: a name that is not known, a wrong shape, dtype or device; the message says which.
    """
    data = {} if data is None else data
    _check_names(problem, values, data)
    values = {name: values[name] for name in problem.variables}
    data = {name: dict(replaced) for name, replaced in data.items()}
    dims = mapped_dims(in_dims, (values, data), is_leaf=_is_leaf)
    leaves, structure = pytree.flatten((values, data), is_leaf=_is_leaf)
    size = batch_size(dims, [leaf.value if isinstance(leaf, Shared) else leaf for leaf in leaves])
    # Axes in the places of the leaves, not by the leaves' identity: one tensor may stand in two places.
    value_dims, data_dims = pytree.unflatten(dims, structure)

    storages = tuple(
        _start(variable, values[name], pytree.leaves(value_dims[name]), size)
        for name, variable in problem.variables.items()
    )
    terms, inputs, batched = [], [], []
    changes = _CHANGES.setdefault(problem, Changes())
    for cost in problem:
        term, tensors, mapped = _term(problem, changes, cost, data.get(cost.name, {}), data_dims.get(cost.name, {}))
        terms.append(term)
        inputs.append(tensors)
        batched.append(mapped)
    _check_agreement(problem, storages, inputs)
    for name, variable in problem.variables.items():
        _check_numbers(variable, values[name])
    system = _system(problem, tuple(terms), storages[0])
    return StatedProblem(system, storages, tuple(inputs), tuple(batched), size)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (Manifold, Shared))


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
        if name not in {cost.name for cost in problem}:
            raise unknown_name("cost", name, [cost.name for cost in problem])
        if not isinstance(replaced, Mapping):
            raise ProblemError(f"data[{name!r}] must be a dict by name of the data, not {type(replaced).__name__}.")


def _start(variable: Variable, value: Any, dims: list[int | None], size: int | None) -> Tensor:
    """The start of a variable as (batch, count, storage); `dims` are the batch axes of its parts."""
    axes = set(dims)
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
    if not storage.is_floating_point():
        raise DtypeError(f"Variable {variable.name!r}: the start must be real floating point, not {storage.dtype}.")
    check_dense({"the start": storage}, f"Variable {variable.name!r}: ")
    storage = take(storage, axis, size)
    return storage[:, None] if variable.count is None else storage


def _check_numbers(variable: Variable, value: Any) -> None:
    """Last of all, when shapes and dtypes are right: is a start given as plain storage one of elements?"""
    try:
        variable.space.check(value)
    except ValueError as error:
        raise ProblemError(f"Variable {variable.name!r}: {error}") from None


def _term(
    problem: Problem, changes: Changes, cost: CostFunction, replaced: Mapping[str, Any], dims: Mapping[str, Any]
) -> tuple[Term, dict[str, Tensor], frozenset[str]]:
    """One cost function as the engine sees it: its term, its tensors by name, and which have a batch axis (first)."""
    collected = collect_module(cost)
    tensors = dict(collected.tensors)
    check_dense(tensors, f"Cost {cost.name!r}: ")
    check_dense(_given_tensors(replaced), f"data[{cost.name!r}]: ")
    batched = set()
    for name, given, axis in _replacements(cost, tensors, replaced, dims):
        original = tensors[name]
        tensors[name] = given if axis is None else given.movedim(axis, 0)
        shape = tensors[name].shape[1:] if axis is not None else tensors[name].shape
        _check_shape(cost, name, original, tuple(shape))
        if axis is not None:
            batched.add(name)
    mapped = frozenset(batched)
    key, eager = changes.keyed(cost.name, collected)
    term = Term(
        name=cost.name,
        slots=tuple(_slot(problem, reference, next(iter(tensors.values()), None)) for reference in cost.references),
        num_blocks=cost.num_blocks,
        loss=cost.loss,
        loss_inputs={
            name.removeprefix("loss."): name for name in tensors if cost.loss is not None and name.startswith("loss.")
        },
        per_block=_per_block(cost, tensors, mapped),
        key=(
            key,
            tuple((id(r.index), version_of(r.index)) for r in cost.references if isinstance(r.index, Tensor)),
        ),
        chunk=cost.chunk,
        is_of_library=type(cost).__module__.startswith("mslsq.problem.") and "residual" not in vars(cost),
        eager=eager,
        **_functions(cost, collected),
    )
    return term, tensors, mapped


def _given_tensors(replaced: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of one entry of `data`, by name."""
    leaves = {name: leaf.value if isinstance(leaf, Shared) else leaf for name, leaf in replaced.items()}
    return {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}


def _functions(cost: CostFunction, collected: Collected) -> dict[str, Any]:
    """Residual, Jacobians and weight of one block, as functions of explicit tensors."""

    def residual(values: tuple[Any, ...], inputs: Inputs) -> Any:
        module = collected.rebuild({name: inputs[name] for name in collected.tensors})
        return module.residual(*values, **module.data_arguments(inputs))

    functions: dict[str, Any] = {"residual": residual}
    if cost.jacobians is not None:
        weight_broadcasts = cost.weight is None or cost.weight.broadcasts
        functions["broadcasts"] = cost.broadcasts is not None and weight_broadcasts and cost.broadcasts()

        def jacobians(values: tuple[Any, ...], inputs: Inputs) -> tuple[Tensor, ...]:
            module = collected.rebuild({name: inputs[name] for name in collected.tensors})
            return tuple(module.jacobians(*values, **module.data_arguments(inputs)))

        functions["jacobians"] = jacobians
        if cost.residual_and_jacobians is not None:

            def residual_and_jacobians(values: tuple[Any, ...], inputs: Inputs) -> tuple[Any, tuple[Tensor, ...]]:
                module = collected.rebuild({name: inputs[name] for name in collected.tensors})
                return module.residual_and_jacobians(*values, **module.data_arguments(inputs))

            functions["residual_and_jacobians"] = residual_and_jacobians
    if cost.curvature is not None:

        def curvature(cotangent: Any, values: tuple[Any, ...], inputs: Inputs) -> Tensor:
            module = collected.rebuild({name: inputs[name] for name in collected.tensors})
            return module.curvature(cotangent, *values, **module.data_arguments(inputs))

        functions["curvature"] = curvature
    if cost.weight is not None:
        kind = type(cost.weight)
        functions["whiten"] = lambda vector, inputs: kind.whiten(vector, inputs["weight.value"])
        functions["whiten_jacobian"] = lambda matrix, inputs: kind.whiten_jacobian(matrix, inputs["weight.value"])
    return functions


def _slot(problem: Problem, reference: Blocks, like: Tensor | None) -> Slot:
    number = list(problem.variables).index(reference.variable.name)
    with disable_proxy_modes_tracing():  # indices are structure, also for whoever records a solve
        return Slot(number, _index(reference, like))


def _index(reference: Blocks, like: Tensor | None) -> int | Tensor:
    index = reference.index
    if isinstance(index, Tensor) and len(index) == 1:
        index = int(index)  # a number is read here, once: inside a recorded step it cannot be read
    if isinstance(index, Tensor) and like is not None:
        index = index.to(like.device)
    return index


def _system(problem: Problem, terms: tuple[Term, ...], like: Tensor) -> System:
    unknowns = []
    with disable_proxy_modes_tracing():
        for name, variable in problem.variables.items():
            free = problem.free_blocks(variable)
            unknowns.append(
                Unknown(name, variable.space, variable.num_blocks, None if free is None else free.to(like.device))
            )
        key = tuple((u.name, u.space, u.count, None if u.free is None else tuple(u.free.tolist())) for u in unknowns)
    return System(tuple(unknowns), terms, key)


def _per_block(cost: CostFunction, tensors: Mapping[str, Tensor], batched: frozenset[str]) -> frozenset[str]:
    """The tensors of a cost with one entry per block: data as declared, weights and loss parameters by their rank."""
    names = {leaf.name for argument in cost.arguments.values() for leaf in argument.leaves if leaf.per_block}
    ranks = {"weight.value": 0 if cost.weight is None else cost.weight.block_rank}
    ranks.update({name: 0 for name in tensors if cost.loss is not None and name.startswith("loss.")})
    for name, rank in ranks.items():
        if name in tensors and tensors[name].ndim - (name in batched) > rank:
            names.add(name)
    return frozenset(names)


def _replacements(
    cost: CostFunction, tensors: Mapping[str, Tensor], replaced: Mapping[str, Any], dims: Mapping[str, Any]
) -> list[tuple[str, Tensor, int | None]]:
    """(name of the tensor, its replacement, batch axis) for everything in `data[cost]`."""
    result = []
    own = cost.data_arguments(tensors)
    for name, value in replaced.items():
        if name in cost.arguments and cost.arguments[name].leaves:
            leaves, given = cost.arguments[name].leaves, pytree.leaves(value, is_leaf=_is_leaf)
            if len(given) != len(leaves):
                raise ShapeError(
                    f"data[{cost.name!r}][{name!r}] has {len(given)} tensors, the cost's own has {len(leaves)}."
                )
            kinds = [type(part) for part in pytree.leaves(own[name], is_leaf=_is_leaf)]
            targets = [(leaf.name, part, kind) for leaf, part, kind in zip(leaves, given, kinds, strict=True)]
        elif name == "weight" and cost.weight is not None:
            targets = [("weight.value", value, Tensor)]
        elif name in tensors and not name.startswith("references["):  # those are the indices: structure, not data
            targets = [(name, value, Tensor)]
        else:
            known = [
                *cost.arguments,
                *(
                    n
                    for n in tensors
                    if n not in cost.arguments and n != "weight.value" and not n.startswith("references[")
                ),
            ]
            raise unknown_name(
                f"tensor of cost {cost.name!r}", name, [*known, *(["weight"] if cost.weight is not None else [])]
            )
        for (target, leaf, kind), axis in zip(targets, pytree.leaves(dims[name]), strict=True):
            inner = leaf.value if isinstance(leaf, Shared) else leaf
            tensor = inner.storage if isinstance(inner, Manifold) else inner
            if not isinstance(tensor, Tensor):
                raise ProblemError(
                    f"data[{cost.name!r}][{name!r}] must be a tensor or a manifold element, not {type(inner).__name__}."
                )
            if isinstance(inner, Manifold) and not isinstance(inner, kind):
                raise ProblemError(
                    f"data[{cost.name!r}][{name!r}] is of {type(inner).__name__}, the cost's own of {kind.__name__}."
                )
            result.append((target, tensor, axis))
    return result


def _check_shape(cost: CostFunction, name: str, original: Tensor, shape: tuple[int, ...]) -> None:
    """A replacement has the shape of what it replaces; weights and loss parameters may become shared or per block."""
    allowed = {tuple(original.shape)}
    rank = cost.weight.block_rank if name == "weight.value" and cost.weight is not None else 0
    if name == "weight.value" or name.startswith("loss."):
        block = tuple(original.shape[original.ndim - rank :]) if rank else ()
        allowed = {block, (cost.num_blocks, *block)}
    if shape not in allowed:
        expected = " or ".join(map(str, sorted(allowed, key=len)))
        raise ShapeError(
            f"data for {cost.name!r}: {name!r} has shape {shape}; expected {expected}. A batch is declared by in_dims."
        )


def _check_agreement(problem: Problem, storages: tuple[Tensor, ...], inputs: list[dict[str, Tensor]]) -> None:
    """Start and data have one dtype and live on one device."""
    names = list(problem.variables)
    for name, storage in zip(names[1:], storages[1:], strict=True):
        if storage.dtype != storages[0].dtype:
            raise DtypeError(f"The start of {name!r} is {storage.dtype}, that of {names[0]!r} is {storages[0].dtype}.")
        if storage.device != storages[0].device:
            raise DeviceError(
                f"The start of {name!r} is on {storage.device}, that of {names[0]!r} on {storages[0].device}."
            )
    for cost, tensors in zip(problem, inputs, strict=True):
        own = {leaf.name for argument in cost.arguments.values() for leaf in argument.leaves} | {"weight.value"}
        for name, tensor in tensors.items():
            if tensor.device != storages[0].device:
                raise DeviceError(
                    f"{cost.name}.{name} is on {tensor.device}, the start on {storages[0].device}: "
                    "use problem.to(device)."
                )
            if name in own and tensor.is_floating_point() and tensor.ndim and tensor.dtype != storages[0].dtype:
                raise DtypeError(
                    f"{cost.name}.{name} is {tensor.dtype}, the start of {names[0]!r} is {storages[0].dtype}: "
                    "convert one of them, for instance problem.to(torch.float64); nothing is rounded silently."
                )
