"""Damped normal equations as `DifferentiableInverse` sees them: products that are differentiable, solves that are not.

The products are operations of PyTorch, with memory linear in the number of blocks: the kernels that solve have no
derivative.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linear.block_products import product_by_entries
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.differentiable_inverse import SymmetricSystem, Values, Vectors
from mslsq.linear.iterative.block_rows import BlockRows, Term, terms
from mslsq.linear.linear_solver import LinearSolver
from mslsq.linear.storage import Vector

if TYPE_CHECKING:
    from mslsq.linear.iterative import ConjugateGradient


class DampedSystem(SymmetricSystem):
    """A + diag(damping) for the matrices of a linear solver."""

    def damped(self, matrix: Tensor, damping: Vector | None) -> Values:
        """The numbers of the system, from a matrix in the solver's storage."""
        raise NotImplementedError

    def factor(self, values: Values) -> Tensor:
        """What to solve with, without derivative; plain tensors. Where there is none solutions are NaN (zero for zero),
        never numbers that look like some."""
        raise NotImplementedError

    def harmless(self, matrix: Tensor) -> Tensor:
        """What may stand in for a matrix whose right-hand side is zero; broadcasts with a batch of them."""
        raise NotImplementedError

    def product(self, matrix: Tensor, vector: Vector) -> Vector:
        """JᵀJ v without damping."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class StoredSystem(DampedSystem):
    """By the stored blocks of `BlockStructure`; the damping is added to the diagonal."""

    structure: BlockStructure
    linear: LinearSolver
    """Factors and solves."""

    def damped(self, matrix: Values, damping: Vector | None) -> Values:
        if damping is None:
            return matrix
        return matrix.index_add(1, self.structure.diagonal_index, damping)

    def harmless(self, matrix: Values) -> Tensor:
        ones = matrix.new_zeros(matrix.shape[1])
        return ones.index_fill(0, self.structure.diagonal_index, 1.0)

    def factor(self, values: Values) -> Tensor:
        factor, definite, _ = self.linear.factor_of_step(values)
        # A copy costs less than asking a device.
        is_whole = factor.device.type == "cpu" and bool(definite.all())
        return factor if is_whole else torch.where(definite[:, None], factor, torch.nan)

    def solve(self, factor: Tensor, rhs: Vectors) -> Vectors:
        missing = factor[:, :1, None].isnan()
        x = torch.where(missing, 0, _each(partial(self.linear.solve_factored, factor), rhs))
        return torch.where(missing & (rhs != 0).any(1, keepdim=True), torch.nan, x)

    def product(self, matrix: Values, vector: Vector) -> Vector:
        return self.tangent(matrix, matrix, vector[..., None])[..., 0]

    def tangent(self, values: Values, direction: Values, x: Vectors) -> Vectors:
        return product_by_entries(direction, x, self.structure.entries, self.structure.num_unknowns)

    def cotangent(self, values: Values, u: Vectors, x: Vectors) -> Values:
        entries = self.structure.entries
        products = (u.index_select(1, entries.row) * x.index_select(1, entries.column)).sum(-1)
        return products.new_zeros(len(products), self.structure.num_values).index_add(1, entries.place, products)


@dataclass(frozen=True, eq=False)
class UnformedSystem(DampedSystem):
    """JᵀJ + diag(damping) that is never formed; the numbers are those of J by blocks, then the damping."""

    rows: BlockRows
    linear: "ConjugateGradient"

    def damped(self, matrix: Values, damping: Vector | None) -> Values:
        if damping is None:
            damping = matrix.new_zeros(len(matrix), self.rows.num_columns)
        return torch.cat((matrix, damping), 1)

    def harmless(self, matrix: Values) -> Tensor:
        return matrix.new_zeros(())

    def factor(self, values: Values) -> Tensor:
        return values

    def solve(self, factor: Tensor, rhs: Vectors) -> Vectors:
        jacobian, damping = self._split(factor)
        x = self.linear.solve_damped(jacobian, damping, rhs)
        return torch.where((rhs != 0).any(1, keepdim=True), x, 0)

    def product(self, matrix: Values, vector: Vector) -> Vector:
        none = matrix.new_zeros(len(matrix), self.rows.num_columns)
        values = torch.cat((matrix, none), 1)
        return 0.5 * self.tangent(values, values, vector[..., None])[..., 0]

    def tangent(self, values: Values, direction: Values, x: Vectors) -> Vectors:
        (jacobian, _), (moved, damping) = self._split(values), self._split(direction)
        y = torch.nn.functional.pad(damping[..., None] * x, (0, 0, 0, 1))
        for at, along in zip(self._terms(jacobian), self._terms(moved), strict=True):
            columns = at.plan.columns.reshape(-1)
            local = _local(at, x)
            back = _transposed(along, _images(at, local)) + _transposed(at, _images(along, local))
            y = y.index_add(1, columns, back.flatten(1, 2))
        return y[:, :-1]

    def cotangent(self, values: Values, u: Vectors, x: Vectors) -> Values:
        jacobian, _ = self._split(values)
        parts = []
        for term in self._terms(jacobian):
            left, right = _local(term, u), _local(term, x)
            own = torch.einsum("brlk,btlk->brtl", _images(term, right), left)
            own = own + torch.einsum("brlk,btlk->brtl", _images(term, left), right)
            parts.append(own.flatten(1))
        return torch.cat((*parts, (u * x).sum(-1)), 1)

    def _split(self, values: Values) -> tuple[Tensor, Tensor]:
        columns = self.rows.num_columns
        return values[:, : values.shape[1] - columns], values[:, values.shape[1] - columns :]

    def _terms(self, jacobian: Values) -> list[Term]:
        return list(terms(jacobian, self.rows.jacobian))


def _each(solve: "partial[Tensor]", rhs: Vectors) -> Vectors:
    """Solutions for (batch, columns, k) of something that solves for (batch, columns)."""
    if rhs.shape[2] == 1:
        return solve(rhs[..., 0])[..., None]
    return torch.func.vmap(solve, in_dims=2, out_dims=2)(rhs)


def _local(term: Term, x: Vectors) -> Float[Tensor, "batch tangent lanes k"]:
    """The entries of x that the blocks of a term stand on; zero for those held fixed."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, 1))
    return padded.index_select(1, term.plan.columns.reshape(-1)).unflatten(1, term.plan.columns.shape)


def _images(term: Term, local: Tensor) -> Float[Tensor, "batch rows lanes k"]:
    return torch.einsum("brtl,btlk->brlk", term.matrix, local)


def _transposed(term: Term, images: Tensor) -> Float[Tensor, "batch tangent lanes k"]:
    return torch.einsum("brtl,brlk->btlk", term.matrix, images)
