"""The matrix: every way of differentiating and mapping, through every front door, in every kind of input.

Each case is a function of two numbers; all transforms of it are compared with central differences of its values at
residuals that are not zero. Pairs of (case, transform) that cover every case and every transform several times run
always, the full product is marked slow.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import mslsq
from tests.differences import fourth_order_differences

F64 = torch.float64

TIGHT = {"ftol": 0.0, "gtol": 1e-13, "xtol": 1e-15, "max_steps": 100}
"""Both values of a difference must be the minimum to rounding: 1e-15 / 1e-4 leaves eleven digits."""
LM = mslsq.LevenbergMarquardt(**TIGHT)
QR = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.QR(), **TIGHT)
DOGLEG = mslsq.Dogleg(**TIGHT)
GN = mslsq.GaussNewton(**TIGHT)

AT = torch.tensor([0.7, 0.4], dtype=F64)
ALONG = torch.tensor([0.3, -0.8], dtype=F64)
WEIGHTS = torch.tensor([1.0, 2.0, -1.0], dtype=F64)
POINTS = torch.stack([AT, 0.8 * AT, 0.5 * AT])


def noise(*shape: int, seed: int = 0) -> Tensor:
    """The same numbers at every call, also inside `vmap`, where torch's own generator refuses to work."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


T = torch.linspace(0, 1, 12, dtype=F64)
Y = 2.0 * torch.exp(-1.5 * T) + 0.3 + 0.1 * noise(12)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)


def data(d: Tensor) -> Tensor:
    """Measurements of a decay that depend on two numbers nonlinearly."""
    return Y + 0.3 * torch.sin(3 * T * d[0]) * d[1]


def decay(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def three(value: Tensor, seed: int = 5) -> Tensor:
    """Three numbers from any solution."""
    return noise(3, value.numel(), seed=seed) @ value.reshape(-1)


# ---- the cases: functions of two numbers ------------------------------------------------------------


def args(d):
    return mslsq.least_squares(decay, START, (T, data(d)), solver=LM).value


def capture(d):
    y = data(d)
    return mslsq.least_squares(lambda p: decay(p, T, y), START, solver=QR).value


def jacobian_given(d):
    def jac(p, t, y):
        return torch.stack((torch.exp(p[1] * t), p[0] * t * torch.exp(p[1] * t), torch.ones_like(t)), -1)

    return mslsq.least_squares(decay, START, (T, data(d)), jac=jac, solver=DOGLEG).value


def cost_value(d):
    solution = mslsq.least_squares(decay, START, (T, data(d)), solver=GN)
    return solution.cost * WEIGHTS + solution.value


def loss_scale(d):
    loss = mslsq.Cauchy(0.2 * torch.exp(d[0]))
    return mslsq.least_squares(decay, START, (T, data(d)), solver=LM, loss=loss).value


def loss_shape(d):
    loss = mslsq.Barron(0.3 * torch.exp(d[0]), alpha=1.0 + 0.5 * torch.sin(d[1]))
    return mslsq.least_squares(decay, START, (T, Y), solver=LM, loss=loss).value


class Net(nn.Module):
    """A little network inside a residual."""

    def __init__(self, seed: int = 3):
        super().__init__()
        self.first, self.second = nn.Linear(1, 3, dtype=F64), nn.Linear(3, 1, dtype=F64)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(0.5 * noise(*parameter.shape, seed=seed + number))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x[..., None])))[..., 0]


def moved_parameters(module: nn.Module, d: Tensor) -> dict[str, Tensor]:
    """The parameters of a module, moved by two numbers."""
    return {
        name: p.detach() + d[0] * 0.3 * torch.cos(p.detach()) + 0.2 * d[1] ** 2 for name, p in module.named_parameters()
    }


NET = Net()


def network_called_inside(d):
    net, parameters = NET, moved_parameters(NET, d)  # local names: a global with parameters is refused

    def residual(p, t, y):
        return p[0] * torch.exp(p[1] * t) + p[2] * functional_call(net, parameters, (t,)) - y

    return mslsq.least_squares(residual, START, (T, Y), solver=LM).value


class Fit(nn.Module):
    """A module that solves in its forward pass; its network is captured by the residual."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, y):
        return mslsq.least_squares(
            lambda p: p[0] * torch.exp(p[1] * T) + p[2] * self.net(T) - y, START, solver=QR
        ).value


FIT = Fit()


def network_captured(d):
    return functional_call(FIT, moved_parameters(FIT, d), (Y,))


def batch_inside(d):
    y = torch.stack((data(d), data(d.flip(0)), Y))
    solution = mslsq.least_squares(decay, START, (T, y), in_dims=(None, None, 0), solver=LM)
    return three(solution.value)


def pose_from_points(kind, d):
    dim = 2 if kind is mslsq.SE2 else 3
    points = noise(6, dim, seed=1)
    seen = points + 0.3 * noise(6, dim, seed=2) + 0.5 * torch.sin(d[0] * points) * d[1]
    start = kind.exp(torch.zeros({mslsq.SE2: 3, mslsq.SO3: 3, mslsq.SE3: 6}[kind], dtype=F64))
    element = mslsq.least_squares(lambda x, a, b: x.act(a) - b, start, (points, seen), solver=LM).value
    return three(element.storage)


def element_se2(d):
    return pose_from_points(mslsq.SE2, d)


def element_so3(d):
    return pose_from_points(mslsq.SO3, d)


def element_se3(d):
    return pose_from_points(mslsq.SE3, d)


class Between(mslsq.CostFunction):
    def residual(self, a, b, measured):
        return (measured.inverse() @ (a.inverse() @ b)).log()


def loop(kind, tangent: int, cost=Between, fixed: bool = True, **options):
    """Five poses in a ring that does not close."""
    pose = mslsq.Variable("pose", kind, count=5)
    i, j = torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1, 2, 3, 4, 0, 2])
    measured = kind.exp(0.2 * noise(6, tangent, seed=4))
    costs = [cost(pose[i], pose[j], measured=measured, **options)]
    return mslsq.Problem(*costs, *([pose.fixed([0])] if fixed else [])), measured


SE2_LOOP, SE2_MEASURED = loop(mslsq.SE2, 3)
SE3_LOOP, SE3_MEASURED = loop(mslsq.SE3, 6, cost=mslsq.Between, weight=2.0)
SO3_LOOP, SO3_MEASURED = loop(mslsq.SO3, 3, loss=mslsq.Cauchy(2.0), weight=mslsq.Diagonal(torch.ones(6, 3, dtype=F64)))


def moved(measured, d):
    """Measurements moved by two numbers."""
    tangent = 6 if type(measured) is mslsq.SE3 else 3
    return measured.retract(0.3 * torch.sin(d[0] * noise(6, tangent, seed=6)) * d[1])


def solve_data(d):
    start = {"pose": mslsq.SE2.exp(torch.zeros(5, 3, dtype=F64))}
    solution = mslsq.solve(SE2_LOOP, start, {"between": {"measured": moved(SE2_MEASURED, d)}}, solver=LM)
    return three(solution.value["pose"].storage)


def solve_fixed_block(d):
    """The other poses follow the fixed one; where it is held is data."""
    held = mslsq.SE2.exp(torch.cat((torch.stack((d[0], d[1], d[0] * d[1]))[None], torch.zeros(4, 3, dtype=F64))))
    return three(mslsq.solve(SE2_LOOP, {"pose": held}, solver=LM).value["pose"].storage)


def solve_se3(d):
    start = {"pose": mslsq.SE3.exp(torch.zeros(5, 6, dtype=F64))}
    solution = mslsq.solve(SE3_LOOP, start, {"between": {"measured": moved(SE3_MEASURED, d)}}, solver=QR)
    return three(solution.value["pose"].storage)


def solve_weight_and_scale(d):
    start = {"pose": mslsq.SO3.exp(torch.zeros(5, 3, dtype=F64))}
    weight = torch.exp(0.3 * d[0] * noise(6, 3, seed=7))
    given = {"between": {"weight": weight, "loss.scale": 2.0 * torch.exp(d[1])}}
    return three(mslsq.solve(SO3_LOOP, start, given, solver=LM).value["pose"].storage)


class Learned(mslsq.CostFunction):
    """A curve with a network in it: the network is the cost's own."""

    def __init__(self, *variables, **data):
        super().__init__(*variables, **data)
        self.net = Net(seed=8)

    def residual(self, p, t, y):
        return p[0] * torch.exp(p[1] * t) + p[2] * self.net(t) - y


def learned_layer(solver, adjoint=None):
    p = mslsq.Variable("p", mslsq.Euclidean(3))
    return mslsq.LeastSquaresLayer(mslsq.Problem(Learned(p, t=T, y=Y)), solver=solver, adjoint=adjoint)


LAYER = learned_layer(LM)


def layer_parameters(d):
    return functional_call(LAYER, moved_parameters(LAYER, d), ({"p": START},)).value["p"]


def layer_data(d):
    return LAYER({"p": START}, data={"learned": {"y": data(d)}}).value["p"]


def unrolled(d):
    """Three steps: not converged, and without damping, whose own derivative is not taken."""
    solver = mslsq.GaussNewton(max_steps=3, early_stop=False, ftol=0, gtol=0, xtol=0)
    start = torch.tensor([1.9, -1.4, 0.3], dtype=F64) + 0.1 * d[0] * d[1]
    return mslsq.least_squares(decay, start, (T, data(d)), solver=solver, adjoint=mslsq.Unrolled()).value


def truncated(d):
    return mslsq.least_squares(decay, START, (T, data(d)), solver=LM, adjoint=mslsq.Truncated(16)).value


def unrolled_sparse(d):
    """Kernels without a derivative: three steps of block-sparse Cholesky, also in the start."""
    solver = mslsq.GaussNewton(max_steps=3, ftol=0, gtol=0, xtol=0, linear_solver=mslsq.linear.SparseCholesky())
    start = {"pose": mslsq.SE2.exp(0.1 * d[0] * d[1] * noise(5, 3, seed=9))}
    given = {"between": {"measured": moved(SE2_MEASURED, d)}}
    solution = mslsq.solve(SE2_LOOP, start, given, solver=solver, adjoint=mslsq.Unrolled())
    return three(solution.value["pose"].storage)


def truncated_matrix_free(d):
    start = {"pose": mslsq.SE2.exp(torch.zeros(5, 3, dtype=F64))}
    solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.ConjugateGradient(matrix_free=True), **TIGHT)
    given = {"between": {"measured": moved(SE2_MEASURED, d)}}
    solution = mslsq.solve(SE2_LOOP, start, given, solver=solver, adjoint=mslsq.Truncated(16))
    return three(solution.value["pose"].storage)


CASES: list[Callable[[Tensor], Tensor]] = [
    args,
    capture,
    jacobian_given,
    cost_value,
    loss_scale,
    loss_shape,
    network_called_inside,
    network_captured,
    batch_inside,
    element_se2,
    element_so3,
    element_se3,
    solve_data,
    solve_fixed_block,
    solve_se3,
    solve_weight_and_scale,
    layer_parameters,
    layer_data,
    unrolled,
    truncated,
    unrolled_sparse,
    truncated_matrix_free,
]


# ---- the truth: central differences of the values ---------------------------------------------------


class Truth:
    """Values and derivatives of a case, each computed once, at any of the points."""

    def __init__(self, function):
        self.function, self._kept = function, {}

    def _once(self, kind, at, compute):
        key = (kind, *at.tolist())
        if key not in self._kept:
            self._kept[key] = compute(at)
        return self._kept[key]

    def value(self, at):
        return self._once("value", at, self.function)

    def jacobian(self, at):
        return self._once("jacobian", at, lambda x: fourth_order_differences(self.function, x, 3e-4))

    def hessian(self, at):
        # Of the reverse-mode Jacobian, which other rows of the matrix compare with differences of values: eight
        # evaluations instead of 64, and two digits more.
        return self._once("hessian", at, lambda x: fourth_order_differences(jacrev(self.function), x, 3e-4))


TRUTHS = {case.__name__: Truth(case) for case in CASES}
FIRST, SECOND = 1e-8, 1e-8
"""What the differences resolve, relative to the largest entry; measured: 1e-10 in most cases."""


def scalar(f):
    return lambda d: (f(d) * WEIGHTS).sum()


def own(blocks: Tensor) -> Tensor:
    """Of the Jacobian of a vmapped function, the blocks of each point with itself; those with others must be zero."""
    number = torch.arange(len(blocks))
    diagonal = blocks[number, :, number]
    rest = blocks.clone()
    rest[number, :, number] = 0
    assert not rest.any()
    return diagonal


def backward(f):
    d = AT.clone().requires_grad_()
    (f(d) * WEIGHTS).sum().backward()
    return d.grad


def double_backward(f):
    d = AT.clone().requires_grad_()
    (first,) = torch.autograd.grad((f(d) * WEIGHTS).sum(), d, create_graph=True)
    (first * ALONG).sum().backward()
    return d.grad


class Wrapped(nn.Module):
    """The two numbers as a parameter of a module."""

    def __init__(self, f):
        super().__init__()
        self.d, self.f = nn.Parameter(AT.clone()), f

    def forward(self):
        return self.f(self.d)


def through_functional_call(f):
    module = Wrapped(f)
    return jacrev(lambda p: functional_call(module, p, ()))({"d": AT})["d"]


def nested_values(f):
    return vmap(vmap(f))(torch.stack((POINTS, POINTS.flip(0))))


def all_points(quantity):
    return lambda truth: torch.stack([quantity(truth, d) for d in POINTS])


def value(truth, d):
    return truth.value(d)


def jacobian(truth, d):
    return truth.jacobian(d)


def second(truth, d):
    return truth.hessian(d)


TRANSFORMS: dict[str, tuple[Callable, Callable, float]] = {
    "backward": (backward, lambda t: WEIGHTS @ t.jacobian(AT), FIRST),
    "double_backward": (
        double_backward,
        lambda t: torch.einsum("i,ijk,j->k", WEIGHTS, t.hessian(AT), ALONG),
        SECOND,
    ),
    "grad": (lambda f: grad(scalar(f))(AT), lambda t: WEIGHTS @ t.jacobian(AT), FIRST),
    "vjp": (lambda f: vjp(f, AT)[1](WEIGHTS)[0], lambda t: WEIGHTS @ t.jacobian(AT), FIRST),
    "jvp": (lambda f: jvp(f, (AT,), (ALONG,))[1], lambda t: t.jacobian(AT) @ ALONG, FIRST),
    "jacrev": (lambda f: jacrev(f)(AT), lambda t: t.jacobian(AT), FIRST),
    "jacfwd": (lambda f: jacfwd(f)(AT), lambda t: t.jacobian(AT), FIRST),
    "hessian": (lambda f: hessian(f)(AT), lambda t: t.hessian(AT), SECOND),
    "vmap": (lambda f: vmap(f)(POINTS), all_points(value), FIRST),
    "vmap_vmap": (
        nested_values,
        lambda t: torch.stack((all_points(value)(t), all_points(value)(t).flip(0))),
        FIRST,
    ),
    "vmap_grad": (lambda f: vmap(grad(scalar(f)))(POINTS), lambda t: WEIGHTS @ all_points(jacobian)(t), FIRST),
    "vmap_jacfwd": (lambda f: vmap(jacfwd(f))(POINTS), all_points(jacobian), FIRST),
    "jacrev_vmap": (lambda f: own(jacrev(vmap(f))(POINTS)), all_points(jacobian), FIRST),
    "jacfwd_vmap": (lambda f: own(jacfwd(vmap(f))(POINTS)), all_points(jacobian), FIRST),
    "jacrev_jacrev": (lambda f: jacrev(jacrev(f))(AT), lambda t: t.hessian(AT), SECOND),
    "jacfwd_jacrev": (lambda f: jacfwd(jacrev(f))(AT), lambda t: t.hessian(AT), SECOND),
    "jacrev_jacfwd": (lambda f: jacrev(jacfwd(f))(AT), lambda t: t.hessian(AT), SECOND),
    "jacfwd_jacfwd": (lambda f: jacfwd(jacfwd(f))(AT), lambda t: t.hessian(AT), SECOND),
    "vmap_hessian": (lambda f: vmap(hessian(f))(POINTS), all_points(second), SECOND),
    "functional_call": (through_functional_call, lambda t: t.jacobian(AT), FIRST),
}


def pairs():
    """Every pair of case and transform; those that always run have `(3 · case + transform) mod 7 == 0`, or are of the
    first case."""
    for row, case in enumerate(CASES):
        for column, transform in enumerate(TRANSFORMS):
            marks = [] if row == 0 or (3 * row + column) % 7 == 0 else [pytest.mark.slow]
            yield pytest.param(case, transform, id=f"{case.__name__}-{transform}", marks=marks)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("case", "transform"), pairs())
def test_a_transform_of_a_solve_equals_differences_of_its_values(case, transform):
    apply, expected, tolerance = TRANSFORMS[transform]
    found, truth = apply(case), expected(TRUTHS[case.__name__])
    assert found.shape == truth.shape
    assert float((found - truth).abs().max()) <= tolerance * max(1.0, float(truth.abs().max()))


# ---- beyond the order, and what is refused ----------------------------------------------------------


def third(f):
    return jacfwd(jacrev(jacrev(f)))


def of_order(order: int):
    return lambda d: (
        mslsq.least_squares(decay, START, (T, data(d)), solver=LM, adjoint=mslsq.Implicit(order=order)).value
    )


def test_third_derivatives_are_exact_with_order_three():
    found = third(of_order(3))(AT)
    assert torch.allclose(found, fourth_order_differences(hessian(args), AT, 1e-3), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("innermost", [hessian, lambda f: jacfwd(jacfwd(f)), lambda f: jacrev(jacrev(f))])
@pytest.mark.parametrize("outermost", [jacfwd, jacrev, lambda f: lambda d: vmap(jacfwd(f))(d[None])])
def test_nested_transforms_beyond_the_order_raise(innermost, outermost):
    with pytest.raises(mslsq.adjoint.DerivativeOrderError, match=r"Implicit\(order=3\)"):
        outermost(innermost(args))(AT)


def test_first_order_adjoints_refuse_second_derivatives():
    with pytest.raises(mslsq.adjoint.DerivativeOrderError, match=r"Implicit\(order=2\)"):
        hessian(of_order(1))(AT)
    d = AT.clone().requires_grad_()
    (first,) = torch.autograd.grad(of_order(1)(d).sum(), d, create_graph=True)
    with pytest.raises(mslsq.adjoint.DerivativeOrderError, match="Derivative number 2"):
        first.sum().backward()


def test_a_third_backward_pass_raises():
    d = AT.clone().requires_grad_()
    (first,) = torch.autograd.grad(args(d).sum(), d, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), d, create_graph=True)
    with pytest.raises(mslsq.adjoint.DerivativeOrderError, match="Derivative number 3"):
        second.sum().backward()


def mixed(d, net):
    """A solve that depends on two numbers and on the parameters of a network, one captured and one before it."""
    y = data(d) + 0.1 * net(T * d[0])
    return mslsq.least_squares(
        lambda p, t, y: p[0] * torch.exp(p[1] * t) + p[2] * net(t) - y, START, (T, y), solver=LM
    ).value


def test_parameters_that_require_grad_do_not_count_until_backward_comes():
    """A Hessian in the data is second order, whatever else could be differentiated later."""
    net = Net()
    with torch.no_grad():
        expected = hessian(lambda d: mixed(d, net))(AT)
    assert torch.equal(hessian(lambda d: mixed(d, net))(AT), expected)


def test_backward_through_a_transform_is_the_mixed_derivative():
    net, direction = Net(), 0.1 * noise(3, 1, seed=11)
    weight = net.first.weight

    def at(step):
        with torch.no_grad():
            weight.add_(step * direction)
            found = (jacrev(lambda d: mixed(d, net))(AT) * WEIGHTS[:, None]).sum()
            weight.sub_(step * direction)
        return float(found)

    for jac in (jacrev, jacfwd):
        total = (jac(lambda d: mixed(d, net))(AT) * WEIGHTS[:, None]).sum()
        (found,) = torch.autograd.grad(total, weight)
        assert float((found * direction).sum()) == pytest.approx((at(1e-4) - at(-1e-4)) / 2e-4, rel=1e-6)


def test_backward_beyond_the_order_through_a_transform_raises():
    net = Net()
    second = hessian(lambda d: mixed(d, net))(AT)
    with pytest.raises(mslsq.adjoint.DerivativeOrderError, match="Derivative number 3"):
        second.sum().backward()
    first = jacrev(lambda d: mixed(d, net))(AT)
    (once,) = torch.autograd.grad(first.sum(), net.first.weight, create_graph=True)
    with pytest.raises(mslsq.adjoint.DerivativeOrderError, match="Derivative number 3"):
        once.sum().backward()


def test_tangents_of_forward_ad_are_refused_not_lost():
    with torch.autograd.forward_ad.dual_level():
        y = torch.autograd.forward_ad.make_dual(Y, torch.ones_like(Y))
        with pytest.raises(mslsq.adjoint.DerivativeOrderError, match=r"torch\.func\.jvp"):
            mslsq.least_squares(decay, START, (T, y))


HIDDEN = torch.ones(12, dtype=F64)


def test_a_global_that_is_being_differentiated_raises(monkeypatch):
    monkeypatch.setitem(globals(), "HIDDEN", torch.ones(12, dtype=F64, requires_grad=True))
    with pytest.raises(ValueError, match="pass it in args"):
        mslsq.least_squares(lambda p: decay(p, T, Y * HIDDEN), START)


# ---- corners ----------------------------------------------------------------------------------------


def test_the_implicit_derivative_in_the_start_is_zero():
    found = jacrev(lambda x0: mslsq.least_squares(decay, x0, (T, Y), solver=LM).value)(START)
    assert torch.equal(found, torch.zeros(3, 3, dtype=F64))
    start = START.clone().requires_grad_()
    assert not mslsq.least_squares(decay, start, (T, Y), solver=LM).value.requires_grad


def test_integer_data_pass_through_transforms():
    order = torch.arange(12)

    def f(d, order):
        return mslsq.least_squares(lambda p, t, y, k: decay(p, t[k], y[k]), START, (T, data(d), order), solver=LM).value

    assert torch.allclose(jacrev(f)(AT, order.flip(0)), TRUTHS["args"].jacobian(AT), rtol=FIRST, atol=FIRST)
    both = vmap(jacfwd(f), in_dims=(None, 0))(AT, torch.stack((order, order.flip(0))))
    assert torch.allclose(both, TRUTHS["args"].jacobian(AT).expand(2, 3, 2), rtol=FIRST, atol=FIRST)


def test_a_batch_inside_a_vmap_is_a_batch_of_batches():
    def f(y):
        return mslsq.least_squares(decay, START, (T, y), in_dims=(None, None, 1), solver=LM).value

    y = torch.stack([torch.stack((data(d), data(d.flip(0)), Y), 1) for d in POINTS])
    found = vmap(jacrev(f))(y)
    for k, one in enumerate(y):
        assert torch.allclose(found[k], jacrev(f)(one), rtol=1e-9, atol=1e-12)
    for number in range(3):  # the entries of a batch are independent
        others = [m for m in range(3) if m != number]
        assert not found[:, number, :, :, others].any()


def test_derivatives_next_to_the_kink_of_huber_are_one_sided():
    """A residual just inside counts quadratically, just outside linearly; the derivative is that of its side."""

    def mean(y):
        return mslsq.least_squares(
            lambda x, y: x - y, torch.zeros(1, dtype=F64), (y,), loss=mslsq.Huber(1.0), solver=LM
        ).value[0]

    # The minimum is at 0, where the residuals 0.5, 0.5 and −1 balance; the last is at the kink, up to 1e-6.
    for side, weight in ((-1e-6, 1 / 3), (1e-6, 0.0)):
        y = torch.tensor([-0.5, -0.5, 1.0 + side], dtype=F64)
        assert float(jacrev(mean)(y)[2]) == pytest.approx(weight, abs=1e-9)


def test_a_rank_of_derivatives_in_the_cost_is_exact():
    """d cost / dy = −r at the minimum, by the envelope theorem; its derivative is the projection onto the residuals."""
    y = data(AT).clone()

    def cost(y):
        return mslsq.least_squares(decay, START, (T, y), solver=LM).cost

    p = mslsq.least_squares(decay, START, (T, y), solver=LM).value
    assert torch.allclose(grad(cost)(y), -decay(p, T, y), rtol=1e-9, atol=1e-12)
    assert torch.allclose(
        hessian(cost)(y) @ noise(12),
        fourth_order_differences(lambda s: grad(cost)(y + s * noise(12)), torch.zeros(1, dtype=F64), 1e-3)[:, 0],
        rtol=1e-7,
        atol=1e-7,
    )
