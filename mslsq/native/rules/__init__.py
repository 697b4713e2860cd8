"""What each of PyTorch's operations is in scalars."""

from mslsq.native.rules import choices, elementwise, indexing, lines, matrices, products, reductions, scattering, views
from mslsq.native.rules.registry import RULES

__all__ = [
    "RULES",
    "choices",
    "elementwise",
    "indexing",
    "lines",
    "matrices",
    "products",
    "reductions",
    "scattering",
    "views",
]
