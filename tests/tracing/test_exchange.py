"""Tensors that a class or an imported module holds are inputs of a solve, and other code does not notice.

The truth is the same residual with the tensor given in `args`, or as data.
"""

import gc
import threading
import types
import weakref

import pytest
import torch
from torch import nn

import mslsq
from mslsq.tracing.reading.inputs import UncollectedTensorError, collect

F64 = torch.float64
Y = torch.arange(1.0, 5.0, dtype=F64)
models = types.ModuleType("models")


class Config:
    gain = torch.tensor(2.0, dtype=F64, requires_grad=True)
    gains = [torch.tensor(2.0, dtype=F64, requires_grad=True)]  # noqa: RUF012


class Net:
    layer = nn.Linear(1, 1).double()


models.gain = torch.tensor(2.0, dtype=F64, requires_grad=True)  # pyright: ignore
models.net = nn.Sequential(nn.Linear(1, 1).double(), nn.Softplus())  # pyright: ignore


def positive(layer, x):
    return nn.functional.softplus(layer(x[:, None]))[:, 0]


def of_class(x, y):
    return Config.gain * x + x**2 - y


def of_list(x, y):
    return torch.stack([entry * x for entry in Config.gains]).sum(0) + x**2 - y


def of_module(x, y):
    return models.gain * x + x**2 - y


def of_default(x, y, own=Config):
    return own.gain * x + x**2 - y


def of_method(x, y):
    return Config.gain.expand(4).mul(x) + x.square() - y


def of_net(x, y):
    return models.net(x[:, None])[:, 0] + 2 * x - y


def of_parameter(x, y):
    return torch.einsum("ij,i->i", Net.layer.weight.expand(4, 1), x) + positive(Net.layer, x) + 2 * x - y


def by_args(name):
    """The same residual around given tensors, and the tensors of the holder."""
    gain = {"of_list": Config.gains[0], "of_module": models.gain}.get(name, Config.gain)
    if name == "of_net":
        held = tuple(models.net.parameters())
        return held, lambda x, y, w, b: nn.functional.softplus(x[:, None] @ w.T + b)[:, 0] + 2 * x - y
    if name == "of_parameter":
        held = tuple(Net.layer.parameters())
        return held, lambda x, y, w, b: w[0, 0] * x + nn.functional.softplus(x[:, None] @ w.T + b)[:, 0] + 2 * x - y
    return (gain,), lambda x, y, g: g * x + x**2 - y


RESIDUALS = [of_class, of_list, of_module, of_default, of_method, of_net, of_parameter]
PER_RESIDUAL = pytest.mark.parametrize("residual", RESIDUALS, ids=lambda residual: residual.__name__)


@pytest.mark.sampled(9)
@PER_RESIDUAL
@pytest.mark.parametrize("trace", ["auto", "never"])
@pytest.mark.parametrize("batched", [False, True])
def test_gradients_are_those_of_a_tensor_in_args_while_it_is_trained(residual, trace, batched):
    """Beyond the call in which the step is recorded."""
    held, given = by_args(residual.__name__)
    before = [tensor.detach().clone() for tensor in held]
    y = torch.stack([Y, Y + 0.5]) if batched else Y
    dims = (None, 0) if batched else None
    solver = mslsq.LevenbergMarquardt(trace=trace)
    start = torch.ones(4, dtype=F64)
    try:
        for _ in range(6 if trace == "auto" else 2):
            found = mslsq.least_squares(residual, start, (y,), in_dims=dims, solver=solver)
            same = mslsq.least_squares(
                given, start, (y, *held), in_dims=dims and (*dims, *[None] * len(held)), solver=solver
            )
            assert bool(found.converged.all())
            torch.testing.assert_close(found.value, same.value, rtol=1e-9, atol=1e-12)
            gradients = torch.autograd.grad(found.value.square().sum(), held)
            expected = torch.autograd.grad(same.value.square().sum(), held)
            for own, other in zip(gradients, expected, strict=True):
                torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-11)
                assert bool(own.any())
            with torch.no_grad():
                for tensor, gradient in zip(held, gradients, strict=True):
                    tensor.sub_(0.01 * gradient)
    finally:
        with torch.no_grad():
            for tensor, old in zip(held, before, strict=True):
                tensor.copy_(old)


def test_second_derivatives_too():
    def slope(residual, args):
        value = mslsq.least_squares(residual, torch.ones(4, dtype=F64), args).value
        (first,) = torch.autograd.grad(value.sum(), Config.gain, create_graph=True)
        return torch.autograd.grad(first, Config.gain)[0]

    torch.testing.assert_close(slope(of_class, (Y,)), slope(by_args("of_class")[1], (Y, Config.gain)))


def test_transforms_around_the_solve_see_it():
    def total(residual, *more):
        def of_data(y):
            return mslsq.least_squares(residual, torch.ones(4, dtype=F64), (y, *more)).value.square().sum()

        return torch.func.vmap(torch.func.grad(of_data))(torch.stack([Y, 2 * Y]))

    torch.testing.assert_close(total(of_class), total(by_args("of_class")[1], Config.gain.detach()))
    (own,) = torch.autograd.grad(total(of_class).sum(), Config.gain)
    (other,) = torch.autograd.grad(total(by_args("of_class")[1], Config.gain).sum(), Config.gain)
    torch.testing.assert_close(own, other)


class Gained(mslsq.CostFunction):
    """Scaled by an attribute of its own class."""

    gain = torch.tensor(1.5, dtype=F64, requires_grad=True)

    def residual(self, x, y):
        return self.gain * x + 0.1 * x**3 - y


class Analytic(Gained):
    def jacobians(self, x, y):
        return (torch.diag(Config.gain / Config.gain * (self.gain + 0.3 * x**2)),)


class Given(mslsq.CostFunction):
    def residual(self, x, y, gain):
        return gain * x + 0.1 * x**3 - y


@pytest.mark.parametrize("kind", [Gained, Analytic])
@pytest.mark.parametrize("layer", [False, True])
def test_costs_that_read_their_class(kind, layer):
    """Through both front doors of problems, with and without Jacobians of their own."""
    rows = torch.stack([Y[:2], Y[2:]])

    def gradient(cost):
        problem = mslsq.Problem(cost)
        start = {"x": torch.ones(2, 2, dtype=F64)}
        solved = mslsq.LeastSquaresLayer(problem)(start) if layer else mslsq.solve(problem, start)
        return torch.autograd.grad(solved.value["x"].square().sum(), Gained.gain)[0]

    x = mslsq.Variable("x", mslsq.Euclidean(2), count=2)
    blocks = x[torch.arange(2)]
    for _ in range(4):
        own = gradient(kind(blocks, y=rows))
        torch.testing.assert_close(own, gradient(Given(blocks, y=rows, gain=mslsq.Shared(Gained.gain))))


def test_a_residual_that_is_the_tensor_itself():
    class Target:
        value = torch.tensor([1.0, 2.0], dtype=F64, requires_grad=True)

    def residual(x):
        return {"x": x, "pull": Target.value, "apart": x - Target.value}

    solution = mslsq.least_squares(residual, torch.zeros(2, dtype=F64))
    torch.testing.assert_close(solution.value.detach(), Target.value.detach() / 2)
    (gradient,) = torch.autograd.grad(solution.cost, Target.value)
    torch.testing.assert_close(gradient, 1.5 * Target.value.detach())


def test_one_input_for_what_a_closure_has_too():
    own = Config.gain
    assert len(collect(lambda x: own * Config.gain * x).tensors) == 1
    assert len(collect(lambda x: Config.gain * x + (lambda z: own * z)(x)).tensors) == 1
    solution = mslsq.least_squares(lambda x: own * Config.gain * x - Y, torch.ones(4, dtype=F64))
    (gradient,) = torch.autograd.grad(solution.value.sum(), own)
    torch.testing.assert_close(gradient, -2 * Y.sum() / own.detach() ** 3)


def test_other_threads_read_their_own_tensor_meanwhile():
    """Nothing stands anywhere that must be put back."""
    seen, stop = set(), threading.Event()

    def watch():
        while not stop.is_set():
            seen.add((id(Config.gain), type(Config.gain), float((Config.gain * 1).detach())))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for trace in ("never", "auto", "always"):
            solver = mslsq.LevenbergMarquardt(trace=trace)
            mslsq.least_squares(of_class, torch.ones(4, dtype=F64), (Y,), solver=solver)
    finally:
        stop.set()
        thread.join()
    assert seen == {(id(Config.gain), torch.Tensor, 2.0)}


def test_two_threads_that_solve_at_once():
    def solve(number, found):
        y = Y * (1 + number)
        solution = mslsq.least_squares(of_module, torch.ones(4, dtype=F64), (y,))
        found[number] = torch.autograd.grad(solution.value.sum(), models.gain)[0]

    alone, together = {}, {}
    for number in range(4):
        solve(number, alone)
    threads = [threading.Thread(target=solve, args=(number, together)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: float(g) for n, g in alone.items()} == pytest.approx({n: float(g) for n, g in together.items()})


def test_no_mode_is_left_where_a_residual_raises():
    def residual(x):
        raise KeyError(str(Config.gain.ndim))

    with pytest.raises(KeyError):
        mslsq.least_squares(residual, torch.ones(4, dtype=F64))
    assert float(torch.autograd.grad(3 * Config.gain, Config.gain)[0]) == 3


def test_nothing_keeps_the_tensor_alive():
    class Short:
        gain = torch.tensor(3.0, dtype=F64, requires_grad=True)

    for _ in range(4):
        mslsq.least_squares(lambda x: Short.gain * x - Y, torch.ones(4, dtype=F64)).value.sum().backward()
    reference = weakref.ref(Short.gain)
    del Short.gain
    gc.collect()
    assert reference() is None


class Product(torch.autograd.Function):
    """Its arguments are seen by no mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, g):
        return x * g

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, g = ctx.saved_tensors
        return gradient * g, (gradient * x).sum()

    @staticmethod
    def jvp(ctx, moved, by):
        x, g = ctx.saved_tensors
        return (0 if moved is None else moved * g) + (0 if by is None else by * x)


@torch.jit.script
def scripted(x, g: torch.Tensor):
    return x * g


@pytest.mark.parametrize("function", [Product.apply, scripted], ids=["autograd.Function", "TorchScript"])
@pytest.mark.parametrize("trace", ["auto", "never", "always"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_what_comes_past_the_exchange_is_refused_by_name(function, trace, given, batched):
    def residual(x, y):
        return function(x, Config.gain) - y

    jac = (lambda x, y: torch.eye(4, dtype=F64) * Config.gain) if given else None
    y = torch.stack([Y, Y]) if batched else Y
    solver = mslsq.LevenbergMarquardt(trace=trace)
    with pytest.raises(UncollectedTensorError, match=r"attribute 'gain' of class 'Config'.*pass it in args"):
        mslsq.least_squares(
            residual, torch.ones(4, dtype=F64), (y,), jac=jac, in_dims=(None, 0) if batched else None, solver=solver
        )


NAME = ["ga", "in"]


def by_a_made_name(x, y):
    """No code names what is read."""
    return getattr(Config, "".join(NAME)) * x - y


class ByMadeName(mslsq.CostFunction):
    def residual(self, x, y):
        return by_a_made_name(x, y)

    def jacobians(self, x, y):
        return (2 * torch.eye(2, dtype=F64),)

    def curvature(self, cotangent, x, y):
        return torch.zeros(2, 2, dtype=F64)


@pytest.mark.parametrize("adjoint", [None, mslsq.Unrolled(), mslsq.DirectLossMinimization(1e-4)])
@pytest.mark.parametrize("jac", [None, lambda x, y: 2 * torch.eye(4, dtype=F64)])
def test_what_was_not_found_is_refused_where_derivatives_are_taken(adjoint, jac):
    """It got lost as soon as the step was recorded, and at once with direct loss minimization."""
    start, y = torch.ones(4, dtype=F64), Y.clone().requires_grad_()
    with pytest.raises(UncollectedTensorError, match=r"'by_a_made_name'.*not found.*pass it in args"):
        mslsq.least_squares(by_a_made_name, start, (y,), adjoint=adjoint, jac=jac)
    solution = mslsq.least_squares(by_a_made_name, start, (Y,), adjoint=adjoint, jac=jac)
    torch.testing.assert_close(solution.value.detach(), Y / 2)


def test_what_was_not_found_is_refused_beside_a_curvature_too():
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    problem = mslsq.Problem(ByMadeName(x, y=Y[None, :2], name="made"))
    data = {"made": {"y": Y[None, :2].clone().requires_grad_()}}
    with pytest.raises(UncollectedTensorError, match="'made'"):
        mslsq.solve(problem, {"x": torch.ones(2, dtype=F64)}, data)


def test_a_matrix_that_cannot_be_factored_hides_nothing_of_its_neighbours():
    """The plain evaluation of that problem raises; the other one is looked at, and derivatives are taken."""

    def residual(x, y):
        return torch.linalg.cholesky(torch.diag(y[:2])) @ x - y[2:]

    y = torch.tensor([[4.0, 9.0, 1.0, 1.0], [4.0, -9.0, 1.0, 1.0]], dtype=F64, requires_grad=True)
    solution = mslsq.least_squares(residual, torch.ones(2, dtype=F64), (y,), in_dims=(None, 0))
    (gradient,) = torch.autograd.grad(solution.value[0].sum(), y)
    torch.testing.assert_close(gradient[0], torch.tensor([-1 / 16, -1 / 54, 1 / 2, 1 / 3], dtype=F64))
    with pytest.raises(UncollectedTensorError, match="not found"):
        mslsq.least_squares(
            lambda x, y: residual(x, y) * getattr(Config, "".join(NAME)),
            torch.ones(2, dtype=F64),
            (y,),
            in_dims=(None, 0),
        )


def test_a_leaf_that_the_residual_makes_for_itself_is_no_lost_input():
    def residual(x, y):
        return torch.full((4,), 2.0, dtype=F64, requires_grad=True) * x - y

    y = Y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(mslsq.least_squares(residual, torch.ones(4, dtype=F64), (y,)).value.sum(), y)
    torch.testing.assert_close(gradient, torch.full_like(Y, 0.5))


def test_a_tensor_that_is_being_transformed_is_refused():
    class Setting:
        gain = torch.tensor(1.0, dtype=F64)

    def of_gain(gain):
        Setting.gain = gain
        return mslsq.least_squares(lambda x: Setting.gain * x - Y, torch.ones(4, dtype=F64)).value.sum()

    with pytest.raises(UncollectedTensorError, match="'gain' of class 'Setting'"):
        torch.func.grad(of_gain)(torch.tensor(2.0, dtype=F64))
