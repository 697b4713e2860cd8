"""The common pixels of two maps, seen from one of them: what they say of the warp between the two, and of their values.

Every link has two of these, one from either map. Each compares in the values of the map it is seen from, so that no
map gains by becoming fainter, and noise in one map attenuates the ratio of gains as much as noise in the other raises
it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment import passes
from mslsq.alignment.curvature import Seen, samples
from mslsq.alignment.curves import curve_between, is_curved
from mslsq.alignment.descent import Between
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.evenness import slow_part, unevenness
from mslsq.alignment.light import DOUBTED, is_lit
from mslsq.alignment.linking import Linker
from mslsq.alignment.models import MODELS, Warp
from mslsq.alignment.objective import LOSSES
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.spread import heavy_tails, spread_at


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
    lit: bool = False
    """Do residuals vary slowly, as light does? Then they are without the local means that they had."""
    uneven: float = 0.0
    """Share of the residuals' energy that varies slowly."""
    curved: bool = False
    """Does a curve of values explain a part of them?"""

    @staticmethod
    def of(linker: Linker, fixed: int, moving: int, at: Between, reference: int) -> "Overlap":
        """All pixels of the finest level at some place, without what light leaves there."""
        options = linker.options
        one, other = (
            linker.pyramid(index, 1, linker.units(reference, index)[index != reference])[0] for index in (fixed, moving)
        )
        height, width = one.size
        level, probe = (PairLevel.of(one, other, linker.frame(fixed), 0, most=height * width) for _ in range(2))
        estimate = Estimate(torch.from_numpy(at.matrix), torch.from_numpy(at.value), "joint")
        valid = probe.look(estimate.matrix)[1]  # what the probe keeps of the look goes with it
        uneven = unevenness(probe, estimate)
        lit = is_lit(probe, estimate, uneven)
        curved = not lit and uneven >= DOUBTED and is_curved(probe, estimate, curve_between(probe, estimate))
        if lit:
            planes = level.planes + slow_part(probe, estimate)
            level, probe = replace(level, planes=planes, _last={}), replace(probe, planes=planes)
        sigma = spread_at(estimate, probe)[0]
        loss = options.loss if options.loss and heavy_tails(estimate, probe) else None
        freedom = np.array(options.freedom, float)
        return Overlap(
            fixed,
            moving,
            level,
            one.coefficients,
            MODELS[options.model],
            freedom,
            valid,
            sigma,
            loss,
            lit,
            uneven,
            curved,
        )

    @property
    def count(self) -> int:
        return int(self.valid.count_nonzero())

    def every(self, few: int) -> "Overlap":
        """The same of every few of its valid samples."""
        valid = torch.zeros_like(self.valid)
        valid[self.valid.nonzero()[::few, 0]] = True
        return replace(self, valid=valid)

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
        """The valid samples, some at a time."""
        chosen = self.valid.nonzero()[:, 0]
        return samples(self.level, self.coefficients, self.kind, self.freedom, at, chosen)
