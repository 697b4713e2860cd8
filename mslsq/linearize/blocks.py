"""One term for all its blocks at once: residuals and Jacobian blocks, in the layout that vectorises.

Block tensors are (outer, rows, tangent, lanes), the lanes last in memory, so that every elementwise operation of the
residual runs contiguously over them: 7.7 ms instead of 22 for the Jacobians of a 31,843-observation bundle
adjustment. The lanes are the blocks of a term, and `outer` the problems of the batch; a term of a single block (a
curve fit) has the batch as lanes, and `outer` is 1.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.func import jacfwd, jacrev, vjp, vmap

from mslsq import pytree
from mslsq.manifolds.components import cat_matrices
from mslsq.problem.errors import DtypeError, ProblemError, SecondDerivativeError, ShapeError
from mslsq.problem.system import Inputs, System, Term, residual_like, residual_vector

Values = tuple[Float[Tensor, "batch count storage"], ...]
"""The storage of every unknown."""


@dataclass(frozen=True, eq=False)
class BlockTerm:
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

    @property
    def lanes_are_batch(self) -> bool:
        return self.term.num_blocks == 1

    @property
    def outer(self) -> int:
        return 1 if self.lanes_are_batch else self.batch

    @property
    def shares_variables(self) -> bool:
        """Do all blocks refer to the same variables (many samples of one transform)?"""
        return not self.lanes_are_batch and all(isinstance(slot.index, int) for slot in self.term.slots)

    @property
    def tangents(self) -> list[int]:
        """The tangent dimension of each slot."""
        return [self.system.unknowns[slot.unknown].space.tangent_dim for slot in self.term.slots]

    @property
    def _maps_batch(self) -> bool:
        """Is there a batch axis besides the lanes?"""
        return not self.lanes_are_batch and self.batch > 1

    # ---- layout

    def prepare(self, inputs: Inputs) -> dict[str, Tensor]:
        """Inputs in the layout of the lanes: done once per solve, not once per step."""
        return {name: self._prepare_one(name, tensor) for name, tensor in inputs.items()}

    def _prepare_one(self, name: str, tensor: Tensor) -> Tensor:
        batched, per_block = name in self.batched, name in self.term.per_block
        if self.lanes_are_batch:
            if per_block:
                tensor = tensor.select(1 if batched else 0, 0)
            return tensor.movedim(0, -1).contiguous() if batched else tensor
        if batched and self.batch == 1:
            tensor, batched = tensor.select(0, 0), False
        if per_block:
            tensor = tensor.movedim(1 if batched else 0, -1).contiguous()
        return tensor

    def _input_dims(self, inputs: Inputs) -> tuple[dict[str, int | None], dict[str, int | None]]:
        """`in_dims` of the inputs for the lanes and for the batch."""
        if self.lanes_are_batch:
            return {name: -1 if name in self.batched else None for name in inputs}, {}
        lanes = {name: -1 if name in self.term.per_block else None for name in inputs}
        batch = {name: 0 if self._maps_batch and name in self.batched else None for name in inputs}
        return lanes, batch

    def gather(self, values: Values) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        """The storage that each slot refers to, lanes last, and the `in_dims` for the lanes."""
        gathered: list[Tensor] = []
        dims: list[int | None] = []
        for slot in self.term.slots:
            x = values[slot.unknown]
            if self.lanes_are_batch:
                index = slot.index if isinstance(slot.index, int) else int(slot.index[0])
                gathered.append(x[:, index].T.contiguous())
                dims.append(-1)
                continue
            if isinstance(slot.index, int):
                x = x[:, slot.index]
                dims.append(None)
            else:
                # Each component by itself: `index_select` in the last axis takes ten times as long.
                x = rearrange(x, "batch count storage -> batch storage count").contiguous()
                x = x.gather(2, slot.index.expand(*x.shape[:2], -1))
                dims.append(-1)
            gathered.append(x if self._maps_batch else x[0])
        return tuple(gathered), tuple(dims)

    def residuals(self, values: Values, inputs: dict[str, Tensor]) -> Float[Tensor, "outer rows lanes"]:
        """The weighted residuals of all blocks."""
        return self.over_lanes(self.residual_of_block, values, inputs, at_once=self.term.broadcasts)

    def linearizations(
        self, values: Values, inputs: dict[str, Tensor]
    ) -> tuple[Float[Tensor, "outer rows lanes"], Float[Tensor, "outer rows tangent lanes"]]:
        """The weighted residuals of all blocks and their Jacobians."""
        return self.over_lanes(self.linearization_of_block, values, inputs, at_once=self.term.broadcasts)

    def over_lanes(
        self, function: Callable[..., Any], values: Values, inputs: dict[str, Tensor], at_once: bool = False
    ) -> Any:
        """`function(storages, inputs)` of one block, for all lanes and the whole batch; outputs are (outer, ...,
        lanes). `at_once` for a function that takes the lanes as a leading axis."""
        return self._mapped(function, *self.gather(values), inputs, at_once)

    def linearizations_in_pieces(
        self, values: Values, inputs: dict[str, Tensor], lanes: int
    ) -> Iterator[tuple[dict[str, Tensor], tuple[Tensor, Tensor]]]:
        """`linearizations` of so many lanes at a time, each with its part of the inputs."""
        storages, dims = self.gather(values)
        for start in range(0, self.term.num_blocks, lanes):
            cut = [s if dim is None else s[..., start : start + lanes] for s, dim in zip(storages, dims, strict=True)]
            part = {
                name: tensor[..., start : start + lanes] if name in self.term.per_block else tensor
                for name, tensor in inputs.items()
            }
            yield part, self._mapped(self.linearization_of_block, tuple(cut), dims, part, self.term.broadcasts)

    def _mapped(
        self,
        function: Callable[..., Any],
        storages: tuple[Tensor, ...],
        storage_dims: tuple[int | None, ...],
        inputs: dict[str, Tensor],
        at_once: bool,
    ) -> Any:
        """`over_lanes` for storages that have been gathered."""
        input_lanes, input_batch = self._input_dims(inputs)

        def all_at_once(storages: tuple[Tensor, ...], inputs: dict[str, Tensor]) -> Any:
            leading = [s if dim is None else s.movedim(-1, 0) for s, dim in zip(storages, storage_dims, strict=True)]
            given = {name: t if input_lanes[name] is None else t.movedim(-1, 0) for name, t in inputs.items()}
            return function(tuple(leading), given)

        # Not out_dims=-1, which fails in torch 2.13 for an output that does not depend on the lanes (a constant
        # Jacobian).
        over_first = all_at_once if at_once else vmap(function, in_dims=(storage_dims, input_lanes))

        def mapped(storages: tuple[Tensor, ...], inputs: dict[str, Tensor]) -> Any:
            output = over_first(storages, inputs)
            return tuple(t.movedim(0, -1) for t in output) if isinstance(output, tuple) else output.movedim(0, -1)

        if self._maps_batch:
            return vmap(mapped, in_dims=(tuple(0 for _ in storages), input_batch), out_dims=0)(storages, inputs)
        output = mapped(storages, inputs)
        return tuple(t[None] for t in output) if isinstance(output, tuple) else output[None]

    # ---- functions of one block

    def residual_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "rows"]:
        """The weighted residual of one block, as a real vector; of many where the term broadcasts."""
        return self._whitened(self.term.residual(self.values_of_block(storages), inputs), storages[0], inputs)

    def _whitened(self, output: Any, like: Tensor, inputs: Inputs) -> Float[Tensor, "rows"]:
        """What a residual returned, as a real vector, weighted."""
        vector = output if self.term.broadcasts else residual_vector(output)[0]
        vector = vector.to(like.dtype)  # only ever widens: `block_term` refuses the other way
        return vector if self.term.whiten is None else self.term.whiten(vector, inputs)

    def values_of_block(self, storages: tuple[Tensor, ...]) -> tuple[Any, ...]:
        spaces = [self.system.unknowns[slot.unknown].space for slot in self.term.slots]
        return tuple(space.wrap(storage) for space, storage in zip(spaces, storages, strict=True))

    def _retracted(self, storages: tuple[Tensor, ...], delta: Float[Tensor, "tangent"]) -> tuple[Tensor, ...]:
        """The storages moved by a joint tangent vector."""
        spaces = [self.system.unknowns[slot.unknown].space for slot in self.term.slots]
        pieces = delta.split(self.tangents)
        return tuple(space.retract(s, piece) for space, s, piece in zip(spaces, storages, pieces, strict=True))

    def _in_tangent(
        self, function: Callable[[tuple[Tensor, ...]], Any], storages: tuple[Tensor, ...]
    ) -> tuple[Callable[[Tensor], Any], Tensor]:
        """`function` of the storages as a function of a joint tangent vector, and the vector that stands for the
        storages."""
        spaces = [self.system.unknowns[slot.unknown].space for slot in self.term.slots]
        if all(space.is_euclidean for space in spaces):
            # The vector is the point itself: no retraction in the graph.
            joint = storages[0] if len(storages) == 1 else torch.cat(storages)
            return lambda z: function(z.split(self.tangents) if len(storages) > 1 else (z,)), joint
        zero = storages[0].new_zeros(sum(self.tangents))
        return lambda delta: function(self._retracted(storages, delta)), zero

    def linearization_of_block(
        self, storages: tuple[Tensor, ...], inputs: Inputs
    ) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows tangent"]]:
        """The weighted residual of one block and its Jacobian in the joint tangent of its variables; of many where
        the term broadcasts."""
        if self.term.jacobians is not None:
            values = self.values_of_block(storages)
            if self.term.residual_and_jacobians is not None:
                output, given = self.term.residual_and_jacobians(values, inputs)
            else:
                output, given = self.term.residual(values, inputs), self.term.jacobians(values, inputs)
            residual = self._whitened(output, storages[0], inputs)
            if self.term.broadcasts:
                jacobian = cat_matrices([part.expand(*residual.shape[:-1], -1, -1) for part in given], -1)
            else:
                jacobian = torch.cat(self._checked_jacobians(given, storages[0]), -1)
            if self.term.whiten_jacobian is not None:
                jacobian = self.term.whiten_jacobian(jacobian, inputs)
            return residual, jacobian

        def twice(z: Tensor) -> tuple[Tensor, Tensor]:
            residual = function(z)
            return residual, residual

        function, at = self._in_tangent(lambda moved: self.residual_of_block(moved, inputs), storages)
        # Reverse mode costs a pass per row, forward mode one per column: 7.7 against 48 ms on bundle adjustment (2
        # rows, 12 columns).
        if self.rows >= sum(self.tangents):
            try:
                jacobian, residual = jacfwd(twice, has_aux=True)(at)
                return residual, jacobian
            except NotImplementedError:
                pass  # an operation without a derivative in forward mode, such as grid_sample
        jacobian, residual = jacrev(twice, has_aux=True)(at)
        return residual, jacobian

    def _checked_jacobians(self, given: tuple[Tensor, ...], like: Tensor) -> list[Tensor]:
        """The user's Jacobians, one (rows, tangent) per slot; of complex residuals as pairs of real rows."""
        parts = [
            torch.stack((part.real, part.imag), 1).flatten(0, 1) if part.is_complex() else part.to(like.dtype)
            for part in given
        ]
        expected = [(self.rows, tangent) for tangent in self.tangents]
        if [tuple(part.shape) for part in parts] != expected:
            raise ShapeError(
                f"Cost {self.term.name!r}: the Jacobians of a block have shapes "
                f"{', '.join(str(tuple(p.shape)) for p in given)}; "
                f"expected one per variable, {', '.join(map(str, expected))}: (rows of the residual, dimension of "
                "the tangent)."
            )
        return parts

    def cost_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, ""]:
        """½ρ(‖r‖²) of one block, or ½Σρ(r²) where the loss acts on each entry."""
        return self._cost_of_residual(self.residual_of_block(storages, inputs), inputs)

    def _cost_of_residual(self, residual: Float[Tensor, "rows"], inputs: Inputs) -> Float[Tensor, ""]:
        squared = squared_norms(
            residual[None, :, None], self.pairs, self.term.elementwise_loss or self.term.loss is None
        )
        return 0.5 * self.rho(squared.reshape(-1), inputs).sum()

    def gradient_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "tangent"]:
        """The gradient of the block's cost in the joint tangent of its variables."""
        field, at = self._gradient_field(storages, inputs)
        return field(at)

    def hessian_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "tangent tangent"]:
        """The exact Hessian of the block's cost in the joint tangent of its variables, second derivatives of the
        residual included."""
        field, at = self._gradient_field(storages, inputs)
        return self._jacobian_of_field(field, at)

    def curvature_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "tangent tangent"]:
        """Σᵢ rᵢ ∇²rᵢ of the weighted residual: what the Hessian of ½‖r‖² has beyond JᵀJ."""
        if self.term.curvature is None:
            function, at = self._in_tangent(lambda moved: self.residual_of_block(moved, inputs), storages)
            # The cotangent is a constant, so that no tangent of r itself is computed: half of the work.
            residual = self.residual_of_block(storages, inputs)
            return self._jacobian_of_field(lambda z: vjp(function, z)[1](residual)[0], at)
        values = self.values_of_block(storages)
        output = self.term.residual(values, inputs)
        vector = residual_vector(output)[0].to(storages[0].dtype)
        if self.term.whiten is not None:
            # rᵀ∇²r of the whitened residual W r is (WᵀW r)ᵀ∇²r.
            whiten = self.term.whiten
            pair: Any = vjp(lambda v: whiten(v, inputs), vector)
            vector = pair[1](pair[0])[0]
        matrix = self._checked_curvature(self.term.curvature(residual_like(output, vector), values, inputs))
        return 0.5 * (matrix + matrix.mT)

    def _jacobian_of_field(self, field: Callable[[Tensor], Tensor], at: Tensor) -> Float[Tensor, "tangent tangent"]:
        """The symmetric Jacobian of a gradient, forward over reverse mode; row by row in reverse mode where an
        operation has no derivative in forward mode (grid_sample, huber_loss)."""
        try:
            return jacfwd(field)(at)
        except NotImplementedError:
            pass
        try:
            pull: Any = vjp(field, at)[1]
            # Not `jacrev`: grid_sample's second derivative under two `vmap`s writes in place.
            one = torch.eye(len(at), dtype=at.dtype, device=at.device)
            return torch.stack([pull(row)[0] for row in one.unbind(0)])
        except (NotImplementedError, RuntimeError) as error:
            if "derivative for" not in str(error):
                raise
            raise SecondDerivativeError(
                f"Cost {self.term.name!r}: the derivative of a solution needs second derivatives of the residual, and "
                f"PyTorch has none for one of its operations ({str(error).rstrip('.')}). Write that operation with "
                "others (torch.cdist as the norm of a difference, attention under "
                "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)), give the cost jacobians(...) and curvature(...), or "
                "solve with adjoint=mslsq.Detached() if nobody needs the derivative."
            ) from error

    def _checked_curvature(self, matrix: Tensor) -> Tensor:
        size = sum(self.tangents)
        if tuple(matrix.shape) != (size, size):
            raise ShapeError(
                f"Cost {self.term.name!r}: the curvature of a block has shape {tuple(matrix.shape)}; expected "
                f"{(size, size)}, a matrix in the joint tangent of its variables."
            )
        return matrix

    def _gradient_field(
        self, storages: tuple[Tensor, ...], inputs: Inputs
    ) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """The gradient of the block's cost as a function of a joint tangent vector, and where to take it."""
        function, at = self._in_tangent(lambda moved: self.residual_of_block(moved, inputs), storages)

        def field(z: Tensor) -> Tensor:
            # From the residual back, not from the cost: no graph keeps the cost itself alive.
            pair: Any = vjp(function, z)
            return pair[1](self._slope(pair[0], inputs))[0]

        return field, at

    def _slope(self, residual: Float[Tensor, "rows"], inputs: Inputs) -> Float[Tensor, "rows"]:
        """The derivative of the block's cost in its residual."""
        if self.term.loss is None:
            return residual
        one = torch.ones((), dtype=residual.dtype, device=residual.device)
        return vjp(lambda r: self._cost_of_residual(r, inputs), residual)[1](one)[0]

    def rho(self, squared: Tensor, inputs: Inputs) -> Tensor:
        """The loss of squared norms, or the squared norms themselves."""
        if self.term.loss is None:
            return squared
        return self.term.loss.rho(squared, self.loss_parameters(inputs))

    def loss_parameters(self, inputs: Inputs) -> dict[str, Tensor]:
        """The loss's parameters by their own names."""
        return {own: inputs[name] for own, name in self.term.loss_inputs.items()}

    def loss_parameters_by_lane(self, inputs: Inputs) -> dict[str, Tensor]:
        """The loss's parameters of all blocks, shaped to broadcast with (outer, groups, lanes)."""
        parameters = {}
        for own, name in self.term.loss_inputs.items():
            tensor = inputs[name]
            if self._maps_batch and name in self.batched:
                tensor = tensor[:, None, :] if name in self.term.per_block else tensor[:, None, None]
            parameters[own] = tensor
        return parameters


def squared_norms(
    residual: Float[Tensor, "outer rows lanes"], pairs: int, elementwise: bool
) -> Float[Tensor, "outer groups lanes"]:
    """|r|² of each entry (the leading `pairs` are complex), or of the whole block."""
    square = residual * residual
    if not elementwise:
        return square.sum(1, keepdim=True)
    if pairs == 0:
        return square
    modulus = rearrange(square[:, : 2 * pairs], "outer (pair part) lanes -> outer pair part lanes", part=2).sum(2)
    return torch.cat((modulus, square[:, 2 * pairs :]), 1)


def block_term(
    term: Term, system: System, batch: int, batched: frozenset[str], values: Values, inputs: Inputs
) -> BlockTerm:
    """A term ready to be mapped; evaluates the residual of its first block once, as plain Python, to learn its size.

    Errors of the user's residual itself surface here, outside any transform. `inputs` are as given by the user (not
    prepared).
    """
    storages, first = first_block(term, batched, values, inputs)
    probe = BlockTerm(term, system, batch, batched, 0, 0)
    output = term.residual(probe.values_of_block(storages), first)
    vector, pairs = checked_residual(output, term.name)
    start = storages[0].dtype
    if torch.promote_types(vector.dtype, start) != start:
        raise DtypeError(
            f"Cost {term.name!r}: the residual is {vector.dtype}, the start {start}: convert one of them, nothing "
            "is rounded silently. "
            "The dtype comes from the data, or from constants made inside the residual."
        )
    if term.whiten is not None:
        vector = term.whiten(vector, first)
    return BlockTerm(term, system, batch, batched, len(vector), pairs)


def first_block(
    term: Term, batched: frozenset[str], values: Values, inputs: Inputs
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The storages and inputs of the first block of the first problem; copies, since a residual may write into what
    it is given."""
    storages = tuple(
        values[slot.unknown][0, slot.index if isinstance(slot.index, int) else int(slot.index[0])].clone()
        for slot in term.slots
    )
    first = {}
    for name, tensor in inputs.items():
        tensor = tensor[0] if name in batched else tensor
        first[name] = (tensor[0] if name in term.per_block else tensor).clone()
    return storages, first


def few_blocks(block: BlockTerm, inputs: Inputs, count: int = 2) -> tuple[BlockTerm, dict[str, Tensor]]:
    """The same term of its first blocks alone, and the inputs of those (not prepared): what a transform does not do
    to two blocks it does not do to a million."""
    term = block.term
    if term.num_blocks <= count:
        return block, dict(inputs)
    slots = tuple(
        slot if isinstance(slot.index, int) else dataclasses.replace(slot, index=slot.index[:count])
        for slot in term.slots
    )
    few = {
        name: tensor.narrow(1 if name in block.batched else 0, 0, count) if name in term.per_block else tensor
        for name, tensor in inputs.items()
    }
    return dataclasses.replace(block, term=dataclasses.replace(term, slots=slots, num_blocks=count)), few


def writes_into_its_inputs(block: BlockTerm, values: Values, inputs: Inputs) -> bool:
    """Does the residual change its arguments? Under `vmap` that may work silently, and change the user's data once
    per step."""
    storages, first = first_block(block.term, block.batched, values, inputs)
    tensors = [*storages, *first.values()]
    if any(tensor.is_inference() for tensor in tensors):
        return False  # under torch.inference_mode() tensors count no versions
    before = [tensor._version for tensor in tensors]
    block.term.residual(block.values_of_block(storages), first)
    return [tensor._version for tensor in tensors] != before


def checked_residual(output: Any, name: str) -> tuple[Tensor, int]:
    """The residual of one block as a vector, or an error that says what the cost function returned instead."""
    leaves = pytree.leaves(output)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise ProblemError(
                f"Cost {name!r}: the residual must be a tensor or a pytree of tensors, it contains "
                f"{type(leaf).__name__}."
            )
        if not (leaf.is_floating_point() or leaf.is_complex()):
            raise DtypeError(f"Cost {name!r}: the residual must be real or complex floating point, not {leaf.dtype}.")
    if not leaves or sum(leaf.numel() for leaf in leaves) == 0:
        raise ShapeError(f"Cost {name!r}: the residual is empty.")
    return residual_vector(output)
