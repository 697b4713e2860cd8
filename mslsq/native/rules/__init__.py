"""What each of PyTorch's operations is in scalars."""

from mslsq.native.rules import (
    choices,
    complex,
    elementwise,
    extremes,
    fourier,
    indexing,
    lines,
    matrices,
    norms,
    products,
    reductions,
    scattering,
    softmax,
    special,
    spectra,
    views,
    windows,
)
from mslsq.native.rules.registry import RULES

__all__ = [
    "RULES",
    "choices",
    "complex",
    "elementwise",
    "extremes",
    "fourier",
    "indexing",
    "lines",
    "matrices",
    "norms",
    "products",
    "reductions",
    "scattering",
    "softmax",
    "special",
    "spectra",
    "views",
    "windows",
]
