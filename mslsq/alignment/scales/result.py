"""Scale maps as they come back: with what each ratio counted, and standard errors, computed when they are asked for."""

import functools
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq import Status
from mslsq.alignment.scales.given import Given, chunks_of, measured
from mslsq.alignment.scales.graph import free_maps
from mslsq.alignment.scales.noise import FLOOR, loss_scale, variances


@dataclass(frozen=True)
class ScaleSync:
    """Scale maps, and how each cell fared."""

    scales: Float[Tensor, "maps *cells"]
    """Positive; NaN where no ratio mentions a map in a cell. Scales of one cell are comparable within a component."""
    component: Int[Tensor, "maps *cells"]
    """Per cell, the smallest map that a chain of ratios joins to this one; −1 where no ratio mentions it."""
    status: Int[Tensor, "*cells"]
    """`mslsq.Status` of every cell's problem; SINGULAR where it has no ratio at all."""
    noise: float
    """Robust standard deviation of log ratios, which the loss was scaled by; NaN where no ratio checks another."""
    reference: int | None
    """The map that is 1 in its component; None: the logs of every component have mean zero."""
    given: Given = field(repr=False)
    """The ratios, not copied: `inliers` and `standard_errors` are computed from them when they are first asked for."""

    @functools.cached_property
    def inliers(self) -> Float[Tensor, "pairs *cells"]:
        """The weight ρ' that each ratio had at the end, 0 (outlier or missing) to 1."""
        chunks = [_counts(self, chunk) for chunk in chunks_of(self.given)]
        inverse = torch.argsort(self.given.graph.order)
        return torch.cat(chunks, 1)[inverse].reshape(-1, *self.status.shape)

    @functools.cached_property
    def support(self) -> Float[Tensor, "maps *cells"]:
        """The sum of the weights of the ratios that mention a map: how many are believed.

        Below about 1.5 a single ratio says what the map's scale is, and none confirms it. Where ratios are few and some
        are wrong, that is where the wrong scales are (5 maps, half of the ratios missing, a fifth of them wrong: 8 %
        of all scales are off by more than 3 standard errors, 2 % of those with a support of 1.5 and more).
        """
        first, second = self.given.pairs.unbind(1)
        weights = self.inliers.flatten(1)
        sums = weights.new_zeros(len(self.scales), weights.shape[1])
        return sums.index_add(0, first, weights).index_add(0, second, weights).reshape(self.scales.shape)

    @functools.cached_property
    def standard_errors(self) -> Float[Tensor, "maps *cells"]:
        """Of `scales`, relative to the gauge: m σ √diag((Σ w² ρ' a aᵀ)⁺), a = ±1 at the two maps of a ratio.

        They assume independent ratios whose noise is `noise` / w, and believe the weights: where two groups of ratios
        contradict each other, they are those of the group that was believed. NaN where the noise cannot be told."""
        chunks = [_standard_errors(self, chunk) for chunk in chunks_of(self.given)]
        return torch.cat(chunks, 1).reshape(self.scales.shape)

    def message(self) -> str:
        """In words, how the cells fared."""
        answered, seen = torch.isfinite(self.scales), self.component >= 0
        empty, short = (int((self.status == int(status)).sum()) for status in (Status.SINGULAR, Status.MAX_STEPS))
        lines = [
            f"{self.status.numel() - empty - short} of {self.status.numel()} cells are solved, {empty} have no ratio.",
            f"{int(answered.sum())} of {answered.numel()} scales are answered; no ratio mentions {int((~seen).sum())}.",
        ]
        if short:
            lines.append(f"{short} cells did not converge and have no answer.")
        if not self.noise > FLOOR.get(self.scales.dtype, 1e-6):
            lines.append(
                "The ratios do not check each other (there are too few, or they were computed from the maps, which "
                "makes them agree whatever the maps' errors): nothing is averaged, there are no standard errors."
            )
        if self.reference is not None:
            apart = answered & (self.component != self.component[self.reference])
            if apart.any():
                lines.append(
                    f"{int(apart.sum())} of them are not joined to the reference {self.reference} in their cell: they "
                    "are relative to the geometric mean of their own component."
                )
        return "\n".join(lines)


def _counts(result: ScaleSync, cells: slice) -> Float[Tensor, "measurements cells"]:
    """The weight ρ' of every measurement, in the graph's order."""
    logs, trust, _ = measured(result.given, cells)
    x = result.scales.detach().flatten(1)[:, cells].to(torch.float64).log()
    first, second = result.given.graph.ends
    scale = loss_scale(result.noise, result.scales.dtype)
    u = 1 / (1 + (trust * (logs + x[first] - x[second]) / scale) ** 2)
    return torch.where(trust > 0, torch.nan_to_num(u**2), 0).detach().to(result.scales.dtype)


def _standard_errors(result: ScaleSync, cells: slice) -> Float[Tensor, "maps cells"]:
    _, trust, _ = measured(result.given, cells)
    weight = trust.detach() ** 2 * _counts(result, cells)
    component = result.component.flatten(1)[:, cells]
    inverse = variances(result.given.graph, weight, free_maps(component))
    # Row i of the gauge is e_i − g_i: the map less the reference, or less the mean of its component.
    together = (component.T[:, :, None] == component.T[:, None, :]).to(torch.float64)
    mean = together / together.sum(2, keepdim=True)
    if result.reference is not None:
        joined = together[:, :, result.reference] > 0
        to_reference = torch.nn.functional.one_hot(torch.tensor(result.reference, device="cpu"), len(component)).to(
            mean
        )
        mean = torch.where(joined[:, :, None], to_reference, mean)
    gauge = torch.eye(len(component), dtype=torch.float64, device=mean.device) - mean
    if not result.noise > FLOOR.get(result.scales.dtype, 1e-6):
        return torch.full_like(result.scales.flatten(1)[:, cells], torch.nan)
    variance = ((gauge @ inverse) * gauge).sum(2).T.clamp(min=0)
    errors = result.noise * variance.sqrt() * result.scales.detach().flatten(1)[:, cells]
    return torch.where(component >= 0, errors, torch.nan).to(result.scales.dtype)
