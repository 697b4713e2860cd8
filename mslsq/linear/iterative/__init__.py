"""Conjugate gradients: the iteration, its products and preconditioners, and exact solves for derivatives."""

from mslsq.linear.iterative.solver import ConjugateGradient

__all__ = ["ConjugateGradient"]
