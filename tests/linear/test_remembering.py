"""One system that is asked for twice is solved once, and no other is taken for it."""

import pytest
import torch

import mslsq
from mslsq.datasets import sphere_graph
from mslsq.linear import Cholesky
from mslsq.linear.remembering import Remembering
from mslsq.linear.sparse.solver import SparseCholesky

F64 = torch.float64


class Counting(Cholesky):
    solves = 0

    def solve(self, matrix, rhs, damping):
        type(self).solves += 1
        return super().solve(matrix, rhs, damping)


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(Counting, "solves", 0)
    return Remembering(Counting())


def system():
    torch.manual_seed(0)
    j = torch.randn(1, 1, 5, 3, dtype=F64)
    return j.mT @ j, torch.randn(1, 3, dtype=F64), torch.rand(1, 3, dtype=F64)


def test_the_same_system_is_solved_once(counting):
    matrix, rhs, damping = system()
    first = counting.solve(matrix, rhs, damping)
    again = counting.solve(matrix, rhs, damping.clone())
    assert Counting.solves == 1
    assert all(a is b for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("changed", ["matrix", "rhs", "damping", "no damping"])
def test_another_system_is_solved_by_itself(counting, changed):
    matrix, rhs, damping = system()
    counting.solve(matrix, rhs, damping)
    other = {
        "matrix": (matrix + torch.eye(3, dtype=F64), rhs, damping),
        "rhs": (matrix, -rhs, damping),
        "damping": (matrix, rhs, damping * (1 + torch.finfo(F64).eps)),
        "no damping": (matrix, rhs, None),
    }[changed]
    found, solved = counting.solve(*other)
    expected, _ = Cholesky().solve(*other)
    assert Counting.solves == 2 and bool(solved)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("damping", [None, 1e-4])
def test_the_first_step_of_a_graph_is_that_of_its_start(damping, monkeypatch):
    """Of a start that is damped least the other damping is not tried, and its step is the first one: a solve for a step
    is left, where two more had been."""
    calls = []
    own = SparseCholesky.solve
    monkeypatch.setattr(SparseCholesky, "solve", lambda self, *system: calls.append(1) or own(self, *system))
    graph = sphere_graph(4, 30).graph
    pose = mslsq.Variable("pose", mslsq.SE3, len(graph.ids))
    problem = mslsq.Problem(
        mslsq.Between(pose[graph.first], pose[graph.second], measured=graph.measured),
        mslsq.Prior(pose[[0]], target=graph.poses[:1], weight=1e3),
    )
    solver = mslsq.LevenbergMarquardt(trace="never", native="never", initial_damping=damping)
    solution = mslsq.solve(problem, {"pose": graph.from_edges().poses}, solver=solver)
    assert solution.converged
    assert float(solution.history.damping[0]) == (1e-8 if damping is None else damping)
    assert len(calls) == int(solution.num_steps)

    calls.clear()
    monkeypatch.setattr("mslsq.solvers.step.Step._remembering", lambda self, linear: linear)
    plain = mslsq.solve(problem, {"pose": graph.from_edges().poses}, solver=solver)
    assert len(calls) == int(solution.num_steps) + (2 if damping is None else 1)
    assert torch.equal(plain.value["pose"].storage, solution.value["pose"].storage)
    assert torch.equal(plain.history.cost.nan_to_num(), solution.history.cost.nan_to_num())
