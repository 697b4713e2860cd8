"""A problem that grows keeps what was found out about its costs; another cost, state or shape is looked at again."""

import pytest
import torch

import mslsq
from mslsq.solvers import planning

F64 = torch.float64


class Reading(mslsq.CostFunction):
    """y = scale · p."""

    scale = 1.0

    def residual(self, p, y):
        return self.scale * p - y


class Counting(mslsq.CostFunction):
    """Reads how many blocks there are."""

    def residual(self, p, y):
        return p / self.num_blocks - y


def solved(cost, count, dim=2, dtype=F64, requires_grad=False, **attributes):
    """The solution of `count` readings of one point each, and their data."""
    y = torch.arange(1.0, count * dim + 1, dtype=dtype).reshape(count, dim).requires_grad_(requires_grad)
    p = mslsq.Variable("p", mslsq.Euclidean(dim), count=count)
    term = cost(p[torch.arange(count)], y=y.detach())
    for name, value in attributes.items():
        setattr(term, name, value)
    start = torch.zeros(count, dim, dtype=dtype)
    return mslsq.solve(mslsq.Problem(term), {"p": start}, data={term.name: {"y": y}}).value["p"], y


@pytest.fixture
def looked_at(monkeypatch):
    """The numbers of blocks of the terms for which a way was looked for."""
    seen, look = [], planning.way_of
    monkeypatch.setattr(
        planning, "way_of", lambda block, *rest: seen.append(block.term.num_blocks) or look(block, *rest)
    )
    return seen


def test_a_problem_that_grows_is_not_looked_at_again(looked_at):
    class Own(Reading):
        pass

    for count in (3, 4, 7):
        found, y = solved(Own, count)
        torch.testing.assert_close(found, y)
    assert looked_at == [3]


@pytest.mark.parametrize("change", [{"dim": 3}, {"dtype": torch.float32}, {"scale": 2.0}, {"count": 1}])
def test_another_shape_dtype_or_state_is(looked_at, change):
    class Own(Reading):
        pass

    solved(Own, 3)
    solved(Own, **{"count": 4, **change})
    assert len(looked_at) == 2


def test_a_class_attribute_that_changes_is_state_too(looked_at):
    class Own(Reading):
        pass

    solved(Own, 3)
    Own.scale = 4.0
    found, y = solved(Own, 4)
    torch.testing.assert_close(found, y / 4)
    assert looked_at == [3, 4]


def test_a_cost_that_reads_its_count_is_looked_at_for_every_count(looked_at):
    for count in (3, 4):
        found, y = solved(Counting, count)
        torch.testing.assert_close(found, count * y)
    assert looked_at == [3, 4]


def test_derivatives_of_a_grown_problem_are_right(looked_at):
    class Own(Reading):
        scale = 2.0

    for count in (3, 4):
        found, y = solved(Own, count, requires_grad=True)
        (gradient,) = torch.autograd.grad((found**2).sum(), y)
        torch.testing.assert_close(gradient, y.detach() / 2)
    assert looked_at == [3]


def test_a_tensor_that_cannot_be_collected_is_still_refused_when_the_problem_has_grown():
    box = {"gain": torch.ones((), dtype=F64)}

    class Hidden:
        """Does not show its state."""

        __slots__ = ("__weakref__",)

        def __call__(self):
            return GAINS[0]

    hidden = Hidden()
    GAINS[:] = [box["gain"]]

    class Own(mslsq.CostFunction):
        def residual(self, p, y):
            return hidden() * p - y

    solved(Own, 3, requires_grad=True)
    GAINS[:] = [box["gain"].clone().requires_grad_()]
    with pytest.raises(ValueError, match="requires grad"):
        solved(Own, 4, requires_grad=True)


GAINS: list[torch.Tensor] = []
