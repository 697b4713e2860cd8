"""A small regression with a network, as most tests of the optimizer need it."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn


class Regression(NamedTuple):
    model: nn.Module
    x: Tensor
    y: Tensor

    def residual(self) -> Tensor:
        return self.model(self.x) - self.y

    def vector(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


def made(samples: int = 60, width: int = 6, outputs: int = 1, dtype=torch.float64, seed: int = 0) -> Regression:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, outputs)).to(dtype)
    x = 2 * torch.rand(samples, 2, generator=generator, dtype=torch.float64) - 1
    y = torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:]) + torch.arange(outputs) * x[:, :1] ** 2
    return Regression(model, x.to(dtype), y.to(dtype))


@pytest.fixture
def regression() -> Regression:
    return made()


@pytest.fixture(name="made")
def _made():
    """Makes a regression of other sizes."""
    return made
