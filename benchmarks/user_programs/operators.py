"""Residuals with operators whose batching or derivatives have rules of their own."""

import torch
import torch.nn.functional as F

from user_programs.compared import F64, T, Y, case, vector


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def take_rows(p, t, y):
    return p.take(torch.arange(20) % 4) * t - y


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def masked_scatter_(p, t, y):
    return torch.zeros(20, dtype=F64).masked_scatter(torch.arange(20) % 5 == 0, p) * t - y


@case(vector(0.2, 0.3, 0.4, 0.5), T, Y, truth=vector(0.3, 0.45, 0.5, 0.7))
def cummax_(p, t, y):
    return p.cummax(0)[0].repeat(5) * t - y


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def min_with_index(p, t, y):
    v = (p[:, None] * t[None, :4]).min(0)[0]
    return torch.cat([v - y[:4], 0.1 * p])


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def max_with_index_used(p, t, y):
    v, i = (p[:, None] * t[None, :4]).max(1)
    return torch.cat([v - y[:4] + 0.1 * t[i], 0.1 * p])


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def unfold_tensor(p, t, y):
    return p.repeat(6).unfold(0, 5, 1)[:20].mean(1) * t - y


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def f_unfold(p, t, y):
    return torch.cat(
        [
            F.unfold(p.reshape(1, 1, 2, 2), (1, 2))[0].reshape(-1) - y[:4],
            F.fold(p.reshape(1, 2, 2), (1, 3), (1, 2)).reshape(-1) - y[4:7],
        ]
    )


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def quantile_(p, t, y):
    return torch.cat([torch.quantile(p[:, None] * t[None], 0.3, dim=0) - y, 0.1 * p])


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def nanquantile_median(p, t, y):
    return torch.cat([torch.nanquantile(p[:, None] * t[None], 0.6, dim=0) - y, p.median()[None], 0.1 * p])


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def glu_(p, t, y):
    return torch.cat([F.glu(p) * 2 - y[:2], 0.1 * p])


@case(vector(0.5, 0.1, 0.3, 0.2, 0.6, 0.1), T, Y)
def affine_grid_(p, t, y):
    g = F.affine_grid(p.reshape(1, 2, 3), [1, 1, 3, 3], align_corners=False)
    return torch.cat([g.reshape(-1)[:18] - y[:18], 0.1 * p])


IMG = torch.sin(torch.arange(64, dtype=F64).reshape(8, 8) / 5)[None, None]


@case(vector(1.0, 0.05, 0.0, 0.02, 1.0, 0.1))
def warp_image(p):
    g = F.affine_grid(p.reshape(1, 2, 3), [1, 1, 8, 8], align_corners=False)
    return (F.grid_sample(IMG, g, mode="bicubic", align_corners=False) - IMG)[0, 0, 2:6, 2:6].reshape(-1)


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def sort_topk(p, t, y):
    s = torch.sort(p * torch.arange(1, 5))[0]
    k = torch.topk(p, 2)[0]
    return torch.cat([s - y.flip(0)[:4], k - y[4:6]])


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def where_masked_fill(p, t, y):
    return torch.where(t > 1, p[0] * t, p[1]).masked_fill(t < 0.3, 0.0) + p[2] * t**2 + p[3] - y


@case(vector(0.5, 0.4, 0.3), T, Y)
def linalg_stuff(p, t, y):
    A = torch.stack([torch.stack([p[0] + 2, p[1]]), torch.stack([p[1], p[2] + 2])])
    return torch.cat(
        [
            torch.linalg.eigvalsh(A) - y[:2],
            torch.linalg.svdvals(A) - y[2:4],
            torch.matrix_exp(A * 0.3).reshape(-1) - y[4:8],
            torch.linalg.det(A)[None] - y[8],
        ]
    )


@case(vector(0.5, 0.4, 0.3), T, Y)
def eigenvectors(p, t, y):
    A = torch.diag(p + torch.arange(3)) + 0.1
    w, v = torch.linalg.eigh(A)
    return torch.cat([w - y[:3], (v**2)[0] - y[3:6]])


@case(vector(0.5, 0.4), T, Y)
def pinv_lstsq(p, t, y):
    A = torch.stack([torch.exp(-p[0] * t), torch.exp(-(p[1] + 1) * t)], 1)
    return A @ (torch.linalg.pinv(A) @ y) - y


@case(vector(0.5, 0.4), T, Y)
def lstsq_varpro(p, t, y):
    A = torch.stack([torch.exp(-p[0] * t), torch.exp(-(p[1] + 1) * t)], 1)
    return A @ torch.linalg.lstsq(A, y[:, None]).solution[:, 0] - y


@case(vector(0.5, 0.4), T, Y)
def complex_eig(p, t, y):
    A = torch.stack([torch.stack([p[0], -p[1]]), torch.stack([p[1], p[0]])])
    w = torch.linalg.eigvals(A)
    return torch.cat([w.abs() - 1, (w.real.sum() - y[0])[None]])


@case(vector(0.5, 0.4), T, Y)
def stft_(p, t, y):
    return (
        torch.stft(
            p[0] * torch.sin(p[1] * 6 * t), 8, return_complex=True, window=torch.hann_window(8, dtype=F64)
        ).abs()[1]
        - 1
    )


@case(vector(0.5, 0.4), T, Y, truth=vector(0.9, 0.6))
def gradient_fn(p, t, y):
    return torch.gradient(p[0] * torch.exp(p[1] * t), spacing=(t,))[0] - y


@case(vector(0.5, 0.4), T, Y)
def diff_roll_flip(p, t, y):
    return torch.diff(p[0] * torch.exp(p[1] * t)).roll(1).flip(0) * 10 - y[1:]


@case(vector(0.5, 0.4), T, Y, truth=vector(0.7, 0.6))
def vander_poly(p, t, y):
    return torch.vander(t * p[1], 3) @ torch.stack([p[0], p[1], p[0] * p[1]]) - y


@case(vector(0.5, 0.4), T, Y)
def logcumsumexp_(p, t, y):
    return torch.logcumsumexp(p[0] * t, 0) * p[1] - y


@case(vector(0.16, 0.12), T, Y, truth=vector(0.15, 0.1))
def renorm_(p, t, y):
    return torch.renorm(torch.outer(p, t), 2, 0, 1.0).sum(0) + p[0] - y


@case(vector(0.5, 0.4), T, Y, truth=vector(0.8, 0.6))
def normalize_(p, t, y):
    return F.normalize(torch.outer(p, t), dim=0)[0] * t + p[1] - y


@case(vector(0.5, 0.4), T, Y)
def kl_losses(p, t, y):
    return torch.cat(
        [
            F.kl_div(F.log_softmax(p[0] * t, 0), F.softmax(y, 0), reduction="none"),
            F.smooth_l1_loss(p[1] * t, y, reduction="none"),
            F.gaussian_nll_loss(p[0] * t, y, torch.ones(20, dtype=F64) * p[1] ** 2, reduction="none"),
        ]
    )


@case(vector(0.5, 0.4), T, Y, truth=vector(0.9, 0.2))
def distributions(p, t, y):
    d = torch.distributions.Normal(p[0], F.softplus(p[1]))
    return d.cdf(t) - y


@case(vector(0.8, 0.4), T, Y)
def gamma_log_prob(p, t, y):
    d = torch.distributions.Gamma(F.softplus(p[0]), F.softplus(p[1]), validate_args=False)
    return d.log_prob(t) - y


@case(vector(0.8, 0.4), T, Y)
def distribution_validated(p, t, y):
    d = torch.distributions.LogNormal(p[0], F.softplus(p[1]))
    return d.log_prob(t) - y


@case(vector(0.8, 0.4), T, Y)
def weibull_cdf(p, t, y):
    return torch.distributions.Weibull(F.softplus(p[0]), F.softplus(p[1]) + 1).log_prob(t) - y


@case(vector(0.8, 0.4), T, Y)
def scan_reduce(p, t, y):
    acc = [p[0]]
    for k in range(19):
        acc.append(acc[-1] * 0.9 + p[1] * t[k])
    return torch.stack(acc) - y


@case(vector(0.8, 0.4), T, Y, truth=vector(1.0, 0.6))
def secant_root(p, t, y):
    x = torch.ones_like(t)
    for _ in range(20):
        x = x - (torch.exp(x * p[1]) + x - p[0] - t) / (p[1] * torch.exp(x * p[1]) + 1)
    return x - y


@case(vector(0.8, 0.4), T, Y)
def nan_data_masked(p, t, y):
    z = torch.where(t < 0.3, torch.nan, y)
    ok = ~z.isnan()
    return torch.where(ok, p[0] * torch.exp(-p[1] * t) - z, 0.0)


@case(vector(0.8, 0.4), T, torch.where(T < 0.3, torch.nan, Y), scipy=False, grad=False)
def nan_data(p, t, y):
    return p[0] * torch.exp(-p[1] * t) - y


@case(vector(0.8, 0.4), T, Y)
def nan_to_num_(p, t, y):
    return torch.nan_to_num(p[0] * torch.log(t * p[1])) - y


@case(vector(0.8, 0.4), T, Y)
def string_arg(p, t, y, kind="exp"):
    return {"exp": torch.exp, "lin": lambda x: x}[kind](-p[1] * t) * p[0] - y


@case(vector(0.8, 0.4), T, Y, truth=vector(0.9, 0.5))
def einsum_(p, t, y):
    return torch.einsum("i,j->ij", p, t).sum(0) * p[0] + p[1] - y


@case(vector(0.8, 0.4), T, Y)
def half_inside(p, t, y):
    return (p[0] * t).half().double() + p[1] - y


@case(vector(0.8, 0.4), T, Y)
def float_inside(p, t, y):
    return (p[0] * torch.exp(p[1] * t)).float() - y


@case(vector(0.8, 0.4), T, Y)
def rounding_inside(p, t, y):
    return torch.round(p[0] * t * 4) / 4 + p[1] * t - y


@case(vector(0.8, 0.4), T, Y)
def fake_quant(p, t, y):
    return torch.fake_quantize_per_tensor_affine((p[0] * t).float(), 0.1, 0, -50, 50).double() + p[1] * t - y


@case(vector(0.8, 0.4), T, Y)
def ceil_index(p, t, y):
    return y[(p[0] * 5).long().clamp(0, 19)] * t + p[1] - y


@case(vector(0.8, 0.4), T, Y)
def histc_(p, t, y):
    return torch.histc(p[0] * t, 4, 0, 2) * 0.1 + p[1] - y[:4]


@case(vector(0.8, 0.4), T, Y)
def checkpointed(p, t, y):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda a: a[0] * torch.exp(-a[1] * t), p, use_reentrant=False) - y
