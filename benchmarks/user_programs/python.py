"""Residuals with Python's, NumPy's and PyTorch's own constructions around the arithmetic."""

import collections
import dataclasses
import functools
import math

import numpy as np
import torch

from user_programs.compared import F64, P2, P3, T, Y, case, vector


@dataclasses.dataclass
class Data:
    t: torch.Tensor
    y: torch.Tensor
    kind: str = "exp"


D = Data(T, Y)


@case(P2)
def dataclass_global(p):
    return p[0] * torch.exp(-p[1] * D.t) - D.y if D.kind == "exp" else D.y


@case(P2, {"t": T, "y": Y})
def dict_args(p, d):
    return p[0] * torch.exp(-p[1] * d["t"]) - d["y"]


NT = collections.namedtuple("NT", "a b")


@case(P2, NT(T, Y))
def namedtuple_args(p, d):
    return p[0] * torch.exp(-p[1] * d.a) - d.b


@case(P2, T.numpy(), Y.numpy())
def numpy_args(p, t, y):
    return p[0] * torch.exp(-p[1] * torch.as_tensor(t)) - torch.as_tensor(y)


@case(P2, T.tolist(), Y.tolist())
def list_args(p, t, y):
    return torch.stack([p[0] * math.exp(-a) + p[1] * a - b for a, b in zip(t, y, strict=True)])


@case(P2, T, Y)
def numpy_mixed(p, t, y):
    return p[0] * torch.exp(-p[1] * t) * np.float64(1.1) - y * np.array(2.0)


@case(P2, T, Y)
def numpy_ufunc(p, t, y):
    return p[0] * np.exp(-p[1] * t) - y


@case(P2, T, Y)
def detach_numpy(p, t, y):
    w = 1 / (1 + np.abs(p.detach().numpy()[0]))
    return (p[0] * torch.exp(-p[1] * t) - y) * float(w)


cache = {}


@case(P2, T, Y)
def cached_by_shape(p, t, y):
    k = tuple(t.shape)
    if k not in cache:
        cache[k] = torch.arange(k[0], dtype=F64) / k[0]
    return p[0] * cache[k] + p[1] - y


@functools.lru_cache
def basis(n):
    return torch.stack([torch.linspace(0, 1, 20, dtype=F64) ** k for k in range(n)], 1)


@case(P3, Y)
def lru_cached_basis(p, y):
    return basis(3) @ p - y


@case(P3, T, Y)
def sparse_matrix(p, t, y):
    S = torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 2, 2], [0, 1, 2, 0]]), torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=F64), (3, 3)
    )
    return torch.sparse.mm(S, p[:, None])[:, 0] - y[:3]


CSR = torch.eye(3, dtype=F64).to_sparse_csr()


@case(P3, T, Y)
def sparse_csr(p, t, y):
    return (CSR @ p[:, None])[:, 0] - y[:3]


@case(P3, T, Y)
def in_place(p, t, y):
    r = torch.zeros(20, dtype=F64)
    r += p[0]
    r[::2] *= p[1]
    r[3:7].add_(p[2])
    r.mul_(t).sub_(y)
    return r


@case(P3.float(), T.float(), Y.float())
def float32(p, t, y):
    return p[0] * torch.exp(p[1] * t) + p[2] - y


@case(P3, T.float(), Y)
def mixed_dtypes(p, t, y):
    return p[0] * torch.exp(p[1] * t) + p[2] - y


@case(P3, torch.arange(20), Y)
def integer_data(p, t, y):
    return p[0] * torch.exp(p[1] * t / 20) + p[2] - y


@case(P3, torch.arange(20, dtype=torch.uint8), Y)
def uint8_data(p, t, y):
    return p[0] + p[1] * (t - 10) + p[2] * t - y


@case(P2, T, Y)
def data_dependent_branch(p, t, y):
    if p[1] > 0:
        return p[0] * torch.exp(-p[1] * t) - y
    return p[0] * t - y


@case(P2, T, Y, truth=vector(1.0, 0.8))
def while_loop(p, t, y):
    x = torch.ones_like(t)
    for _ in range(30):
        x = x - (x**3 + p[1] ** 2 * x - t) / (3 * x**2 + p[1] ** 2)
    return p[0] * x - y


class MyExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


@case(P2, T, Y)
def old_function(p, t, y):
    return p[0] * MyExp.apply(-p[1] * t) - y


class MyExp2(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, i, o):
        ctx.save_for_backward(o)
        ctx.save_for_forward(o)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0]


@case(P2, T, Y)
def new_function(p, t, y):
    return p[0] * MyExp2.apply(-p[1] * t) - y


@torch.jit.script
def scripted(p: torch.Tensor, t: torch.Tensor):
    if t.numel() > 3:
        return p[0] * torch.exp(-p[1] * t)
    return t


@case(P2, T, Y)
def jit_scripted(p, t, y):
    return scripted(p, t) - y


@case(P2, T, Y)
def jacfwd_inside(p, t, y):
    return torch.func.vmap(torch.func.jacfwd(lambda s: p[0] * torch.sin(p[1] * s)))(t) - y


@case(P2, T, Y)
def hessian_inside(p, t, y):
    return torch.func.vmap(torch.func.hessian(lambda s: p[0] * torch.sin(p[1] * s)))(t) - y


@case(P2, T, Y)
def jvp_inside(p, t, y):
    return torch.func.jvp(lambda s: p[0] * torch.sin(p[1] * s), (t,), (torch.ones_like(t),))[1] - y
