"""A small feature pyramid: a U-Net whose decoder gives, per level, feature channels and a confidence per pixel.

What PixLoc (Sarlin et al., 2021) and GN-Net (von Stumberg et al., 2020) do with millions of parameters, at the size
that two CPU cores train in minutes. All grids keep pixel (0, 0): strided convolutions are centred on every second
pixel, and upsampling maps corner onto corner, so pixel (x, y) of a level lies at (x, y) · stride of the image. For
that the image is padded to a multiple of the coarsest stride, plus one.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class FeatureLevel:
    """Features and confidence of a batch of images at one stride."""

    features: Float[Tensor, "batch channels height width"]
    """Coefficients of a cubic B-spline: the feature field is Σ c[i, j] β³(y - i) β³(x - j)."""
    confidence: Float[Tensor, "batch height width"]
    """In (0, 1)."""
    stride: int


class FeaturePyramid(nn.Module):
    """Images (batch, height, width) to `FeatureLevel`s, coarsest first.

    Every image is standardised by its own mean and spread. Feature vectors have norm one per pixel, so that no level
    can win by shrinking its features; what is not to be trusted says so by its confidence.

    Args:
        strides: of the levels that are given out, coarsest first: powers of two.
        channels: of the features.
        width: channels at full resolution; the coarser half-resolutions have 1.5, 2 and 2 times as many.

    >>> levels = FeaturePyramid(strides=(4, 2), channels=6)(torch.rand(3, 64, 64))
    >>> [tuple(level.features.shape) for level in levels]
    [(3, 6, 17, 17), (3, 6, 33, 33)]
    """

    def __init__(self, strides: tuple[int, ...] = (8, 4, 2), channels: int = 6, width: int = 12):
        super().__init__()
        self.strides = strides
        widths = [width, 3 * width // 2, 2 * width, 2 * width]
        self.deepest = 2 ** (len(widths) - 1)
        if any(stride not in (1, 2, 4, 8) for stride in strides) or list(strides) != sorted(set(strides), reverse=True):
            raise ValueError(f"strides={strides!r}; they are 8, 4, 2 or 1, coarsest first, each at most once.")
        self.first = convolution(1, widths[0])
        self.down = nn.ModuleList(
            nn.Sequential(convolution(a, b, stride=2), convolution(b, b)) for a, b in pairwise(widths)
        )
        self.up = nn.ModuleList(
            convolution(coarse + fine, fine)
            for fine, coarse in list(pairwise(widths))[strides[-1].bit_length() - 1 :][::-1]
        )
        self.heads = nn.ModuleList(nn.Conv2d(widths[stride.bit_length() - 1], channels + 1, 1) for stride in strides)

    def forward(self, images: Float[Tensor, "batch height width"]) -> list[FeatureLevel]:
        height, width = images.shape[-2:]
        more = [(1 - side) % self.deepest for side in (height, width)]
        mean, spread = images.mean((-2, -1), keepdim=True), images.std((-2, -1), keepdim=True)
        x = ((images - mean) / (spread + 1e-6))[:, None]
        x = functional.pad(x, (0, more[1], 0, more[0]), mode="replicate")
        seen = [self.first(x)]
        for stage in self.down:
            seen.append(stage(seen[-1]))
        x, at_stride = seen[-1], {self.deepest: seen[-1]}
        for number, stage in enumerate(self.up):
            fine = seen[-2 - number]
            x = functional.interpolate(x, size=fine.shape[-2:], mode="bilinear", align_corners=True)
            x = stage(torch.cat([x, fine], 1))
            at_stride[self.deepest >> (number + 1)] = x
        levels = []
        for stride, head in zip(self.strides, self.heads, strict=True):
            out = head(at_stride[stride])
            out = out[..., : (height - 1) // stride + 1, : (width - 1) // stride + 1]
            features = functional.normalize(out[:, :-1], dim=1, eps=1e-4)
            levels.append(FeatureLevel(features, torch.sigmoid(out[:, -1]), stride))
        return levels


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    """3 × 3, normalised over groups of channels (batches are small), rectified."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(max(1, outputs // 8), outputs),
        nn.LeakyReLU(0.1),
    )
