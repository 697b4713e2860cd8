"""Random residuals, hundreds of them in one compilation: values and Jacobians are those of PyTorch."""

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.native.functions import NEEDS_COMPILER, by_pytorch, native

pytestmark = NEEDS_COMPILER

ONE: list[Callable[[Tensor], Tensor]] = [
    torch.sin, torch.cos, torch.tanh, torch.exp, torch.abs, torch.neg, torch.atan, torch.sigmoid, torch.relu,
    lambda x: (x * x + 1).sqrt(), lambda x: (x.abs() + 0.1).log(), lambda x: x.flip(0), lambda x: x.roll(1, 0),
    lambda x: x.cumsum(0), lambda x: x - x.mean(), lambda x: x / (x.norm() + 1), lambda x: x.clamp(-0.5, 0.8),
    lambda x: torch.stack([x, 2 * x]).sum(0), lambda x: x.reshape(-1, 1).expand(-1, 3).mean(1),
    lambda x: torch.cat([x[1:], x[:1]]), lambda x: torch.linalg.cross(x[:3], x[-3:]).sum() + x, lambda x: x.max() - x,
    lambda x: torch.where(x > x.mean(), x, x**2), lambda x: torch.einsum("i,j->ij", x, x).diagonal(),
    lambda x: x.amin(0) * x,
    lambda x: torch.outer(x, x) @ x / 4, lambda x: torch.nn.functional.pad(x, (1, 0))[:-1], lambda x: x.prod() + x,
    lambda x: torch.tril(torch.outer(x, x)).sum(1), lambda x: x[torch.tensor([0, 0, 2, 1])], lambda x: x.var() * x,
]  # fmt: skip
TWO: list[Callable[[Any, Any], Tensor]] = [
    operator.add, operator.sub, operator.mul, lambda a, b: a / (b * b + 1), torch.maximum, torch.minimum,
    lambda a, b: torch.atan2(a, b.abs() + 0.5), lambda a, b: torch.where(a > b, a, b * 2), lambda a, b: a @ b * a,
    lambda a, b: torch.stack([a, b], 1).reshape(2, 4).sum(0), lambda a, b: torch.hypot(a, b + 2),
    lambda a, b: (a.abs() + 0.5) ** b,
    lambda a, b: torch.diag(a) @ b, lambda a, b: torch.lerp(a, b, 0.3),
]  # fmt: skip


def residual(seed: int) -> Callable[[Tensor], Tensor]:
    """A function of 4 numbers made of 3 to 9 random operations."""
    chosen = random.Random(seed)
    steps = [
        (chosen.random() < 0.5, chosen.randrange(1000), chosen.randrange(1000), chosen.randrange(1000))
        for _ in range(chosen.randint(3, 9))
    ]

    def function(x: Tensor) -> Tensor:
        known = [x, x * 0.5 + 1]
        for one, which, a, b in steps:
            first, second = known[-1 - a % min(len(known), 2)], known[b % len(known)]
            made = ONE[which % len(ONE)](first) if one else TWO[which % len(TWO)](first, second)
            known.append(made)
        return known[-1]

    return function


@pytest.mark.parametrize(("dtype", "tolerance", "count"), [(torch.float64, 1e-12, 120), (torch.float32, 1e-4, 40)])
def test_random_residuals_and_their_jacobians_are_those_of_pytorch(dtype, tolerance, count):
    functions = [residual(seed) for seed in range(count)]
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    told = []
    for seed, (function, found) in enumerate(zip(functions, native(functions, [x] * len(functions)), strict=True)):
        (value, forward), (_, reverse) = by_pytorch(function, x)
        size = value.abs() + forward.abs().amax() + 1
        at_value = (found.residual - value).abs() <= tolerance * size
        room = tolerance * (forward.abs().amax() + size.amax())
        near = ((found.jacobian - forward).abs() <= room) | ((found.jacobian - reverse).abs() <= room)
        if not (at_value.all() and near.all()):
            told.append(
                (seed, (found.residual - value).abs().amax(), (found.jacobian - forward).abs().amax(), size.amax())
            )
    assert not told, told
