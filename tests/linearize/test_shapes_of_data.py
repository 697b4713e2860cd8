"""Data of shape (n,) subtracted from a prediction of shape (n, 1): a warning; pairs that are meant: none."""

import warnings

import pytest
import torch

import mslsq
from mslsq.errors import BroadcastResidualWarning

F64 = torch.float64
T = torch.linspace(0, 1, 30, dtype=F64)
Y = 2 * T * T + 1
COLUMN = T[:, None]
LINE = torch.ones(2, dtype=F64)
PIXELS = torch.linspace(-1, 2, 30, dtype=F64)


def line(p, t):
    return p[0] * t + p[1]


def network(p, t):
    return torch.tanh(t @ p["w"]) @ p["v"]


WEIGHTS = {"w": torch.linspace(-1, 1, 4, dtype=F64)[None], "v": torch.linspace(1, 2, 4, dtype=F64)[:, None]}


def caught(residual, start, args=(), **options):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        mslsq.least_squares(residual, start, args, solver=mslsq.LevenbergMarquardt(max_steps=3), **options)
    return [str(one.message) for one in seen if one.category is BroadcastResidualWarning]


@pytest.mark.parametrize(
    ("residual", "start"),
    [
        (lambda p, t, y: line(p, t) - y, LINE),
        (lambda p, t, y: y - line(p, t), LINE),
        (lambda p, t, y: (line(p, t) - y) / torch.full((30,), 0.1, dtype=F64), LINE),
        (lambda p, t, y: {"r": (line(p, t) - y).ravel()}, LINE),
        (lambda p, t, y: t @ p - y, LINE[:1, None]),
        (lambda p, t, y: network(p, t) - y, WEIGHTS),
    ],
)
def test_data_of_another_shape_than_the_prediction_are_warned_of(residual, start):
    (message,) = caught(residual, start, (COLUMN, Y))
    for words in ("900 entries", "(30, 1)", "(30,)", ".squeeze(-1)"):
        assert words in message


def test_every_problem_of_a_batch_has_its_own_shape():
    residual = lambda p, t, y: line(p, t) - y  # noqa: E731
    assert caught(residual, LINE.expand(5, 2), (COLUMN, Y), in_dims=(0, None, None))
    assert not caught(lambda p, t, y: line(p, t) - y, LINE.expand(5, 2), (T, Y), in_dims=(0, None, None))


@pytest.mark.parametrize(
    "residual",
    [
        lambda p, t, y: line(p, t).squeeze(-1) - y,
        lambda p, t, y: line(p, t) - y[:, None],
        lambda p, t, y: line(p, t[:, 0])[:, None] - y,  # every pair, said beside the difference
        lambda p, t, y: line(p, t[:, 0])[:, None] - y[None, :],
        lambda p, t, y: torch.exp(-((p[0] * t - PIXELS) ** 2)) @ y,  # a kernel
        lambda p, t, y: (p[0] * t - PIXELS).abs().amin(1),  # the nearest one
        lambda p, t, y: (p[0] * t - PIXELS) - torch.outer(y, y),  # a table of measurements
        lambda p, t, y: p[0] * (t - y),  # of data alone
        lambda p, t, y: p[:, None] - p,  # of variables alone
        lambda p, t, y: p[0] - y,
    ],
)
def test_pairs_that_are_meant_are_not(residual):
    assert not caught(residual, LINE, (COLUMN, Y))


def test_the_data_that_all_blocks_of_a_cost_share_are_looked_at_too():
    class Line(mslsq.CostFunction):
        def residual(self, x, t, y):
            return line(x, t) - y

    p = mslsq.Variable("p", mslsq.Euclidean(2))
    with pytest.warns(BroadcastResidualWarning, match="'line' has 900 entries"):
        mslsq.solve(mslsq.Problem(Line(p, t=mslsq.Shared(COLUMN), y=mslsq.Shared(Y))), {"p": LINE})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mslsq.solve(mslsq.Problem(Line(p, t=COLUMN, y=Y)), {"p": LINE})  # a block has one of each


def test_a_jacobian_that_is_given_changes_nothing_about_that():
    def jacobian(p, t, y):
        one = torch.stack([t[:, 0], torch.ones_like(y)], -1)
        return one[:, None].expand(30, 30, 2)

    (message,) = caught(lambda p, t, y: line(p, t) - y, LINE, (COLUMN, Y), jac=jacobian)
    assert "900 entries" in message
    assert not caught(
        lambda p, t, y: line(p, t) - y, LINE, (T, Y), jac=lambda p, t, y: jacobian(p, t[:, None], y)[:, 0]
    )


@pytest.mark.parametrize("shape", [(30,), (30, 1)])
def test_closures_of_the_optimizer_are_warned_of_once(shape):
    model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
    optimizer = mslsq.optim.LevenbergMarquardt(model.parameters())
    y = Y.reshape(shape)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            optimizer.step(lambda: model(COLUMN) - y)
    messages = [str(one.message) for one in seen if one.category is BroadcastResidualWarning]
    assert len(messages) == (shape == (30,))
    assert all("What the closure returned has 900 entries" in one for one in messages)
