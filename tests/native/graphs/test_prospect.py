"""Graphs that are replayed often become native programs: the same solutions, compared before, never in mid-solve."""

import pytest
import torch

import mslsq
from mslsq.adjoint import judging, pullback
from mslsq.errors import NativeGraphWarning
from mslsq.front.plans import kept_for
from mslsq.native.graphs import prospect, writer

F64 = torch.float64
pytestmark = pytest.mark.usefixtures("cxx")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Programs are begun after a few steps."""
    monkeypatch.setattr(prospect, "OPERATIONS", 2000)


def pose_graph(space, count, tangent):
    """A loop of poses with noise, from a start that is off."""
    generator = torch.Generator().manual_seed(count)

    def noise(size, *shape):
        return size * torch.randn(*shape, dtype=F64, generator=generator)

    truth = space.identity((count,), dtype=F64).retract(noise(1.0, count, tangent))
    i = torch.arange(count)
    j = (i + 1) % count
    measured = truth[i].between(truth[j]).retract(noise(0.02, count, tangent))
    pose = mslsq.Variable("pose", space, count=count)
    problem = mslsq.Problem(mslsq.Between(pose[i], pose[j], measured=measured), pose.fixed([0]))
    return problem, {"pose": truth.retract(noise(0.1, count, tangent))}, measured


def programs(problem):
    """By name, the program that each recorded graph of a problem has, or None."""
    plans = list(kept_for(problem).plans._plans.values())
    plans = [plan.native or plan for plan in plans]
    return {
        name: graph.prospect and graph.prospect._form for plan in plans for name, graph in plan.execution.graphs.items()
    }


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("space", "count", "tangent", "linear"),
    [
        (mslsq.SE2, 12, 3, "auto"),
        (mslsq.SE3, 10, 6, mslsq.linear.SparseCholesky()),
        (mslsq.SE3, 60, 6, "auto"),
    ],
)
@pytest.mark.parametrize("method", [mslsq.LevenbergMarquardt, mslsq.GaussNewton, mslsq.Dogleg])
def test_solutions_are_those_of_pytorch(space, count, tangent, linear, method):
    problem, start, _ = pose_graph(space, count, tangent)
    expected = mslsq.solve(problem, start, solver=method(native="never", trace="never", linear_solver=linear))
    solver = method(native="wait", trace="always", linear_solver=linear)
    for _ in range(8):
        found = mslsq.solve(problem, start, solver=solver)
        assert int(found.num_steps) == int(expected.num_steps) and int(found.status) == int(expected.status)
        torch.testing.assert_close(found.cost, expected.cost, rtol=1e-9, atol=0)
        torch.testing.assert_close(found.value["pose"].storage, expected.value["pose"].storage, rtol=1e-8, atol=1e-9)
    assert programs(problem)["step"] is not None
    if space is mslsq.SE2:  # residuals, Jacobians and the factorisation are in it
        (plan,) = [plan.native or plan for plan in kept_for(problem).plans._plans.values()]
        assert len(plan.execution.graphs["step"].prospect._segments._segments) == 1


def test_programs_come_with_the_next_solve(monkeypatch):
    problem, start, _ = pose_graph(mslsq.SE2, 12, 3)
    solver, calls = mslsq.GaussNewton(native="wait", trace="always"), []
    trusting = prospect.GraphProspect._trusting

    def counting(self, call):
        return trusting(self, lambda *tensors: calls.append(1) or call(*tensors))

    monkeypatch.setattr(prospect.GraphProspect, "_trusting", counting)
    while not programs(problem).get("step"):
        assert not calls
        steps = int(mslsq.solve(problem, start, solver=solver).num_steps)
    before, one = len(calls), mslsq.solve(problem, start, solver=solver)
    assert steps > 1 and len(calls) - before >= steps
    assert torch.equal(one.value["pose"].storage, mslsq.solve(problem, start, solver=solver).value["pose"].storage)


def test_a_program_with_other_numbers_is_not_used(monkeypatch):
    written = writer.Writer.elementwise
    wrong = lambda self, out, operands, text: written(self, out, operands, text.replace("sin", "cos"))  # noqa: E731
    monkeypatch.setattr(writer.Writer, "elementwise", wrong)
    problem, start, _ = pose_graph(mslsq.SE2, 13, 3)
    expected = mslsq.solve(problem, start, solver=mslsq.GaussNewton(native="never", trace="never"))
    with pytest.warns(NativeGraphWarning, match="other numbers"):
        for _ in range(12):
            found = mslsq.solve(problem, start, solver=mslsq.GaussNewton(native="wait", trace="always"))
            torch.testing.assert_close(found.value["pose"].storage, expected.value["pose"].storage)
    assert programs(problem)["step"] is None


def test_a_solver_without_programs_runs_none_of_those_that_others_have_made():
    problem, start, _ = pose_graph(mslsq.SE2, 12, 3)
    never = mslsq.GaussNewton(native="never", trace="always")
    before = mslsq.solve(problem, start, solver=never)
    for _ in range(8):
        mslsq.solve(problem, start, solver=mslsq.GaussNewton(native="wait", trace="always"))
    assert torch.equal(mslsq.solve(problem, start, solver=never).cost, before.cost)


def test_gradients_are_those_of_pytorch():
    problem, start, measured = pose_graph(mslsq.SE2, 6, 3)

    def gradient(native, trace):
        given = measured.storage.clone().requires_grad_()
        solver = mslsq.GaussNewton(native=native, trace=trace)
        found = mslsq.solve(problem, start, {"between": {"measured": mslsq.SE2(given)}}, solver=solver)
        found.value["pose"].storage.square().sum().backward()
        return given.grad

    expected = gradient("never", "never")
    for _ in range(8):
        torch.testing.assert_close(gradient("wait", "always"), expected, rtol=1e-8, atol=1e-10)


def test_what_is_rounding_alone_differs_without_being_wrong():
    """The residual of a linear system: 1e-17, with another sum another 1e-17, and zero here and there by chance."""
    generator = torch.Generator().manual_seed(0)
    first, *others, found = 1e-17 * torch.randint(-3, 4, (5, 50), dtype=F64, generator=generator)
    assert prospect._agree(found, first, others)
    assert not prospect._agree(found + 1e-12, first, others)
    exact = torch.linspace(1, 2, 50, dtype=F64)
    near = [exact * (1 + 1e-15), exact, exact * (1 - 1e-15)]
    assert prospect._agree(exact * (1 + 1e-14), exact, near)
    for wrong in (exact * (1 + 1e-7), torch.where(exact == 1, torch.nan, exact), exact.roll(1)):
        assert not prospect._agree(wrong, exact, near)
    alike = [x.flip(0) for x in near]  # of a tensor that hangs on rounding nothing can be told
    assert prospect._agree(exact.roll(1), exact, alike)


def test_derivatives_of_a_batch_of_fits_become_programs(recwarn, monkeypatch):
    """Their graph tells how well the linear system was solved, which is rounding alone. (Where there is a program for
    the look at the minimum, that graph is not replayed.)"""
    monkeypatch.setattr(judging, "look_of", lambda *_: None)
    monkeypatch.setattr(pullback, "pull_of", lambda *_: None)
    t = torch.linspace(0, 1, 16, dtype=F64)

    def decay(p, y):
        return p[0] * torch.exp(p[1] * t) - y

    rates = torch.linspace(-2, -0.5, 200, dtype=F64)[:, None]
    y = 1.5 * torch.exp(rates * t) + 0.01 * torch.sin(40 * t + 9 * rates)
    start = torch.tensor([1.0, -1.0], dtype=F64)
    solver = mslsq.LevenbergMarquardt(native="wait", trace="always")

    def gradient(solver):
        given = y.clone().requires_grad_()
        solution = mslsq.least_squares(decay, start, (given,), in_dims=(None, 0), solver=solver)
        return torch.autograd.grad(solution.value.square().sum(), given)[0]

    expected = gradient(mslsq.LevenbergMarquardt(native="never"))
    for _ in range(40):
        torch.testing.assert_close(gradient(solver), expected, rtol=1e-6, atol=1e-9)
    assert not [one for one in recwarn if one.category is NativeGraphWarning]
    plans = kept_for(decay.__code__).plans._plans.values()
    graphs = [(name, graph.prospect) for plan in plans for name, graph in plan.execution.graphs.items()]
    assert any(graph and graph._form for name, graph in graphs if name.startswith("factored")), graphs
