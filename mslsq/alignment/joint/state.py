"""The unknowns of all maps together: a warp, a log gain and a bias each, and what a pair of maps sees of them."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mslsq.alignment.descent import Between, step_matrix
from mslsq.alignment.models import Frame, Warp
from mslsq.alignment.tangents import adjoint, change


@dataclass(frozen=True)
class State:
    """Of every map: the warp from the reference in the reference's normalised coordinates, and (log gain, bias), by
    which its standardised values become those of the reference: v = exp(α) x + b."""

    warps: Float[np.ndarray, "maps 3 3"]
    values: Float[np.ndarray, "maps 2"]

    def moved(self, kind: type[Warp], step: Float[np.ndarray, "maps unknowns"]) -> "State":
        """W ← W R(ξ), and sums for the values."""
        moved = np.stack([warp @ step_matrix(kind, xi) for warp, xi in zip(self.warps, step[:, :-2], strict=True)])
        return State(moved / moved[:, 2:, 2:], self.values + step[:, -2:])


@dataclass(frozen=True)
class Coordinates:
    """The frames of the reference and of every map."""

    frame: Frame
    frames: dict[int, Frame]
    kind: type[Warp]

    def between(self, state: State, fixed: int, moving: int) -> Between:
        """What the map `moving` is, seen from `fixed`.

        S W_b W_a⁻¹ S⁻¹ with S from the common coordinates to those of a; and where v_a = v_b, x_a is
        exp(α_b - α_a) x_b + (b_b - b_a) exp(-α_a).
        """
        into = self._into(fixed)
        matrix = into @ state.warps[moving] @ np.linalg.inv(into @ state.warps[fixed])
        (alpha, bias), (other, its_bias) = state.values[fixed], state.values[moving]
        return Between(matrix / matrix[2, 2], np.array([other - alpha, (its_bias - bias) * np.exp(-alpha)]))

    def chain(
        self, state: State, fixed: int, moving: int
    ) -> tuple[Float[np.ndarray, "unknowns unknowns"], Float[np.ndarray, "unknowns unknowns"]]:
        """The derivatives of `between` (tangent, log gain, bias) with respect to the steps of both maps.

        With X = S W_a the tangent of the warp between is Ad(X) (ξ_b - ξ_a) to first order: X R(ξ) X⁻¹ = R(Ad(X) ξ).
        """
        tangent = self.kind.tangent_dim
        turned = adjoint(self._into(fixed) @ state.warps[fixed], tangent)
        (alpha, bias), (_, its_bias) = state.values[fixed], state.values[moving]
        by_fixed, by_moving = np.zeros((2, tangent + 2, tangent + 2))
        by_fixed[:tangent, :tangent], by_moving[:tangent, :tangent] = -turned, turned
        by_fixed[tangent, tangent], by_moving[tangent, tangent] = -1.0, 1.0
        shrink = np.exp(-alpha)
        by_fixed[-1, -2:] = -(its_bias - bias) * shrink, -shrink
        by_moving[-1, -1] = shrink
        return by_fixed, by_moving

    def out_of(self, state: State, index: int) -> Float[np.ndarray, "3 3"]:
        """From a map's own normalised coordinates to the common ones, through its warp."""
        return np.linalg.inv(self._into(index) @ state.warps[index])

    def _into(self, index: int) -> Float[np.ndarray, "3 3"]:
        return change(self.frame, self.frames[index]).numpy(force=True)


Units = tuple[tuple[float, float], tuple[float, float]]
"""(mean, spread) of the reference and of a map."""


def in_values(units: Units, log_gain: float, bias: float) -> tuple[float, float]:
    """Gain and bias between the values of a map and the reference's, of those between standardised ones."""
    (own, own_spread), (mean, spread) = units
    gain = own_spread * math.exp(log_gain) / spread
    return gain, own + own_spread * bias - gain * mean


def standardised(units: Units, gain: float, bias: float) -> tuple[float, float]:
    """The other way: log gain and bias."""
    (own, own_spread), (mean, spread) = units
    return math.log(gain * spread / own_spread), (gain * mean + bias - own) / own_spread
