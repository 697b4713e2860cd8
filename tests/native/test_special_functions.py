"""Special functions against mpmath, and their derivatives and special values against PyTorch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import pytest
import torch
from torch import Tensor

from mslsq.native.arrays import input_array
from mslsq.native.building import WrittenVector, linearized
from mslsq.native.recording import recorded
from mslsq.native.scalars import Program
from mslsq.native.text import Argument
from mslsq.tracing.graph import TRANSFORM_LOCK, graph_of
from tests.native.functions import NEEDS_COMPILER, by_pytorch, native
from tests.native.test_operations import INF, NAN, of_one

pytestmark = NEEDS_COMPILER
S = torch.special
F64, F32 = torch.float64, torch.float32
mpf, root_of_two = mpmath.mpf, 2**0.5

POSITIVE = [1e-300, 1e-10, 1e-3, 0.1, 0.5, 0.9, 1.0, 1.1, 1.46163, 1.5, 2.0, 2.5, 3.3, 7.7, 8.0, 8.1, 9.9, 12.0, 13.0]
POSITIVE += [25.9, 26.1, 50.0, 170.0, 700.0, 712.0, 1e4, 1e10]
ALL = [*POSITIVE, *(-x for x in POSITIVE), -0.3, -1.7, -2.2, -10.5, -33.3]
NEAR_POLES = [x for x in ALL if x > -200 and (x > 0 or x != int(x)) and abs(x) > 1e-70]
UNIT = [-0.999999999, -0.99, -0.7, -0.5001, -0.5, -0.3, -1e-5, 1e-300, 1e-8, 0.2, 0.49, 0.51, 0.9, 0.999]
UNIT += [1 - 1e-12, 1 - 2**-53]
SHARES = [1e-300, 1e-100, 1e-20, 1e-5, 0.1, 0.2499, 0.25, 0.2501, 0.4, 0.6, 0.75, 0.7501, 0.9, 0.999999, 1 - 2**-53]


class Known(NamedTuple):
    function: Callable[[Tensor], Tensor]
    exact: Callable[[Any], Any]
    points: list[float]


def bessel(of: Callable[..., Any], order: int, scaled: bool = False) -> Callable[[float], Any]:
    return lambda x: (mpmath.exp(-abs(mpf(x))) if scaled else 1) * of(order, mpf(x))


def of_polygamma(n: int) -> Known:
    return Known(lambda x: torch.polygamma(n, x), lambda x: mpmath.polygamma(n, x), NEAR_POLES)


def quantile(p: float) -> Any:
    start = float(S.ndtri(torch.tensor(p, dtype=F64)))
    return mpmath.findroot(lambda y: mpmath.log(mpmath.ncdf(y)) - mpmath.log(mpf(p)), mpf(start))


def log_ndtr(x: float) -> Any:
    return mpmath.log(mpmath.ncdf(x)) if x < 8 else mpmath.log1p(-mpmath.erfc(mpf(x) / mpmath.sqrt(2)) / 2)


WITHIN_713 = [x for x in ALL if abs(x) < 713]
FUNCTIONS: dict[str, Known] = {
    "lgamma": Known(torch.lgamma, lambda x: mpmath.re(mpmath.loggamma(mpf(x))), NEAR_POLES),
    "digamma": Known(torch.digamma, mpmath.digamma, [x for x in ALL if x > 0 or x != int(x)]),
    **{f"polygamma {n}": of_polygamma(n) for n in (1, 2, 3)},
    "zeta": Known(
        lambda x: S.zeta(x.new_tensor(2.5), x),
        lambda x: mpmath.zeta(mpf(2.5), x),
        [x for x in POSITIVE if 1e-70 < x < 1e6],
    ),
    "erfcx": Known(S.erfcx, lambda x: mpmath.exp(mpf(x) ** 2) * mpmath.erfc(mpf(x)), [x for x in ALL if -26 < x < 1e5]),
    "log_ndtr": Known(S.log_ndtr, log_ndtr, [x for x in ALL if -1e5 < x < 30]),
    "erfinv": Known(torch.erfinv, lambda x: mpmath.erfinv(mpf(x)), UNIT),
    "ndtri": Known(S.ndtri, quantile, SHARES),
    "i0": Known(torch.i0, bessel(mpmath.besseli, 0), WITHIN_713),
    "i1": Known(S.i1, bessel(mpmath.besseli, 1), WITHIN_713),
    "i0e": Known(S.i0e, bessel(mpmath.besseli, 0, True), WITHIN_713),
    "i1e": Known(S.i1e, bessel(mpmath.besseli, 1, True), WITHIN_713),
    "entr": Known(S.entr, lambda x: -mpf(x) * mpmath.log(x), [x for x in POSITIVE if x != 1]),
    "mvlgamma": Known(
        lambda x: torch.mvlgamma(x, 2),
        lambda x: mpmath.loggamma(mpf(x)) + mpmath.loggamma(mpf(x) - 0.5) + mpmath.log(mpmath.pi) / 2,
        [0.9, 1.3, 7.0, 100.0, 1e10],
    ),
}
BESSEL: dict[str, Known] = {
    "j0": Known(S.bessel_j0, bessel(mpmath.besselj, 0), [x for x in ALL if abs(x) < 1e3]),
    "j1": Known(S.bessel_j1, bessel(mpmath.besselj, 1), [x for x in ALL if abs(x) < 1e3]),
    "y0": Known(S.bessel_y0, bessel(mpmath.bessely, 0), [x for x in POSITIVE if x < 1e3]),
    "y1": Known(S.bessel_y1, bessel(mpmath.bessely, 1), [x for x in POSITIVE if x < 1e3]),
}
"""PyTorch has no derivatives of these."""


@pytest.mark.parametrize("dtype", [F64, F32])
def test_values_are_those_of_mpmath(dtype):
    functions, info = FUNCTIONS | BESSEL, torch.finfo(dtype)
    points = [torch.tensor([known.points], dtype=F64).to(dtype) for known in functions.values()]
    points = [x[:, (x[0].abs() > 1e-30) & (x[0].abs() < 1e30)] if dtype == F32 else x for x in points]
    found = native([of_one(known.function) for known in functions.values()], points)
    told = ""
    with mpmath.workdps(40):
        for (name, known), x, both in zip(functions.items(), points, found, strict=True):
            for at, value in zip(x[0].tolist(), both.residual[0].tolist(), strict=True):
                if known.points is UNIT and abs(at) == 1:  # what rounds to an end, where it is infinite
                    continue
                if known.points is SHARES and at in (0, 1):
                    continue
                exact = known.exact(at)
                if not info.tiny < abs(exact) < info.max:
                    continue
                error = float(abs(mpf(value) - exact) / abs(exact)) if abs(value) < INF else INF
                if not error < (1e-12 if dtype == F64 else 1e-5):
                    told += f"{name}({at}) is {value}, not {mpmath.nstr(exact, 18)}\n"
    assert not told, told


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-310, -5e-324, INF, -INF, NAN, 1e300, 1e-300]
SPECIAL += [0.3, -1.3, 5.7, 9.3, -0.9]
POLES = {"digamma": 1, "polygamma 1": 0, "polygamma 2": 0, "polygamma 3": 0, "zeta": 0}
"""Functions whose derivative of this order, and of higher ones, is infinite at negative whole numbers, where PyTorch
divides by the square of a sine that is rounded, and NaN at infinity in PyTorch."""


@pytest.mark.parametrize("dtype", [F64, F32])
def test_special_values_and_derivatives_are_those_of_pytorch(dtype):
    x = torch.tensor([SPECIAL], dtype=F64).to(dtype)
    found = native([of_one(known.function) for known in FUNCTIONS.values()], [x] * len(FUNCTIONS))
    relative, told = 1e-8 if dtype == F64 else 2e-4, ""  # PyTorch's trigamma has nine digits
    for (name, known), own in zip(FUNCTIONS.items(), found, strict=True):
        forward, reverse = by_pytorch(of_one(known.function), x)
        kinds = [(own.residual, [forward.residual]), (own.jacobian, [forward.jacobian, reverse.jacobian])]
        for order, (got, any_of) in enumerate(kinds):
            same = torch.zeros_like(got, dtype=torch.bool)
            for expected in any_of:
                close = (got - expected).abs() <= relative * expected.abs() + torch.finfo(dtype).tiny
                same |= close | (got == expected) | (got.isnan() & expected.isnan())
                same |= expected.isnan() & (x.isinf() | (x.abs() > 1e30))  # where ours is the limit
                same |= got.isnan() & x.isnan()
            if order >= POLES.get(name, 9):
                same |= (x < 0) & ((x == x.floor()) | x.isinf())
            wrong = (~same.reshape(-1)).nonzero()[:, 0]
            told += "".join(
                f"{name}, derivative {order} at {SPECIAL[k]}: {float(got.reshape(-1)[k])}, "
                f"expected {[float(e.reshape(-1)[k]) for e in any_of]}\n"
                for k in wrong.tolist()
            )
    assert not told, told


@pytest.mark.parametrize("name", ["lgamma", "erfcx", "log_ndtr", "erfinv", "i0e", "i1", "entr"])
def test_second_derivatives_are_those_of_pytorch(name):
    x, program, function = torch.tensor([0.21, 0.5, 0.83], dtype=F64), Program(F64), FUNCTIONS[name].function
    with TRANSFORM_LOCK, torch.no_grad():
        graph = graph_of(lambda y: [function(y)], [x.clone()], guarded=True, functional=True)
        (rows,) = recorded(program, graph, [input_array(0, x)])
        directions = {program.input(0, k, "real").number: {0: program.constant(1, "real")} for k in range(3)}
        first = linearized(program, list(rows), directions, 1)
        second = linearized(program, first, directions, 1)
    vector = WrittenVector.of(program, [Argument(3, True)], second, 1000).replayed()
    expected = torch.stack([torch.func.grad(torch.func.grad(function))(one) for one in x])
    torch.testing.assert_close(vector.values([x[:, None]], [False], 1, 1)[0, :, 0], expected, rtol=1e-9, atol=1e-12)
