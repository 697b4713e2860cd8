"""A statement with constraints: their terms become those of the augmented Lagrangian, with inputs of the solver's."""

from dataclasses import replace

import torch

from mslsq.front.leaves import Leaf
from mslsq.front.statement import Statement
from mslsq.problem.system import FLOOR, ROOT, SHIFT, TermKind
from mslsq.solvers import AugmentedLagrangian
from mslsq.solvers.constraint_terms import ConstraintTerms, constraint_term
from mslsq.solvers.multiplier_rounds import MultiplierRounds


def constrained(statement: Statement, solver: AugmentedLagrangian) -> tuple[Statement, MultiplierRounds]:
    """The statement as the rounds of the solver need it, and those rounds."""
    like, size = statement.starts[0].tensor, statement.size or 1
    terms, leaves = list(statement.system.terms), list(statement.leaves)
    numbers = [number for number, term in enumerate(terms) if term.kind.is_constraint]
    for number in numbers:
        term = terms[number]
        # Per problem, also of a single one: a transform outside may make it a batch.
        one = torch.ones(size, dtype=like.dtype, device=like.device)
        assert term.num_rows is not None  # a problem knows them
        shift = one.new_zeros(size, term.num_blocks, term.num_rows)
        own = {ROOT: one, SHIFT: shift, FLOOR: torch.zeros_like(one)}
        leaves[number] = (*leaves[number], *(Leaf(name, tensor, 0) for name, tensor in own.items()))
        terms[number] = constraint_term(term)
    found = ConstraintTerms(
        {number: terms[number].name for number in numbers},
        frozenset(number for number in numbers if terms[number].kind is TermKind.EQUALITY),
    )
    system = replace(statement.system, terms=tuple(terms))
    return replace(statement, system=system, leaves=tuple(leaves)), MultiplierRounds(found, solver)
