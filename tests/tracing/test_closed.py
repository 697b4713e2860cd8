"""Which code is closed: it can read nothing but what a walk compares."""

import argparse
import dataclasses
import datetime
import enum
import functools
import itertools
import logging
import math
import operator
import os
import pathlib
import random
import time
import types
from collections import namedtuple

import attrs
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
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


def written(p):
    p[0] = 1.0
    return p


def written_through_another_name(p):
    mine = TABLE
    mine[0] = 1.0
    return mine * p


def written_into_either(p):
    r = TABLE if p.ndim else torch.zeros(3)
    r[0] = 1.0
    return r * p


def written_into_a_view(p):
    r = torch.zeros(3).view(-1)
    r[0] = 1.0
    return r * p


def filled(p):
    r = torch.zeros(4, dtype=p.dtype)
    r[:3] = p
    r[-1:] = 0.1 * p[:1]
    r += 1
    return r


def masked(p):
    r = 2 * p - 1
    r[r > 0.5] = 0.0
    return r


def filled_in_a_loop(p):
    J = torch.eye(3, dtype=p.dtype)
    for k in range(3):
        J[k, k] = p[k]
    terms = {}
    terms["a"] = J @ p
    return terms["a"]


def filled_through_an_alias(p):
    make = torch.zeros
    r = make(3)
    r[0] = 1.0
    return r * p


def filled_inside(p):
    def inner(x):
        r = x.new_empty(3)
        r[:] = x
        return r

    return inner(p)


class Mode(enum.Enum):
    PLAIN = 1
    DOUBLE = 2


@dataclasses.dataclass
class Settings:
    mode: Mode = Mode.DOUBLE
    folder: pathlib.Path = pathlib.Path("outputs")
    scales: tuple = (1.0, 2.0)


SETTINGS = Settings()


class Application:
    """Holds much that its residual does not read."""

    def __init__(self):
        self.scale, self.mode, self.folder = 2.0, Mode.DOUBLE, pathlib.Path("outputs")
        self.log, self.random, self.device = logging.getLogger("test"), np.random.default_rng(0), torch.device("cpu")
        self.generator, self.started = torch.Generator(), datetime.datetime(2020, 1, 1)

    def residual(self, p):
        return self.scale * p if self.mode is Mode.DOUBLE else p

    def by_random(self, p):
        return self.random.random() * p

    def by_alias(self, p):
        return self.alias.random() * p

    def by_folder(self, p):
        return float((self.folder / "gain").read_text()) * p

    def by_clock(self, p):
        return self.started.now().second * p

    def by_text(self, p):
        return TEXTS[f"{self.settings}"] * p


TEXTS = {"": 1.0}


def application(**attributes):
    made = Application()
    vars(made).update(attributes)
    return made


def two_ways():
    """The generator is an attribute that is not read, and a cell that is."""
    made, random_numbers = Application(), np.random.default_rng(0)
    made.unread = random_numbers

    def residual(p):
        return made.scale * p * random_numbers.random()

    return residual


def network(*extra, **options):
    return nn.Sequential(nn.Linear(3, 2, dtype=F64), nn.Tanh(), *extra, nn.Linear(2, 3, dtype=F64)).requires_grad_(
        False
    )


def hooked():
    made = network()
    made[0].register_forward_hook(lambda module, x, y: 2 * y)
    return made


class OwnNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.log = nn.Linear(3, 3, dtype=F64), logging.getLogger("test")

    def forward(self, x):
        return torch.relu(self.layer(x))


class OwnLinear(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class OwnDropout(nn.Dropout):
    """Draws random numbers in training."""


class OwnRandom(random.Random):
    """Shows nothing of what it holds."""

    def __call__(self, p):
        return self.random() * p


def called(module):
    return lambda p: module(p)


def configured(text):
    configuration = OmegaConf.create({"scale": text, "text": "2"})
    return lambda p: float(configuration.scale) * p


def namespace():
    settings = types.SimpleNamespace(scale=2.0, inner=types.SimpleNamespace(power=2))
    return lambda p: settings.scale * p**settings.inner.power


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 2.0
    mode: Mode = Mode.DOUBLE


@attrs.define
class Defined:
    scale: float = 2.0


def settings_of_many_kinds():
    frozen, defined, parsed = Frozen(), Defined(), argparse.Namespace(power=2)
    return lambda p: frozen.scale * defined.scale * p**parsed.power + frozen.mode.value


def imported(p):
    import decimal

    return float(decimal.Decimal(2)) * p


def context(p):
    with torch.no_grad():
        return 2 * p


def own_context(p):
    with torch.autograd.set_detect_anomaly(True):
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
    "settings of many kinds": settings_of_many_kinds(),
    "loop": Loop(),
    "branches": Branching(),
    "nested": nested,
    "filled": filled,
    "masked": masked,
    "filled in a loop": filled_in_a_loop,
    "filled inside": filled_inside,
    "function of NumPy": lambda p: torch.as_tensor(np.sin(1.0) * np.eye(3)) @ p,
    "context without derivatives": context,
    "reduced": lambda p: functools.reduce(operator.mul, p) * p,
    "pairs": lambda p: torch.stack([a - b for a, b in itertools.combinations(p, 2)]),
    "mapped inside": lambda p: torch.func.vmap(torch.func.grad(helper))(p),
    "device": lambda p: p.to(torch.device("cpu")),
    "layers": called(network()),
    "layers in evaluation": called(network(nn.Dropout(0.5), nn.BatchNorm1d(2, dtype=F64)).eval()),
    "network at module level": lambda p: NETWORK(p),
    "own network": called(OwnNetwork()),
    "own layer": called(OwnLinear(3, 3)),
    "dataclass": lambda p: SETTINGS.scales[SETTINGS.mode is Mode.DOUBLE] * p,
    "application": Application().residual,
    "configuration": configured("2.0"),
    "configuration with references": configured("${text}"),
    "namespace": namespace(),
    "sum of generators": lambda p: sum(x * x for x in p),
}

OPEN = {
    "environment": lambda p: float(os.environ["HOME"]) * p,
    "file": lambda p: float(open("gain").read()) * p,  # noqa: SIM115
    "clock": lambda p: time.time() * p,
    "random": lambda p: random.random() * p,
    "random of NumPy": lambda p: np.random.default_rng(0).random() * p,
    "printing of NumPy": lambda p: torch.as_tensor(float(np.array2string(np.ones(1))[1:2])) * p,
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
    "layers in training": called(network(nn.Dropout(0.5))),
    "layer of one's own in training": called(OwnDropout(0.5)),
    "layers with hooks": called(hooked()),
    "layer that is not known": called(nn.InstanceNorm1d(3, track_running_stats=True)),
    "random numbers of an application": Application().by_random,
    "the same by another name": application(alias=np.random.default_rng(0)).by_alias,
    "generator that is reached in two ways": two_ways(),
    "file of an application": Application().by_folder,
    "clock of an application": Application().by_clock,
    "text of an object": application(settings=application()).by_text,
    "hidden state of a base class": OwnRandom(0),
    "configuration with a reference to nothing": configured("${nothing}"),
    "assignment through another name": written_through_another_name,
    "assignment into either": written_into_either,
    "assignment into a view": written_into_a_view,
    "assignment into what is made by a name": filled_through_an_alias,
    "class that is made": lambda p: Pair(p, p).first,
    "class as a value": lambda p: p.__class__(p),
    "type as a value": lambda p: type(p)(p),
    "getter": lambda p: operator.attrgetter("sin")(p)(),
    "solve inside": lambda p: mslsq.least_squares(lambda x: x - p, p).value,
    "assignment to an attribute": Counting(),
    "attributes out of nowhere": Dynamic(),
    "assignment through an index": written,
    "import": imported,
    "context of one's own": lambda p: own_context(p),
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


def test_hooks_and_layers_are_looked_at_again(monkeypatch):
    closed = Closed.of(collect(called(network())), ())
    assert closed is not None and closed.holds
    handle = nn.modules.module.register_module_forward_hook(lambda module, x, y: 2 * y)
    assert not closed.holds
    handle.remove()
    assert closed.holds
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert not closed.holds
