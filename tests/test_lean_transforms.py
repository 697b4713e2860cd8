"""The library's own `vmap` and `jacfwd` of plain tensors are those of PyTorch, in all nestings, at less cost."""

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, vmap

from mslsq import private
from mslsq.private import is_differentiated_once_at_most, value_and_jacfwd, vmapped
from mslsq.tracing.graph import graph_of
from mslsq.tracing.replacements.sampling import BILINEAR, NEAREST, grid_sample

X = torch.linspace(0.1, 1.2, 6, dtype=torch.float64).reshape(2, 3)


def curved(x):
    return torch.stack([(x * x.sin()).sum(), x.prod(), x[0] ** 3])


def test_values_and_jacobians_are_those_of_pytorch():
    value, jacobian = value_and_jacfwd(curved, X[0])
    torch.testing.assert_close(value, curved(X[0]), rtol=0, atol=0)
    torch.testing.assert_close(jacobian, jacfwd(curved)(X[0]), rtol=0, atol=0)
    value, jacobian = vmapped(lambda x: value_and_jacfwd(curved, x), (X.T,), (-1,))
    torch.testing.assert_close(value, vmap(curved)(X), rtol=0, atol=0)
    torch.testing.assert_close(jacobian, vmap(jacfwd(curved))(X), rtol=0, atol=0)


@pytest.mark.parametrize("around", [jacfwd, jacrev, hessian])
def test_others_differentiate_them_again(around):
    def own(x):
        return value_and_jacfwd(curved, x)[1]

    torch.testing.assert_close(around(own)(X[1]), around(jacfwd(curved))(X[1]))
    torch.testing.assert_close(vmap(around(own))(X), vmap(around(jacfwd(curved)))(X))


def test_a_function_of_nothing_has_a_derivative_of_zero():
    value, jacobian = value_and_jacfwd(lambda x: torch.ones(2, dtype=x.dtype), X[0])
    assert value.tolist() == [1, 1]
    assert jacobian.tolist() == [[0, 0, 0]] * 2


def test_what_is_not_mapped_is_shared_and_what_is_constant_repeated():
    both = vmapped(lambda x, shared: (x + shared, shared), (X, torch.ones(3, dtype=torch.float64)), (0, None))
    assert [tuple(part.shape) for part in both] == [(2, 3), (2, 3)]
    with pytest.raises(ValueError, match="at least one"):
        vmapped(lambda x: x, (X,), (None,))


def test_levels_are_closed_where_the_function_raises():
    for failing in (lambda f: value_and_jacfwd(f, X[0]), lambda f: vmapped(f, (X,), (0,))):
        with pytest.raises(ZeroDivisionError):
            failing(lambda x: 1 / 0)
        assert not private.transforms_are_active()
        assert not private.forward_level_is_open()


def test_where_no_second_derivative_can_come():
    seen = []

    def looking(x):
        seen.append(is_differentiated_once_at_most())
        return (x * x).sum()

    with torch.no_grad():
        vmap(torch.func.grad(looking))(X)
        looking(X)
        hessian(looking)(X[0])
        torch.func.jvp(looking, (X[0],), (X[0],))
    assert seen == [True, True, False, False]
    looking(X)  # gradients are on: `create_graph` may come
    torch.func.grad(looking)(X[0])
    with torch.no_grad():
        graph_of(lambda x: [looking(x)], [X[0]])
    assert seen[4:] == [False, False, False]


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("align", [False, True])
def test_pytorch_s_sampling_and_the_formula_agree(padding, align):
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, 5, 7, generator=generator, dtype=torch.float64)
    grid = 2.4 * torch.rand(2, 4, 6, 2, generator=generator, dtype=torch.float64) - 1.2

    def sampled(grid):
        return grid_sample(image, grid, BILINEAR, padding, align).sin().sum()

    with torch.no_grad():
        kernel = torch.func.grad_and_value(sampled)(grid)
        forward = jacfwd(sampled)(grid), sampled(grid)
        curvature = hessian(sampled)(grid[:, :2, :2].contiguous())
    formula = torch.func.grad_and_value(sampled)(grid)
    for own, other in zip((*kernel, *kernel), (*formula, *forward), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-10)
    assert curvature.isfinite().all()
    assert bool(curvature.any())


def test_the_nearest_place_is_the_formula_s_everywhere():
    """At the border between two places rounding decides, which one way to compute it would do otherwise."""
    image = torch.arange(8.0).reshape(1, 1, 1, 8)
    grid = torch.stack([torch.linspace(-1, 1, 15), torch.zeros(15)], -1).reshape(1, 1, 15, 2)
    with torch.no_grad():
        off = grid_sample(image, grid, NEAREST, 1, True)
    torch.testing.assert_close(off, grid_sample(image, grid, NEAREST, 1, True), rtol=0, atol=0)
