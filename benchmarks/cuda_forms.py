"""One residual for each form in scalars of PyTorch's larger operations: what `cuda_programs.py` compiles of them.

Entry i of what is operated on is d_i (1 + p_j / 10), j = i modulo 6: data of the block, and six unknowns.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import mslsq

F, L = torch.nn.functional, torch.linalg
UNKNOWNS, BLOCKS = 6, 9
Operation = Callable[[Tensor], Tensor]


def square(x: Tensor) -> Tensor:
    n = round(len(x) ** 0.5)
    return x.reshape(n, n) + 3 * torch.eye(n, dtype=x.dtype, device=x.device)


def positive(x: Tensor) -> Tensor:
    a = square(x)
    return a @ a.mT


def right(x: Tensor) -> Tensor:
    """A right-hand side for a square matrix of these entries."""
    return x[: round(len(x) ** 0.5), None]


def places(count: int, most: int) -> Tensor:
    return torch.arange(count) * 7 % most


def by_value(x: Tensor, most: int) -> Tensor:
    """A place for each number, by its value."""
    return (4 * x + most / 2).floor().long().clamp(0, most - 1)


def as_complex(x: Tensor) -> Tensor:
    return torch.complex(x[: len(x) // 2], x[len(x) // 2 :])


def parts(x: Tensor) -> Tensor:
    return torch.view_as_real(x)


def cell(kind: type, gates: int, x: Tensor) -> Tensor:
    """A cell of two inputs and two hidden numbers whose weights are among these numbers; without offsets."""
    inputs, state, rest = (part.reshape(-1, 2) for part in x.split([gates * 4, gates * 4, len(x) - gates * 8]))
    none = x.new_zeros(2 * gates)
    if kind is torch.nn.GRUCell:
        return torch.gru_cell(rest[:1], rest[1:2], inputs, state, none, none)
    return torch.cat(torch.lstm_cell(rest[:1], (rest[1:2], rest[2:3]), inputs, state, none, none))


def limits(count: int, like: Tensor) -> Tensor:
    return torch.linspace(-2, 2, count, dtype=like.dtype)


OPERATIONS: dict[str, tuple[int, Operation]] = {
    **{f"softmax, {n}": (n, lambda x: F.softmax(x, 0)) for n in (8, 32)},
    "log_softmax, 16": (16, lambda x: F.log_softmax(x, 0)),
    "softmax of 4 rows of 8": (32, lambda x: F.softmax(x.reshape(4, 8), 1)),
    "logsumexp, 32": (32, lambda x: torch.logsumexp(x, 0)),
    "logcumsumexp, 16": (16, lambda x: x.logcumsumexp(0)),
    "logaddexp, 16": (32, lambda x: torch.logaddexp(x[:16], x[16:])),
    "cumprod, 16": (16, lambda x: x.cumprod(0)),
    "cumsum, 32": (32, lambda x: x.cumsum(0)),
    **{f"norm {p:g}, 16": (16, lambda x, p=p: L.vector_norm(x, p)) for p in (1.0, 2.0, 3.0, float("inf"))},
    "rows' norms, 8 x 4": (32, lambda x: L.vector_norm(x.reshape(8, 4), dim=1)),
    "layer_norm, 16": (16, lambda x: F.layer_norm(x, (16,))),
    "rms_norm, 16": (16, lambda x: F.rms_norm(x, (16,))),
    "cosine_similarity, 8": (16, lambda x: F.cosine_similarity(x[:8], x[8:], dim=0)),
    "cdist, 4 x 3": (24, lambda x: torch.cdist(x[:12].reshape(4, 3), x[12:].reshape(4, 3))),
    **{f"det, {n} x {n}": (n * n, lambda x: L.det(square(x))) for n in (3, 6)},
    "slogdet, 6 x 6": (36, lambda x: torch.slogdet(square(x))[1]),
    "inv, 3 x 3": (9, lambda x: L.inv(square(x))),
    "solve, 3 x 3": (9, lambda x: L.solve(square(x), right(x))),
    **{f"cholesky, {n} x {n}": (n * n, lambda x: L.cholesky(positive(x))) for n in (3, 6)},
    "cholesky_solve, 6 x 6": (36, lambda x: torch.cholesky_solve(right(x), L.cholesky(positive(x)))),
    "solve_triangular, 6 x 6": (36, lambda x: L.solve_triangular(square(x).tril(), right(x), upper=False)),
    "qr, 3 x 3": (9, lambda x: torch.cat([one.reshape(-1) for one in L.qr(square(x))])),
    "conv1d, 32 by 5": (37, lambda x: F.conv1d(x[:32].reshape(1, 1, 32), x[32:].reshape(1, 1, 5))),
    "conv2d, 8 x 8 by 3 x 3": (73, lambda x: F.conv2d(x[:64].reshape(1, 1, 8, 8), x[64:].reshape(1, 1, 3, 3))),
    **{f"sort, {n}": (n, lambda x: x.sort().values) for n in (8, 16)},
    "median, 15": (15, lambda x: x.median()),
    "kthvalue, 16": (16, lambda x: x.kthvalue(5).values),
    **{
        f"searchsorted, {n}": (8, lambda x, n=n: torch.searchsorted(limits(n, x), x.contiguous()) * x) for n in (16, 64)
    },
    "bucketize, 16": (8, lambda x: torch.bucketize(x, limits(16, x)) * x),
    "scatter_add, 16": (32, lambda x: x[:16].scatter_add(0, places(16, 16), x[16:])),
    "scatter_reduce, 16": (32, lambda x: x[:16].scatter_reduce(0, places(16, 16), x[16:], "sum")),
    "index_add, 4 x 4": (32, lambda x: x[:16].reshape(4, 4).index_add(0, places(4, 4), x[16:].reshape(4, 4))),
    "index_put, 16": (20, lambda x: x[:16].index_put((places(4, 16),), x[16:])),
    "embedding, 8 x 4": (32, lambda x: F.embedding(places(5, 8), x.reshape(8, 4))),
    "var_mean, 16": (16, lambda x: torch.stack(torch.var_mean(x))),
    "reflection padding, 16": (16, lambda x: F.pad(x[None], (4, 4), mode="reflect")),
    "glu, 16": (16, lambda x: F.glu(x)),
    "captured table of 16, by value": (8, lambda x: limits(16, x)[by_value(x, 16)] * x),
    "own table of 8, by value": (16, lambda x: x[:8][by_value(x[8:], 8)] * x[8:]),
    "grid_sample, 4 x 4": (
        24,
        lambda x: F.grid_sample(x[:16].reshape(1, 1, 4, 4), x[16:].reshape(1, 2, 2, 2), align_corners=True),
    ),
    "index_put by value, 16": (16, lambda x: torch.zeros_like(x).index_put((by_value(x, 16),), x, accumulate=True)),
    "scatter_add by value, 16": (16, lambda x: torch.zeros_like(x).scatter_add(0, by_value(x, 16), x)),
    **{
        f"{name}, 4": (4, lambda x, name=name: getattr(torch.special, name)(1 + x.abs()))
        for name in (
            *("gammaln", "digamma", "erfcx", "log_ndtr", "i0", "i0e", "i1", "i1e", "entr"),
            *("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"),
        )
    },
    **{
        f"{name}, 4": (4, lambda x, name=name: getattr(torch.special, name)(torch.sigmoid(x) * 0.9))
        for name in ("erfinv", "ndtri")
    },
    "polygamma 1, 4": (4, lambda x: torch.special.polygamma(1, 1 + x.abs())),
    "zeta, 4": (4, lambda x: torch.special.zeta(torch.full_like(x, 2.5), 1 + x.abs())),
    "multigammaln, 4": (4, lambda x: torch.special.multigammaln(3 + x.abs(), 2)),
    "complex product and exp, 8": (16, lambda x: parts(as_complex(x) * torch.exp(0.1 * as_complex(x)))),
    "complex quotient and abs, 8": (16, lambda x: (as_complex(x) / (2 + as_complex(x))).abs()),
    **{f"fft, {n}": (2 * n, lambda x: parts(torch.fft.fft(as_complex(x)))) for n in (8, 16)},
    "rfft, 16": (16, lambda x: parts(torch.fft.rfft(x))),
    "irfft, 16": (18, lambda x: torch.fft.irfft(as_complex(x))),
    "fft2, 4 x 4": (32, lambda x: parts(torch.fft.fft2(as_complex(x).reshape(4, 4)))),
    "eigvalsh, 2 x 2": (4, lambda x: L.eigvalsh(positive(x))),
    "eigvalsh, 3 x 3": (9, lambda x: L.eigvalsh(positive(x))),
    "svdvals, 2 x 2": (4, lambda x: L.svdvals(square(x))),
    "max_pool2d, 4 x 4 by 2": (16, lambda x: F.max_pool2d(x.reshape(1, 1, 4, 4), 2)),
    "avg_pool1d, 16 by 4": (16, lambda x: F.avg_pool1d(x[None], 4)),
    "interpolate, 8 to 16": (8, lambda x: F.interpolate(x[None, None], 16, mode="linear")),
    "conv_transpose1d, 8 by 3": (11, lambda x: F.conv_transpose1d(x[:8].reshape(1, 1, 8), x[8:].reshape(1, 1, 3))),
    "topk, 3 of 16": (16, lambda x: x.topk(3).values),
    "cummax, 16": (16, lambda x: x.cummax(0).values),
    "GRUCell, 2 to 2": (28, lambda x: cell(torch.nn.GRUCell, 3, x)),
    "LSTMCell, 2 to 2": (38, lambda x: cell(torch.nn.LSTMCell, 4, x)),
}


class Form(mslsq.CostFunction):
    """A row for each number that an operation returns."""

    def __init__(self, p: Any, operation: Operation, **data: Any):
        super().__init__(p, **data)
        self.operation = operation

    def residual(self, p: Tensor, d: Tensor) -> Tensor:
        return self.operation(d * (1 + p[torch.arange(len(d)) % UNKNOWNS] / 10)).reshape(-1)


def form(name: str) -> tuple[mslsq.CostFunction, dict[str, Any]]:
    """The cost of an operation, and where its unknowns are."""
    count, operation = OPERATIONS[name]
    random = torch.Generator().manual_seed(len(name) + count)
    d = torch.randn(BLOCKS, count, generator=random, dtype=torch.float64)
    p = mslsq.Variable("p", mslsq.Euclidean(UNKNOWNS), BLOCKS)
    start = torch.randn(BLOCKS, UNKNOWNS, generator=random, dtype=torch.float64)
    return Form(p, operation, d=d), {"p": start}


FORMS = {name: (lambda name=name: form(name)) for name in OPERATIONS}
