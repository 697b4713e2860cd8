"""Smooth even functions of an angle, written in the square of the angle so that no derivative meets 0/0.

sin(x)/x and its relatives are entire (or analytic near 0) in x², but their closed forms are not computable at x = 0, and
near it every derivative cancels: the second derivative of sin(x)/x in closed form has an error of about eps/x². So below a
threshold a Taylor polynomial in x² is used, above it the closed form, and the two are joined by a *double* `where`: the
argument of the branch that is not taken is replaced first, because `where` alone turns 0 * inf into NaN in derivatives.

The threshold x² = 1/16 and the number of terms go together: above it the second derivative loses at most a factor of 16
(3.6e-15 in float64), below it the first omitted term changes the second derivative by less than 1e-16 (float64) or 1e-8
(float32). A smaller threshold saves one term of seven and costs a factor of four in accuracy for each halving of x.
"""

import math

import torch
from torch import Tensor

THRESHOLD = 1 / 16  # on x², see above

_SINC = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(7))
_SINE_REMAINDER = tuple((-4) ** n / math.factorial(2 * n + 3) for n in range(7))
# (1 - x cot x) / x² = sum of 2^(2n) |B_2n| / (2n)! x^(2n - 2) for n = 1, 2, ...
_COTANGENT_REMAINDER = (
    1 / 3,
    1 / 45,
    2 / 945,
    1 / 4725,
    2 / 93555,
    1382 / 638512875,
    4 / 18243225,
    3617 / 162820783125,
    87734 / 38979295480125,
)
_ARCTANGENT = tuple((-1) ** n / (2 * n + 1) for n in range(10))
ARCTANGENT_THRESHOLD = 1 / 64  # on tan²: the series converges slowly, so the threshold is lower (angles below 0.249)


def polynomial(x: Tensor, coefficients: tuple[float, ...], single: int) -> Tensor:
    """Horner's rule; lowest coefficient first. `single` is the number of terms that float32 (and below) needs."""
    terms = coefficients if x.dtype == torch.float64 else coefficients[:single]
    value = terms[-1] * x + terms[-2]
    for coefficient in terms[-3::-1]:
        value = value * x + coefficient
    return value


def half_angle(x2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """For x = θ/2 given as x²: (sin(x)/x, cos x), and what other functions need to branch in the same place.

    Returns (sinc, cosine, small, x² where small else 0, x² where large else 1).
    """
    small = x2 < THRESHOLD
    inner = torch.where(small, x2, 0.0)
    outer = torch.where(small, 1.0, x2)
    x = outer.sqrt()
    sinc_inner = polynomial(inner, _SINC, 5)
    # The cosine follows from the sine by Pythagoras where it is near 1: 4 operations instead of another 12 of Horner.
    cosine_inner = (1.0 - inner * (sinc_inner * sinc_inner)).sqrt()
    sinc = torch.where(small, sinc_inner, x.sin() / x)
    cosine = torch.where(small, cosine_inner, x.cos())
    return sinc, cosine, small, inner, outer


def sine_remainder(half: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """(θ - sin θ) / θ³ from what `half_angle` returned for θ/2: (1 - sinc cosine) / (4 x²) where large."""
    sinc, cosine, small, inner, outer = half
    return torch.where(small, polynomial(inner, _SINE_REMAINDER, 5), (1.0 - sinc * cosine) / (4.0 * outer))


def cotangent_remainder(x2: Tensor, x_cot_x: Tensor) -> Tensor:
    """(1 - x cot x) / x², given x² and the closed form of x cot x (finite where x² is above the threshold)."""
    small = x2 < THRESHOLD
    closed = (1.0 - x_cot_x) / torch.where(small, 1.0, x2)
    return torch.where(small, polynomial(torch.where(small, x2, 0.0), _COTANGENT_REMAINDER, 5), closed)


def arctangent_ratio(n2: Tensor, w: Tensor) -> Tensor:
    """atan2(n, w) / n for n = sqrt(n2) ≥ 0 and w ≥ 0, smooth at n = 0: the angle of a quaternion by its vector part."""
    w2 = w * w
    small = n2 < ARCTANGENT_THRESHOLD * w2
    n = torch.where(small, 1.0, n2).sqrt()
    cosine = torch.where(small, w, 1.0)
    tangent2 = torch.where(small, n2, 0.0) / (cosine * cosine)
    return torch.where(small, polynomial(tangent2, _ARCTANGENT, 6) / cosine, torch.atan2(n, w) / n)
