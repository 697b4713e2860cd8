"""A Jacobian belongs to its residual: a subclass with another residual does not inherit it."""

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
