"""A residual that keeps tensors of its own evaluations: refused with a name, in every mode and in every call."""

import pytest
import torch

import mslsq
from mslsq.errors import UncollectedTensorError
from mslsq.private import has_escaped

F64 = torch.float64
T = torch.linspace(0, 2, 30, dtype=F64)
Y = 2 * torch.exp(-1.3 * T)
START = torch.tensor([1.0, -1.0], dtype=F64)
MODES = [{"native": "never", "trace": "never"}, {"native": "never"}, {}, {"native": "wait"}]


def solved(residual, mode, args=(T, Y)):
    return mslsq.least_squares(residual, START, args, solver=mslsq.LevenbergMarquardt(**mode))


def caching():
    memo = {}

    def residual(p, t, y):
        if "decay" not in memo:
            memo["decay"] = torch.exp(p[1] * t)
        return p[0] * memo["decay"] - y

    return residual


def logging():
    log = []

    def residual(p, t, y):
        r = p[0] * torch.exp(p[1] * t) - y
        log.append(r)
        return r

    return residual


class Model:
    def __init__(self):
        self.cache = {}

    def __call__(self, p, t, y):
        if len(t) not in self.cache:
            self.cache[len(t)] = torch.exp(p[1] * t)
        return p[0] * self.cache[len(t)] - y


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("make", "place"),
    [(caching, "'memo'['decay']"), (logging, "'log'[0]"), (Model, "cache[30]")],
    ids=["cache", "list", "module"],
)
def test_what_depends_on_the_variables_is_not_kept(make, place, mode):
    residual = make()
    for _ in range(2):  # what has been kept is there again in the second call
        with pytest.raises(UncollectedTensorError, match="has kept a tensor of one of its own") as caught:
            solved(residual, mode)
        assert place in str(caught.value) and "callback=" in str(caught.value)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_is_appended_detached_is_refused_by_name_in_the_second_call(mode):
    log = []

    def residual(p, t, y):
        r = p[0] * torch.exp(p[1] * t) - y
        log.append(r.detach())
        return r

    assert solved(residual, mode).converged
    with pytest.raises(UncollectedTensorError, match=r"'log'\[\d+\]"):
        solved(residual, mode)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_cache_of_constants_is_left_alone(mode):
    for _ in range(2):  # of the second nothing is evaluated to make a plan
        memo = {}

        def residual(p, y, memo=memo):
            if "grid" not in memo:
                memo["grid"] = torch.linspace(0, 2, len(y), dtype=F64)
            return p[0] * torch.exp(p[1] * memo["grid"]) - y

        for _ in range(2):
            torch.testing.assert_close(solved(residual, mode, (Y,)).value, torch.tensor([2.0, -1.3], dtype=F64))
        assert not has_escaped(memo["grid"])


def test_no_solution_is_a_tensor_of_a_transform_that_has_ended():
    """What is detached is meant as a constant: of the start, whether or not a plan is known."""

    def made():
        memo = {}

        def residual(p, t, y):
            if "decay" not in memo:
                memo["decay"] = torch.exp(p[1] * t).detach()
            return p[0] * memo["decay"] - y

        return residual

    for mode in ({"native": "never"}, {"native": "wait"}):
        value = solved(made(), mode).value
        assert not has_escaped(value)
        torch.testing.assert_close(value[1], START[1])
