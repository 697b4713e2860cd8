"""Scale synchronisation: N dense scale maps from the ratios between all pairs of them.

Depth maps of one scene from a network are each right up to a scale that varies over the image. Where maps i and j
overlap, their ratio v_ij = m_j / m_i is observed at every cell, noisily and with gross outliers; wanted are the
scale maps m_i. Nothing couples the cells, so this is a batch of small problems, one per cell, all solved at once:

    ½ Σ_ij ρ((v_ij m_i − m_j)²),      m_reference = 1.

m = 0 is a trivial minimum of the residuals; holding one map fixed removes it, together with the gauge. The residual
is linear in m, but with a redescending loss it has several minima, so the start is the robust solution in
logarithms, where the residual log m_i + log v_ij − log m_j is a convex function under the `SoftL1` loss.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq import (
    Cauchy,
    CostFunction,
    Euclidean,
    LevenbergMarquardt,
    Problem,
    ProblemError,
    Scale,
    SoftL1,
    Status,
    Variable,
    solve,
)
from mslsq.problem import ShapeError


class Ratio(CostFunction):
    """v m_i − m_j: map j should be v times map i."""

    def residual(self, first: Tensor, second: Tensor, ratio: Tensor) -> Tensor:
        return ratio * first - second

    def jacobians(self, first: Tensor, second: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
        return ratio.reshape(1, 1), -torch.ones_like(ratio).reshape(1, 1)


class LogRatio(CostFunction):
    """log m_i + log v − log m_j."""

    def residual(self, first: Tensor, second: Tensor, log_ratio: Tensor) -> Tensor:
        return first + log_ratio - second

    def jacobians(self, first: Tensor, second: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.ones_like(log_ratio).reshape(1, 1)
        return one, -one


@dataclass(frozen=True)
class ScaleSync:
    """Scale maps, and how each cell fared."""

    scales: Float[Tensor, "maps *cells"]
    """Relative to the reference map, which is 1; NaN where a cell has no answer."""
    status: Int[Tensor, "*cells"]
    """`mslsq.Status` of every cell's problem."""
    inliers: Float[Tensor, "pairs *cells"]
    """The weight ρ' that each ratio had at the end, 0 (outlier or missing) to 1."""
    noise: float
    """Robust standard deviation of the residuals, the scale of the loss."""

    def message(self) -> str:
        """In words, how the cells fared."""
        values, counts = torch.unique(self.status, return_counts=True)
        return "\n".join(
            f"{int(count)} of {self.status.numel()} cells: {Status(int(value)).sentence}"
            for value, count in zip(values, counts, strict=True)
        )


def scale_sync(
    ratios: Float[Tensor, "pairs *cells"],
    pairs: Int[Tensor, "pairs 2"],
    *,
    reference: int = 0,
    weight: Float[Tensor, "pairs *cells"] | None = None,
) -> ScaleSync:
    """Scale maps from ratios, robust to outliers.

    Args:
        ratios: `ratios[k]` is map j over map i for `(i, j) = pairs[k]`, positive; NaN, or not positive, where missing.
        pairs: the maps of each ratio; both orders of a pair may be given.
        reference: the map whose scale is held at 1.
        weight: confidence of each ratio, multiplies its residual; 0 to leave it out.

    Raises:
        ShapeError, ProblemError: shapes that do not agree, a map that no ratio mentions, nothing observed.

    >>> pairs = torch.tensor([[0, 1], [1, 2], [0, 2]])
    >>> scale_sync(torch.tensor([[2.0], [3.0], [6.0]], dtype=torch.float64), pairs).scales[:, 0]
    tensor([1., 2., 6.], dtype=torch.float64)
    """
    count = _check(ratios, pairs, reference, weight)
    cells = ratios.shape[1:]
    flat = ratios.flatten(1).T
    observed = torch.isfinite(flat) & (flat > 0)
    flat = torch.where(observed, flat, 1.0)
    trust = observed.to(flat.dtype) if weight is None else observed * weight.flatten(1).T.to(flat.dtype)
    # A cell in which no ratio leads to some map has no answer; its weights stay, the solver says that it is singular.
    first, second = pairs[:, 0], pairs[:, 1]

    log_scale = Variable("log_scale", Euclidean(1), count=count)
    in_logs = Problem(
        LogRatio(
            log_scale[first], log_scale[second], log_ratio=flat[0].log(), weight=Scale(trust[0]), loss=SoftL1(0.05)
        ),
        log_scale.fixed([reference]),
    )
    start = flat.new_zeros(len(flat), count, 1)
    data = {"log_ratio": {"log_ratio": flat.log(), "weight": trust}}
    solver = LevenbergMarquardt(max_steps=60, ftol=1e-6)
    solution = solve(in_logs, {"log_scale": start}, data, in_dims=(0, 0), solver=solver)
    rough = solution.value["log_scale"].exp()

    # Residuals of a fit are centred; their scale over all cells at once, as one sensor made them.
    noise = 1.4826 * float(_residual(flat, rough, first, second)[trust > 0].abs().median())
    noise = max(noise, 1e-6 * float(rough.abs().median()))
    scale = Variable("scale", Euclidean(1), count=count)
    loss = Cauchy(Cauchy.tuning * noise)
    problem = Problem(
        Ratio(scale[first], scale[second], ratio=flat[0], weight=Scale(trust[0]), loss=loss),
        scale.fixed([reference]),
    )
    data = {"ratio": {"ratio": flat, "weight": trust}}
    solution = solve(problem, {"scale": rough}, data, in_dims=(0, 0), solver=LevenbergMarquardt(max_steps=100))
    scales = solution.value["scale"]
    usable = solution.converged & _connected(trust > 0, first, second, count, reference)
    residual = trust * _residual(flat, scales, first, second)
    inliers = torch.where(trust > 0, loss.derivatives(residual**2)[1], 0)
    status = torch.where(solution.converged & ~usable, int(Status.SINGULAR), solution.status)
    return ScaleSync(
        torch.where(usable[:, None], scales[..., 0], torch.nan).T.reshape(count, *cells),
        status.reshape(cells),
        inliers.T.reshape(len(pairs), *cells),
        float(noise),
    )


def _residual(ratio: Tensor, scales: Tensor, first: Tensor, second: Tensor) -> Float[Tensor, "cells pairs"]:
    return ratio * scales[:, first, 0] - scales[:, second, 0]


def _connected(
    observed: Bool[Tensor, "cells pairs"], first: Tensor, second: Tensor, count: int, reference: int
) -> Bool[Tensor, "cells"]:
    """The cells in which a chain of observed ratios leads from the reference to every map."""
    reached = torch.zeros(len(observed), count, dtype=torch.bool, device=observed.device)
    reached[:, reference] = True
    for _ in range(count - 1):
        links = observed & (reached[:, first] | reached[:, second])
        spread = torch.zeros_like(reached, dtype=torch.int64)
        spread = spread.index_add(1, first, links.long()).index_add(1, second, links.long())
        reached = reached | (spread > 0)
    return reached.all(1)


def _check(ratios: Tensor, pairs: Tensor, reference: int, weight: Tensor | None) -> int:
    """The number of maps, or an error that says what does not fit."""
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
        raise ShapeError(
            f"pairs must be integers of shape (pairs, 2), not {pairs.dtype} of shape {tuple(pairs.shape)}."
        )
    if ratios.ndim < 2 or len(ratios) != len(pairs):
        raise ShapeError(
            f"ratios must have shape (pairs, *cells) with one map of ratios per row of pairs ({len(pairs)}), "
            f"not {tuple(ratios.shape)}."
        )
    if not ratios.is_floating_point():
        raise ProblemError(f"ratios must be real floating point, not {ratios.dtype}.")
    if weight is not None and weight.shape != ratios.shape:
        raise ShapeError(f"weight must have the shape of ratios, {tuple(ratios.shape)}, not {tuple(weight.shape)}.")
    if len(pairs) == 0 or ratios.numel() == 0:
        raise ProblemError("There are no ratios.")
    if bool((pairs[:, 0] == pairs[:, 1]).any()) or int(pairs.min()) < 0:
        raise ProblemError("pairs must name two different maps, numbered from 0.")
    count = int(pairs.max()) + 1
    missing = sorted(set(range(count)) - set(pairs.unique().tolist()))
    if missing:
        raise ProblemError(f"No ratio mentions map {missing[0]}; maps are numbered 0 to {count - 1} without gaps.")
    if not 0 <= reference < count:
        raise ProblemError(f"reference must be one of the maps 0 to {count - 1}, not {reference}.")
    if not bool((torch.isfinite(ratios) & (ratios > 0)).any()):
        raise ProblemError("No ratio is positive and finite: nothing is observed.")
    return count
