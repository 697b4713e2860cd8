"""What each of PyTorch's operations is in scalars."""

from mslsq.native.rules import elementwise, indexing, products, reductions, views
from mslsq.native.rules.registry import RULES

__all__ = ["RULES", "elementwise", "indexing", "products", "reductions", "views"]
