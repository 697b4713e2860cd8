"""Data of a cost that are assigned later on are those of the next solve, whatever form they have."""

from typing import NamedTuple

import pytest
import torch

import mslsq
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
X = mslsq.Variable("x", mslsq.Euclidean(2))
START = {"x": torch.zeros(2, dtype=F64)}


class Options(NamedTuple):
    scale: float


class Weighted(mslsq.CostFunction):
    """scale · x should be the sum of the parts."""

    def residual(self, x, parts, scale):
        factor = scale.scale if isinstance(scale, Options) else scale
        return factor * x - parts["a"] - parts["b"]


def pair(a, b):
    return {"a": torch.full((1, 2), a, dtype=F64), "b": torch.full((1, 2), b, dtype=F64)}


def solved(problem, native="never"):
    return mslsq.solve(problem, START, solver=mslsq.LevenbergMarquardt(native=native)).value["x"]


def expected(value):
    return torch.full((2,), value, dtype=F64)


@pytest.mark.parametrize("native", ["never", pytest.param("wait", marks=NEEDS_COMPILER)])
def test_a_number_or_an_object(native):
    cost = Weighted(X, parts=pair(1.0, 2.0), scale=1.0)
    problem = mslsq.Problem(cost)
    for scale in (1.0, 2.0, 2.0, Options(4.0), 0.5, Options(4.0)):
        cost.scale = scale
        for _ in range(2):
            torch.testing.assert_close(solved(problem, native), expected(3.0 / getattr(scale, "scale", scale)))


def test_a_dict_of_tensors():
    cost = Weighted(X, parts=pair(1.0, 2.0), scale=1.0)
    problem = mslsq.Problem(cost)
    torch.testing.assert_close(solved(problem), expected(3.0))
    cost.parts = pair(5.0, 2.0)
    torch.testing.assert_close(solved(problem), expected(7.0))
    assert torch.equal(cost.state_dict()["parts_0"], pair(5.0, 2.0)["a"])


def test_an_element_of_a_manifold_or_its_storage():
    x = mslsq.Variable("x", mslsq.SO3)
    prior = mslsq.Prior(x, target=mslsq.SO3.identity(1, dtype=F64))
    turned = mslsq.SO3.exp(torch.tensor([[0.1, 0.2, 0.3]], dtype=F64))
    for target in (turned, turned.storage.clone()):
        prior.target = mslsq.SO3.identity(1, dtype=F64)
        prior.target = target
        found = mslsq.solve(mslsq.Problem(prior), {"x": mslsq.SO3.identity(dtype=F64)}).value["x"]
        torch.testing.assert_close(found.storage, turned.storage[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", torch.ones(1)), ("parts", {"a": torch.ones(1, 2)}), ("parts", 3.0), ("parts", torch.ones(1, 2))],
)
def test_another_form_is_refused_and_not_ignored(name, value):
    cost = Weighted(X, parts=pair(1.0, 2.0), scale=1.0)
    with pytest.raises(mslsq.ProblemError, match=f"data '{name}' cannot become"):
        setattr(cost, name, value)


def test_a_subclass_may_keep_data_under_their_name():
    class Kept(Weighted):
        def __init__(self, *variables, scale, **data):
            super().__init__(*variables, scale=scale, **data)
            self.scale = scale

    cost = Kept(X, parts=pair(1.0, 2.0), scale=2.0)
    assert cost.scale == 2.0
    torch.testing.assert_close(solved(mslsq.Problem(cost)), expected(1.5))


def test_another_number_of_blocks_is_named():
    class Seen(mslsq.CostFunction):
        def residual(self, x, seen):
            return x - seen

    cost = Seen(X, seen=torch.ones(4, 2, dtype=F64), weight=mslsq.Scale(torch.ones(4, dtype=F64)))
    problem = mslsq.Problem(cost)
    solved(problem)
    cost.seen = torch.ones(3, 2, dtype=F64)
    with pytest.raises(mslsq.ProblemError, match=r"'seen' has shape \(3, 2\).*4 blocks"):
        solved(problem)
    cost.seen = torch.ones(4, 2, dtype=F64)
    cost.weight = mslsq.Scale(torch.ones(5, dtype=F64))
    with pytest.raises(mslsq.ProblemError, match=r"'weight.value' has shape \(5,\).*4 blocks"):
        solved(problem)
