"""The loops that PyTorch has no fast operation for, in C++: block-sparse factorisations, products and orderings, passes
over the samples of maps."""

from mslsq.kernels.library import (
    Kernel,
    KernelsMissingError,
    KernelsMissingWarning,
    available,
    may_read,
    run_on,
    target,
)
from mslsq.kernels.loading import KernelsNotKeptWarning
from mslsq.kernels.memory import keep_freed_memory
from mslsq.kernels.threads import in_parts

__all__ = [
    "Kernel",
    "KernelsMissingError",
    "KernelsMissingWarning",
    "KernelsNotKeptWarning",
    "available",
    "in_parts",
    "keep_freed_memory",
    "may_read",
    "run_on",
    "target",
]
