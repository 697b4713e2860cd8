"""Is the model too small for the maps? A larger one is tried where a score says that it may fit better.

A translation on a turned map lays one part of it on itself, and is off everywhere else: what its pixels' noise says of
its place says nothing then. The models are nested, so that the Jacobian of a homography at the estimate has the columns
of every larger model. With g = Jᵀr and H = JᵀJ of a homography, and g_m, H_m of the model alone,

    (gᵀ H⁻¹ g - g_mᵀ H_m⁻¹ g_m) / (σ² c)

has a χ² distribution at the truth, with the degrees of freedom that the model lacks (Rao, 1948), c the samples that
hold as much as one independent one. That takes one pass per level and no solve. Every level is asked: a coarse one sees
errors of many pixels, beyond the reach of the finest one's derivatives, and small ones are seen by the finest.

Where a score is not what chance alone explains easily, a homography is solved for, and the costs of both are compared:
their ratio sees errors beyond the reach of any derivative. Its noise is that of the residuals which the homography
leaves, sample by sample (White, 1982; Satorra and Bentler, 1994): what rounding leaves of a mask, or of a lamp, is all
at the edges, where the slopes are.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import get_lapack_funcs
from scipy.special import gammaincc
from torch import Tensor

from mslsq.alignment import passes
from mslsq.alignment.curvature import products
from mslsq.alignment.descent import Between
from mslsq.alignment.estimate import Estimate, judge, no_worse, sane
from mslsq.alignment.evenness import correlated_pixels
from mslsq.alignment.models import HORIZON, MODELS, Homography
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.refine import refine
from mslsq.alignment.spread import squares

LARGEST = Homography

potrf, trtrs = get_lapack_funcs(("potrf", "trtrs"), dtype=np.float64)

SUSPECTED = 0.25
"""Probability of a score as large or larger at the truth, below which larger models are tried. (Most scores of true
models are smaller than χ² has it; of models that are too small in much noise it was 0.01 to 0.2.)"""

PROMISING = 0.02
"""The same probability, by a homography that one level alone is asked for, above which no other level is asked: there
it costs no more than the one of all levels, and takes a third of the time."""

REJECTED = 1e-3
"""Probability of a cost as much larger than a homography's at the truth, below which a model does not fit."""

PRODUCTS = 1 << 14
"""About as many samples tell the spread of a score."""

STEPS = 15
"""Of a larger model on one level."""

SAYS = "The model does not fit"


class Misfit(NamedTuple):
    """How far the corners are off, as a homography has it, in pixels (root mean square), and which model fits."""

    off: float
    model: str
    """The smallest that fits as well as a homography; "" where the model itself does."""
    warp: Float[Tensor, "3 3"] | None = None
    """That homography."""

    @property
    def sentence(self) -> str:
        """What happened, and what to try."""
        if not self.model:
            return ""
        return f' {SAYS}: "{self.model}" fits better, by {self.off:.2g} px at the corners. Try model="{self.model}".'


FITS = Misfit(0.0, "")


def misfit(
    levels: Sequence[PairLevel],
    estimate: Estimate,
    options: Options,
    freedom: Float[Tensor, "2"],
    first: int,
    fitting: Collection[int] = (),
) -> Misfit:
    """Whether the model fits, by the levels from `first` on, which a prefilter leaves detail on, but those that are
    known to be `fitting`. Of warps that the kernels do not know nothing is asked."""
    if not may_be_too_small(options, levels):
        return FITS
    nesting = Nesting(levels, options, freedom, first)
    if not nesting.promising(estimate, fitting):
        return FITS
    largest = nesting.refined(estimate)
    noise = nesting.noise(largest)
    if not nesting.rejected(estimate, options.model, largest, noise):
        return FITS
    return Misfit(nesting.apart(estimate, largest), nesting.smallest(largest, noise), largest.matrix)


def may_be_too_small(options: Options, levels: Sequence[PairLevel]) -> bool:
    """Is there a larger model, and do the kernels know this one?"""
    kind = MODELS[options.model]
    return passes.knows(kind, None, levels[0].planes.device) and kind.tangent_dim < LARGEST.tangent_dim


def larger_models(name: str) -> list[str]:
    """By name, from the next to the largest."""
    names = list(MODELS)
    return names[names.index(name) + 1 :]


@dataclass(frozen=True)
class Nesting:
    """The levels of a pair on which models are compared, from the `first` of those that are asked."""

    levels: Sequence[PairLevel]
    options: Options
    freedom: Float[Tensor, "2"]
    first: int

    @property
    def asked(self) -> Sequence[PairLevel]:
        return self.levels[self.first :]

    def promising(self, estimate: Estimate, fitting: Collection[int] = ()) -> bool:
        """Does a homography cost less on a level whose score is suspected? Coarse levels, which take the least time,
        are asked first, and not those that are known to be `fitting`."""
        return any(
            self.by_chance(level, estimate) < SUSPECTED and self.promising_on(level, estimate)
            for level in reversed(self.asked)
            if level.index not in fitting
        )

    def promising_on(self, level: PairLevel, estimate: Estimate) -> bool:
        """Does a homography that is solved for on this level alone cost less there than chance explains easily?"""
        name, tangent = larger_models(self.options.model)[-1], MODELS[self.options.model].tangent_dim
        (there,) = refine([estimate], level, name, None, self.freedom, STEPS, "coarse")
        if not sane(there.estimate):
            return True  # for all levels to tell
        noise = Noise.of(level, there.estimate, self.freedom, self.options.prefilter)
        less = 2 * (there.costs[0] - there.costs[-1])
        return chance(less / noise.per_degree(tangent, self.freedom), tangent) < PROMISING

    def by_chance(self, level: PairLevel, estimate: Estimate) -> float:
        """The probability of as large a score on one level, where the model fits: as noise has it, or where that is
        less than `SUSPECTED`, as residuals have it that are correlated farther, which have to be looked at."""
        tangent = MODELS[self.options.model].tangent_dim
        statistic = score(level, estimate, tangent, self.freedom)
        by_noise = chance(statistic / blurred(level, self.options.prefilter), tangent)
        if by_noise >= SUSPECTED:
            return by_noise
        return chance(statistic / correlated(level, estimate, self.options.prefilter), tangent)

    def noise(self, largest: Estimate) -> list["Noise"]:
        """Of every level that is asked, with the residuals that a homography leaves."""
        return [Noise.of(level, largest, self.freedom, self.options.prefilter) for level in self.asked]

    def rejected(self, estimate: Estimate, model: str, largest: Estimate, noise: Sequence["Noise"]) -> bool:
        """Does a homography cost less on some level, by more than chance explains?"""
        both = zip(self.asked, noise, strict=True)
        return any(self.rejected_on(level, of_level, estimate, model, largest) for level, of_level in both)

    def rejects(self, position: int, estimate: Estimate, largest: Estimate) -> bool:
        """The same of any level, asked or not."""
        level = self.levels[position]
        noise = Noise.of(level, largest, self.freedom, self.options.prefilter)
        return self.rejected_on(level, noise, estimate, self.options.model, largest)

    def rejected_on(self, level: PairLevel, noise: "Noise", estimate: Estimate, model: str, largest: Estimate) -> bool:
        """The same of one level."""
        tangent = MODELS[model].tangent_dim
        return chance(decrease(level, estimate, largest) / noise.per_degree(tangent, self.freedom), tangent) < REJECTED

    def smallest(self, largest: Estimate, noise: Sequence["Noise"]) -> str:
        """The smallest of the larger models that a homography does not reject. Coarse levels, which take the least
        time, are asked first, and there the least squares, by which models are compared."""
        *between, name = larger_models(self.options.model)
        for model in between:
            found, fits = largest, True
            for level, of_level in [*zip(self.asked, noise, strict=True)][::-1]:
                (there,) = refine([found], level, model, None, self.freedom, STEPS, precision_on(level))
                fits = sane(there.estimate) and not self.rejected_on(level, of_level, there.estimate, model, largest)
                if not fits:
                    break
                found = there.estimate
            coarser = list(zip(self.asked, noise, strict=True))[1:]  # on the finest it has been asked
            if fits and not any(self.rejected_on(*at, found, model, largest) for at in coarser):
                return model
        return name

    def refined(self, estimate: Estimate) -> Estimate:
        """A homography from the estimate on, coarse to fine; the estimate where that agrees no better in the end."""
        found, name = estimate, larger_models(self.options.model)[-1]
        for level in reversed(self.levels):
            (there,) = refine([found], level, name, self.loss(level), self.freedom, STEPS, precision_on(level))
            if no_worse(there.estimate, found, level, there.valid, 0.5 * self.options.min_overlap):
                found = there.estimate
        before, after = (judge(one, self.levels[0]) for one in (estimate, found))
        return after if after.certainty > before.certainty else estimate

    def loss(self, level: PairLevel) -> str | None:
        """That of the options; squares on the finest level."""
        return self.options.loss if level.index else None

    def apart(self, one: Estimate, other: Estimate) -> float:
        """The root mean square distance of the corners under two warps, in pixels."""
        frame = self.levels[0].frame
        x, y = (frame.centre / frame.half).tolist()
        at = np.array([[-x, x, x, -x], [-y, -y, y, y], [1.0, 1.0, 1.0, 1.0]])
        (x, y, depth), (u, v, below) = (estimate.matrix.numpy(force=True) @ at for estimate in (one, other))
        depth, below = np.maximum(depth, HORIZON), np.maximum(below, HORIZON)
        return float(np.sqrt(np.mean((x / depth - u / below) ** 2 + (y / depth - v / below) ** 2))) * frame.half


@dataclass(frozen=True)
class Noise:
    """Of a homography on one level: H = JᵀJ, and the covariance Σ c r² JᵀJ of its gradient."""

    matrix: Float[np.ndarray, "unknowns unknowns"]
    spread: Float[np.ndarray, "unknowns unknowns"]

    @classmethod
    def of(cls, level: PairLevel, estimate: Estimate, freedom: Float[Tensor, "2"], prefilter: float) -> Self:
        """With the residuals that an estimate leaves, of some of the samples."""
        chosen = level.look(estimate.matrix)[1].nonzero()[:, 0]
        every = max(1, len(chosen) // PRODUCTS)
        at = Between(estimate.matrix.numpy(), estimate.value.numpy())
        seen = products(level, None, LARGEST, freedom.numpy(), at, chosen[::every])
        return cls(seen.own, correlated(level, estimate, prefilter) * seen.scores)

    def per_degree(self, tangent: int, freedom: Float[Tensor, "2"]) -> float:
        """What each unknown beyond the first takes off the cost's double by chance, in the mean: of what the first
        leave of the others. Infinite where they are not independent."""
        own, extra = _parts(tangent, freedom)
        inner, across, outer = (
            (rows[:, None], columns) for rows, columns in ((own, own), (own, extra), (extra, extra))
        )
        try:
            along = np.linalg.solve(self.matrix[inner], self.matrix[across])
            left, of_left = (
                whole[outer] - whole[across].T @ along - along.T @ (whole[across] - whole[inner] @ along)
                for whole in (self.matrix, self.spread)
            )
            each = float(np.trace(np.linalg.solve(left, of_left))) / len(left)
        except np.linalg.LinAlgError:
            return math.inf
        return each if each > 0 else math.inf


def precision_on(level: PairLevel) -> str:
    """Of a solve that only its end is asked of: on the finest level most steps are then taken with a quarter of the
    samples."""
    return "coarse" if level.index else "finest"


def score(level: PairLevel, estimate: Estimate, tangent: int, freedom: Float[Tensor, "2"]) -> float:
    """The statistic of one level, c times: from one pass over samples that tell it. 0 where unknowns are not
    independent."""
    valid, thin = level.valid(estimate.matrix), level.thinned
    valid = valid if thin is level else level.thin(valid)
    at = estimate.matrix.numpy(), estimate.value.numpy()
    normal = passes.normal_equations(thin, *at, freedom.numpy(), valid, LARGEST.tangent_dim)
    own, extra = _parts(tangent, freedom)
    more = _decrement(normal, np.concatenate([own, extra]), len(own))
    if not (normal.cost > 0 and math.isfinite(more)):
        return 0.0
    return (thin.stride / level.stride) ** 2 * more * normal.samples / (2 * normal.cost)


def _decrement(normal: passes.NormalEquations, which: Int[np.ndarray, " some"], own: int) -> float:
    """gᵀ H⁻¹ g of some unknowns less that of the first of them: with H = L Lᵀ, what those behind have of |L⁻¹ g|². NaN
    where they are not independent."""
    factor, failed = potrf(normal.matrix[which[:, None], which], lower=1)
    if failed:
        return math.nan
    left = trtrs(factor, normal.gradient[which], lower=1)[0][own:]
    return float(left @ left)


def decrease(level: PairLevel, one: Estimate, other: Estimate) -> float:
    """By how much the squares of residuals that both estimates see are more for one than for the other."""
    both = level.valid(one.matrix) & level.valid(other.matrix)
    return squares(one, level, both) - squares(other, level, both)


def chance(statistic: float, tangent: int) -> float:
    """Of χ² with the degrees of freedom that a model lacks, at least this."""
    lacking = LARGEST.tangent_dim - tangent
    return float(gammaincc(lacking / 2, max(statistic, 0.0) / 2)) if math.isfinite(statistic) else 1.0


def correlated(level: PairLevel, estimate: Estimate, prefilter: float) -> float:
    """Samples of a level that hold as much as one independent one: as `blurred` has it, or where more of them vary
    slowly, by light or by what has moved, as many as they show themselves."""
    return max(blurred(level, prefilter), correlated_pixels(level, estimate))


def blurred(level: PairLevel, prefilter: float) -> float:
    """The same as filters alone make it: 4πs² with s the width of all that has blurred the level, the prefilter and 1
    px before every halving; 1 at least."""
    square = prefilter**2
    for _ in range(round(math.log2(level.factor))):
        square = (square + 1) / 4
    return max(1.0, 4 * math.pi * square / level.stride**2)


def _parts(tangent: int, freedom: Float[Tensor, "2"]) -> tuple[Int[np.ndarray, " own"], Int[np.ndarray, " extra"]]:
    """The unknowns of a model with the values that are looked for, and those that a homography has beside."""
    return _numbered(tangent, *freedom.tolist())


@lru_cache(maxsize=32)
def _numbered(tangent: int, gain: float, bias: float) -> tuple[Int[np.ndarray, " own"], Int[np.ndarray, " extra"]]:
    count = LARGEST.tangent_dim
    values = [count + k for k, free in enumerate((gain, bias)) if free]
    return np.array([*range(tangent), *values]), np.arange(tangent, count)
