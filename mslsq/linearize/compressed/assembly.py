"""Entries of a sparse Jacobian to normal equations: pick two, multiply, add up.

The plan (which two entries each product is of, and where it goes) is worked out once per pattern.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.linearize.compressed.plan import CompressedPlan
from mslsq.linearize.compressed.term import CompressedTerm
from mslsq.linearize.one_block import squared_norms
from mslsq.linearize.pattern import Pattern
from mslsq.linearize.robust import correction
from mslsq.linearize.term_assembly import TermAssembly
from mslsq.problem.structure import Structure


@dataclass(frozen=True, eq=False)
class CompressedPlacement:
    """Where the entries of vectors and matrices come from; one past the last is zero."""

    vector: Int[Tensor, "columns"]
    """The entry of the joint tangent behind every column of the system."""
    matrix: Int[Tensor, "numbers"]
    """The entry of the lower triangle behind every number of the stored matrix."""
    sparse: bool
    """Is the matrix stored by its non-zero blocks? Else dense, one per component, both triangles."""


def compressed_placement_of(
    plan: CompressedPlan, columns: Int[Tensor, "entries"], structure: Structure, pattern: Pattern | None
) -> CompressedPlacement:
    """The placement for a structure whose column of every entry of the joint tangent is given."""
    entries = torch.full((structure.num_columns,), plan.columns, device=plan.device)
    entries[columns] = torch.arange(plan.columns, device=plan.device)
    row, column = plan.lower
    if pattern is not None:
        offsets, _ = pattern.structure.offset_of(row, column)
        places = np.full(pattern.structure.num_values, len(row))
        places[offsets] = np.arange(len(row))
    else:
        numbers = columns.cpu().numpy()
        i, j = numbers[row], numbers[column]
        places = np.full(structure.num_components * structure.size**2, len(row))
        places[i * structure.size + j % structure.size] = np.arange(len(row))
        places[j * structure.size + i % structure.size] = np.arange(len(row))
    return CompressedPlacement(entries, torch.from_numpy(places).to(plan.device), pattern is not None)


@dataclass(frozen=True, eq=False)
class CompressedAssembly(TermAssembly):
    """The normal equations of a system that is one big residual; Jacobians are (1, entries, lanes)."""

    block: CompressedTerm
    structure: Structure
    placement: CompressedPlacement
    knows_curvature: ClassVar[bool] = False

    @property
    def plan(self) -> CompressedPlan:
        return self.block.plan

    def robustified(
        self,
        residual: Float[Tensor, "1 rows lanes"],
        jacobian: Float[Tensor, "1 entries lanes"],
        inputs: dict[str, Tensor],
    ) -> tuple[Float[Tensor, "1 groups lanes"], Float[Tensor, "1 rows lanes"], Float[Tensor, "1 entries lanes"]]:
        """The loss of every entry, residual and Jacobian rescaled by Triggs' correction (`linearize.robust`)."""
        squared = squared_norms(residual, self.plan.pairs, True)
        if self.block.term.loss is None:
            return squared, residual, jacobian
        rho, root, kept = correction(self.block, squared, inputs)
        groups, rows = self.plan.groups, self.plan.entry_rows
        scaled = residual * (root / kept).index_select(1, groups)
        root, kept = (
            root.index_select(1, groups.index_select(0, rows)),
            kept.index_select(1, groups.index_select(0, rows)),
        )
        if not self.plan.pairs:
            return rho, scaled, jacobian * (root * kept)
        # J̃ = √ρ' (J − share r rᵀJ), with rᵀJ over both parts of a complex entry.
        share = (1 - kept) / torch.where(squared > 0, squared, 1).index_select(1, groups.index_select(0, rows))
        r = residual.index_select(1, rows)
        partners = self.plan.partners
        both = (partners != torch.arange(len(partners), device=partners.device))[:, None]
        own = r * jacobian
        along = own + torch.where(both, own.index_select(1, partners), 0)
        return rho, scaled, root * (jacobian - share * r * along)

    def gradient(
        self, jacobian: Float[Tensor, "1 entries lanes"], residual: Float[Tensor, "1 rows lanes"]
    ) -> Float[Tensor, "batch columns"]:
        """Jᵀr."""
        products = jacobian[0] * residual[0].index_select(0, self.plan.entry_rows)
        vector = _added(products, self.plan.entry_columns, self.plan.columns)
        return self.place_vector(vector.T)

    def hessian(self, jacobian: Float[Tensor, "1 entries lanes"]) -> Tensor:
        """JᵀJ, in the form of the structure."""
        one, other, place = self.plan.products
        entries = jacobian[0]
        products = entries.index_select(0, one) * entries.index_select(0, other)
        return self.place_matrix(_added(products, place, len(self.plan.lower[0])).T)

    def placed(self, blockwise: Float[Tensor, "1 entries lanes"]) -> Tensor:
        """The lower triangle of every Hessian, in the system's matrices."""
        return self.place_matrix(blockwise[0].movedim(-1, 0))

    def placed_vector(self, blockwise: Float[Tensor, "1 entries lanes"]) -> Float[Tensor, "batch columns"]:
        """A vector of every problem, in the system's columns."""
        return self.place_vector(blockwise[0].movedim(-1, 0))

    def place_vector(self, vector: Float[Tensor, "batch entries"]) -> Float[Tensor, "batch columns"]:
        """A vector of the joint tangent in the columns of the system."""
        if self.structure.natural:
            return vector
        return torch.nn.functional.pad(vector, (0, 1)).index_select(1, self.placement.vector)

    def place_matrix(self, matrix: Float[Tensor, "batch entries"]) -> Tensor:
        """The lower triangle of JᵀJ or of the Hessian as (batch, components, size, size), or (batch, values)."""
        padded = torch.nn.functional.pad(matrix, (0, 1))
        flat = padded.index_select(1, self.placement.matrix)
        if self.placement.sparse:
            return flat
        return flat.reshape(len(matrix), self.structure.num_components, self.structure.size, self.structure.size)


def _added(
    products: Float[Tensor, "products lanes"], places: Int[Tensor, "products"], count: int
) -> Float[Tensor, "count lanes"]:
    """The sum at every place."""
    if products.shape[1] == 1:  # one axis is added up twice as fast as two
        return products.new_zeros(count).index_add(0, places, products[:, 0])[:, None]
    return products.new_zeros(count, products.shape[1]).index_add(0, places, products)
