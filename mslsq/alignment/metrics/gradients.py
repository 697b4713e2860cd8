"""Normalised gradients: where the edges are, whichever of two neighbours is the brighter one."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.metrics.local import CLIPPED, local_spread
from mslsq.alignment.metrics.metric import Metric
from mslsq.alignment.pyramid import Level


@dataclass(frozen=True)
class NormalizedGradients(Metric):
    """|∇I| / √(g + 0.1 ḡ), with g the mean of |∇I|² under a Gaussian around the pixel, ḡ that of the map.

    The lengths of the normalised gradient field of Haber and Modersitzki ("Intensity gradient based registration and
    fusion of multi-modal images", 2006), normalised by what is around the pixel and not by the pixel itself. They are
    the same for an image and its negative, in every rotation, and nearly so where values pass a curve that goes up and
    down, or where gain and bias vary over the map. The directions, which turn with the warp, are left out. The squared
    gradients of several channels are added up (Di Zenzo, 1986).

    Args:
        sigma: of the Gaussian, in pixels of the level.
    """

    sigma: float = 8.0
    name: ClassVar[str] = "gradients"
    words: ClassVar[str] = "the strength of edges"

    def level(self, level: Level) -> Level:
        length = gradient_length(level.raster)
        edges = Level(length, inner(level.mask), level.factor)
        return edges.with_raster((length / local_spread(length, edges, self.sigma)).clamp(max=CLIPPED))


def gradient_length(raster: Float[Tensor, "channels height width"]) -> Float[Tensor, "1 height width"]:
    """√Σ over the channels of |∇I|², by central differences; the border is repeated."""
    padded = torch.nn.functional.pad(raster[None], (1, 1, 1, 1), mode="replicate")[0]
    right = 0.5 * (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2])
    down = 0.5 * (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1])
    return (right.square() + down.square()).sum(0, keepdim=True).sqrt()


def inner(mask: Bool[Tensor, "height width"]) -> Bool[Tensor, "height width"]:
    """The pixels of which all four neighbours are known, too; the outside is not."""
    padded = torch.nn.functional.pad(mask, (1, 1, 1, 1))
    beside = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return mask & beside
