"""The common pixels of two maps, seen from one of them: what they say of the warp between the two, and of their values.

Every link has two of these, one from either map. Each compares in the values of the map it is seen from, so that no
map gains by becoming fainter, and noise in one map attenuates the ratio of gains as much as noise in the other raises
it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.alignment import passes
from mslsq.alignment.descent import Between
from mslsq.alignment.estimate import Estimate, PairLevel, heavy_tails, spread_at
from mslsq.alignment.linking import Linker
from mslsq.alignment.models import MODELS, Warp
from mslsq.alignment.objective import LOSSES
from mslsq.alignment.sampling import sample_with_gradient_at

CHUNK = 1 << 16
"""Samples whose Jacobians are held at a time: 5 MB of them for a homography."""


class Seen(NamedTuple):
    """Some of the samples: where they are, and the channels' residuals and Jacobians over (tangent, log gain, bias)."""

    points: Float[Tensor, "n 2"]
    residual: Float[Tensor, "n channels"]
    jacobian: Float[Tensor, "n channels unknowns"]
    of_target: Float[Tensor, "n channels unknowns"]
    """The same Jacobian, as the map that is compared with has it: its gradients, its values. Noise in the two is
    independent, so that their product has none of it."""


@dataclass(frozen=True)
class Overlap:
    """One map seen from another, the valid samples and the loss frozen."""

    fixed: int
    moving: int
    level: PairLevel
    coefficients: Float[Tensor, "channels height width"]
    """Of the map that is seen from."""
    kind: type[Warp]
    freedom: Float[np.ndarray, "2"]
    valid: Bool[Tensor, " n"]
    sigma: float
    """Of the residuals, by their median."""
    loss: str | None

    @staticmethod
    def of(linker: Linker, fixed: int, moving: int, at: Between, reference: int) -> "Overlap":
        """All pixels of the finest level at some place."""
        options = linker.options
        one, other = (
            linker.pyramid(index, 1, linker.units(reference, index)[index != reference])[0] for index in (fixed, moving)
        )
        height, width = one.size
        level, probe = (PairLevel.of(one, other, linker.frame(fixed), 0, most=height * width) for _ in range(2))
        estimate = Estimate(torch.from_numpy(at.matrix), torch.from_numpy(at.value), "joint")
        valid = probe.look(estimate.matrix)[1]  # what the probe keeps of the look goes with it
        sigma = spread_at(estimate, probe)[0]
        loss = options.loss if options.loss and heavy_tails(estimate, probe) else None
        freedom = np.array(options.freedom, float)
        return Overlap(fixed, moving, level, one.coefficients, MODELS[options.model], freedom, valid, sigma, loss)

    @property
    def count(self) -> int:
        return int(self.valid.count_nonzero())

    @property
    def scale(self) -> float:
        """Of the loss."""
        return 1.0 if self.loss is None else LOSSES[self.loss].tuning * self.sigma

    def normal_equations(self, at: Between) -> passes.NormalEquations:
        """Cost, gradient and JᵀJ at some place: one pass of the kernel, or sample by sample where it does not go."""
        if passes.knows(self.kind, self.loss, self.level.planes.device):
            return passes.normal_equations(
                self.level, at.matrix, at.value, self.freedom, self.valid, self.kind.tangent_dim, self.loss, self.scale
            )
        unknowns = self.kind.tangent_dim + 2
        cost, gradient, matrix = 0.0, np.zeros(unknowns), np.zeros((unknowns, unknowns))
        for seen in self.samples(at):
            squared, weight = self._rho(seen.residual)
            weighted = weight[:, None, None] * seen.jacobian
            cost += 0.5 * float(squared.sum())
            gradient += torch.einsum("ncu,nc->u", weighted, seen.residual).numpy(force=True)
            matrix += torch.einsum("ncu,ncv->uv", weighted, seen.jacobian).numpy(force=True)
        return passes.NormalEquations(self.count, cost, gradient, matrix)

    def influence(self, residual: Float[Tensor, "n channels"]) -> Float[Tensor, " n"]:
        """ρ' of each sample: what the loss leaves of its square."""
        return self._rho(residual)[1]

    def _rho(self, residual: Float[Tensor, "n channels"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        squared = (residual**2).sum(-1)
        if self.loss is None:
            return squared, torch.ones_like(squared)
        rho, weight, _ = LOSSES[self.loss](squared.new_tensor(self.scale)).derivatives(squared)
        return rho, weight

    def samples(self, at: Between) -> Iterator[Seen]:
        """The valid samples, `CHUNK` at a time."""
        chosen = self.valid.nonzero()[:, 0]
        for part in chosen.split(CHUNK):
            yield self._seen(at, part)

    def _seen(self, at: Between, chosen: Int[Tensor, " n"]) -> Seen:
        level = self.level
        columns = level.grid[1]
        pixels = torch.stack([chosen % columns, chosen // columns], -1).to(level.planes)
        points, target = level.frame.normalise(pixels), level.planes[:, chosen]
        warp = self.kind.from_matrix(torch.from_numpy(at.matrix).to(points))
        moved, depth = warp.act_and_depth(points)
        log_gain, bias = (at.value * self.freedom).tolist()
        gain = float(np.exp(log_gain))
        factor, offset = level.to_level[0], level.to_level[1:]
        value, slope = sample_with_gradient_at(level.moving.coefficients, moved * factor + offset)
        identity = self.kind.identity().to(points)
        _, own_slope = sample_with_gradient_at(self.coefficients, pixels)
        by_warp = self._pulled(warp, slope.movedim(0, 1) * (gain * factor), points, moved, depth)
        own = self._pulled(identity, own_slope.movedim(0, 1) * level.frame.half, points, points, torch.ones_like(depth))
        corrected = gain * value.T
        residual = corrected + bias - target.T
        return Seen(
            points,
            residual,
            self._with_values(by_warp, corrected),
            self._with_values(own, target.T - bias),
        )

    @staticmethod
    def _pulled(
        warp: Warp, slope: Tensor, points: Tensor, moved: Tensor, depth: Tensor
    ) -> Float[Tensor, "n channels tangent"]:
        return torch.func.vmap(lambda g, p, m, d: warp.pull_back(g, p, (m, d)))(slope, points, moved, depth)

    def _with_values(self, by_warp: Tensor, corrected: Tensor) -> Float[Tensor, "n channels unknowns"]:
        """The columns of log gain and bias beside those of the warp."""
        free = torch.from_numpy(self.freedom).to(corrected)
        by_value = torch.stack([corrected * free[0], torch.ones_like(corrected) * free[1]], -1)
        return torch.cat([by_warp, by_value], -1)
