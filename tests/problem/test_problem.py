"""A problem checks itself when it is put together, and is a module: state, devices, dtypes as in all of PyTorch."""

# Wrong arguments on purpose.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false, reportCallIssue=false

import copy

import pytest
import torch
from torch import nn

import mslsq
from mslsq.problem import ProblemError
from mslsq.problem.errors import DeviceError, DtypeError, ShapeError

F64 = torch.float64
X = mslsq.Variable("x", mslsq.Euclidean(2), count=4)
Y = torch.arange(8.0, dtype=F64).reshape(4, 2)


class Pull(mslsq.CostFunction):
    def residual(self, x, towards):
        return x - towards


def problem(**options):
    return mslsq.Problem(Pull(X, towards=Y.clone(), **options))


def test_variables_come_from_the_costs_in_order():
    other = mslsq.Variable("a", mslsq.SE2, count=2)
    turn = mslsq.cost(lambda pose, x: pose.act(x))
    built = mslsq.Problem(Pull(X, towards=Y), turn(other[0], X[1], name="turn"))
    assert list(built.variables) == ["x", "a"]
    assert [cost.name for cost in built] == ["pull", "turn"]
    assert built["turn"].num_blocks == 1
    with pytest.raises(KeyError, match="'pull', 'turn'"):
        built["pul"]
    assert "pull" in repr(built)


def test_equal_variables_are_one():
    again = mslsq.Variable("x", mslsq.Euclidean(2), count=4)
    assert list(mslsq.Problem(Pull(X, towards=Y), Pull(again, towards=Y, name="b")).variables) == ["x"]


def test_free_entries():
    built = mslsq.Problem(Pull(X, towards=Y), X.fixed([0]), X.fixed([3, 0]))
    assert built.free_entries(X).tolist() == [[False] * 2, [True] * 2, [True] * 2, [False] * 2]
    assert problem().free_entries(X) is None


def test_state_dict_and_to():
    first, second = (
        problem(weight=mslsq.Diagonal(torch.ones(2, dtype=F64))),
        problem(weight=mslsq.Diagonal(torch.ones(2, dtype=F64))),
    )
    second["pull"].towards.zero_()
    assert set(first.state_dict()) == {"costs.0.towards", "costs.0.weight.value"}
    start = {"x": torch.ones(4, 2, dtype=F64)}
    assert torch.allclose(mslsq.solve(second, start).value["x"], torch.zeros(4, 2, dtype=F64))
    second.load_state_dict(first.state_dict())
    assert torch.allclose(mslsq.solve(second, start).value["x"], Y)
    narrow = copy.deepcopy(first).to(torch.float32)
    assert {tensor.dtype for tensor in narrow.state_dict().values()} == {torch.float32}
    assert mslsq.solve(narrow, {"x": torch.ones(4, 2)}).value["x"].dtype == torch.float32
    with pytest.raises(DtypeError, match="float32"):
        mslsq.solve(narrow, start)


def test_a_residual_may_be_written_without_any_data():
    bare = mslsq.cost(lambda x: x.square() - 2)
    for dtype in (torch.float32, F64):
        solution = mslsq.solve(mslsq.Problem(bare(X, name="bare")), {"x": torch.ones(4, 2, dtype=dtype)})
        assert solution.value["x"].dtype == dtype
        assert torch.allclose(solution.value["x"], torch.full((4, 2), 2.0, dtype=dtype).sqrt())


def test_checking_does_not_touch_the_random_state_or_the_data():
    def writes(x, towards):
        towards += torch.rand(())
        return x - towards

    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    data = Y.clone()
    mslsq.Problem(mslsq.cost(writes)(X, towards=data))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(data, Y)


class Fails(mslsq.CostFunction):
    def residual(self, x, matrix):
        return matrix @ x


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: mslsq.Problem(), ProblemError, ["at least one cost"]),
        (lambda: mslsq.Problem(X.fixed([0])), ProblemError, ["at least one cost"]),
        (lambda: mslsq.Problem(Pull), ProblemError, ["cost functions", "Create it first"]),
        (lambda: mslsq.Problem([Pull(X, towards=Y)]), ProblemError, ["cost functions"]),
        (lambda: mslsq.Problem(X), ProblemError, ["cost functions"]),
        (
            lambda: mslsq.Problem(Pull(X, towards=Y), Pull(X, towards=Y)),
            ProblemError,
            ["Two cost functions", "'pull'", "name='pull_2'"],
        ),
        (
            lambda: mslsq.Problem(
                Pull(X, towards=Y), Pull(mslsq.Variable("x", mslsq.Euclidean(2), 3), towards=Y[:3], name="b")
            ),
            ProblemError,
            ["Two different variables", "'x'", "'b'"],
        ),
        (
            lambda: mslsq.Problem(Pull(X, towards=Y), mslsq.Variable("z", mslsq.SE2).fixed()),
            ProblemError,
            ["'z'", "fixed", "no cost"],
        ),
        (
            lambda: mslsq.Problem(Pull(X, towards=Y), Pull(X, towards=Y.float(), name="b")),
            DtypeError,
            ["b.towards", "float32", "pull.towards", "float64"],
        ),
        (
            lambda: mslsq.Problem(Pull(X, towards=Y, weight=mslsq.Diagonal(torch.ones(2)))),
            DtypeError,
            ["pull.weight.value", "float32", "float64"],
        ),
        (
            lambda: mslsq.Problem(Pull(X, towards=Y), Pull(X, towards=Y.to("meta"), name="b")),
            DeviceError,
            ["b.towards", "meta", "cpu", "b.to("],
        ),
        (
            lambda: problem(weight=mslsq.Diagonal(torch.ones(3, dtype=F64))),
            ShapeError,
            ["'pull'", "2 entries", "Diagonal", "(2,)", "(3,)"],
        ),
        (
            lambda: problem(weight=mslsq.SqrtInformation(torch.ones(4, 2, 3, dtype=F64))),
            ShapeError,
            ["'pull'", "SqrtInformation", "(2, 2)", "(2, 3)"],
        ),
        (
            lambda: mslsq.Problem(Fails(X, matrix=torch.ones(4, 3, 3, dtype=F64))),
            ProblemError,
            ["'fails'", "block 0", "ONE block", "(3, 3)", "Shared"],
        ),
        (lambda: mslsq.Problem(mslsq.cost(lambda x: x[:0])(X, name="none")), ProblemError, ["'none'", "empty"]),
        (lambda: mslsq.Problem(mslsq.cost(lambda x: 3.0)(X, name="none")), ProblemError, ["'none'", "float"]),
        (lambda: mslsq.Problem(mslsq.cost(lambda x: None)(X, name="none")), ProblemError, ["'none'", "NoneType"]),
        (lambda: mslsq.Problem(mslsq.cost(lambda x: x > 0)(X, name="none")), ProblemError, ["'none'", "bool"]),
    ],
)
def test_what_is_wrong_is_said_when_the_problem_is_made(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_a_batched_residual_is_told_that_it_gets_one_block():
    """The commonest mistake: written for all blocks at once, as in other libraries."""
    batched = mslsq.cost(lambda x, towards: (x[:, 0] - towards[:, 0])[:, None])
    with pytest.raises(ProblemError, match=r"'batched'.*ONE block"):
        mslsq.Problem(batched(X, towards=Y, name="batched"))


def test_shared_data_reach_every_block_whole():
    table = torch.arange(4.0, dtype=F64)
    look = mslsq.cost(lambda x, table, place: x - table[None, :].expand(2, -1).sum(-1) * place)
    built = mslsq.Problem(look(X, table=mslsq.Shared(table), place=torch.arange(4.0, dtype=F64), name="look"))
    value = mslsq.solve(built, {"x": torch.zeros(4, 2, dtype=F64)}).value["x"]
    assert torch.allclose(value, 6 * torch.arange(4.0, dtype=F64)[:, None].expand(4, 2))


def test_an_optimiser_finds_the_parameters_of_a_problem():
    weight = nn.Parameter(torch.ones(2, dtype=F64))
    assert [p is weight for p in problem(weight=mslsq.Diagonal(weight)).parameters()] == [True]
