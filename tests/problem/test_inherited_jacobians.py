"""A Jacobian belongs to its residual: a subclass with another residual does not inherit it."""

import pytest
import torch

import mslsq


class Twice(mslsq.Prior):
    def residual(self, x, target):
        return 2 * (x - target)


def test_a_subclass_with_another_residual_is_differentiated_itself():
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
    target = torch.ones(3, 2, dtype=torch.float64)
    cost = Twice(x, target=target)
    assert cost.jacobians is None
    solution = mslsq.solve(mslsq.Problem(cost), {"x": torch.zeros(3, 2, dtype=torch.float64)})
    torch.testing.assert_close(solution.value["x"], target)
    # Linear with its own Jacobian, up to the damping: with the base's it took 93 steps.
    assert int(solution.num_steps) < 12


class Doubled(mslsq.Between):
    def jacobians(self, a, b, measured):
        return tuple(2 * part for part in super().jacobians(a, b, measured))


def test_a_subclass_with_other_jacobians_does_not_inherit_what_gives_both():
    pose = mslsq.Variable("pose", mslsq.SE2, count=2)
    cost = Doubled(pose[[0]], pose[[1]], measured=mslsq.SE2.identity(1))
    assert cost.residual_and_jacobians is None and cost.broadcasts is None


class WritesInPlace(mslsq.CostFunction):
    """All that a cost may define, with a residual that cannot be mapped as it stands."""

    def residual(self, x, target):
        error = torch.zeros(2, dtype=x.dtype)
        error[:] = x - target
        return error

    def jacobians(self, x, target):
        return (torch.eye(2, dtype=x.dtype),)

    def residual_and_jacobians(self, x, target):
        return self.residual(x, target), self.jacobians(x, target)


def test_a_residual_that_is_rewritten_is_the_one_that_is_used():
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
    target = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    problem = mslsq.Problem(WritesInPlace(x, target=target))
    with pytest.warns(UserWarning, match="in place"):
        solution = mslsq.solve(problem, {"x": torch.zeros(3, 2, dtype=torch.float64)})
    torch.testing.assert_close(solution.value["x"], target)
