"""Operations over several entries against PyTorch, values and Jacobians: at ordinary numbers, ties, zeros, infinities
and NaN."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mslsq.tracing.capture import capture
from tests.native.functions import NEEDS_COMPILER, by_pytorch, native

pytestmark = NEEDS_COMPILER
F, L = torch.nn.functional, torch.linalg
INF, NAN = float("inf"), float("nan")
F64 = torch.float64


def square(x: Tensor, n: int) -> Tensor:
    return x[: n * n].reshape(n, n) + 2 * torch.eye(n, dtype=x.dtype)


def positive(x: Tensor, n: int) -> Tensor:
    a = x[: n * n].reshape(n, n)
    return a @ a.T + torch.eye(n, dtype=x.dtype)


def limits(x: Tensor) -> Tensor:
    return torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.5], dtype=x.dtype)


PLACES = torch.tensor([0, 2, 2, 1])
MASK = torch.tensor([True, False] * 4 + [True])
LINES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: F.softmax(x[:4], 0),
    "log_softmax": lambda x: F.log_softmax(x.reshape(3, 3), 0),
    "softmin": lambda x: F.softmin(x.reshape(3, 3), 1),
    "logsumexp": lambda x: torch.logsumexp(x.reshape(3, 3), 1),
    "logsumexp of all": lambda x: torch.logsumexp(x.reshape(3, 3), (0, 1), True),
    "logcumsumexp": lambda x: x[:4].logcumsumexp(0),
    "cumprod": lambda x: x[:5].cumprod(0),
    "nansum": lambda x: x.reshape(3, 3).nansum(1),
    "var_mean": lambda x: torch.cat(torch.var_mean(x.reshape(3, 3), 1)),
    "std_mean": lambda x: torch.stack(torch.std_mean(x, unbiased=False)),
    "norm inf": lambda x: L.vector_norm(x[:4], INF),
    "norm -inf": lambda x: L.vector_norm(x[:4], -INF),
    "norm 3": lambda x: L.vector_norm(x[:4], 3),
    "norm 1.5": lambda x: x.reshape(3, 3).norm(1.5, 0),
    "norm 0": lambda x: L.vector_norm(x[:4], 0) * x[0],
    "dist": lambda x: torch.dist(x[:3], x[3:6]),
    "aminmax": lambda x: torch.stack(torch.aminmax(x[:4], dim=0)),
    "rms_norm": lambda x: F.rms_norm(x[:6], (6,)),
    "cosine_similarity": lambda x: F.cosine_similarity(x[:3], x[3:6], dim=0),
    "isclose": lambda x: torch.where(torch.isclose(x, x.roll(1)), x, 2 * x),
    "scatter_add": lambda x: x[:4].scatter_add(0, PLACES, x[4:8]),
    "scatter": lambda x: x[:4].scatter(0, PLACES[:2], x[7:9]),
    "scatter of rows": lambda x: x[:6].reshape(2, 3).scatter(0, torch.tensor([[1, 0, 1]]), x[6:].reshape(1, 3)),
    "scatter_reduce": lambda x: x[:4].scatter_reduce(0, PLACES, x[4:8], "sum"),
    "index_add": lambda x: x[:6].reshape(3, 2).index_add(0, PLACES[:2], x[5:9].reshape(2, 2), alpha=-2),
    "index_put": lambda x: x.index_put((PLACES[:2],), x[4:6]),
    "take": lambda x: x.reshape(3, 3).take(PLACES),
    "index_put of more": lambda x: x.index_put((PLACES,), x[:1], accumulate=True),
    "embedding": lambda x: F.embedding(PLACES, x.reshape(3, 3)),
    "masked_scatter": lambda x: x.masked_scatter(MASK, x.flip(0)),
    "searchsorted": lambda x: torch.searchsorted(limits(x), x) * x.nan_to_num(2.0),
    "searchsorted, right": lambda x: torch.searchsorted(limits(x), x, right=True) * x.nan_to_num(2.0),
    "bucketize": lambda x: torch.bucketize(x, limits(x)) * x.nan_to_num(2.0),
    "conv1d": lambda x: F.conv1d(x[:6].reshape(1, 1, 6), x[6:].reshape(1, 1, 3)),
    "conv1d of groups": lambda x: F.conv1d(
        x[:6].reshape(1, 2, 3), x[6:].reshape(1, 3).repeat(4, 1)[:, None, :2], groups=2
    ),
    "conv1d, strided": lambda x: F.conv1d(
        x.reshape(1, 1, 9), x[2:4].reshape(1, 1, 2), x[:1], stride=2, padding=1, dilation=2
    ),
    "conv2d": lambda x: F.conv2d(x.reshape(1, 1, 3, 3), x[:4].reshape(1, 1, 2, 2), padding=1),
    "reflection": lambda x: F.pad(x[None], (2, 3), mode="reflect"),
    "replication": lambda x: F.pad(x[None], (2, 3), mode="replicate"),
    "patches": lambda x: F.unfold(x.reshape(1, 1, 3, 3), 2),
    "sort": lambda x: x[:5].sort().values,
    "sort of rows": lambda x: x.reshape(3, 3).sort(0).values,
    "sort, places": lambda x: x[:5].sort(stable=True).indices * x[:5].nan_to_num(2.0),
    "median": lambda x: x[:5].median(),
    "median of rows": lambda x: x.reshape(3, 3).median(1).values,
    "kthvalue": lambda x: x[:5].kthvalue(3).values,
    "mse_loss": lambda x: F.mse_loss(x[:3], x[3:6]),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x[:3], x[3:6], reduction="none", beta=0.7),
    "tanhshrink": F.tanhshrink,
    "logaddexp": lambda x: torch.logaddexp(x[:4], x[4:8]),
    "logaddexp2": lambda x: torch.logaddexp2(x[:4], x[4:8]),
    "logit": lambda x: torch.logit(x.sigmoid()),
    "glu": lambda x: F.glu(x[:8]),
    "softmax of a softmax": lambda x: F.softmax(F.softmax(x[:3], 0), 0),
}
MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"det {n}": lambda x, n=n: L.det(square(x, n)) for n in (1, 2, 3)},
    **{f"inv {n}": lambda x, n=n: L.inv(square(x, n)) for n in (1, 2, 3)},
    **{f"solve {n}": lambda x, n=n: L.solve(square(x, n), x[-n:]) for n in (1, 2, 3)},
    "solve from the right": lambda x: L.solve(square(x, 2), x[1:5].reshape(2, 2), left=False),
    "slogdet": lambda x: torch.stack(torch.slogdet(square(x, 3))),
    "logdet": lambda x: torch.logdet(positive(x, 3)),
    "inverses": lambda x: L.inv(torch.stack([square(x, 2), square(x.flip(0), 2)])),
    "cholesky": lambda x: L.cholesky(positive(x, 3)),
    "upper cholesky": lambda x: L.cholesky(positive(x, 2), upper=True),
    "cholesky_solve": lambda x: torch.cholesky_solve(x[:3, None], L.cholesky(positive(x, 3))),
    "triangle": lambda x: L.solve_triangular(square(x, 3).tril(), x[:3, None], upper=False),
    "unit triangle": lambda x: L.solve_triangular(
        square(x, 3), x[:6].reshape(2, 3), upper=True, left=False, unitriangular=True
    ),
    "qr": lambda x: torch.cat([part.reshape(-1) for part in L.qr(square(x, 3))]),
    "qr of a tall one": lambda x: torch.cat([part.reshape(-1) for part in L.qr(x[:6].reshape(3, 2))]),
    "layer_norm": lambda x: F.layer_norm(x[:6].reshape(2, 3), (3,), x[6:9], x[:3]),
    "group_norm": lambda x: F.group_norm(x[:8].reshape(1, 4, 2), 2),
    "instance_norm": lambda x: F.instance_norm(x[:8].reshape(1, 2, 4)),
    "huber": lambda x: F.huber_loss(x[:3], x[3:6], reduction="none"),
    "cdist": lambda x: torch.cdist(x[:4].reshape(2, 2), x[4:8].reshape(2, 2)),
    "cumprod, captured": lambda x: x[:4].cumprod(0),
}
"""What a residual is captured for: PyTorch's own is wrong under some transform, or has an error of its own."""


def points(dtype: torch.dtype) -> Tensor:
    """Nine numbers a lane: without a pattern, with ties and zeros."""
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randn((9, 6), generator=generator, dtype=F64)
    ties = torch.tensor([0.5, 0.5, -0.5, 0.0, 1.0, 1.0, -1.0, 0.5, 0.0], dtype=F64)[:, None]
    return torch.cat([drawn, 0.01 * drawn[:, :1], 5 * drawn[:, :1], ties], 1).to(dtype)


def special(dtype: torch.dtype) -> Tensor:
    """The same with what is not finite."""
    x = points(F64)[:, :6].clone()
    x[0, 0], x[1, 1], x[2, 2], x[:4, 3], x[:, 4] = INF, -INF, NAN, -INF, 0.0
    x[0:2, 5] = INF
    return x.to(dtype)


def told(functions: dict[str, Any], x: Tensor, plain: dict[str, Any], relative: float, jacobians: bool = True) -> str:
    """Where native values or Jacobians are neither those of forward nor of reverse mode."""
    found, lines = native(list(functions.values()), [x] * len(functions)), ""
    for (name, own), function in zip(zip(functions, found, strict=True), plain.values(), strict=True):
        if jacobians:
            pytorch = by_pytorch(function, x)
            pairs = [
                ("value", own.residual, [pytorch[0].residual]),
                ("Jacobian", own.jacobian, [one.jacobian for one in pytorch]),
            ]
        else:
            values = [function(x[:, lane].clone()).reshape(-1) for lane in range(x.shape[1])]
            pairs = [("value", own.residual, [torch.stack(values, -1)])]
        for what, got, any_of in pairs:
            same = torch.zeros_like(got, dtype=torch.bool)
            for expected in any_of:
                size = torch.nan_to_num(expected, 0, 0, 0).abs().amax()
                close = (got - expected).abs() <= relative * (expected.abs() + size)
                same |= close | (got == expected) | (got.isnan() & expected.isnan())
            for w in (~same).nonzero()[:4].tolist():
                lines += (
                    f"{name}, {what} {w}: {float(got[tuple(w)])}, expected {[float(e[tuple(w)]) for e in any_of]}\n"
                )
    return lines


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lines_are_those_of_pytorch(dtype):
    relative = 1e-12 if dtype == F64 else 2e-5
    assert not told(LINES, points(dtype), LINES, relative)


def test_lines_with_numbers_that_are_not_finite_have_the_values_of_pytorch():
    # Of what is not finite PyTorch's running mean, and padding with zeros that are multiplied, make NaN.
    lines = {name: f for name, f in LINES.items() if name not in ("var_mean", "std_mean", "conv1d, strided", "conv2d")}
    assert not told(lines, special(F64), lines, 1e-12, jacobians=False)


def test_sinc_has_the_digits_of_its_dtype_near_zero_too():
    x = torch.tensor([[-2.3, -0.4, -1e-3, 0.0, 1e-9, 0.07, 0.08, 0.5, 1.0, 3.7]], dtype=F64)
    angle = torch.pi * x[0]
    expected = torch.where(x[0].abs() < 1e-2, -torch.pi * angle / 3, (angle.cos() - angle.sin() / angle) / x[0])
    for dtype, digits in ((F64, 1e-12), (torch.float32, 2e-6)):
        [found] = native([torch.sinc], [x.to(dtype)])
        torch.testing.assert_close(found.residual[0].double(), torch.sinc(x[0]), rtol=digits, atol=digits)
        torch.testing.assert_close(found.jacobian[0, 0].double(), expected, rtol=max(digits, 1e-5), atol=digits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_matrices_are_those_of_pytorch(dtype):
    x = points(dtype)
    captured = {name: capture(f, (x[:, 0].clone(),), name=name) for name, f in MATRICES.items()}
    assert not told(captured, x, MATRICES, 1e-11 if dtype == F64 else 1e-4)
