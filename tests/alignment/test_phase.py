"""A shift from the phase of the cross-power spectrum, to a hundredth of a pixel."""

import math

import pytest
import torch

from mslsq.alignment import MapStatus, align
from mslsq.alignment.phase import refined_shift


def scene(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Waves of many directions, none along an axis: the same scene wherever it is sampled."""
    generator = torch.Generator().manual_seed(3)
    total = torch.zeros_like(x)
    for _ in range(40):
        fx, fy, phase = torch.rand(3, generator=generator, dtype=x.dtype).tolist()
        total = total + torch.sin(2 * math.pi * (0.18 * (fx - 0.5) * x + 0.18 * (fy - 0.5) * y + phase))
    return total


def pair(shift: tuple[float, float], size: tuple[int, int], noise: float = 0.0) -> list[torch.Tensor]:
    """a and b with b(u + d) = a(u), which is no cyclic shift."""
    y, x = torch.meshgrid(*[torch.arange(float(n), dtype=torch.float64) for n in size], indexing="ij")
    generator = torch.Generator().manual_seed(5)
    maps = [scene(x, y), scene(x - shift[0], y - shift[1])]
    return [one + noise * torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in maps]


@pytest.mark.parametrize("shift", [(0.3, -0.45), (5.25, 3.6), (-11.4, 7.3)])
@pytest.mark.parametrize(("noise", "error"), [(0.0, 0.01), (1.0, 0.05)])
def test_the_shift_is_found_to_a_fraction_of_a_pixel(shift, noise, error):
    a, b = pair(shift, (90, 120), noise)
    found = refined_shift(a, b, (round(shift[0]), round(shift[1])))
    assert float((found - torch.tensor(shift, dtype=found.dtype)).abs().max()) < error


def test_a_peak_that_is_far_off_or_without_content_is_returned_as_it_is():
    a, b = pair((5.25, 3.6), (90, 120))
    assert refined_shift(a, torch.zeros_like(b), (2, 1)).tolist() == [2, 1]
    assert refined_shift(a[:12], b[:12], (0, 7)).tolist() == [0, 7]


def test_an_alignment_that_starts_from_the_phase_alone_starts_next_to_the_truth():
    reference, moving = (one.to(torch.float32) for one in pair((13.3, -6.7), (128, 160)))
    result = align([reference, moving], model="translation", init="phase")
    assert MapStatus(int(result.status[1])) is MapStatus.ALIGNED
    found = result.transforms[1, :2, 2].to(torch.float64)
    torch.testing.assert_close(found, torch.tensor([13.3, -6.7], dtype=found.dtype), rtol=0, atol=0.02)
