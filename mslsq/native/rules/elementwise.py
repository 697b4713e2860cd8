"""Operations of entry by entry: arithmetic, functions, comparisons, choices, and what is made of those."""

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import torch

from mslsq.native.arrays import Array, each
from mslsq.native.rules.registry import RULES, rule
from mslsq.native.scalars import NotScalarError, Scalar

X = Scalar


def _entrywise(function: Callable[..., X], count: int) -> Callable[..., Array]:
    """The rule of a function of `count` tensors, computed in the dtype of the result."""

    def apply(rec: Any, *args: Any) -> Array:
        operands = [rec.scalars(x, rec.dtype) for x in args[:count]]
        return rec.array(each(lambda *scalars: function(*scalars, *args[count:]), *operands))

    return apply


def _named(*names: str) -> None:
    """Functions of one number that are one operation."""
    for name in names:
        RULES[name] = _entrywise(lambda x, name=name: x.apply(name), 1)


_named("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan")
_named("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "abs", "neg")

UNARY: dict[str, Callable[[X], X]] = {
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / x.apply("sqrt"),
    "square": lambda x: x * x,
    "deg2rad": lambda x: x * (pi / 180),
    "rad2deg": lambda x: x * (180 / pi),
    "relu": lambda x: x.is_at_most(0).choose(0, x),
    "relu6": lambda x: _clamped(x, 0, 6),
    "frac": lambda x: x - x.apply("trunc"),
    "log_sigmoid": lambda x: _log_sigmoid(x),
    "silu": lambda x: x * x.apply("sigmoid"),
    "mish": lambda x: x * _softplus(x).apply("tanh"),
    "sinc": lambda x: x.is_equal(0).choose(1, (x * pi).apply("sin") / (x * pi)),
    "sgn": lambda x: x.apply("sign"),
}
for _name, _function in UNARY.items():
    RULES[_name] = _entrywise(_function, 1)


@rule("floor", "ceil", "trunc", "round", "sign", "fix")
def _(rec: Any, x: Array, *, decimals: int = 0) -> Array:
    name = rec.node.target.__name__.partition(".")[0]
    if decimals:
        raise NotScalarError("round to decimals")
    if not rec.dtype.is_floating_point and name != "sign":
        return x
    return _entrywise(lambda a: a.apply("trunc" if name == "fix" else name), 1)(rec, x)


# ---- arithmetic


@rule("add")
def _(rec: Any, a: Any, b: Any, *args: Any, alpha: Any = 1) -> Array:
    alpha = args[0] if args else alpha
    if rec.dtype == torch.bool:
        return _entrywise(lambda x, y: x.apply("or", y), 2)(rec, a, b)
    return _entrywise(lambda x, y: x + (y * alpha if alpha != 1 else y), 2)(rec, a, b)


@rule("sub")
def _(rec: Any, a: Any, b: Any, *args: Any, alpha: Any = 1) -> Array:
    alpha = args[0] if args else alpha
    return _entrywise(lambda x, y: x - (y * alpha if alpha != 1 else y), 2)(rec, a, b)


@rule("rsub")
def _(rec: Any, a: Any, b: Any, *args: Any, alpha: Any = 1) -> Array:
    alpha = args[0] if args else alpha
    return _entrywise(lambda x, y: y - (x * alpha if alpha != 1 else x), 2)(rec, a, b)


@rule("mul")
def _(rec: Any, a: Any, b: Any) -> Array:
    name = "and" if rec.dtype == torch.bool else "mul"
    return _entrywise(lambda x, y: x.apply(name, y), 2)(rec, a, b)


@rule("div", "true_divide", "divide", "floor_divide")
def _(rec: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Array:
    mode = "floor" if "floor_divide" in rec.node.target.__name__ else rounding_mode
    if mode is None:
        return _entrywise(lambda x, y: x / y, 2)(rec, a, b)
    if not rec.dtype.is_floating_point:
        return _entrywise(lambda x, y: _whole(x, y, "quotient", mode), 2)(rec, a, b)
    if mode == "trunc":
        return _entrywise(lambda x, y: (x / y).apply("trunc"), 2)(rec, a, b)
    return _entrywise(_floor_quotient, 2)(rec, a, b)


def _whole(x: X, y: X, operation: str, mode: str = "floor") -> X:
    """Of integers, by a constant: a division by zero would end the process."""
    if mode != "floor" or not y.value:
        raise NotScalarError("a division of integers by what is no constant, or towards zero")
    return x.apply(operation, y)


def _floor_quotient(x: X, y: X) -> X:
    """⌊x / y⌋ as PyTorch has it: from the exact remainder, since x / y may round up to the next whole number."""
    exact = _fmod(x, y)
    quotient = (x - exact) / y
    crossed = exact.apply("ne", 0).apply("and", exact.is_below(0).apply("xor", y.is_below(0)))
    quotient = crossed.choose(quotient - 1, quotient)
    whole = quotient.apply("floor")
    whole = (quotient - whole).is_above(0.5).choose(whole + 1, whole)
    whole = quotient.is_equal(0).choose(x._like(0).apply("copysign", x / y), whole)
    return _without_derivative(y.is_equal(0).choose(x / y, whole))


def _without_derivative(x: X) -> X:
    """The same number; trunc of a number that is whole, or not finite, is itself."""
    return x.apply("trunc")


def _fmod(x: X, y: X) -> X:
    return x.apply("fmod", y)


@rule("fmod")
def _(rec: Any, a: Any, b: Any) -> Array:
    if not rec.dtype.is_floating_point:
        raise NotScalarError("fmod of integers")
    return _entrywise(_fmod, 2)(rec, a, b)


@rule("remainder")
def _(rec: Any, a: Any, b: Any) -> Array:
    if not rec.dtype.is_floating_point:
        return _entrywise(lambda x, y: _whole(x, y, "modulo"), 2)(rec, a, b)
    return _entrywise(lambda x, y: x.apply("remainder", y), 2)(rec, a, b)


@rule("pow")
def _(rec: Any, base: Any, exponent: Any) -> Array:
    if not rec.dtype.is_floating_point:
        raise NotScalarError("a power of integers")
    return _entrywise(_power, 2)(rec, base, exponent)


def _power(x: X, p: X) -> X:
    """xᵖ; of a constant p by what it is in products and roots, where PyTorch does so."""
    special: dict[float, Callable[[], X]] = {
        1: lambda: x,
        2: lambda: x * x,
        3: lambda: x * x * x,
        0.5: lambda: x.apply("sqrt"),
        -1: lambda: 1 / x,
        -2: lambda: 1 / (x * x),
        -0.5: lambda: 1 / x.apply("sqrt"),
    }
    return special[p.value]() if p.value in special else x.apply("pow", p)


@rule("float_power")
def _(rec: Any, base: Any, exponent: Any) -> Array:
    return _entrywise(_power, 2)(rec, base, exponent)


for _name in ("maximum", "minimum", "atan2", "copysign"):
    RULES[_name] = _entrywise(lambda x, y, name=_name: x.apply(name, y), 2)
RULES["fmax"] = _entrywise(lambda x, y: _ignoring_nan(x, y, "maximum"), 2)
RULES["fmin"] = _entrywise(lambda x, y: _ignoring_nan(x, y, "minimum"), 2)
RULES["lerp"] = _entrywise(lambda a, b, w: _lerp(a, b, w), 3)
RULES["xlogy"] = _entrywise(lambda x, y: _xlogy(x, y), 2)


def _ignoring_nan(x: X, y: X, name: str) -> X:
    at_ties = x.is_at_least(y) if name == "maximum" else x.is_at_most(y)
    return y.apply("ne", y).apply("or", at_ties).choose(x, y)


def _lerp(a: X, b: X, w: X) -> X:
    small = w.apply("abs").is_below(0.5)
    return small.choose(a + w * (b - a), b - (b - a) * (1 - w))


def _xlogy(x: X, y: X) -> X:
    zero = x.is_equal(0).apply("and", y.is_equal(y))
    return zero.choose(0, x * y.apply("log"))


@rule("hypot")
def _(rec: Any, a: Any, b: Any) -> Array:
    return _entrywise(lambda x, y: (x * x + y * y).apply("sqrt"), 2)(rec, a, b)


@rule("addcmul")
def _(rec: Any, a: Any, b: Any, c: Any, *, value: Any = 1) -> Array:
    return _entrywise(lambda x, y, z: x + y * z * value, 3)(rec, a, b, c)


@rule("addcdiv")
def _(rec: Any, a: Any, b: Any, c: Any, *, value: Any = 1) -> Array:
    return _entrywise(lambda x, y, z: x + y / z * value, 3)(rec, a, b, c)


# ---- limits


def _clamped(x: X, least: Any, most: Any) -> X:
    """Between limits; both limits belong to the inside, where the derivative is 1. NaN stays."""
    if least is not None:
        x = x.is_below(least).choose(least, x)
    return x if most is None else x.is_above(most).choose(most, x)


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
    if least is not None and most is not None:
        return _entrywise(_between, 3)(rec, x, least, most)
    if least is not None:
        return _entrywise(lambda a, b: _limit(a, b, "lt"), 2)(rec, x, least)
    if most is not None:
        return _entrywise(lambda a, b: _limit(a, b, "gt"), 2)(rec, x, most)
    return x


def _limit(x: X, limit: X, side: str) -> X:
    beyond = x.is_below(limit) if side == "lt" else x.is_above(limit)
    return limit.apply("ne", limit).apply("or", beyond).choose(limit, x)


def _between(x: X, least: X, most: X) -> X:
    return _limit(_limit(x, least, "lt"), most, "gt")


@rule("hardtanh")
def _(rec: Any, x: Any, least: float = -1, most: float = 1) -> Array:
    # Its limits belong to the outside.
    return _entrywise(
        lambda a: a.is_at_most(least).choose(least, a.is_at_least(most).choose(most, a)), 1
    )(rec, x)


@rule("threshold")
def _(rec: Any, x: Any, threshold: float, value: float) -> Array:
    return _entrywise(lambda a: a.is_at_most(threshold).choose(value, a), 1)(rec, x)


@rule("leaky_relu")
def _(rec: Any, x: Any, slope: float = 0.01) -> Array:
    return _entrywise(lambda a: a.is_above(0).choose(a, a * slope), 1)(rec, x)


@rule("elu")
def _(rec: Any, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    def elu(a: X) -> X:
        return a.is_above(0).choose(a * scale, (a * input_scale).apply("expm1") * (alpha * scale))

    return _entrywise(elu, 1)(rec, x)


def _softplus(x: X, beta: float = 1, threshold: float = 20) -> X:
    scaled = x * beta
    return scaled.is_above(threshold).choose(x, scaled.apply("exp").apply("log1p") / beta)


@rule("softplus")
def _(rec: Any, x: Any, beta: float = 1, threshold: float = 20) -> Array:
    return _entrywise(lambda a: _softplus(a, beta, threshold), 1)(rec, x)


def _log_sigmoid(x: X) -> X:
    return x.is_below(0).choose(x, 0) - (-x.apply("abs")).apply("exp").apply("log1p")


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

    return _entrywise(gelu, 1)(rec, x)


@rule("logit")
def _(rec: Any, x: Any, eps: float | None = None) -> Array:
    if eps is not None:
        raise NotScalarError("logit with eps")
    return _entrywise(lambda a: (a / (1 - a)).apply("log"), 1)(rec, x)


# ---- comparisons, booleans, choices


def number_of(condition: X) -> X:
    """A boolean as the integer 0 or 1."""
    one, zero = (condition.program.constant(value, "integer") for value in (1, 0))
    return condition.choose(one, zero)


def _comparison(function: Callable[[X, X], X]) -> Callable[..., Array]:
    def apply(rec: Any, a: Any, b: Any) -> Array:
        dtype = rec.common_dtype(0, 1)
        a, b = rec.scalars(a, dtype), rec.scalars(b, dtype)
        if dtype == torch.bool:
            a, b = (each(number_of, side) for side in (a, b))
        return rec.array(each(function, a, b))

    return apply


RULES["lt"] = RULES["less"] = _comparison(lambda a, b: a.is_below(b))
RULES["le"] = RULES["less_equal"] = _comparison(lambda a, b: a.is_at_most(b))
RULES["gt"] = RULES["greater"] = _comparison(lambda a, b: a.is_above(b))
RULES["ge"] = RULES["greater_equal"] = _comparison(lambda a, b: a.is_at_least(b))
RULES["eq"] = _comparison(lambda a, b: a.is_equal(b))
RULES["ne"] = RULES["not_equal"] = _comparison(lambda a, b: a.apply("ne", b))

RULES["bitwise_and"] = _entrywise(lambda a, b: a.apply("and", b), 2)
RULES["bitwise_or"] = _entrywise(lambda a, b: a.apply("or", b), 2)
RULES["bitwise_xor"] = _entrywise(lambda a, b: a.apply("xor", b), 2)
RULES["bitwise_not"] = _entrywise(lambda a: a.apply("not"), 1)
RULES["logical_and"], RULES["logical_or"] = RULES["bitwise_and"], RULES["bitwise_or"]
RULES["logical_xor"], RULES["logical_not"] = RULES["bitwise_xor"], RULES["bitwise_not"]


def _test(function: Callable[[X], X]) -> Callable[..., Array]:
    def apply(rec: Any, x: Any) -> Array:
        dtype = rec.common_dtype(0)
        if not dtype.is_floating_point:
            raise NotScalarError(f"{rec.node.target} of integers")
        return rec.array(each(function, rec.scalars(x, dtype)))

    return apply


RULES["isnan"] = _test(lambda x: x.apply("ne", x))
RULES["isinf"] = _test(lambda x: x.apply("abs").is_equal(float("inf")))
RULES["isfinite"] = _test(lambda x: x.apply("abs").is_below(float("inf")))
RULES["signbit"] = _test(lambda x: x._like(1).apply("copysign", x).is_below(0))


@rule("where")
def _(rec: Any, condition: Any, yes: Any, no: Any) -> Array:
    chosen = rec.scalars(condition, torch.bool)
    return rec.array(
        each(lambda c, a, b: c.choose(a, b), chosen, rec.scalars(yes, rec.dtype), rec.scalars(no, rec.dtype))
    )


@rule("masked_fill")
def _(rec: Any, x: Any, mask: Any, value: Any) -> Array:
    mask = rec.scalars(mask, torch.bool)
    return rec.array(
        each(lambda c, a, b: c.choose(b, a), mask, rec.scalars(x, rec.dtype), rec.scalars(value, rec.dtype))
    )


@rule("nan_to_num")
def _(rec: Any, x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Array:
    limits = torch.finfo(rec.dtype)
    most, least = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf

    def finite(a: X) -> X:
        a_or_most = a.is_equal(float("inf")).choose(most, a)
        bounded = a.is_equal(-float("inf")).choose(least, a_or_most)
        return a.apply("ne", a).choose(nan or 0.0, bounded)

    return _entrywise(finite, 1)(rec, x)


