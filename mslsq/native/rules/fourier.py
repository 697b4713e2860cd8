"""Discrete Fourier transforms of short lines: halved as long as their length is even (Cooley, Tukey 1965)."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mslsq.native.arrays import Array, each
from mslsq.native.pairs import Pair
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import NotScalarError, Scalar

LARGEST_TRANSFORMED = 1024
"""Numbers of all lines that are transformed together."""


def _factor(k: int, n: int, sign: int) -> complex:
    """e^(2πi · sign · k/n), exact at quarter turns."""
    exact = {0: 1, 1: 1j * sign, 2: -1, 3: -1j * sign}
    quarter, rest = divmod(4 * (k % n), n)
    angle = 2 * math.pi * (k % n) / n
    return complex(exact[quarter]) if rest == 0 else complex(math.cos(angle), sign * math.sin(angle))


def _turned(z: Pair, factor: complex) -> Pair:
    """A product with a number of size 1, of which those by 1, −1, i and −i are none."""
    if factor == 1:
        return z
    if factor == -1:
        return -z
    if factor.real == 0:
        return Pair(-z.im, z.re) if factor.imag > 0 else Pair(z.im, -z.re)
    return z * factor


def transformed(line: list[Pair], sign: int) -> list[Pair]:
    """Σ xⱼ e^(2πi · sign · jk/n) by k."""
    n = len(line)
    if n == 1:
        return line
    if n % 2 == 0:
        even, odd = transformed(line[::2], sign), transformed(line[1::2], sign)
        odd = [_turned(z, _factor(k, n, sign)) for k, z in enumerate(odd)]
        return [a + b for a, b in zip(even, odd, strict=True)] + [a - b for a, b in zip(even, odd, strict=True)]
    found = []
    for k in range(n):
        entry = line[0]
        for j, z in enumerate(line[1:], 1):
            entry = entry + _turned(z, _factor(j * k, n, sign))
        found.append(entry)
    return found


def _along(pairs: np.ndarray, dim: int, function: Callable[[list[Pair]], list[Any]]) -> np.ndarray:
    """A function of every line along an axis."""
    rows = np.moveaxis(pairs, dim, -1)
    results = [function(list(row)) for row in rows.reshape(-1, rows.shape[-1])]
    found = np.empty((len(results), len(results[0])), dtype=object)
    for place, result in enumerate(results):
        found[place, :] = result
    return np.moveaxis(found.reshape(*rows.shape[:-1], -1), -1, dim)


def _scale(normalization: int, size: int) -> float:
    return {0: 1.0, 1: 1 / math.sqrt(size), 2: 1 / size}[normalization]


def _of_pairs(rec: Any, x: Any, dtype: Any) -> np.ndarray:
    pairs = rec.scalars(x, dtype)
    if pairs.size > LARGEST_TRANSFORMED:
        raise NotScalarError(f"a Fourier transform of {pairs.size:,} numbers")
    return pairs


@rule("_fft_r2c")
def _(rec: Any, x: Any, dims: list[int], normalization: int, onesided: bool) -> Array:
    return _forward(rec, x, dims, normalization, -1, onesided)


@rule("_fft_c2c")
def _(rec: Any, x: Any, dims: list[int], normalization: int, forward: bool) -> Array:
    return _forward(rec, x, dims, normalization, -1 if forward else 1, False)


def _forward(rec: Any, x: Any, dims: list[int], normalization: int, sign: int, onesided: bool) -> Array:
    pairs = _of_pairs(rec, x, rec.dtype)
    scale = _scale(normalization, math.prod(pairs.shape[d] for d in dims))
    for place, dim in enumerate(reversed(dims)):  # the last one first: of real numbers half of it is wanted
        kept = pairs.shape[dim] // 2 + 1 if onesided and place == 0 else None
        pairs = _along(pairs, dim, lambda line, kept=kept: transformed(line, sign)[:kept])
    return rec.array(pairs if scale == 1 else each(lambda z: z.times(scale), pairs))


@rule("_fft_c2r")
def _(rec: Any, x: Any, dims: list[int], normalization: int, size: int) -> Array:
    pairs = _of_pairs(rec, x, rec.node.args[0].meta["val"].dtype)
    for dim in dims[:-1]:
        pairs = _along(pairs, dim, lambda line: transformed(line, 1))
    zero = rec.constant(0)

    def reals(line: list[Pair]) -> list[Scalar]:
        """Of half a spectrum, whose ends are real."""
        half = line[: size // 2 + 1]
        half[0] = Pair(half[0].re, zero)
        if size % 2 == 0:
            half[-1] = Pair(half[-1].re, zero)
        whole = half + [z.conjugate() for z in reversed(half[1 : (size + 1) // 2])]
        return [z.re for z in transformed(whole, 1)]

    found = _along(pairs, dims[-1], reals)
    scale = _scale(normalization, math.prod(found.shape[d] for d in dims))
    return rec.array(found if scale == 1 else each(lambda a: a * scale, found))
