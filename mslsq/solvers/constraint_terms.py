"""Constraints as terms of the augmented Lagrangian: residuals whose squares are small where the constraint is met.

With multipliers λ and a penalty ρ the augmented Lagrangian of M. R. Hestenes and M. J. D. Powell (1969) is, up to a
constant, the cost and for each constraint ½ρ(c + λ/ρ)²; of an inequality c ≤ 0 only what is above zero counts, ½ρ
max(0, c + λ/ρ)² (R. T. Rockafellar, 1973). Both are squares, so it is a least-squares problem of the same sparsity. Its
gradient is that of the Lagrangian at the multipliers λ + ρc, and its Hessian K = ∇²L + ρAᵀA over the active rows A.

Three inputs of such a term are the solver's: the root √ρ, the shift λ/ρ, and the floor, 0; with the floor −∞, a root of
1 and no shift the residual is the constraint itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.problem.system import FLOOR, ROOT, SHIFT, Inputs, Term, TermKind, residual_vector

PerRow = Float[Tensor, "batch blocks rows"]
Rows = Float[Tensor, "batch rows"]
"""Of all constraints side by side."""


def constraint_term(term: Term) -> Term:
    """The term of the augmented Lagrangian that a constraint becomes."""
    plain, jacobians = term.residual, term.jacobians
    is_equality = term.kind is TermKind.EQUALITY

    def shifted(values: tuple[Any, ...], inputs: Inputs) -> Tensor:
        return residual_vector(plain(values, inputs))[0] + inputs[SHIFT]

    def residual(values: tuple[Any, ...], inputs: Inputs) -> Tensor:
        above = shifted(values, inputs)
        above = above if is_equality else torch.maximum(above, inputs[FLOOR])
        return inputs[ROOT] * above

    def scaled_jacobians(values: tuple[Any, ...], inputs: Inputs) -> tuple[Tensor, ...]:
        assert jacobians is not None  # else this is not called
        scale = inputs[ROOT]
        if not is_equality:
            counts = shifted(values, inputs) > inputs[FLOOR]
            scale = torch.where(counts, scale, 0)[:, None]
        return tuple(scale * _real_rows(jacobian) for jacobian in jacobians(values, inputs))

    return replace(
        term.with_residual(residual),
        jacobians=None if jacobians is None else scaled_jacobians,
        curvature=None,
        per_block=term.per_block | {SHIFT},
    )


def _real_rows(jacobian: Tensor) -> Tensor:
    """A complex row as two real ones, as residuals have them."""
    return torch.stack((jacobian.real, jacobian.imag), 1).flatten(0, 1) if jacobian.is_complex() else jacobian


@dataclass(frozen=True, eq=False)
class ConstraintTerms:
    """The constraints among the terms of a system."""

    names: Mapping[int, str]
    """By the number of the term."""
    equalities: frozenset[int]

    def given(
        self, inputs: tuple[Inputs, ...], multipliers: Mapping[int, PerRow], penalties: Mapping[int, Tensor]
    ) -> tuple[dict[str, Tensor], ...]:
        """The inputs of all terms, those of the augmented Lagrangian among them."""
        found = [dict(given) for given in inputs]
        for number in self.names:
            penalty = penalties[number]
            found[number][ROOT] = penalty.sqrt()
            found[number][SHIFT] = multipliers[number] / penalty[:, None, None]
            found[number][FLOOR] = torch.zeros_like(penalty)
        return tuple(found)

    def plain(self, inputs: tuple[Inputs, ...]) -> tuple[dict[str, Tensor], ...]:
        """The inputs with which the residuals of constraints are those that the user wrote."""
        found = [dict(given) for given in inputs]
        for number in self.names:
            given = found[number]
            given[ROOT] = torch.ones_like(given[ROOT])
            given[SHIFT] = torch.zeros_like(given[SHIFT])
            given[FLOOR] = torch.full_like(given[FLOOR], -torch.inf)
        return tuple(found)

    def residuals(self, linearizer: Linearizer, values: Values, plain: TermInputs) -> dict[int, PerRow]:
        """c of every constraint; `plain` as prepared."""
        return {
            number: by_problem(block, block.residuals(values, plain[number]))
            for number, block in self._blocks(linearizer)
        }

    def is_active(self, number: int, residual: PerRow, shift: PerRow) -> Bool[Tensor, "batch blocks rows"]:
        """Which rows of a constraint the augmented Lagrangian counts."""
        return torch.ones_like(residual, dtype=torch.bool) if number in self.equalities else residual + shift > 0

    def per_row(
        self, given: tuple[Inputs, ...], residuals: Mapping[int, PerRow]
    ) -> tuple[Rows, Rows, Bool[Tensor, "batch rows"]]:
        """Of all constraints side by side: λ/ρ, ρ, and which the augmented Lagrangian counts."""
        shifts = {number: given[number][SHIFT] for number in self.names}
        penalties = {number: (given[number][ROOT] ** 2)[:, None, None].expand_as(c) for number, c in residuals.items()}
        masks = {number: self.is_active(number, c, shifts[number]) for number, c in residuals.items()}
        return self.joined(shifts), self.joined(penalties), self.joined(masks)

    def of_equalities(self, residuals: Mapping[int, PerRow]) -> Bool[Tensor, "batch rows"]:
        """Of all constraints side by side: which rows are equalities?"""
        return self.joined(
            {n: torch.full_like(c, n in self.equalities, dtype=torch.bool) for n, c in residuals.items()}
        )

    def jacobian(
        self, linearizer: Linearizer, values: Values, plain: TermInputs
    ) -> Float[Tensor, "batch rows columns"]:
        """A of all constraints, dense, their rows side by side in the order of `joined`."""
        found = []
        for number, block in self._blocks(linearizer):
            residual, jacobian = block.linearizations(values, plain[number])
            rows, _ = linearizer.assemblies[number].rows(jacobian, residual)
            if not block.lanes_are_batch:  # they come entry by entry of the residual
                rows = rows.unflatten(1, (block.rows, block.lanes)).transpose(1, 2).flatten(1, 2)
            found.append(rows)
        return torch.cat(found, 1)

    def joined(self, by_term: Mapping[int, PerRow]) -> Rows:
        """What there is per row, of all constraints side by side."""
        return torch.cat([by_term[number].flatten(1) for number in self.names], 1)

    def taken_apart(self, rows: Rows, like: Mapping[int, PerRow]) -> dict[int, PerRow]:
        """`joined`, reversed."""
        pieces = rows.split([like[number][0].numel() for number in self.names], 1)
        return {number: piece.reshape(like[number].shape) for number, piece in zip(self.names, pieces, strict=True)}

    def _blocks(self, linearizer: Linearizer) -> list[tuple[int, BlockTerm]]:
        return [(number, linearizer.blocks[number]) for number in self.names]


def by_problem(block: BlockTerm, residual: Float[Tensor, "outer rows lanes"]) -> PerRow:
    """Residuals in the layout of the lanes, per problem and block."""
    return residual[0].T[:, None] if block.lanes_are_batch else residual.transpose(1, 2)


def without_constraints(linearizer: Linearizer, inputs: TermInputs) -> tuple[Linearizer, TermInputs]:
    """The costs alone, with their inputs."""
    kept = [number for number, block in enumerate(linearizer.blocks) if not block.term.kind.is_constraint]
    assemblies = tuple(linearizer.assemblies[number] for number in kept)
    return replace(linearizer, assemblies=assemblies), tuple(inputs[number] for number in kept)


def chosen(mask: Bool[Tensor, "batch"], yes: Tensor, no: Tensor) -> Tensor:
    """Per problem one of two tensors whose first axis is the batch."""
    return torch.where(mask.reshape(-1, *(1,) * (yes.ndim - 1)), yes, no)
