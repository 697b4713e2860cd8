"""The descent of `log_scales.cpp` in PyTorch's operations: for devices that it is not compiled for, and its judge."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.alignment.scales.graph import Graph

L1_SCALE = 1e-2
"""Below it the start's loss is quadratic, in logs."""
FIRST_RELAXATION, SHRINKING = 16.0, 0.7
"""The loss is 16 times as wide at first, and 0.7 times as wide in every step (graduated non-convexity): with two fifths
of the ratios wrong 98.7 % of the scales are within 5 %, without it 96.9 %."""
SMALLEST_PIVOT = 1e-10


class _State(NamedTuple):
    x: Float[Tensor, "maps cells"]
    before: Float[Tensor, "maps cells"]
    cost: Float[Tensor, " cells"]
    newton: Bool[Tensor, " cells"]
    wait: Int[Tensor, " cells"]
    steps: Int[Tensor, " cells"]
    done: Bool[Tensor, " cells"]


def descend(
    graph: Graph,
    logs: Float[Tensor, "measurements cells"],
    trust: Float[Tensor, "measurements cells"],
    free: Float[Tensor, "maps cells"],
    scale: Float[Tensor, " cells"],
    starting: int,
    limit: int,
) -> tuple[Float[Tensor, "maps cells"], Int[Tensor, " cells"]]:
    """The logs that minimise the robust cost, and the steps taken, negative where the minimum was not reached."""
    cells = logs.shape[1]
    x = torch.zeros_like(free)
    for _ in range(starting):
        weight, _ = _absolute(_residual(graph, logs, x), trust)
        step, ok = _step(graph, weight, weight, _residual(graph, logs, x), free)
        x = x + torch.where(ok, step, 0)
    zero = torch.zeros(cells, dtype=torch.int64, device=logs.device)
    no = torch.zeros(cells, dtype=torch.bool, device=logs.device)
    state = _State(x, x, torch.zeros_like(scale), no, zero, zero, no)
    relaxation = FIRST_RELAXATION
    for _ in range(limit):
        relaxation = max(1.0, SHRINKING * relaxation)
        state = _advance(graph, logs, trust, free, scale, relaxation, state)
        if bool(state.done.all()):
            break
    return state.x, torch.where(state.done, state.steps, -state.steps)


def _advance(graph: Graph, logs: Tensor, trust: Tensor, free: Tensor, scale: Tensor, relaxation: float, s: _State):
    """A step: reweighted least squares, or Newton's near a minimum; taken back where it raised the cost."""
    residual = _residual(graph, logs, s.x)
    weight, curvature, cost = _geman_mcclure(residual, trust, relaxation * scale)
    curvature = torch.where(s.newton, curvature, weight)
    step, ok = _step(graph, weight, curvature, residual, free)
    rose = s.newton & (cost > s.cost * (1 + 1e-12))
    take = ok & ~rose & ~s.done
    here = torch.where(rose, s.before, s.x)
    step = torch.where(take, step, 0)
    longest = step.abs().amax(0)
    last = take if relaxation == 1.0 else torch.zeros_like(take)
    waiting = torch.where(s.newton & ~take, 8, (s.wait - 1).clamp(min=0))
    return _State(
        here + step,
        here,
        torch.where(rose | s.done, s.cost, cost),
        torch.where(s.done, s.newton, last & (longest < 0.1 * scale) & (waiting == 0)),
        torch.where(s.done, s.wait, waiting),
        s.steps + (~s.done).long(),
        s.done | (last & (longest <= 1e-9 * scale)),
    )


def _residual(graph: Graph, logs: Tensor, x: Tensor) -> Float[Tensor, "measurements cells"]:
    first, second = graph.ends
    return logs + x[first] - x[second]


def _absolute(residual: Tensor, trust: Tensor) -> tuple[Tensor, Tensor]:
    u = 1 / (1 + (trust * residual / L1_SCALE) ** 2)
    return trust**2 * u.sqrt(), u


def _geman_mcclure(residual: Tensor, trust: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ρ'(s) and ρ'(s) + 2 s ρ''(s) of every measurement, and the cost of every cell in units of scale² / 2."""
    u = 1 / (1 + (trust * residual / scale) ** 2)
    weight = trust**2 * u**2
    return weight, weight * (4 * u - 3), (1 - u).sum(0)


def laplacian(
    graph: Graph, weight: Float[Tensor, "measurements cells"], free: Float[Tensor, "maps cells"]
) -> Float[Tensor, "cells maps maps"]:
    """Σ w (e_i − e_j)(e_i − e_j)ᵀ of every cell; a held map has a row and a column of the identity."""
    n = graph.maps
    first, second = graph.ends
    off = weight * free[first] * free[second]
    matrix = torch.zeros(n * n, weight.shape[1], dtype=weight.dtype, device=weight.device)
    matrix = matrix.index_add(0, first * n + second, -off).index_add(0, second * n + first, -off)
    matrix = matrix.index_add(0, first * (n + 1), weight * free[first])
    matrix = matrix.index_add(0, second * (n + 1), weight * free[second])
    matrix = matrix.index_add(0, torch.arange(n, device=weight.device) * (n + 1), 1 - free)
    return matrix.reshape(n, n, -1).permute(2, 0, 1).contiguous()


def _step(graph: Graph, weight: Tensor, curvature: Tensor, residual: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """The step of every cell, zero and False where the matrix is not positive definite."""
    first, second = graph.ends
    pull = weight * residual
    right = torch.zeros_like(free).index_add(0, second, pull).index_add(0, first, -pull) * free
    matrix = laplacian(graph, curvature, free)
    factor, info = torch.linalg.cholesky_ex(matrix)
    pivots, before = torch.diagonal(factor, dim1=1, dim2=2), torch.diagonal(matrix, dim1=1, dim2=2)
    ok = (info == 0) & (pivots**2 > SMALLEST_PIVOT * before).all(1)
    eye = torch.eye(graph.maps, dtype=factor.dtype, device=factor.device)
    factor = torch.where(ok[:, None, None], factor, eye)
    step = torch.cholesky_solve(right.T[..., None], factor)[..., 0].T
    return torch.where(ok, step, 0), ok
