"""Forcing terms: loose far from the solution, tight near it, never looser than the first."""

import torch

from mslsq.solvers.forcing import LARGEST, SMALLEST, first_accuracy, next_accuracy

F64 = torch.float64
YES = torch.ones(1, dtype=torch.bool)


def after_one(accuracy: float, ratio: float, accepted: bool = True) -> float:
    """The next accuracy where the squared norm of the gradient has changed by this ratio."""
    one = torch.ones(1, dtype=F64)
    return float(next_accuracy(accuracy * one, one, ratio * one, YES & accepted))


def test_it_falls_with_the_square_of_the_gradient():
    assert abs(after_one(0.1, 1e-4) - 0.9e-4) < 1e-18
    assert after_one(0.1, 0.5) == LARGEST  # a gradient that hardly falls asks for nothing better


def test_a_rejected_step_leaves_it():
    assert after_one(0.03, 1e-4, accepted=False) == 0.03


def test_it_stays_within_its_limits_whatever_comes():
    assert after_one(0.1, 0.0) == SMALLEST
    for ratio in (torch.inf, torch.nan, 1e9):
        assert after_one(1e-3, ratio) == LARGEST
    zero = torch.zeros(1, dtype=F64)
    assert float(next_accuracy(first_accuracy(zero), zero, zero, YES)) == SMALLEST


def test_each_problem_of_a_batch_has_its_own():
    before, after = torch.tensor([1.0, 1.0], dtype=F64), torch.tensor([1e-2, 1e-5], dtype=F64)
    both = next_accuracy(first_accuracy(before), before, after, YES.expand(2))
    torch.testing.assert_close(both, torch.tensor([9e-3, 9e-6], dtype=F64))
