"""Sparse and nested tensors are refused by name at every front door, with the remedy."""

import pytest
import torch
from torch import nn

import mslsq

D = torch.float64
X = torch.zeros(3, dtype=D)


def sparse():
    return torch.eye(3, dtype=D).to_sparse()


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("operator", sparse())

    def forward(self, x):
        return self.operator @ x - 1


def closure():
    held = sparse()
    return mslsq.least_squares(lambda x: held @ x - 1, X)


def of_problem(values, replaced=None, operator=None):
    v = mslsq.Variable("v", mslsq.Euclidean(3))

    @mslsq.cost
    def product(v, operator):
        return operator @ v - 1

    dense = torch.eye(3, dtype=D) if operator is None else operator
    problem = mslsq.Problem(product(v, operator=mslsq.Shared(dense), name="product"))
    return mslsq.solve(problem, {"v": values}, {"product": {"operator": replaced}} if replaced is not None else None)


def product(x, operator):
    return operator @ x - 1


@pytest.mark.parametrize(
    ("solve", "named"),
    [
        (lambda: mslsq.least_squares(product, X, (sparse(),)), r"args\[0\] is"),
        (lambda: mslsq.least_squares(product, X, (sparse().to_sparse_csr(),)), r"args\[0\] is.*sparse_csr"),
        (lambda: mslsq.least_squares(product, X, (torch.stack([sparse()] * 2),), in_dims=(None, 0)), r"args\[0\] is"),
        (lambda: mslsq.least_squares(lambda x, d: d["a"] @ x, X, ({"b": X, "a": sparse()},)), r"args\[0\], leaf 1"),
        (lambda: mslsq.least_squares(lambda x: x, sparse()[0]), r"x0 is.*x0\.to_dense"),
        (closure, "the residual's closure cell 'held'"),
        (lambda: mslsq.least_squares(Product(), X), "the residual's operator"),
        (lambda: mslsq.least_squares(lambda x, module: module(x), X, (Product(),)), r"args: .*operator"),
        (lambda: of_problem(X, operator=sparse()), r"Cost 'product': operator is.*operator\.to_dense"),
        (lambda: of_problem(X, replaced=sparse()), r"data\['product'\]: operator is"),
        (lambda: of_problem(sparse()[0]), "Variable 'v': the start is"),
    ],
)
def test_a_sparse_tensor_is_named_with_the_remedy(solve, named):
    with pytest.raises(ValueError, match=named) as caught:
        solve()
    assert "to_dense()" in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_a_nested_tensor_is_named_with_the_remedy():
    nested = torch.nested.nested_tensor([X, X[:2]])
    with pytest.raises(ValueError, match=r"args\[0\] is a nested tensor.*to_padded_tensor"):
        mslsq.least_squares(lambda x, t: x, X, (nested,))
