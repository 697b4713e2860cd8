"""Weights whiten a residual and its Jacobian alike, shared or per block by rank, and say what does not fit."""

import pytest
import torch
from torch import nn

import mslsq
from mslsq.problem import ProblemError

F64 = torch.float64


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=F64)


@pytest.mark.parametrize(
    ("kind", "value", "matrix"),
    [
        (mslsq.Scale, random().abs(), lambda v: v * torch.eye(3, dtype=F64)),
        (mslsq.Diagonal, random(3), torch.diag),
        (mslsq.SqrtInformation, random(3, 3), lambda v: v),
    ],
)
def test_a_weight_is_a_matrix_on_residual_and_jacobian(kind, value, matrix):
    r, J = random(3), random(3, 4)
    assert torch.allclose(kind.whiten(r, value), matrix(value) @ r)
    assert torch.allclose(kind.whiten_jacobian(J, value), matrix(value) @ J)


def test_an_information_matrix_becomes_its_root():
    root = random(4, 3, 3)
    information = root.mT @ root + torch.eye(3, dtype=F64)
    weight = mslsq.SqrtInformation.from_information(information)
    assert torch.allclose(weight.value.mT @ weight.value, information)
    information[2] = -information[2]
    with pytest.raises(ProblemError, match="block 2 is not positive definite"):
        mslsq.SqrtInformation.from_information(information)


@pytest.mark.parametrize("per_block", [False, True])
@pytest.mark.parametrize(
    ("kind", "shape"), [(mslsq.Scale, ()), (mslsq.Diagonal, (2,)), (mslsq.SqrtInformation, (2, 2))]
)
def test_the_weighted_mean_is_the_normal_equations(kind, shape, per_block):
    y = random(6, 2)
    value = random(*((6, *shape) if per_block else shape))
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    pull = mslsq.cost(lambda x, y: x - y)
    problem = mslsq.Problem(pull(x, y=y, weight=kind(value), name="pull"))
    solution = mslsq.solve(problem, {"x": torch.zeros(2, dtype=F64)})
    each = value.expand(6, *shape)
    W = {0: lambda: each[:, None, None] * torch.eye(2, dtype=F64), 1: lambda: torch.diag_embed(each), 2: lambda: each}
    W = W[len(shape)]()
    A = (W.mT @ W).sum(0)
    b = (W.mT @ W @ y[..., None]).sum(0)
    assert torch.allclose(solution.value["x"], torch.linalg.solve(A, b)[:, 0])


@pytest.mark.parametrize("loss", [None, mslsq.Huber(0.3)])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_number_is_taken_in_the_precision_of_the_start(dtype, loss):
    x = mslsq.Variable("x", mslsq.Euclidean(1))
    pull = mslsq.cost(lambda x, y: x - y)
    start, y = {"x": torch.zeros(1, dtype=dtype)}, torch.full((1,), 2.0, dtype=dtype)
    at_start = mslsq.LevenbergMarquardt(max_steps=0)
    found = [
        mslsq.solve(
            mslsq.Problem(pull(x, y=mslsq.Shared(y), weight=weight, loss=loss, name="pull")), start, solver=at_start
        ).cost
        for weight in (
            0.1,
            mslsq.Scale(0.1),
            mslsq.Scale(torch.tensor(0.1, dtype=F64)),
            mslsq.Diagonal(torch.full((1,), 0.1, dtype=dtype)),
        )
    ]
    assert {cost.dtype for cost in found} == {dtype}
    assert len({float(cost) for cost in found}) == 1
    assert float(found[0]) == pytest.approx(0.02, rel=4 * torch.finfo(dtype).eps)


def test_numbers_and_parameters():
    assert isinstance(mslsq.Scale(2.0).value, torch.Tensor)
    learnable = mslsq.Diagonal(nn.Parameter(random(3)))
    assert [name for name, _ in learnable.named_parameters()] == ["value"]
    assert [name for name, _ in mslsq.Diagonal(random(3)).named_buffers()] == ["value"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mslsq.Scale(random(2, 2)), ["Scale", "0 axes", "(2, 2)"]),
        (lambda: mslsq.Diagonal(random()), ["Diagonal", "1 axes", "()"]),
        (lambda: mslsq.SqrtInformation(random(3)), ["SqrtInformation", "2 axes", "(3,)"]),
        (lambda: mslsq.Diagonal(torch.ones(3, dtype=torch.int64)), ["Diagonal", "int64"]),
        (lambda: mslsq.Diagonal(torch.ones(3, dtype=torch.complex64)), ["Diagonal", "complex"]),
    ],
)
def test_a_weight_of_a_wrong_kind_is_an_error(make, words):
    with pytest.raises(ProblemError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("rows", "columns"), [(6, 12), (6, 11), (3, 100), (19, 4), (24, 7)])
def test_a_wide_jacobian_is_whitened_in_pieces_as_in_one(rows, columns):
    factor = torch.randn(rows, rows, dtype=torch.float64)
    jacobian = torch.randn(rows, columns, dtype=torch.float64)
    whitened = mslsq.SqrtInformation.whiten_jacobian(jacobian, factor)
    torch.testing.assert_close(whitened, factor @ jacobian, rtol=1e-13, atol=1e-13)
