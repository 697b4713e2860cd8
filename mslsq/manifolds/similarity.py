"""The translation part of similarities' exponential, for Sim2 and Sim3.

exp(ρ, φ, σ) has the translation W ρ with W = ∫ exp(τ (σ + [φ])) dτ over [0, 1] = A + B [φ] + C [φ]². On the eigenvalues
z = σ + iθ of σ + [φ], W is g(z) = (exp(z) - 1)/z: with E = Re g(z), A = g(σ), B = Im g(z)/θ, C = (A - E)/θ².
All three are entire in σ and θ². The closed forms cancel near z = 0 only; there g(z) = exp(z/2) sinh(x)/x with x = z/2,
and the polynomial of sinh(x)/x in x² needs few terms.
"""

import math

import torch
from torch import Tensor

from mslsq.manifolds.series import THRESHOLD, HalfAngle, polynomial

_HYPERBOLIC = tuple(1 / math.factorial(2 * n + 1) for n in range(7))  # sinh(x)/x in x²
_SINGLE_HYPERBOLIC = 5


def translation_coefficients(sigma: Tensor, angle2: Tensor, half: HalfAngle) -> tuple[Tensor, Tensor, Tensor]:
    """(A, B, C) of σ and θ², with what `half_angle` returns for θ²/4."""
    a, a2 = 0.5 * sigma, (0.25 * sigma) * sigma
    small = a2 + 0.25 * angle2 < THRESHOLD
    growth = a.exp()
    first = growth * _hyperbolic_sinc(a, a2)
    b_inner, c_inner = _near_zero(a.clamp(-0.25, 0.25), half, growth)
    # B = (1 - e^σ cos θ + σ e^σ sin(θ)/θ)/|z|², C = (σ e^σ (1 - cos θ)/θ² + A - e^σ sin(θ)/θ)/|z|²
    scale = growth * growth
    flat = 0.5 * half.sinc * half.sinc
    scaled_sinc = scale * half.sinc * half.cosine
    norm2 = (sigma * sigma + angle2).masked_fill(small, 1.0)
    b_outer = (1.0 - scale * (1.0 - angle2 * flat) + sigma * scaled_sinc) / norm2
    c_outer = (sigma * scale * flat + first - scaled_sinc) / norm2
    return first, torch.where(small, b_inner, b_outer), torch.where(small, c_inner, c_outer)


def inverse_coefficients(sigma: Tensor, angle2: Tensor, half: HalfAngle) -> tuple[Tensor, Tensor, Tensor]:
    """The coefficients (α, β, γ) of W⁻¹ = α + β [φ] + γ [φ]², by inverting E + iθB: no division by θ."""
    a, b, c = translation_coefficients(sigma, angle2, half)
    e = a - angle2 * c
    modulus2 = e * e + angle2 * (b * b)
    return 1.0 / a, -b / modulus2, (b * b - e * c) / (a * modulus2)


def _hyperbolic_sinc(x: Tensor, x2: Tensor) -> Tensor:
    """sinh(x)/x, given x² too."""
    small = x2 < THRESHOLD
    outer = x.masked_fill(small, 1.0)
    series = polynomial(x2.clamp(max=THRESHOLD), _HYPERBOLIC, _SINGLE_HYPERBOLIC)
    return torch.where(small, series, outer.sinh() / outer)


def _near_zero(a: Tensor, half: HalfAngle, growth: Tensor) -> tuple[Tensor, Tensor]:
    """(B, C) for a² + b² below the threshold, x = a + ib = z/2, growth = e^a.

    Horner's rule for S = sinh(x)/x at x² = (a² - b²) + ib (2a), as S = real + ib odd, and at a² as `real + b² gap`:
    gap = (S(a²) - Re S(x²))/b² obeys a recurrence of its own, in which nothing is divided.
    """
    a2, b2, twice = a * a, half.inner2, 2.0 * a
    y = a2 - b2
    terms = _HYPERBOLIC if a.dtype == torch.float64 else _HYPERBOLIC[:_SINGLE_HYPERBOLIC]
    real, odd, gap = terms[-1] * y + terms[-2], terms[-1] * twice, torch.full_like(a, terms[-1])
    for coefficient in terms[-3::-1]:
        mixed = odd * twice
        real, odd, gap = real * y - b2 * mixed + coefficient, real * twice + odd * y, gap * a2 + real + mixed
    k, w, _ = half.inner
    # Im(e^ib S)/b, and (S(a²) - Re(e^ib S))/b² with (1 - cos b)/b² = k²/(1 + w)
    b = w * odd + k * real
    c = gap + (k * k / (1.0 + w)) * real + k * odd
    return 0.5 * growth * b, 0.25 * growth * c
