"""One big residual: its element sparsity, found from its graph; Jacobian and Hessian by one derivative per colour."""

from mslsq.linearize.compressed.compression import reverse_compression_of
from mslsq.linearize.compressed.dependence import Dependence, dependence_of
from mslsq.linearize.compressed.plan import CompressedPlan, compressed_plan_of
from mslsq.linearize.compressed.sets import TooDenseError

__all__ = [
    "CompressedPlan",
    "Dependence",
    "TooDenseError",
    "compressed_plan_of",
    "dependence_of",
    "reverse_compression_of",
]
