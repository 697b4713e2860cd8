"""Residual and Jacobian of a user as functions of explicit tensors: their arguments, and what they hold themselves."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import Arguments, Axes, element_like, tensor_of
from mslsq.front.leaves import Argument, Holder, Leaf, holder, loss_inputs
from mslsq.front.plans import Kept
from mslsq.front.stated_loss import StatedLoss
from mslsq.levels import modes_of_a_residual
from mslsq.problem.errors import ProblemError, ShapeError
from mslsq.problem.leaf import LeafSpace
from mslsq.problem.system import Family, Inputs, Slot, Term
from mslsq.tracing.capture import CaptureError
from mslsq.tracing.reading.changes import Changes
from mslsq.tracing.reading.inputs import collect, collect_values
from mslsq.tracing.reading.kept import check_kept

OF_SHAPES = "must match the size", "must match the existing size", "shape", "size of dimension", "not broadcastable"
"""In messages of PyTorch about tensors that do not fit together."""


@dataclass(frozen=True, eq=False)
class Callables:
    """A residual, its Jacobian where the user writes it, and their arguments behind x."""

    given: Callable[..., Any]
    """The residual as the user gave it."""
    residual: Holder
    jac: Holder | None
    others: Holder
    """Modules and other objects among the arguments; numbers and arrays are part of the key."""
    places: tuple[Argument | None, ...]
    """Per leaf of the arguments its tensor; None for one of `others`."""
    arguments: Arguments
    """x0 and those behind it."""
    has_aux: bool

    @property
    def holders(self) -> list[Holder]:
        return [part for part in (self.residual, self.jac, self.others) if part is not None]

    @property
    def written(self) -> list[Holder]:
        """What the user has written: the residual, and its Jacobian if there is one."""
        return [part for part in (self.residual, self.jac) if part is not None]

    @property
    def name(self) -> str:
        return name_of(self.given)

    def leaves(self, axes: Axes) -> list[Leaf]:
        """Every tensor that they depend on."""
        given = [
            place.replaced(place.tensor, axis)
            for place, axis in zip(self.places, _behind_x(axes.of), strict=True)
            if place is not None
        ]
        return [*given, *(leaf for part in self.holders for leaf in part.leaves.values())]

    def term(self, spaces: tuple[LeafSpace, ...], kept: Kept, loss: StatedLoss, is_batch: bool) -> Term:
        """The one term of the system, whose unknowns are the leaves of x."""
        key, eager = self._key(kept.changes, loss)
        return Term(
            name=self.name,
            slots=tuple(Slot(number, 0) for number in range(len(spaces))),
            num_blocks=1,
            residual=self._residual,
            jacobians=None if self.jac is None else self._jacobians(self.jac, spaces),
            loss=loss.loss,
            loss_inputs=loss_inputs(loss.leaves),
            elementwise_loss=True,
            key=key,
            eager=eager,
            family=Family(lambda: key, kept.families),
            hint=lambda error: self._hint(error, is_batch),
            check_kept=lambda leaves: check_kept((holder.collected for holder in self.holders), leaves),
        )

    def _hint(self, error: Exception, is_batch: bool) -> str:
        """What to try where the residual fails because the call was meant otherwise: with tensors in the place of
        NumPy's arrays, or of several problems."""
        if isinstance(error, CaptureError):
            has_arrays = any(isinstance(leaf, np.ndarray) for leaf in _behind_x(self.arguments.leaves))
            return "  The arguments hold a NumPy array: pass torch.from_numpy(...) of it." if has_arrays else ""
        start = tensor_of(self.arguments.leaves[0][0])
        for place in self.places:
            if place is not None and place.tensor.device != start.device and "device" in str(error):
                return f"{place.name} is on {place.tensor.device}, the start on {start.device}: move one of them."
        shapes = [tuple(x.shape) for x in self.arguments.leaves[0] if isinstance(x, Tensor) and x.ndim > 1]
        is_of_shapes = isinstance(error, IndexError) or any(words in str(error) for words in OF_SHAPES)
        if is_batch or not shapes or not is_of_shapes:
            return ""
        return (
            f"the residual fails, called for one problem with a start of shape {shapes[0]}. If these are "
            f"{shapes[0][0]} problems, say so: in_dims=0, or a tuple with an entry per argument."
        )

    def aux(self, value: Any, axes: Axes) -> Any:
        """The second output of the residual at a solution."""
        leaves, leaf_axes = _behind_x(self.arguments.leaves), _behind_x(axes.of)
        mapped = [number for number, axis in enumerate(leaf_axes) if axis is not None]

        def of_one(value: Any, own: list[Any]) -> Any:
            leaves_of_one = list(leaves)
            for number, leaf in zip(mapped, own, strict=True):
                leaves_of_one[number] = leaf
            return self.given(value, *self._put_together(leaves_of_one))[1]

        if axes.size is None:
            return of_one(value, [])
        dims = [leaf_axes[number] for number in mapped]
        return torch.func.vmap(of_one, in_dims=(0, dims))(value, [leaves[number] for number in mapped])

    def _key(self, changes: Changes, loss: StatedLoss) -> tuple[Hashable, str]:
        """(what the callables, the other arguments and the loss hold, why no graph may be kept)."""
        found = [(part, *part.keyed(changes)) for part in self.holders]
        loss_key, loss_reason = loss.keyed(changes)
        reasons = [f"args: {reason}" if part is self.others else reason for part, _, reason in found if reason]
        parts = tuple((part.part, key) for part, key, _ in found)
        kinds = tuple(type(leaf) for leaf in _behind_x(self.arguments.leaves))
        structures = tuple(map(pytree.key_of, self.arguments.structures[1:]))
        return (parts, loss_key, kinds, structures, self.has_aux), "; ".join(filter(None, [*reasons, loss_reason]))

    def _call(self, function: Holder, values: tuple[Any, ...], inputs: Inputs) -> Any:
        x = pytree.unflatten(list(values), self.arguments.structures[0])

        def call(others: tuple[Any, ...]) -> Any:
            rest = iter(others)
            leaves = [
                next(rest) if place is None else element_like(leaf, inputs[place.name])
                for leaf, place in zip(_behind_x(self.arguments.leaves), self.places, strict=True)
            ]
            args = self._put_together(leaves)
            return function.applied(inputs, lambda function: function(x, *args))

        with modes_of_a_residual():
            return self.others.applied(inputs, call)

    def _put_together(self, leaves: list[Any]) -> list[Any]:
        """The arguments behind x with these leaves."""
        rest = iter(leaves)
        parts = zip(self.arguments.leaves[1:], self.arguments.structures[1:], strict=True)
        return [pytree.unflatten([next(rest) for _ in own], structure) for own, structure in parts]

    def _residual(self, values: tuple[Any, ...], inputs: Inputs) -> Any:
        output = self._call(self.residual, values, inputs)
        if not self.has_aux:
            return output
        if not (isinstance(output, tuple) and len(output) == 2):
            raise ProblemError("has_aux=True: the residual must return a pair (residual, aux).")
        return output[0]

    def _jacobians(self, jac: Holder, spaces: tuple[LeafSpace, ...]) -> Callable[..., tuple[Tensor, ...]]:
        def jacobians(values: tuple[Any, ...], inputs: Inputs) -> tuple[Tensor, ...]:
            parts = pytree.leaves(self._call(jac, values, inputs))
            if len(parts) != len(spaces) or not all(map(_ends_with_tangent, parts, spaces)):
                shapes = ", ".join(str(tuple(part.shape)) for part in parts)
                expected = ", ".join(f"(*residual, {', '.join(map(str, space.tangent_shape))})" for space in spaces)
                raise ShapeError(f"jac returned {shapes}; expected one Jacobian per leaf of x0, that is {expected}.")
            return tuple(part.reshape(-1, space.tangent_dim) for part, space in zip(parts, spaces, strict=True))

        return jacobians


def callables(
    residual: Callable[..., Any], jac: Callable[..., Any] | None, arguments: Arguments, has_aux: bool
) -> Callables:
    """Walk the callables, and the other objects among the arguments after x, for the tensors that they hold."""
    places: list[Argument | None] = []
    others = []
    for number, leaves in enumerate(arguments.leaves[1:]):
        for name, leaf in zip(numbered(f"args[{number}]", len(leaves), ", leaf {},"), leaves, strict=True):
            tensor = tensor_of(leaf)
            is_tensor = isinstance(tensor, Tensor)
            places.append(Argument(name, tensor) if is_tensor else None)
            others += [] if is_tensor else [leaf]
    return Callables(
        residual,
        holder("residual", "the residual's ", collect(residual)),
        None if jac is None else holder("jac", "jac's ", collect(jac)),
        holder("args", "args: ", collect_values(tuple(others))),
        tuple(places),
        arguments,
        has_aux,
    )


def name_of(function: Callable[..., Any]) -> str:
    """What messages call it. An object's own `__getattr__` is not asked: it may answer anything, or never return."""
    is_named = isinstance(function, (FunctionType, MethodType, BuiltinFunctionType, type))
    own = function if is_named or "__name__" in getattr(function, "__dict__", ()) else type(function)
    return own.__name__


def numbered(name: str, count: int, suffix: str = "[{}]") -> list[str]:
    """The names of the leaves of an argument."""
    return [name] if count == 1 else [name + suffix.format(number) for number in range(count)]


def _behind_x(parts: tuple[list[Any], ...]) -> list[Any]:
    return [leaf for part in parts[1:] for leaf in part]


def _ends_with_tangent(part: Tensor, space: LeafSpace) -> bool:
    """Does a Jacobian end with the axes of x? One that is transposed has the right number of entries, too."""
    shape = tuple(part.shape)
    return any(shape[len(shape) - len(end) :] == end for end in (space.tangent_shape, (space.tangent_dim,)))
