"""Independent references for the groups: hat matrices, homogeneous matrices of storage, mpmath's matrix exponential."""

import math

import mpmath
import numpy as np
import torch

from mslsq.manifolds import SE2, SE3, SO2, SO3, Sim2, Sim3

GROUPS = (SO2, SE2, Sim2, SO3, SE3, Sim3)
POINT_DIM = {SO2: 2, SE2: 2, Sim2: 2, SO3: 3, SE3: 3, Sim3: 3}
ANGLE = {SO2: slice(0, 1), SE2: slice(2, 3), Sim2: slice(2, 3), SO3: slice(0, 3), SE3: slice(3, 6), Sim3: slice(3, 6)}
HAS_TRANSLATION = {SO2: False, SE2: True, Sim2: True, SO3: False, SE3: True, Sim3: True}
ANGLES = (1e-12, 1e-9, 1e-6, 1e-4, 0.01, 0.1, 0.4999, 0.5001, 1.0, 2.0, 3.0, math.pi - 1e-3, math.pi - 1e-6)


def hat(group, x):
    """The Lie algebra matrix of a tangent vector (translation, rotation[, log scale]), from first principles."""
    n = POINT_DIM[group]
    x = list(x)
    translation = [x.pop(0) for _ in range(n)] if HAS_TRANSLATION[group] else None
    matrix = [[0.0] * n for _ in range(n)]
    if n == 2:
        matrix[0][1], matrix[1][0] = -x[0], x[0]
    else:
        matrix[0][1], matrix[0][2], matrix[1][2] = -x[2], x[1], -x[0]
        matrix[1][0], matrix[2][0], matrix[2][1] = x[2], -x[1], x[0]
    if group in (Sim2, Sim3):
        for k in range(n):
            matrix[k][k] = x[-1]
    if translation is None:
        return matrix
    return [[*row, t] for row, t in zip(matrix, translation, strict=True)] + [[0.0] * (n + 1)]


def tangent_at(group, angle, generator, translation=1.0):
    """A tangent vector whose rotation has exactly this angle about a random axis; the rest is normal."""
    x = translation * torch.randn(group.tangent_dim, generator=generator, dtype=torch.float64)
    axis = torch.randn(x[ANGLE[group]].shape, generator=generator, dtype=torch.float64)
    x[ANGLE[group]] = angle * axis / axis.norm()
    return x


def directional_derivative(group, x, directions):
    """The mixed derivative of expm(hat(x + sum e_k d_k)) at e = 0, by differences of 1e-20 in 80 digits."""
    with mpmath.workdps(80):
        step = mpmath.mpf(10) ** -20
        total = None
        for signs in np.ndindex(*(2,) * len(directions)):
            moved = [mpmath.mpf(float(v)) for v in x]
            for sign, direction in zip(signs, directions, strict=True):
                moved = [m + (1 - 2 * sign) * step * float(d) for m, d in zip(moved, direction, strict=True)]
            term = (-1) ** sum(signs) * mpmath.expm(mpmath.matrix(hat(group, moved)), method="taylor")
            total = term if total is None else total + term
        total /= (2 * step) ** len(directions)
        return np.array(total.tolist(), dtype=float)
