"""Random residuals, hundreds of them in one compilation: values and Jacobians are those of PyTorch."""

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from mslsq.tracing.graph import TRANSFORM_LOCK, graph_of
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
    torch.expm1, torch.erf, torch.asinh, torch.nn.functional.softplus, torch.nn.functional.silu,
    lambda x: torch.log1p(x.abs()), lambda x: (x * x + 0.2).rsqrt(), lambda x: torch.asin(x.tanh() * 0.9),
    lambda x: x - x.floor(), lambda x: x.sign() * x**3, lambda x: torch.remainder(x, 0.7),
    lambda x: x.to(torch.int64).to(x.dtype) * 0.5 + x, lambda x: (x > 0).to(x.dtype) * x.exp(),
    lambda x: torch.where((x > 0) & (x < 1), x.sin(), -x),
    lambda x: (x.reshape(2, 2) @ x.reshape(2, 2).mT).reshape(-1) / 2,
    lambda x: torch.linalg.vector_norm(x - 0.3) * x,
    lambda x: torch.addcmul(x, x, x, value=0.3),
]  # fmt: skip
TWO: list[Callable[[Any, Any], Tensor]] = [
    operator.add, operator.sub, operator.mul, lambda a, b: a / (b * b + 1), torch.maximum, torch.minimum,
    lambda a, b: torch.atan2(a, b.abs() + 0.5), lambda a, b: torch.where(a > b, a, b * 2), lambda a, b: a @ b * a,
    lambda a, b: torch.stack([a, b], 1).reshape(2, 4).sum(0), lambda a, b: torch.hypot(a, b + 2),
    lambda a, b: (a.abs() + 0.5) ** b,
    lambda a, b: torch.diag(a) @ b, lambda a, b: torch.lerp(a, b, 0.3),
    lambda a, b: torch.copysign(a, b), lambda a, b: torch.clamp(a, max=b), lambda a, b: torch.fmax(a, b) - b,
    lambda a, b: torch.fmod(a, b.abs() + 0.6), lambda a, b: torch.outer(a, b).diagonal(1).sum() + a,
    lambda a, b: torch.baddbmm(a.reshape(1, 2, 2), a.reshape(1, 2, 2), b.reshape(1, 2, 2)).reshape(-1),
]  # fmt: skip


def residual(seed: int) -> Callable[[Tensor], Tensor]:
    """A function of 4 numbers made of 3 to 9 random operations; the results of the last two."""
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
        return torch.cat(known[-2:])

    return function


OFF, TIMES = 1e-7, 4


class Perturbed(fx.Interpreter):
    """A recorded function in which the input and every result are off by a small part of them at random: so is every
    product of derivatives along a path."""

    def __init__(self, graph: fx.GraphModule, seed: int):
        super().__init__(graph)
        generator = torch.Generator().manual_seed(seed)
        shapes = {node: node.meta["val"].shape for node in graph.graph.nodes if "val" in node.meta}
        self._noise = {n: 1 + OFF * torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        is_real = isinstance(result, Tensor) and result.is_floating_point()
        return result * self._noise[n] if is_real and n in self._noise else result


def magnitudes(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """What rounding is multiplied by on its way to the residual (rows, lanes) and the Jacobian (rows, columns, lanes):
    the magnitude of all operands as propagated. Near a branch that includes the other side."""

    def both(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        return [torch.func.vmap(function)(x.T), torch.func.vmap(torch.func.jacfwd(function))(x.T)]

    x = x.double()
    with TRANSFORM_LOCK, torch.no_grad():
        graph = graph_of(function, [x[:, 0].clone()])
    exact, moved = both(function), [both(Perturbed(graph, seed).run) for seed in range(TIMES)]
    value, jacobian = (torch.stack([(run[k] - exact[k]).abs() for run in moved]).amax(0) / OFF for k in range(2))
    return value.movedim(0, -1), jacobian.movedim(0, -1)


def agree(found: Tensor, right: Tensor, allowed: Tensor) -> Tensor:
    """Entry by entry; where the magnitude itself overflows nothing is said."""
    return ((found - right).abs() <= allowed) | (found == right) | ~allowed.isfinite()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("dtype", "tolerance", "count"), [(torch.float64, 1e-13, 160), (torch.float32, 1e-5, 60)])
def test_random_residuals_and_their_jacobians_are_those_of_pytorch(dtype, tolerance, count):
    """Of the magnitude of the operands as propagated; measured: 1.2e-15 and 3.6e-7 at most."""
    functions = [residual(seed) for seed in range(count)]
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    told, compared = [], 0.0
    for seed, (function, found) in enumerate(zip(functions, native(functions, [x] * len(functions)), strict=True)):
        (value, forward), (_, reverse) = by_pytorch(function, x)
        of_value, of_jacobian = (tolerance * magnitude for magnitude in magnitudes(function, x))
        at_value = agree(found.residual, value, of_value)
        near = agree(found.jacobian, forward, of_jacobian) | agree(found.jacobian, reverse, of_jacobian)
        if not (at_value.all() and near.all()):
            told.append((seed, (found.residual - value)[~at_value], (found.jacobian - forward)[~near]))
        compared += float(of_jacobian.isfinite().double().mean()) / count
    assert not told, told
    assert compared > 0.99
