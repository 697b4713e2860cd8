"""Norms over axes, and distances."""

from collections.abc import Callable
from typing import Any

from mslsq.native.arrays import Array, each
from mslsq.native.rules.extremes import shared_extreme
from mslsq.native.rules.reductions import reduction, total
from mslsq.native.rules.registry import RULES, rule
from mslsq.native.scalars import NotScalarError, Scalar


def _length(terms: list[Scalar]) -> Scalar:
    """√Σx², without overflow where there is one term, as in PyTorch."""
    return total([term * term for term in terms]).apply("length") if len(terms) > 1 else terms[0].apply("magnitude")


@rule("linalg_vector_norm", "norm")
def _(rec: Any, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    norms: dict[float, Callable[[list[Scalar]], Scalar]] = {
        2: _length,
        1: lambda terms: total([term.apply("abs") for term in terms]),
        float("inf"): lambda terms: shared_extreme("max")([term.apply("abs") for term in terms]),
        -float("inf"): lambda terms: shared_extreme("min")([term.apply("abs") for term in terms]),
        0: lambda terms: total([term.apply("ne", 0).choose(1, 0) for term in terms]),
    }
    order = 2 if order is None else order
    if not isinstance(order, (int, float)):
        raise NotScalarError(f"the norm of order {order}")
    return reduction(rec, x, dim, keepdim, norms.get(order, lambda terms: _root_of_powers(terms, order)))


def _root_of_powers(terms: list[Scalar], order: float) -> Scalar:
    """(Σ|x|ᵖ)¹ᐟᵖ, with the derivative 0 in an entry that is 0, as in PyTorch."""

    def power(x: Scalar, exponent: float) -> Scalar:
        nothing = x.is_equal(0)
        return nothing.choose(0, nothing.choose(1, x).apply("pow", exponent))

    return power(total([power(term.apply("abs"), order) for term in terms]), 1 / order)


@rule("dist")
def _(rec: Any, a: Any, b: Any, order: float = 2) -> Array:
    difference = each(lambda x, y: x - y, rec.scalars(a, rec.dtype), rec.scalars(b, rec.dtype))
    return RULES["norm"](rec, rec.array(difference), order)
