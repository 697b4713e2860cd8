"""`as_theseus_cost`: a cost function of this library for an objective of Theseus."""

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from mslsq.interop.theseus.conventions import moved_element
from mslsq.interop.theseus.library import TheseusError, library
from mslsq.losses import GemanMcClure, Huber, Welsch
from mslsq.manifolds import SE2, SE3, SO2, SO3
from mslsq.problem import CostFunction, Diagonal, Scale


def as_theseus_cost(cost: CostFunction, block: int = 0, variables: dict[str, Any] | None = None) -> Any:
    """One block of a cost function as a `theseus.CostFunction`, with its weight and its robust loss.

    Its variables are called as here where a variable is a single block, else `"pose_3"`; its data are auxiliary
    variables `"between_measured_3"` (what is `Shared` has no number), in the storage of this library, and so are
    replaced by Theseus' `input_tensors`. Jacobians are exact, of automatic differentiation in the tangent of `retract`.

    Args:
        cost: on Euclidean variables, SO2, SE2, SO3 and SE3.
        block: which of its blocks.
        variables: variables of Theseus by name, to share among cost functions; those that are missing are put there,
            at the identity or zero.

    Returns:
        A `theseus.CostFunction`; a `theseus.RobustCostFunction` around it where the cost has a loss.

    Raises:
        TheseusError: a variable or a loss that has no counterpart in Theseus; the message names it.
        ImportError: Theseus is not installed.

    >>> variables = {}
    >>> for block in range(edges.num_blocks):
    ...     objective.add(mslsq.interop.theseus.as_theseus_cost(edges, block, variables))
    """
    if not isinstance(cost, CostFunction):
        raise TheseusError(f"as_theseus_cost takes an mslsq.CostFunction, not {type(cost).__name__}.")
    if not 0 <= block < cost.num_blocks:
        raise TheseusError(f"Cost {cost.name!r} has blocks 0 to {cost.num_blocks - 1}; block {block} was asked for.")
    return _Block(cost, block, {} if variables is None else variables).made()


class _Block:
    """One block of a cost, being carried over."""

    def __init__(self, cost: CostFunction, block: int, variables: dict[str, Any]):
        self.cost, self.block, self.variables = cost, block, variables
        self.tensors = {leaf.name: cost.get_parameter_or_buffer(leaf.name) for leaf in cost.data_leaves}
        floating = [tensor.dtype for tensor in self.tensors.values() if tensor.is_floating_point()]
        self.dtype = floating[0] if floating else torch.get_default_dtype()

    def made(self) -> Any:
        th = library()
        data = [self._data(leaf.name, leaf.per_block) for leaf in self.cost.data_leaves]
        references = [self._variable(reference) for reference in self.cost.references]
        function = _class_of(self.cost)(self.cost, references, data, self._weight(), self._name(self.cost.name))
        loss = self.cost.loss
        if loss is None:
            return function
        kinds = {Huber: th.HuberLoss, Welsch: th.WelschLoss, GemanMcClure: th.GemanMcClureLoss}
        if type(loss) not in kinds:
            known = ", ".join(kind.__name__ for kind in kinds)
            raise TheseusError(
                f"Cost {self.cost.name!r}: the loss {type(loss).__name__} has no counterpart in Theseus, which has "
                f"{known}."
            )
        scale = loss.scale if loss.scale.ndim == 0 else loss.scale[self.block]
        log_radius = 2 * scale.detach().to(self.dtype).log()
        radius = th.Variable(log_radius.view(1, 1), name=self._name(f"{self.cost.name}_radius"))
        name = f"robust_{function.name}"
        if isinstance(loss, GemanMcClure):
            control = th.Variable(torch.ones(1, 1, dtype=self.dtype), name=self._name(f"{self.cost.name}_control"))
            return th.GNCRobustCostFunction(function, th.GemanMcClureLoss, radius, control, name=name)
        return th.RobustCostFunction(function, kinds[type(loss)], radius, name=name)

    def _name(self, name: str) -> str:
        return name if self.cost.num_blocks == 1 else f"{name}_{self.block}"

    def _data(self, leaf: str, per_block: bool) -> Any:
        """A leaf of the data as a variable of Theseus."""
        tensor = self.tensors[leaf].detach()
        name = f"{self.cost.name}_{leaf}"
        if not per_block:
            return self.variables.setdefault(name, library().Variable(tensor[None], name=name))
        return library().Variable(tensor[self.block][None], name=self._name(name))

    def _variable(self, reference: Any) -> Any:
        """The variable of Theseus for what the cost refers to."""
        variable = reference.variable
        index = reference.index if isinstance(reference.index, int) else int(reference.index[self.block])
        name = variable.name if variable.count is None else f"{variable.name}_{index}"
        if name not in self.variables:
            self.variables[name] = _fresh(variable, name, self.dtype)
        return self.variables[name]

    def _weight(self) -> Any:
        th, weight = library(), self.cost.weight
        if weight is None:
            return th.ScaleCostWeight(torch.ones(1, 1, dtype=self.dtype))
        is_shared = weight.value.ndim == weight.block_rank
        value = (weight.value if is_shared else weight.value[self.block]).detach()[None]
        name = f"{self.cost.name}_weight" if is_shared else self._name(f"{self.cost.name}_weight")
        kept = self.variables.setdefault if is_shared else (lambda _, made: made)
        if isinstance(weight, Scale):
            return th.ScaleCostWeight(kept(name, th.Variable(value[:, None], name=name)))
        if isinstance(weight, Diagonal):
            return th.DiagonalCostWeight(kept(name, th.Variable(value, name=name)))
        return _weight_class(type(weight))(kept(name, th.Variable(value, name=name)))


def _fresh(variable: Any, name: str, dtype: torch.dtype) -> Any:
    th = library()
    groups = {SO2: th.SO2, SE2: th.SE2, SO3: th.SO3, SE3: th.SE3}
    if variable.space.is_euclidean:
        return th.Vector(variable.space.storage_dim, name=name, dtype=dtype)
    if variable.manifold not in groups:
        raise TheseusError(f"Variable {variable.name!r} is on {variable.space.name}, which Theseus does not have.")
    return groups[variable.manifold](name=name, dtype=dtype)


def _class_of(cost: CostFunction) -> Any:
    """The class of the blocks of a cost. Theseus merges cost functions whose classes have one name."""
    if cost not in _CLASSES:
        _CLASSES[cost] = _made_class(f"{type(cost).__name__}_{id(cost)}")
    return _CLASSES[cost]


_CLASSES: WeakKeyDictionary[CostFunction, Any] = WeakKeyDictionary()


def _made_class(name: str) -> Any:
    th = library()

    class FromMslsq(th.CostFunction):
        """A block of a cost function of mslsq."""

        def __init__(self, cost: CostFunction, variables: list[Any], data: list[Any], weight: Any, name: str | None):
            super().__init__(weight, name=name)
            self.cost = cost
            self.register_vars(list(dict.fromkeys(variables)), is_optim_vars=True)
            self.register_vars(data, is_optim_vars=False)
            self._positions = [list(dict.fromkeys(variables)).index(variable) for variable in variables]
            self._rows = len(self._residual(*(v.tensor[:1] for v in (*self.optim_vars, *self.aux_vars)))[0])

        def dim(self) -> int:
            return self._rows

        def error(self) -> Tensor:
            return self._residual(*self._tensors())

        def jacobians(self) -> tuple[list[Tensor], Tensor]:
            tensors = self._tensors()
            count = self.num_optim_vars()
            zeros = tuple(t.new_zeros(len(t), v.dof()) for t, v in zip(tensors, self.optim_vars, strict=False))
            function = jacfwd(self._of_one, argnums=tuple(range(count)))
            return list(vmap(function)(*zeros, *tensors)), self._residual(*tensors)

        def _tensors(self) -> list[Tensor]:
            tensors = [variable.tensor for variable in (*self.optim_vars, *self.aux_vars)]
            size = max(len(tensor) for tensor in tensors)
            return [tensor.expand(size, *tensor.shape[1:]) for tensor in tensors]

        def _residual(self, *tensors: Tensor) -> Tensor:
            zeros = tuple(t.new_zeros(len(t), v.dof()) for t, v in zip(tensors, self.optim_vars, strict=False))
            return vmap(self._of_one)(*zeros, *tensors)

        def _of_one(self, *arguments: Tensor) -> Tensor:
            """The residual of one problem, its variables moved by tangent vectors."""
            count = self.num_optim_vars()
            deltas, tensors, data = arguments[:count], arguments[count : 2 * count], arguments[2 * count :]
            moved = [
                moved_element(reference.variable.space, tensors[at], deltas[at])
                for reference, at in zip(self.cost.references, self._positions, strict=True)
            ]
            named = dict(zip((leaf.name for leaf in self.cost.data_leaves), data, strict=True))
            output = self.cost.residual(*moved, **self.cost.data_arguments(named))
            return output.reshape(-1)

        def _copy_impl(self, new_name: str | None = None) -> Any:
            copies = {variable: variable.copy() for variable in self.optim_vars}
            variables = [copies[list(copies)[at]] for at in self._positions]
            data = [variable.copy() for variable in self.aux_vars]
            return type(self)(self.cost, variables, data, self.weight.copy(), new_name)

    FromMslsq.__name__ = name
    return FromMslsq


@functools.cache
def _weight_class(kind: Any) -> Any:
    th = library()

    class WeightFromMslsq(th.CostWeight):
        """A weight of mslsq that is neither a scale nor a diagonal."""

        def __init__(self, value: Any, name: str | None = None):
            super().__init__(name=name)
            self.value = value
            self.register_aux_vars(["value"])

        def is_zero(self) -> Tensor:
            return (self.value.tensor == 0).flatten(1).all(1)

        def weight_error(self, error: Tensor) -> Tensor:
            return vmap(kind.whiten)(error, self.value.tensor.expand(len(error), *self.value.shape[1:]))

        def weight_jacobians_and_error(self, jacobians: list[Tensor], error: Tensor) -> tuple[list[Tensor], Tensor]:
            value = self.value.tensor.expand(len(error), *self.value.shape[1:])
            return [vmap(kind.whiten_jacobian)(j, value) for j in jacobians], self.weight_error(error)

        def _copy_impl(self, new_name: str | None = None) -> Any:
            return type(self)(self.value.copy(), name=new_name)

    WeightFromMslsq.__name__ = f"{kind.__name__}_{id(kind)}"
    return WeightFromMslsq
