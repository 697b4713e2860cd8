"""Models with time in them: chains, kinetics, filters, splines, integrators of their own."""

import torch
import torch.nn.functional as F
from torch import nn

from user_programs.compared import F64, P2, P3, T, Y, case, vector

KNOTS = torch.linspace(0, 2.1, 7, dtype=F64)
NODES, WEIGHTS = (
    torch.tensor([-0.7745966692414834, 0.0, 0.7745966692414834], dtype=F64),
    torch.tensor([5, 8, 5], dtype=F64) / 9,
)


@case(torch.zeros(40, dtype=F64), T, Y)
def smoother_of_a_chain(p, t, y):
    """Position and speed per time, a process noise and measurements."""
    x, v = p.view(20, 2).unbind(-1)
    dt = t.diff()
    return torch.cat([(x - y) / 0.1, (x[1:] - x[:-1] - dt * v[:-1]) / 0.01, v.diff() / 0.3])


@case(torch.zeros(20, dtype=F64), Y)
def random_walk_with_gaps(p, y):
    """Smoothing where every fourth measurement is missing."""
    seen = torch.arange(20) % 4 != 3
    return torch.cat([(p - y)[seen], 5 * torch.diff(p, n=2)])


@case(vector(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1), T, Y)
def spline_by_searchsorted(p, t, y):
    k = torch.searchsorted(KNOTS, t, right=True).clamp(1, 6) - 1
    u = (t - KNOTS[k]) / (KNOTS[k + 1] - KNOTS[k])
    return torch.cat([p.gather(0, k) * (1 - u) + p.gather(0, k + 1) * u - y, 0.1 * p.diff().diff()])


@case(vector(0.6, 1.2, 1.0, 0.5, 0.4, 0.3), T, Y)
def free_knots_by_bucketize(p, t, y):
    """Where the knots are is unknown, too."""
    knots = torch.cat([p.new_zeros(1), p[:2], p.new_full((1,), 2.1)])
    k = torch.bucketize(t, knots.detach()).clamp(1, 3) - 1
    u = (t - knots[k]) / (knots[k + 1] - knots[k])
    return torch.lerp(p[2:][k], p[2:][k + 1], u) - y


@case(torch.full((5,), 0.3, dtype=F64), T, Y)
def natural_spline_by_solve(p, t, y):
    """Second derivatives by a tridiagonal system inside."""
    h = 0.525
    A = torch.diag(torch.full((3,), 2 * h / 3, dtype=p.dtype))
    A = (
        A
        + torch.diag(torch.full((2,), h / 6, dtype=p.dtype), 1)
        + torch.diag(torch.full((2,), h / 6, dtype=p.dtype), -1)
    )
    m = F.pad(torch.linalg.solve(A, (p[2:] - 2 * p[1:-1] + p[:-2]) / h), (1, 1))
    k = (t / h).long().clamp(max=3)
    a, b = (k + 1) * h - t, t - k * h
    return (
        (m[k] * a**3 + m[k + 1] * b**3) / (6 * h)
        + (p[k] / h - m[k] * h / 6) * a
        + (p[k + 1] / h - m[k + 1] * h / 6) * b
        - y
    )


@case(vector(0.0, -0.5, 0.2), torch.zeros(3, 10, dtype=F64), truth=vector(0.3, -0.2, 0.5))
def kinetics_by_implicit_euler(p, y):
    """Robertson's kind: three species, a linear solve in each Newton step of each time step."""
    k = torch.exp(p)
    c, out = torch.tensor([1.0, 0.0, 0.0], dtype=p.dtype), []
    for _ in range(10):
        new = c
        for _ in range(3):
            f = torch.stack(
                [
                    -k[0] * new[0] + k[1] * new[1] * new[2],
                    k[0] * new[0] - k[1] * new[1] * new[2] - k[2] * new[1] ** 2,
                    k[2] * new[1] ** 2,
                ]
            )
            zero = torch.zeros_like(k[0])
            J = torch.stack(
                [
                    torch.stack([-k[0], k[1] * new[2], k[1] * new[1]]),
                    torch.stack([k[0], -k[1] * new[2] - 2 * k[2] * new[1], -k[1] * new[1]]),
                    torch.stack([zero, 2 * k[2] * new[1], zero]),
                ]
            )
            new = new - torch.linalg.solve(torch.eye(3, dtype=p.dtype) - 0.3 * J, new - c - 0.3 * f)
        c = new
        out.append(c)
    return torch.stack(out, 1) - y


@case(vector(0.5, 0.5), torch.zeros(12, dtype=F64), truth=vector(1.2, 0.3))
def oscillator_by_verlet(p, y):
    x, v, out = torch.ones((), dtype=p.dtype), torch.zeros((), dtype=p.dtype), []
    a = -p[0] * x - p[1] * x**3
    for _ in range(12):
        for _ in range(3):
            v = v + 0.05 * a
            x = x + 0.1 * v
            a = -p[0] * x - p[1] * x**3
            v = v + 0.05 * a
        out.append(x)
    return torch.stack(out) - y


@case(vector(0.3, 1.2), T, torch.zeros(20, dtype=F64), truth=vector(0.5, 0.8))
def events_by_where(p, t, y):
    """A dose at an unknown time: zero before it, with a NaN of the branch that is not taken."""
    since = t - p[0]
    return torch.where(since > 0, torch.sqrt(since) * torch.exp(-p[1] * since), 0.0) - y


@case(vector(0.5, 0.5), T, torch.zeros(20, dtype=F64), truth=vector(1.2, 0.8))
def quadrature_of_gauss(p, t, y):
    at = 0.5 * t[:, None] * (NODES + 1)
    return 0.5 * t * (WEIGHTS * torch.exp(-p[0] * at**2) * torch.cos(p[1] * at)).sum(-1) - y


@case(vector(0.2, 0.1), torch.zeros(15, dtype=F64), truth=vector(0.6, -0.3))
def arma_by_a_loop(p, y):
    noise, last, out = torch.sin(13 * torch.arange(15, dtype=p.dtype)), p.new_zeros(()), []
    for k in range(15):
        last = p[0] * last + noise[k] + (p[1] * noise[k - 1] if k else 0)
        out.append(last)
    return torch.stack(out) - y


@case(vector(0.5, 0.1, 0.1), Y)
def garch_of_variances(p, y):
    v, out = y.var(), []
    for k in range(20):
        out.append(y[k] / v.sqrt())
        v = F.softplus(p[0]) + torch.sigmoid(p[1]) * 0.5 * y[k] ** 2 + torch.sigmoid(p[2]) * 0.5 * v
    return torch.cat([torch.stack(out), 0.1 * p])


@case(vector(0.5, 0.5, 0.5), T, Y)
def laplace_of_a_posterior(p, t, y):
    """Residual, prior and log determinant, a square root of the negative log likelihood."""
    r = p[0] * torch.exp(-p[1] * t) - y
    sigma = F.softplus(p[2]) + 0.05
    nll = 0.5 * (r / sigma) ** 2 + torch.log(sigma) + 5
    return torch.sqrt(2 * nll)


@case(vector(0.1, 0.1, -1.0), T, Y)
def gp_hyperparameters_by_likelihood(p, t, y):
    """-log p(y) has no residual; √(n + its half) has."""
    K = torch.exp(2 * p[0]) * torch.exp(-0.5 * (t[:, None] - t[None]) ** 2 * torch.exp(-2 * p[1]))
    K = K + (torch.exp(2 * p[2]) + 1e-3) * torch.eye(20, dtype=t.dtype)
    L = torch.linalg.cholesky(K)
    alpha = torch.linalg.solve_triangular(L, y[:, None], upper=False)
    nll = 0.5 * alpha.square().sum() + L.diagonal().log().sum()
    return torch.cat([torch.sqrt(nll + 100).view(1), 0.3 * p])


@case(vector(0.2, 0.3), torch.zeros(8, dtype=F64), truth=vector(0.7, 0.4))
def markov_chain_by_matrix_power(p, y):
    a, b = torch.sigmoid(p)
    M = torch.stack([torch.stack([1 - a, a]), torch.stack([b, 1 - b])])
    return torch.stack([torch.linalg.matrix_power(M, k)[0, 1] for k in range(1, 9)]) - y


@case(vector(0.3, 0.2, 0.1), torch.zeros(9, dtype=F64), truth=vector(0.5, 0.9, -0.4))
def forward_algorithm_in_logs(p, y):
    """A hidden Markov model's log likelihoods of prefixes."""
    A = torch.log_softmax(torch.stack([p[:2], p[1:]]), 1)
    emit = torch.log_softmax(torch.stack([p, -p]), 1)
    alpha, out = torch.log(torch.tensor([0.4, 0.6], dtype=p.dtype)), []
    for symbol in (0, 2, 1, 1, 0, 2):
        alpha = torch.logsumexp(alpha[:, None] + A, 0) + emit[:, symbol]
        out.append(torch.logsumexp(alpha, 0))
    return torch.cat([torch.stack(out), 0.05 * p]) - y


@case(vector(0.2, 0.2), torch.zeros(9, dtype=F64), truth=vector(0.8, -0.3))
def diffusion_by_conv1d(p, y):
    u = torch.exp(-(torch.linspace(-2, 2, 9, dtype=p.dtype) ** 2))
    kernel = torch.stack([0.1 * p[0] - 0.1 * p[1], 1 - 0.2 * p[0], 0.1 * p[0] + 0.1 * p[1]]).view(1, 1, 3)
    for _ in range(6):
        u = F.conv1d(F.pad(u.view(1, 1, -1), (1, 1), mode="replicate"), kernel).view(-1)
    return u - y


@case(vector(1.0, 0.1), torch.zeros(4, 4, dtype=F64), truth=vector(1.6, 0.4))
def poisson_by_sparse_stencil(p, y):
    """A field by a dense solve of a stencil of unknown conductivity, kept as (4, 4)."""
    n = 16
    i = torch.arange(n)
    A = torch.zeros(n, n, dtype=p.dtype)
    A[i, i] = 4 * p[0] + 0.5
    right = i[i % 4 != 3]
    A[right, right + 1] = -p[0]
    A[right + 1, right] = -p[0]
    down = i[i < 12]
    A[down, down + 4] = -p[0] - p[1]
    A[down + 4, down] = -p[0] - p[1]
    return torch.linalg.solve(A, torch.ones(n, dtype=p.dtype)).view(4, 4) - y


@case(vector(0.2, 0.1, 0.3), torch.zeros(5, dtype=F64), truth=vector(0.6, -0.1, 0.4))
def modes_of_a_structure(p, y):
    """Natural frequencies of five masses: eigenvalues of the stiffness."""
    k = 1 + torch.cat([p, p[:2].flip(0), p[:1]]).exp()
    S = torch.diag(k[:-1] + k[1:]) - torch.diag(k[1:-1], 1) - torch.diag(k[1:-1], -1)
    return torch.linalg.eigvalsh(S).sqrt() - y


@case(
    vector(0.5, 0.2), torch.arange(12.0, dtype=F64).view(6, 2) / 10, torch.zeros(6, dtype=F64), truth=vector(0.9, -0.4)
)
def graph_by_scatter_add(p, x, y):
    """Messages over edges, summed at the nodes."""
    a, b = torch.tensor([0, 1, 2, 3, 4, 5, 0]), torch.tensor([1, 2, 3, 4, 5, 0, 3])
    h = x @ p
    for _ in range(2):
        h = torch.tanh(h + 0.3 * torch.zeros_like(h).scatter_add(0, b, h[a] * p[0]))
    return h - y


@case(torch.full((4,), 0.2, dtype=F64), torch.arange(20) % 4, Y)
def group_means_by_index_add(p, group, y):
    counts = torch.bincount(group, minlength=4)
    r = p[group] - y
    return torch.zeros(4, dtype=y.dtype).index_add(0, group, r) / counts


@case(torch.full((4,), 0.2, dtype=F64), torch.arange(20) % 4, Y)
def group_effects_by_one_hot(p, group, y):
    return torch.cat([F.one_hot(group, 4).to(y.dtype) @ p - y, p.sum().view(1)])


@case(vector(1.5, 0.5), T, Y)
def histogram_of_a_density(p, t, y):
    d = torch.distributions.Normal(p[0], p[1].abs() + 0.1)
    return d.cdf(t[1:]) - d.cdf(t[:-1]) - 0.1 * y[1:]


@case(vector(0.5, 0.5, 0.1), T, torch.zeros(20, dtype=F64), truth=vector(0.9, 0.7, 0.3))
def mixture_by_logsumexp(p, t, y):
    w = torch.sigmoid(p[2])
    a = torch.log(w) - 0.5 * ((t - p[0]) / 0.3) ** 2
    b = torch.log1p(-w) - 0.5 * ((t - p[1] - 0.8) / 0.4) ** 2
    return torch.logaddexp(a, b) - y


@case(vector(0.1, 0.1), torch.zeros(20, dtype=F64), truth=vector(0.4, 0.9))
def fold_of_a_period(p, y):
    """A phase by remainder and atan2."""
    phase = torch.remainder(T * (2 + p[0]) + p[1], 2 * torch.pi)
    return torch.sin(phase) + 0.3 * torch.atan2(torch.sin(phase), 2 + torch.cos(phase)) - y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(2, 4, dtype=F64), nn.Linear(4, 1, dtype=F64)
        self.requires_grad_(False)

    def forward(self, x):
        return self.b(F.silu(self.a(x)))


@case(vector(0.3, -0.1), T, torch.zeros(20, dtype=F64), truth=vector(0.8, 0.4))
def inverse_of_a_network(p, t, y, net=Net()):  # noqa: B008
    return net(torch.stack([p[0] * t, p[1] + t.flip(0)], 1)).squeeze(1) - y


@case(vector(0.3, -0.1, 0.2), T, Y)
def prior_by_distributions(p, t, y):
    d = torch.distributions.MultivariateNormal(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64) * 4)
    return torch.cat([p[0] * torch.exp(p[1] * t) + p[2] - y, torch.sqrt(-2 * d.log_prob(p) + 20).view(1)])


@case(P3, T, Y)
def chebyshev_by_recurrence(p, t, y):
    x, terms = t - 1, [torch.ones_like(t), t - 1]
    for _ in range(2):
        terms.append(2 * x * terms[-1] - terms[-2])
    return torch.tensordot(torch.stack(terms[:3]), p, dims=([0], [0])) - y  # pyright: ignore[reportArgumentType]


@case(P2, T, Y)
def weights_of_many_orders(p, t, y):
    w = torch.logspace(-6, 6, 20, dtype=t.dtype)
    return w * (p[0] * torch.exp(-p[1] * t) - y)


@case(vector(1e-6, 5e8), T, torch.zeros(20, dtype=F64), truth=vector(2e-6, 3e8))
def units_far_apart(p, t, y):
    """A capacitance and a resistance."""
    return 1 - torch.exp(-t * 100 / (p[0] * p[1])) + 1e5 * p[0] * t - y


@case(vector(9.4, 0.2), torch.zeros(20, dtype=F64), truth=vector(9.9, 0.5))
def arrhenius_in_logs(p, y):
    k = 10 ** (p[0] - 8e3 * (1 + 0.1 * p[1]) / (2.303 * 1.987 * (400 + 20 * torch.arange(20, dtype=p.dtype))))
    return torch.log(k) - y
