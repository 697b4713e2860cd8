"""A loss that a user wrote: what it holds are inputs, and what changes in it is seen, at both front doors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.problem.errors import ShapeError

F64 = torch.float64
OBSERVED = torch.tensor([[0.3, -2.0], [0.1, 0.4], [-0.2, 0.7], [5.0, 0.2]], dtype=F64)
START = torch.zeros(2, dtype=F64)
RECORDED = mslsq.LevenbergMarquardt(trace="always")  # as after some calls: a graph must not outlive what it is of


class Power(mslsq.RobustLoss):
    """ρ(s) = c (s + 1)^p − c: a number and a tensor in plain attributes, of which `state_dict` knows nothing."""

    tuning = 1.0

    def __init__(self, power: float, factor: Tensor):
        super().__init__(1.0)
        self.power, self.factor = power, factor

    def _factor(self) -> Tensor:
        return self.factor.sum() if self.factor.shape == (2,) else self.factor

    def rho(self, s, parameters=None):
        return self._factor() * ((s + 1) ** self.power - 1)

    def derivatives(self, s, parameters=None):
        p, factor = self.power, self._factor()
        return self.rho(s), factor * p * (s + 1) ** (p - 1), factor * p * (p - 1) * (s + 1) ** (p - 2)


class Ignores(mslsq.losses.SoftL1):
    """Its scale is a buffer, which its code reads from itself and not from `parameters`."""

    def rho(self, s, parameters=None):
        return super().rho(s)

    def derivatives(self, s, parameters=None):
        return super().derivatives(s)


class Difference(mslsq.CostFunction):
    def residual(self, x, observed):
        return torch.cat((x - observed, 0.3 * x))


def by_residual(loss: mslsq.RobustLoss) -> mslsq.Solution:
    def residual(x):
        return torch.cat(((x - OBSERVED).reshape(-1), 0.3 * x))

    return mslsq.least_squares(residual, START, loss=loss, solver=RECORDED)


def by_cost(loss: mslsq.RobustLoss) -> mslsq.Solution:
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    return mslsq.solve(mslsq.Problem(Difference(x, observed=OBSERVED, loss=loss)), {"x": START}, solver=RECORDED)


def vector(solution: mslsq.Solution) -> Tensor:
    return solution.value["x"] if isinstance(solution.value, dict) else solution.value


DOORS = pytest.mark.parametrize("solved", [by_residual, by_cost])
Door = Callable[[mslsq.RobustLoss], mslsq.Solution]


def minimum(solved: Door, loss: mslsq.RobustLoss) -> Tensor:
    """An independent one: Newton's method on the cost, by automatic differentiation."""
    elementwise = solved is by_residual

    def cost(x: Tensor) -> Tensor:
        fit, pull = (x - OBSERVED) ** 2, (0.3 * x) ** 2
        squares = torch.cat((fit, pull[None])) if elementwise else fit.sum(-1) + pull.sum()
        return loss.rho(squares).sum() / 2

    x = torch.full_like(START, 0.2)
    step = x
    while step.abs().max() > 1e-9:
        hessian = torch.func.hessian(cost)(x) + 1e-12 * torch.eye(2, dtype=F64)
        step = torch.linalg.solve(hessian, -torch.func.grad(cost)(x))
        while cost(x + step) > cost(x) + 1e-15:
            step = step / 2
        x = x + step
    return x


@DOORS
def test_each_state_of_a_loss_has_its_own_solution(solved: Door):
    loss = Power(1.0, torch.tensor(1.0, dtype=F64))
    for power in (1.0, 0.6, 1.5):
        loss.power = power
        assert solved(loss).converged
        torch.testing.assert_close(vector(solved(loss)), minimum(solved, loss), rtol=0, atol=1e-6)


@DOORS
def test_another_loss_of_the_same_class_is_not_taken_for_the_first(solved: Door):
    for scale in (0.2, 3.0):
        loss = Ignores(scale)
        torch.testing.assert_close(vector(solved(loss)), minimum(solved, loss), rtol=0, atol=1e-6)


@pytest.mark.sampled(1)
@DOORS
def test_a_batch_of_losses_is_their_loop_and_derivatives_go_through(solved: Door):
    def at(scale: Tensor) -> Tensor:
        return vector(solved(Ignores(scale))).sum()

    def exact(scale: Tensor) -> Tensor:
        return minimum(solved, Ignores(scale)).sum()

    scales = torch.tensor([0.3, 1.0, 2.5], dtype=F64)
    torch.testing.assert_close(torch.func.vmap(at)(scales), torch.stack([at(scale) for scale in scales]))
    step = 1e-3
    numeric = torch.stack([(exact(scale + step) - exact(scale - step)) / (2 * step) for scale in scales])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(at))(scales), numeric, rtol=1e-4, atol=1e-6)
    twice = torch.func.grad(torch.func.grad(at))(scales[1])
    numeric = (torch.func.grad(at)(scales[1] + step) - torch.func.grad(at)(scales[1] - step)) / (2 * step)
    torch.testing.assert_close(twice, numeric, rtol=1e-4, atol=1e-6)


@pytest.mark.sampled(1)
@DOORS
def test_a_tensor_in_a_plain_attribute_is_an_input_too(solved: Door):
    def at(factor: Tensor) -> Tensor:
        return solved(Power(0.6, factor)).cost

    factor = torch.tensor(2.0, dtype=F64)
    unit = at(torch.tensor(1.0, dtype=F64))
    torch.testing.assert_close(at(factor), 2 * unit)
    torch.testing.assert_close(torch.func.grad(at)(factor), unit)
    torch.testing.assert_close(
        torch.func.vmap(at)(torch.stack((factor, 3 * factor, factor))), torch.stack((2 * unit, 6 * unit, 2 * unit))
    )


@DOORS
def test_a_loss_may_hold_several_numbers_but_not_others_for_each_problem_of_a_batch(solved: Door):
    table = torch.tensor([0.5, 1.5], dtype=F64)
    unit = solved(Power(0.6, torch.tensor(1.0, dtype=F64))).cost
    torch.testing.assert_close(solved(Power(0.6, table)).cost, 2 * unit)
    with pytest.raises(ShapeError, match="single number"):
        torch.func.vmap(lambda table: solved(Power(0.6, table)).cost)(torch.stack((table, table, table)))
