"""The loops that PyTorch has no fast operation for, in C++: block-sparse factorisations, products and orderings."""

from mslsq.kernels.library import Kernel, KernelsMissingError, available

__all__ = ["Kernel", "KernelsMissingError", "available"]
