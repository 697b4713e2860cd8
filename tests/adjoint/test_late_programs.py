"""Programs of second derivatives that come while gradients are answered by what PyTorch runs in their place."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.adjoint import looking
from mslsq.front import repeated_problem
from mslsq.linearize import second_order
from mslsq.native.building import Making
from tests.front.answers import noted
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER
COUNT = 12
MEASURED = 0.3 * torch.arange(2.0 * (COUNT - 1), dtype=F64).cos().reshape(-1, 2)
TIGHT: dict[str, Any] = {"max_steps": 100, "ftol": 1e-16, "xtol": 1e-14, "linear_solver": mslsq.linear.SparseCholesky()}


class Bent(mslsq.CostFunction):
    """A difference that is bent, so that second derivatives are not zero."""

    def residual(self, a: Tensor, b: Tensor, measured: Tensor) -> Tensor:
        return b - a + 0.1 * a * b.flip(-1) - measured


def gradient(problem: mslsq.Problem, **options: Any) -> Tensor:
    measured = MEASURED.clone().requires_grad_()
    solver = mslsq.LevenbergMarquardt(**TIGHT, **options)
    start = {"x": torch.zeros(COUNT, 2, dtype=F64)}
    found = mslsq.solve(problem, start, {"bent": {"measured": measured}}, solver=solver).value["x"]
    return torch.autograd.grad((torch.arange(2.0 * COUNT, dtype=F64).cos().reshape(-1, 2) * found).sum(), measured)[0]


def test_what_the_compiler_has_finished_with_is_taken_up_by_the_next_gradient(monkeypatch: pytest.MonkeyPatch):
    """And not by the next call that happens to be compared with the user's Python, the 32nd."""
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    monkeypatch.setattr(looking, "REPLAY_SECONDS", 0.0)
    monkeypatch.setattr(looking, "REPLAY_LANES", 0)
    answers, drafts, begin = noted(monkeypatch, repeated_problem), [], second_order.Replayable.begin

    def begun(draft: Any) -> None:
        drafts.append(draft)
        begin(draft)

    monkeypatch.setattr(second_order.Replayable, "begin", begun)
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=COUNT)
    i = torch.arange(COUNT - 1)
    prior = mslsq.Prior(x[:1], target=torch.ones(1, 2, dtype=F64))
    problem = mslsq.Problem(Bent(x[i], x[i + 1], measured=MEASURED, weight=3.0, name="bent"), prior)
    expected = gradient(problem, native="never", trace="never")

    def is_answered_at_once() -> bool:
        found = gradient(problem, native="auto", trace="always")
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
        return answers[-1]

    with monkeypatch.context() as patch:  # the compiler is busy with others
        patch.setattr(Making, "is_settled", property(lambda _: False))
        patch.setattr(Making, "programs", lambda _: None)
        assert [is_answered_at_once() for _ in range(6)][-2:] == [True, True]
    assert drafts
    for draft in drafts:
        draft.wait()
    assert not is_answered_at_once()
    assert [is_answered_at_once() for _ in range(4)][-2:] == [True, True]
