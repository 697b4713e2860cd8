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
