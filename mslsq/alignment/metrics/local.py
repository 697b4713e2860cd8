"""Local normalised correlation: values relative to the mean and the spread of what is around them."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.metrics.metric import Metric
from mslsq.alignment.pyramid import Level, masked_blur

FLOOR = 0.1
"""Of the mean local variance, added to every one: where next to nothing is to be seen, noise stays small."""

CLIPPED = 3.0
"""Standard deviations: a lamp in the dark counts no more than that."""


@dataclass(frozen=True)
class LocalCorrelation(Metric):
    """(I - μ) / √(v + 0.1 v̄), with mean μ and variance v under a Gaussian around the pixel, v̄ the mean of v.

    Minimising the squared difference of this is maximising the local normalised correlation (Cachier, Bardinet,
    Dormont, Pennec and Ayache, "Iconic feature based nonrigid registration", 2003). It holds where gain and bias vary
    slowly over the map: lamps, shadows, gamma. Contrast must keep its sign.

    Args:
        sigma: of the Gaussian, in pixels of the level.
    """

    sigma: float = 8.0
    name: ClassVar[str] = "local"
    words: ClassVar[str] = "the values relative to what is around them"

    def level(self, level: Level) -> Level:
        mean, _ = masked_blur(level.raster, level.mask, self.sigma)
        detail = level.raster - mean
        return level.with_raster((detail / local_spread(detail, level, self.sigma)).clamp(-CLIPPED, CLIPPED))


def local_spread(
    values: Float[Tensor, "channels height width"], level: Level, sigma: float
) -> Float[Tensor, "channels height width"]:
    """√(v + 0.1 v̄): the root mean square of the values around each pixel, bounded from below by that of the map."""
    around, _ = masked_blur(values * values, level.mask, sigma)
    known = around[:, level.mask]
    whole = known.mean() if known.numel() else around.new_zeros(())
    return (around + FLOOR * whole).sqrt().clamp(min=1e-12)
