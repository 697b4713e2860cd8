"""Shifts between images to a hundredth of a pixel, from complex residuals and einops.

    python examples/fourier_shift.py

A camera of three channels takes pairs of images of a scene, shifted by a few pixels and parts of one, with noise. A
shift d turns the Fourier transform by exp(−i k·d), so that the phase of the cross-power spectrum is a plane: its
residual is complex, weighted by how much signal a frequency has. The peak of the same spectrum, which knows whole
pixels alone, is the start. All pairs are one call, and every shift has a standard error.
"""

import argparse
import math

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor

import mslsq

CHANNELS, SIZE, NOISE = 3, 48, 0.05


def frequencies(radius: float) -> Tensor:
    """The frequencies below a radius (share of the Nyquist frequency) without the mean, in rad/px, (count, 2)."""
    k = 2 * math.pi * torch.fft.fftfreq(SIZE, dtype=torch.float64)
    grid = rearrange(torch.stack(torch.meshgrid(k, k, indexing="ij")), "yx h w -> (h w) yx")
    return grid[(grid.norm(dim=1) > 0) & (grid.norm(dim=1) < radius * math.pi)]


def spectrum(images: Tensor, k: Tensor) -> Tensor:
    """The Fourier transform of images (..., h, w) at these frequencies (count, 2): (..., count)."""
    at = torch.arange(SIZE, dtype=torch.float64)
    pixels = rearrange(torch.stack(torch.meshgrid(at, at, indexing="ij")), "yx h w -> (h w) yx")
    waves = torch.exp(-1j * einsum(pixels, k, "pixel yx, count yx -> pixel count"))
    return rearrange(images, "... h w -> ... (h w)").to(waves.dtype) @ waves


def make_images(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of images (count, channels, h, w) of a scene that repeats beyond its border, and their shifts (yx)."""
    generator = torch.Generator().manual_seed(0)
    k = frequencies(0.7)
    pair = torch.randn(2, CHANNELS, len(k), generator=generator, dtype=torch.float64) / k.norm(dim=1)
    waves = torch.complex(pair[0], pair[1])
    shifts = 6 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 3
    at = torch.arange(SIZE, dtype=torch.float64)
    pixels = rearrange(torch.stack(torch.meshgrid(at, at, indexing="ij")), "yx h w -> (h w) yx")

    def seen(shift: Tensor) -> Tensor:
        phase = torch.exp(1j * einsum(pixels - shift, k, "pixel yx, count yx -> pixel count"))
        clean = rearrange((waves @ phase.mT).real, "c (h w) -> c h w", h=SIZE)
        return clean / clean.std() + NOISE * torch.randn(clean.shape, generator=generator, dtype=torch.float64)

    before, after = (torch.stack([seen(shift) for shift in each]) for each in (0 * shifts, shifts))
    return before, after, shifts


def turned(shift: Tensor, cross: Tensor, weight: Tensor, k: Tensor) -> Tensor:
    """The residual of ONE pair: unit phases of its cross-power spectrum (channels, count) against a plane."""
    return weight * (cross - torch.exp(-1j * einsum(k, shift, "count yx, yx -> count")))


def whole_pixels(before: Tensor, after: Tensor) -> Tensor:
    """The peak of the phase correlation, (count, 2)."""
    cross = torch.fft.fft2(after) * torch.fft.fft2(before).conj()
    peak = reduce(torch.fft.ifft2(cross / cross.abs()).real, "n c h w -> n (h w)", "mean").argmax(1)
    found = torch.stack([peak // SIZE, peak % SIZE], 1)
    return torch.where(found > SIZE // 2, found - SIZE, found).to(torch.float64)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Sub-pixel shifts from the phase of cross-power spectra.")
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args(arguments)
    before, after, shifts = make_images(options.count)
    k = frequencies(0.5)
    first = spectrum(before, k)
    cross = spectrum(after, k) * first.conj()
    weight = first.abs() / (NOISE * SIZE * 2**0.5)  # both transforms have noise; k and −k say the same
    start = whole_pixels(before, after)
    solution = mslsq.least_squares(turned, start, (cross / cross.abs(), weight, k), in_dims=(0, 0, 0, None))
    # (JᵀJ)⁻¹ with J = −i k exp(…) weight
    information = einsum(k, k, weight**2, "count a, count b, image channel count -> image a b")
    sure = torch.linalg.inv(information).diagonal(dim1=1, dim2=2).sqrt()
    miss = (solution.value - shifts) / sure
    errors = {
        "whole pixels": float((start - shifts).square().mean().sqrt()),
        "phase": float((solution.value - shifts).square().mean().sqrt()),
        "errors / standard errors": float(miss.square().mean().sqrt()),
    }
    for name, error in errors.items():
        print(f"{name:25} {error:.4f}")
    return errors


if __name__ == "__main__":
    main()
