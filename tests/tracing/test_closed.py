"""Which code is closed: it can read nothing but what a walk compares."""

import functools
import math
import operator
import os
import random
import time
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

import mslsq
from mslsq.tracing.reading.closed import Closed
from mslsq.tracing.reading.inputs import collect

F64 = torch.float64
SCALE, TABLE, NUMBERS = 2.0, torch.ones(3, dtype=F64), [1.0, 2.0]
LARGE = torch.ones(5000)
GENERATOR = torch.Generator()
NETWORK = nn.Linear(3, 3)
Pair = namedtuple("Pair", "first second")


def is_closed(function):
    return Closed.of(collect(function), ()) is not None


def helper(x, power=2):
    return x**power


class Model:
    """Shows all that it holds."""

    def __init__(self):
        self.scale = 2.0

    def __call__(self, p, t):
        return self.scale * self.basis(t) * p

    def basis(self, t):
        return torch.exp(-t)


class Counting(Model):
    def __call__(self, p, t):
        self.calls = 1
        return p * t


class Dynamic(Model):
    def __getattr__(self, name):
        return time.time()


class Loop:
    def __call__(self, p):
        return torch.stack([k * x for k, x in enumerate(p) if k > 0])


class Branching:
    def __call__(self, p, weights=(1.0, 2.0)):
        if len(p) != 3:
            raise IndexError(f"wrong length {len(p)}")
        first, *rest = weights
        if isinstance(p, torch.Tensor) and p.ndim == 1:
            return {"r": first * p, "s": sum(rest) * p}["r"]
        raise ValueError(p)


def nested(p):
    def inner(x):
        return SCALE * x

    return inner(p)


CLOSED = {
    "decay": lambda p, t, y: p[0] * torch.exp(p[1] * t) + p[2] - y,
    "global number": lambda p: SCALE * p,
    "global tensor": lambda p: TABLE * p,
    "global list": lambda p: NUMBERS[0] * p,
    "helper": lambda p: helper(p) + helper(p, power=3),
    "linear algebra": lambda p: torch.linalg.norm(p, dim=-1) + torch.nn.functional.softplus(p).sum(),
    "mathematics": lambda p: math.sqrt(2.0) * math.pi * p,
    "methods": lambda p: p.sin().clamp(min=0.0).reshape(-1, 1).squeeze(-1).T,
    "manifolds": lambda p: (mslsq.SE2.exp(p).inverse() @ mslsq.SE2.exp(p)).log(),
    "of its own": lambda p: torch.stack([p[k] for k in range(3)]),
    "made by the code": lambda p: torch.zeros(3, dtype=torch.float64) + torch.tensor([1.0, 2.0, 3.0]),
    "object": Model(),
    "method of an object": Model().basis,
    "partial": functools.partial(helper, power=4),
    "loop": Loop(),
    "branches": Branching(),
    "nested": nested,
    "sum of generators": lambda p: sum(x * x for x in p),
}


def written(p):
    p = p.clone()
    p[0] = 1.0
    return p


def imported(p):
    import decimal

    return float(decimal.Decimal(2)) * p


def context(p):
    with torch.no_grad():
        return 2 * p


def caught(p):
    try:
        return p / 0
    except ZeroDivisionError:
        return p


def rebinding():
    count = 0

    def residual(p):
        nonlocal count
        count += 1
        return p

    return residual


def printed(p):
    print(p)
    return p


@functools.cache
def cached(key):
    return key


@torch.no_grad()
def decorated(p):
    return 2 * p


OPEN = {
    "environment": lambda p: float(os.environ["HOME"]) * p,
    "file": lambda p: float(open("gain").read()) * p,  # noqa: SIM115
    "clock": lambda p: time.time() * p,
    "random": lambda p: random.random() * p,
    "random of NumPy": lambda p: np.random.default_rng(0).random() * p,
    "function of NumPy": lambda p: torch.as_tensor(np.sin(1.0)) * p,
    "loaded": lambda p: torch.load("gain") * p,
    "mapped memory": lambda p: torch.from_file("gain", size=3) * p,
    "state of PyTorch": lambda p: p if torch.is_grad_enabled() else 2 * p,
    "default dtype": lambda p: p.to(torch.get_default_dtype()),
    "flag": lambda p: p if torch.backends.cudnn.enabled else 2 * p,
    "name in a string": lambda p: getattr(p, "si" + "n")(),
    "all names": lambda p: globals()["SCALE"] * p,
    "evaluated": lambda p: eval("2 * p"),
    "how a tensor was made": lambda p: p if p.requires_grad else 2 * p,
    "version of a tensor": lambda p: p * p._version,
    "number of a tensor": lambda p: p * TABLE.sum().item(),
    "writing method": lambda p: p.mul_(2),
    "large global": lambda p: p * LARGE[0],
    "generator": lambda p: p * GENERATOR.initial_seed(),
    "network of PyTorch": lambda p: NETWORK(p),
    "class that is made": lambda p: Pair(p, p).first,
    "type as a value": lambda p: type(p)(p),
    "getter": lambda p: operator.attrgetter("sin")(p)(),
    "solve inside": lambda p: mslsq.least_squares(lambda x: x - p, p).value,
    "assignment to an attribute": Counting(),
    "attributes out of nowhere": Dynamic(),
    "assignment through an index": written,
    "import": imported,
    "context": context,
    "exception": caught,
    "assignment to a cell": rebinding(),
    "output": printed,
    "cache": lambda p: cached(2.0) * p,
    "decorated by PyTorch": decorated,
    "mapped by PyTorch": torch.vmap(helper),
}


@pytest.mark.parametrize("name", CLOSED)
def test_code_that_reads_what_is_compared_is_closed(name):
    assert is_closed(CLOSED[name])


@pytest.mark.parametrize("name", OPEN)
def test_code_that_may_read_more_is_open(name):
    assert not is_closed(OPEN[name])


def test_names_of_libraries_are_looked_at_again(monkeypatch):
    closed = Closed.of(collect(CLOSED["decay"]), ())
    assert closed is not None and closed.holds
    with torch.device("cpu"):
        assert not closed.holds
    monkeypatch.setattr(torch, "exp", torch.sin)
    assert not closed.holds
    monkeypatch.undo()
    assert closed.holds
    closed = Closed.of(collect(CLOSED["methods"]), ())
    monkeypatch.setattr(torch.Tensor, "sin", torch.Tensor.cos, raising=False)
    assert closed is not None and not closed.holds
