"""Residuals with special functions, powers, complex numbers, transforms, integrators and interpolation."""

import torch

from user_programs.compared import F64, P2, P3, T, Y, case, vector


@case(P3, T, Y, truth=vector(1.2, 0.6, 0.2))
def lgamma_model(p, t, y):
    return p[0] * torch.lgamma(t + 1.5 + p[1] ** 2) + p[2] - y


@case(P2, T, Y, truth=vector(1.0, 0.9))
def digamma_model(p, t, y):
    return p[0] * torch.digamma(t + 1 + p[1] ** 2) - y


@case(P2, T, Y)
def polygamma_model(p, t, y):
    return p[0] * torch.polygamma(1, t + 1 + p[1] ** 2) - y


@case(P2, T, Y)
def erfcx_model(p, t, y):
    return p[0] * torch.special.erfcx(p[1] * t) - y


@case(P2, T, Y)
def lognormcdf(p, t, y):
    return p[0] * torch.special.log_ndtr(p[1] * t - 1) + y


@case(P2, T, Y, truth=vector(1.0, 0.9))
def ndtri_model(p, t, y):
    return p[0] * torch.special.ndtri(torch.sigmoid(p[1] * t)) - y


@case(P2, T, Y)
def i0_model(p, t, y):
    return p[0] * torch.special.i0e(p[1] * t) - y


@case(P2, T, Y)
def entr_model(p, t, y):
    return torch.special.entr(torch.sigmoid(p[0] * t)) + p[1] - y


@case(P2, T, Y, truth=vector(0.8, 0.5))
def multigamma(p, t, y):
    return torch.special.multigammaln(t + 3 + p[0] ** 2, 2) * p[1] - y


@case(P2, T, Y)
def sinc_model(p, t, y):
    return p[0] * torch.sinc(p[1] * t) - y


@case(vector(1.2, 0.0), T, Y)
def sinc_at_zero(p, t, y):
    return p[0] * torch.sinc(p[1] + 0 * t) - y * 0.5


@case(P2, T, Y)
def xlogy_model(p, t, y):
    return torch.xlogy(p[0], t) + p[1] - y


@case(P2, T, Y)
def float_power_model(p, t, y):
    return torch.float_power(t, p[1]) * p[0] - y


@case(P2, torch.linspace(0, 2, 20, dtype=F64), Y, truth=vector(1.1, 0.8))
def power_with_zero(p, t, y):
    return t ** p[1] * p[0] - y


@case(vector(1.2, 0.7, 0.1), torch.linspace(0, 2, 20, dtype=F64), Y, truth=vector(1.2, 1.5, 0.4))
def michaelis_hill(p, t, y):
    return p[0] * t ** p[1] / (p[2].abs() + t ** p[1]) - y


@case(P2, T, Y)
def complex_power(p, t, y):
    z = torch.complex(t, p[1].expand_as(t))
    return (z**1.5).real * p[0] - y


@case(P2, T, Y)
def complex_residual(p, t, y):
    return p[0] * torch.exp(1j * p[1] * t) - y


@case(P2, T, Y)
def complex_pow_unknown(p, t, y):
    z = torch.complex(t, 0.5 * t)
    return (z ** p[1]).abs() * p[0] - y


@case(P2, T, Y)
def polar_model(p, t, y):
    return torch.view_as_real(torch.polar(p[0].expand_as(t), p[1] * t)).sum(-1) - y


@case(P2, T, Y)
def fft_model(p, t, y):
    return torch.fft.irfft(torch.fft.rfft(torch.exp(-p[1] * t)) * p[0], n=20) - y


@case(P2, T, Y, truth=vector(1.1, 0.9))
def fft_convolve(p, t, y):
    k = torch.exp(-((torch.arange(5, dtype=p.dtype) - 2) ** 2) / (2 * p[1] ** 2))
    k = k / k.sum()
    n = 24
    return p[0] * torch.fft.irfft(torch.fft.rfft(torch.sin(4 * t), n) * torch.fft.rfft(k, n), n)[2:22] - y


@case(P2, T, Y)
def hilbert_phase(p, t, y):
    z = torch.fft.ifft(torch.fft.fft(p[0] * torch.sin(p[1] * t)).roll(1))
    return torch.angle(z + 2) - 0.1 * y


@case(P3, T, Y)
def rk4(p, t, y):
    x = p[2].expand(())
    out = []

    def f(x, s):
        return -p[0] * x + p[1] * torch.sin(s)

    h = 0.05
    s = torch.zeros((), dtype=p.dtype)
    for _ in range(len(t)):
        for _ in range(2):
            k1 = f(x, s)
            k2 = f(x + h / 2 * k1, s + h / 2)
            k3 = f(x + h / 2 * k2, s + h / 2)
            k4 = f(x + h * k3, s + h)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            s = s + h
        out.append(x)
    return torch.stack(out) - y


@case(P3, T, Y)
def cumulative_ode(p, t, y):
    rate = p[0] * torch.exp(-p[1] * t)
    return torch.cumulative_trapezoid(rate, t) + p[2] - y[1:]


@case(P3, T, Y)
def trapezoid_(p, t, y):
    return torch.stack([torch.trapezoid(p[0] * torch.exp(p[1] * t[:k]), t[:k]) + p[2] - y[k - 1] for k in range(2, 20)])


@case(vector(0.5, 0.4, 0.3, 0.2), T, Y)
def linear_interpolation(p, t, y):
    knots = torch.tensor([0.0, 0.7, 1.4, 2.1], dtype=t.dtype)
    i = torch.searchsorted(knots, t).clamp(1, 3)
    w = (t - knots[i - 1]) / (knots[i] - knots[i - 1])
    return p[i - 1] * (1 - w) + p[i] * w - y


@case(vector(0.5, 1.4), T, Y)
def interp_at_unknown(p, t, y):
    x = (p[1] * t).clamp(0.1, 1.99)
    i = torch.bucketize(x, t).clamp(1, 19)
    w = (x - t[i - 1]) / (t[i] - t[i - 1])
    return p[0] * (y[i - 1] * (1 - w) + y[i] * w) - y.flip(0) * 0.2
