"""A wrapped operator under every transform gives what PyTorch gives for the same function that it can look into."""

import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from mslsq.interop.operators import wrap

X = torch.tensor([[0.3, -1.2], [1.1, 0.4], [-0.8, 2.0], [0.5, 0.9]], dtype=torch.float64)
OWN = torch.tensor([0.7, 1.3, -0.4, 2.1], dtype=torch.float64)
SAME = torch.tensor(1.3, dtype=torch.float64)


def values(x: Tensor, s: Tensor) -> Tensor:
    assert x.is_contiguous() or x.is_floating_point()
    return torch.stack([x[..., 0] ** 2 * s, x[..., 1] * x[..., 0].sin()], -1)


def opaque(x: Tensor, s: Tensor) -> Tensor:
    """As a C++ operator has it: it reads memory by its own arithmetic."""
    assert x.is_contiguous() and s.is_contiguous()
    assert not x.requires_grad
    return values(x, s)


def backward(inputs, cotangents):
    (x, s), (g,) = inputs, cotangents
    assert g.is_contiguous()
    along = 2 * x[..., 0] * s * g[..., 0] + x[..., 1] * x[..., 0].cos() * g[..., 1]
    return torch.stack([along, x[..., 0].sin() * g[..., 1]], -1), x[..., 0] ** 2 * g[..., 0]


def second(inputs, cotangents, tangents):
    (x, s), (g,), (dx, ds) = inputs, cotangents, tangents
    first = 2 * g[..., 0] * (dx[..., 0] * s + x[..., 0] * ds)
    first = first + g[..., 1] * (dx[..., 1] * x[..., 0].cos() - x[..., 1] * x[..., 0].sin() * dx[..., 0])
    return torch.stack([first, x[..., 0].cos() * dx[..., 0] * g[..., 1]], -1), 2 * x[..., 0] * dx[..., 0] * g[..., 0]


def tangent(inputs, tangents):
    return jvp(values, inputs, tangents)[1]


RULES = {
    "functions": {"backward": backward, "second": second, "jvp": tangent},
    "rows": {"backward": backward, "second": second, "jvp": "rows"},
    "rows by default": {"backward": backward, "second": second},
    "autograd": {"backward": "autograd", "second": "autograd"},
    "differences": {"backward": backward, "second": "differences", "jvp": "differences"},
}


def doubly(f, dims, s):
    x = X.clone().requires_grad_()
    (once,) = torch.autograd.grad((vmap(f, dims)(x, s) ** 2).sum(), x, create_graph=True)
    return torch.autograd.grad((once**3).sum(), x)[0]


TRANSFORMS = {
    "vmap": lambda f, d, s: vmap(f, d)(X, s),
    "vmap of vmap": lambda f, d, s: vmap(vmap(f, d), (0, None))(torch.stack([X, 2 * X]), s),
    "vmap of jacrev": lambda f, d, s: vmap(jacrev(f), d)(X, s),
    "lanes last": lambda f, d, s: vmap(jacrev(f), (-1, d[1]))(X.T, s),
    "vmap of jacrev in s": lambda f, d, s: vmap(jacrev(f, 1), d)(X, s),
    "vmap of jacfwd": lambda f, d, s: vmap(jacfwd(f), d)(X, s),
    "jacrev of vmap": lambda f, d, s: jacrev(lambda x: vmap(f, d)(x, s))(X),
    "jacrev of vmap in s": lambda f, d, s: jacrev(lambda s: vmap(f, d)(X, s))(s),
    "jacfwd of vmap in s": lambda f, d, s: jacfwd(lambda s: vmap(f, d)(X, s))(s),
    "hessian of one lane": lambda f, d, s: hessian(f)(X[0], SAME),
    "hessian of a sum in one lane": lambda f, d, s: hessian(lambda x: (f(x, SAME) ** 2).sum())(X[0]),
    "jacfwd of one lane": lambda f, d, s: jacfwd(f)(X[0], SAME),
    "hessian": lambda f, d, s: vmap(hessian(f), d)(X, s),
    "mixed": lambda f, d, s: vmap(jacfwd(jacrev(f), 1), d)(X, s),
    "reverse of reverse": lambda f, d, s: vmap(jacrev(jacrev(f), 1), d)(X, s),
    "reverse of forward": lambda f, d, s: vmap(jacrev(jacfwd(f, 1)), d)(X, s),
    "hessian of a sum": lambda f, d, s: hessian(lambda x: (vmap(f, d)(x, s) ** 2).sum())(X),
    "hessian of a sum in s": lambda f, d, s: hessian(lambda s: (vmap(f, d)(X, s) ** 2).sum())(s),
    "a graph of jacrev": lambda f, d, s: make_fx(lambda x: vmap(jacrev(f), d)(x, s))(X)(X + 1),
    "a graph of hessian": lambda f, d, s: make_fx(lambda x: vmap(hessian(f), d)(x, s))(X)(X + 1),
    "autograd twice": doubly,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lanes", ["batch", "loop"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("s", [OWN, SAME], ids=["own", "same for all lanes"])
def test_every_transform_is_that_of_pytorch(rules, lanes, s):
    operator = wrap(opaque if rules != "autograd" else values, lanes=lanes, **RULES[rules])
    dims = (0, 0 if s is OWN else None)
    for name, transform in TRANSFORMS.items():
        torch.testing.assert_close(
            transform(operator, dims, s),
            transform(values, dims, s),
            rtol=1e-8,
            atol=1e-8,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.mark.parametrize(
    ("transform", "missing"),
    [
        (lambda f: jacrev(f)(X[0], SAME), "backward="),
        (lambda f: jacfwd(f)(X[0], SAME), "jvp="),
        (lambda f: torch.autograd.grad(f(X[0].clone().requires_grad_(), SAME).sum(), SAME), "backward="),
    ],
)
def test_a_missing_rule_is_named_and_never_a_zero(transform, missing):
    with pytest.raises((NotImplementedError, RuntimeError), match=missing if "jvp" in missing else None):
        transform(wrap(opaque))


def test_a_missing_second_derivative_is_named():
    operator = wrap(opaque, backward=backward)
    with pytest.raises(NotImplementedError, match="second="):
        jacrev(jacrev(operator))(X[0], SAME)


def test_forward_mode_twice_is_refused_and_so_is_a_third_derivative():
    """PyTorch's Functions are silently wrong under jacfwd of jacfwd."""
    cube = wrap(
        lambda x: x**3,
        backward=lambda inputs, cotangents: (3 * inputs[0] ** 2 * cotangents[0],),
        second=lambda inputs, cotangents, tangents: (6 * inputs[0] * cotangents[0] * tangents[0],),
    )
    assert float(jacfwd(jacrev(cube))(SAME)) == pytest.approx(6 * 1.3)
    with pytest.raises(NotImplementedError, match="forward mode twice"):
        jacfwd(jacfwd(cube))(SAME)
    with pytest.raises(NotImplementedError, match="third"):
        jacrev(jacfwd(jacrev(cube)))(SAME)


def test_a_shared_input_has_one_gradient_for_all_lanes_and_can_be_mapped():
    def sampled(x, table):
        return table[x[..., 0].long()] * x[..., 1]

    def pulled(inputs, cotangents):
        (x, table), (g,) = inputs, cotangents
        row = x[..., 0].long()
        to_x = torch.stack([torch.zeros_like(g), table[row] * g], -1)
        return to_x, torch.zeros_like(table).index_put((row,), g * x[..., 1], accumulate=True)

    table = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    x = torch.tensor([[0.4, 2.0], [1.3, 3.0], [0.4, 5.0]], dtype=torch.float64)
    operator = wrap(sampled, backward=pulled, lanes="batch", shared=("table",))
    for transform in (
        lambda f: vmap(f, (0, None))(x, table),
        lambda f: jacrev(lambda t: vmap(f, (0, None))(x, t))(table),
        lambda f: jacrev(lambda t: vmap(f, (0, None))(x, t).square().sum())(table),
        lambda f: vmap(jacrev(f, 1), (0, None))(x, table),
        lambda f: vmap(jacrev(f), (0, None))(x, table),
        lambda f: vmap(f, (0, 0))(x, torch.stack([table, 2 * table, 3 * table])),
        lambda f: vmap(jacrev(f, 1), (0, 0))(x, torch.stack([table, 2 * table, 3 * table])),
    ):
        expected = transform(lambda x, t: (t[:, None] * (x[0].floor() == torch.arange(3))[:, None]).sum() * x[1])
        torch.testing.assert_close(transform(operator), expected)


def test_all_lanes_of_all_maps_are_one_call():
    calls = []

    def counted(x, s):
        calls.append(len(x))
        return values(x, s)

    operator = wrap(counted, backward=backward, lanes="batch", check=False)
    vmap(vmap(operator, (0, 0)), (0, None))(torch.stack([X, 2 * X]), OWN)
    assert calls == [8]
