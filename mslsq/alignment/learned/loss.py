"""What the aligner is trained by: the robustified mean error of the reference's corners, after every level."""

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.learned.layer import LearnedAligner
from mslsq.alignment.learned.pairs import PairBatch
from mslsq.alignment.measures import corners
from mslsq.alignment.models import Warp

NEAR = 1.5
"""A level starts in training where the level before ended, if that is within this many of its pixels of the truth (mean
over the corners); elsewhere at the truth moved by about as much: the level learns what it can be asked for."""


def corner_errors(aligner: LearnedAligner, warp: Warp, truth: Float[Tensor, "batch 3 3"]) -> Float[Tensor, "batch"]:
    """Mean distance in pixels of the reference's four corners under the warp (normalised) and the truth (pixels)."""
    at = corners(aligner.size, aligner.size, truth)
    found = aligner.frame.to_pixels(warp.matrix())
    distance = (moved(found, at) - moved(truth, at)).square().sum(-1)
    return (distance + 1e-12).sqrt().mean(-1)


def moved(matrix: Float[Tensor, "batch 3 3"], points: Float[Tensor, "n 2"]) -> Float[Tensor, "batch n 2"]:
    return points @ matrix[:, :2, :2].mT + matrix[:, None, :2, 2]


def training_loss(
    aligner: LearnedAligner, batch: PairBatch, generator: torch.Generator, scale: float = 1.0
) -> tuple[Float[Tensor, ""], list[Float[Tensor, "batch"]]]:
    """Σ over levels of the mean of log(1 + e/s), s = `scale` pixels: every pair counts, a lost one does not rule.

    Returns the loss and, per level, the corner errors of its answers.
    """
    pairs = aligner.levels(batch.reference, batch.moving)
    truth = aligner.kind.from_matrix(aligner.frame.from_pixels(batch.transform))
    warp = aligner.kind.identity(len(batch.reference), dtype=truth.storage.dtype, device=truth.storage.device)
    losses, errors = [], []
    for number, pair in enumerate(pairs):
        if number > 0:
            warp = within_reach(aligner, warp, truth, batch.transform, NEAR * pair[0].stride, generator)
        warp = aligner.solve_level(number, pair, warp).value["warp"]
        error = corner_errors(aligner, warp, batch.transform)
        losses.append(torch.log1p(error / scale).mean())
        errors.append(error.detach())
    return torch.stack(losses).sum(), errors


def within_reach(
    aligner: LearnedAligner, warp: Warp, truth: Warp, transform: Tensor, reach: float, generator: torch.Generator
) -> Warp:
    """The warp where it is within `reach` pixels of the truth, elsewhere the truth moved at random by about 0.7 of
    that."""
    with torch.no_grad():
        far = corner_errors(aligner, warp, transform) > reach
        noise = torch.randn(len(far), aligner.kind.tangent_dim, generator=generator, device="cpu").to(warp.storage)
        # A tangent of length t moves the corners by t half-sides on average.
        step = 0.7 * reach / aligner.frame.half * noise / noise.norm(dim=-1, keepdim=True)
        return aligner.kind(torch.where(far[:, None], truth.retract(step).storage, warp.storage))
