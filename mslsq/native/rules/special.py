"""Special functions: the operations of scalars that they are, their derivatives, and the rules by PyTorch's names.

C++ has them in `source/gamma.h`, `error.h` and `bessel.h`. The derivatives are PyTorch's (`derivatives.yaml`), where
Bessel functions of the first and second kind have none.
"""

from collections.abc import Callable
from math import log, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from mslsq.native.arrays import Array
from mslsq.native.operations import OPERATIONS, Operation
from mslsq.native.rules.elementwise import entrywise
from mslsq.native.rules.registry import RULES, rule
from mslsq.native.scalars import NotScalarError, Scalar

X = Scalar


def _polygamma(n: Tensor, x: Tensor) -> Tensor:
    return torch.polygamma(int(n), x)


def _first_of_i1(y: X, x: X) -> X:
    return x.apply("abs").is_below(1e-20).choose(0.5, x.apply("i0") - y / x)


def _first_of_i1e(y: X, x: X) -> X:
    return x.apply("abs").is_below(1e-20).choose(0.5, x.apply("i0e") - y * (x.apply("sign") + 1 / x))


def _operation(meaning: Callable[..., Tensor], name: str, slope: Callable[[X, X], X]) -> Operation:
    return Operation(meaning, f"{name}_({{0}})", lambda y, x: (slope(y, x),))


_special = torch.special
_ONE: dict[str, tuple[Callable[..., Tensor], Callable[[X, X], X]]] = {
    "lgamma": (torch.lgamma, lambda y, x: x.apply("digamma")),
    "digamma": (torch.digamma, lambda y, x: x.like(1).apply("polygamma", x)),
    "erfcx": (_special.erfcx, lambda y, x: 2 * x * y - 2 / sqrt(pi)),
    "log_ndtr": (_special.log_ndtr, lambda y, x: sqrt(2 / pi) / (x * -sqrt(0.5)).apply("erfcx")),
    "erfinv": (torch.erfinv, lambda y, x: (y * y).apply("exp") * (sqrt(pi) / 2)),
    "ndtri": (_special.ndtri, lambda y, x: (y * y * 0.5).apply("exp") * sqrt(2 * pi)),
    "i0": (torch.i0, lambda y, x: x.apply("i1")),
    "i0e": (_special.i0e, lambda y, x: x.apply("i1e") - x.apply("sign") * y),
    "i1": (_special.i1, _first_of_i1),
    "i1e": (_special.i1e, _first_of_i1e),
    "bessel_j0": (_special.bessel_j0, lambda y, x: -x.apply("bessel_j1")),
    "bessel_j1": (_special.bessel_j1, lambda y, x: x.is_equal(0).choose(0.5, x.apply("bessel_j0") - y / x)),
    "bessel_y0": (_special.bessel_y0, lambda y, x: -x.apply("bessel_y1")),
    "bessel_y1": (_special.bessel_y1, lambda y, x: x.apply("bessel_y0") - y / x),
}
for _name, (_meaning, _slope) in _ONE.items():
    _own = f"bessel_{_name}" if _name.startswith("i") else _name
    OPERATIONS[_name] = _operation(_meaning, _own, _slope)
    for _pytorch in (_name, f"special_{_name}"):
        RULES[_pytorch] = entrywise(lambda x, name=_name: x.apply(name), 1)

OPERATIONS["polygamma"] = Operation(
    _polygamma, "polygamma_({0}, {1})", lambda y, n, x: (None, (n + 1).apply("polygamma", x))
)
OPERATIONS["zeta"] = Operation(_special.zeta, "zeta_({0}, {1})", lambda y, s, q: (None, -s * (s + 1).apply("zeta", q)))
OPERATIONS["entr"] = Operation(
    _special.entr,
    "select_(mask_({0} > 0), -{0} * log_({0}), select_(mask_({0} == 0), splat(0), select_(mask_({0} < 0), "
    "splat(-(real)__builtin_inf()), {0})))",
    lambda y, x: (-(1 + x.apply("log")),),
)
RULES["special_entr"] = entrywise(lambda x: x.apply("entr"), 1)


@rule("polygamma")
def _(rec: Any, n: int, x: Any) -> Array:
    return entrywise(lambda a: a.like(n).apply("polygamma", a), 1)(rec, x)


@rule("special_zeta")
def _(rec: Any, s: Any, q: Any) -> Array:
    def zeta(exponent: X, start: X) -> X:
        if exponent.value is None:
            raise NotScalarError("zeta of an exponent that is computed")
        return exponent.apply("zeta", start)

    return entrywise(zeta, 2)(rec, s, q)


@rule("mvlgamma")
def _(rec: Any, x: Any, p: int) -> Array:
    """log Γₚ(x) = Σ log Γ(x − j/2) + p (p − 1)/4 log π"""

    def of_several(a: X) -> X:
        found = a.like(p * (p - 1) / 4 * log(pi))
        for j in range(p):
            found = found + (a - j / 2).apply("lgamma")
        return found

    return entrywise(of_several, 1)(rec, x)
