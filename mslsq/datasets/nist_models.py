"""The models of NIST's statistical reference regressions, as plain PyTorch functions ``model(p, t)``.

One parameter vector p (n,), the predictor t (m,), or (m, 2) for Nelson, whose model gives the logarithm of the
response.
"""

import math
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

Model = Callable[[Float[Tensor, "parameters"], Float[Tensor, "points *predictors"]], Float[Tensor, "points"]]


def _saturating_exponential(p: Tensor, t: Tensor) -> Tensor:
    """b1 (1 − exp(−b2 t)), by expm1: Misra1a has b2 t down to 0.04."""
    return -p[0] * (-p[1] * t).expm1()


def _misra1b(p: Tensor, t: Tensor) -> Tensor:
    """b1 (1 − (1 + b2 t/2)⁻²)"""
    return p[0] * (1 - (1 + p[1] * t / 2) ** -2)


def _misra1c(p: Tensor, t: Tensor) -> Tensor:
    """b1 (1 − (1 + 2 b2 t)^(−½))"""
    return p[0] * (1 - (1 + 2 * p[1] * t) ** -0.5)


def _misra1d(p: Tensor, t: Tensor) -> Tensor:
    """b1 b2 t/(1 + b2 t)"""
    return p[0] * p[1] * t / (1 + p[1] * t)


def _chwirut(p: Tensor, t: Tensor) -> Tensor:
    """exp(−b1 t)/(b2 + b3 t)"""
    return (-p[0] * t).exp() / (p[1] + p[2] * t)


def _three_exponentials(p: Tensor, t: Tensor) -> Tensor:
    """b1 exp(−b2 t) + b3 exp(−b4 t) + b5 exp(−b6 t)"""
    return p[0] * (-p[1] * t).exp() + p[2] * (-p[3] * t).exp() + p[4] * (-p[5] * t).exp()


def _two_gaussians(p: Tensor, t: Tensor) -> Tensor:
    """b1 exp(−b2 t) + b3 exp(−(t − b4)²/b5²) + b6 exp(−(t − b7)²/b8²)"""
    first = p[2] * (-(((t - p[3]) / p[4]) ** 2)).exp()
    second = p[5] * (-(((t - p[6]) / p[7]) ** 2)).exp()
    return p[0] * (-p[1] * t).exp() + first + second


def _power(p: Tensor, t: Tensor) -> Tensor:
    """b1 t^b2"""
    return p[0] * t ** p[1]


def _quadratic_over_quadratic(p: Tensor, t: Tensor) -> Tensor:
    """(b1 + b2 t + b3 t²)/(1 + b4 t + b5 t²)"""
    return (p[0] + t * (p[1] + t * p[2])) / (1 + t * (p[3] + t * p[4]))


def _cubic_over_cubic(p: Tensor, t: Tensor) -> Tensor:
    """(b1 + b2 t + b3 t² + b4 t³)/(1 + b5 t + b6 t² + b7 t³)"""
    return (p[0] + t * (p[1] + t * (p[2] + t * p[3]))) / (1 + t * (p[4] + t * (p[5] + t * p[6])))


def _two_decays(p: Tensor, t: Tensor) -> Tensor:
    """b1 + b2 exp(−b4 t) + b3 exp(−b5 t)"""
    return p[0] + p[1] * (-p[3] * t).exp() + p[2] * (-p[4] * t).exp()


def _nelson(p: Tensor, t: Tensor) -> Tensor:
    """b1 − b2 t1 exp(−b3 t2), of log y"""
    return p[0] - p[1] * t[:, 0] * (-p[2] * t[:, 1]).exp()


def _kowalik_osborne(p: Tensor, t: Tensor) -> Tensor:
    """b1 (t² + b2 t)/(t² + b3 t + b4)"""
    return p[0] * t * (t + p[1]) / (t * (t + p[2]) + p[3])


def _meyer(p: Tensor, t: Tensor) -> Tensor:
    """b1 exp(b2/(t + b3))"""
    return p[0] * (p[1] / (t + p[2])).exp()


def _roszman(p: Tensor, t: Tensor) -> Tensor:
    """b1 − b2 t − arctan(b3/(t − b4))/π"""
    return p[0] - p[1] * t - (p[2] / (t - p[3])).atan() / math.pi


def _logistic(p: Tensor, t: Tensor) -> Tensor:
    """b1/(1 + exp(b2 − b3 t))"""
    return p[0] / (1 + (p[1] - p[2] * t).exp())


def _richards(p: Tensor, t: Tensor) -> Tensor:
    """b1/(1 + exp(b2 − b3 t))^(1/b4)"""
    return p[0] / (1 + (p[1] - p[2] * t).exp()) ** (1 / p[3])


def _bell(p: Tensor, t: Tensor) -> Tensor:
    """b1/b2 exp(−½ ((t − b3)/b2)²)"""
    return p[0] / p[1] * (-0.5 * ((t - p[2]) / p[1]) ** 2).exp()


def _bennett(p: Tensor, t: Tensor) -> Tensor:
    """b1 (b2 + t)^(−1/b3)"""
    return p[0] * (p[1] + t) ** (-1 / p[2])


def _enso(p: Tensor, t: Tensor) -> Tensor:
    """b1 plus three cycles: of 12 months (b2, b3), of b4 months (b5, b6) and of b7 months (b8, b9)."""
    angle = 2 * math.pi * t

    def cycle(cosine: Tensor, sine: Tensor, phase: Tensor) -> Tensor:
        return cosine * phase.cos() + sine * phase.sin()

    return p[0] + cycle(p[1], p[2], angle / 12) + cycle(p[4], p[5], angle / p[3]) + cycle(p[7], p[8], angle / p[6])


MODELS: dict[str, Model] = {
    "Misra1a": _saturating_exponential,
    "Misra1b": _misra1b,
    "Chwirut1": _chwirut,
    "Chwirut2": _chwirut,
    "Lanczos3": _three_exponentials,
    "Gauss1": _two_gaussians,
    "Gauss2": _two_gaussians,
    "DanWood": _power,
    "Kirby2": _quadratic_over_quadratic,
    "Hahn1": _cubic_over_cubic,
    "Nelson": _nelson,
    "MGH17": _two_decays,
    "Lanczos1": _three_exponentials,
    "Lanczos2": _three_exponentials,
    "Gauss3": _two_gaussians,
    "Misra1c": _misra1c,
    "Misra1d": _misra1d,
    "Roszman1": _roszman,
    "ENSO": _enso,
    "MGH09": _kowalik_osborne,
    "MGH10": _meyer,
    "Thurber": _cubic_over_cubic,
    "BoxBOD": _saturating_exponential,
    "Rat42": _logistic,
    "Rat43": _richards,
    "Eckerle4": _bell,
    "Bennett5": _bennett,
}
"""Model functions by the name of the set, from NIST's lower to its higher level of difficulty."""
