"""Kernels of NVIDIA Warp as residuals. Warp (`warp-lang`) has to be installed only where they are used."""

from mslsq.interop.warp.cost import cost
from mslsq.interop.warp.kernel_operator import operator
from mslsq.interop.warp.library import WarpError

__all__ = ["WarpError", "cost", "operator"]
