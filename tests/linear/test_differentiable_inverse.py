"""A solve whose solver has no derivative, against dense matrices that PyTorch differentiates."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from mslsq.linear import Cholesky, ConjugateGradient, Schur, SparseCholesky
from mslsq.linear.block_structure import analyze
from mslsq.linear.differentiable_inverse import DifferentiableInverse
from mslsq.linear.iterative.block_rows import BlockRows, TermBlocks, block_rows
from mslsq.linear.symmetric_systems import DampedSystem, StoredSystem, UnformedSystem

F64 = torch.float64
STRUCTURE = analyze(np.array([2, 3, 1, 2]), np.array([1, 2, 3, 3]), np.array([0, 1, 0, 2]))


POINT, ALONG = torch.tensor([0.7, 0.4], dtype=F64), torch.tensor([0.3, -0.8], dtype=F64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))  # torch's own refuses under `vmap`


def by_blocks() -> tuple[BlockRows, ConjugateGradient]:
    """Two terms on blocks of 2, 3 and 1 unknowns: five lanes of a pair, and one of the first, a last block held
    fixed."""
    first, second = np.array([0, 0, 1, 0, 1]), np.array([2, 3, 2, -1, 3])
    starts = np.array([0, 2, 4, 7])
    columns = [np.where(first >= 0, starts[first] + a, 10) for a in range(2)]
    columns += [np.where(second >= 0, starts[second] + a, 10) for a in range(3)]
    pair = TermBlocks(3, np.stack(columns), ((0, 2, first), (2, 3, second)), False)
    whole = TermBlocks(4, np.arange(2)[:, None], ((0, 2, np.array([0])),), False)
    rows = block_rows(np.array([2, 2, 3, 3]), (pair, whole), torch.device("cpu"))
    return rows, dataclasses.replace(ConjugateGradient(matrix_free=True), rows=rows)


def dense_by_blocks(rows: BlockRows, jacobian: Tensor) -> Tensor:
    """JᵀJ, each row of J written out."""
    total, at = jacobian.new_zeros(rows.num_columns, rows.num_columns), 0
    for term in rows.jacobian.terms:
        tangent, lanes = term.columns.shape
        size = term.rows * tangent * lanes
        blocks = jacobian[..., at : at + size].reshape(*jacobian.shape[:-1], term.rows, tangent, lanes)
        place = torch.nn.functional.one_hot(term.columns, rows.num_columns + 1).to(F64)[..., :-1]
        full = torch.einsum("...rtl,tlc->...rlc", blocks, place).flatten(-3, -2)
        total, at = total + full.mT @ full, at + size
    return total


class Case:
    """A system, the dense matrix of its numbers, and numbers with a positive definite matrix."""

    def __init__(self, system: DampedSystem):
        self.system = system
        if isinstance(system, UnformedSystem):
            rows = system.rows
            self.columns = rows.num_columns
            self.size = sum(t.rows * t.columns.numel() for t in rows.jacobian.terms)
            self.matrix, self.damping = random(self.size), random(self.columns, seed=3).abs() + 0.5
            return
        self.columns, self.size = STRUCTURE.num_unknowns, STRUCTURE.num_values
        self.matrix, self.damping = 0.2 * random(self.size), 3 + random(self.columns, seed=3).abs()

    def dense(self, values: Tensor) -> Tensor:
        if isinstance(self.system, UnformedSystem):
            matrix, damping = values[: self.size], values[self.size :]
            return dense_by_blocks(self.system.rows, matrix) + torch.diag(damping)
        row, column = map(torch.from_numpy, STRUCTURE.places)
        zero = values.new_zeros(self.columns**2)
        lower = zero.index_add(0, row * self.columns + column, torch.where(row >= column, values, 0))
        strict = zero.index_add(0, column * self.columns + row, torch.where(row > column, values, 0))
        return (lower + strict).reshape(self.columns, self.columns)

    def expected(self, d: Tensor) -> Tensor:
        values, rhs = self.given(d)
        return Cholesky().solve(self.dense(values)[None, None], -rhs[None], None)[0][0]

    def at_point(self) -> tuple[Tensor, Tensor]:
        """Factor and solution where derivatives are taken, made outside of all transforms."""
        values, rhs = (t[None] for t in self.given(POINT))
        factor = self.system.factor(values)
        return factor, self.system.solve(factor, rhs[..., None])

    def found(self, known: bool = False):
        factor, solution = self.at_point()

        def of(d: Tensor) -> Tensor:
            values, rhs = (t[None] for t in self.given(d))
            given = solution if known else None
            return DifferentiableInverse.apply(self.system, values, factor, rhs[..., None], given)[0, :, 0]

        return of

    def given(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of A and a right-hand side that depend on two numbers nonlinearly."""
        moved = self.matrix + 0.1 * torch.sin(d[0] * random(self.size, seed=1)) * d[1]
        values = self.system.damped(moved[None], (self.damping * torch.exp(0.1 * d[0] * d[1]))[None])[0]
        return values, torch.cos(d[1] * random(self.columns, seed=2)) * d[0]


KINDS = {"first": np.array([0, -1]), "second": np.array([1, -1]), "rest": np.array([2, 3])}
LINEAR = {
    "sparse": SparseCholesky(structure=STRUCTURE),
    "schur": Schur("second").bound(STRUCTURE, KINDS),
    "cg": ConjugateGradient(structure=STRUCTURE),
    "cg, iterative": ConjugateGradient(structure=STRUCTURE, derivatives="iterative"),
    "cg, matrix-free": by_blocks()[1],
}


@pytest.fixture(params=LINEAR)
def case(request) -> Case:
    return Case(LINEAR[request.param].damped_system())


def directional(f):
    return lambda d: jvp(f, (d,), (ALONG,))[1]


NESTINGS = {
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "jacrev(jacrev)": lambda f: jacrev(jacrev(f)),
    "jacfwd(jacrev)": lambda f: jacfwd(jacrev(f)),
    "jacrev(jacfwd)": lambda f: jacrev(jacfwd(f)),
    "jacfwd(jacfwd)": lambda f: jacfwd(jacfwd(f)),
    "jvp(jvp(jvp))": lambda f: directional(directional(directional(f))),
    "jvp(jvp(grad))": lambda f: directional(directional(grad(lambda d: f(d).square().sum()))),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_derivatives_are_those_of_a_dense_solve(case, nesting):
    """All at one point, where the factor is right."""
    found, expected = (NESTINGS[nesting](f)(POINT) for f in (case.found(), case.expected))
    assert torch.allclose(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("nesting", ["jacrev", "jacfwd(jacfwd)"])
def test_a_solution_that_is_known_already_has_the_same_derivatives(case, nesting):
    found, expected = (NESTINGS[nesting](f)(POINT) for f in (case.found(known=True), case.expected))
    assert torch.allclose(found, expected, rtol=1e-8, atol=1e-9)


def test_matrices_and_right_hand_sides_are_mapped_together_or_alone(case):
    """Mapped right-hand sides share a factor; mapped matrices are a larger batch."""
    values, rhs = case.given(POINT)
    several, sides = torch.stack((values, 1.1 * values, 1.3 * values)), torch.stack((rhs, 2 * rhs, rhs.flip(0)))
    factors = case.system.factor(several)

    def solved(values, factor, rhs):
        return DifferentiableInverse.apply(case.system, values[None], factor[None], rhs[None, :, None], None)[0, :, 0]

    alone = vmap(solved, in_dims=(None, None, 0))(values, factors[0], sides)
    for found, side in zip(alone, sides, strict=True):
        assert torch.allclose(found, torch.linalg.inv(case.dense(values)) @ side, rtol=1e-8, atol=1e-10)
    together = vmap(vmap(solved, in_dims=(None, None, 0)), in_dims=(0, 0, None))(several, factors, sides)
    for row, matrix in zip(together, several, strict=True):
        for found, side in zip(row, sides, strict=True):
            assert torch.allclose(found, torch.linalg.inv(case.dense(matrix)) @ side, rtol=1e-8, atol=1e-10)


def test_products_are_those_of_the_dense_matrix(case):
    v = random(case.columns, seed=4)
    none = case.system.damped(case.matrix[None], None)[0]
    assert torch.allclose(case.system.product(case.matrix[None], v[None])[0], case.dense(none) @ v, rtol=1e-12)


def test_a_solver_without_a_structure_is_an_error():
    with pytest.raises(TypeError, match="Cholesky is not a linear solver of block-sparse systems"):
        Cholesky().damped_system()


def test_the_upper_triangle_of_a_diagonal_block_has_no_influence():
    """Solvers do not read it, so it has no derivative."""
    system = StoredSystem(STRUCTURE, LINEAR["sparse"])
    u, x = random(1, STRUCTURE.num_unknowns, 2), random(1, STRUCTURE.num_unknowns, 2, seed=1)
    row, column = map(torch.from_numpy, STRUCTURE.places)
    assert not system.cotangent(torch.zeros(1, STRUCTURE.num_values), u, x)[0][row < column].any()


@pytest.mark.parametrize("name", ["sparse", "schur", "cg", "cg, iterative"])
def test_what_is_not_definite_has_no_solution_but_zero_for_zero(name):
    """Not a number that looks like one, and no harm to its neighbour in the batch."""
    system = LINEAR[name].damped_system()
    good = Case(system).given(POINT)[0]
    factor = system.factor(torch.stack((good, -good, good * torch.nan)))
    rhs = random(3, STRUCTURE.num_unknowns, 1)
    x = system.solve(factor, rhs)
    assert torch.isfinite(x[0]).all()
    assert x[1:].isnan().all()
    assert not system.solve(factor, torch.zeros_like(rhs)).any()
