"""Cost functions whose error is code of Theseus."""

import copy
from typing import Any

from torch import Tensor

from mslsq.interop.theseus.alike import code_of
from mslsq.interop.theseus.conventions import kind_of
from mslsq.interop.theseus.evaluation import differentiable, emptied, filled, filling
from mslsq.interop.theseus.library import TheseusError
from mslsq.interop.theseus.losses import LossKind, of_each_row
from mslsq.interop.theseus.members import Member
from mslsq.problem import CostFunction


class Bridged(CostFunction):
    """A cost function of Theseus: its error for one block, called with a batch axis of length one.

    Its data are tensors of Theseus' shapes, `aux0`, `aux1`, ... in the order of the auxiliary variables, and those of a
    weight that is neither a scale nor a diagonal behind them.
    """

    def __init__(self, member: Member, *variables: Any, row_loss: LossKind | None = None, **options: Any):
        self._member_name = member.cost.name
        self._rows = member.cost.dim()
        self._row_loss = row_loss
        super().__init__(*variables, **options)
        self.kinds = tuple(kind_of(variable) for variable in member.optim_vars)

    _of_theseus: tuple[str, ...] = ()
    """The attributes that hold objects of Theseus: copies of a cost share them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Bridged":
        """Theseus cannot copy a variable that holds no tensor, as those here do between calls."""
        made = object.__new__(type(self))
        memo[id(self)] = made
        memo |= {id(vars(self)[name]): vars(self)[name] for name in self._of_theseus}
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return made

    def residual(self, *variables: Any, **data: Tensor) -> Tensor:
        tensors = [kind.tensor(variable) for kind, variable in zip(self.kinds, variables, strict=True)]
        numbers = sorted((name for name in data if name.startswith("aux")), key=lambda name: int(name[3:]))
        with differentiable():
            error = self.weighted_error(tensors, [data[name] for name in numbers])
        if tuple(error.shape) != (1, self._rows):
            raise TheseusError(
                f"Cost function {self._member_name!r}: its error has shape {tuple(error.shape)} for a batch of one; "
                f"expected {(1, self._rows)}, as its dim says."
            )
        error = error[0]
        if self._row_loss is not None:
            error = self._after_loss(error, data)
        return error

    def weighted_error(self, tensors: list[Tensor], data: list[Tensor]) -> Tensor:
        """The error (1, rows) of one block; weighted where the weight is code of Theseus."""
        raise NotImplementedError

    def _after_loss(self, error: Tensor, data: dict[str, Tensor]) -> Tensor:
        assert self._row_loss is not None
        if "scale" in data:
            error = error * data["scale"]
        parameters = self._row_loss.parameters(*(data[name] for name in ("radius0", "radius1") if name in data))
        return of_each_row(self._row_loss.make(**{k: v.detach() for k, v in parameters.items()}), error, parameters)


class FromFunction(Bridged):
    """An `AutoDiffCostFunction`: the user's `err_fn(optim_vars, aux_vars)`."""

    _of_theseus = "optimized", "auxiliary", "weighting"

    def __init__(self, member: Member, *variables: Any, **options: Any):
        super().__init__(member, *variables, **options)
        self.error_function = member.cost._err_fn
        self.optimized = tuple(emptied(variable) for variable in member.optim_vars)
        self.auxiliary = tuple(emptied(variable) for variable in member.cost.aux_vars)
        self.weighting = None if member.has_plain_weight else Weighting(member.weight)

    def _written_in(self) -> object:
        return code_of(self.error_function)

    def weighted_error(self, tensors: list[Tensor], data: list[Tensor]) -> Tensor:
        count = len(self.auxiliary)
        error = self.error_function(
            optim_vars=filled(self.optimized, tensors), aux_vars=filled(self.auxiliary, data[:count])
        )
        return error if self.weighting is None else self.weighting(error, data[count:])


class FromCostFunction(Bridged):
    """Another cost function of Theseus, its own or a user's: the `error()` of a copy."""

    _of_theseus = "prototype", "optimized", "auxiliary", "weighting"

    def __init__(self, member: Member, *variables: Any, **options: Any):
        super().__init__(member, *variables, **options)
        self.prototype = member.cost.copy()
        self.auxiliary = tuple(self.prototype.aux_vars)
        self.optimized = tuple(self.prototype.optim_vars)
        self.prototype.weight = None  # its tensors would be taken for some that the residual depends on
        for container in (*self.auxiliary, *self.optimized):
            container.tensor = None
        self.weighting = None if member.has_plain_weight else Weighting(member.weight)

    def _written_in(self) -> object:
        return type(self.prototype)

    def weighted_error(self, tensors: list[Tensor], data: list[Tensor]) -> Tensor:
        count = len(self.auxiliary)
        prototype = self.prototype
        containers = (*prototype.optim_vars, *prototype.aux_vars)
        with filling(containers, [*tensors, *data[:count]]):
            error = prototype.error()
        return error if self.weighting is None else self.weighting(error, data[count:])


class Weighting:
    """A weight of Theseus that is neither a scale nor a diagonal: its `weight_error`."""

    def __init__(self, weight: Any):
        self.weight = weight.copy()
        for container in self.weight.aux_vars:
            container.tensor = None

    def __call__(self, error: Tensor, data: list[Tensor]) -> Tensor:
        with filling(tuple(self.weight.aux_vars), data):
            return self.weight.weight_error(error)
