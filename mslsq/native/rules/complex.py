"""Complex numbers: made of reals and taken apart. Arithmetic and functions are the rules of real numbers, on pairs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mslsq.native.arrays import Array, each
from mslsq.native.pairs import Pair
from mslsq.native.rules.registry import RULES, rule
from mslsq.native.scalars import NotScalarError, Scalar


@rule("complex")
def _(rec: Any, re: Any, im: Any) -> Array:
    dtype = rec.dtype.to_real()
    return rec.array(each(Pair, rec.scalars(re, dtype), rec.scalars(im, dtype)))


@rule("polar")
def _(rec: Any, size: Any, angle: Any) -> Array:
    dtype = rec.dtype.to_real()
    turned = each(
        lambda r, a: Pair(r * a.apply("cos"), r * a.apply("sin")), *(rec.scalars(x, dtype) for x in (size, angle))
    )
    return rec.array(turned)


def _parts(rec: Any, x: Any) -> np.ndarray:
    """A complex argument as pairs."""
    return rec.scalars(x, rec.node.args[0].meta["val"].dtype)


@rule("view_as_real", "as_real")
def _(rec: Any, x: Any) -> Array:
    pairs = _parts(rec, x)
    dtype = rec.node.args[0].meta["val"].dtype.to_real()
    return rec.array(np.stack([each(lambda z: z.re, pairs), each(lambda z: z.im, pairs)], -1), dtype)


@rule("view_as_complex", "as_complex")
def _(rec: Any, x: Any) -> Array:
    parts = rec.scalars(x, rec.dtype.to_real())
    return rec.array(each(Pair, parts[..., 0], parts[..., 1]))


@rule("conj", "_conj", "conj_physical", "_conj_physical")
def _(rec: Any, x: Any) -> Array:
    if not rec.dtype.is_complex:
        return x
    return rec.array(each(Pair.conjugate, _parts(rec, x)))


@rule("resolve_conj", "resolve_neg")
def _(rec: Any, x: Any) -> Any:
    return x


def _of_either(of_real: Callable[[Scalar], Scalar], of_complex: Callable[[Pair], Scalar]) -> Callable[..., Array]:
    """The rule of a function whose result is real."""

    def apply(rec: Any, x: Any) -> Array:
        is_complex = rec.node.args[0].meta["val"].dtype.is_complex
        if not is_complex:
            return rec.array(each(of_real, rec.scalars(x, rec.dtype)))
        return rec.array(each(of_complex, _parts(rec, x)))

    return apply


def _real_angle(x: Scalar) -> Scalar:
    raise NotScalarError("the angle of a real number")


RULES["abs"] = _of_either(lambda x: x.apply("abs"), Pair.size)
RULES["angle"] = _of_either(_real_angle, Pair.angle)
RULES["real"] = _of_either(lambda x: x, lambda z: z.re)
RULES["imag"] = _of_either(_real_angle, lambda z: z.im)


@rule("sgn")
def _(rec: Any, x: Any) -> Array:
    if not rec.dtype.is_complex:
        return rec.array(each(lambda a: a.apply("sign"), rec.scalars(x, rec.dtype)))

    def direction(z: Pair) -> Pair:
        size = z.size()
        safe = size.is_equal(0).choose(1, size)
        return Pair(z.re / safe, z.im / safe)

    return rec.array(each(direction, _parts(rec, x)))
