"""One minimisation on one level from one or several estimates: which samples, which scale of the loss, which solver."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

import mslsq
from mslsq.alignment import passes
from mslsq.alignment.descent import UNFINISHED, Between, descend_pair, model_matrix
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.models import MODELS, Warp
from mslsq.alignment.objective import LOSSES, photometric_problem
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.spread import spread_at

SHARES = {"coarse": 0.1, "finest": 0.05}
"""Standard errors (of independent samples) that a solve may end from the minimum. The next level moves a coarse answer
by ten of them or more. On the finest a twentieth is 5e-5 px of a typical pair of 256² maps, and a seventieth of the
standard error that is stated; most solves take one step there, not two."""

TOLERANCES = {"coarse": 1e-5, "finest": 1e-9}
"""`ftol` of `mslsq.solve`, where it is used instead."""


CREEPING = 20
"""Steps at least, of a solve that may have crept."""


@dataclass(frozen=True)
class Refined:
    """A refined estimate, the valid samples that were frozen for it, why it stopped, and its costs along the way."""

    estimate: Estimate
    valid: Bool[Tensor, " n"]
    status: mslsq.Status
    costs: list[float]
    normal: passes.NormalEquations | None = None
    """The plain normal equations at the end, where there was no loss in them."""

    @property
    def rms(self) -> list[float]:
        """Root mean ρ per valid sample, at the start and after every step."""
        count = max(int(self.valid.count_nonzero()), 1)
        return [(2 * cost / count) ** 0.5 for cost in self.costs]

    def crept(self, correlated: float) -> bool:
        """Did the second half of its steps lower the cost by less than one standard error does, ½ c σ² with c samples
        that hold as much as one independent one? A robust loss whose scale is that of rounding leaves a solve at its
        minimum creeping along kinks."""
        end = self.costs[-1]
        if len(self.costs) <= CREEPING:
            return False
        return 2 * (self.costs[len(self.costs) // 2] - end) <= correlated * 2 * end / max(
            int(self.valid.count_nonzero()), 1
        )


def refine(
    estimates: Sequence[Estimate],
    level: PairLevel,
    model: str,
    loss: str | None,
    freedom: Float[Tensor, "2"],
    max_steps: int,
    precision: str,
) -> list[Refined]:
    """The minimum from each estimate on one level; the samples valid there are frozen. `precision`: coarse, finest."""
    kind: type[Warp] = MODELS[model]
    valid, scales = [], []
    for estimate in estimates:
        valid.append(level.glance(estimate.matrix)[1])
        scales.append(1.0 if loss is None else LOSSES[loss].tuning * spread_at(estimate, level)[0])
    if not passes.knows(kind, loss, level.planes.device):
        return _by_solve(estimates, level, model, loss, freedom, max_steps, precision, valid, scales)
    return [
        _by_descent(estimate, level, kind, loss, freedom, max_steps, precision, mask, scale)
        for estimate, mask, scale in zip(estimates, valid, scales, strict=True)
    ]


def _by_descent(
    estimate: Estimate,
    level: PairLevel,
    kind: type[Warp],
    loss: str | None,
    freedom: Float[Tensor, "2"],
    max_steps: int,
    precision: str,
    valid: Bool[Tensor, " n"],
    scale: float,
) -> Refined:
    """On the finest level most steps are taken with a quarter of the samples (`PairLevel.thinned`), and the last with
    all: its minimum is theirs."""
    values = freedom.numpy()
    free = np.concatenate([np.ones(kind.tangent_dim), values]) > 0
    begin = Between(model_matrix(kind, estimate.matrix.numpy()), estimate.value.numpy())
    costs, rate, thin = [], math.inf, level.thinned
    if precision == "finest" and thin is not level:
        some = passes.Pass(thin, values, level.thin(valid), kind.tangent_dim, loss, scale)
        first = descend_pair(some, kind, begin, free, max_steps, SHARES["coarse"])
        if first.status not in UNFINISHED and first.normal.samples > 0:
            begin, rate, samples = first.state, first.rate, first.normal.samples
            costs = [cost * int(valid.count_nonzero()) / samples for cost in first.costs[:-1]]
    equations = passes.Pass(level, values, valid, kind.tangent_dim, loss, scale)
    found = descend_pair(equations, kind, begin, free, max_steps, SHARES[precision], rate)
    matrix, value = torch.from_numpy(found.state.matrix), torch.from_numpy(found.state.value) * freedom
    normal = found.normal if loss is None else None
    return Refined(replace(estimate, matrix=matrix, value=value), valid, found.status, [*costs, *found.costs], normal)


def _by_solve(
    estimates: Sequence[Estimate],
    level: PairLevel,
    model: str,
    loss: str | None,
    freedom: Float[Tensor, "2"],
    max_steps: int,
    precision: str,
    valid: Sequence[Bool[Tensor, " n"]],
    scales: Sequence[float],
) -> list[Refined]:
    """The same in PyTorch's operations, all estimates as one batch of `mslsq.solve`."""
    kind: type[Warp] = MODELS[model]
    like = level.planes
    rows, shape = level.grid[0] * level.grid[1], tuple(level.moving.coefficients.shape)
    problem = photometric_problem(model, rows, shape, loss, like.dtype, like.device)
    data = level.data(torch.stack(list(valid)), freedom)
    mapped: dict[str, int | None] = dict.fromkeys(data) | {"valid": 0}
    if loss is not None:
        data["loss.scale"], mapped["loss.scale"] = like.new_tensor(scales), 0
    values = {
        "warp": kind.from_matrix(torch.stack([estimate.matrix for estimate in estimates])),
        "value": torch.stack([estimate.value for estimate in estimates]),
    }
    solver = mslsq.LevenbergMarquardt(
        max_steps=max_steps, ftol=TOLERANCES[precision], xtol=1e-10, gtol=0.0, trace="never"
    )
    data, in_dims = {"photometric": data}, (0, {"photometric": mapped})
    solution = mslsq.solve(problem, values, data, in_dims=in_dims, solver=solver)
    matrices = solution.value["warp"].matrix()
    return [
        Refined(
            replace(estimate, matrix=matrices[k], value=solution.value["value"][k] * freedom),
            valid[k],
            mslsq.Status(int(solution.status[k])),
            [cost for cost in solution.history.cost[k].tolist() if np.isfinite(cost)],
        )
        for k, estimate in enumerate(estimates)
    ]
