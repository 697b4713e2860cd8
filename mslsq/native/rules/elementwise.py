"""Operations of entry by entry: arithmetic, functions, limits, and what is made of those."""

from collections.abc import Callable
from math import log, pi, sqrt
from typing import Any

import numpy as np
import torch

from mslsq.native.arrays import Array, each
from mslsq.native.rules.registry import RULES, rule
from mslsq.native.scalars import NotScalarError, Scalar
from mslsq.tracing.conventions import limits_belong_to_the_inside, share_ignoring_nan

X = Scalar


def entrywise(function: Callable[..., X], count: int) -> Callable[..., Array]:
    """The rule of a function of `count` tensors, computed in the dtype of the result."""

    def apply(rec: Any, *args: Any) -> Array:
        operands = [rec.scalars(x, rec.dtype) for x in args[:count]]
        return rec.array(each(lambda *scalars: function(*scalars, *args[count:]), *operands))

    return apply


def _named(*names: str) -> None:
    """Functions of one number that are one operation."""
    for name in names:
        RULES[name] = entrywise(lambda x, name=name: x.apply(name), 1)


_named("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan")
_named("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "neg")

UNARY: dict[str, Callable[[X], X]] = {
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / x.apply("sqrt"),
    "square": lambda x: x * x,
    "deg2rad": lambda x: x * (pi / 180),
    "rad2deg": lambda x: x * (180 / pi),
    "relu": lambda x: x.is_at_most(0).choose(0, x),
    "relu6": lambda x: _strictly_between(x, 0, 6),
    "frac": lambda x: x - x.apply("trunc"),
    "log_sigmoid": lambda x: _log_sigmoid(x),
    "silu": lambda x: x * x.apply("sigmoid"),
    "mish": lambda x: x * _softplus(x).apply("tanh"),
    "hardswish": lambda x: _hardswish(x),
    "sinc": lambda x: _sinc(x),
}
for _name, _function in UNARY.items():
    RULES[_name] = entrywise(_function, 1)


def _stepwise(name: str) -> Callable[..., Array]:
    """The rule of a function that is constant between jumps."""

    def apply(rec: Any, x: Array, *, decimals: int = 0) -> Array:
        if decimals:
            raise NotScalarError("round to decimals")
        if not rec.dtype.is_floating_point and name != "sign":
            return x
        return entrywise(lambda a: a.apply("trunc" if name == "fix" else name), 1)(rec, x)

    return apply


for _name in ("floor", "ceil", "trunc", "round", "sign", "fix"):
    RULES[_name] = _stepwise(_name)


# ---- arithmetic


@rule("add")
def _(rec: Any, a: Any, b: Any, *args: Any, alpha: Any = 1) -> Array:
    alpha = args[0] if args else alpha
    if rec.dtype == torch.bool:
        return entrywise(lambda x, y: x.apply("or", y), 2)(rec, a, b)
    return entrywise(lambda x, y: x + (y * alpha if alpha != 1 else y), 2)(rec, a, b)


@rule("sub")
def _(rec: Any, a: Any, b: Any, *args: Any, alpha: Any = 1) -> Array:
    alpha = args[0] if args else alpha
    return entrywise(lambda x, y: x - (y * alpha if alpha != 1 else y), 2)(rec, a, b)


@rule("rsub")
def _(rec: Any, a: Any, b: Any, *args: Any, alpha: Any = 1) -> Array:
    alpha = args[0] if args else alpha
    return entrywise(lambda x, y: y - (x * alpha if alpha != 1 else x), 2)(rec, a, b)


@rule("mul")
def _(rec: Any, a: Any, b: Any) -> Array:
    name = "and" if rec.dtype == torch.bool else "mul"
    return entrywise(lambda x, y: x.apply(name, y), 2)(rec, a, b)


@rule("div", "true_divide", "divide", "floor_divide")
def _(rec: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Array:
    mode = "floor" if "floor_divide" in rec.node.target.__name__ else rounding_mode
    if mode is None:
        return entrywise(lambda x, y: x / y, 2)(rec, a, b)
    if not rec.dtype.is_floating_point:
        return entrywise(lambda x, y: _whole(x, y, "floor_div", mode), 2)(rec, a, b)
    if mode == "trunc":
        return entrywise(lambda x, y: (x / y).apply("trunc"), 2)(rec, a, b)
    return entrywise(lambda x, y: x.apply("floor_div", y), 2)(rec, a, b)


def _whole(x: X, y: X, operation: str, mode: str = "floor") -> X:
    """Of integers, by a constant: a division by zero would end the process."""
    if mode != "floor" or not y.value:
        raise NotScalarError("a division of integers by what is no constant, or towards zero")
    return x.apply(operation, y)


@rule("fmod")
def _(rec: Any, a: Any, b: Any) -> Array:
    if not rec.dtype.is_floating_point:
        raise NotScalarError("fmod of integers")
    return entrywise(lambda x, y: x.apply("fmod", y), 2)(rec, a, b)


@rule("remainder")
def _(rec: Any, a: Any, b: Any) -> Array:
    if not rec.dtype.is_floating_point:
        return entrywise(lambda x, y: _whole(x, y, "modulo"), 2)(rec, a, b)
    return entrywise(lambda x, y: x.apply("remainder", y), 2)(rec, a, b)


@rule("pow")
def _(rec: Any, base: Any, exponent: Any) -> Array:
    if not (rec.dtype.is_floating_point or rec.dtype.is_complex):
        raise NotScalarError("a power of integers")
    return entrywise(lambda x, p: x.apply("pow", p), 2)(rec, base, exponent)


@rule("float_power")
def _(rec: Any, base: Any, exponent: Any) -> Array:
    return entrywise(lambda x, p: x.apply("pow", p), 2)(rec, base, exponent)


for _name in ("maximum", "minimum", "atan2", "copysign", "hypot"):
    RULES[_name] = entrywise(lambda x, y, name=_name: x.apply(name, y), 2)
RULES["fmax"] = entrywise(lambda x, y: _ignoring_nan(x, y, "maximum"), 2)
RULES["fmin"] = entrywise(lambda x, y: _ignoring_nan(x, y, "minimum"), 2)
RULES["lerp"] = entrywise(lambda a, b, w: _lerp(a, b, w), 3)


def _ignoring_nan(x: X, y: X, name: str) -> X:
    first = x.is_at_least(y) if name == "maximum" else x.is_at_most(y)
    chosen = y.apply("ne", y).apply("or", first).choose(x, y)
    if share_ignoring_nan() == 1:
        return chosen
    return x.is_equal(y).choose(x.apply(name, y), chosen)  # of which equal ones share the derivative


def _lerp(a: X, b: X, w: X) -> X:
    small = w.apply("abs").is_below(0.5)
    return small.choose(a + w * (b - a), b - (b - a) * (1 - w))


@rule("addcmul")
def _(rec: Any, a: Any, b: Any, c: Any, *, value: Any = 1) -> Array:
    return entrywise(lambda x, y, z: x + y * z * value, 3)(rec, a, b, c)


@rule("addcdiv")
def _(rec: Any, a: Any, b: Any, c: Any, *, value: Any = 1) -> Array:
    return entrywise(lambda x, y, z: x + y / z * value, 3)(rec, a, b, c)


# ---- limits


def _strictly_between(x: X, least: float | None, most: float | None) -> X:
    """Between limits that belong to the outside, where the derivative is 0. NaN stays."""
    limited = x
    if least is not None:
        limited = x.is_above(least).choose(limited, limited.apply("at_least", least).apply("detached"))
    if most is not None:
        limited = x.is_below(most).choose(limited, limited.apply("at_most", most).apply("detached"))
    return limited


@rule("clamp")
def _(rec: Any, x: Any, min: Any = None, max: Any = None) -> Array:
    return _limited(rec, x, min, max)


@rule("clamp_min")
def _(rec: Any, x: Any, min: Any) -> Array:
    return _limited(rec, x, min, None)


@rule("clamp_max")
def _(rec: Any, x: Any, max: Any) -> Array:
    return _limited(rec, x, None, max)


def _limited(rec: Any, x: Any, least: Any, most: Any) -> Array:
    are_numbers = all(limit is None or isinstance(limit, (int, float)) for limit in (least, most))
    if are_numbers and rec.dtype.is_floating_point and not limits_belong_to_the_inside():
        return entrywise(lambda a: _strictly_between(a, least, most), 1)(rec, x)
    if least is not None and most is not None:
        return entrywise(lambda a, b, c: a.apply("at_least", b).apply("at_most", c), 3)(rec, x, least, most)
    if least is not None:
        return entrywise(lambda a, b: a.apply("at_least", b), 2)(rec, x, least)
    return entrywise(lambda a, b: a.apply("at_most", b), 2)(rec, x, most)


@rule("hardtanh")
def _(rec: Any, x: Any, least: float = -1, most: float = 1) -> Array:
    return entrywise(lambda a: _strictly_between(a, least, most), 1)(rec, x)


@rule("threshold")
def _(rec: Any, x: Any, threshold: float, value: float) -> Array:
    return entrywise(lambda a: a.is_at_most(threshold).choose(value, a), 1)(rec, x)


@rule("leaky_relu")
def _(rec: Any, x: Any, slope: float = 0.01) -> Array:
    return entrywise(lambda a: a.is_above(0).choose(a, a * slope), 1)(rec, x)


@rule("elu")
def _(rec: Any, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    def elu(a: X) -> X:
        return a.is_above(0).choose(a * scale, (a * input_scale).apply("expm1") * (alpha * scale))

    return entrywise(elu, 1)(rec, x)


@rule("celu")
def _(rec: Any, x: Any, alpha: float = 1) -> Array:
    return entrywise(lambda a: a.is_above(0).choose(a, (a / alpha).apply("expm1") * alpha), 1)(rec, x)


def _hardswish(x: X) -> X:
    return x * _strictly_between(x + 3, 0, 6) / 6


@rule("hardshrink")
def _(rec: Any, x: Any, limit: float = 0.5) -> Array:
    def shrunk(a: X) -> X:
        outside = a.is_above(limit).apply("or", a.is_below(-limit))
        return outside.choose(a, a.apply("ne", a).choose(a.apply("detached"), 0))

    return entrywise(shrunk, 1)(rec, x)


@rule("softshrink")
def _(rec: Any, x: Any, limit: float = 0.5) -> Array:
    def shrunk(a: X) -> X:
        return a.is_above(limit).choose(a - limit, a.is_below(-limit).choose(a + limit, a * 0))

    return entrywise(shrunk, 1)(rec, x)


@rule("glu")
def _(rec: Any, x: Any, dim: int = -1) -> Array:
    first, second = np.split(rec.scalars(x, rec.dtype), 2, axis=dim)
    return rec.array(each(lambda a, b: a * b.apply("sigmoid"), first, second))


def _sinc(x: X) -> X:
    """sin πx / πx, near 0 by its series: the derivative of the quotient cancels there."""
    angle = x * pi
    squared = angle * angle
    is_small = squared.is_below(0.0625)
    series = squared.like(1)
    for factor in (110, 72, 42, 20, 6):
        series = 1 - squared / float(factor) * series
    safe = is_small.choose(1, angle)
    return is_small.choose(series, safe.apply("sin") / safe)


@rule("logit")
def _(rec: Any, x: Any, eps: float | None = None) -> Array:
    def logit(a: X) -> X:
        a = a if eps is None else _strictly_between(a, eps, 1 - eps)
        return (a / (1 - a)).apply("log")

    return entrywise(logit, 1)(rec, x)


def logarithm_of_sum(x: X, y: X, base: float = 0) -> X:
    """log(exp x + exp y), or log₂(2ˣ + 2ʸ)."""
    largest, distance = x.apply("maximum", y), (x - y).apply("abs")
    if base == 2:
        joined = largest + (-distance).apply("exp2").apply("log1p") * (1 / log(2))
    else:
        joined = largest + (-distance).apply("exp").apply("log1p")
    return x.is_equal(y).apply("and", x.apply("abs").is_equal(float("inf"))).choose(x, joined)


RULES["logaddexp"] = entrywise(logarithm_of_sum, 2)
RULES["logaddexp2"] = entrywise(lambda x, y: logarithm_of_sum(x, y, 2), 2)
RULES["xlogy"] = entrywise(lambda x, y: _times_log(x, y, "log"), 2)
RULES["special_xlog1py"] = entrywise(lambda x, y: _times_log(x, y, "log1p"), 2)
RULES["ldexp"] = entrywise(lambda x, y: x * y.like(2).apply("pow", y), 2)


def _times_log(x: X, y: X, name: str) -> X:
    """x log y, or x log(1 + y): 0 where x is and the logarithm is not finite; else its slope in x stays there."""
    logarithm = y.apply(name)
    is_finite = logarithm.apply("abs").is_below(float("inf"))
    outside = is_finite.apply("not").apply("and", y.is_equal(y))
    return x.is_equal(0).apply("and", outside).choose(0, x * logarithm)


def _softplus(x: X, beta: float = 1, threshold: float = 20) -> X:
    scaled = x * beta
    return scaled.is_above(threshold).choose(x, scaled.apply("exp").apply("log1p") / beta)


@rule("softplus")
def _(rec: Any, x: Any, beta: float = 1, threshold: float = 20) -> Array:
    return entrywise(lambda a: _softplus(a, beta, threshold), 1)(rec, x)


def _log_sigmoid(x: X) -> X:
    below = x - x.apply("exp").apply("log1p")
    return x.is_below(0).choose(below, -(-x).apply("exp").apply("log1p"))


@rule("log_sigmoid_forward")
def _(rec: Any, x: Any) -> list[Any]:
    dtype = rec.node.args[0].meta["val"].dtype
    return [rec.array(each(_log_sigmoid, rec.scalars(x, dtype)), dtype), None]


@rule("gelu")
def _(rec: Any, x: Any, *, approximate: str = "none") -> Array:
    def gelu(a: X) -> X:
        if approximate == "tanh":
            return a * 0.5 * (1 + ((a + a * a * a * 0.044715) * sqrt(2 / pi)).apply("tanh"))
        return a * 0.5 * (1 + (a * sqrt(0.5)).apply("erf"))

    return entrywise(gelu, 1)(rec, x)
