"""Solves that need no comparison with the user's Python: batches of residuals and costs whose code is closed."""

import builtins
import dataclasses
import itertools
import math
import warnings

import pytest
import torch

import mslsq
from mslsq.front.closed_costs import CHECKED_EVERY, UnseenChangeWarning
from mslsq.solvers import witness

F64 = torch.float64
SOLVER = mslsq.LevenbergMarquardt(native="never", trace="always")
T = torch.linspace(0, 1, 8, dtype=F64)


@pytest.fixture
def compared(monkeypatch):
    """A list with an entry for every comparison."""
    found, plain = [], witness._by_plain_python

    def noted(*args):
        found.append(args)
        return plain(*args)

    monkeypatch.setattr(witness, "_by_plain_python", noted)
    return found


def rates(rate: float = -1.0, size: int = 5) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, size, dtype=F64)[:, None] * torch.exp(rate * T)


def solved(residual, y, **options):
    start = torch.tensor([1.0, -0.5], dtype=F64)
    options = {"solver": SOLVER, **options}
    return mslsq.least_squares(residual, start, (y,), in_dims=(None, 0), **options)


def test_a_batch_of_closed_code_is_compared_in_turn(compared):
    def residual(p, y):
        return p[0] * torch.exp(p[1] * T) - y

    counts = []
    for _ in range(2 * CHECKED_EVERY + 4):
        assert bool(solved(residual, rates()).converged.all())
        counts.append(len(compared))
    steps = [after - before for before, after in itertools.pairwise(counts)]
    assert sum(steps[3:]) == 2, steps
    assert all(step <= 1 for step in steps)


def test_problems_in_batches_are_compared_in_turn(compared):
    class Decay(mslsq.CostFunction):
        def residual(self, p, y):
            return p[0] * torch.exp(p[1] * T) - y

    p = mslsq.Variable("p", mslsq.Euclidean(2), count=1)
    problem = mslsq.Problem(Decay(p[torch.zeros(1, dtype=torch.int64)], y=rates()[:1], name="decay"))
    data = {"decay": {"y": rates()[:, None]}}
    start = {"p": torch.tensor([[1.0, -0.5]], dtype=F64)}
    dims = ({"p": None}, {"decay": {"y": 0}})
    for _ in range(8):
        found = mslsq.solve(problem, start, data=data, in_dims=dims, solver=SOLVER)
        assert bool(found.converged.all())
    before = len(compared)
    for _ in range(CHECKED_EVERY):
        mslsq.solve(problem, start, data=data, in_dims=dims, solver=SOLVER)
    assert len(compared) == before + 1


def test_what_is_recorded_later_is_compared(compared):
    """With a derivative something more is recorded."""

    def residual(p, y):
        return p[0] * torch.exp(p[1] * T) - y

    for _ in range(6):
        solved(residual, rates())
    before = len(compared)
    y = rates().requires_grad_()
    solved(residual, y).value.sum().backward()
    solved(residual, rates().requires_grad_())
    assert len(compared) > before


@dataclasses.dataclass
class Settings:
    rate: float = 1.0


SETTINGS, SCALE, TABLE = Settings(), 1.0, {"rate": 1.0}


def of_global(p, y):
    return p[0] * torch.exp(SCALE * p[1] * T) - y


def of_settings(p, y):
    return p[0] * torch.exp(SETTINGS.rate * p[1] * T) - y


def of_table(p, y):
    return p[0] * torch.exp(TABLE["rate"] * p[1] * T) - y


@pytest.mark.sampled(6)
@pytest.mark.parametrize("calls", [3, 10, CHECKED_EVERY, CHECKED_EVERY + 1])
@pytest.mark.parametrize("residual", [of_global, of_settings, of_table])
def test_what_the_code_reads_is_seen_in_every_call(residual, calls, monkeypatch):
    for _ in range(calls):
        torch.testing.assert_close(solved(residual, rates()).value[:, 1], torch.full((5,), -1.0, dtype=F64))
    monkeypatch.setattr(f"{__name__}.SCALE", 2.0)
    monkeypatch.setattr(SETTINGS, "rate", 2.0)
    monkeypatch.setitem(TABLE, "rate", 2.0)
    torch.testing.assert_close(solved(residual, rates()).value[:, 1], torch.full((5,), -0.5, dtype=F64))


class Opaque:
    """Reads what no walk sees."""

    __slots__ = ("hidden",)

    def __init__(self):
        self.hidden = iter(())

    def __call__(self, p, y):
        return p[0] * torch.exp(float(STATE.read()) * p[1] * T) - y


class State:
    def read(self):
        return getattr(builtins, "mslsq_of_this_test", 1.0)


STATE = State()


def test_code_that_is_not_closed_is_compared_in_every_call(compared, monkeypatch):
    residual = Opaque()
    for _ in range(6):
        solved(residual, rates())
    before = len(compared)
    for _ in range(4):
        solved(residual, rates())
    assert len(compared) >= before + 4 or not before  # nothing is recorded at all, or each is compared
    monkeypatch.setattr(builtins, "mslsq_of_this_test", 2.0, raising=False)
    torch.testing.assert_close(solved(residual, rates()).value[:, 1], torch.full((5,), -0.5, dtype=F64))


def test_arguments_of_a_class_of_ones_own_are_compared_in_every_call(compared):
    class Holder:
        rate = 1.0

    def residual(p, y, holder):
        return p[0] * torch.exp(holder.rate * p[1] * T) - y

    start, holder = torch.tensor([1.0, -0.5], dtype=F64), Holder()

    def call():
        return mslsq.least_squares(residual, start, (rates(), holder), in_dims=(None, 0, None), solver=SOLVER)

    for _ in range(8):
        call()
    before = len(compared)
    call()
    assert len(compared) == before + 1


def test_what_changes_past_all_that_is_compared_is_said(monkeypatch):
    """PyTorch's own method is replaced."""

    def residual(p, y):
        return p[0] * torch.special.expm1(p[1] * T) - y

    y = torch.linspace(0.5, 1.5, 5, dtype=F64)[:, None] * torch.special.expm1(-T)
    for _ in range(4):
        assert bool(solved(residual, y).converged.all())
    # What is looked up is compared in every call: seen at once.
    real = torch.special.expm1
    monkeypatch.setattr(torch.special, "expm1", lambda x: real(2 * x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = solved(residual, y)
    torch.testing.assert_close(found.value[:, 1], torch.full((5,), -0.5, dtype=F64))


def test_a_change_inside_of_a_library_is_found_in_turn_and_said(monkeypatch):
    from mslsq.manifolds import planar

    def residual(p, y):
        return (mslsq.SO2.exp(p) @ mslsq.SO2.exp(y).inverse()).log()

    start = torch.zeros(1, dtype=F64)
    y = torch.full((4, 1), 0.1, dtype=F64)

    def call():
        return mslsq.least_squares(residual, start, (y,), in_dims=(None, 0), solver=SOLVER).value

    for _ in range(3):
        torch.testing.assert_close(call(), y)
    plain = planar.angle
    monkeypatch.setattr(planar, "angle", lambda z: plain(z) + 0.05 * plain(z).detach() + 0.01)
    with pytest.warns(UnseenChangeWarning, match="'residual'"):
        for _ in range(CHECKED_EVERY + 1):
            found = call()
    assert not torch.allclose(found, y)
    assert math.isfinite(float(found.sum()))


def test_a_loss_of_ones_own_is_compared_in_every_call(compared):
    class Own(mslsq.RobustLoss):
        def derivatives(self, s, parameters=None):
            return torch.log1p(s), 1 / (1 + s), -1 / (1 + s).square()

    def residual(p, y):
        return p[0] * torch.exp(p[1] * T) - y

    for _ in range(8):
        solved(residual, rates(), loss=Own())
    before = len(compared)
    solved(residual, rates(), loss=Own())
    assert len(compared) == before + 1
