"""One big residual as a term: entries of its Jacobian and Hessian, by one derivative per colour."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import pytree
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.compressed.plan import CompressedPlan
from mslsq.private import vjp
from mslsq.problem.system import Inputs
from mslsq.tracing.graph import distinct, forget_example, graph_of
from mslsq.tracing.rewrites import make_transformable


@dataclass(frozen=True, eq=False)
class CompressedTerm(BlockTerm):
    """A term of a single block, the problems of the batch as lanes, that knows its sparsity."""

    plan: CompressedPlan = field(kw_only=True)
    can_be_rewritten: ClassVar[bool] = False

    @property
    def has_forward_mode(self) -> bool:
        return False  # its Jacobian is compressed in one mode or the other, and only that is known to be right

    def _mapped(
        self,
        function: Callable[..., Any],
        storages: tuple[Tensor, ...],
        storage_dims: tuple[int | None, ...],
        inputs: dict[str, Tensor],
        at_once: bool,
    ) -> Any:
        if self.batch > 1:
            return super()._mapped(function, storages, storage_dims, inputs, at_once)
        # A single problem needs no `vmap`: a last axis of one entry would cost copies in every operation.
        output = function(*self.lane(storages, storage_dims, inputs, 0, 0))
        return tuple(t[None, ..., None] for t in output) if isinstance(output, tuple) else output[None, ..., None]

    def linearization_of_block(
        self, storages: tuple[Tensor, ...], inputs: Inputs
    ) -> tuple[Float[Tensor, "rows"], Float[Tensor, "entries"]]:
        """The residual and the entries of its Jacobian, row by row."""
        if self.plan.recorded is not None:
            return self.plan.recorded(storages, inputs)
        function, at = self._in_tangent(lambda moved: self.residual_of_block(moved, inputs), storages)
        return self.plan.jacobian.jacobian(function, at, self.batch)

    def hessian_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "entries"]:
        """The entries of the lower triangle of the exact Hessian.

        Its pattern is that of JᵀJ: the second derivatives of one entry of the residual couple the unknowns that this
        entry depends on.
        """
        function, at = self._in_tangent(lambda moved: self.cost_of_block(moved, inputs), storages)
        return self.plan.hessian.hessian(function, at, self.batch)

    def pulled(
        self, jacobian: Float[Tensor, "outer entries lanes"], u: Float[Tensor, "outer rows lanes"]
    ) -> Float[Tensor, "outer tangent lanes"]:
        products = jacobian * u.index_select(1, self.plan.entry_rows)
        zeros = products.new_zeros(len(products), self.plan.columns, products.shape[-1])
        return zeros.index_add(1, self.plan.entry_columns, products)

    def pushed(
        self, jacobian: Float[Tensor, "outer entries lanes"], v: Float[Tensor, "outer tangent lanes"]
    ) -> Float[Tensor, "outer rows lanes"]:
        products = jacobian * v.index_select(1, self.plan.entry_columns)
        zeros = products.new_zeros(len(products), self.plan.rows, products.shape[-1])
        return zeros.index_add(1, self.plan.entry_rows, products)

    def hessian_times(self, hessian: Float[Tensor, "entries"], v: Float[Tensor, "tangent"]) -> Tensor:
        row, column = (torch.from_numpy(part).to(v.device) for part in self.plan.lower)
        product = torch.zeros_like(v).index_add(0, row, hessian * v[column])
        off = row != column
        return product.index_add(0, column[off], (hessian * v[row])[off])


def pattern_holds(block: CompressedTerm, storages: tuple[Tensor, ...], inputs: Inputs) -> bool:
    """Do the entries give the product Jᵀu that reverse mode gives, for a random u?

    A pattern that lacks an entry must not be used, whatever the reason: a wrong rule, a derivative
    that forward mode does not know (custom operators without one give zeros).
    """
    plan = block.plan
    function, at = block._in_tangent(lambda moved: block.residual_of_block(moved, inputs), storages)
    residual, entries = block.linearization_of_block(storages, inputs)
    u = torch.randn(len(residual), generator=torch.Generator().manual_seed(0), dtype=residual.dtype).to(residual.device)
    (expected,) = vjp(function, at)[1](u)
    products = entries * u.index_select(0, plan.entry_rows)
    found = torch.zeros_like(expected).index_add(0, plan.entry_columns, products)
    size = torch.zeros_like(expected).index_add(0, plan.entry_columns, products.abs())
    # Rounding of a sum of products; where numbers are not finite nothing can be told.
    allowed = 1e6 * torch.finfo(expected.dtype).eps * (size + size.mean())
    return bool((((found - expected).abs() <= allowed) | ~torch.isfinite(expected) | ~torch.isfinite(found)).all())


def recorded_linearization(
    block: CompressedTerm, storages: tuple[Tensor, ...], inputs: Inputs
) -> Callable[[tuple[Tensor, ...], Inputs], tuple[Tensor, Tensor]]:
    """`linearization_of_block` as a plain graph, without transforms.

    Recording a step that holds them takes a second for 56 slices; a step that holds this graph a tenth of that, and
    need not be recorded at all.
    """
    flat, structure = pytree.flatten((storages, dict(inputs)))

    def linearization(*leaves: Tensor) -> list[Tensor]:
        return list(block.linearization_of_block(*pytree.unflatten(list(leaves), structure)))

    with torch.no_grad():
        example = distinct(flat)
        graph = forget_example(make_transformable(graph_of(linearization, example), example))
    names = list(inputs)

    def replayed(storages: tuple[Tensor, ...], inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        residual, entries = graph.forward(*storages, *(inputs[name] for name in names))
        return residual, entries

    return replayed
