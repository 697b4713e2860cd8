"""What an adjoint is asked after a solve: `prepare` at its end, `attach` where derivatives are taken."""

from dataclasses import dataclass

import pytest
import torch

import mslsq
from mslsq.adjoint.outputs import Attached, Prepared

F64 = torch.float64
START = torch.tensor([0.5], dtype=F64)


def root(x, y):
    return x * x - y


@dataclass(frozen=True)
class Noted(mslsq.Adjoint):
    """An adjoint of a user's: dx/dy of x² = y, known in closed form, for positive solutions alone."""

    def prepare(self, ended):
        found = super().prepare(ended)
        positive = ended.outcome.values[0][:, 0, 0] > 0
        return Prepared(found.differentiable & positive, found.residual, ended.outcome.values[0][:, 0])

    def attach(self, attachment):
        (x,), (inputs,), root = attachment.answer.values, attachment.inputs, attachment.answer.factor
        y = inputs["args[0]"].reshape(-1, 1)
        slope = torch.where(attachment.answer.differentiable[:, None], 0.5 / root, 0)
        return Attached((x + (slope * (y - y.detach()))[:, None],), attachment.answer.cost)


def test_an_adjoint_of_a_users_own_prepares_and_attaches():
    y = torch.tensor([4.0, 9.0], dtype=F64, requires_grad=True)
    start = torch.tensor([[1.0], [-1.0]], dtype=F64)
    solution = mslsq.least_squares(root, start, (y,), in_dims=0, adjoint=Noted())
    torch.testing.assert_close(solution.value[:, 0], torch.tensor([2.0, -3.0], dtype=F64))
    assert solution.differentiable.tolist() == [True, False]
    (found,) = torch.autograd.grad(solution.value.sum(), y)
    torch.testing.assert_close(found, torch.tensor([0.25, 0.0], dtype=F64))


def test_what_is_prepared_is_mapped_like_the_solve():
    """Under `vmap` an adjoint sees one larger batch, and its tensors come back with the mapped axis."""
    y = torch.tensor([4.0, 9.0, 16.0], dtype=F64)
    found = torch.func.vmap(
        torch.func.grad(lambda y: mslsq.least_squares(root, START, (y,), adjoint=Noted()).value.sum())
    )(y)
    torch.testing.assert_close(found, 0.5 / y.sqrt())


@pytest.mark.parametrize(
    "adjoint", [mslsq.Implicit(), mslsq.Unrolled(), mslsq.Truncated(), mslsq.Detached(), mslsq.DirectLossMinimization()]
)
def test_nothing_is_prepared_without_derivatives(adjoint, monkeypatch):
    def refuse(self, ended):
        raise AssertionError("prepared without need")

    monkeypatch.setattr(type(adjoint), "prepare", refuse)
    y = torch.tensor([4.0], dtype=F64)
    assert mslsq.least_squares(root, START, (y,), adjoint=adjoint).differentiable
    with pytest.raises(AssertionError, match="prepared without need"):
        mslsq.least_squares(root, START, (y.requires_grad_(),), adjoint=adjoint)
