"""Complex numbers as pairs of scalars, with the operators of arithmetic and the functions that a scalar has.

Products with a part that is zero by structure are not formed: 0 · ∞ of a real factor makes no NaN here.
"""

from collections.abc import Callable
from typing import Union

from mslsq.native.scalars import NotScalarError, Scalar

Number = Union["Pair", Scalar, complex, float]


class Pair:
    """A complex number."""

    __slots__ = ("im", "re")
    value = None
    """It is no constant that rules ask for."""
    kind = "complex"

    def __init__(self, re: Scalar, im: Scalar):
        self.re, self.im = re, im

    def of(self, other: Number) -> "Pair":
        """Any number as a pair of this one's program."""
        if isinstance(other, Pair):
            return other
        if isinstance(other, Scalar):
            return Pair(other, self.re.like(0))
        number = complex(other)
        return Pair(self.re.like(number.real), self.re.like(number.imag))

    def __add__(self, other: Number) -> "Pair":
        b = self.of(other)
        return Pair(_sum(self.re, b.re), _sum(self.im, b.im))

    def __sub__(self, other: Number) -> "Pair":
        b = self.of(other)
        return Pair(_difference(self.re, b.re), _difference(self.im, b.im))

    def __mul__(self, other: Number) -> "Pair":
        b = self.of(other)
        re = _difference(_product(self.re, b.re), _product(self.im, b.im))
        return Pair(re, _sum(_product(self.re, b.im), _product(self.im, b.re)))

    def __truediv__(self, other: Number) -> "Pair":
        """By a number that is scaled to a size of about 1; the scale has no derivative, since it cancels."""
        b = self.of(other)
        if b.im.value == 0:
            return Pair(self.re / b.re, self.im / b.re)
        size = b.re.apply("abs").apply("maximum", b.im.apply("abs")).apply("detached")
        scaled = Pair(b.re / size, b.im / size)
        squared = scaled.re * scaled.re + scaled.im * scaled.im
        found = self * scaled.conjugate()
        return Pair(found.re / squared / size, found.im / squared / size)

    def __radd__(self, other: Number) -> "Pair":
        return self.of(other) + self

    def __rsub__(self, other: Number) -> "Pair":
        return self.of(other) - self

    def __rmul__(self, other: Number) -> "Pair":
        return self.of(other) * self

    def __rtruediv__(self, other: Number) -> "Pair":
        return self.of(other) / self

    def __neg__(self) -> "Pair":
        return Pair(-self.re, -self.im)

    def conjugate(self) -> "Pair":
        return Pair(self.re, -self.im)

    def times(self, real: Scalar | float) -> "Pair":
        """A real multiple."""
        return Pair(self.re * real, self.im * real)

    def size(self) -> Scalar:
        """|z|, with the derivative 0 at 0, as in PyTorch."""
        return self.re.apply("modulus", self.im)

    def angle(self) -> Scalar:
        is_zero = self.is_equal(0)
        safe = is_zero.choose(self.re.apply("detached"), self.re), is_zero.choose(self.im.apply("detached"), self.im)
        return safe[1].apply("atan2", safe[0])

    def is_equal(self, other: Number) -> Scalar:
        b = self.of(other)
        return self.re.is_equal(b.re).apply("and", self.im.is_equal(b.im))

    def differs(self, other: Number) -> Scalar:
        b = self.of(other)
        return self.re.differs(b.re).apply("or", self.im.differs(b.im))

    def like(self, value: float) -> "Pair":
        """A constant."""
        return self.of(value)

    def apply(self, operation: str, *others: Number) -> "Pair":
        """A function of PyTorch's name. NotScalarError where there is none."""
        if operation in _BINARY and len(others) == 1:
            return _BINARY[operation](self, self.of(others[0]))
        if operation not in FUNCTIONS or others:
            raise NotScalarError(f"{operation} of complex numbers")
        return FUNCTIONS[operation](self)


def chosen(condition: Scalar, yes: Number, no: Number) -> Scalar | Pair:
    """One of two numbers, of which a complex one makes the other complex."""
    pair = next((part for part in (yes, no) if isinstance(part, Pair)), None)
    if pair is None:
        return condition.choose(yes, no)  # pyright: ignore[reportArgumentType]
    a, b = pair.of(yes), pair.of(no)
    return Pair(condition.choose(a.re, b.re), condition.choose(a.im, b.im))


def _sum(a: Scalar, b: Scalar) -> Scalar:
    return b if a.value == 0 else a if b.value == 0 else a + b


def _difference(a: Scalar, b: Scalar) -> Scalar:
    return a if b.value == 0 else -b if a.value == 0 else a - b


def _product(a: Scalar, b: Scalar) -> Scalar:
    return a if a.value == 0 else b if b.value == 0 else a * b


def _exponential(z: Pair) -> Pair:
    if z.re.value == 0:
        return Pair(z.im.apply("cos"), z.im.apply("sin"))
    size = z.re.apply("exp")
    return Pair(size * z.im.apply("cos"), size * z.im.apply("sin"))


def _logarithm(z: Pair) -> Pair:
    return Pair(z.size().apply("log"), z.angle())


def _root(z: Pair) -> Pair:
    """√z, of whose parts the larger one is a root, and the other one follows from it."""
    large = ((z.size() + z.re.apply("abs")) * 0.5).apply("sqrt")
    is_right = z.re.is_at_least(0)
    sign = z.im.like(1).apply("copysign", z.im)
    is_zero = large.is_equal(0)
    small = z.im / (2 * is_zero.choose(1, large))
    return Pair(is_right.choose(large, small * sign), is_right.choose(small, large * sign))


def _sine(z: Pair) -> Pair:
    return Pair(z.re.apply("sin") * z.im.apply("cosh"), z.re.apply("cos") * z.im.apply("sinh"))


def _cosine(z: Pair) -> Pair:
    return Pair(z.re.apply("cos") * z.im.apply("cosh"), -(z.re.apply("sin") * z.im.apply("sinh")))


def _turned(z: Pair) -> Pair:
    """i z"""
    return Pair(-z.im, z.re)


def _hyperbolic_tangent(z: Pair) -> Pair:
    """(t (1 + u²) + i u (1 − t²)) / (1 + t² u²) with t = tanh(re), u = tan(im): nothing grows with the real part."""
    t, u = z.re.apply("tanh"), z.im.apply("tan")
    below = 1 + t * t * u * u
    return Pair(t * (1 + u * u) / below, u * (1 - t * t) / below)


def _power(z: Pair, p: Pair) -> Pair:
    if p.im.value == 0 and p.re.value in _POWERS:
        return _POWERS[p.re.value](z)
    is_zero = z.size().is_equal(0)
    safe = chosen(is_zero, 1.0, z)
    assert isinstance(safe, Pair)
    found = _exponential(_logarithm(safe) * p)
    at_zero = p.re.is_above(0).choose(0, z.re.like(float("nan")))
    result = chosen(is_zero, Pair(at_zero, at_zero), found)
    assert isinstance(result, Pair)
    return result


_POWERS: dict[float | int | bool | None, Callable[[Pair], Pair]] = {
    0.5: _root,
    1.0: lambda z: z,
    2.0: lambda z: z * z,
    3.0: lambda z: z * z * z,
    -1.0: lambda z: 1 / z,
    -2.0: lambda z: 1 / (z * z),
}
_BINARY: dict[str, Callable[[Pair, Pair], Pair]] = {"mul": Pair.__mul__, "pow": _power}
FUNCTIONS: dict[str, Callable[[Pair], Pair]] = {
    "neg": Pair.__neg__,
    "detached": lambda z: Pair(z.re.apply("detached"), z.im.apply("detached")),
    "exp": _exponential,
    "log": _logarithm,
    "sqrt": _root,
    "sin": _sine,
    "cos": _cosine,
    "sinh": lambda z: -_turned(_sine(_turned(z))),
    "cosh": lambda z: _cosine(_turned(z)),
    "tanh": _hyperbolic_tangent,
    "tan": lambda z: -_turned(_hyperbolic_tangent(_turned(z))),
    "sigmoid": lambda z: 1 / (1 + _exponential(-z)),
}
