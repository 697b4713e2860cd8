"""One term for all its blocks at once: residuals and Jacobian blocks, in the layout that vectorises.

Block tensors are (outer, rows, tangent, lanes), the lanes last in memory, so that every elementwise operation of the
residual runs contiguously over them: 7.7 ms instead of 22 for the Jacobians of a 31,843-observation bundle
adjustment. The lanes are the blocks of a term, and `outer` the problems of the batch; a term of a single block (a
curve fit) has the batch as lanes, and `outer` is 1.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from mslsq.linearize.derivatives import ORDINARY, Way
from mslsq.linearize.one_block import OneBlock
from mslsq.native.operator import NativeProgram, SecondOrder
from mslsq.native.replaying import ReplayedProgram
from mslsq.private import forward_level_is_open, is_wrapped, vmapped
from mslsq.problem.errors import ShapeError
from mslsq.problem.system import Inputs, System, Term

T = TypeVar("T")

Values = tuple[Float[Tensor, "batch count storage"], ...]
"""The storage of every unknown."""


@dataclass(frozen=True)
class LaneLayout:
    """How the inputs of a term are laid out for its lanes. Holds nothing of the user's."""

    batch: int
    lanes_are_batch: bool
    batched: frozenset[str]
    """The inputs that have a leading batch axis..."""
    per_block: frozenset[str]
    """... and those that have an axis of blocks."""

    def prepared(self, inputs: Inputs) -> dict[str, Tensor]:
        """Lanes last, the batch axis first where the lanes are blocks."""
        changed = self.changed
        return {name: self.prepared_one(name, x) if name in changed else x for name, x in inputs.items()}

    @cached_property
    def changed(self) -> frozenset[str]:
        """The inputs whose layout may be another one for the lanes."""
        return self.batched | self.per_block

    def prepared_one(self, name: str, tensor: Tensor) -> Tensor:
        """One of those."""
        batched, per_block = name in self.batched, name in self.per_block
        if self.lanes_are_batch:
            if per_block:
                tensor = tensor.select(1 if batched else 0, 0)
            return tensor.movedim(0, -1).contiguous() if batched else tensor
        if batched and self.batch == 1:
            tensor, batched = tensor.select(0, 0), False
        if per_block:
            axis = 1 if batched else 0
            if tensor.ndim > axis + 1:  # of two axes a transposition, which takes a third of the time
                tensor = tensor.mT if tensor.ndim == axis + 2 else tensor.movedim(axis, -1)
            tensor = tensor.contiguous()
        return tensor


@dataclass(frozen=True, eq=False)
class BlockTerm(OneBlock):
    """A term together with how its tensors are mapped over lanes and batch.

    `inputs` given to the methods are those of `prepare`: lanes last, the batch axis first where the lanes are blocks.
    """

    term: Term
    system: System
    batch: int
    batched: frozenset[str]
    """The inputs that have a leading batch axis, one entry per problem."""
    rows: int
    """Entries of the residual of one block, complex ones counted twice."""
    pairs: int
    """How many leading entries are complex (pairs of reals)."""
    way: Way = ORDINARY
    """How it is differentiated; the residual of `term` is that of the way."""
    program: NativeProgram | ReplayedProgram | None = None
    """Residual and Jacobian as native code, used where no derivative of them is asked for."""
    second: SecondOrder | None = None
    """The same of the gradient and the exact Hessian of the block's cost."""
    bounds: tuple[Values, Values] | None = None
    """The least and the largest storages of all unknowns, where a solve has bounds: for what is looked at nearby."""

    def going(self, way: Way) -> "BlockTerm":
        """The same term differentiated in a way."""
        term = self.term if way.residual is None else self.term.with_residual(way.residual)
        return dataclasses.replace(self, term=term, way=way)

    @property
    def lanes_are_batch(self) -> bool:
        return self.term.num_blocks == 1

    @property
    def outer(self) -> int:
        return 1 if self.lanes_are_batch else self.batch

    @property
    def shares_variables(self) -> bool:
        """Do all blocks refer to the same variables (many samples of one transform)?"""
        return not self.lanes_are_batch and all(slot.is_shared for slot in self.term.slots)

    @property
    def _maps_batch(self) -> bool:
        """Is there a batch axis besides the lanes?"""
        return not self.lanes_are_batch and self.batch > 1

    def summed(self, numbers: Float[Tensor, "outer groups lanes"]) -> Float[Tensor, "batch"]:
        """The sum over all blocks of every problem."""
        return numbers[0].sum(0) if self.lanes_are_batch else numbers.sum((1, 2))

    def batch_first(self, numbers: Float[Tensor, "outer ... lanes"]) -> Float[Tensor, "batch ..."]:
        """What blocks have, by problem: the lanes first where they are the batch, else last."""
        return numbers[0].movedim(-1, 0) if self.lanes_are_batch else numbers

    # ---- layout

    def prepare(self, inputs: Inputs) -> dict[str, Tensor]:
        """Inputs in the layout of the lanes: done once per solve, not once per step."""
        return self.layout.prepared(inputs)

    @property
    def layout(self) -> "LaneLayout":
        return LaneLayout(self.batch, self.lanes_are_batch, self.batched, self.term.per_block)

    def input_dims(self, inputs: Iterable[str]) -> tuple[dict[str, int | None], dict[str, int | None]]:
        """`in_dims` of the inputs for the lanes and for the batch."""
        if self.lanes_are_batch:
            return {name: -1 if name in self.batched else None for name in inputs}, {}
        lanes = {name: -1 if name in self.term.per_block else None for name in inputs}
        batch = {name: 0 if self._maps_batch and name in self.batched else None for name in inputs}
        return lanes, batch

    def storage_dims(self, storages: tuple[Tensor, ...]) -> tuple[int | None, ...]:
        """`in_dims` of storages for the lanes; what stands behind those of the slots is of each lane."""
        own = tuple(None if slot.is_shared and not self.lanes_are_batch else -1 for slot in self.term.slots)
        return own + (-1,) * (len(storages) - len(own))

    def gather(self, values: Values) -> tuple[Tensor, ...]:
        """The storage that each slot refers to, lanes last."""
        gathered: list[Tensor] = []
        for slot in self.term.slots:
            x = values[slot.unknown]
            if self.lanes_are_batch:
                gathered.append(x[:, slot.of_block(0)].T.contiguous())
                continue
            if isinstance(slot.index, int):
                x = x[:, slot.index]
            else:
                # Each component by itself: `index_select` in the last axis takes ten times as long.
                x = rearrange(x, "batch count storage -> batch storage count").contiguous()
                x = x.gather(2, slot.index.expand(*x.shape[:2], -1))
            gathered.append(x if self._maps_batch else x[0])
        return tuple(gathered)

    def residuals(self, values: Values, inputs: dict[str, Tensor]) -> Float[Tensor, "outer rows lanes"]:
        """The weighted residuals of all blocks."""
        return self.residuals_of(self.gather(values), inputs)

    def linearizations(
        self, values: Values, inputs: dict[str, Tensor]
    ) -> tuple[Float[Tensor, "outer rows lanes"], Float[Tensor, "outer rows tangent lanes"]]:
        """The weighted residuals of all blocks and their Jacobians."""
        return self.linearizations_of(self.gather(values), inputs)

    def residuals_of(
        self, storages: tuple[Tensor, ...], inputs: dict[str, Tensor]
    ) -> Float[Tensor, "outer rows lanes"]:
        """`residuals` of storages that have been gathered."""
        if self.program is not None and no_derivative_is_asked([*storages, *inputs.values()]):
            return self.program.residuals(*self.native_arguments(storages, inputs))
        return self._mapped(self.residual_of_block, storages, inputs, self.term.broadcasts)

    def linearizations_of(
        self, storages: tuple[Tensor, ...], inputs: dict[str, Tensor]
    ) -> tuple[Float[Tensor, "outer rows lanes"], Float[Tensor, "outer rows tangent lanes"]]:
        """`linearizations` of storages that have been gathered."""
        if self.program is not None and no_derivative_is_asked([*storages, *inputs.values()]):
            return self.program.linearizations(*self.native_arguments(storages, inputs))
        return self._mapped(self.linearization_of_block, storages, inputs, self.term.broadcasts)

    def gradients_of(
        self, storages: tuple[Tensor, ...], inputs: dict[str, Tensor]
    ) -> Float[Tensor, "outer tangent lanes"]:
        """The gradients of the blocks' costs, at storages that have been gathered."""
        if self.second is not None and no_derivative_is_asked([*storages, *inputs.values()]):
            return self.second.gradient.values(*self.native_arguments(storages, inputs))
        return self._mapped(self.gradient_of_block, storages, inputs, at_once=False)

    def hessians_of(
        self, storages: tuple[Tensor, ...], inputs: dict[str, Tensor]
    ) -> Float[Tensor, "outer tangent tangent lanes"]:
        """The exact Hessians of the blocks' costs, at storages that have been gathered."""
        if self.second is not None and no_derivative_is_asked([*storages, *inputs.values()]):
            flat = self.second.hessian.values(*self.native_arguments(storages, inputs))
            return flat.unflatten(1, (sum(self.tangents), sum(self.tangents)))
        return self._mapped(self.hessian_of_block, storages, inputs, at_once=False)

    def native_arguments(
        self, storages: tuple[Tensor, ...], inputs: dict[str, Tensor]
    ) -> tuple[list[Tensor], list[bool], int, int]:
        """Tensors, which of them have an axis of problems, and how many problems and lanes there are."""
        lanes, batch = self.input_dims(inputs)
        tensors, dims = [*storages, *inputs.values()], [*self.storage_dims(storages), *lanes.values()]
        count = next((x.shape[-1] for x, dim in zip(tensors, dims, strict=True) if dim is not None), self.lanes)
        batched = [self._maps_batch] * len(storages) + [batch.get(name) is not None for name in inputs]
        return tensors, batched, self.outer, count

    def over_lanes(self, function: Callable[..., Any], values: Values, inputs: dict[str, Tensor]) -> Any:
        """`function(storages, inputs)` of one block, for all lanes and the whole batch; outputs are (outer, ...,
        lanes)."""
        return self._mapped(function, self.gather(values), inputs, at_once=False)

    def over_lanes_along(
        self,
        function: Callable[..., Tensor],
        values: Values,
        inputs: dict[str, Tensor],
        move: Float[Tensor, "outer tangent lanes"],
    ) -> Float[Tensor, "outer ... lanes"]:
        """`function((*storages, move), inputs)` of one block and its part of a move, for all lanes and the batch."""
        storages = (*self.gather(values), move if self._maps_batch else move[0])
        return self._mapped(function, storages, inputs, False)

    def linearizations_in_pieces(
        self, values: Values, inputs: dict[str, Tensor], lanes: int | None
    ) -> Iterator[tuple[dict[str, Tensor], tuple[Tensor, Tensor]]]:
        """`linearizations` of that many blocks at a time, or of all at once, each with its part of the inputs."""
        if lanes is None or self.term.num_blocks <= lanes:
            yield inputs, self.linearizations(values, inputs)
            return
        storages = self.gather(values)
        dims = self.storage_dims(storages)
        for start in range(0, self.term.num_blocks, lanes):
            cut = [s if dim is None else s[..., start : start + lanes] for s, dim in zip(storages, dims, strict=True)]
            part = {
                name: tensor[..., start : start + lanes] if name in self.term.per_block else tensor
                for name, tensor in inputs.items()
            }
            yield part, self.linearizations_of(tuple(cut), part)

    def _mapped(
        self,
        function: Callable[..., Any],
        storages: tuple[Tensor, ...],
        inputs: dict[str, Tensor],
        at_once: bool,
    ) -> Any:
        """`over_lanes` for storages that have been gathered."""
        if self.way.lane_by_lane and not at_once:
            return self._one_by_one(function, storages, inputs)
        storage_dims, (input_lanes, input_batch) = self.storage_dims(storages), self.input_dims(inputs)
        tensors, lanes = [*storages, *inputs.values()], [*storage_dims, *input_lanes.values()]
        count = len(storages)

        def of_one(*tensors: Tensor) -> Any:
            return function(tensors[:count], dict(zip(inputs, tensors[count:], strict=True)))

        def mapped(*tensors: Tensor) -> Any:
            if at_once:
                leading = [x if dim is None else x.movedim(-1, 0) for x, dim in zip(tensors, lanes, strict=True)]
                output = of_one(*leading)
            else:
                # Not out_dims=-1, which fails in torch 2.13 for an output that does not depend on the lanes (a constant
                # Jacobian).
                output = vmapped(of_one, tensors, lanes)
            return tuple(t.movedim(0, -1) for t in output) if isinstance(output, tuple) else output.movedim(0, -1)

        if self._maps_batch:
            return vmapped(mapped, tensors, [*(0 for _ in storages), *input_batch.values()])
        output = mapped(*tensors)
        return tuple(t[None] for t in output) if isinstance(output, tuple) else output[None]

    def _one_by_one(
        self,
        function: Callable[..., Any],
        storages: tuple[Tensor, ...],
        inputs: dict[str, Tensor],
    ) -> Any:
        """`_mapped` without `vmap`, every lane in memory of its own."""
        outputs = [
            [function(*self.lane(storages, inputs, problem, lane)) for lane in range(self.lanes)]
            for problem in range(self.outer)
        ]
        if isinstance(outputs[0][0], tuple):
            rows = [[_stacked(part, -1) for part in zip(*row, strict=True)] for row in outputs]
            return tuple(_stacked(part, 0) for part in zip(*rows, strict=True))
        return _stacked([_stacked(row, -1) for row in outputs], 0)

    @property
    def lanes(self) -> int:
        return self.batch if self.lanes_are_batch else self.term.num_blocks

    @property
    def all_lanes(self) -> int:
        """Blocks of all problems."""
        return self.batch * self.term.num_blocks

    def lane(
        self,
        storages: tuple[Tensor, ...],
        inputs: dict[str, Tensor],
        problem: int,
        lane: int,
        taken: Callable[[Tensor], Tensor] = Tensor.contiguous,
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Storages and inputs of one lane of one problem, out of what is mapped; `taken` puts a view into memory of its
        own."""
        storage_dims, (lanes, batch) = self.storage_dims(storages), self.input_dims(inputs)

        def picked(x: Tensor, of_problem: bool, of_lane: bool) -> Tensor:
            x = x.select(0, problem) if of_problem else x
            return taken(x.select(-1, lane) if of_lane else x)

        own = tuple(picked(x, self._maps_batch, dim is not None) for x, dim in zip(storages, storage_dims, strict=True))
        return own, {
            name: picked(x, batch.get(name) is not None, lanes[name] is not None) for name, x in inputs.items()
        }

    def loss_parameters_by_lane(self, inputs: Inputs) -> dict[str, Tensor]:
        """The loss's parameters of all blocks, shaped to broadcast with (outer, groups, lanes)."""
        parameters = {}
        for own, name in self.term.loss_inputs.items():
            tensor = inputs[name]
            if name in self.batched and name not in self.term.per_block and tensor.ndim > 1:
                raise ShapeError(
                    f"loss: {own!r} has shape {tuple(tensor.shape[1:])} in each problem of a batch. What differs "
                    "between them must be a single number."
                )
            if self._maps_batch and name in self.batched:
                tensor = tensor[:, None, :] if name in self.term.per_block else tensor[:, None, None]
            parameters[own] = tensor
        return parameters


def no_derivative_is_asked(tensors: Iterable[Tensor]) -> bool:
    """May native code, which has no derivative, compute with these?"""
    tensors = list(tensors)
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not (differentiated or forward_level_is_open() or any(map(is_wrapped, tensors)))


def _stacked(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors along a new axis; a single one is not copied."""
    return parts[0].unsqueeze(axis) if len(parts) == 1 else torch.stack(tuple(parts), axis)
