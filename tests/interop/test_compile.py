"""A solve inside a compiled model: one clean graph break, right values, right derivatives of every kind."""

import pytest
import torch
from torch import nn
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import mslsq

F64 = torch.float64
T = torch.linspace(0, 1, 12, dtype=F64)
Y = 2.0 * torch.exp(-1.5 * T) + 0.3 + 0.1 * torch.sin(40 * T)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)
# Bits are compared.
SOLVER = mslsq.LevenbergMarquardt(ftol=0.0, gtol=1e-13, xtol=1e-15, max_steps=100, native="never")


def decay(p, t, y):
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def model(y):
    """Something for the compiler before the solve, and after it."""
    fitted = mslsq.least_squares(decay, START, (T, torch.cos(y) * 0.1 + y), solver=SOLVER).value
    return torch.sin(2 * fitted)


def compiled(function, backend="aot_eager"):
    """Dynamo and AOTAutograd; Inductor's own code generation adds nothing to what is tested here but a minute."""
    torch.compiler.reset()
    return torch.compile(function, backend=backend)


def test_a_solve_inside_a_compiled_model_has_the_values_and_gradients_of_the_eager_one():
    eager, other = Y.clone().requires_grad_(), Y.clone().requires_grad_()
    expected, found = model(eager), compiled(model)(other)
    assert torch.equal(found, expected)
    expected.sum().backward()
    found.sum().backward()
    assert torch.allclose(other.grad, eager.grad, rtol=1e-12, atol=0)


def test_a_solve_is_a_single_graph_break():
    torch.compiler.reset()
    explanation = torch._dynamo.explain(model)(Y)
    assert explanation.graph_break_count == 1
    assert "outside compiled regions" in str(explanation.break_reasons[0].reason)


def test_a_single_graph_is_refused_with_the_reason():
    torch.compiler.reset()
    with pytest.raises(Exception, match="least-squares solve runs outside compiled regions"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(Y)


TRANSFORMS = {
    "grad": lambda f: grad(lambda y: f(y).sum()),
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "vmap": lambda f: lambda y: vmap(f)(torch.stack((y, 1.1 * y))),
    "vmap_grad": lambda f: lambda y: vmap(grad(lambda y: f(y).sum()))(torch.stack((y, 1.1 * y))),
    "hessian": lambda f: hessian(lambda y: f(y).sum()),
}
"""`torch.compile(vmap(jacfwd(f)))` is not among them: it fails for any f (pytorch #151196), with an error."""

SLOW = [pytest.param(name, marks=[] if name in ("grad", "vmap") else pytest.mark.slow) for name in TRANSFORMS]


@pytest.mark.parametrize("name", SLOW)
def test_compiling_around_inside_and_under_a_transform_gives_the_eager_derivative(name):
    """PyTorch drops the derivative rules of an `autograd.Function` in a compiled `torch.func` region (#192985); a
    solve is not in that region, wherever the compiler is put."""
    transform = TRANSFORMS[name]
    expected = transform(model)(Y)

    def region(y):
        return transform(model)(torch.cos(y) * 0 + y)

    for found in (compiled(transform(model))(Y), transform(compiled(model))(Y), compiled(region)(Y)):
        assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["grad", pytest.param("hessian", marks=pytest.mark.slow)])
def test_a_single_graph_around_a_transform_is_refused_in_words(name):
    torch.compiler.reset()
    with pytest.raises(Exception, match="least-squares solve runs outside compiled regions"):
        torch.compile(TRANSFORMS[name](model), backend="aot_eager", fullgraph=True)(Y)


class Model(nn.Module):
    """A layer between two linear maps."""

    def __init__(self):
        super().__init__()
        x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
        towards = torch.arange(6.0, dtype=F64).reshape(3, 2)
        problem = mslsq.Problem(
            mslsq.Prior(x, target=towards, loss=mslsq.Cauchy(1.0)), mslsq.Difference(x[[0, 1]], x[[1, 2]])
        )
        self.before, self.layer = nn.Linear(4, 6, dtype=F64), mslsq.LeastSquaresLayer(problem, solver=SOLVER)

    def forward(self, z):
        data = {"prior": {"target": torch.tanh(self.before(z)).reshape(3, 2)}}
        return self.layer({"x": torch.zeros(3, 2, dtype=F64)}, data).value["x"].pow(2).sum()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_training_a_compiled_model_with_a_layer_gives_the_gradients_of_the_eager_one(backend):
    torch.manual_seed(0)
    net, z = Model(), torch.ones(4, dtype=F64)
    net(z).backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    compiled(net, backend)(z).backward()
    for p, g in zip(net.parameters(), expected, strict=True):
        assert g.abs().max() > 0
        assert torch.allclose(p.grad, g, rtol=1e-10, atol=1e-13)
