"""A network at module level in a residual: with other parameters by `torch.func.functional_call`, or as it is."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import mslsq
from tests.differences import differences

F64 = torch.float64


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).to(F64)


NET = network()
X = torch.linspace(-1, 1, 20, dtype=F64)[:, None]
Y = torch.sin(3 * X)
SOLVER = mslsq.LevenbergMarquardt(ftol=0.0, xtol=0.0, max_steps=500)
"""Convergence is linear here, and `ftol` would end it at a gradient of 1e-7, too early for derivatives."""


def start():
    return {name: tensor.detach().clone() for name, tensor in NET.named_parameters()}


def residual(p, y):
    """With a ridge, so that one minimum is near."""
    return [functional_call(NET, p, (X,)) - y, *[0.1 * tensor for tensor in p.values()]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trace", ["always", "never"])
def test_the_parameters_of_a_global_network_are_fitted(trace):
    before = start()
    solution = mslsq.least_squares(residual, start(), (Y,), solver=mslsq.LevenbergMarquardt(trace=trace))
    assert bool(solution.converged)
    closure = network()  # the same as a closure has it
    expected = mslsq.least_squares(
        lambda p: [functional_call(closure, p, (X,)) - Y, *[0.1 * tensor for tensor in p.values()]], start()
    )
    for name, tensor in solution.value.items():
        torch.testing.assert_close(tensor, expected.value[name], rtol=1e-6, atol=2e-6)  # where `ftol` ends both
        assert torch.equal(NET.get_parameter(name), before[name])


@pytest.mark.slow
def test_derivatives_and_batches():
    def end(y):
        return mslsq.least_squares(residual, start(), (y,), solver=SOLVER).value["2.bias"].sum()

    some = torch.tensor([3, 11])
    along = lambda change: end(Y.index_add(0, some, change[:, None]))  # noqa: E731
    expected = differences(along, torch.zeros(2, dtype=F64), 1e-3)
    torch.testing.assert_close(grad(end)(Y)[some, 0], expected, rtol=1e-4, atol=1e-6)
    ys = torch.stack((Y, 0.5 * Y))
    singly = torch.stack([end(y) for y in ys]).detach()
    torch.testing.assert_close(vmap(end)(ys).detach(), singly, rtol=0, atol=1e-7)
    together = mslsq.least_squares(residual, start(), (ys,), in_dims=(None, 0), solver=SOLVER)
    torch.testing.assert_close(together.value["2.bias"][:, 0].detach(), singly, rtol=0, atol=1e-7)


def test_what_is_not_replaced_gets_its_gradient():
    """The last layer is fitted; the layer before it is trained elsewhere."""

    def fitted():
        last = {name: tensor for name, tensor in start().items() if name.startswith("2")}
        return mslsq.least_squares(lambda p: functional_call(NET, p, (X,)) - Y, last, solver=SOLVER).cost

    (found,) = torch.autograd.grad(fitted(), NET[0].weight)
    original = NET[0].weight.detach().clone()

    def at(weight):
        with torch.no_grad():
            NET[0].weight.copy_(weight)
            cost = fitted()
            NET[0].weight.copy_(original)
        return cost

    torch.testing.assert_close(found, differences(at, original, 1e-5), rtol=1e-5, atol=1e-8)


def test_a_network_that_moves_between_calls_is_read_again():
    def fitted():
        return mslsq.least_squares(lambda p: p * NET(X) - Y, torch.ones(1, dtype=F64)).value

    before = fitted()
    with torch.no_grad():
        NET[2].weight.mul_(2.0)
        NET[2].bias.mul_(2.0)
        after = fitted()
        NET[2].weight.mul_(0.5)
        NET[2].bias.mul_(0.5)
    torch.testing.assert_close(after, 0.5 * before.detach())


def test_in_a_cost_function():
    sizes = {name: tensor.shape for name, tensor in start().items()}
    kind = {name.replace(".", "_"): mslsq.Euclidean(shape.numel()) for name, shape in sizes.items()}
    p = mslsq.Variable("p", kind)

    @mslsq.cost
    def fit(p, x, y):
        parameters = {name: p[name.replace(".", "_")].reshape(shape) for name, shape in sizes.items()}
        return functional_call(NET, parameters, (x,)) - y

    prior = {name.replace(".", "_"): torch.zeros(1, shape.numel(), dtype=F64) for name, shape in sizes.items()}
    problem = mslsq.Problem(fit(p, x=X, y=Y), mslsq.Prior(p, target=prior, weight=0.1))
    values = {"p": {name.replace(".", "_"): tensor.reshape(-1) for name, tensor in start().items()}}
    solution = mslsq.solve(problem, values, solver=SOLVER)
    expected = mslsq.least_squares(residual, start(), (Y,), solver=SOLVER)
    torch.testing.assert_close(solution.cost, expected.cost.detach(), rtol=1e-6, atol=0)
