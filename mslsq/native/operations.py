"""The operations of scalar programs: what each means in PyTorch, how C++ writes it, and its derivative.

The derivatives follow PyTorch's conventions at kinks, ties and branch points (those of `torch.func.jacfwd`). What is
made of other operations is not here: `elementwise` writes it down.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi, sqrt
from typing import TYPE_CHECKING, Literal

import torch

from mslsq.tracing.conventions import nan_is_within_limits, share_at_a_limit

if TYPE_CHECKING:
    from mslsq.native.scalars import Scalar

Slopes = Callable[..., "tuple[Scalar | None, ...]"]


@dataclass(frozen=True)
class Operation:
    """One operation of scalars."""

    meaning: Callable[..., torch.Tensor]
    """The same in PyTorch."""
    text: str
    """C++ of vectors, with a place for each operand."""
    slopes: Slopes | None = None
    """`slopes(y, *operands)`: the derivatives in the operands, None for one that is zero; of no operation that has
    none."""
    result: Literal["real", "integer", "boolean"] | None = None
    """The kind of the result; None for that of the operands (the last one)."""
    commutes: bool = False


def _unary(name: str, slope: Callable[["Scalar", "Scalar"], "Scalar"]) -> Operation:
    """A real function of one number by its name in PyTorch, in `functions.h`, and its slope from y and x."""
    return Operation(getattr(torch, name), f"{name}_({{0}})", lambda y, x: (slope(y, x),))


def _square(x: "Scalar") -> "Scalar":
    return x * x


def _root(x: "Scalar") -> "Scalar":
    return x.apply("sqrt")


def _power_slopes(y: "Scalar", x: "Scalar", p: "Scalar") -> "tuple[Scalar, Scalar]":
    """p xᵖ⁻¹ and xᵖ log x, each 0 where xᵖ is constant in it though a factor is infinite."""
    base = p.is_equal(0).choose(0, p * x.apply("pow", p - 1))
    flat = x.is_equal(0).apply("and", p.is_at_least(0))
    return base, flat.choose(0, y * x.apply("log"))


def _larger_slopes(y: "Scalar", a: "Scalar", b: "Scalar") -> "tuple[Scalar, Scalar]":
    share = a.is_equal(b).choose(0.5, a.is_above(b).choose(1, 0))
    return share, 1 - share


def _smaller_slopes(y: "Scalar", a: "Scalar", b: "Scalar") -> "tuple[Scalar, Scalar]":
    share = a.is_equal(b).choose(0.5, a.is_below(b).choose(1, 0))
    return share, 1 - share


def _least_slopes(y: "Scalar", x: "Scalar", limit: "Scalar") -> "tuple[Scalar, Scalar]":
    at_limit, share = x.is_equal(limit), share_at_a_limit()
    if nan_is_within_limits():
        within, outside = x.is_below(limit).choose(0, 1), x.is_above(limit).choose(0, 1)
    else:
        within, outside = x.is_above(limit).choose(1, 0), x.is_below(limit).choose(1, 0)
    return at_limit.choose(share, within), at_limit.choose(1 - share, outside)


def _most_slopes(y: "Scalar", x: "Scalar", limit: "Scalar") -> "tuple[Scalar, Scalar]":
    return _least_slopes(-y, -x, -limit)


def _shared_slopes(y: "Scalar", best: "Scalar", *terms: "Scalar") -> "tuple[Scalar | None, ...]":
    missing = best.apply("ne", best)
    ties = [term.is_equal(best).apply("or", missing.apply("and", term.apply("ne", term))) for term in terms]
    ties = [tie.choose(1, 0) for tie in ties]
    count = ties[0]
    for tie in ties[1:]:
        count = count + tie
    return None, *(tie / count for tie in ties)


def _angle_slopes(angle: "Scalar", y: "Scalar", x: "Scalar") -> "tuple[Scalar, Scalar]":
    squared = _square(y) + _square(x)
    return x / squared, -y / squared


def _picked(place: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Of a table (lanes, entries), or (entries,), the entry of each place; NaN, or the least integer, outside."""
    size = table.shape[-1]
    place = place[..., None]
    wide = table.expand(*torch.broadcast_shapes(place.shape[:-1], table.shape[:-1]), size)
    found = wide.gather(-1, place.clamp(0, size - 1).expand(*wide.shape[:-1], 1))
    missing = torch.nan if table.dtype.is_floating_point else torch.iinfo(table.dtype).min
    return found.masked_fill((place < 0) | (place >= size), missing)[..., 0]


def _modulus_slopes(h: "Scalar", x: "Scalar", y: "Scalar") -> "tuple[Scalar, Scalar]":
    is_zero = h.is_equal(0)
    return is_zero.choose(0, x / h), is_zero.choose(0, y / h)


def _length(squared: torch.Tensor) -> torch.Tensor:
    return squared.sqrt()


OPERATIONS: dict[str, Operation] = {
    # arithmetic, of real numbers and of integers
    "add": Operation(torch.add, "({0} + {1})", lambda y, a, b: (a.like(1), a.like(1)), commutes=True),
    "sub": Operation(torch.sub, "({0} - {1})", lambda y, a, b: (a.like(1), a.like(-1))),
    "mul": Operation(torch.mul, "({0} * {1})", lambda y, a, b: (b, a), commutes=True),
    "div": Operation(torch.true_divide, "({0} / {1})", lambda y, a, b: (1 / b, -y / b)),
    "neg": Operation(torch.neg, "(-{0})", lambda y, a: (a.like(-1),)),
    "abs": Operation(torch.abs, "abs_({0})", lambda y, x: (x.apply("sign"),)),
    "maximum": Operation(torch.maximum, "maximum_({0}, {1})", _larger_slopes),
    "minimum": Operation(torch.minimum, "minimum_({0}, {1})", _smaller_slopes),
    "at_least": Operation(torch.clamp_min, "maximum_({0}, {1})", _least_slopes),
    "at_most": Operation(torch.clamp_max, "minimum_({0}, {1})", _most_slopes),
    # the first operand, which is the largest or least of the others; those that are equal to it share the derivative
    "shared": Operation(lambda y, *terms: y, "{0}", _shared_slopes),
    # functions
    "sqrt": _unary("sqrt", lambda y, x: 0.5 / y),
    # the root of a sum of squares: PyTorch's norms have the derivative 0 at 0
    "length": Operation(_length, "sqrt_({0})", lambda y, x: (y.is_equal(0).choose(0, 0.5 / y),)),
    "magnitude": Operation(
        torch.abs, "abs_({0})", lambda y, x: (y.is_equal(0).choose(0, x / y),)
    ),  # a norm of one term
    "exp": _unary("exp", lambda y, x: y),
    "exp2": _unary("exp2", lambda y, x: y * log(2)),
    "expm1": _unary("expm1", lambda y, x: y + 1),
    "log": _unary("log", lambda y, x: 1 / x),
    "log2": _unary("log2", lambda y, x: 1 / (x * log(2))),
    "log10": _unary("log10", lambda y, x: 1 / (x * log(10))),
    "log1p": _unary("log1p", lambda y, x: 1 / (x + 1)),
    "sin": _unary("sin", lambda y, x: x.apply("cos")),
    "cos": _unary("cos", lambda y, x: -x.apply("sin")),
    "tan": _unary("tan", lambda y, x: 1 + _square(y)),
    "asin": _unary("asin", lambda y, x: 1 / _root(1 - _square(x))),
    "acos": _unary("acos", lambda y, x: -1 / _root(1 - _square(x))),
    "atan": _unary("atan", lambda y, x: 1 / (_square(x) + 1)),
    "sinh": _unary("sinh", lambda y, x: x.apply("cosh")),
    "cosh": _unary("cosh", lambda y, x: x.apply("sinh")),
    "tanh": _unary("tanh", lambda y, x: 1 - _square(y)),
    "asinh": _unary("asinh", lambda y, x: 1 / _root(_square(x) + 1)),
    "acosh": _unary("acosh", lambda y, x: 1 / _root(_square(x) - 1)),
    "atanh": _unary("atanh", lambda y, x: 1 / (1 - _square(x))),
    "erf": _unary("erf", lambda y, x: 2 / sqrt(pi) * (-_square(x)).apply("exp")),
    "erfc": _unary("erfc", lambda y, x: -2 / sqrt(pi) * (-_square(x)).apply("exp")),
    "sigmoid": Operation(torch.sigmoid, "sigmoid_({0})", lambda y, x: ((1 - y) * y,)),
    "pow": Operation(torch.pow, "pow_({0}, {1})", _power_slopes),  # by a constant of `POWERS`: as there
    "atan2": Operation(torch.atan2, "atan2_({0}, {1})", _angle_slopes),
    # x - trunc(x / y) y and x - floor(x / y) y, exactly
    "fmod": Operation(torch.fmod, "fmod_({0}, {1})", lambda r, x, y: (x.like(1), -(x / y).apply("trunc"))),
    "remainder": Operation(
        torch.remainder, "remainder_({0}, {1})", lambda r, x, y: (x.like(1), -x.apply("floor_div", y))
    ),
    "hypot": Operation(torch.hypot, "hypot_({0}, {1})", lambda h, x, y: (x / h, y / h), commutes=True),
    # the size of a complex number: PyTorch's has the derivative 0 at 0
    "modulus": Operation(torch.hypot, "hypot_({0}, {1})", _modulus_slopes, commutes=True),
    # no derivative; what is "held" has none in `derivative` alone, as a factor that must not be differentiated there
    "held": Operation(lambda x: x, "{0}"),
    "detached": Operation(lambda x: x, "{0}"),
    "floor_div": Operation(lambda a, b: torch.div(a, b, rounding_mode="floor"), "floor_div_({0}, {1})"),
    "floor": Operation(torch.floor, "floor_({0})"),
    "ceil": Operation(torch.ceil, "ceil_({0})"),
    "trunc": Operation(torch.trunc, "trunc_({0})"),
    "round": Operation(torch.round, "round_({0})"),
    "sign": Operation(torch.sign, "sign_({0})"),
    "copysign": Operation(
        torch.copysign, "copysign_({0}, {1})", lambda y, a, b: (a.is_equal(0).choose(0, y / a), None)
    ),
    # comparisons and choices
    "lt": Operation(torch.lt, "mask_({0} < {1})", result="boolean"),
    "le": Operation(torch.le, "mask_({0} <= {1})", result="boolean"),
    "eq": Operation(torch.eq, "mask_({0} == {1})", result="boolean", commutes=True),
    "ne": Operation(torch.ne, "mask_({0} != {1})", result="boolean", commutes=True),
    "and": Operation(torch.bitwise_and, "({0} & {1})", commutes=True),
    "or": Operation(torch.bitwise_or, "({0} | {1})", commutes=True),
    "xor": Operation(torch.bitwise_xor, "({0} ^ {1})", commutes=True),
    "not": Operation(torch.bitwise_not, "(~{0})"),
    "select": Operation(
        torch.where, "select_({0}, {1}, {2})", lambda y, c, a, b: (None, c.choose(1, 0), c.choose(0, 1))
    ),
    # of a table, which is no number; `derivative` knows what it is made of
    "pick": Operation(_picked, "pick({1}, {0})"),
    # kinds
    "real": Operation(lambda x: x.to(torch.float64), "real_({0})", result="real"),
    "integer": Operation(lambda x: x.to(torch.int64), "integer_({0})", result="integer"),
    "modulo": Operation(torch.remainder, "modulo_({0}, {1})"),  # of integers, by a constant that is not 0
}
"""By name. Booleans are masks in C++: all bits of a lane set, or none."""

POWERS = {
    0.5: "sqrt_({0})",
    -0.5: "(1 / sqrt_({0}))",
    2.0: "({0} * {0})",
    3.0: "({0} * {0} * {0})",
    -1.0: "(1 / {0})",
    -2.0: "(1 / ({0} * {0}))",
}
"""How PyTorch computes these powers, and no other: √ and pow differ at −∞."""
