"""Euclidean space: the manifold of a variable whose elements are plain tensors."""

from dataclasses import dataclass

from mslsq.validation import plain_options


@dataclass(frozen=True)
class Euclidean:
    """R^dim. Elements are tensors of shape (*batch, dim), a step is added.

    Example::

        point = mslsq.Variable("point", mslsq.Euclidean(3), count=100)

    Raises:
        TypeError, ValueError: `dim` is not a positive integer.
    """

    dim: int

    def __post_init__(self) -> None:
        plain_options(self)
        if not isinstance(self.dim, int) or isinstance(self.dim, bool):
            raise TypeError(f"Euclidean(dim) needs an int, got {self.dim!r} ({type(self.dim).__name__})")
        if self.dim < 1:
            raise ValueError(f"Euclidean(dim) needs dim >= 1, got {self.dim}")
