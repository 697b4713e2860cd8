"""A robust loss inside Gauss–Newton: the rescaled residual and Jacobian have the loss's own gradient and curvature."""

# `robustified` returns a Jacobian where it is given one, as everywhere here.
# pyright: reportOptionalOperand=false, reportOptionalSubscript=false

import pytest
import torch

import mslsq
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.robust import CURVATURE_FLOOR, robustified
from mslsq.problem.system import System, Term

F64 = torch.float64
LOSSES = [
    mslsq.Huber(0.7),
    mslsq.SoftL1(0.7),
    mslsq.Cauchy(0.7),
    mslsq.Arctan(0.7),
    mslsq.Tukey(2.0),
    mslsq.GemanMcClure(0.7),
    mslsq.Welsch(0.7),
    mslsq.Barron(0.7, alpha=0.5),
]
PER_LOSS = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)


def block(loss, rows: int, pairs: int = 0, elementwise: bool = False) -> BlockTerm:
    parameters = {name: f"loss.{name}" for name, _ in [*loss.named_parameters(), *loss.named_buffers()]}
    term = Term(
        "test", (), 1, lambda values, inputs: None, loss=loss, loss_inputs=parameters, elementwise_loss=elementwise
    )
    return BlockTerm(term, System((), (term,)), 1, frozenset(), rows, pairs)


def inputs_of(loss):
    return {f"loss.{name}": tensor for name, tensor in [*loss.named_parameters(), *loss.named_buffers()]}


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def curved(x, shift):
    """Three residuals of two unknowns; its Jacobian is taken as constant below (Gauss–Newton)."""
    return torch.stack((x[0] ** 2 + x[1], x[1].sin() + shift, x[0] * x[1] - shift))


@PER_LOSS
@pytest.mark.parametrize("size", [1e-3, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("elementwise", [False, True])
def test_the_gradient_is_that_of_the_loss(loss, size, elementwise):
    x = random(0, 2)

    def residual(x):
        return size * curved(x, 0.3)

    def cost(x):
        r = residual(x)
        return 0.5 * loss.rho(r * r if elementwise else (r @ r)[None]).sum()

    r, J = residual(x), torch.func.jacrev(residual)(x)
    b = block(loss, 3, elementwise=elementwise)
    rho, scaled, jacobian = robustified(b, r[None, :, None], J[None, :, :, None], inputs_of(loss))
    assert float(0.5 * rho.sum()) == pytest.approx(float(cost(x)), rel=1e-13)
    gradient = (jacobian * scaled[:, :, None]).sum((0, 1, 3))
    assert torch.allclose(gradient, torch.func.grad(cost)(x), rtol=1e-9, atol=1e-14)


@PER_LOSS
@pytest.mark.parametrize("elementwise", [False, True])
@pytest.mark.parametrize("size", [1e-3, 0.1, 0.3, 1.0, 3.0])
def test_the_matrix_is_the_gauss_newton_hessian_of_the_loss_above_the_floor(loss, size, elementwise):
    """Of ½ρ(‖r + Jp‖²) in p, by autodiff; below the floor it is positive semidefinite, and at most that of ρ' alone."""
    r, J = size * random(1, 3), random(2, 3, 2)

    def cost(p):
        moved = r + J @ p
        return 0.5 * loss.rho(moved * moved if elementwise else (moved @ moved)[None]).sum()

    b = block(loss, 3, elementwise=elementwise)
    _, _, jacobian = robustified(b, r[None, :, None], J[None, :, :, None], inputs_of(loss))
    matrix = jacobian[0, :, :, 0].T @ jacobian[0, :, :, 0]
    s = r * r if elementwise else (r @ r)[None]
    _, slope, curvature = loss.derivatives(s)
    if bool((slope + 2 * curvature * s >= CURVATURE_FLOOR * slope).all()):
        assert torch.allclose(matrix, torch.func.hessian(cost)(torch.zeros(2, dtype=F64)), rtol=1e-9, atol=1e-13)
    else:
        weights = torch.diag(slope.expand(3))
        assert torch.linalg.eigvalsh(matrix).min() > -1e-12
        assert torch.linalg.eigvalsh(J.T @ weights @ J - matrix).min() > -1e-12


def test_both_sides_of_the_floor_are_tested_above():
    seen = set()
    for size in (1e-3, 0.1, 0.3, 1.0, 3.0):
        r = size * random(1, 3)
        _, slope, curvature = mslsq.Cauchy(0.7).derivatives((r @ r)[None])
        seen.add(bool(slope + 2 * curvature * (r @ r) >= CURVATURE_FLOOR * slope))
    assert seen == {True, False}


@PER_LOSS
def test_complex_entries_are_groups_of_their_own(loss):
    """Two complex and one real entry: the loss of their moduli."""
    x = random(3, 2)

    def residual(x):
        pairs = torch.stack((x[0], x[1] * 0.5, x[1].sin(), x[0] ** 2))  # (real, imaginary) twice
        return torch.cat((pairs, x[:1] - 0.3))

    def cost(x):
        r = residual(x)
        moduli = torch.cat((r[:4].reshape(2, 2).square().sum(-1), r[4:] ** 2))
        return 0.5 * loss.rho(moduli).sum()

    r, J = residual(x), torch.func.jacrev(residual)(x)
    b = block(loss, 5, pairs=2, elementwise=True)
    rho, scaled, jacobian = robustified(b, r[None, :, None], J[None, :, :, None], inputs_of(loss))
    assert float(0.5 * rho.sum()) == pytest.approx(float(cost(x)), rel=1e-13)
    gradient = (jacobian * scaled[:, :, None]).sum((0, 1, 3))
    assert torch.allclose(gradient, torch.func.grad(cost)(x), rtol=1e-9, atol=1e-14)


@PER_LOSS
def test_gross_errors_and_exact_zeros_are_finite(loss):
    for r in (torch.zeros(3, dtype=F64), torch.full((3,), 1e8, dtype=F64)):
        J = random(4, 3, 2)
        b = block(loss, 3)
        for tensor in robustified(b, r[None, :, None], J[None, :, :, None], inputs_of(loss)):
            assert tensor is not None and bool(torch.isfinite(tensor).all())


def test_without_a_loss_nothing_changes():
    r, J = random(5, 1, 3, 1), random(6, 1, 3, 2, 1)
    term = Term("test", (), 1, lambda values, inputs: None)
    rho, residual, jacobian = robustified(BlockTerm(term, System((), (term,)), 1, frozenset(), 3, 0), r, J, {})
    assert torch.equal(rho, r * r)
    assert residual is r and jacobian is J
