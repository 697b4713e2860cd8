"""A linearizer that adds what another one knows of the same problem sees the whole problem."""

import dataclasses

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.linear import Cholesky, ConjugateGradient, SparseCholesky
from mslsq.ranks import Ranks
from mslsq.solvers import run

F64 = torch.float64


def problem_of(own: Tensor) -> tuple[mslsq.Problem, dict[str, Tensor]]:
    """A ring of poses; of the edges only some count."""
    generator = torch.Generator().manual_seed(0)
    pose = mslsq.Variable("pose", mslsq.SE2, count=8)
    i = torch.arange(8)
    measured = mslsq.SE2.exp(0.4 * torch.randn(8, 3, generator=generator, dtype=F64))
    start = mslsq.SE2.exp(0.4 * torch.randn(8, 3, generator=generator, dtype=F64)).storage
    between = mslsq.Between(pose[i], pose[(i + 1) % 8], measured=measured, weight=mslsq.Scale(own))
    return mslsq.Problem(between), {"pose": start}


def linearizer_of(own: Tensor, linear, monkeypatch):
    found = []
    real = run.planned

    def planned(*args):
        found.append((*real(*args)[1:], args[1]))
        return real(*args)

    problem, start = problem_of(own)
    with monkeypatch.context() as patched:
        patched.setattr(run, "planned", planned)
        mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(linear_solver=linear, max_steps=0))
    return found[0]


@pytest.mark.parametrize("linear", [Cholesky(), SparseCholesky(), ConjugateGradient()], ids=lambda x: x.summary())
def test_two_halves_that_are_added_up_are_the_whole(linear, monkeypatch):
    first = (torch.arange(8) < 5).to(F64)

    def asked(linearizer, prepared, values):
        move = torch.linspace(-1, 1, linearizer.structure.num_columns, dtype=F64)[None]
        return [
            *linearizer.linearize(values, prepared),
            linearizer.cost(values, prepared),
            linearizer.gradient(values, prepared),
            linearizer.hessian(values, prepared),
            linearizer.slope(values, prepared, move),
        ]

    whole = asked(*linearizer_of(torch.ones(8, dtype=F64), linear, monkeypatch))
    sent: list[Tensor] = []

    class Sends(Ranks):
        is_alone = False

        def summed(self, *tensors: Tensor) -> tuple[Tensor, ...]:
            sent.extend(tensors)
            return tensors

    class Receives(Ranks):
        is_alone = False

        def summed(self, *tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(total + sent.pop(0) for total in tensors)

    one, *rest = linearizer_of(first, linear, monkeypatch)
    asked(dataclasses.replace(one, ranks=Sends()), *rest)
    assert len(sent) == 7  # cost, gradient and matrix of a linearization; the four others
    other, *rest = linearizer_of(1 - first, linear, monkeypatch)
    added = asked(dataclasses.replace(other, ranks=Receives()), *rest)
    assert not sent
    for found, expected in zip(added, whole, strict=True):
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-13)
