"""Residuals of statistics, distributions, kernels and geometry."""

import torch
import torch.nn.functional as F

from user_programs.compared import F64, T, Y, case, vector


@case(vector(0.8, 0.4), T, Y)
def tensor_split_chunk(p, t, y):
    a, b = torch.chunk(p, 2)
    return torch.cat([a * c + b - d for c, d in zip(t.split(5), y.split(5), strict=True)])


@case(vector(0.8, 0.4), T, Y)
def atleast_meshgrid(p, t, y):
    X, Z = torch.meshgrid(t[:4], y[:3], indexing="ij")
    return (p[0] * X + p[1] * Z - X * Z).reshape(-1)


@case(vector(0.8, 0.4), T, Y)
def cov_corr(p, t, y):
    return torch.cov(torch.stack([p[0] * t, torch.exp(-p[1] * t)])).reshape(-1) - 0.1


@case(vector(0.8, 0.4), T, Y)
def std_var(p, t, y):
    return torch.stack([(p[0] * t).std() - 0.3, torch.exp(-p[1] * t).var() - 0.05, (p[0] * t).std(correction=0) - 0.2])


@case(vector(0.8, 0.4), T, Y)
def logdet_chol(p, t, y):
    K = p[0] ** 2 * torch.exp(-((t[:, None] - t) ** 2) / (2 * p[1] ** 2)) + 0.1 * torch.eye(20, dtype=F64)
    L = torch.linalg.cholesky(K)
    a = torch.linalg.solve_triangular(L, y[:, None], upper=False)[:, 0]
    return torch.cat([a, torch.sqrt(2 * torch.log(torch.diagonal(L)) + 8)])


@case(vector(0.8, 0.4), T, Y)
def kron_trace(p, t, y):
    return torch.kron(p, t[:5]) - y[:10]


@case(vector(0.8, 0.4, 0.1), T, Y)
def cross_prod(p, t, y):
    return torch.linalg.cross(p.expand(6, 3), y[:18].reshape(6, 3))[:, 0] - 0.1 + p[0]


@case(vector(0.8, 0.4), T, Y, truth=vector(0.7, 0.5))
def addcmul_(p, t, y):
    return torch.addcmul(t, p[0].expand(20), t.sin(), value=0.5) * p[1] - y


@case(vector(0.8, 0.4), T, Y)
def lerp_(p, t, y):
    return torch.lerp(t, y, p[0]) * p[1] - y * 0.5


@case(vector(0.8, 0.4), T, Y)
def hypot_atan2(p, t, y):
    return torch.hypot(p[0] * t, p[1]) + torch.atan2(p[1] * t, p[0] + t) - y


@case(vector(0.8, 0.4), T, Y)
def logsumexp_soft(p, t, y):
    return torch.logsumexp(torch.stack([p[0] * t, p[1] + t]), 0) - y


@case(vector(0.8, 0.4), T, Y)
def index_add_(p, t, y):
    return torch.zeros(5, dtype=F64).index_add(0, torch.arange(20) % 5, p[0] * torch.exp(-p[1] * t)) - y[:5] * 4


@case(vector(0.8, 0.4), T, Y)
def scatter_reduce_(p, t, y):
    return (
        torch.zeros(5, dtype=F64).scatter_reduce(
            0, torch.arange(20) % 5, p[0] * torch.exp(-p[1] * t), "amax", include_self=False
        )
        - y[:5]
    )


@case(vector(0.8, 0.4), T, Y)
def igamma_x(p, t, y):
    return p[0] * torch.special.gammainc(torch.tensor(2.0, dtype=F64), p[1] * t) - (2 - y)


@case(vector(1.8, 0.4), T, Y)
def igamma_a(p, t, y):
    return torch.special.gammainc(p[0], p[1] * t) - (2 - y)


@case(vector(0.8, 0.4), T, Y)
def betainc_like(p, t, y):
    return torch.lgamma(p[0] + t) - torch.lgamma(t) - torch.lgamma(p[0] + 1) + p[1] * t - y


@case(vector(0.8, 0.4), T, Y)
def erfinv_(p, t, y):
    return torch.erfinv(torch.tanh(p[0] * t) * 0.9) * p[1] - y


@case(vector(0.8, 0.4), T, Y)
def expm1_log1p(p, t, y):
    return torch.log1p(p[0] ** 2 * t) + torch.expm1(-p[1] * t) - y


@case(vector(0.8, 0.4), T, Y)
def frexp_ldexp(p, t, y):
    m, e = torch.frexp(p[0] * t)
    return torch.ldexp(m, e) + p[1] - y


@case(vector(0.8, 0.4), T, Y)
def fmod_remainder(p, t, y):
    return torch.remainder(p[0] * t, 1.0) + torch.fmod(p[1] * t, 3.0) - y


@case(vector(0.8, 0.4), T, Y)
def closest_point(p, t, y):
    return torch.cdist(p[None], torch.stack([t, y], 1))[0].sort()[0][:5] - 0.2


@case(vector(0.8, 0.4), T, Y)
def rms_group(p, t, y):
    return F.group_norm((p[0] * t * t + p[1] * t).reshape(1, 4, 5), 2)[0].reshape(-1) - y + p[0]
