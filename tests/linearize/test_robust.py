"""A robust loss inside Gauss–Newton: the rescaled residual and Jacobian have the loss's own gradient and curvature."""

import pytest
import torch

import mslsq
import mslsq.datasets.bal
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.robust import LEAST_CURVATURE, robustified
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
def test_the_matrix_has_the_curvature_of_the_loss_while_there_is_enough_of_it(loss, size, elementwise):
    """The Hessian of ½ρ(‖r + Jp‖²) in p, by autodiff; a group with less is weighted by ρ' alone."""
    r, J = size * random(1, 3), random(2, 3, 2)

    def cost(p):
        moved = r + J @ p
        return 0.5 * loss.rho(moved * moved if elementwise else (moved @ moved)[None]).sum()

    b = block(loss, 3, elementwise=elementwise)
    _, _, jacobian = robustified(b, r[None, :, None], J[None, :, :, None], inputs_of(loss))
    matrix = jacobian[0, :, :, 0].T @ jacobian[0, :, :, 0]
    s = r * r if elementwise else (r @ r)[None]
    _, slope, curvature = loss.derivatives(s)
    enough = slope + 2 * curvature * s >= LEAST_CURVATURE * slope
    if bool(enough.all()):
        assert torch.allclose(matrix, torch.func.hessian(cost)(torch.zeros(2, dtype=F64)), rtol=1e-9, atol=1e-13)
    elementwise_weights = torch.where(enough, slope + 2 * curvature * s, slope)
    if elementwise:
        assert torch.allclose(matrix, J.T @ torch.diag(elementwise_weights) @ J, rtol=1e-9, atol=1e-13)
    elif not bool(enough):
        assert torch.allclose(matrix, slope * J.T @ J, rtol=1e-9, atol=1e-13)


def test_both_sides_of_the_floor_are_tested_above():
    seen = set()
    for size in (1e-3, 0.1, 0.3, 1.0, 3.0):
        r = size * random(1, 3)
        _, slope, curvature = mslsq.Cauchy(0.7).derivatives((r @ r)[None])
        seen.add(bool(slope + 2 * curvature * (r @ r) >= LEAST_CURVATURE * slope))
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
            assert bool(torch.isfinite(tensor).all())


def test_a_loss_that_bends_up_has_its_whole_curvature():
    """Barron with α = 4, like s² for gross errors: three times the curvature of its weight."""
    loss = mslsq.Barron(1.0, alpha=4.0)
    x = mslsq.Variable("x", mslsq.Euclidean(1))
    problem = mslsq.Problem(mslsq.Prior(x, target=torch.zeros(1, 1, dtype=F64), loss=loss))
    solution = mslsq.solve(problem, {"x": torch.full((1,), 100.0, dtype=F64)})
    assert bool(solution.converged) and float(solution.value["x"].abs()) < 1e-6
    accepted = solution.history.accepted[1 : int(solution.num_steps) + 1]
    assert bool(accepted.all())


def test_outliers_of_a_bundle_adjustment_do_not_hold_back_its_steps(shared_data):
    """Ceres' bundle_adjuster with Huber(1) on Ladybug 49-7776: 7651.0 after 20 steps."""
    data = mslsq.datasets.bal.read_bal(shared_data / "bal" / "problem-49-7776-pre.txt.bz2")
    start = {"camera": data.cameras, "point": data.points}
    solver = mslsq.LevenbergMarquardt(max_steps=20)
    solution = mslsq.solve(data.problem(loss=mslsq.Huber(1.0)), start, solver=solver, adjoint=mslsq.Detached())
    assert float(solution.cost) < 7665


def test_without_a_loss_nothing_changes():
    r, J = random(5, 1, 3, 1), random(6, 1, 3, 2, 1)
    term = Term("test", (), 1, lambda values, inputs: None)
    rho, residual, jacobian = robustified(BlockTerm(term, System((), (term,)), 1, frozenset(), 3, 0), r, J, {})
    assert torch.equal(rho, r * r)
    assert residual is r and jacobian is J
