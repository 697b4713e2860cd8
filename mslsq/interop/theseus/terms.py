"""Groups of equal cost functions as costs of a problem, and where the data of each come from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mslsq.interop.theseus.bridged import FromCostFunction, FromFunction
from mslsq.interop.theseus.conventions import Kind, kind_of, shared, stacked
from mslsq.interop.theseus.library import library
from mslsq.interop.theseus.losses import kind_of_loss
from mslsq.interop.theseus.members import Member
from mslsq.problem import Between, CostFunction, Diagonal, Difference, Prior, Scale, Shared, Variable

Convert = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Source:
    """One tensor of a cost: the variables of Theseus that it is made of."""

    leaf: str
    """Its key in `data[cost]`."""
    columns: tuple[tuple[str, ...], ...]
    """Names of variables: of every variable that it depends on one name per block, or one for all of them."""
    convert: Convert
    """From tensors of Theseus, one per column, to the leaf."""
    num_blocks: int

    @property
    def is_shared(self) -> bool:
        return all(len(column) == 1 for column in self.columns)

    def value(self, tensors: Mapping[str, Tensor]) -> tuple[Any, int | None]:
        """The leaf, and its batch axis."""
        found = [self._column([tensors[name] for name in column]) for column in self.columns]
        axis = None if all(at is None for _, at in found) else 0
        size = next((len(tensor) for tensor, at in found if at == 0), 1)
        parts = [tensor if at == axis else tensor.expand(size, *tensor.shape) for tensor, at in found]
        return self.convert(*parts), axis

    def _column(self, column: list[Tensor]) -> tuple[Tensor, int | None]:
        if self.is_shared:
            return shared(column[0])
        return stacked(column * self.num_blocks if len(column) == 1 else column)


def column(variables: Sequence[Any]) -> tuple[str, ...]:
    """The names of a variable in all blocks; one where it is the same."""
    names = tuple(variable.name for variable in variables)
    return names[:1] if len(set(names)) == 1 else names


@dataclass(frozen=True, eq=False)
class Term:
    """A cost here, and the sources of its data."""

    cost: CostFunction
    sources: tuple[Source, ...]
    names: tuple[str, ...]
    """Of the cost functions of Theseus that are its blocks, in order."""


class TermMaker:
    """Makes the cost of one group of members."""

    def __init__(self, name: str, members: Sequence[Member], places: Mapping[str, tuple[Variable, int]]):
        self.name, self.members, self.first = name, members, members[0]
        self.tensors = {
            variable.name: variable.tensor.detach()
            for member in members
            for variable in (*member.data, *member.weight.aux_vars, *(member.robust.radius if member.robust else ()))
        }
        self.blocks = [self._blocks(number, places) for number in range(len(self.first.optim_vars))]
        self.sources: list[Source] = []

    def term(self) -> Term:
        row_loss = self._row_loss()
        options: dict[str, Any] = {"name": self.name}
        if self.first.has_plain_weight and row_loss is None:
            options["weight"] = self._weight()
        if self.first.robust is not None and row_loss is None:
            options["loss"] = self._loss()
        elif row_loss is not None:
            options["row_loss"] = row_loss
            self._row_loss_data(options)
        cost = (None if row_loss else self._of_library(options)) or self._bridged(options)
        return Term(cost, tuple(self.sources), tuple(member.cost.name for member in self.members))

    def _blocks(self, number: int, places: Mapping[str, tuple[Variable, int]]) -> Any:
        found = [places[member.optim_vars[number].name] for member in self.members]
        return found[0][0][torch.tensor([index for _, index in found], device="cpu")]

    def _source(self, leaf: str, variables: Sequence[Sequence[Any]], convert: Convert) -> tuple[Any, bool]:
        """The leaf as the variables have it now, of one problem; and whether all blocks share it."""
        source = Source(leaf, tuple(column(each) for each in variables), convert, len(self.members))
        self.sources.append(source)
        first = {name: tensor[:1] for name, tensor in self.tensors.items()}
        return source.value(first)[0], source.is_shared

    def _data(self, leaf: str, variables: Sequence[Any], convert: Convert = lambda x: x) -> Any:
        value, is_shared = self._source(leaf, [variables], convert)
        return Shared(value) if is_shared else value

    def _weight(self) -> Scale | Diagonal:
        variables = [next(iter(member.weight.aux_vars)) for member in self.members]
        if isinstance(self.first.weight, library().ScaleCostWeight):
            return Scale(self._source("weight", [variables], lambda x: x[..., 0])[0])
        rows = self.first.cost.dim()
        return Diagonal(self._source("weight", [variables], lambda x: x.expand(*x.shape[:-1], rows))[0])

    def _loss(self) -> Any:
        robust = self.first.robust
        assert robust is not None
        kind = kind_of_loss(robust.loss)
        columns = [[member.robust.radius[i] for member in self.members] for i in range(len(robust.radius))]  # type: ignore[union-attr]
        made = {}
        for name in kind.parameters(*(variable.tensor[0, 0].detach() for variable in robust.radius)):

            def convert(*tensors: Tensor, name: str = name) -> Tensor:
                return kind.parameters(*(x[..., 0] for x in tensors))[name]

            made[name] = self._source(f"loss.{name}", columns, convert)[0]
        return kind.make(**made)

    def _row_loss(self) -> Any:
        robust = self.first.robust
        return kind_of_loss(robust.loss) if robust is not None and robust.of_rows else None

    def _row_loss_data(self, options: dict[str, Any]) -> None:
        """What the residual needs where it contains weight and loss."""
        robust = self.first.robust
        assert robust is not None
        for number in range(len(robust.radius)):
            leaf = f"radius{number}"
            variables = [member.robust.radius[number] for member in self.members]  # type: ignore[union-attr]
            options[leaf] = self._data(leaf, variables)
        if self.first.has_plain_weight:
            variables = [next(iter(member.weight.aux_vars)) for member in self.members]
            options["scale"] = self._data("scale", variables)

    def _of_library(self, options: dict[str, Any]) -> CostFunction | None:
        """This library's own cost, with derivatives in closed form, for the two commonest of Theseus."""
        th = library()
        if not self.first.has_plain_weight or type(self.first.cost) not in (th.eb.Local, th.eb.Between):
            return None
        kind = kind_of(self.first.optim_vars[0])
        known = [member.data[0] for member in self.members]
        if type(self.first.cost) is th.eb.Local:
            return Prior(*self.blocks, target=self._elements("target", known, kind), **options)
        measured = self._elements("measured", known, kind)
        return (Difference if kind.group is None else Between)(*self.blocks, measured=measured, **options)

    def _elements(self, leaf: str, variables: Sequence[Any], kind: Kind) -> Any:
        return self._data(leaf, variables, kind.element)

    def _bridged(self, options: dict[str, Any]) -> CostFunction:
        for number in range(len(self.first.data)):
            leaf = f"aux{number}"
            options[leaf] = self._data(leaf, [member.data[number] for member in self.members])
        is_function = isinstance(self.first.cost, library().AutoDiffCostFunction)
        return (FromFunction if is_function else FromCostFunction)(self.first, *self.blocks, **options)
