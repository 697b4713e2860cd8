"""A small network whose features turn with the map and do not know a negative from its positive: both by construction.

It sees lengths alone (of gradients, of the traceless part of the Hessian, of the Laplacian, at three scales), and its
kernels depend on the distance from their middle alone. So a map turned by a quarter has exactly its features turned by
a quarter, other angles up to the pixel grid, and every feature of -I is that of I.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from mslsq.alignment.pyramid import blur

SCALES = ((0.0, 1.0), (1.5, 2.0), (3.0, 4.0))
"""(sigma in pixels, factor): what is differentiated, and what brings the lengths to one size."""

INPUTS = 6 * len(SCALES)

REACH = 20
"""Pixels: how far a feature sees. 4 sigma of the widest Gaussian, two derivatives, kernels of 3, 5, 3 and 5."""

ROUNDED = 1e-4
"""Under every root: lengths have derivatives where they are zero."""

Maps = Float[Tensor, "batch channels height width"]


class FeatureNetwork(nn.Module):
    """Standardised maps to one feature in (-1, 1) per pixel.

    Args:
        width: channels of the hidden layers.

    >>> maps = torch.randn(2, 1, 30, 40)
    >>> network = FeatureNetwork(width=4)
    >>> network(maps).shape, bool(torch.equal(network(maps), network(-maps)))
    (torch.Size([2, 1, 30, 40]), True)
    """

    def __init__(self, width: int = 12):
        super().__init__()
        self.width = width
        self.first = Round(INPUTS, width, 3)
        self.second = Round(width, width, 5)
        self.third = Round(2 * width, width, 3)
        self.fourth = Round(width, width, 5)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, maps: Float[Tensor, "batch 1 height width"]) -> Float[Tensor, "batch 1 height width"]:
        hidden = bent(self.second(bent(self.first(invariants(maps)))))
        hidden = torch.cat([hidden, lengths(hidden)[0]], 1)
        return torch.tanh(self.head(bent(self.fourth(bent(self.third(hidden))))))


class Round(nn.Module):
    """A convolution whose kernel depends on the distance from its middle alone; the border is repeated.

    Args:
        inputs, outputs: channels.
        side: of the kernel, odd; what is farther than √(r² + 1) from the middle is zero, r = (side - 1) / 2 (of a
            kernel of 3 x 3 nothing is).
    """

    rings: Tensor

    def __init__(self, inputs: int, outputs: int, side: int):
        super().__init__()
        self.reach = side // 2
        at = torch.arange(-self.reach, self.reach + 1)
        squared = at[:, None] ** 2 + at**2
        rings = [(squared == d).float() for d in squared.unique() if d <= self.reach**2 + 1]
        self.register_buffer("rings", torch.stack([ring / ring.sum() for ring in rings]), persistent=False)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, len(rings)) / (inputs * len(rings)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, maps: Maps) -> Maps:
        kernel = torch.einsum("oir,ryx->oiyx", self.weight, self.rings)
        return functional.conv2d(functional.pad(maps, (self.reach,) * 4, mode="replicate"), kernel, self.bias)


def bent(maps: Maps) -> Maps:
    """The rectifier between layers."""
    return functional.leaky_relu(maps, 0.1)


def invariants(maps: Float[Tensor, "batch 1 height width"]) -> Float[Tensor, "batch inputs height width"]:
    """The lengths of `lengths` at every scale, and their logarithms."""
    found = torch.cat([factor * part for sigma, factor in SCALES for part in lengths(smooth(maps, sigma))], 1)
    return torch.cat([found, 0.3 * torch.log(found.square() + 1e-3) + 0.7], 1)


def smooth(maps: Maps, sigma: float) -> Maps:
    """Under a Gaussian; the border is mirrored, not taken for zero."""
    return blur(maps, sigma, "mirror") if sigma else maps


def lengths(maps: Maps) -> tuple[Maps, Maps, Maps]:
    """|∇I|, √((I_xx - I_yy)² + 4 I_xy²) and |ΔI| by central differences, each rounded off at zero."""
    p = functional.pad(maps, (1, 1, 1, 1), mode="replicate")
    right, left, down, up = p[..., 1:-1, 2:], p[..., 1:-1, :-2], p[..., 2:, 1:-1], p[..., :-2, 1:-1]
    xx, yy = right + left - 2 * maps, down + up - 2 * maps
    xy = 0.25 * (p[..., 2:, 2:] + p[..., :-2, :-2] - p[..., 2:, :-2] - p[..., :-2, 2:])
    slope = 0.25 * ((right - left).square() + (down - up).square())
    bend, bulge = (xx - yy).square() + 4 * xy.square(), (xx + yy).square()
    return (slope + ROUNDED).sqrt(), (bend + ROUNDED).sqrt(), (bulge + ROUNDED).sqrt()
