"""Operators that PyTorch cannot look into (C++, CUDA, Triton, Warp) as parts of residuals, under every transform."""

from mslsq.interop.operators.errors import OperatorError
from mslsq.interop.operators.operator import Operator, wrap

__all__ = ["Operator", "OperatorError", "wrap"]
