"""Scale synchronisation: N dense scale maps from the ratios between pairs of them.

Depth maps of one scene from a network are each right up to a scale that varies over the image. Where maps i and j
overlap, their ratio v_ij = m_j / m_i is observed at every cell, noisily and with gross outliers; wanted are the
scale maps m_i. In logs x_i = log m_i a residual is linear, nothing couples the cells, and every cell minimises

    ½ Σ_ij ρ((w_ij (x_i + log v_ij − x_j))²),      ρ(s) = s / (1 + s / c²)  (Geman and McClure),

c = 3.787 standard deviations of the ratios' noise. `scales/` has the parts.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq import ProblemError, Status
from mslsq.alignment.scales.cells import LIMIT, minimum_of
from mslsq.alignment.scales.differentiable import with_derivatives
from mslsq.alignment.scales.given import Given, check, chunks_of, measured
from mslsq.alignment.scales.graph import centred, components, free_maps, graph_of
from mslsq.alignment.scales.noise import loss_scale, noise_of
from mslsq.alignment.scales.result import ScaleSync
from mslsq.kernels import may_read
from mslsq.validation import number

__all__ = ["ScaleSync", "scale_sync"]

SAMPLE = 512
"""Cells that the noise is estimated from."""


def scale_sync(
    ratios: Float[Tensor, "pairs *cells"],
    pairs: Int[Tensor, "pairs 2"],
    *,
    reference: int | None = 0,
    weight: Float[Tensor, "pairs *cells"] | None = None,
    noise: float | None = None,
) -> ScaleSync:
    """Scale maps from ratios, robust to outliers, every map wherever some ratio mentions it.

    In a cell the ratios join the maps into components. Where the reference is in it, it is 1; in every other one the
    geometric mean is 1. The solves run in float64 whatever the dtype, in chunks of constant memory. Scales have
    derivatives in `ratios` and `weight` (of any two orders, both modes; the noise counts as a constant).

    Args:
        ratios: `ratios[k]` is map j over map i for `(i, j) = pairs[k]`; not positive or not finite where missing.
        pairs: the maps of each ratio; both orders of a pair may be given, and a pair several times.
        reference: the map whose scale is held at 1; None for a geometric mean of 1 in every component.
        weight: confidence of each ratio, multiplies its residual; 0 to leave it out.
        noise: standard deviation of log ratios of weight 1; by default estimated from 512 cells.

    Raises:
        ShapeError, ProblemError: shapes that do not agree, a map that no pair names, nothing observed, a weight that is
            negative or not finite.

    >>> pairs = torch.tensor([[0, 1], [1, 2], [0, 2]])
    >>> scale_sync(torch.tensor([[2.0], [3.0], [6.0]], dtype=torch.float64), pairs).scales[:, 0]
    tensor([1., 2., 6.], dtype=torch.float64)
    """
    maps = check(ratios, pairs, reference, weight)
    pairs = pairs.to(ratios.device)
    flat = None if weight is None else weight.flatten(1)
    given = Given(ratios.flatten(1), pairs, flat, graph_of(pairs, maps))
    spread = _noise(given, noise)
    scale = loss_scale(spread, ratios.dtype)
    logs, component, status = _all_solved(given, scale, reference)
    cells = ratios.shape[1:]
    return ScaleSync(
        logs.exp().to(ratios.dtype).reshape(maps, *cells),
        component.reshape(maps, *cells),
        status.reshape(cells),
        spread,
        reference,
        given,
    )


def _noise(given: Given, noise: float | None) -> float:
    """The given standard deviation, or that of the residuals of cells spread evenly over those with several ratios."""
    if noise is not None:
        number("noise", noise, above=0, error=ProblemError)
        return float(noise)
    several = torch.zeros(given.ratios.shape[1], dtype=torch.bool, device=given.ratios.device)
    for chunk in chunks_of(given):
        several[chunk] = measured(given, chunk)[2].sum(0) > 1
    several = several.nonzero()[:, 0]
    if len(several) == 0:
        return math.nan
    spread = torch.linspace(0, len(several) - 1, min(SAMPLE, len(several)), dtype=torch.float64, device="cpu")
    picked = several[spread.long().to(several.device)]
    logs, trust, observed = (part.detach() for part in measured(given, picked))
    return noise_of(given.graph, logs, trust, components(observed, given.graph))


Solved = tuple[Float[Tensor, "maps cells"], Int[Tensor, "maps cells"], Int[Tensor, " cells"]]
"""Logs in their gauge, components and statuses."""


def _all_solved(given: Given, scale: float, reference: int | None) -> Solved:
    """All chunks. Small results kept between large arrays that come and go leave holes in the heap, as much as the
    ratios again: where no derivative is taken they are written where they belong."""
    if not _is_plain(given):
        solved = [_solved(given, chunk, scale, reference) for chunk in chunks_of(given)]
        logs, component, status = (torch.cat(parts, -1) for parts in zip(*solved, strict=True))
        return logs, component, status
    ratios, shape = given.ratios, (given.graph.maps, given.ratios.shape[1])
    whole = (
        ratios.new_empty(shape, dtype=torch.float64),
        ratios.new_empty(shape, dtype=torch.int64),
        ratios.new_empty(shape[1:], dtype=torch.int64),
    )
    for chunk in chunks_of(given):
        for all_cells, some in zip(whole, _solved(given, chunk, scale, reference), strict=True):
            all_cells[..., chunk] = some
    return whole


def _is_plain(given: Given) -> bool:
    return may_read(given.ratios, *(() if given.weight is None else (given.weight,)))


def _solved(given: Given, cells: slice, scale: float, reference: int | None) -> Solved:
    logs, trust, observed = measured(given, cells)
    component = components(observed, given.graph)
    free = free_maps(component)
    x, steps = minimum_of(given.graph, logs.detach(), trust.detach(), free, scale, LIMIT)
    status = torch.where(steps > 0, int(Status.STEP_TOLERANCE), int(Status.MAX_STEPS))
    if not _is_plain(given):
        x, _ = with_derivatives(given.graph, logs, trust, free, scale, x)
    answered = (component >= 0) & (steps > 0)
    x = torch.where(answered, centred(x, component, reference), torch.nan)
    return x, component, torch.where(observed.any(0), status, int(Status.SINGULAR))
