"""`from_theseus`: an objective of Theseus as a problem, its variables by their names in both."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mslsq.interop.theseus.conventions import Kind, batch_size, kind_of, stacked
from mslsq.interop.theseus.library import TheseusError
from mslsq.interop.theseus.members import Member, members_of
from mslsq.interop.theseus.terms import Source, TermMaker
from mslsq.problem import Problem, Variable
from mslsq.tracing.reading.aside import Aside


@dataclass(frozen=True)
class Inputs:
    """What `mslsq.solve` and a `LeastSquaresLayer` are called with: `solve(problem, *inputs, in_dims=inputs.in_dims)`.

    Attributes:
        values: the start by variable name.
        data: by cost and leaf.
        in_dims: the batch axes of both; None where the batch size is one.
    """

    values: dict[str, Any]
    data: dict[str, dict[str, Any]]
    in_dims: Any

    def __iter__(self) -> Any:
        return iter((self.values, self.data))


class TheseusProblem(Problem):
    """The problem that an objective of Theseus states.

    Attributes:
        places: of every optimization variable of Theseus the variable here and its block: variables of one kind are the
            blocks of one `Variable`, called as in Theseus where it is alone, else `"SE3"`, `"Vector(2)"`, ...
        blocks: of every cost the names of the cost functions of Theseus that are its blocks.
    """

    def __init__(self, objective: Any):
        members = members_of(objective)
        groups = _variables_by_kind(objective)
        self_places = {variable.name: (made, number) for made, found in groups for number, variable in enumerate(found)}
        terms = [TermMaker(name, group, self_places).term() for name, group in _named(_grouped(members)).items()]
        super().__init__(*(term.cost for term in terms))
        self.places: dict[str, tuple[Variable, int]] = self_places
        self.blocks: dict[str, tuple[str, ...]] = {term.cost.name: term.names for term in terms}
        kinds = {made.name: kind_of(found[0]) for made, found in groups}
        order = {made.name: tuple(variable.name for variable in found) for made, found in groups}
        self._origin = Aside(_Origin(objective, kinds, order, {term.cost.name: term.sources for term in terms}))

    def inputs(self, input_tensors: Mapping[str, Tensor] | None = None) -> Inputs:
        """Start and data, from tensors by Theseus' names, (1 or batch, ...); the rest as its variables have it now.

        Raises:
            TheseusError: a name that no variable has, a shape that does not fit, batch sizes that do not agree.
        """
        tensors = self.current(input_tensors or {})
        size, origin = batch_size(tensors), self._origin.content
        values, value_dims = {}, {}
        for name, members in origin.order.items():
            storage, axis = stacked([tensors[member] for member in members])
            values[name], value_dims[name] = origin.kinds[name].element(storage), axis
        data: dict[str, dict[str, Any]] = {}
        data_dims: dict[str, dict[str, Any]] = {}
        for cost, sources in origin.sources.items():
            found = {source.leaf: source.value(tensors) for source in sources}
            data[cost] = {leaf: value for leaf, (value, _) in found.items()}
            data_dims[cost] = {leaf: axis for leaf, (_, axis) in found.items()}
        return Inputs(values, data, None if size == 1 else (value_dims, data_dims))

    def tensors(self, values: Mapping[str, Any]) -> dict[str, Tensor]:
        """Theseus' tensors (batch, ...) by its names, of values here: of `solution.value`, say."""
        found, origin = {}, self._origin.content
        for name, members in origin.order.items():
            kind = origin.kinds[name]
            tensor = kind.tensor(values[name])
            if tensor.ndim == len(kind.shape) + 1:
                tensor = tensor[None]
            for member, each in zip(members, tensor.unbind(1), strict=True):
                found[member] = each
        return {name: found[name] for name in self.places}

    def current(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of all variables of the objective, some replaced."""
        objective = self._origin.content.objective
        variables = {**objective.optim_vars, **objective.aux_vars}
        for name, tensor in given.items():
            if name not in variables:
                raise TheseusError(f"The objective has no variable {name!r}; it has {', '.join(sorted(variables))}.")
            expected = tuple(variables[name].shape[1:])
            if tuple(tensor.shape[1:]) != expected or tensor.ndim != len(expected) + 1:
                raise TheseusError(
                    f"{name!r} was given a tensor of shape {tuple(tensor.shape)}; expected (batch, "
                    f"{', '.join(map(str, expected))})."
                )
        return {name: given.get(name, variable.tensor) for name, variable in variables.items()}


@dataclass(frozen=True, eq=False)
class _Origin:
    """Where a problem comes from."""

    objective: Any
    kinds: dict[str, Kind]
    """Of every variable here what its blocks are in Theseus..."""
    order: dict[str, tuple[str, ...]]
    """... and what they are called there."""
    sources: dict[str, tuple[Source, ...]]
    """By cost where its data come from."""


def from_theseus(objective: Any) -> TheseusProblem:
    """A `theseus.Objective` as a problem.

    Cost functions that are equal in code, shapes and closure values become the blocks of one cost: the thousands of
    edges of a pose graph are one `Between`. Error functions are called for one block with a batch axis of length one,
    as Theseus' `vmap` mode calls them; their derivatives are taken here, whatever their `autograd_mode`. Writes in
    place, as `error[:, a:b] = ...`, are admitted.

    The cost is ½ Σ error², tangents are ordered (translation, rotation), perturbations are on the right, in both
    libraries. An SE3 is a (3, 4) matrix there and (x, y, z, qx, qy, qz, qw) here: `problem.inputs` and
    `problem.tensors` carry values over.

    Args:
        objective: `theseus.Objective`; what its variables hold is the start and the data unless `inputs` is given other
            tensors.

    Returns:
        A `TheseusProblem`, a `Problem` like any other.

    Raises:
        TheseusError: something in it has no counterpart here; the message names it.
        ImportError: Theseus is not installed.

    >>> problem = mslsq.interop.theseus.from_theseus(objective)
    >>> inputs = problem.inputs({"x": x, "y": y})
    >>> solution = mslsq.solve(problem, *inputs, in_dims=inputs.in_dims)
    >>> problem.tensors(solution.value)["x"]
    """
    return TheseusProblem(objective)


def _variables_by_kind(objective: Any) -> list[tuple[Variable, list[Any]]]:
    kinds: dict[Kind, list[Any]] = {}
    for variable in objective.optim_vars.values():
        kinds.setdefault(kind_of(variable), []).append(variable)
    taken = set(objective.optim_vars)
    made = []
    for kind, found in kinds.items():
        name = found[0].name if len(found) == 1 else _free(kind.name, taken)
        made.append((Variable(name, kind.manifold, count=len(found)), found))
    return made


def _grouped(members: list[Member]) -> list[list[Member]]:
    groups: dict[Hashable, list[Member]] = {}
    for member in members:
        groups.setdefault(member.key(), []).append(member)
    return list(groups.values())


def _named(groups: list[list[Member]]) -> dict[str, list[Member]]:
    """A name for every group: that of its only member, or of its class."""
    named: dict[str, list[Member]] = {}
    for group in groups:
        first = group[0].cost
        name = first.name if len(group) == 1 else type(first).__name__
        named[_free(name, {*named, "bounds"})] = group
    return named


def _free(name: str, taken: Any) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
