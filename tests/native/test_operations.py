"""Every operation of scalars against PyTorch and `torch.func.jacfwd`, at ordinary and special numbers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mslsq.native.arrays import input_array
from mslsq.native.building import Making
from mslsq.native.recording import recorded
from mslsq.native.scalars import Program
from mslsq.tracing.graph import TRANSFORM_LOCK, graph_of
from mslsq.tracing.replacements import formulas
from tests.native.functions import NEEDS_COMPILER, Both, by_pytorch, native

pytestmark = NEEDS_COMPILER
F = torch.nn.functional
INF, NAN = float("inf"), float("nan")
TINY = 5e-324
INTEGER = torch.tensor(3)
ORDINARY = [0.3, -0.7, 1.4, -2.6, 11.3, -37.9, 1e-3, 123456.789]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, 2.0, 3.0, -3.0, 6.0, 1e-310, -TINY, INF, -INF, NAN]
SPECIAL += [1e300, -1e300, 1e-300, 20.0, 25.0, 709.0, -745.0]

ONE = {
    "abs": torch.abs, "neg": torch.neg, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log,
    "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan,
    "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh, "acosh": torch.acosh,
    "atanh": torch.atanh, "erf": torch.erf, "erfc": torch.erfc, "sigmoid": torch.sigmoid, "square": torch.square,
    "reciprocal": torch.reciprocal, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
    "round": torch.round, "sign": torch.sign, "sgn": torch.sgn, "frac": torch.frac, "relu": torch.relu,
    "relu6": F.relu6, "silu": F.silu, "mish": F.mish, "softplus": F.softplus, "gelu": F.gelu, "elu": F.elu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "leaky relu": lambda x: F.leaky_relu(x, 0.1),
    "hardtanh": F.hardtanh, "threshold": lambda x: F.threshold(x, 1.0, 3.0), "logsigmoid": F.logsigmoid,
    "deg2rad": torch.deg2rad, "rad2deg": torch.rad2deg, "nan_to_num": torch.nan_to_num,
    "clamp": lambda x: x.clamp(-1.0, 1.5), "clamp below": lambda x: x.clamp(min=0.5),
    "clamp above": lambda x: x.clamp(max=0.5),
    "pow 2": lambda x: x**2, "pow 3": lambda x: x**3, "pow -1": lambda x: x**-1, "pow 0": lambda x: x**0,
    "pow 1": lambda x: x**1, "pow 0.5": lambda x: x**0.5, "pow 1.5": lambda x: x**1.5, "pow -2.5": lambda x: x**-2.5,
    "pow 4": lambda x: x**4, "2 to the": lambda x: 2**x, "0 to the": lambda x: 0.0**x, "-0.5": lambda x: x**-0.5,
    "a twelfth": lambda x: x / 12, "times 0": lambda x: x * 0, "plus 0": lambda x: x + 0.0, "by 0": lambda x: x / 0.0,
    "minus itself": lambda x: x - x, "1 over": lambda x: 1 / x, "from 3": lambda x: 3 - x, "by 8": lambda x: x / 8,
    "isnan": lambda x: torch.where(x.isnan(), 1.0, x), "isinf": lambda x: x.isinf() * x.nan_to_num(),
    "isfinite": lambda x: torch.where(x.isfinite(), x, 2.0), "signbit": lambda x: torch.where(x.signbit(), x, 2 * x),
    "int": lambda x: x.nan_to_num(0, 1, 1).clamp(-1e9, 1e9).long() * x, "bool": lambda x: x.bool() * x,
    "fmod 1.5": lambda x: torch.fmod(x, 1.5), "remainder 1.5": lambda x: torch.remainder(x, 1.5),
    "remainder -1.5": lambda x: x % -1.5, "floor by 0.5": lambda x: torch.div(x, 0.5, rounding_mode="floor") + x,
    "norm": lambda x: x.norm(),
    "1-norm": lambda x: x.norm(p=1), "sqrt where": lambda x: torch.where(x > 0, torch.sqrt(x), 0.0),
    "double where": lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0),
    "hardswish": F.hardswish, "hardshrink": F.hardshrink, "softshrink": F.softshrink, "celu": F.celu, "selu": F.selu,
    "softsign": F.softsign, "logit": lambda x: torch.logit(x, 0.1), "ldexp": lambda x: torch.ldexp(x, INTEGER),
    "detach": lambda x: x * x.detach(), "masked_fill": lambda x: x.masked_fill(x > 1, 5.0),
    "constant": lambda x: x * torch.nextafter(x, x),
    "integers": lambda x: ((x.nan_to_num(0, 1, 1).clamp(-1e6, 1e6).long() * 3 - 7) % 5 // 2) * x,
}  # fmt: skip
try:
    torch.func.jacfwd(ONE["constant"])(torch.ones(()))
except NotImplementedError:  # PyTorch 2.9 has no derivative of `nextafter`
    del ONE["constant"]
TWO = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "pow": torch.pow,
    "minimum": torch.minimum, "atan2": torch.atan2, "fmod": torch.fmod, "remainder": torch.remainder,
    "fmax": formulas.fmax, "fmin": formulas.fmin, "hypot": torch.hypot, "copysign": torch.copysign,
    "floor div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "dot": lambda a, b: torch.stack([a, b]) @ torch.stack([b, b]),
    "trunc div": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "clamp": lambda a, b: a.clamp(min=b),
    "clamp above": lambda a, b: a.clamp(max=b), "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "lt": lambda a, b: torch.where(a < b, a, b), "le": lambda a, b: torch.where(a <= b, a, b * 2),
    "gt": lambda a, b: torch.where(a > b, a, b), "ge": lambda a, b: torch.where(a >= b, a, b * 2),
    "eq": lambda a, b: torch.where(a == b, a, b * 2), "ne": lambda a, b: torch.where(a != b, a, b * 2),
    "and": lambda a, b: torch.where((a > 0) & (b > 0), a, b), "or": lambda a, b: torch.where((a > 0) | (b > 0), a, b),
    "xor": lambda a, b: torch.where((a > 0) ^ (b > 0), a, b), "not": lambda a, b: torch.where(~(a > 0), a, b),
    "booleans": lambda a, b: torch.where((a > 0) == (b > 0), a, b),
    "sum of masks": lambda a, b: ((a > 0).sum() + (b > 0)) * a,
    "amax": lambda a, b: torch.stack([a, b, a]).amax(), "amin": lambda a, b: torch.stack([a, b, b]).amin(0),
    "max": lambda a, b: torch.stack([a, b]).max(), "max over": lambda a, b: torch.stack([b, a, b]).max(0).values,
    "min over": lambda a, b: torch.stack([b, a]).min(0).values,
    "argmax": lambda a, b: torch.stack([a, b]).argmax(0) * a,
    "norm": lambda a, b: torch.stack([a, b]).norm(), "prod": lambda a, b: torch.stack([a, b, a]).prod(),
    "all": lambda a, b: torch.where(torch.stack([a > 0, b > 0]).all(), a, b),
    "any": lambda a, b: torch.where(torch.stack([a > 0, b > 0]).any(), a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=2.0),
    "xlogy": lambda a, b: torch.xlogy(a, torch.where(b == 0, 1.0, b)),  # where the derivative at (0, 0) is NaN
    "xlog1py": torch.special.xlog1py,
    "rsub": lambda a, b: torch.rsub(a, b, alpha=2), "add alpha": lambda a, b: torch.add(a, b, alpha=3),
}  # fmt: skip


def of_one(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x[0])


def of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x[0], x[1])


CANCELS = ("tanh", "elu", "celu", "selu", "expm1", "silu", "mish", "gelu tanh", "acosh", "asin", "acos", "atanh")
"""Their derivatives are differences of numbers of size 1, as in PyTorch: 1 − y²."""
NAN_OF_NAN = ("amax", "amin")
"""Where their value is NaN PyTorch's derivative is, too; ours is shared among what is NaN, as that of max()."""


def differences(name: str, x: Tensor, found: Both, pytorch: tuple[Both, Both]) -> str:
    """Where values or derivatives are not PyTorch's: equal to some units in the last place, NaN where NaN is; empty
    where there is no difference."""
    told = _difference(name, x, found.residual, [pytorch[0].residual], 8, 0)
    size = 1.0 if name in CANCELS else 0.0
    jacobians = [one.jacobian for one in pytorch]
    if name in NAN_OF_NAN:
        known = ~found.residual.isnan()
        jacobians = [torch.where(known, one, found.jacobian) for one in jacobians]
    return told + _difference(f"derivative of {name}", x, found.jacobian, jacobians, 64, size)


def _difference(name: str, x: Tensor, found: Tensor, any_of: list[Tensor], places: float, size: float) -> str:
    info = torch.finfo(found.dtype)
    same = torch.zeros_like(found, dtype=torch.bool)
    for expected in any_of:
        close = (found - expected).abs() <= places * info.eps * (expected.abs() + size) + info.tiny
        same |= close | (found == expected) | (found.isnan() & expected.isnan())
    wrong = (~same).nonzero()[:6]
    told = [(x[:, w[-1]].tolist(), float(found[tuple(w)]), [float(e[tuple(w)]) for e in any_of]) for w in wrong]
    return f"{name}: at, found, expected: {told}\n" if told else ""


def assert_same(functions: dict[str, Any], x: Tensor, making: Callable[..., Any] = Making) -> None:
    found = native(list(functions.values()), [x] * len(functions), making)
    pairs = zip(functions.items(), found, strict=True)
    told = "".join(differences(name, x, own, by_pytorch(function, x)) for (name, function), own in pairs)
    assert not told, told


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_operations_of_one_number_are_those_of_pytorch(dtype):
    x = torch.tensor([ORDINARY + SPECIAL], dtype=torch.float64).to(dtype)
    assert_same({name: of_one(f) for name, f in ONE.items()}, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_exponential_is_right_to_about_a_unit_in_the_last_place(dtype):
    """Near zero, over all that an exponent can hold, and around its ends, where 2ⁿ is taken in two factors. Over 10⁶
    numbers the largest error is 1.04 units."""
    info = torch.finfo(dtype)
    largest, least = math.log(info.max), math.log(info.smallest_normal)
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand((3, 5000), generator=generator, dtype=torch.float64)
    ends = torch.linspace(-3, 3, 200, dtype=torch.float64)
    x = torch.cat([spread[0] * 2 - 1, least + spread[1] * (largest - least), 10 ** (-20 * spread[2])])
    x = torch.cat([x, (largest + ends)[ends < 0], (least + ends)[ends > 0], ends / 1e16])[None].to(dtype)
    [found] = native([of_one(torch.exp)], [x])
    expected = np.exp(x.numpy().astype(np.longdouble))
    unit = np.spacing(expected.astype(x.numpy().dtype))
    assert np.abs((found.residual.numpy() - expected) / unit).max() < 1.1
    tiny = torch.linspace(least - 15, least, 100, dtype=torch.float64)[None].to(dtype)
    [found] = native([of_one(torch.exp)], [tiny])
    torch.testing.assert_close(found.residual, tiny.exp(), rtol=0, atol=float(info.smallest_normal * info.eps))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_operations_of_two_numbers_are_those_of_pytorch(dtype):
    numbers = torch.tensor([0.3, -1.7, 2.0, -2.0, 3.0, 0.0, -0.0, 1.0, 0.5, INF, -INF, NAN], dtype=dtype)
    x = torch.cartesian_prod(numbers, numbers).T.contiguous()
    assert_same({name: of_two(f) for name, f in TWO.items()}, x)


def test_an_operation_in_place_is_that_operation():
    """`torch.quantile` writes so, into a tensor of its own."""
    with TRANSFORM_LOCK, torch.no_grad():
        graph = graph_of(lambda x: [(2 * x).ceil_() + x], [torch.ones(2)], guarded=True, functional=False)
    assert "ceil_" in graph.code
    program = Program(torch.float32)
    (rows,) = recorded(program, graph, [input_array(0, torch.ones(2))])
    assert "ceil" in {program.nodes[n].operation for n in program.needed([row.number for row in rows])}
