"""The translation between two rasters to a fraction of a pixel, from the phase of their cross-power spectrum.

A shift by d multiplies the spectrum by exp(-2πi f·d) at the frequency f. So the residual is, at every frequency, what
the normalised cross-power spectrum differs from that by: complex least squares in two unknowns. Frequencies with
little content count little: they have any phase. Foroosh, Zerubia and Berthod, "Extension of phase correlation to
subpixel registration" (2002), and Hoge, "A subspace identification extension to the phase correlation method" (2003),
fit the same phase; as a residual it needs no unwrapping.
"""

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor

import mslsq

BAND = 0.25
"""Cycles per pixel: higher frequencies hold interpolation and noise."""
LEAST = 8
"""Pixels along each side, and frequencies with content: fewer say too little."""


def refined_shift(
    a: Float[Tensor, "height width"], b: Float[Tensor, "height width"], shift: tuple[int, int]
) -> Float[Tensor, "2"]:
    """(dx, dy) with b(u + d) ≈ a(u), close to a whole `shift`; that shift itself where the phase says nothing.

    Args:
        a, b: rasters of one size without NaN, detail rather than values (a slope has one frequency only).
        shift: the whole pixels (dx, dy), from the peak of the phase correlation.
    """
    whole = a.new_tensor(shift)
    first, second = _overlap(a, b, shift)
    if min(first.shape) < LEAST:
        return whole
    phase, frequencies, weight = _cross_phase(first, second)
    if len(phase) < LEAST:
        return whole

    def residual(d: Tensor) -> Tensor:
        turn = -2 * math.pi * (frequencies @ d)
        return weight * (phase - torch.complex(turn.cos(), turn.sin()))

    solution = mslsq.least_squares(residual, torch.zeros_like(whole))
    further = solution.value.detach()
    is_close = bool(solution.converged) and bool((further.abs() <= 1).all())  # the peak is within a pixel
    return whole + further if is_close else whole


def _overlap(a: Tensor, b: Tensor, shift: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The parts of both that show the same, were the shift right."""
    parts = []
    for size, by in zip(a.shape, reversed(shift), strict=True):
        parts.append((slice(max(0, -by), size - max(0, by)), slice(max(0, by), size - max(0, -by))))
    (first_rows, second_rows), (first_columns, second_columns) = parts
    return a[first_rows, first_columns], b[second_rows, second_columns]


def _cross_phase(
    a: Float[Tensor, "height width"], b: Float[Tensor, "height width"]
) -> tuple[Complex[Tensor, "n"], Float[Tensor, "n 2"], Float[Tensor, "n"]]:
    """Numbers on the unit circle, their frequencies (fx, fy) in cycles per pixel, and how much each counts."""
    rows, columns = (torch.hann_window(n + 2, periodic=False, dtype=a.dtype, device=a.device)[1:-1] for n in a.shape)
    window = rows[:, None] * columns
    cross = torch.fft.rfft2(a * window).conj() * torch.fft.rfft2(b * window)
    fy = torch.fft.fftfreq(a.shape[0], dtype=a.dtype, device=a.device)
    fx = torch.fft.rfftfreq(a.shape[1], dtype=a.dtype, device=a.device)
    frequencies = torch.stack([fx.expand(len(fy), -1), fy[:, None].expand(-1, len(fx))], -1)
    magnitude = cross.abs()
    used = (frequencies.square().sum(-1) <= BAND**2) & (magnitude > torch.finfo(a.dtype).tiny)
    used[0, 0] = False  # the mean has no phase
    cross, magnitude = cross[used], magnitude[used]
    return cross / magnitude, frequencies[used], (magnitude / magnitude.sum()).sqrt()
