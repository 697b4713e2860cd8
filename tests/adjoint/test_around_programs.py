"""A look at a solution of block-sparse systems, and its pullback, as graphs around native programs."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.adjoint import judging
from mslsq.front import repeated_problem
from mslsq.tracing.recording import Recorded
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER
TIGHT: dict[str, Any] = {"max_steps": 100, "ftol": 1e-16, "xtol": 1e-14, "linear_solver": mslsq.linear.SparseCholesky()}
NATIVE, PYTHON = (mslsq.LevenbergMarquardt(native=how, **TIGHT) for how in ("wait", "never"))
COUNT = 60
I = torch.cat((torch.arange(COUNT - 1), torch.arange(0, COUNT - 9, 2)))
J = torch.cat((torch.arange(1, COUNT), torch.arange(9, COUNT, 2)))


class OwnBetween(mslsq.CostFunction):
    def residual(self, a: mslsq.SE3, b: mslsq.SE3, measured: mslsq.SE3) -> Tensor:
        return (measured.inverse() @ (a.inverse() @ b)).log()


def graph() -> tuple[mslsq.Problem, mslsq.SE3, Tensor]:
    """A helix with loop closures that contradict each other: residuals stay."""
    generator = torch.Generator().manual_seed(0)
    t = 0.2 * torch.arange(COUNT, dtype=F64)
    zero = torch.zeros_like(t)
    truth = mslsq.SE3.exp(torch.stack([3 * t.cos(), 3 * t.sin(), 0.1 * t, zero, zero, t], -1))
    noise = 0.1 * torch.randn(len(I), 6, generator=generator, dtype=F64)
    measured = (truth[I].inverse() @ truth[J]).retract(noise)
    pose = mslsq.Variable("pose", mslsq.SE3, count=COUNT)
    cost = OwnBetween(pose[I], pose[J], measured=measured, weight=3.0, name="between")
    start = truth.retract(0.05 * torch.randn(COUNT, 6, generator=generator, dtype=F64))
    return mslsq.Problem(cost, pose.fixed([0])), start, measured.storage


PROBLEM, START, MEASURED = graph()
COSINES = torch.arange(7.0 * COUNT, dtype=F64).cos().reshape(COUNT, 7)


def gradient(measured: Tensor, solver: Any) -> Tensor:
    measured = measured.clone().requires_grad_()
    data = {"between": {"measured": measured}}
    found = mslsq.solve(PROBLEM, {"pose": START}, data, solver=solver).value["pose"]
    return torch.autograd.grad((COSINES * found.storage).sum(), measured)[0]


@pytest.mark.slow
def test_from_the_second_call_on_the_gradient_takes_programs_and_is_that_of_python(monkeypatch):
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    run: list[str] = []
    plain = Recorded.flat

    def noted(self: Recorded, tensors: list[Tensor]) -> list[Tensor]:
        run.append("program" if self.prospect is not None and self.prospect.is_in_use else "graph")
        return plain(self, tensors)

    expected = gradient(MEASURED, PYTHON)
    for call in range(3):
        monkeypatch.setattr(Recorded, "flat", noted)
        found = gradient(MEASURED, NATIVE)
        monkeypatch.setattr(Recorded, "flat", plain)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
        assert run.count("program") >= 2 or not call  # the look, and the pullback
        run.clear()


def test_the_look_by_a_graph_is_that_of_the_operations_one_by_one(monkeypatch):
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    seen: list[Any] = []
    plain = judging.Judgement._factored

    def noted(self: Any) -> Any:
        found = plain(self)
        with monkeypatch.context() as patch:
            patch.setattr(judging, "may_be_around", lambda *_: False)
            seen.append((found, plain(self)))
        return found

    for _ in range(3):
        gradient(MEASURED, NATIVE)
    monkeypatch.setattr(judging.Judgement, "_factored", noted)
    monkeypatch.setattr(repeated_problem, "answered", lambda call: None)  # which is stated
    gradient(MEASURED, NATIVE)
    ((found, expected),) = seen
    for name in ("factor", "hessian"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    assert torch.equal(found.definite, expected.definite) and float(found.residual) < 1e-12
    for one, other in zip(found.evidence, expected.evidence, strict=True):
        assert torch.equal(one, other)


def test_two_inverses_at_once_and_the_form_of_one_are_those_of_single_solves():
    seen: list[Any] = []
    plain = judging.Judgement._factored

    def noted(self: Any) -> Any:
        seen.append((self.linear, plain(self)))
        return seen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging.Judgement, "_factored", noted)
        gradient(MEASURED, PYTHON)
    linear, found = seen[0]
    one, two = torch.randn(2, 1, 6 * (COUNT - 1), generator=torch.Generator().manual_seed(1), dtype=F64)
    each = linear.solve_factored_each(found.factor, (one, two))
    assert all(torch.equal(x, linear.solve_factored(found.factor, v)) for x, v in zip(each, (one, two), strict=True))
    torch.testing.assert_close(linear.inverse_form(found.factor, one), (one * each[0]).sum(-1), rtol=1e-12, atol=0)
    for bad in (torch.nan, torch.inf):
        assert not torch.isfinite(linear.inverse_form(found.factor, torch.full_like(one, bad))).any()


class Kinked(mslsq.CostFunction):
    """|x| stands at its kink where the pull of the target is weaker than its slope."""

    def residual(self, x: Tensor, target: Tensor) -> Tensor:
        return torch.cat([torch.sqrt(0.5 + x.abs()), 0.1 * (x - target)])


class Tied(mslsq.CostFunction):
    def residual(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.01 * torch.sinh(y - x)


def test_a_kink_and_what_has_not_arrived_are_refused_by_programs_as_before(monkeypatch):
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    x = mslsq.Variable("x", mslsq.Euclidean(1), count=COUNT)
    target = torch.linspace(1, 2, COUNT, dtype=F64)[:, None]
    i = torch.arange(COUNT - 1)
    problem = mslsq.Problem(Kinked(x[torch.arange(COUNT)], target=target), Tied(x[i], x[i + 1]))
    start = {"x": torch.full((COUNT, 1), 0.3, dtype=F64)}

    def of_kinked(solver: Any) -> Tensor:
        given = target.clone().requires_grad_()
        found = mslsq.solve(problem, start, {"kinked": {"target": given}}, solver=solver)
        return torch.autograd.grad(found.value["x"].sum(), given)[0]

    hurried = mslsq.LevenbergMarquardt(native="wait", **{**TIGHT, "max_steps": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert of_kinked(NATIVE).isnan().all()
            assert gradient(MEASURED, hurried).isnan().all()
