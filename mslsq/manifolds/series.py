"""Smooth even functions of an angle, written in the square of the angle so that no derivative meets 0/0.

sin(x)/x and its relatives are entire in x², but their closed forms cannot be computed at x = 0, and near it every
derivative cancels: the second derivative of sin(x)/x in closed form has an error of about eps/x². So below a threshold
a Taylor polynomial in x² is used, above it the closed form, and each branch gets an argument clamped to its own side
first (`where` alone turns 0 * inf of the branch that is not taken into NaN in derivatives).

The threshold x² = 1/16 and the number of terms go together: above it second derivatives lose at most a factor of 16
(3.6e-15 in float64), below it the first omitted term changes them by less than 1e-17 (float64) or 1e-9 (float32).
Halving the threshold of x saves one term of seven and costs a factor of four in accuracy. Everything else (cosine,
1 - cos, θ - sin θ, x cot x) follows from the one polynomial by identities that do not cancel.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

THRESHOLD = 1 / 16  # on x² with x = θ/2, so angles below half a radian
_SINE_TAIL = tuple((-1) ** n / math.factorial(2 * n + 3) for n in range(6))  # (1 - sin(x)/x) / x²
_SINGLE_TAIL = 4  # terms that float32 needs
_FOURTH = tuple((-1) ** n / math.factorial(2 * n + 4) for n in range(8))  # these two in θ² < 1/4
_FIFTH = tuple((-1) ** n / math.factorial(2 * n + 5) for n in range(8))

# The arctangent's series converges slowly; taken of a quarter of the angle it reaches θ = 0.5 with nine terms.
_ARCTANGENT_THRESHOLD = 1 / 64
_ARCTANGENT_TAIL = tuple((-1) ** n / (2 * n + 3) for n in range(9))  # (1 - atan(t)/t) / t²
_SINGLE_ARCTANGENT_TAIL = 5


def polynomial(x: Tensor, coefficients: tuple[float, ...], single: int) -> Tensor:
    """Horner's rule, lowest coefficient first. `single` is the number of terms that float32 (and below) needs."""
    terms = coefficients if x.dtype == torch.float64 else coefficients[:single]
    value = terms[-1] * x + terms[-2]
    for coefficient in terms[-3::-1]:
        value = value * x + coefficient
    return value


def sine_tail(x2: Tensor) -> Tensor:
    """(1 - sin(x)/x)/x² for x² up to the threshold."""
    return polynomial(x2, _SINE_TAIL, _SINGLE_TAIL)


class HalfAngle(NamedTuple):
    """sin(x)/x and cos x for x = θ/2, and what the functions below need to branch in the same place."""

    sinc: Tensor
    cosine: Tensor
    small: Tensor  # where the series holds
    inner: tuple[Tensor, Tensor, Tensor]  # there: sinc, cosine, (1 - sinc)/x²; elsewhere some finite values
    inner2: Tensor  # x² there, the threshold elsewhere
    outer2: Tensor  # the threshold there, x² elsewhere


def half_angle(x2: Tensor) -> HalfAngle:
    """sin(x)/x and cos x of x² = (θ/2)²: the vector part (per θ/2) and the real part of a rotation's quaternion."""
    small = x2 < THRESHOLD
    # not `clamp(min=)`, whose derivative at the threshold itself, where the other formula holds, is 0 in torch 2.15
    inner, outer = x2.clamp(max=THRESHOLD), x2.masked_fill(small, THRESHOLD)
    x = outer.sqrt()
    tail = sine_tail(inner)
    sinc = 1.0 - inner * tail
    cosine = (1.0 - inner * (sinc * sinc)).sqrt()  # by Pythagoras: 4 operations instead of another Horner's 12
    return HalfAngle(
        torch.where(small, sinc, x.sin() / x),
        torch.where(small, cosine, x.cos()),
        small,
        (sinc, cosine, tail),
        inner,
        outer,
    )


def sine_remainder(half: HalfAngle) -> Tensor:
    """(θ - sin θ)/θ³.

    With k = sin(x)/x, w = cos x, k = 1 - x² p: θ - sin θ = θ (1 - k w), and 1 - k w = x² (k²/(1 + w) + w p).
    """
    k, w, p = half.inner
    return 0.25 * torch.where(half.small, k * k / (1.0 + w) + w * p, (1.0 - half.sinc * half.cosine) / half.outer2)


def cotangent_remainder(half: HalfAngle) -> Tensor:
    """(1 - x cot x)/x² for |x| < pi. As x cot x = w/k, it is (k²/(1 + w) - p)/k in the terms of `sine_remainder`."""
    k, w, p = half.inner
    return torch.where(half.small, (k * k / (1.0 + w) - p) / k, (1.0 - half.cosine / half.sinc) / half.outer2)


def higher_remainders(half: HalfAngle) -> tuple[Tensor, Tensor, Tensor]:
    """(θ - sin θ)/θ³, (cos θ - 1 + θ²/2)/θ⁴ and (sin θ - θ + θ³/6)/θ⁵, for the Jacobians of SE(3)."""
    inner, outer = 4.0 * half.inner2, 4.0 * half.outer2
    third = sine_remainder(half)
    fourth = torch.where(half.small, polynomial(inner, _FOURTH, 5), (0.5 - 0.5 * (half.sinc * half.sinc)) / outer)
    fifth = torch.where(half.small, polynomial(inner, _FIFTH, 5), (1.0 / 6.0 - third) / outer)
    return third, fourth, fifth


def angle_ratios(n2: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """For n = sqrt(n2) ≥ 0, w ≥ 0 and x = atan2(n, w), smooth at n = 0: x/n, and (1 - x cot x)/x².

    The angle x does not change with the length of (n, w). With t = tan(x/2) = n/(w + |(n, w)|) and
    a = atan(t)/t = 1 - t² q: x = 2 t a, and 1 - x cot x = 1 - a (1 - t²) = t² (q + a).
    """
    reach = w + (n2 + w * w).sqrt()
    t2 = n2 / (reach * reach)
    small = t2 < _ARCTANGENT_THRESHOLD
    t2 = t2.clamp(max=_ARCTANGENT_THRESHOLD)
    tail = polynomial(t2, _ARCTANGENT_TAIL, _SINGLE_ARCTANGENT_TAIL)
    a = 1.0 - t2 * tail
    n = n2.masked_fill(small, 1.0).sqrt()
    x = torch.atan2(n, w)
    ratio = torch.where(small, 2.0 * a / reach, x / n)
    return ratio, torch.where(small, (tail + a) / (4.0 * a * a), (1.0 - x * w / n) / (x * x))
