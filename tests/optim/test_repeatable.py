"""All evaluations of one step are of the same function: random numbers and buffers are put back between them."""

import random

import pytest
import torch
from torch import nn

import mslsq
from mslsq.optim import LevenbergMarquardt, PerSample, StepStatus

D = torch.float64


def with_dropout():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1)).double()
    x = torch.randn(80, 2, dtype=D)
    return model, x, torch.sin(x[:, :1])


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("chunk_size", [None, 7])
def test_dropout_is_the_same_in_all_trials_of_a_step(per_sample, chunk_size):
    if chunk_size and not per_sample:
        pytest.skip("chunks are those of samples")
    model, x, y = with_dropout()
    closure = PerSample(model, None, x, y, chunk_size=chunk_size) if per_sample else lambda: model(x) - y
    optimizer = LevenbergMarquardt(model.parameters())
    for _ in range(8):
        optimizer.step(closure)
        assert optimizer.report.status == StepStatus.ACCEPTED and optimizer.report.gain > 0.1


def test_generators_go_on_as_after_one_evaluation():
    model, x, y = with_dropout()
    optimizer = LevenbergMarquardt(model.parameters(), damping=1e-9)
    torch.manual_seed(5)
    model(x)
    expected = torch.rand(4)
    torch.manual_seed(5)
    optimizer.step(lambda: model(x) - y)
    assert optimizer.report.trials > 1
    assert torch.equal(torch.rand(4), expected)


def test_steps_see_other_random_numbers_each():
    model, x, y = with_dropout()
    optimizer = LevenbergMarquardt(model.parameters(), lr=0.0)
    assert optimizer.step(lambda: model(x) - y) != optimizer.step(lambda: model(x) - y)


@pytest.mark.parametrize("kind", ["a new batch each call", "Python's generator", "a counter", "another size"])
def test_a_closure_that_changes_within_a_step_is_an_error(regression, kind):
    x, count = regression.x, [0]

    def closure():
        count[0] += 1
        picks = {
            "a new batch each call": lambda: x[30 * (count[0] % 2) :][:30],
            "Python's generator": lambda: x[:30] * random.random(),
            "a counter": lambda: x[:30] + count[0],
            "another size": lambda: x[: 30 - count[0]],
        }
        return regression.model(picks[kind]())

    before = regression.vector()
    with pytest.raises(mslsq.errors.NonDeterministicResidualError, match="the same batch"):
        LevenbergMarquardt(regression.model.parameters()).step(closure)
    assert torch.equal(regression.vector(), before)


def with_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()
    x = torch.randn(50, 2, dtype=D) + 3
    return model, x, torch.sin(x[:, :1])


def test_buffers_are_as_after_one_evaluation_at_the_start_of_the_step():
    model, x, y = with_batch_norm()
    expected = [buffer.clone() for buffer in model.buffers()]
    model(x)
    expected, before = [buffer.clone() for buffer in model.buffers()], expected
    assert not torch.equal(expected[0], before[0])
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)
    optimizer = LevenbergMarquardt(model.parameters(), damping=1e-12, buffers=model.buffers())
    optimizer.step(lambda: model(x) - y)
    assert optimizer.report.trials > 1
    assert all(torch.equal(b, e) for b, e in zip(model.buffers(), expected, strict=True))


def test_batch_normalisation_trains():
    model, x, y = with_batch_norm()
    optimizer = LevenbergMarquardt(model.parameters(), buffers=model.buffers())
    losses = [float(optimizer.step(lambda: model(x) - y)) for _ in range(30)]
    assert losses[-1] < 1e-2 * losses[0]


def test_an_error_in_a_trial_leaves_everything_as_it_was(regression):
    calls, before, state = [0], regression.vector(), torch.get_rng_state()
    optimizer = LevenbergMarquardt(regression.model.parameters())

    def closure():
        calls[0] += 1
        if calls[0] == 3:  # the first is for the Jacobian, the second compares
            assert not torch.equal(regression.vector(), before)
            raise KeyboardInterrupt
        return regression.residual()

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert torch.equal(regression.vector(), before) and torch.equal(torch.get_rng_state(), state)
