"""One big residual: its element sparsity, found from its graph; Jacobian and Hessian by one derivative per colour."""

from mslsq.linearize.compressed.assembly import CompressedAssembly, CompressedPlacement, compressed_placement_of
from mslsq.linearize.compressed.compression import reverse_compression_of
from mslsq.linearize.compressed.dependence import Dependence, dependence_of
from mslsq.linearize.compressed.plan import CompressedPlan, compressed_plan_of
from mslsq.linearize.compressed.sets import TooDenseError
from mslsq.linearize.compressed.term import CompressedTerm, pattern_holds, recorded_linearization

__all__ = [
    "CompressedAssembly",
    "CompressedPlacement",
    "CompressedPlan",
    "CompressedTerm",
    "Dependence",
    "TooDenseError",
    "compressed_placement_of",
    "compressed_plan_of",
    "dependence_of",
    "pattern_holds",
    "recorded_linearization",
    "reverse_compression_of",
]
