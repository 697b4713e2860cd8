"""One map onto one reference, coarse to fine: starts, growing freedom on the coarsest level, refinement down the
pyramid.

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
from mslsq.alignment import starts
from mslsq.alignment.metrics import masked_ncc, project
from mslsq.alignment.models import MODELS, Frame, Warp
from mslsq.alignment.objective import LOSSES, photometric_problem
from mslsq.alignment.pyramid import Level, masked_blur
from mslsq.alignment.result import MapStatus, Stage
from mslsq.alignment.sampling import sample_at

MAX_SAMPLES = 1 << 18
"""Of a larger level every k-th pixel is used: 262 144 samples place a map to thousandths of a pixel already."""

SEARCH_SIDE = 64
"""The start search works on the first level whose longer side is at most this."""

CANDIDATES = 8
"""Starts that are refined on the coarsest level, as one batch."""

LATE_SIDE = 300
"""Shifts are searched once more on every level up to this side, for maps whose detail a coarser level has lost: thin
walls of occupancy maps are found at 1/4 scale, and at 1/16 a false match outranks the true one."""

CERTAIN = 0.8
"""A hypothesis whose correlation and detail average this much needs no such second look."""

DETAIL_SIGMA = 3.0
"""Samples. Detail is what a Gaussian of this width takes away. Over wrong placements of real maps the correlation of
the whole reached 0.93 (two views of a street, one half sky), that of the detail 0.33; true ones had at least 0.57 in
detail."""

HEAVY_TAILS = 1.5
"""The finest level is solved with plain least squares unless the residuals' standard deviation exceeds this many times
their MAD sigma: then outliers are real (moved objects, unknown areas) and the robust loss stays."""


@dataclass(frozen=True)
class Options:
    """How to align; `align` documents each."""

    model: str = "sim2"
    value: str = "gain_bias"
    loss: str | None = "cauchy"
    init: str = "auto"
    min_overlap: float = 0.15
    min_ncc: float = 0.5
    min_detail: float = 0.45
    prefilter: float = 1.0
    max_steps: int = 30


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


@dataclass(frozen=True)
class PairLevel:
    """One level of a pair: the samples of the reference and the map that is sampled."""

    points: Float[Tensor, "n 2"]
    target: Float[Tensor, "n channels"]
    known: Bool[Tensor, " n"]
    moving: Level
    to_level: Float[Tensor, "3"]
    size: tuple[int, int]
    grid: tuple[int, int]
    """Rows and columns of the samples."""
    index: int

    @staticmethod
    def of(reference: Level, moving: Level, frame: Frame, index: int) -> "PairLevel":
        height, width = reference.size
        stride = 1
        while -(-height // stride) * -(-width // stride) > MAX_SAMPLES:
            stride += 1
        grid = starts.pixel_grid(height, width, reference.raster).reshape(height, width, 2)[::stride, ::stride]
        target = reference.raster[:, ::stride, ::stride]
        return PairLevel(
            points=frame.normalise(grid.reshape(-1, 2) * reference.factor),
            target=target.reshape(target.shape[0], -1).T.contiguous(),
            known=reference.mask[::stride, ::stride].reshape(-1),
            moving=moving,
            to_level=torch.cat([frame.centre.new_tensor([frame.half]), frame.centre]) / moving.factor,
            size=reference.size,
            grid=(target.shape[-2], target.shape[-1]),
            index=index,
        )

    def look(self, matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        """The map's values at the warped samples, and which samples fall on data of both."""
        pixels = project(matrix, self.points) * self.to_level[0] + self.to_level[1:]
        valid = self.known & starts.inside(pixels, self.moving.mask)
        return sample_at(self.moving.coefficients, torch.nan_to_num(pixels)).T, valid

    def share(self, valid: Bool[Tensor, " n"]) -> float:
        """Overlap as a share of the smaller map's valid pixels."""
        stride = self.size[0] * self.size[1] / self.known.numel()
        smaller = min(float(self.known.sum()), float(self.moving.mask.sum()) / stride)
        return float(valid.sum()) / max(smaller, 1.0)


@dataclass(frozen=True)
class Estimate:
    """One hypothesis: a warp (normalised matrix), its values, and how it does on the level it was last judged on."""

    matrix: Float[Tensor, "3 3"]
    value: Float[Tensor, "2"]
    origin: str
    ncc: float = 0.0
    detail: float = 0.0
    overlap: float = 0.0

    @property
    def certainty(self) -> float:
        """The mean of the correlations of the whole and of the detail."""
        return 0.5 * (self.ncc + self.detail)

    @property
    def score(self) -> float:
        """As `starts.Start.score`, of the certainty."""
        return starts.Start(self.origin, self.matrix, self.certainty, self.overlap).score


def correlations(
    sampled: Float[Tensor, "n channels"], valid: Bool[Tensor, " n"], level: PairLevel
) -> tuple[float, float]:
    """Masked correlation of the samples with the reference, and that of their detail."""
    known = valid.reshape(level.grid)
    whole = [values.T.reshape(-1, *level.grid) for values in (sampled, level.target)]
    detail = [(values - masked_blur(values, known, DETAIL_SIGMA)[0]).flatten(1) for values in whole]
    return float(masked_ncc(whole[0].flatten(1), whole[1].flatten(1), valid)), float(masked_ncc(*detail, valid))


def judge(estimate: Estimate, level: PairLevel) -> Estimate:
    """The estimate with its masked correlations and overlap on this level."""
    sampled, valid = level.look(estimate.matrix)
    ncc, detail = correlations(sampled, valid, level)
    return replace(estimate, ncc=ncc, detail=detail, overlap=level.share(valid))


def residual_at(estimate: Estimate, level: PairLevel) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
    """exp(α) · map + b - reference at every sample, and which samples are valid."""
    sampled, valid = level.look(estimate.matrix)
    return estimate.value[0].exp() * sampled + estimate.value[1] - level.target, valid


def mad_sigma(residual: Float[Tensor, "n channels"], valid: Bool[Tensor, " n"]) -> float:
    """1.4826 times the median absolute deviation: sigma where the residuals are Gaussian.

    At least a fifth of their standard deviation: where most of both maps is flat (unknown areas of occupancy maps) the
    median residual is zero, and a scale of zero would reject all that there is to align by.
    """
    chosen = residual[valid].reshape(-1)
    if chosen.numel() < 2:
        return 1.0
    return max(1.4826 * float((chosen - chosen.median()).abs().median()), 0.2 * float(chosen.std()), 1e-6)


def with_values(estimate: Estimate, level: PairLevel, freedom: Float[Tensor, "2"]) -> Estimate:
    """Gain and bias from the means and standard deviations over the overlap: the start of the joint refinement.

    The ratio of standard deviations, not the regression slope: it is positive, and noise does not attenuate it.
    """
    sampled, valid = level.look(estimate.matrix)
    x, y = sampled[valid].reshape(-1), level.target[valid].reshape(-1)
    if x.numel() < 2:
        return replace(estimate, value=torch.zeros_like(estimate.value))
    log_gain = (y.std() / x.std().clamp(min=1e-9)).log().nan_to_num(0.0).clamp(-3.0, 3.0) * freedom[0]
    return replace(estimate, value=torch.stack([log_gain, (y.mean() - log_gain.exp() * x.mean()) * freedom[1]]))


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
    data = {
        "point": level.points,
        "target": level.target,
        "valid": valid.to(like.dtype),
        "coefficients": coefficients,
        "to_level": level.to_level,
        "freedom": freedom,
    }
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


def no_worse(new: Estimate, old: Estimate, level: PairLevel, frozen: Bool[Tensor, " n"], min_overlap: float) -> bool:
    """May the new estimate replace the old? Judged on samples valid in both, so that shrinking the overlap never pays.

    The correlations of the whole and of the detail over that intersection must not fall (by more than rounding), nor
    the overlap below `min_overlap` where it was above, nor may the warp have turned over or left the finite numbers.
    """
    if not (bool(new.matrix.isfinite().all()) and bool(new.value.isfinite().all())):
        return False
    corner = new.matrix.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1], [0, 0]])
    warped = project(new.matrix, corner)
    (a, b), (c, d) = (new.matrix[:2, :2] / new.matrix[2, 2]).tolist()
    area = a * d - b * c
    if not bool(warped.isfinite().all()) or area < 0.02:
        return False
    sampled, valid = level.look(new.matrix)
    before, _ = level.look(old.matrix)
    both = valid & frozen
    if level.share(valid) < min_overlap <= level.share(frozen) or int(both.sum()) < 16:
        return False
    return sum(correlations(sampled, both, level)) >= sum(correlations(before, both, level)) - 2e-3


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
    hypotheses = _starting(reference, moving, frame, levels, options, initial)
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
            hypotheses = _with_late_starts(
                hypotheses, reference[position], moving[position], level, frame, options, freedom
            )
        for model in growth if coarsest and initial is None else [options.model]:
            best_entry, solution, frozen, loss = 0, None, [], options.loss
            for attempt in range(3):
                if finest and loss is not None and not _heavy_tails(hypotheses[0], level):
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
        hypotheses = _apart(ranked, frame)[:keep]
    return _judged(hypotheses[0], levels[0], options, frame, freedom, status, stages)


def _starting(
    reference: Sequence[Level],
    moving: Sequence[Level],
    frame: Frame,
    levels: Sequence[PairLevel],
    options: Options,
    initial: Float[Tensor, "3 3"] | None,
) -> list[Estimate]:
    """The starts to refine, always `CANDIDATES` of them (the best repeated), so that every pair's batch is of one
    size."""
    like = reference[0].raster
    zero = like.new_zeros(2)
    if initial is not None:
        return [judge(Estimate(frame.from_pixels(initial), zero, "given"), levels[-1])]
    if options.init == "identity":
        return [judge(Estimate(torch.eye(3, dtype=like.dtype, device=like.device), zero, "identity"), levels[-1])]
    at = next(
        (i for i, level in enumerate(reference) if max(*level.size, *moving[i].size) <= SEARCH_SIDE), len(reference) - 1
    )
    coarse = reference[at]
    turns = options.model != "translation"
    if options.init == "phase":
        candidates = [("phase correlation", starts.phase_correlation(coarse, moving[at]))]
    else:
        candidates = starts.search(
            coarse, moving[at], turns, options.model not in ("translation", "se2"), options.min_overlap
        )
    ranked = starts.rank(candidates, coarse, moving[at], 0.5 * options.min_overlap)
    ranked = starts.distinct(
        sorted(ranked, key=lambda s: s.origin not in ("identity", "phase correlation")), *coarse.size
    )
    shrink = torch.diag(like.new_tensor([coarse.factor, coarse.factor, 1.0]))
    out = []
    for start in ranked:
        pixel = shrink @ start.matrix @ torch.linalg.inv(shrink)
        out.append(judge(Estimate(frame.from_pixels(pixel), zero, start.origin), levels[at]))
    # Small motions are common: the identity and the phase correlation are refined whatever their rank (in a periodic
    # map, bricks, a start 2 px off on the coarsest level ranks below neighbouring bricks, and still leads to the true
    # one).
    plain = ("identity", "phase correlation")
    out = sorted(out, key=lambda h: (h.origin not in plain, h.overlap < 0.5 * options.min_overlap, -h.score))[
        :CANDIDATES
    ]
    out = [judge(estimate, levels[-1]) for estimate in out]
    return out + [out[0]] * (CANDIDATES - len(out)) if options.init != "phase" else out


def _with_late_starts(
    hypotheses: list[Estimate],
    reference: Level,
    moving: Level,
    level: PairLevel,
    frame: Frame,
    options: Options,
    freedom: Float[Tensor, "2"],
) -> list[Estimate]:
    """The hypotheses, and a shift of this level's own before them where none is certain and it scores higher."""
    judged = sorted((judge(h, level) for h in hypotheses), key=lambda h: -h.score)
    if options.init not in ("auto", "search") or max(*level.size, *moving.size) > LATE_SIDE:
        return judged
    if judged[0].certainty >= CERTAIN:
        return judged
    shifts = [
        matrix for _, matrix in starts.correlate_turned(reference, moving, [(0.0, 1.0)], 0.5 * options.min_overlap, 2)
    ]
    shifts += [starts.phase_correlation(reference, moving, low_pass) for low_pass in (starts.LOW_PASS, 0.2)]
    grow = torch.diag(frame.centre.new_tensor([level.moving.factor, level.moving.factor, 1.0]))
    late = []
    for shift in shifts:
        matrix = frame.from_pixels(grow @ shift @ torch.linalg.inv(grow))
        late.append(judge(Estimate(matrix, judged[0].value, "late shift"), level))
    best = max(late, key=lambda h: (h.overlap >= 0.5 * options.min_overlap, h.score))
    if best.score <= judged[0].score or best.overlap < 0.5 * options.min_overlap:
        return judged
    return [with_values(best, level, freedom), judged[0]]


def _apart(ranked: Sequence[Estimate], frame: Frame) -> list[Estimate]:
    """In order, without those whose corners are within two pixels of an earlier one's."""
    corner = ranked[0].matrix.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    kept: list[Estimate] = []
    for estimate in ranked:
        where = project(estimate.matrix, corner)
        distances = [float((where - project(k.matrix, corner)).norm(dim=-1).mean()) * frame.half for k in kept]
        if all(not distance <= 2.0 for distance in distances):
            kept.append(estimate)
    return kept


def _heavy_tails(estimate: Estimate, level: PairLevel) -> bool:
    residual, valid = residual_at(estimate, level)
    chosen = residual[valid]
    return chosen.numel() > 1 and float(chosen.std()) > HEAVY_TAILS * mad_sigma(residual, valid)


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


def _judged(
    estimate: Estimate,
    level: PairLevel,
    options: Options,
    frame: Frame,
    freedom: Float[Tensor, "2"],
    status: mslsq.Status,
    stages: list[Stage],
) -> Placed:
    """Believe the best estimate or say why not, and how well it is determined."""
    estimate = judge(estimate, level)
    if estimate.overlap < options.min_overlap:
        found = f"(The best found overlaps {estimate.overlap:.0%}, {options.min_overlap:.0%} is asked.)"
        reason = f"{MapStatus.NO_OVERLAP.sentence} {found}"
        return _failed(MapStatus.NO_OVERLAP, estimate, options, stages, reason)
    if estimate.ncc < options.min_ncc or estimate.detail < options.min_detail:
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


def tangent_covariance(
    estimate: Estimate, level: PairLevel, options: Options, freedom: Float[Tensor, "2"]
) -> Float[Tensor, "tangent tangent"]:
    """σ̂² (JᵀJ)⁻¹ of the warp's tangent, gain and bias marginalised, times 4πσ² for a prefilter of σ px.

    The prefilter correlates neighbouring residuals, so that n samples hold only n / 4πσ² independent ones (12.6 at 1
    px). The noise is that of the MAD. Infinite-variance directions come back as NaN.
    """
    kind = MODELS[options.model]
    warp = kind.from_matrix(estimate.matrix)
    residual, valid = residual_at(estimate, level)
    problem = photometric_problem(
        options.model, len(level.points), tuple(level.moving.coefficients.shape), None, residual.dtype, residual.device
    )
    cost = next(module for module in problem.modules() if isinstance(module, mslsq.CostFunction))
    size = kind.tangent_dim + 2
    normal = residual.new_zeros(size, size)
    rows = torch.arange(len(level.points), device=residual.device)
    for chunk in rows.split(1 << 16):

        def one(point: Tensor, target: Tensor, known: Tensor) -> Tensor:
            parts = cost.jacobians(
                warp, estimate.value, point, target, known, level.moving.coefficients, level.to_level, freedom
            )
            return torch.cat(parts, -1)

        jacobian = torch.func.vmap(one)(level.points[chunk], level.target[chunk], valid[chunk].to(residual.dtype))
        flat = jacobian.reshape(-1, size)
        normal = normal + flat.T @ flat
    active = normal.diagonal() > 0
    normal = normal + torch.diag((~active).to(normal.dtype))
    factor, failed = torch.linalg.cholesky_ex(normal)
    if int(failed) != 0:
        return normal.new_full((kind.tangent_dim, kind.tangent_dim), float("nan"))
    inverse = torch.cholesky_inverse(factor)[: kind.tangent_dim, : kind.tangent_dim]
    correlated = max(1.0, 4 * torch.pi * options.prefilter**2)
    return mad_sigma(residual, valid) ** 2 * correlated * inverse


def corner_sigma(estimate: Estimate, covariance: Tensor, frame: Frame, model: str) -> float:
    """Root mean square standard error of the four corners in pixels: √(mean trace(D Σ Dᵀ)) with D the corners'
    derivative."""
    warp = MODELS[model].from_matrix(estimate.matrix)
    side = frame.centre / frame.half
    corner = side * side.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    eye = torch.eye(2, dtype=side.dtype, device=side.device)
    derivative = torch.func.vmap(lambda point: warp.pull_back(eye, point))(corner)
    variance = torch.einsum("pik,kl,pil->", derivative, covariance, derivative) / 4
    return float(variance.clamp(min=0).sqrt()) * frame.half
