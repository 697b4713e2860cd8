"""One map onto one reference, coarse to fine.

Every minimisation is `mslsq.solve` of `objective.photometric_problem`; on the coarsest level all starts are one batch.
What this file decides is what stands around a solve: which samples are valid (frozen within it), the loss's scale,
which start goes on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

import mslsq
from mslsq.alignment.candidates import first_starts, with_late_starts
from mslsq.alignment.estimate import (
    Estimate,
    PairLevel,
    apart,
    heavy_tails,
    judge,
    mad_sigma,
    no_worse,
    residual_at,
    with_values,
)
from mslsq.alignment.models import MODELS, Frame, Warp
from mslsq.alignment.objective import LOSSES, photometric_problem
from mslsq.alignment.options import Options
from mslsq.alignment.pyramid import Level
from mslsq.alignment.result import MapStatus, Stage
from mslsq.alignment.uncertainty import corner_sigma, tangent_covariance

BEATEN = 0.6
"""Hypotheses below this share of the best score do not go on to the next level: a true placement scores 2 to 4, the
best of the false ones (the next brick) 0.9."""


@dataclass(frozen=True)
class Placed:
    """The result for one pair; in the standardised values that the pair was given in."""

    status: MapStatus
    warp: Float[Tensor, "3 3"]
    value: Float[Tensor, "2"]
    covariance: Float[Tensor, "tangent tangent"]
    ncc: float
    detail: float
    overlap: float
    corner_sigma: float
    stages: list[Stage]
    reason: str


def refine(
    estimates: Sequence[Estimate],
    level: PairLevel,
    model: str,
    loss: str | None,
    freedom: Float[Tensor, "2"],
    max_steps: int,
    ftol: float,
) -> tuple[list[Estimate], mslsq.Solution, list[Bool[Tensor, " n"]]]:
    """One batched solve from several estimates on one level, the valid samples of each frozen."""
    kind: type[Warp] = MODELS[model]
    like = level.points
    looks = [residual_at(estimate, level) for estimate in estimates]
    valid = torch.stack([mask for _, mask in looks])
    coefficients = level.moving.coefficients
    problem = photometric_problem(model, len(level.points), tuple(coefficients.shape), loss, like.dtype, like.device)
    data = level.data(valid, freedom)
    mapped: dict[str, int | None] = dict.fromkeys(data) | {"valid": 0}
    if loss is not None:
        data["loss.scale"] = like.new_tensor([LOSSES[loss].tuning * mad_sigma(*look) for look in looks])
        mapped["loss.scale"] = 0
    values = {
        "warp": kind.from_matrix(torch.stack([estimate.matrix for estimate in estimates])),
        "value": torch.stack([estimate.value for estimate in estimates]),
    }
    solution = mslsq.solve(
        problem,
        values,
        {"photometric": data},
        in_dims=(0, {"photometric": mapped}),
        solver=mslsq.LevenbergMarquardt(max_steps=max_steps, ftol=ftol, xtol=1e-10, gtol=0.0, trace="never"),
    )
    matrices = solution.value["warp"].matrix()
    out = [
        replace(estimate, matrix=matrices[k], value=solution.value["value"][k] * freedom)
        for k, estimate in enumerate(estimates)
    ]
    return out, solution, [mask for _, mask in looks]


def place(
    reference: Sequence[Level],
    moving: Sequence[Level],
    frame: Frame,
    options: Options,
    map_index: int,
    initial: Float[Tensor, "3 3"] | None = None,
    report: Callable[[Stage], None] | None = None,
) -> Placed:
    """Align one pyramid to another. `initial` (pixels, level 0) replaces the search for starts. Never raises for bad
    content."""
    like = reference[0].raster
    freedom = like.new_tensor([options.value in ("gain", "gain_bias"), options.value in ("bias", "gain_bias")])
    levels = [PairLevel.of(r, m, frame, i) for i, (r, m) in enumerate(zip(reference, moving, strict=True))]
    stages: list[Stage] = []

    def record(
        level: PairLevel, model: str, loss: str | None, best: Estimate, solution: mslsq.Solution, entry: int, n: int
    ):
        cost = solution.history.cost[entry]
        rms = (2 * cost[cost.isfinite()] / max(n, 1)).sqrt().tolist()
        stage = Stage(map_index, level.index, level.size, model, loss or "l2", rms, best.overlap, best.ncc)
        stages.append(stage)
        if report is not None:
            report(stage)

    # Blurring takes two pixels off every border, of a coarse level too: half of the overlap will do there.
    least = [options.min_overlap if i == 0 else 0.5 * options.min_overlap for i in range(len(levels))]
    hypotheses = first_starts(reference, moving, frame, levels, options, initial)
    hypotheses = [with_values(h, levels[-1], freedom) for h in hypotheses]
    names = list(MODELS)
    growth = names[: names.index(options.model) + 1]
    if not any(h.overlap >= least[-1] for h in hypotheses):
        return _failed(MapStatus.NO_OVERLAP, hypotheses[0], options, stages)

    status = mslsq.Status.MAX_STEPS
    for position in range(len(levels) - 1, -1, -1):
        level = levels[position]
        coarsest, finest = position == len(levels) - 1, position == 0
        if not coarsest:
            hypotheses = with_late_starts(
                hypotheses, reference[position], moving[position], level, frame, options, freedom
            )
        for model in growth if coarsest and initial is None else [options.model]:
            best_entry, solution, frozen, loss = 0, None, [], options.loss
            for attempt in range(3):
                if finest and loss is not None and not heavy_tails(hypotheses[0], level):
                    loss = None
                steps = options.max_steps if finest else min(options.max_steps, 15)
                refined, solution, frozen = refine(
                    hypotheses, level, model, loss, freedom, steps, 1e-9 if finest else 1e-5
                )
                kept = [
                    judge(new if no_worse(new, old, level, mask, least[position]) else old, level)
                    for new, old, mask in zip(refined, hypotheses, frozen, strict=True)
                ]
                hypotheses = kept
                best_entry = max(range(len(kept)), key=lambda k: kept[k].score)
                changed = [
                    float((level.look(h.matrix)[1] ^ mask).sum()) > 0.01 * float(mask.sum())
                    for h, mask in zip(kept, frozen, strict=True)
                ]
                # The samples were chosen by the start: choose again where they have moved, once or twice.
                if (coarsest and attempt == 0) or not any(changed):
                    break
            assert solution is not None
            status = mslsq.Status(int(solution.status[best_entry]))
            record(level, model, loss, hypotheses[best_entry], solution, best_entry, int(frozen[best_entry].sum()))
        ranked = sorted(hypotheses, key=lambda h: (h.overlap < least[position], -h.score))
        keep = (3 if coarsest else 2) if position > 1 else 1
        hypotheses = [h for h in apart(ranked, frame)[:keep] if h.score >= BEATEN * ranked[0].score or h is ranked[0]]
    return _judged(hypotheses[0], levels, options, frame, freedom, status, stages)


def _failed(status: MapStatus, estimate: Estimate, options: Options, stages: list[Stage], reason: str = "") -> Placed:
    tangent = MODELS[options.model].tangent_dim
    nan = estimate.matrix.new_full((tangent, tangent), float("nan"))
    return Placed(
        status,
        estimate.matrix,
        estimate.value,
        nan,
        estimate.ncc,
        estimate.detail,
        estimate.overlap,
        float("nan"),
        stages,
        reason or status.sentence,
    )


def detailed(estimate: Estimate, levels: Sequence[PairLevel], least: float) -> bool:
    """Does the detail agree on the finest level, or more clearly on one of the next two, where noise is weaker?

    The threshold rises by a third of what is left to one with every level (0.45, 0.63, 0.76): the false match of two
    street views has 0.33, 0.51, 0.67 there; a true one under heavy noise may have 0.3, 0.6, 0.9.
    """
    asked = least
    for level in levels[:3]:
        if judge(estimate, level).detail >= asked:
            return True
        asked = asked + (1.0 - asked) / 3.0
    return False


def _judged(
    estimate: Estimate,
    levels: Sequence[PairLevel],
    options: Options,
    frame: Frame,
    freedom: Float[Tensor, "2"],
    status: mslsq.Status,
    stages: list[Stage],
) -> Placed:
    """Believe the best estimate or say why not, and how well it is determined."""
    level = levels[0]
    estimate = judge(estimate, level)
    if estimate.overlap < options.min_overlap:
        found = f"(The best found overlaps {estimate.overlap:.0%}, {options.min_overlap:.0%} is asked.)"
        reason = f"{MapStatus.NO_OVERLAP.sentence} {found}"
        return _failed(MapStatus.NO_OVERLAP, estimate, options, stages, reason)
    if estimate.ncc < options.min_ncc or not detailed(estimate, levels, options.min_detail):
        reason = (
            f"{MapStatus.LOW_CORRELATION.sentence} (The best found, over an overlap of {estimate.overlap:.0%}, has "
            f"{estimate.ncc:.2f}, and {estimate.detail:.2f} in its detail; {options.min_ncc:.2f} and "
            f"{options.min_detail:.2f} are asked.)"
        )
        return _failed(MapStatus.LOW_CORRELATION, estimate, options, stages, reason)
    if status in (mslsq.Status.NON_FINITE, mslsq.Status.SINGULAR):
        return _failed(
            MapStatus.NOT_CONVERGED, estimate, options, stages, f"{MapStatus.NOT_CONVERGED.sentence} {status.sentence}"
        )
    covariance = tangent_covariance(estimate, level, options, freedom)
    sigma = corner_sigma(estimate, covariance, frame, options.model)
    reason = MapStatus.ALIGNED.sentence if status != mslsq.Status.MAX_STEPS else f"Aligned, but: {status.sentence}"
    return Placed(
        MapStatus.ALIGNED,
        estimate.matrix,
        estimate.value,
        covariance,
        estimate.ncc,
        estimate.detail,
        estimate.overlap,
        sigma,
        stages,
        reason,
    )
