"""Losses of entries, and derivatives of functions that a residual takes itself."""

from typing import Any

import numpy as np

from mslsq.native.arrays import Array, each
from mslsq.native.rules.elementwise import entrywise
from mslsq.native.rules.registry import RULES, rule
from mslsq.native.scalars import Scalar

X = Scalar


def averaged(rec: Any, losses: np.ndarray, reduction: int) -> Array:
    """Losses by entry, or their mean or sum: `reduction` as aten has it."""
    if reduction == 0:
        return rec.array(losses)
    entries = list(losses.reshape(-1))
    result = entries[0]
    for entry in entries[1:]:
        result = result + entry
    return rec.array(np.asarray(result / float(len(entries)) if reduction == 1 else result, dtype=object))


@rule("mse_loss")
def _(rec: Any, x: Any, target: Any, reduction: int = 1) -> Array:
    squares = each(lambda a, b: (a - b) * (a - b), rec.scalars(x, rec.dtype), rec.scalars(target, rec.dtype))
    return averaged(rec, squares, reduction)


@rule("smooth_l1_loss")
def _(rec: Any, x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> Array:
    def loss(a: X, b: X) -> X:
        z = (a - b).apply("abs")
        return z.is_below(beta).choose(z * z * (0.5 / beta), z - 0.5 * beta) if beta else z

    return averaged(rec, each(loss, rec.scalars(x, rec.dtype), rec.scalars(target, rec.dtype)), reduction)


RULES["sigmoid_backward"] = entrywise(lambda g, y: g * (1 - y) * y, 2)
RULES["tanh_backward"] = entrywise(lambda g, y: g * (1 - y * y), 2)


@rule("threshold_backward")
def _(rec: Any, grad: Any, x: Any, threshold: float) -> Array:
    return entrywise(lambda g, a: a.is_at_most(threshold).choose(0, g), 2)(rec, grad, x)
