"""What people write when they fit their own models: filters, integrators, splines, registrations, decompositions."""

import dataclasses
import functools
from collections import namedtuple

import numpy as np
import torch
from torch import nn

from user_programs.compared import F64, P2, P3, T, Y, case, vector

GRID = torch.linspace(0, 1, 24, dtype=F64)
POINTS = torch.stack([torch.cos(2.5 * GRID), torch.sin(3.1 * GRID + 0.3)], 1)
CALLS = {"count": 0}
Settings = namedtuple("Settings", "rate offset")


@dataclasses.dataclass
class Model:
    amplitude: torch.Tensor
    rate: torch.Tensor
    offset: torch.Tensor

    @property
    def curve(self):
        return lambda t: self.amplitude * torch.exp(-self.rate * t) + self.offset


@case(vector(0.5, 0.4), torch.cumsum(torch.sin(5 * T), 0), truth=vector(0.8, 0.6))
def kalman_smoother(p, y):
    """Innovations of a filter with an unknown decay and an unknown log ratio of variances."""
    x, variance, found = y.new_zeros(()), y.new_ones(()), []
    for k in range(len(T)):
        x, variance = p[0] * x, p[0] ** 2 * variance + torch.exp(p[1])
        gain = variance / (variance + 1)
        innovation = torch.sin(3 * T[k]) + 0.5 * T[k] - x
        x, variance = x + gain * innovation, (1 - gain) * variance
        found.append(x)
    return torch.stack(found) - y


@case(vector(0.9, 0.4, 0.5), T, torch.zeros(20, dtype=F64), truth=vector(1.1, 0.5, 0.4))
def predator_prey(p, t, y):
    """Lotka and Volterra by steps of Runge and Kutta."""
    state, found, h = torch.stack([p[2], torch.ones_like(p[0])]), [], 0.1

    def slope(s):
        return torch.stack([p[0] * s[0] - s[0] * s[1], -p[1] * s[1] + s[0] * s[1]])

    for _ in range(len(t)):
        k1 = slope(state)
        k2 = slope(state + h / 2 * k1)
        k3 = slope(state + h / 2 * k2)
        k4 = slope(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        found.append(state[0])
    return torch.stack(found) - y


@case(torch.zeros(6, dtype=F64), T, Y)
def linear_spline(p, t, y):
    """Knots looked up by searchsorted."""
    knots = torch.linspace(0, 2.1, 6, dtype=t.dtype)
    k = torch.searchsorted(knots, t, right=True).clamp(1, 5)
    w = (t - knots[k - 1]) / (knots[k] - knots[k - 1])
    return (1 - w) * p[k - 1] + w * p[k] - y


@case(torch.zeros(8, dtype=F64), T, Y)
def cubic_b_spline(p, t, y):
    """The recursion of de Boor for all bases."""
    knots = torch.linspace(-1.5, 3.6, 12, dtype=t.dtype)
    basis = ((t[:, None] >= knots[:-1]) & (t[:, None] < knots[1:])).to(t.dtype)
    for degree in range(1, 4):
        left = (t[:, None] - knots[: -degree - 1]) / (knots[degree:-1] - knots[: -degree - 1])
        right = (knots[degree + 1 :] - t[:, None]) / (knots[degree + 1 :] - knots[1:-degree])
        basis = left * basis[:, :-1] + right * basis[:, 1:]
    return torch.cat([basis @ p - y, 1e-3 * p])


@case(vector(0.1, -0.3), T, Y)
def gaussian_process_whitened(p, t, y):
    """Data whitened by the Cholesky factor of a kernel, with the mean unknown."""
    kernel = torch.exp(-0.5 * ((t[:, None] - t) / 0.4) ** 2) + 0.1 * torch.eye(len(t), dtype=t.dtype)
    mean = p[0] + p[1] * t
    return torch.linalg.solve_triangular(torch.linalg.cholesky(kernel), (y - mean)[:, None], upper=False)[:, 0]


@case(vector(-0.5, 0.3), T, torch.zeros(20, dtype=F64), truth=vector(-0.9, 0.1))
def gaussian_process_length(p, t, y):
    """A prediction of a Gaussian process as a function of its length scale and amplitude."""
    kernel = torch.exp(p[1] - 0.5 * ((t[:, None] - t) * torch.exp(-p[0])) ** 2)
    factor = torch.linalg.cholesky(kernel + 0.05 * torch.eye(len(t), dtype=t.dtype))
    return (kernel @ torch.cholesky_solve(torch.sin(4 * t)[:, None], factor))[:, 0] - y


@case(vector(0.1, 0.1, -0.1), POINTS, POINTS @ torch.tensor([[0.96, 0.28], [-0.28, 0.96]], dtype=F64) + 0.05)
def icp_by_cdist(p, source, target):
    """Nearest neighbours inside of the residual."""
    c, s = torch.cos(p[0]), torch.sin(p[0])
    moved = source @ torch.stack([torch.stack([c, s]), torch.stack([-s, c])]) + p[1:]
    return moved - target[torch.cdist(moved, target).argmin(1)]


@case(vector(0.1, 0.2, 4.0), POINTS, 0.3 * POINTS)
def camera_with_where(p, points, pixels):
    """Points behind the camera have a residual of zero, by the double where."""
    z = points[:, 0] + p[2]
    valid = z > 0.1
    safe = torch.where(valid, z, 1.0)
    seen = (points + p[:2]) / safe[:, None]
    return torch.where(valid[:, None], seen - pixels, 0.0)


@case(P3, T, Y)
def jacobian_inside(p, t, y):
    """The slope of a model by torch.func inside of the residual."""

    def model(t):
        return p[0] * torch.exp(p[1] * t) + p[2]

    return torch.cat([model(t) - y, 0.01 * torch.func.vmap(torch.func.grad(model))(t)])


@case(P3, T, Y)
def pinn_of_a_network(p, t, y):
    """A derivative by jvp inside."""
    value, slope, *_ = torch.func.jvp(lambda t: p[0] * torch.tanh(p[1] * t) + p[2], (t,), (torch.ones_like(t),))
    return torch.cat([value - y, 0.1 * (slope + value)])


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, dtype=F64)
        for statistics, by in ((self.norm.running_mean, 0.3), (self.norm.running_var, 1.0)):
            assert statistics is not None
            statistics.add_(by)
        self.eval().requires_grad_(False)

    def forward(self, p, t, y):
        return self.norm(torch.stack([p[0] * t, p[1] * t**2, t], 1)).sum(1) - y


@case(P2, T, Y)
def batch_norm_in_eval(p, t, y, net=Normed()):  # noqa: B008
    return net(p, t, y)


@case(torch.zeros(20, dtype=F64), Y)
def sparse_differences(p, y):
    """A sparse matrix of differences: smoothing by Whittaker."""
    i = torch.arange(19)
    index = torch.cat([torch.stack([i, i]), torch.stack([i, i + 1])], 1)
    numbers = torch.cat([-torch.ones(19, dtype=y.dtype), torch.ones(19, dtype=y.dtype)])
    D = torch.sparse_coo_tensor(index, numbers, (19, 20))
    return torch.cat([p - y, 3 * torch.sparse.mm(D, p[:, None])[:, 0]])


@case(vector(0.6, 1.4), T, torch.zeros(11, dtype=F64), truth=vector(0.9, 1.2))
def power_spectrum(p, t, y):
    return torch.fft.rfft(p[0] * torch.sin(6 * p[1] * t)).abs() - y


@case(vector(0.3, 0.1), Y)
def shift_by_fft(p, y):
    """A sub-sample shift by phases, and a gain."""
    phases = -2j * torch.pi * torch.fft.rfftfreq(20) * p[0]
    shifted = torch.fft.irfft(torch.fft.rfft(torch.sin(5 * T)) * torch.exp(phases), n=20)
    return shifted * (1 + p[1]) - 0.7 * torch.sin(5 * T - 0.1) - 0.01 * y


@case(P3, T, Y)
def trimmed_by_sort(p, t, y):
    r = p[0] * torch.exp(p[1] * t) + p[2] - y
    return r[r.abs().argsort()][:15]


@case(P2, T, Y)
def best_by_topk(p, t, y):
    r = p[0] + p[1] * t - y
    return torch.topk(-r.abs(), 12).values


@case(P2, T, Y)
def above_kthvalue(p, t, y):
    """Scaled by the tenth of the data."""
    scale = torch.kthvalue((y - y.mean()).abs(), 10).values
    return (p[0] * t + p[1] - y) / scale


@case(vector(2.0, 0.3, 1.0), vector(1.0, 2.5))
def eigenvalues_of_a_matrix(p, y):
    A = torch.stack([torch.stack([p[0], p[1]]), torch.stack([p[1], p[2]])])
    return torch.cat([torch.linalg.eigvalsh(A) - y, 0.1 * p])


@case(vector(0.5, 0.2), torch.zeros(3, dtype=F64), truth=vector(0.7, 0.4))
def singular_values(p, y):
    A = torch.arange(12, dtype=F64).reshape(4, 3).sin()
    return torch.linalg.svdvals(A * p[0] + p[1] * torch.eye(4, 3, dtype=F64)) - y


@case(vector(0.6), T, torch.zeros(20, dtype=F64), truth=vector(1.2))
def variable_projection_by_lstsq(p, t, y):
    """Amplitudes eliminated by a least-squares solve inside."""
    A = torch.stack([torch.exp(-p[0] * t), torch.ones_like(t)], 1)
    data = Y + y
    return A @ torch.linalg.lstsq(A, data[:, None]).solution[:, 0] - data + 1e-3 * p


@case(torch.full((20,), 0.1, dtype=F64), torch.cumsum(Y, 0))
def cumulative_sum(p, y):
    return torch.cumsum(p, 0) - y


@case(torch.full((6,), 0.9, dtype=F64), vector(0.9, 0.8, 0.6, 0.5, 0.3, 0.2))
def survival_by_cumprod(p, y):
    return torch.cumprod(torch.sigmoid(p), 0) - y


@case(vector(0.05, -0.1), POINTS[:20])
def image_by_grid_sample(p, points):
    image = torch.sin(torch.arange(64, dtype=F64).reshape(1, 1, 8, 8) / 5)
    grid = (0.5 * points + p).reshape(1, 20, 1, 2)
    seen = nn.functional.grid_sample(image, grid, mode="bicubic", padding_mode="border", align_corners=True)
    there = nn.functional.grid_sample(
        image, (0.5 * points + 0.02).reshape(1, 20, 1, 2), mode="bicubic", padding_mode="border", align_corners=True
    )
    return (seen - there).reshape(-1) + 1e-3 * points[:, 0]


@case(torch.full((5,), 0.2, dtype=F64), T, Y)
def blind_kernel(p, t, y):
    """A kernel of a convolution, with padding by reflection."""
    signal = nn.functional.pad(torch.sin(3 * t)[None, None], (2, 2), mode="reflect")
    return nn.functional.conv1d(signal, p.flip(0)[None, None])[0, 0] - y


@case(torch.ones(3, 3, dtype=F64), POINTS)
def einsum_of_moments(p, points):
    x = torch.cat([points, torch.ones(24, 1, dtype=points.dtype)], 1)
    return torch.cat([torch.einsum("ni,ij,nj->n", x, p, x) - points[:, 0], 0.1 * p.reshape(-1)])


@case(vector(1.5, 0.8, 0.1), T, Y)
def in_a_dataclass(p, t, y):
    return Model(*p.unbind()).curve(t) - y


@case(vector(0.5, 0.4), T, Y)
def in_a_namedtuple(p, t, y):
    s = Settings(*p)
    return torch.exp(-s.rate * t) * 2 + s.offset - y


@functools.cache
def design(count):
    return torch.linspace(0.1, 2, count, dtype=F64)[:, None] ** torch.arange(3, dtype=F64)


@case(P3, Y)
def cached_design(p, y):
    return design(len(y)) @ p - y


class Cached:
    def __init__(self, t: torch.Tensor):
        self.t = t

    @functools.cached_property
    def basis(self):
        return torch.stack([torch.ones_like(self.t), self.t, torch.sin(3 * self.t)], 1)

    def __call__(self, p, y):
        return self.basis @ p - y


CACHED = Cached(T)


@case(P3, Y)
def cached_property_of_an_object(p, y):
    return CACHED(p, y)


@case(P2, T, Y)
def counts_its_calls(p, t, y):
    CALLS["count"] += 1
    return p[0] + p[1] * t - y


RESIDUALS = [lambda p, t, k=k: p[k] * t**k for k in range(3)]


@case(P3, T, Y)
def closures_over_a_loop(p, t, y):
    return sum(part(p, t) for part in RESIDUALS) - y


@case(P2, T, Y)
def numpy_of_the_data(p, t, y):
    weights = 1 / (1 + np.asarray(t) ** 2)
    return torch.as_tensor(np.sqrt(weights)) * (p[0] + p[1] * t - y)


@case(P2, T, Y)
def numpy_of_the_unknowns(p, t, y):
    """NumPy in the middle: has no derivative."""
    return torch.from_numpy(np.exp(-p.detach().numpy()[0] * t.numpy())) + p[1] - y


@case(P3, T, Y)
def slices_in_place(p, t, y):
    r = torch.zeros(22, dtype=t.dtype)
    r[:20] = p[0] * torch.exp(p[1] * t)
    r[:20] += p[2] - y
    r[20:] = 0.01 * p[:2]
    r[::5] *= 2
    return r


@case(vector(0.5, 0.5, 0.1), T, Y)
def smooth_step_by_clamp(p, t, y):
    u = ((t - p[0]) / p[1].abs().clamp(min=0.05)).clamp(0, 1)
    return 2 - 1.5 * (u * u * (3 - 2 * u)) + p[2] - y


@case(vector(0.3, 0.3), torch.zeros(20, dtype=F64), truth=vector(0.5, 0.2))
def fixed_point_iteration(p, y):
    """Kepler's equation by forty iterations."""
    e, m = torch.sigmoid(p[0]) * 0.8, T + p[1]
    E = m
    for _ in range(40):
        E = m + e * torch.sin(E)
    return E - y


@case(torch.full((4,), 0.5, dtype=F64), POINTS)
def circle_by_unpacking(p, points):
    (a, b), radius, tilt = p[:2], p[2], p[3]
    dx, dy = (points - torch.stack([a, b])).unbind(1)
    return torch.cat([torch.hypot(dx, (1 + 0.1 * tilt) * dy) - radius, 0.1 * p])
