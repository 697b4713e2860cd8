"""One level of both pyramids: the samples that are compared, what they see of `dem`, and their normal equations.

r = D(u + o - d) + A β - R(u) at the pixels u of the reference, with D the spline through `dem` (`sampling`), d the
shift in pixels, o the offset of the grids and A the columns of the bias model. The unknowns are (d, β), d in half-sides
of the reference and β in spreads of its elevations, so that steps of 1 are large in all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

import mslsq.losses
from mslsq.alignment.dem.bias import ELEVATION_SIGMA, Bias, Frame
from mslsq.alignment.dem.pair import Pair
from mslsq.alignment.grids import inside_moved
from mslsq.alignment.measures import nmad
from mslsq.alignment.objective import LOSSES
from mslsq.alignment.passes import NormalEquations
from mslsq.alignment.pyramid import Level, build, fill, masked_blur
from mslsq.alignment.sampling import sample_at, sample_with_gradient_at

CHUNK = 1 << 17
"""Samples whose Jacobians are held at a time."""


class Solved(NamedTuple):
    """A shift of `dem` in pixels (columns, rows) of the reference, and the bias's coefficients in metres."""

    shift: Float[np.ndarray, "2"]
    bias: Float[np.ndarray, " columns"]


@dataclass(frozen=True)
class Smoothed:
    """Elevations of a reference for the columns of a bias model, made when they are first asked for."""

    pair: Pair

    @cached_property
    def elevation(self) -> Float[Tensor, "height width"]:
        """Blurred by `ELEVATION_SIGMA`, its holes filled."""
        smooth, share = masked_blur(self.pair.reference[None], self.pair.known, ELEVATION_SIGMA)
        return fill(smooth, share > 0.02)[0]


@dataclass(frozen=True)
class Pyramids:
    """Both models at all levels, finest first, the smoothed elevations and what coefficients refer to."""

    pair: Pair
    reference: list[Level]
    dem: list[Level]
    smoothed: Smoothed
    frame: Frame

    @cached_property
    def unsmoothed(self) -> "Pyramids":
        """The finest level of both as they were given."""
        pair = self.pair
        one, other = (
            build(raster[None], known, 1, prefilter=0.0)
            for raster, known in ((pair.reference, pair.known), (pair.dem, pair.dem_known))
        )
        return replace(self, reference=one, dem=other)

    @classmethod
    def of(cls, pair: Pair, levels: int, frame: Frame | None = None) -> "Pyramids":
        """`levels` levels of a pair; of parts of larger models with the frame of the whole."""
        one = build(pair.reference[None], pair.known, levels)
        other = build(pair.dem[None], pair.dem_known, levels)
        if frame is not None:
            return cls(pair, one, other, Smoothed(pair), frame)
        height, width = pair.known.shape
        values = pair.reference[pair.known]
        median = float(values.median())
        unit = max(nmad(values), 0.1 * float(values.std()), 1e-3)
        return cls(pair, one, other, Smoothed(pair), Frame(((width - 1) / 2, (height - 1) / 2), median, unit))


@dataclass(frozen=True)
class Comparison:
    """The samples of one level: `pixels` (n, 2) of the level, their values in the reference and their columns.

    `steady` are the columns with a smoothed elevation, whose noise is not that of the residuals.
    """

    pair: Pair
    bias: Bias
    frame: Frame
    factor: int
    dem: Level
    pixels: Float[Tensor, "n 2"]
    target: Float[Tensor, " n"]
    columns: Float[Tensor, "n columns"]
    steady: Float[Tensor, "n columns"]
    size: tuple[int, int]

    @classmethod
    def of(
        cls, pyramids: Pyramids, index: int, bias: Bias, allowed: Bool[Tensor, "height width"] | None = None
    ) -> "Comparison":
        """All stable pixels of a level; `allowed` (of the finest level) says which of these are used."""
        pair, level = pyramids.pair, pyramids.reference[index]
        factor = level.factor
        stable = pair.stable if allowed is None else pair.stable & allowed
        rows, columns = torch.nonzero(level.mask & stable[::factor, ::factor], as_tuple=True)
        pixels = torch.stack([columns, rows], -1).to(level.raster.dtype)
        target, places = level.raster[0][rows, columns], pair.places(pixels * factor)
        steady = own = bias.columns(places, target, pyramids.frame)
        if bias.power:
            smooth = pyramids.smoothed.elevation[::factor, ::factor][rows, columns]
            steady = bias.columns(places, smooth, pyramids.frame)
        return cls(pair, bias, pyramids.frame, factor, pyramids.dem[index], pixels, target, own, steady, level.size)

    @property
    def half(self) -> float:
        """Pixels of the finest level that are a step of 1 in the shift."""
        return max(*self.frame.half, 1.0)

    @property
    def places(self) -> Float[Tensor, "n 2"]:
        """Where the samples are in the whole reference, in its pixels."""
        return self.pair.places(self.pixels * self.factor)

    def positions(self, shift: Float[np.ndarray, "2"]) -> Float[Tensor, "n 2"]:
        """Where the samples fall in `dem`, in pixels of the level."""
        return self.pixels + torch.from_numpy((self.pair.offset - shift) / self.factor)

    def valid(self, shift: Float[np.ndarray, "2"]) -> "Comparison":
        """The samples alone that fall on data of `dem`."""
        there = inside_moved((self.pair.offset - shift) / self.factor, self.dem.mask, self.size)
        return self.chosen(self.at(there))

    def at(self, raster: Shaped[Tensor, "height width"]) -> Shaped[Tensor, " n"]:
        """What a raster of the level has at the samples."""
        columns, rows = self.pixels.long().unbind(-1)
        return raster[rows, columns]

    def chosen(self, keep: Bool[Tensor, " n"]) -> "Comparison":
        """Some of the samples."""
        return Comparison(
            self.pair, self.bias, self.frame, self.factor, self.dem, self.pixels[keep], self.target[keep],
            self.columns[keep], self.steady[keep], self.size,
        )  # fmt: skip

    def without_bias(self, bias: Float[np.ndarray, " columns"]) -> "Comparison":
        """The same samples with this bias taken off, and a constant as the only column."""
        target = self.target - self.columns @ torch.from_numpy(bias)
        constant = torch.ones_like(target)[:, None]
        return Comparison(
            self.pair, Bias(), self.frame, self.factor, self.dem, self.pixels, target, constant, constant, self.size
        )

    def residual(self, at: Solved) -> Float[Tensor, " n"]:
        """Of all samples, in metres."""
        sampled = sample_at(self.dem.coefficients, self.positions(at.shift))[0]
        return sampled + self.columns @ torch.from_numpy(at.bias) - self.target

    def jacobians(self, at: Solved) -> Iterator[tuple[slice, Float[Tensor, " m"], Float[Tensor, "m unknowns"]]]:
        """Samples, residuals and Jacobians in pixels and metres, `CHUNK` at a time."""
        positions = self.positions(at.shift)
        for first in range(0, len(positions), CHUNK):
            part = slice(first, first + CHUNK)
            sampled, slope = sample_with_gradient_at(self.dem.coefficients, positions[part])
            columns = self.columns[part]
            residual = sampled[0] + columns @ torch.from_numpy(at.bias) - self.target[part]
            yield part, residual, torch.cat([-slope[0] / self.factor, columns], -1)

    @cached_property
    def units(self) -> Float[np.ndarray, " unknowns"]:
        """Pixels and metres of a step of 1."""
        return np.array([self.half] * 2 + [self.frame.unit] * self.bias.count)

    def solved(self, state: Float[np.ndarray, " unknowns"]) -> Solved:
        """Unknowns as pixels and metres."""
        found = state * self.units
        return Solved(found[:2], found[2:])

    def state(self, at: Solved) -> Float[np.ndarray, " unknowns"]:
        """Pixels and metres as unknowns."""
        return np.concatenate([at.shift, at.bias]) / self.units

    def normal_equations(
        self, state: Float[np.ndarray, " unknowns"], loss: str | None, scale: float
    ) -> NormalEquations:
        """½Σρ, its gradient and JᵀWJ over the unknowns, W = ρ'."""
        cost, gradient, matrix = 0.0, 0.0, 0.0
        for _, residual, jacobian in self.jacobians(self.solved(state)):
            rho, weight, _ = weighted(residual, loss, scale)
            cost += 0.5 * float(rho.sum())
            heavy = jacobian * weight[:, None]
            gradient = gradient + (heavy.T @ residual).numpy()
            matrix = matrix + (heavy.T @ jacobian).numpy()
        units = self.units
        return NormalEquations(len(self.pixels), cost, gradient * units, matrix * np.outer(units, units))


def weighted(residual: Tensor, loss: str | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """ρ, ρ' and ρ'' of the squares of residuals; `scale` is their sigma."""
    squared = residual.square()
    if loss is None:
        return squared, torch.ones_like(squared), torch.zeros_like(squared)
    return robust(loss, scale).derivatives(squared)


def robust(loss: str, scale: float) -> mslsq.losses.RobustLoss:
    """The loss of this name at residuals of this sigma."""
    return LOSSES[loss](LOSSES[loss].tuning * scale)
