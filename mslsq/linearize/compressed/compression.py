"""A sparse Jacobian from few derivatives: one along every colour, and where its entries stand among them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import vmap

from mslsq.linearize.compressed.coloring import colored, neighbours
from mslsq.linearize.compressed.sets import Sets, csr
from mslsq.private import jvp, vjp

AT_ONCE = 16_000_000
"""Numbers of one intermediate tensor under `vmap` over colours, at most; more colours are taken in several goes."""


@dataclass(frozen=True, eq=False)
class Compression:
    """How to get the entries of a sparse matrix from products with it."""

    seeds: Float[Tensor, "colors length"]
    """Sums of unit vectors: of columns (`forward`), or of rows."""
    places: Int[Tensor, "entries"]
    """Where each entry stands in the products, (colors, other length) flattened."""
    forward: bool

    @property
    def colors(self) -> int:
        return len(self.seeds)

    def jacobian(
        self, function: Callable[[Tensor], Tensor], at: Float[Tensor, "columns"], lanes: int = 1
    ) -> tuple[Float[Tensor, "rows"], Float[Tensor, "entries"]]:
        """The value of the function and the entries of its Jacobian."""
        seeds = self.seeds.to(at.dtype)
        if self.forward:
            size = self._chunk(int(self.places.shape[0]), lanes)
            whole: Any = (None, 0)  # the value is the same for all
            pushed: Any = vmap(lambda seed: jvp(function, (at,), (seed,)), out_dims=whole)
            parts = [pushed(chunk) for chunk in seeds.split(size)]
            return parts[0][0], self._picked([part for _, part in parts])
        value, pull = vjp(function, at)
        size = self._chunk(int(self.places.shape[0]), lanes)
        pulled = [vmap(lambda seed: pull(seed)[0])(chunk) for chunk in seeds.split(size)]
        return value, self._picked(pulled)

    def hessian(
        self, gradient: Callable[[Tensor], Tensor], at: Float[Tensor, "columns"], lanes: int = 1
    ) -> Float[Tensor, "entries"]:
        """The entries of the Hessian of a scalar function, from its gradient in forward mode."""
        size = self._chunk(len(at), lanes)
        along = vmap(lambda seed: jvp(gradient, (at,), (seed,))[1])
        return self._picked([along(chunk) for chunk in self.seeds.to(at.dtype).split(size)])

    def _picked(self, parts: list[Tensor]) -> Float[Tensor, "entries"]:
        products = torch.cat(parts) if len(parts) > 1 else parts[0]
        return products.reshape(-1).index_select(0, self.places)

    def _chunk(self, length: int, lanes: int) -> int:
        """How many colours are differentiated at once."""
        return max(1, AT_ONCE // max(length * lanes, 1))


def compression_of(sets: Sets, device: torch.device, dtype: torch.dtype) -> Compression:
    """Colours of the columns, or of the rows where that takes fewer (a sum over many unknowns beside sparse rows)."""
    forward = _by_columns(sets, device, dtype)
    heights = np.bincount(sets.indices, minlength=1)  # no fewer colours of rows than the largest
    if int(heights.max()) + REVERSE >= forward.colors:
        return forward
    reverse = reverse_compression_of(sets, device, dtype)
    return forward if reverse is None or reverse.colors + REVERSE >= forward.colors else reverse


def reverse_compression_of(sets: Sets, device: torch.device, dtype: torch.dtype) -> Compression | None:
    """Colours of the rows; None where there are too many pairs of rows that share a column."""
    if (np.bincount(sets.indices).astype(float) ** 2).sum() > MOST_NEIGHBOURS:
        return None
    colors = colored(neighbours(csr(sets.T)))
    places = np.repeat(colors, np.diff(sets.indptr)) * sets.shape[1] + sets.indices
    return Compression(_seeds(colors, device, dtype), _tensor(places, device), False)


def _by_columns(sets: Sets, device: torch.device, dtype: torch.dtype) -> Compression:
    colors = colored(neighbours(sets))
    row = np.repeat(np.arange(sets.shape[0]), np.diff(sets.indptr))
    return Compression(_seeds(colors, device, dtype), _tensor(colors[sets.indices] * sets.shape[0] + row, device), True)


def symmetric_compression_of(sets: Sets, device: torch.device, dtype: torch.dtype) -> Compression:
    """Colours for products with a symmetric matrix, its entries those of the lower triangle in row-major order.

    Columns that meet many others (a parameter that everything depends on) get a colour of their own; what stands in
    their rows is read from their columns instead, so that the others need not care about them.
    """
    degrees = np.diff(sets.indptr)
    hubs = degrees > max(HUB, 8 * np.median(degrees))
    n = sets.shape[0]
    rest = np.flatnonzero(~hubs)
    inner = csr(csr(sets[rest])[:, rest])
    inner.sort_indices()
    colors = np.empty(n, np.int64)
    colors[rest] = colored(neighbours(inner))
    start = int(colors[rest].max(initial=-1)) + 1
    colors[hubs] = start + np.arange(int(hubs.sum()))
    row, column = np.repeat(np.arange(n), degrees), sets.indices.astype(np.int64)
    lower = row >= column
    row, column = row[lower], column[lower]
    swapped = hubs[row] & ~hubs[column]
    row, column = np.where(swapped, column, row), np.where(swapped, row, column)
    return Compression(_seeds(colors, device, dtype), _tensor(colors[column] * n + row, device), True)


HUB = 64
"""Columns of a Hessian with fewer entries than that are never taken for hubs."""
REVERSE = 4
"""Forward mode may take this many times the passes of reverse mode: a reverse pass costs more, and keeps all
intermediate tensors."""
MOST_NEIGHBOURS = 50_000_000
"""Pairs of rows that share a column, beyond which their colouring is not tried."""


def _seeds(colors: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor:
    seeds = torch.zeros(int(colors.max(initial=-1)) + 1, len(colors), dtype=dtype, device="cpu")
    seeds[torch.from_numpy(colors), torch.arange(len(colors), device="cpu")] = 1
    return seeds.to(device)


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(device)
