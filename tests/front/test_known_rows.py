"""A cost of a user's own that is made again: its residual is called for its first block where it may have changed."""

import pytest
import torch

import mslsq
from mslsq.front.alike_problems import ALIKE
from mslsq.linearize.plan_cache import SHARED
from mslsq.problem import rows
from mslsq.tracing.reading.known_code import CODES
from tests.front.test_repeated_problem import SOLVER

F64 = torch.float64
ROWS = 2
Y = torch.arange(12, dtype=F64).reshape(4, 3)


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """The names of the costs whose first block was asked for; nothing is known of problems before."""
    SHARED.clear()
    ALIKE.clear()
    CODES.clear()
    monkeypatch.setattr(rows, "_ROWS", {})
    found, asked = [], rows._found_rows

    def noted(cost):
        found.append(cost.name)
        return asked(cost)

    monkeypatch.setattr(rows, "_found_rows", noted)
    return found


class Own(mslsq.CostFunction):
    """As many rows as a global, an attribute of the class and one of the object say."""

    more = 0

    def __init__(self, *variables, own=0, **data):
        super().__init__(*variables, **data)
        self.own = own

    def residual(self, p, y):
        return torch.cat([p - y, y.new_zeros(ROWS + self.more + self.own)])


def made(kind=Own, y=Y, **options):
    p = mslsq.Variable("p", mslsq.Euclidean(3))
    return mslsq.Problem(kind(p, y=y, name="own", **options))


def solved(problem):
    return mslsq.solve(problem, {"p": torch.zeros(3, dtype=F64)}, solver=SOLVER)


def test_a_residual_that_is_known_is_not_called_again(calls):
    for seed in range(4):
        y = torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(solved(made(y=y)).value["p"], y.mean(0))
    assert calls == ["own"]
    made(y=Y[:2])
    made(y=Y.float())
    made(y=mslsq.Shared(Y[0]))
    made(own=1)
    assert calls == ["own"] * 5


@pytest.mark.parametrize("way", ["a global", "a class", "an object", "a method"])
def test_what_the_residual_reads_tells_how_many_rows_it_has(monkeypatch, calls, way):
    for _ in range(3):
        problem = made()
        assert solved(problem).converged and problem.num_rows == {"own": 5}
    assert calls == ["own"]
    if way == "a global":
        monkeypatch.setitem(globals(), "ROWS", 4)
    elif way == "a class":
        monkeypatch.setattr(Own, "more", 2)
    elif way == "a method":
        monkeypatch.setattr(Own, "residual", lambda self, p, y: torch.cat([p - y, y.new_zeros(4)]))
    options = {"own": 2} if way == "an object" else {}
    for _ in range(3):
        problem = made(**options)
        assert problem.num_rows == {"own": 7}
        torch.testing.assert_close(solved(problem).value["p"], Y.mean(0))
    with pytest.raises(mslsq.ProblemError, match="has 7 entries"):
        made(weight=mslsq.Diagonal(torch.ones(5, dtype=F64)), **options)
    monkeypatch.undo()
    assert made().num_rows == {"own": 5}


def test_a_problem_that_is_older_than_a_change_tells_nothing(monkeypatch, calls):
    problem = made()
    monkeypatch.setitem(globals(), "ROWS", 4)
    for _ in range(3):
        solved(problem)
    assert made().num_rows == {"own": 7}


def test_a_weight_that_does_not_fit_is_said_of_known_costs_too(calls):
    for _ in range(3):
        solved(made(weight=mslsq.Diagonal(torch.ones(5, dtype=F64))))
    assert calls == ["own"]
    with pytest.raises(mslsq.ProblemError, match="has 5 entries"):
        made(weight=mslsq.Diagonal(torch.ones(4, dtype=F64)))


def test_code_that_may_read_something_else_is_called_every_time(calls):
    generator = torch.Generator()

    class Hidden(mslsq.CostFunction):
        def residual(self, p, y):
            return torch.cat([p - y, y.new_zeros(generator.initial_seed())])

    for seed in (1, 1, 2, 3):
        generator.manual_seed(seed)
        problem = made(Hidden)
        assert problem.num_rows == {"own": 3 + seed}
        torch.testing.assert_close(solved(problem).value["p"], Y.mean(0))
    assert calls == ["own"] * 4


def test_a_residual_that_branches_on_its_data_is_called_every_time(calls):
    """Its code reads nothing else, and is never recorded."""

    class Branching(mslsq.CostFunction):
        def residual(self, p, y):
            return p - y if float(y[0]) < 5 else torch.cat([p - y, p - y])

    for y, count in ((Y[:1], 3), (Y[:1], 3), (Y[:1] + 9, 6), (Y[:1], 3)):
        problem = made(Branching, y=y)
        assert problem.num_rows == {"own": count}
    assert calls == ["own"] * 4


def test_functions_of_pytorch_that_are_replaced_are_noticed(monkeypatch, calls):
    class Own(mslsq.CostFunction):
        def residual(self, p, y):
            return torch.cat([p - y, torch.mul(y, 0.0)])

    for _ in range(3):
        solved(made(Own))
    assert calls == ["own"]
    with monkeypatch.context() as patched:
        patched.setattr(torch, "mul", lambda y, factor: factor * y[:1])
        assert made(Own).num_rows == {"own": 4}
    assert made(Own).num_rows == {"own": 6}


def test_a_cost_whose_residual_is_its_own_is_called(calls):
    for _ in range(3):
        solved(made())
    p = mslsq.Variable("p", mslsq.Euclidean(3))
    cost = Own(p, y=Y, name="own")
    cost.residual = lambda p, y: p[:2] - y[:2]
    assert mslsq.Problem(cost).num_rows == {"own": 2}


def test_names_that_do_not_fit_are_said_of_known_signatures_too():
    p = mslsq.Variable("p", mslsq.Euclidean(3))

    class One(mslsq.CostFunction):
        def residual(self, p, y, gain=1.0):
            return gain * p - y

    class Two(mslsq.CostFunction):
        def residual(self, p, y, *, gain):
            return gain * p - y

    for _ in range(3):
        One(p, y=Y), One(p, y=Y, gain=2.0), Two(p, y=Y, gain=2.0)
        for wrong in (
            lambda: One(p),
            lambda: One(p, p, y=Y),
            lambda: One(p, y=Y, sigma=1.0),
            lambda: Two(p, y=Y),
            lambda: One(p, p, p, p),
        ):
            with pytest.raises(mslsq.ProblemError):
                wrong()
    One.residual.__defaults__ = None
    with pytest.raises(mslsq.ProblemError, match="gain"):
        One(p, y=Y)


def test_costs_of_the_library_are_one_family_by_what_they_hold():
    """Their class, their weight's and the form of their data: a cost that holds more is looked through."""
    from mslsq.front.costs import _family
    from mslsq.tracing.reading.inputs import collect_module

    pose, index = mslsq.Variable("pose", mslsq.SE2, 4), torch.arange(3)

    def family(weight=None, index=index, **attributes):
        measured = mslsq.SE2.random(len(index), dtype=torch.float64)
        cost = mslsq.Between(pose[index], pose[index + 1], measured=measured, weight=weight)
        for name, value in attributes.items():
            setattr(cost, name, value)
        return _family(cost, collect_module(cost))

    one = torch.eye(3, dtype=torch.float64)
    assert family() == family(index=index[:2])
    assert family(mslsq.SqrtInformation(one)) == family(mslsq.SqrtInformation(2 * one))
    assert len({family(), family(2.0), family(mslsq.SqrtInformation(one)), family(mslsq.Diagonal(one[0]))}) == 4
    assert family(flag=True) != family(flag=False) != family()
