"""Cost functions: a residual for ONE block, written in plain PyTorch, that stands for all blocks at once."""

import inspect
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mslsq import pytree
from mslsq.losses import RobustLoss
from mslsq.manifolds import Manifold
from mslsq.problem.class_checks import HOW_TO_INIT, OfInit, check_signature, check_variables, without_residual
from mslsq.problem.curvature import curvature_from_jacobians
from mslsq.problem.data import WEIGHT, DataArgument, DataLeaf, Shared, own_tensors
from mslsq.problem.errors import ProblemError, ShapeError
from mslsq.problem.variable import Blocks, Variable, blocks_of
from mslsq.problem.weights import Weight, weight_of
from mslsq.validation import instance_of


class CostFunction(nn.Module):
    """Subclass and write `residual(self, *variables, **data)` for one block, without a batch axis, out-of-place.

    Args:
        variables: `Variable`s or `variable[index]`, one per positional argument of `residual`. A manifold variable
            arrives there as its element (`SE3`), a Euclidean one as a tensor (dim,).
        weight: `Scale`, `Diagonal`, `SqrtInformation` or a number; whitens the residual.
        loss: a robust loss (`Huber(1.0)`), applied to the squared norm of each block.
        name: how `data`, messages and `state_dict` call it; the class in snake_case by default.
        data: tensors, manifold elements or pytrees of them with one leading entry per block, or `Shared(x)`. They live
            as buffers (parameters where an `nn.Parameter` is given). Modules, numbers, strings and None are passed
            on as they are.

    `jacobians(self, *variables, **data)` may be written too: a tuple with one (rows, tangent dimension) tensor per
    variable, with respect to the tangent of `retract`. `mslsq.check_jacobian` compares it with automatic
    differentiation.

    `curvature(self, cotangent, *variables, **data)` may be written beside them: Σᵢ cotangentᵢ ∇²residualᵢ, a matrix in
    the joint tangent of all variables, up to an antisymmetric part (its symmetric part is taken). `cotangent` has the
    form of the residual; the weight and the loss are applied outside. It makes derivatives through a solve cheaper,
    not the solve. Where `jacobians` are exact and all variables are Euclidean or in Lie groups,
    `curvature = mslsq.CostFunction.curvature_from_jacobians` is enough.

    >>> class Between(mslsq.CostFunction):
    ...     def residual(self, a: mslsq.SE3, b: mslsq.SE3, measured: mslsq.SE3):
    ...         return (measured.inverse() @ (a.inverse() @ b)).log()
    >>> Between(pose[i], pose[j], measured=T_ij, loss=mslsq.Huber(1.0))
    """

    jacobians: Callable[..., tuple[Tensor, ...]] | None = None
    """The Jacobians of one block, where the subclass writes them; None for automatic differentiation."""
    curvature: Callable[..., Tensor] | None = None
    """The second derivatives of one block, where the subclass writes them; None for automatic differentiation."""
    residual_and_jacobians: Callable[..., tuple[Any, tuple[Tensor, ...]]] | None = None
    """Both at once, where the subclass writes that too because they share work."""
    broadcasts: Callable[..., bool] | None = None
    """May `residual` and `jacobians` be given many blocks at once, as a leading axis of variables and data?
    (A method, or None for no.) They are then called as they are, not mapped: for costs in closed form whose operations
    keep the order in memory of what they are given (`mslsq.manifolds.components`)."""
    chunk: int | None = None
    """Linearize at most that many blocks at a time where all blocks share their variables; bounds memory."""

    def __init__(
        self,
        *variables: Variable | Blocks,
        weight: Weight | float | Tensor | None = None,
        loss: RobustLoss | None = None,
        name: str | None = None,
        **data: Any,
    ):
        super().__init__()
        self.name = snake_case(type(self).__name__) if name is None else name
        if not isinstance(self.name, str) or not self.name:
            raise ProblemError(f"{type(self).__name__}: name must be a non-empty string, not {self.name!r}.")
        if not variables:
            raise ProblemError(
                f"Cost {self.name!r} refers to no variable: pass variables or variable[index] by position."
            )
        if loss is not None:
            instance_of(
                f"Cost {self.name!r}: loss", loss, RobustLoss, "Write loss=mslsq.Huber(1.0), say.", ProblemError
            )
        check_variables(self, variables)
        self.references = tuple(blocks_of(variable) for variable in variables)
        self.weight = weight_of(weight, self.name)
        self.loss = loss
        check_signature(self, data, CostFunction)
        self.arguments = {keyword: self._register_data(keyword, value) for keyword, value in data.items()}
        self.num_blocks = self._count_blocks()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if vars(cls).get("__slots__"):
            raise ProblemError(
                f"{cls.__name__}: a cost function keeps what it holds in its __dict__, where it is found and copied. "
                "Leave __slots__ (slots=True of a dataclass) out."
            )
        if "residual" in vars(cls) and "jacobians" not in vars(cls):
            cls.jacobians = None  # those of the base belong to another residual
        if {"residual", "jacobians"} & set(vars(cls)):
            for name in ("residual_and_jacobians", "broadcasts"):
                if name not in vars(cls):
                    setattr(cls, name, None)
        if {"residual", "jacobians"} & set(vars(cls)) and "curvature" not in vars(cls):
            cls.curvature = None

    def residual(self, *variables: Any, **data: Any) -> Any:
        """The residual of one block; to be written by the subclass."""
        raise NotImplementedError(without_residual(type(self), CostFunction))

    def forward(self, *variables: Any, **data: Any) -> Any:
        """The residual of one block, as for any module."""
        return self.residual(*variables, **data)

    def curvature_from_jacobians(
        self, cotangent: Any, *variables: Any, **data: Any
    ) -> Float[Tensor, "tangent tangent"]:
        """A `curvature` for costs whose `jacobians` are exact: the derivative of Jᵀ·cotangent along each tangent
        direction.

        One forward pass through the Jacobians in place of two nested ones through the residual. Its symmetric part is
        Σ cotangentᵢ ∇²residualᵢ where the retraction is the exponential of a group (or addition).

        >>> class Range(mslsq.CostFunction):
        ...     curvature = mslsq.CostFunction.curvature_from_jacobians
        ...     def residual(self, p, beacon, measured): ...
        ...     def jacobians(self, p, beacon, measured): ...
        """
        return curvature_from_jacobians(self, cotangent, variables, data)

    def _written_in(self) -> object:
        """The user's code that its residual is. Where that is found to read what is not compared, all costs of it are
        compared with their Python in every call."""
        return type(self)

    def __setattr__(self, name: str, value: Any) -> None:
        """What was given as data is assigned in the same form: a number, a tensor, an element, a dict of tensors.

        Raises:
            ProblemError: it has another form, or `__init__` of this class has not been called yet.
        """
        if isinstance(value, (nn.Module, nn.Parameter)) and "training" not in self.__dict__:
            raise ProblemError(f"{type(self).__name__}: {name!r} is assigned too early. {HOW_TO_INIT}")
        argument = self.__dict__.get("arguments", {}).get(name)
        own = () if argument is None else [leaf.name for leaf in argument.leaves]
        if argument is None or name in self._modules or (name in own and isinstance(value, Tensor)):
            super().__setattr__(name, value)
            return
        leaves, structure = pytree.flatten(value)
        has_tensors = any(isinstance(leaf, Tensor | nn.Module) for leaf in leaves)
        if not argument.leaves and not has_tensors:
            self.arguments = {**self.arguments, name: replace(argument, static=value)}
            super().__setattr__(name, value)
        elif argument.leaves and structure == argument.structure:
            for leaf, tensor in zip(argument.leaves, leaves, strict=True):
                super().__setattr__(leaf.name, tensor)
        else:
            raise ProblemError(
                f"Cost {self.name!r}: data {name!r} cannot become {type(value).__name__}, since it was made with "
                f"{'tensors in another form' if argument.leaves else type(argument.static).__name__}. Make a new cost."
            )

    def place_indices(self, device: torch.device) -> None:
        """Have the indices of its blocks on the device of its data; what they were made of stays where it is."""
        moved = tuple([reference.to(device) for reference in self.references])
        if any(map(operator.is_not, moved, self.references)):
            self.references = moved

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `.to()`, `.cuda()` and the like do to every tensor. Of the indices only the device may change: `fn`
        makes `.to_empty()` forget what tensors hold."""
        super()._apply(fn, recurse)
        for reference in self.references:
            if isinstance(reference.index, Tensor):
                self.place_indices(fn(reference.index.new_empty(0)).device)
                break
        return self

    def data_arguments(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """The keyword arguments of `residual`, from the tensors by name."""
        data: dict[str, Any] = {}
        for keyword, argument in self.arguments.items():
            if argument.structure is not None:
                data[keyword] = pytree.unflatten([tensors[leaf.name] for leaf in argument.leaves], argument.structure)
            elif isinstance(argument.static, nn.Module):
                data[keyword] = self.get_submodule(
                    keyword
                )  # not argument.static: `self` may be a copy with other parameters
            else:
                data[keyword] = argument.static
        return data

    def __repr__(self) -> str:
        variables = ", ".join(map(repr, self.references))
        return f"{type(self).__name__}({variables}, name={self.name!r}, blocks={self.num_blocks})"

    def _register_data(self, keyword: str, value: Any) -> DataArgument:
        per_block = not isinstance(value, Shared)
        if isinstance(value, Shared):
            value = value.value
        if isinstance(value, np.ndarray) and per_block:
            raise ProblemError(
                f"Cost {self.name!r}: data {keyword!r} is a NumPy array; use torch.from_numpy(x), with one entry "
                "per block, or "
                "mslsq.Shared(x) for what all blocks share."
            )
        if isinstance(value, nn.Module):
            self._check_free(keyword)
            self.add_module(keyword, value)
            return DataArgument((), None, value)
        leaves, structure = pytree.flatten(value)
        tensors = [isinstance(leaf, Tensor) for leaf in leaves]
        if not any(tensors):
            return DataArgument((), None, value)
        if not all(tensors):
            strange = next(type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor))
            raise ProblemError(
                f"Cost {self.name!r}: data {keyword!r} mixes tensors with {strange}; pass them as separate data."
            )
        named = []
        for number, leaf in enumerate(leaves):
            name = keyword if len(leaves) == 1 else f"{keyword}_{number}"
            self._check_free(name)
            if isinstance(leaf, nn.Parameter):
                self.register_parameter(name, leaf)
            else:
                # A tensor that is given twice becomes two data, each to be replaced by itself.
                twice = any(leaf is other for other in self.buffers())
                self.register_buffer(name, leaf.view_as(leaf) if twice else leaf)
            named.append(DataLeaf(name, per_block))
        return DataArgument(tuple(named), structure)

    def _check_free(self, name: str) -> None:
        if hasattr(CostFunction, name) or name in ("references", "arguments", "num_blocks"):
            raise ProblemError(
                f"Cost {self.name!r}: {name!r} is an attribute of every cost function; call the data otherwise."
            )
        if hasattr(self, name):
            raise ProblemError(
                f"Cost {self.name!r}: {name!r} is given as data and is an attribute of {type(self).__name__} already. "
                f"Data become attributes by themselves: do not assign self.{name}, or declare it as a field."
            )

    def _count_blocks(self) -> int:
        """The number of blocks on which all indices and data agree."""
        counts: list[tuple[Any, int]] = [(one, one.count) for one in self.references if one.count is not None]
        for leaf in self.data_leaves:
            tensor = self.get_parameter_or_buffer(leaf.name)
            if leaf.per_block:
                element = self._element_of(leaf.name)
                if element is not None and tensor.ndim == 1:
                    raise ShapeError(
                        f"Cost {self.name!r}: data {leaf.name!r} is a single element of {element.__name__}, but data "
                        f"have one leading entry per block. Use storage of shape (blocks, {element.storage_dim}), or "
                        "mslsq.Shared(x) for data that all blocks share."
                    )
                if tensor.ndim == 0:
                    raise ShapeError(
                        f"Cost {self.name!r}: data {leaf.name!r} is a scalar, but data have one leading entry "
                        "per block. Use mslsq.Shared(x) for data that all blocks share."
                    )
                counts.append((f"data {leaf.name!r}", tensor.shape[0]))
        weight = self.weight
        if weight is not None and weight.value.ndim > weight.block_rank:
            counts.append(("weight", weight.value.shape[0]))
        if self.loss is not None:
            found = own_tensors(self.loss).items()
            counts += [(f"loss.{name}", tensor.shape[0]) for name, tensor in found if tensor.ndim > 0]
        if len({count for _, count in counts}) > 1:
            listed = ", ".join(f"{what}: {count}" for what, count in {str(a): b for a, b in counts}.items())
            raise ShapeError(
                f"Cost {self.name!r}: the number of blocks is not the same everywhere ({listed}). "
                "Data have one leading entry per block; use mslsq.Shared(x) for what all blocks share."
            )
        blocks = counts[0][1] if counts else 1
        if blocks == 0:
            raise ShapeError(f"Cost {self.name!r} has no blocks: its index or data are empty.")
        return blocks

    def _element_of(self, name: str) -> type[Manifold] | None:
        """The manifold of data that are one element per block; None of others."""
        structure = self.arguments[name].structure if name in self.arguments else None
        kind = None if structure is None else structure.type
        return kind if isinstance(kind, type) and issubclass(kind, Manifold) else None

    @property
    def data_leaves(self) -> list[DataLeaf]:
        """The tensors of its data."""
        return [leaf for argument in self.arguments.values() for leaf in argument.leaves]

    def names_in_state(self, name: str) -> list[str]:
        """What `state_dict` calls the tensors that `data[cost]` calls `name`."""
        if name == "weight" and self.weight is not None:
            return [WEIGHT]
        argument = self.arguments.get(name)
        return [leaf.name for leaf in argument.leaves] if argument is not None and argument.leaves else [name]

    def get_parameter_or_buffer(self, name: str) -> Tensor:
        """The tensor that is called `name` in `state_dict`."""
        tensor = self._buffers.get(name)
        if tensor is not None:
            return tensor
        owner, _, attribute = name.rpartition(".")
        return getattr(self.get_submodule(owner), attribute)


for _name in ("name", "references"):
    setattr(CostFunction, _name, OfInit(_name))


def cost(function: Callable[..., Any]) -> type[CostFunction]:
    """The decorator form: a plain function of one block becomes a cost function class.

    >>> @mslsq.cost
    ... def between(a: mslsq.SE3, b: mslsq.SE3, measured: mslsq.SE3):
    ...     return (measured.inverse() @ (a.inverse() @ b)).log()
    >>> between(pose[i], pose[j], measured=T_ij)
    """

    def residual(self: Any, *variables: Any, **data: Any) -> Any:
        return self.function(*variables, **data)

    parameters = list(inspect.signature(function).parameters.values())
    residual.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *parameters]
    )
    namespace = {
        "residual": residual,
        "function": staticmethod(function),
        "__doc__": function.__doc__,
        "__module__": function.__module__,
    }
    return type(function.__name__, (CostFunction,), namespace)


def is_of_library(cost: CostFunction) -> bool:
    """Is its residual the library's own, so that it changes with its inputs alone?"""
    return type(cost).__module__.startswith("mslsq.problem.") and "residual" not in vars(cost)


def snake_case(name: str) -> str:
    """`ReprojectionError` -> `reprojection_error`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
