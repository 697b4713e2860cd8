"""Cost functions: one residual for all blocks, its data as buffers, and what does not fit said when it is made."""

# Wrong arguments on purpose.
# pyright: reportArgumentType=false

import numpy as np
import pytest
import torch
from torch import nn

import mslsq
from mslsq.problem import ProblemError

F64 = torch.float64
X = mslsq.Variable("x", mslsq.Euclidean(2), count=4)
POSE = mslsq.Variable("pose", mslsq.SE2, count=4)


class Pull(mslsq.CostFunction):
    def residual(self, x, towards):
        return x - towards


class Between(mslsq.CostFunction):
    def residual(self, a: mslsq.SE2, b: mslsq.SE2, measured: mslsq.SE2):
        return (measured.inverse() @ (a.inverse() @ b)).log()


Y = torch.ones(4, 2, dtype=F64)


def test_the_name_is_the_class_in_snake_case():
    class HTTPReprojectionError2(Pull):
        pass

    assert Pull(X, towards=Y).name == "pull"
    assert HTTPReprojectionError2(X, towards=Y).name == "http_reprojection_error2"
    assert Pull(X, towards=Y, name="gps").name == "gps"


def test_blocks_are_counted_from_indices_data_weights_and_losses():
    assert Pull(X, towards=Y).num_blocks == 4
    assert Pull(X[0], towards=Y).num_blocks == 4
    assert Pull(X[[1, 2]], towards=mslsq.Shared(Y[0])).num_blocks == 2
    assert Pull(X[1], towards=mslsq.Shared(Y[0])).num_blocks == 1
    assert Pull(X[1], towards=mslsq.Shared(Y[0]), weight=mslsq.Scale(torch.ones(7, dtype=F64))).num_blocks == 7
    assert Pull(X[1], towards=mslsq.Shared(Y[0]), loss=mslsq.Huber(torch.ones(3, dtype=F64))).num_blocks == 3


def test_data_are_buffers_and_parameters_are_parameters():
    cost = Pull(X, towards=Y, weight=mslsq.Diagonal(nn.Parameter(torch.ones(2, dtype=F64))), loss=mslsq.Huber(0.5))
    assert set(cost.state_dict()) == {"towards", "weight.value", "loss.scale"}
    assert [name for name, _ in cost.named_parameters()] == ["weight.value"]
    assert cost.to(torch.float32).towards.dtype == torch.float32
    learnable = Pull(X, towards=nn.Parameter(Y))
    assert [name for name, _ in learnable.named_parameters()] == ["towards"]


def test_pytrees_of_data_arrive_as_they_were():
    measured = mslsq.SE2.exp(torch.zeros(4, 3, dtype=F64))
    seen = {}

    class Nested(mslsq.CostFunction):
        def residual(self, a, extra, mode, flag=True):
            seen.update(extra=extra, mode=mode)
            return a.local(extra["pose"]) + extra["pair"][1]

    cost = Nested(POSE, extra={"pose": measured, "pair": (Y[:, 0], torch.zeros(4, 3, dtype=F64))}, mode="fast")
    problem = mslsq.Problem(cost)
    mslsq.solve(problem, {"pose": measured})
    assert isinstance(seen["extra"]["pose"], mslsq.SE2) and isinstance(seen["extra"]["pair"], tuple)
    assert seen["mode"] == "fast"


def test_the_decorator_makes_a_class_of_a_function():
    @mslsq.cost
    def pull(x, towards, factor=2.0):
        """Towards a point."""
        return factor * (x - towards)

    assert issubclass(pull, mslsq.CostFunction)
    assert pull.__doc__ == "Towards a point."
    cost = pull(X, towards=Y)
    assert cost.name == "pull"
    value = mslsq.solve(mslsq.Problem(cost), {"x": torch.zeros(4, 2, dtype=F64)}).value["x"]
    assert torch.allclose(value, Y)
    with pytest.raises(ProblemError, match=r"'toward'.*Did you mean 'towards'"):
        pull(X, toward=Y)


def test_the_residual_is_callable_like_a_module():
    cost = Pull(X, towards=Y)
    assert torch.equal(cost(Y[0], towards=Y[1]), Y[0] - Y[1])
    assert "pull" in repr(cost) and "blocks=4" in repr(cost)


def test_a_module_is_passed_on_with_its_parameters():
    net = nn.Linear(2, 2).to(F64)

    class Through(mslsq.CostFunction):
        def residual(self, x, net, y):
            return net(x) - y

    cost = Through(X, net=net, y=Y)
    assert {name for name, _ in cost.named_parameters()} == {"net.weight", "net.bias"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Pull(), ["'pull'", "no variable"]),
        (lambda: Pull(X), ["'pull'", "residual", "towards"]),
        (lambda: Pull(X, X, towards=Y), ["'pull'", "residual"]),
        (lambda: Pull(X, toward=Y), ["'pull'", "'toward'", "Did you mean 'towards'"]),
        (lambda: Pull(Y, towards=Y), ["Tensor", "keyword"]),
        (lambda: Pull(X, towards=Y[:3]), ["'pull'", "x[4 blocks of 4]: 4", "'towards': 3", "Shared"]),
        (lambda: Between(POSE[[0, 1]], POSE[[1, 2, 3]], measured=None), ["'between'", "2", "3"]),
        (lambda: Pull(X, towards=torch.tensor(1.0)), ["'pull'", "'towards'", "scalar", "Shared"]),
        (lambda: Pull(X[[]], towards=Y[:0]), ["'pull'", "no blocks"]),
        (lambda: Pull(X, towards=Y.numpy()), ["'pull'", "'towards'", "NumPy", "torch.from_numpy"]),
        (lambda: Pull(X, towards=[Y, np.ones(4)]), ["'pull'", "'towards'", "mixes", "ndarray"]),
        (lambda: Pull(X, towards=Y, loss="huber"), ["'pull'", "mslsq.Huber(1.0)", "not 'huber'"]),
        (lambda: Pull(X, towards=Y, weight=torch.ones(2)), ["'pull'", "Diagonal", "Tensor"]),
        (lambda: Pull(X, towards=Y, weight="big"), ["'pull'", "Diagonal", "str"]),
        (lambda: Pull(X, towards=Y, weight=mslsq.Scale(torch.ones(3))), ["'pull'", "weight: 3", "4"]),
        (lambda: Pull(X, towards=Y, loss=mslsq.Huber(torch.ones(3))), ["'pull'", "loss.scale: 3", "4"]),
        (lambda: Pull(X, towards=Y, name=""), ["Pull", "name"]),
        (lambda: Pull(X, towards=Y, name=3), ["Pull", "name", "3"]),
    ],
)
def test_what_does_not_fit_is_said_at_once(make, words):
    with pytest.raises(ProblemError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("value", [Y, nn.Linear(2, 2)])
def test_data_cannot_take_the_name_of_an_attribute(value):
    class Bad(mslsq.CostFunction):
        def residual(self, x, forward):
            return x

    with pytest.raises(ProblemError, match=r"'bad'.*'forward'"):
        Bad(X, forward=value)


def test_a_residual_must_be_written():
    class Empty(mslsq.CostFunction):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty must define residual\(self"):
        mslsq.Problem(Empty(X))


def test_one_tensor_may_be_two_data_of_a_cost():
    @mslsq.cost
    def line(x, a, b):
        return a * x - b

    x = mslsq.Variable("x", mslsq.Euclidean(1), count=3)
    data = 2 * torch.ones(3, 1)
    problem = mslsq.Problem(line(x, a=data, b=data))
    start = {"x": torch.zeros(3, 1)}
    torch.testing.assert_close(mslsq.solve(problem, start).value["x"], torch.ones(3, 1))
    moved = mslsq.solve(problem, start, {"line": {"b": 6 * torch.ones(3, 1)}})
    torch.testing.assert_close(moved.value["x"], 3 * torch.ones(3, 1))
