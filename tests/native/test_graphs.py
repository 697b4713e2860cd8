"""Operations that move numbers, multiply matrices and look entries up: values and Jacobians of PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mslsq.native.scalars import NotScalarError
from tests.native.functions import NEEDS_COMPILER, by_pytorch, native, scalars_of

F64 = torch.float64
pytestmark = NEEDS_COMPILER


def in_place(x: Tensor) -> Tensor:
    made = torch.zeros(2, 3, dtype=x.dtype)
    made[0] = x[:3]
    made[1, 1:] += x[4:]
    made[:, 0] *= 2
    return made.sin()


aten = torch.ops.aten

GRAPHS: dict[str, Callable[[Tensor], Tensor]] = {
    "matrix times matrix": lambda x: x.reshape(2, 3) @ x.reshape(3, 2),
    "batches of matrices": lambda x: x.reshape(2, 1, 3) @ x.reshape(2, 3, 1),
    "matrix times vector": lambda x: x.reshape(2, 3) @ x[:3],
    "vector times matrix": lambda x: x[:2] @ x.reshape(2, 3),
    "linear": lambda x: torch.nn.functional.linear(x[:3], x.reshape(2, 3), x[4:]),
    "einsum": lambda x: torch.einsum("ij,kj,k->i", x.reshape(2, 3), x.reshape(2, 3), x[:2]),
    "outer": lambda x: torch.outer(x[:2], x[3:]),
    "cross": lambda x: torch.linalg.cross(x[:3], x[3:]),
    "cross of matrices": lambda x: torch.linalg.cross(x.reshape(3, 2), x.flip(0).reshape(3, 2), dim=0),
    "addmm": lambda x: torch.addmm(x[:2], x.reshape(2, 3), x.reshape(3, 2), beta=0.5, alpha=2),
    "permute": lambda x: x.reshape(1, 2, 3).permute(2, 0, 1) * torch.arange(6.0, dtype=x.dtype).reshape(3, 1, 2),
    "transposed": lambda x: x.reshape(2, 3).mT @ x[:2],
    "split": lambda x: torch.cat([part * k for k, part in enumerate(x.split([1, 3, 2]))]),
    "chunks": lambda x: torch.stack(x.chunk(3), 1).flatten() * x,
    "unbind": lambda x: torch.stack([a * b for a, b in zip(*x.reshape(2, 3).unbind(0), strict=True)]),
    "diagonal": lambda x: x[:4].reshape(2, 2).diagonal() + torch.trace(x[:4].reshape(2, 2)),
    "diag_embed": lambda x: torch.diag_embed(x[:2]) @ x[:2],
    "triangles": lambda x: torch.outer(x, x).triu(1).sum(0) + torch.outer(x, x).tril(-1).sum(1),
    "flip and roll": lambda x: x.flip(0) * x.roll(2),
    "repeat": lambda x: x[:2].repeat(2, 3).sum(0) * x,
    "expand": lambda x: (x[:1].expand(4, 6) * x).sum(0),
    "steps": lambda x: x[::2] * x[1::2],
    "from the end": lambda x: x[-1] * x[:-1],
    "a constant index": lambda x: x[[0, 0, 5, -1]] * x[torch.tensor([[3], [1]])],
    "a constant mask": lambda x: x[torch.tensor([True, False, True, True, False, False])],
    "select backward": lambda x: aten.select_backward(x[:3] ** 2, [3, 2], -1, -2) + x[:1],
    "slice backward": lambda x: aten.slice_backward(x[:4].reshape(2, 2) ** 2, [2, 5], -1, -4, -1, 2),
    "slice backward, to the end": lambda x: aten.slice_backward(x[:2], [4], 0, 2, 2**63 - 1, 1),
    "diagonal backward": lambda x: aten.diagonal_backward(x.reshape(2, 3) ** 2, [3, 2, 4], 1, 0, -1),
    "diagonal backward, below": lambda x: aten.diagonal_backward(x[:2], [3, 4], -1, 0, 1) * x[0],
    "gradient of parts": lambda x: torch.func.grad(lambda y: (y[1:5:2] * y.reshape(2, 3)[:, -1]).square().sum())(x),
    "gradient of a diagonal": lambda x: torch.func.grad(lambda y: torch.outer(y, y**2).diagonal(-2).square().sum())(x),
    "index_select": lambda x: x.reshape(2, 3).index_select(1, torch.tensor([2, 0])),
    "gather": lambda x: x.reshape(2, 3).gather(1, torch.tensor([[2, 0], [1, 1]])),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([4, 0, 1]), x[:3] * 2) * x,
    "index_copy of columns": lambda x: x.reshape(2, 3).index_copy(1, torch.tensor([2, 0]), x[:4].reshape(2, 2)).sin(),
    "index_copy of one": lambda x: x[0].index_copy(0, torch.tensor([0]), x[1:2].sum()) * x,
    "in place": in_place,
    "means": lambda x: x.reshape(2, 3).mean(1, keepdim=True) - x.reshape(2, 3),
    "variance": lambda x: x.var(0, correction=0) + x.std(),
    "sums": lambda x: x.reshape(2, 3).sum((0, 1)) * x.reshape(2, 3).sum(0),
    "sum to double": lambda x: x.sum(dtype=x.dtype) * x,
    "cumsum": lambda x: x.reshape(2, 3).cumsum(1),
    "norms": lambda x: x.reshape(2, 3).norm(dim=1) + torch.linalg.vector_norm(x, ord=1),
    "normalized": lambda x: torch.nn.functional.normalize(x, dim=0),
    "maxima": lambda x: x.reshape(2, 3).amax(1) - x.reshape(2, 3).min(1).values,
    "padded": lambda x: torch.nn.functional.pad(x, (2, 1), value=3.0).diff(),
    "stacked": lambda x: torch.stack([x, x * 2], -1).reshape(3, 4).prod(1),
    "new zeros": lambda x: torch.cat([x.new_zeros(2), x.new_ones(1) * x[0], torch.full_like(x, 2.0) * x]),
    "like": lambda x: torch.zeros_like(x) + torch.eye(6, dtype=x.dtype) @ x,
    "constants": lambda x: torch.linspace(0, 1, 6, dtype=x.dtype) * x + torch.tensor(0.5),
    "float masks": lambda x: torch.where(x > 0.5, 1.0, 0.25) * x + (x > 0).float() * x,
    "an entry at a computed place": lambda x: x[3:] * torch.tensor([1.0, 2.0, 4.0], dtype=x.dtype)[[2, 0, 1]],
    "constant": lambda x: torch.ones(2, dtype=x.dtype),
    "itself twice": lambda x: torch.stack([x[0], x[0], x[1]]),
}


def test_graphs_are_those_of_pytorch():
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=F64)
    for (name, function), found in zip(GRAPHS.items(), native(list(GRAPHS.values()), [x] * len(GRAPHS)), strict=True):
        expected, _ = by_pytorch(function, x)
        torch.testing.assert_close(found.residual, expected.residual, rtol=1e-13, atol=1e-13, msg=name)
        torch.testing.assert_close(found.jacobian, expected.jacobian, rtol=1e-13, atol=1e-13, msg=name)


def test_arithmetic_has_the_bits_of_pytorch():
    """No product is fused with a sum: what cancels exactly in PyTorch does so in a program."""
    x = torch.rand(2, 64, generator=torch.Generator().manual_seed(0), dtype=F64)
    x[1] = x[0]

    def function(p: Tensor) -> Tensor:
        return torch.stack([(p[0] * p[0] - p[1] * p[1]).sqrt(), p[0] * 3 + p[1] / 7 - p[0] * p[1]])

    (found,) = native([function], [x])
    assert torch.equal(found.residual, by_pytorch(function, x)[0].residual)


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (lambda x: torch.linalg.matrix_exp(x[:4].reshape(2, 2)), "linalg_matrix_exp"),
        (lambda x: torch.div(x, 2, rounding_mode="floor").round(decimals=2) * x, "decimals"),
        (lambda x: torch.linalg.eigvalsh(torch.outer(x, x)), "eigenvalues of 6 rows"),
        (lambda x: (x > 0)[(x[0] * 2).long()] * x, "into booleans"),
        (lambda x: (x * x).repeat(800)[(x[0] * 2).long()] * x, "into 4,800 numbers"),
        (lambda x: x.float() * 2, "rounds"),
        (lambda x: torch.asin(torch.complex(x, x)).abs(), "asin of complex numbers"),
        (lambda x: x @ torch.ones(6, 9000, dtype=F64), "constant"),
        (lambda x: (x.long() // (x.long() + 2)) * x, "division of integers"),
    ],
)
def test_what_has_no_form_in_scalars_is_named(function, word):
    with pytest.raises(NotScalarError, match=word):
        scalars_of(function, 6, F64)
