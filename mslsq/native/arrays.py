"""What stands for a tensor while a graph becomes scalars: an array of nodes, or entries of an input, not yet read."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mslsq.native.pairs import Pair
from mslsq.native.scalars import Kind, NotScalarError, Program, Scalar

LARGEST_READ = 4096
"""Entries of an input that are read one by one. More are an image, of which a block needs a few."""


def kind_of(dtype: torch.dtype) -> Kind:
    """The kind of scalars of a dtype. NotScalarError for complex numbers."""
    if dtype == torch.bool:
        return "boolean"
    if dtype.is_complex:
        raise NotScalarError("it has complex numbers")
    return "real" if dtype.is_floating_point else "integer"


class Place(NamedTuple):
    """A computed place in the memory of an input."""

    entry: Scalar
    within: Scalar
    """Boolean: does it belong to the input at all?"""

    def __add__(self, other: "Place") -> "Place":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Place(self.entry + other.entry, self.within.apply("and", other.within))


class Array:
    """A tensor of scalars.

    Attributes:
        entries: Scalars, an array of objects; or the places of the entries in input number `tensor`, of integers,
            counted from the computed place `start` where there is one.
    """

    def __init__(self, entries: np.ndarray, dtype: torch.dtype, tensor: int | None = None, start: Place | None = None):
        self.entries, self.dtype, self.tensor, self.start = entries, dtype, tensor, start

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entries.shape

    def viewed(self, view: Callable[[np.ndarray], np.ndarray]) -> "Array":
        """The same entries in another order or shape."""
        return Array(np.asarray(view(self.entries)), self.dtype, self.tensor, self.start)

    def scalars(self, program: Program) -> np.ndarray:
        """The entries as Scalars."""
        if self.tensor is None:
            return self.entries
        if self.entries.size > LARGEST_READ:
            raise NotScalarError(f"it reads all of an input of {self.entries.size:,} entries")
        if self.dtype.is_complex and self.start is None:  # an input of pairs, side by side in memory
            return each(lambda place: _pair(program, self.tensor, int(place)), self.entries)
        tensor, kind, start = self.tensor, kind_of(self.dtype), self.start
        if start is None:
            return each(lambda place: program.input(tensor, int(place), kind), self.entries)
        return each(lambda place: looked_up(program, tensor, start, int(place), kind), self.entries)


def _pair(program: Program, tensor: int | None, place: int) -> Pair:
    assert tensor is not None
    return Pair(*(program.input(tensor, 2 * place + part, "real") for part in (0, 1)))


def looked_up(program: Program, tensor: int, place: Place, offset: int, kind: Kind) -> Scalar:
    """The entry of an input `offset` after a computed place."""
    if kind == "boolean":
        raise NotScalarError("an index that depends on values, into booleans")
    return program.lookup(tensor, place.within.choose(place.entry + offset, place.entry.like(-1)), kind)


def each(function: Callable[..., Any], *arrays: Any) -> np.ndarray:
    """`function` of every entry, broadcast, as an array of objects."""
    with np.errstate(all="ignore"):  # what PyTorch computes of constants leaves marks that NumPy would warn of
        result = np.frompyfunc(function, len(arrays), 1)(*arrays)
    if isinstance(result, np.ndarray):
        return result
    single = np.empty((), dtype=object)
    single[()] = result
    return single


def of_constants(program: Program, tensor: Tensor) -> np.ndarray:
    """A tensor whose numbers are known, as Scalars."""
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
        return each(Pair, of_constants(program, tensor.real), of_constants(program, tensor.imag))
    kind = kind_of(tensor.dtype)
    if tensor.numel() > LARGEST_READ:
        raise NotScalarError(f"it has a constant of {tensor.numel():,} entries")
    flat = np.empty(tensor.numel(), dtype=object)
    flat[:] = [program.constant(value, kind) for value in tensor.reshape(-1).tolist()]
    return flat.reshape(tuple(tensor.shape))


def input_array(number: int, tensor: Tensor) -> Array:
    """Input number `number`, nothing of it read yet."""
    return Array(np.arange(tensor.numel()).reshape(tuple(tensor.shape)), tensor.dtype, number)
