"""What learned features are judged by in training: do blocks agree at the truth, and nowhere else, and does a step of
Gauss-Newton lead there?

The moving map's features are sampled where the truth says. Blocks of the reference are then compared with every shift
of them by a few pixels, as a search and the tests of a placement will do.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from mslsq.alignment.measures import masked_ncc
from training.modalities import MOVING, REFERENCE, ModalityBatch, middle_grid

SIDE = 16
"""Of a block; as `mslsq.alignment.evidence` has it."""

SHIFTS = 5
"""Pixels, each way."""

STARTS = range(8, REFERENCE - SIDE - SHIFTS + 1, SIDE)

LOUDEST = 4
"""Blocks of a pair that count: those with the most energy, in either map."""

SHARPNESS = 10.0
"""Of the softmax over the shifts of a block; twice that for all blocks together."""

AGREED, AROUND = 0.65, 0.12
"""What a block should agree by, and how wide the step around it is."""

NEAR = 0.2
"""Pixels: errors of a step count by log(1 + error / NEAR)."""


class FeatureLoss(NamedTuple):
    """The loss, and what it is made of, for the curve."""

    total: Float[Tensor, ""]
    agreement: Float[Tensor, ""]
    """Mean correlation of the blocks at the truth."""
    found: Float[Tensor, ""]
    """Share of the blocks whose best shift is within a pixel of the truth."""
    step_error: Float[Tensor, ""]
    """Median error in pixels of a step from up to 1.5 px away."""


def feature_loss(
    reference: Float[Tensor, "batch 1 height width"],
    moving: Float[Tensor, "batch 1 height width"],
    pairs: ModalityBatch,
    away: Float[Tensor, "batch 2"],
) -> FeatureLoss:
    """Of the features of a batch; `away` is how far from the truth the step starts, in pixels of the moving map."""
    at_truth, overlap = at_the_truth(moving, pairs, torch.zeros_like(away))
    blocks = Blocks.of(reference, at_truth, overlap & pairs.reference_mask)
    where = blocks.loudest()
    share = where / where.sum().clamp(min=1)
    middle = (2 * SHIFTS + 1) ** 2 // 2
    each = functional.log_softmax(SHARPNESS * blocks.correlation, -1)
    together = functional.log_softmax(2 * SHARPNESS * blocks.together, -1)
    placed = -(each[..., middle] * share).sum() - together[..., middle].mean()
    agreed = (2 * (1 - blocks.detail) + 2 * torch.sigmoid((AGREED - blocks.detail) / AROUND)) * share
    step = step_errors(reference, moving, pairs, away)
    whole = masked_ncc(reference.flatten(2), at_truth.flatten(2), (overlap & pairs.reference_mask).flatten(1))
    total = placed + agreed.sum() + (1 - whole).mean() + 0.5 * torch.log1p(step / NEAR).mean()
    with torch.no_grad():
        best = blocks.correlation.argmax(-1)
        off = torch.stack([best // (2 * SHIFTS + 1), best % (2 * SHIFTS + 1)]) - SHIFTS
        found = ((off.abs().amax(0) <= 1) * share).sum()
    return FeatureLoss(total, (blocks.detail * share).sum().detach(), found, step.median().detach())


def at_the_truth(
    moving: Float[Tensor, "batch channels h w"], pairs: ModalityBatch, away: Float[Tensor, "batch 2"]
) -> tuple[Float[Tensor, "batch channels height width"], Bool[Tensor, "batch height width"]]:
    """The moving features on the reference's grid, `away` from the truth, and where both are known."""
    matrix, shift = pairs.to_moving
    at = torch.einsum("nij,hwj->nhwi", matrix, middle_grid(REFERENCE)) + (shift + away)[:, None, None]
    scaled = at * 2 / (MOVING - 1)
    sampled = functional.grid_sample(moving, scaled, "bicubic", "border", align_corners=True)
    share = functional.grid_sample(pairs.moving_mask[:, None].float(), scaled, "bilinear", "zeros", align_corners=True)
    within = (at.abs() < MOVING / 2 - 4).all(-1)
    return sampled, within & (share[:, 0] > 0.99)


class Blocks(NamedTuple):
    """Blocks of the reference against the moving map, shifted."""

    correlation: Float[Tensor, "batch blocks shifts"]
    together: Float[Tensor, "batch shifts"]
    """All blocks of a pair as one."""
    detail: Float[Tensor, "batch blocks"]
    """At the truth, with a quadratic surface taken out of both."""
    energy: Float[Tensor, "batch blocks"]
    """In either map, whichever is more, as a share of that of all blocks; 0 where a block is not known."""

    @staticmethod
    def of(
        reference: Float[Tensor, "batch 1 height width"],
        moving: Float[Tensor, "batch 1 height width"],
        known: Bool[Tensor, "batch height width"],
    ) -> "Blocks":
        rows = [block(reference, moving, known, top, left) for top in STARTS for left in STARTS]
        product, spread, fixed, other, covariance, whole = (torch.stack(part, 1) for part in zip(*rows, strict=True))
        correlation = product / (fixed[..., None] * spread).clamp(min=1e-6).sqrt()
        counted = whole.float()
        sums = [(part * counted[..., None]).sum(1) for part in (product, spread)]
        together = sums[0] / ((fixed * counted).sum(1, keepdim=True) * sums[1]).clamp(min=1e-6).sqrt()
        detail = covariance / (fixed * other).clamp(min=1e-6).sqrt()
        relative = [part / (part * counted).sum(1, keepdim=True).clamp(min=1e-6) for part in (fixed, other)]
        return Blocks(correlation, together, detail, torch.maximum(*relative).detach() * counted)

    def loudest(self) -> Float[Tensor, "batch blocks"]:
        """1 for the blocks that count, 0 for others."""
        least = self.energy.topk(LOUDEST, 1).values[:, -1:]
        return ((self.energy >= least) & (self.energy > 0)).float()


def block(
    reference: Float[Tensor, "batch 1 height width"],
    moving: Float[Tensor, "batch 1 height width"],
    known: Bool[Tensor, "batch height width"],
    top: int,
    left: int,
) -> tuple[Tensor, ...]:
    """One block of every pair: products with every shift, the moving energy under each, the block's own, the moving
    one's, their product, and whether all of it is known."""
    rows, columns = slice(top, top + SIDE), slice(left, left + SIDE)
    fixed, other = (without_surface(part[..., rows, columns].flatten(1)) for part in (reference, moving))
    around = slice(top - SHIFTS, top + SIDE + SHIFTS), slice(left - SHIFTS, left + SIDE + SHIFTS)
    field = moving[..., *around]
    count = len(field)
    product = functional.conv2d(field.transpose(0, 1), fixed.reshape(count, 1, SIDE, SIDE), groups=count)
    ones = field.new_ones(1, 1, SIDE, SIDE)
    total, squares = functional.conv2d(field, ones), functional.conv2d(field.square(), ones)
    spread = (squares - total.square() / SIDE**2).clamp(min=1e-3)
    energy, energy_there = (part.square().sum(-1).clamp(min=1e-3) for part in (fixed, other))
    whole = known[:, *around].flatten(1).all(1)
    return product[0].flatten(1), spread.flatten(1), energy, energy_there, (fixed * other).sum(-1), whole


def without_surface(values: Float[Tensor, "batch samples"]) -> Float[Tensor, "batch samples"]:
    """Without what a quadratic surface holds."""
    at = torch.linspace(-1, 1, SIDE)
    y, x = (part.flatten() for part in torch.meshgrid(at, at, indexing="ij"))
    basis = torch.linalg.qr(torch.stack([torch.ones_like(x), x, y, x * x, x * y, y * y], 1)).Q
    return values - (values @ basis) @ basis.T


def step_errors(
    reference: Float[Tensor, "batch 1 height width"],
    moving: Float[Tensor, "batch 1 height width"],
    pairs: ModalityBatch,
    away: Float[Tensor, "batch 2"],
) -> Float[Tensor, "batch"]:
    """How far from the truth one step of Gauss-Newton over shift, gain and bias ends, in pixels of the moving map."""
    sampled, known = at_the_truth(moving, pairs, away)
    known = (known & pairs.reference_mask)[:, 1:-1, 1:-1].flatten(1).float()[..., None]
    values, target = (part[:, 0, 1:-1, 1:-1].flatten(1)[..., None] for part in (sampled, reference))
    right = 0.5 * (sampled[:, 0, 1:-1, 2:] - sampled[:, 0, 1:-1, :-2]).flatten(1)
    down = 0.5 * (sampled[:, 0, 2:, 1:-1] - sampled[:, 0, :-2, 1:-1]).flatten(1)
    jacobian = known * torch.cat([right[..., None], down[..., None], values, torch.ones_like(values)], -1)
    normal = jacobian.mT @ jacobian + 1e-2 * torch.eye(4)
    solved = torch.cholesky_solve(jacobian.mT @ (known * target), torch.linalg.cholesky(normal))[..., 0]
    # gain · (values + slope · step) + bias: the first two are gain · step, along the reference's axes.
    step = solved[:, :2] / solved[:, 2:3].clamp(min=0.3)
    return ((pairs.to_moving[0] @ step[..., None])[..., 0] + away).norm(dim=-1)
