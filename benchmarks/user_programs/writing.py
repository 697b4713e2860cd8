"""How people write: in-place work, odd layouts, wrong or missing derivatives, parameters in containers."""

import dataclasses
from typing import NamedTuple

import torch
from torch import nn

from user_programs.compared import F64, P2, P3, T, Y, case, vector


class Pose(NamedTuple):
    angle: torch.Tensor
    shift: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Peak:
    height: torch.Tensor
    centre: torch.Tensor
    width: float = 0.4

    def at(self, t):
        return self.height * torch.exp(-(((t - self.centre) / self.width) ** 2))


@case(vector(0.1, 0.2, 0.3), T, Y)
def named_tuple_of_views(p, t, y):
    pose = Pose(p[0], p[1:])
    moved = torch.stack([t, y]) + pose.shift[:, None]
    return torch.cos(pose.angle) * moved[0] + torch.sin(pose.angle) * moved[1] - 0.5


@case(vector(0.8, 0.3, 0.8, 1.4), T, Y)
def list_of_peaks(p, t, y):
    peaks = [Peak(h, c) for h, c in p.reshape(2, 2)]
    return sum((peak.at(t) for peak in peaks), start=-y)


@case(P2, T, Y)
def replaced_dataclass(p, t, y):
    peak = dataclasses.replace(Peak(p[0], p[1]), width=0.9)
    return peak.at(t) - y


class WrongBackward(torch.autograd.Function):
    """Straight through: the user says that the slope is one."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(10 * x) / 10

    @staticmethod
    def backward(ctx, g):
        return g


@case(P2, T, Y, grad=False, scipy=False)
def straight_through(p, t, y):
    return WrongBackward.apply(p[0] * t + p[1]) - y


class SmallerSlope(torch.autograd.Function):
    """A slope clipped by the user: no derivative of its value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (3 * x**2).clamp(max=1.0) * g


@case(P2, T, Y, grad=False)
def clipped_slope(p, t, y):
    return SmallerSlope.apply(p[0] * t) + p[1] - y


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=F64))
        self.register_buffer("mean", torch.zeros(20, dtype=F64))

    def forward(self, p, t, y):
        self.calls += 1  # pyright: ignore[reportOperatorIssue]
        r = p[0] * torch.exp(-p[1] * t) - y
        self.mean.copy_(r.detach())  # pyright: ignore[reportCallIssue]
        return r


@case(P2, T, Y)
def buffers_written_in_forward(p, t, y, net=Counting()):  # noqa: B008
    return net(p, t, y)


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=F64))

    def forward(self, p, t, y):
        r = p[0] * torch.exp(-p[1] * t) - y
        self.mean = 0.9 * self.mean + 0.1 * r.detach().mean()
        return r - self.mean


@case(P2, T, Y, grad=False)
def running_mean_in_forward(p, t, y, net=Running()):  # noqa: B008
    return net(p, t, y)


@case(P2, T, Y, grad=False, scipy=False)
def no_grad_within(p, t, y):
    r = p[0] * torch.exp(-p[1] * t) - y
    with torch.no_grad():
        w = 1 / (1 + r.abs())
    return w * r


@case(P2, T, Y, grad=False, scipy=False)
def detached_weights_of_irls(p, t, y):
    r = p[0] * torch.exp(-p[1] * t) - y
    return r / r.detach().abs().clamp(min=0.05).sqrt()


@case(P2, T, Y, grad=False, scipy=False)
def data_of_unknowns(p, t, y):
    """`.data` cuts like detach."""
    return p[0] * torch.exp(-p.data[1] * t) - y


@case(P3, T, Y)
def zeros_filled_by_slices(p, t, y):
    out = torch.zeros(2, 20, dtype=t.dtype)
    out[0] = p[0] * torch.exp(p[1] * t) + p[2] - y
    out[1, :3] = 0.1 * p
    out[:, -1] *= 0.5
    return out


@case(P3, T, Y)
def zeros_filled_by_mask(p, t, y):
    out = torch.zeros(20, dtype=t.dtype)
    low = t < 1
    out[low] = (p[0] * t - y)[low]
    out[~low] = (p[1] * t + p[2] - y)[~low]
    return out


@case(P3, T, Y)
def unknowns_put_into_a_matrix(p, t, y):
    A = torch.eye(3, dtype=t.dtype)
    A[0, 1], A[1, 2], A[2, 0] = p
    return torch.linalg.matrix_exp(A * 0.3).flatten() - y[:9]


@case(P3, T, Y)
def unknowns_put_by_index_put(p, t, y):
    A = torch.zeros(4, 4, dtype=t.dtype).index_put((torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])), p)
    return (A + A.T + torch.diag(t[:4]) + 0.5 * A @ A).view(-1) - y[:16]


@case(P3, T, Y)
def triangle_of_unknowns(p, t, y):
    """A covariance by its factor: tril_indices."""
    L = torch.zeros(2, 2, dtype=t.dtype)
    i, j = torch.tril_indices(2, 2)
    L[i, j] = p
    C = L @ L.mT + 0.1 * torch.eye(2, dtype=t.dtype)
    x = torch.stack([t, y], 1)
    return torch.cat([torch.einsum("ni,ij,nj->n", x, C, x) - 1, torch.logdet(C).view(1)])


@case(P2.expand(3, 2), T, Y)
def unknowns_expanded(p, t, y):
    """One memory for three rows of unknowns."""
    return p[:, :1] * torch.exp(-p[:, 1:] * t) - y * torch.arange(1, 4)[:, None]


@case(torch.tensor([[1.0, 0.5], [0.3, 0.2]], dtype=F64).T, T, Y)
def unknowns_transposed(p, t, y):
    return p[0, 0] * torch.exp(-p[0, 1] * t) + 0.1 * p[1, 0] * t - 0.05 * p[1, 1] * t**2 - y


@case(torch.linspace(0.2, 1, 6, dtype=F64)[::3], T[::2], Y[::2])
def unknowns_strided(p, t, y):
    return p[0] * torch.exp(-p[1] * t) - y


@case(vector(0.7), vector(1.3))
def one_number(p, y):
    return p**2 - y


@case(torch.tensor(0.7, dtype=F64), torch.tensor(1.3, dtype=F64))
def one_number_without_axis(p, y):
    return torch.exp(p) - y


@case(P2, T[:0], Y)
def zero_sized_part(p, t, y):
    return torch.cat([p[0] * torch.exp(-p[1] * t), p[0] + p[1] * T - y])


@case(P2, torch.arange(20), (10 * Y).int())
def integers_all_over(p, n, counts):
    return p[0] * 10 * torch.exp(-p[1] * n * 0.1) - counts


@case(P2, T > 0.7, Y)
def booleans_as_numbers(p, on, y):
    return p[0] * on + p[1] * ~on - y


@case(P2, T.float(), Y)
def floats_mixed(p, t, y):
    return p[0] * torch.exp(-p[1] * t) - y


@case(P3, T, Y)
def product_along_terms(p, t, y):
    return torch.stack([1 + p[0] * t, 2 - p[1] * t, torch.exp(p[2] * t)]).prod(0) - y


@case(P3, T, Y)
def minimum_of_models(p, t, y):
    return torch.minimum(p[0] + p[1] * t, torch.maximum(p[2] * t, t * 0.1)) - y


@case(P3, T, Y)
def median_removed(p, t, y):
    r = p[0] * torch.exp(p[1] * t) - y + p[2] * t
    return r - r.median()


@case(P2, T, Y)
def stacked_recursion(p, t, y):
    def power(x, k):
        return torch.ones_like(x) if k == 0 else x * power(x, k - 1)

    return p[0] * power(torch.cos(p[1] * t), 5) - y


@case(P2, T, Y)
def sign_and_abs(p, t, y):
    x = p[0] - p[1] * t
    return torch.sign(x) * x.abs().pow(1.5) - y


@case(P2, T, Y)
def softplus_and_threshold(p, t, y):
    return (
        torch.nn.functional.softplus(p[0] * t, beta=3, threshold=2)
        + torch.nn.functional.threshold(p[1] * t, 0.3, 0.0)
        - y
    )


@case(P2, T, Y)
def leaky_pieces(p, t, y):
    return torch.nn.functional.leaky_relu(t - p[0], 0.2) + torch.nn.functional.elu(p[1] * t - 1) - y


@case(P2, T, Y)
def hardtanh_saturates(p, t, y):
    return torch.nn.functional.hardtanh(p[0] * t) + p[1] - y


@case(P3, T, Y)
def roll_and_flip(p, t, y):
    m = p[0] * torch.exp(p[1] * t)
    return m - 0.1 * torch.roll(m, 3) + p[2] * m.flip(0) - y


@case(P3, T, Y)
def pairs_by_triu(p, t, y):
    m = p[0] * torch.exp(p[1] * t[:6]) + p[2] * t[:6] ** 2
    i, j = torch.triu_indices(6, 6, 1)
    return (m[i] - m[j]) - (y[i] - y[j])


@case(P3, T, Y)
def unfolded_windows(p, t, y):
    return (p[0] * torch.exp(p[1] * t) + p[2] - y).unfold(0, 5, 2).mean(-1)


@case(P3, T, Y)
def pooled(p, t, y):
    r = p[0] * torch.exp(p[1] * t) + p[2] - y
    return torch.nn.functional.avg_pool1d(r[None, None], 2)[0, 0]


@case(P3, T, Y)
def repeated_by_interleave(p, t, y):
    return p.repeat_interleave(torch.tensor([8, 7, 5])) * t - y


@case(P3, T, Y)
def take_along(p, t, y):
    order = torch.argsort(y, descending=True)
    m = p[0] * torch.exp(p[1] * t) + p[2]
    return torch.take_along_dim(m, order, 0) - y.sort(descending=True).values


@case(P3, T, Y)
def masked_scatter_of_terms(p, t, y):
    m = torch.zeros_like(t).masked_scatter(t > 1, p[0] * t[t > 1])
    return m + p[1] * t + p[2] - y


@case(P3, T, Y)
def complex_gain(p, t, y):
    z = torch.polar(p[0].abs(), p[1]) * torch.exp(2j * t)
    return torch.view_as_real(z - torch.complex(y, p[2] * y)).flatten()


@case(P3, T, Y)
def norm_of_complex(p, t, y):
    z = torch.complex(p[0] * t, p[1] + 0 * t)
    return torch.stack([z.abs() - y, 0.3 * torch.angle(z + p[2])])


@case(P3, T, Y)
def norm_at_zero(p, t, y):
    """The norm of what is zero at the start."""
    v = torch.stack([p[0] - P3[0] + 0 * t, (p[1] - P3[1]) * t])
    return torch.linalg.vector_norm(v, dim=0) - 0.1 * y + p[2]


@case(torch.zeros(2, dtype=F64), T, Y)
def square_root_at_zero(p, t, y):
    return torch.sqrt(p[0] ** 2 + p[1] ** 2) * t - y


@case(torch.zeros(2, dtype=F64), T, Y)
def power_at_zero(p, t, y):
    return p[0].abs() ** 1.5 * t + p[1] - y


@case(P2, T, Y)
def number_by_item(p, t, y):
    return p[0] * torch.exp(-p[1].item() * t) - y


@case(P2, T, Y)
def tensor_made_of_unknowns(p, t, y):
    return torch.tensor([float(p[0])], dtype=F64) * torch.exp(-p[1] * t) - y


@case(P2, T, Y, grad=False)
def assert_within(p, t, y):
    assert torch.isfinite(p).all()
    if (p[1] * t).max() > 50:
        raise ValueError("rate too large")
    return p[0] * torch.exp(-p[1] * t) - y


@case(P2, T, Y)
def penalty_by_python_if(p, t, y):
    r = p[0] * torch.exp(-p[1] * t) - y
    if p[1] < 0.9:
        return torch.cat([r, (10 * (0.9 - p[1])).view(1)])
    return torch.cat([r, torch.zeros(1, dtype=r.dtype)])


@case(P2, T, Y)
def shared_memory_with_start(p, t, y):
    """Writes into its own copy, not into the start."""
    q = p.clone()
    q[1] = q[1] ** 2
    q += 0.1
    return q[0] * torch.exp(-q[1] * t) - y


@case(P2, T, Y)
def sum_by_python(p, t, y):
    return torch.stack([sum(p[i] * s ** (i + 1) for i in range(2)) - z for s, z in zip(t, y, strict=True)])


@case(P2, T, Y)
def map_of_lambdas(p, t, y):
    terms = list(map(lambda k: p[k % 2] * torch.sin((k + 1) * t), range(4)))  # noqa: C417
    return torch.stack(terms).sum(0) - y
