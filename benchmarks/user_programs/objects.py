"""Residuals that are methods of objects, or read configurations and networks."""

import dataclasses
import enum
import logging
import types
from collections import namedtuple
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from user_programs.functions import F64, START, T, Y

logger = logging.getLogger(__name__)
Camera = namedtuple("Camera", "focal centre")


class Kind(enum.Enum):
    EXPONENTIAL = "exponential"
    LINEAR = "linear"


@dataclasses.dataclass
class Settings:
    weight: float = 2.0
    kind: Kind = Kind.EXPONENTIAL
    output: Path = Path("outputs")
    scales: list = dataclasses.field(default_factory=lambda: [1.0, 2.0])


@dataclasses.dataclass(frozen=True)
class Line:
    """A value object that is made inside of the residual."""

    slope: Tensor
    offset: Tensor

    def at(self, t: Tensor) -> Tensor:
        return self.slope * t + self.offset


@dataclasses.dataclass
class Circle:
    centre: Tensor
    radius: Tensor

    def distance(self, points: Tensor) -> Tensor:
        return torch.linalg.norm(points - self.centre, dim=-1) - self.radius


class Parameters(NamedTuple):
    scale: Tensor
    rate: Tensor
    offset: Tensor


class Lens:
    """Made inside of the residual, with an ordinary constructor."""

    def __init__(self, k):
        self.k1, self.k2 = k[0], k[1]

    def __call__(self, r):
        return r * (1 + self.k1 * r**2 + self.k2 * r**4)


def circle_as_a_dataclass(p, points):
    return Circle(p[:2], p[2]).distance(points)


def line_as_a_frozen_dataclass(p, t, y):
    return Line(p[0], p[1]).at(t) + p[2] - y


def parameters_as_a_named_tuple(p, t, y):
    q = Parameters(*p)
    return q.scale * torch.exp(q.rate * t) + q.offset - y


def lens_as_an_object(p, t, y):
    return Lens(p)(t) + p[2] - y


class Calibration:
    """An application's object: its method is the residual."""

    UNIT = 1e-3

    def __init__(self, settings):
        self.settings = settings
        self.K = np.array([[100.0, 0.0], [0.0, 90.0]])
        self.points = torch.ones(4, 2, dtype=F64)
        self.log = logging.getLogger("calibration")
        self.folder = Path("outputs")
        self.calls = 0

    @property
    def weight(self):
        return self.settings.weight * self.UNIT

    def project(self, points):
        return points @ torch.from_numpy(self.K).T

    def residual(self, p):
        return (self.weight * self.project(self.points * p[0] + p[1:])).reshape(-1)


class Counting(Calibration):
    def residual(self, p):
        self.calls += 1
        return super().residual(p)


class Logging(Calibration):
    def residual(self, p):
        r = super().residual(p)
        logger.debug("residual of shape %s", r.shape)
        return r


class Simulator:
    """Integrates an equation in steps."""

    def __init__(self, steps=4, device="cpu"):
        self.steps, self.device, self.rng = steps, torch.device(device), np.random.default_rng(0)

    def rhs(self, state, p):
        x, v = state
        return torch.stack([v, -p[0] * x - p[1] * v])

    def __call__(self, p, y):
        h, state = 1.0 / self.steps, torch.stack([p[2], torch.zeros_like(p[2])])
        states = []
        for _ in range(self.steps):
            k1 = self.rhs(state, p)
            k2 = self.rhs(state + 0.5 * h * k1, p)
            state = state + h * k2
            states.append(state[0])
        return torch.stack(states) - y


class Polynomials:
    def __init__(self, degree):
        self.funcs = [self.monomial(k) for k in range(degree)]

    @staticmethod
    def monomial(k):
        return lambda t: t**k

    def __call__(self, p, t, y):
        return sum(c * f(t) for c, f in zip(p, self.funcs)) - y


def configured(cfg):
    def residual(p, t, y):
        r = p[0] * torch.exp(p[1] * t) + p[2] - y
        return cfg.weight * r if cfg.get("robust", False) is False else r

    return residual, START, (T, Y)


def omegaconf():
    return configured(OmegaConf.create({"weight": 2.0, "robust": False, "optimizer": {"lr": 0.1}}))


def omegaconf_with_interpolation():
    return configured(OmegaConf.create({"weight": "${scale}", "scale": 3.0}))


def simple_namespace():
    cfg = types.SimpleNamespace(weight=2.0, model=types.SimpleNamespace(name="exp"))

    def residual(p, t, y):
        name = f"model {cfg.model.name}"
        return cfg.weight * (p[0] * torch.exp(p[1] * t) + p[2] - y) if name == "model exp" else y

    return residual, START, (T, Y)


def dataclass_of_settings():
    settings = Settings()

    def residual(p, t, y):
        model = torch.exp(p[1] * t) if settings.kind is Kind.EXPONENTIAL else p[1] * t
        return settings.weight * sum(settings.scales) * (p[0] * model + p[2] - y)

    return residual, START, (T, Y)


def dictionary_of_settings():
    config = {"model": {"power": 2, "weights": [1.0, 0.5]}, "name": "fit"}

    def residual(p, t, y):
        w0, w1 = config["model"]["weights"]
        return w0 * p[0] * t ** config["model"]["power"] + w1 * p[1] * t + p[2] - y

    return residual, START, (T, Y)


def network(model, start=START):
    for parameter in model.parameters():
        parameter.requires_grad_(False)

    def residual(p, t, y):
        features = torch.stack([t, p[0] * t, p[1] * t**2], dim=-1)
        return model(features).squeeze(-1) + p[2] - y

    return residual, start, (T, Y)


class Net(nn.Module):
    def __init__(self, width=4, dropout=0.0):
        super().__init__()
        self.first, self.second = nn.Linear(3, width, dtype=F64), nn.Linear(width, 1, dtype=F64)
        self.act = nn.Tanh()
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.second(self.drop(self.act(self.first(x))))


class Residual(nn.Module):
    """The residual is a module whose parameters are something else's."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5, dtype=F64), requires_grad=False)
        self.register_buffer("scale", torch.tensor(2.0, dtype=F64))

    def forward(self, p, t, y):
        return self.scale * (self.gain * p[0] * t + p[1] + p[2] - y)


def circle_of_points():
    return circle_as_a_dataclass, START, (torch.rand(6, 2, dtype=F64),)


WRITTEN = {
    "circle_as_a_dataclass": circle_of_points,
    **{
        f.__name__: (lambda f=f: (f, START, (T, Y)))
        for f in (line_as_a_frozen_dataclass, parameters_as_a_named_tuple, lens_as_an_object)
    },
    "calibration_method": lambda: (Calibration(Settings()).residual, START, ()),
    "counting_method": lambda: (Counting(Settings()).residual, START, ()),
    "logging_method": lambda: (Logging(Settings()).residual, START, ()),
    "simulator": lambda: (Simulator(), START, (Y[:4],)),
    "polynomials": lambda: (Polynomials(3), START, (T, Y)),
    **{
        f.__name__: f
        for f in (
            *(omegaconf, omegaconf_with_interpolation, simple_namespace, dataclass_of_settings),
            dictionary_of_settings,
        )
    },
    "linear_layer": lambda: network(nn.Linear(3, 1, dtype=F64)),
    "sequential_network": lambda: network(
        nn.Sequential(nn.Linear(3, 4, dtype=F64), nn.SiLU(), nn.LayerNorm(4, dtype=F64), nn.Linear(4, 1, dtype=F64))
    ),
    "network_class": lambda: network(Net()),
    "network_with_dropout_in_eval": lambda: network(Net(dropout=0.5).eval()),
    "module_as_residual": lambda: (Residual(), START, (T, Y)),
}
