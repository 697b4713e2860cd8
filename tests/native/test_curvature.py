"""Gradients, Hessians and mixed derivatives of native programs beside those of PyTorch's plain reverse mode."""

from collections.abc import Callable

import torch
from torch import Tensor

from mslsq.native.arrays import input_array
from mslsq.native.building import Making, WrittenVector
from mslsq.native.curvature import Motion, gradient, hessian, mixed
from mslsq.native.recording import recorded
from mslsq.native.scalars import Program
from mslsq.native.text import Argument
from mslsq.tracing.graph import TRANSFORM_LOCK, graph_of
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER


def sinc(x: Tensor) -> Tensor:
    """sin x / x, by its series near 0."""
    small = x.abs() < 1e-2
    away = torch.where(small, 1.0, x)
    return torch.where(small, 1 - x**2 / 6 + x**4 / 120, torch.sin(away) / away)


COSTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arithmetic": lambda x, d: (x[0] * d[0] - x[1] / d[1] + x[2] * x[0] * x[1]) ** 2,
    "functions": lambda x, d: (d * torch.stack([x[0].exp(), x[1].sin() * x[0].cos(), x[2].tanh()])).square().sum(),
    "roots": lambda x, d: (x * x + d * d).sqrt().sum() + torch.hypot(x[0], d[1]) * torch.atan2(x[1], d[2]),
    "powers": lambda x, d: (x.abs() + 1).pow(2.5).sum() * d[0] + (x[0] ** 3) * d[1] + (1 + x[1] ** 2) ** (-d[2]),
    "logarithms": lambda x, d: (1 + x * x).log().sum() * d.sum() + torch.log1p(d[0] ** 2 * x[0] ** 2),
    "norms": lambda x, d: (x - d).norm() * (x + 2 * d).norm(),
    "choices": lambda x, d: torch.where(x > d, x * x * d, d * d * x**3).sum(),
    "larger": lambda x, d: torch.maximum(x * d, x * x).sum() + (x.clamp(-0.4, 0.4) * d).square().sum(),
    "a branch that is not taken": lambda x, d: (sinc(x * (d - d.detach())) * d * (1 + x) ** 2).sum(),
    "products": lambda x, d: (torch.outer(x, d) @ x - d.flip(0) * x).square().sum(),
    "hyperbolic": lambda x, d: (x.sinh() * d).cosh().sum() + (d * x).sigmoid().prod() + torch.erf(x * d).sum(),
    "inverse functions": lambda x, d: (x / 3).asin().square().sum() * d[0] + (x * d).atan().sum() + (x / 4).acos()[1],
    "without data": lambda x, d: (x[0] * x[1] * x[2]).sin(),
    "without variables": lambda x, d: d.square().sum(),
    "linear": lambda x, d: x[1] * 3 + d[0],
}


def test_gradients_hessians_and_mixed_derivatives_are_those_of_reverse_mode():
    written = [one for cost in COSTS.values() for one in _written(cost)]
    making = Making(written)
    making.wait()
    programs = making.programs()
    assert programs is not None
    generator = torch.Generator().manual_seed(4)
    x, d, v = (torch.randn(3, 21, generator=generator, dtype=F64) for _ in range(3))
    for number, (name, cost) in enumerate(COSTS.items()):
        slope, bend, both = programs[3 * number : 3 * number + 3]
        found = [slope.values([x, d], [False] * 2, 1, 21), bend.values([x, d], [False] * 2, 1, 21)]
        found.append(both.values([x, d, v[None]], [False, False, True], 1, 21))
        for lane in range(21):
            for own, right in zip(found, _by_reverse_mode(cost, *(z[:, lane] for z in (x, d, v))), strict=True):
                assert torch.allclose(own[0, :, lane], right, rtol=1e-11, atol=1e-12), name


def _written(cost: Callable[[Tensor, Tensor], Tensor]) -> list[WrittenVector]:
    """The three of a cost, as scalars."""
    found = []
    for kind in (gradient, hessian, mixed):
        example = [torch.linspace(0.3, 0.9, 3, dtype=F64), torch.linspace(0.4, 0.7, 3, dtype=F64)]
        with TRANSFORM_LOCK, torch.no_grad():
            graph = graph_of(lambda x, d: [cost(x, d).reshape(1)], example, guarded=True, functional=True)
        program = Program(F64)
        (outputs,) = recorded(program, graph, [input_array(k, z) for k, z in enumerate(example)])
        one = program.constant(1, "real")
        motion = Motion({program.input(0, k, "real").number: {k: one} for k in range(3)}, [], 3)
        inputs = [Argument(3, True)] * 2
        if kind is mixed:
            inputs.append(Argument(3, True))
            data, along = ([program.input(tensor, k, "real") for k in range(3)] for tensor in (1, 2))
            entries = mixed(program, outputs[0], motion, along, data)
        else:
            entries = kind(program, outputs[0], motion)
        found.append(WrittenVector.of(program, inputs, entries, 10_000))
    return found


def _by_reverse_mode(cost: Callable[[Tensor, Tensor], Tensor], x: Tensor, d: Tensor, v: Tensor) -> list[Tensor]:
    x, d = (z.clone().requires_grad_() for z in (x, d))
    kept = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
    (slope,) = torch.autograd.grad(cost(x, d), x, **kept)
    if not slope.requires_grad:
        return [slope.detach(), slope.new_zeros(9), slope.new_zeros(3)]
    rows = [torch.autograd.grad(part, x, **kept)[0] for part in slope]
    (both,) = torch.autograd.grad(slope @ v, d, **kept)
    return [slope.detach(), torch.cat(rows).detach(), both.detach()]
