"""What programs of users look like around the arithmetic: modules, transforms, layouts, odd data, state."""

import dataclasses

import einops
import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

from user_programs.compared import F64, P2, P3, T, Y, case, vector


class Calibrated(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(1, 2, 20, dtype=F64))
        self.gain = nn.Parameter(torch.tensor(1.1, dtype=F64))

    def forward(self, x):
        return self.gain * self.scale * x  # pyright: ignore[reportOperatorIssue]


calibrated = Calibrated()


@case(P2, T, Y)
def module_with_buffer(p, t, y):
    return calibrated(p[0] * torch.exp(-p[1] * t)) - y


norm = nn.BatchNorm1d(2, track_running_stats=False).double()


@case(P2, T, Y, truth=vector(1.0, 0.8))
def batch_norm_of_a_batch(p, t, y):
    return norm(torch.stack([torch.exp(p[0] * t), t**2], 1))[:, 0] * p[1] - y


trained = nn.BatchNorm1d(2).double()


@case(P2, T, Y)
def batch_norm_in_training(p, t, y):
    return trained(torch.stack([torch.exp(p[0] * t), t**2], 1))[:, 0] * p[1] - y


small = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)).double()
SIZES = [(name, x.shape, x.numel()) for name, x in small.named_parameters()]


@case(vector(0.3, -0.5, 0.2, 0.1, 0.7, -0.4, 0.1), T, Y)
def parameters_by_functional_call(p, t, y):
    parts = p.split([count for *_, count in SIZES])
    weights = {name: part.view(shape) for (name, shape, _), part in zip(SIZES, parts, strict=True)}
    return torch.cat([functional_call(small, weights, (t[:, None],))[:, 0] - y, 0.1 * p])


@case(vector(0.3, -0.5, 0.2, 0.1, 0.7, -0.4, 0.1), T, Y)
def parameters_by_vector(p, t, y):
    nn.utils.vector_to_parameters(p, small.parameters())
    return small(t[:, None])[:, 0] - y


@case(P2, torch.linspace(0, 2, 20, dtype=F64), Y)
def nan_in_the_unused_branch(p, t, y):
    return torch.where(t > 0, p[0] * torch.log(t) / t, p[1]) + p[1] * t - y


@case(P2, torch.linspace(0, 2, 20, dtype=F64), Y)
def nan_in_the_unused_branch_of_unknowns(p, t, y):
    x = p[1] * t
    return p[0] * torch.where(x > 0, torch.sin(x) / x, 1.0) - y


@case(P2, T, Y)
def while_on_data(p, t, y):
    total, k = torch.zeros_like(t), 0
    while t[k] < 1:
        total = total + p[0] * torch.exp(-p[1] * t * (k + 1))
        k += 1
    return total / k - y


@case(P2, T, Y)
def while_on_unknowns(p, t, y):
    x = p[0]
    while x.abs() > 0.5:
        x = x / 2
    return x * torch.exp(-p[1] * t) - y


@dataclasses.dataclass
class Decay:
    amplitude: torch.Tensor
    rate: torch.Tensor

    def __call__(self, t):
        return self.amplitude * torch.exp(-self.rate * t)


@case(P2, T, Y)
def dataclass_inside(p, t, y):
    return Decay(*p)(t) - y


LENGTHS = torch.tensor([3, 5, 4])


@case(P2, torch.arange(15.0, dtype=F64).reshape(3, 5) / 10, torch.ones(3, 5, dtype=F64).cumsum(1) / 3)
def ragged_by_mask(p, x, y):
    mask = torch.arange(5) < LENGTHS[:, None]
    return ((p[0] * x + p[1] * x**2 - y) * mask)[mask]


@case(P2, T.half(), Y)
def half_data(p, t, y):
    return p[0] * torch.exp(-p[1] * t) - y


@case(P2, T.clone().requires_grad_(), Y, grad=False)
def data_that_require_grad(p, t, y):
    return p[0] * torch.exp(-p[1] * t) - y


@torch.no_grad()
def decorated(p, t):
    return p[0] * torch.exp(-p[1] * t)


@case(P2, T, Y)
def no_grad_by_decorator(p, t, y):
    return decorated(p, t) - y


@case(P2, T, Y)
def einops_inside(p, t, y):
    pairs = einops.rearrange(p[0] * torch.exp(-p[1] * t), "(a b) -> b a", b=2)
    return einops.reduce(pairs, "b a -> a", "mean") - einops.reduce(y, "(a b) -> a", "mean", b=2)


@case(P2, T, Y)
def vmap_inside(p, t, y):
    return vmap(lambda s, z: p[0] * torch.exp(-p[1] * s) - z)(t, y)


@case(P2, T, Y)
def physics_informed(p, t, y):
    """The residual of u' + u = y of a u that is linear in the unknowns."""

    def u(s):
        return p[0] * torch.sin(s) + p[1] * s**2

    return vmap(grad(u))(t) + u(t) - y


@case(P2, T, Y)
def velocity_by_jvp(p, t, y):
    position, speed = jvp(lambda s: p[0] * torch.sin(p[1] * s), (t,), (torch.ones_like(t),))  # pyright: ignore[reportAssignmentType]
    return torch.stack([position - y, 0.5 * speed - 0.2 * y])


@case(P2, torch.stack([T, T.flip(0)], 1).T, Y.expand(2, 20))
def data_not_contiguous(p, t, y):
    return p[0] * torch.exp(-p[1] * t) - y


IMAGE = torch.sin(torch.arange(72.0, dtype=F64)).reshape(1, 2, 6, 6).to(memory_format=torch.channels_last)
conv = nn.Conv2d(2, 1, 3).double().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


@case(P2, IMAGE)
def channels_last(p, image):
    return conv(p[0] * image + p[1])[0, 0] - 0.3


@case(P2, np.asfortranarray(np.stack([T.numpy(), Y.numpy()], 1)))
def numpy_in_fortran_order(p, table):
    table = torch.as_tensor(table)
    return p[0] * torch.exp(-p[1] * table[:, 0]) - table[:, 1]


SETTINGS = {"power": 1.5}


@case(P2, T, Y)
def global_settings(p, t, y):
    return p[0] * t ** SETTINGS["power"] + p[1] - y


calls = []


@case(P2, T, Y)
def counted_calls(p, t, y):
    calls.append(len(calls))
    return p[0] * torch.exp(-p[1] * t) - y


shown = []


@case(P2, T, Y)
def printed(p, t, y):
    shown.append(str(p)[:5])  # as a debugging line would
    return p[0] * torch.exp(-p[1] * t) - y


@case(P2, T, Y)
def formatted_numbers(p, t, y):
    shown.append(f"{p[0]:.3f}")
    return p[0] * torch.exp(-p[1] * t) - y


@case(P3, T, Y)
def appended_in_place(p, t, y):
    r = torch.empty(len(t), dtype=F64)
    for k in range(len(t)):
        r[k] = p[0] * torch.exp(p[1] * t[k]) + p[2] - y[k]
    return r


@case(P3, T, Y)
def unpacked(p, t, y):
    a, b, c = p
    return a * torch.exp(b * t) + c - y


@case(P2, T, Y)
def python_max(p, t, y):
    return max(p[0], 0.1) * torch.exp(-p[1] * t) - y


@case(P2, torch.arange(20, dtype=torch.int32), (100 * Y).long())
def integer_measurements(p, n, counts):
    return (100 * p[0] * torch.exp(-p[1] * n / 10) - counts) / 100


@case(P2, T, Y)
def generator_of_random_numbers(p, t, y):
    noise = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=F64)
    return p[0] * torch.exp(-p[1] * t) + 0.01 * noise - y


@case(P2, T, Y)
def split_into_a_list(p, t, y):
    return [p[0] * torch.exp(-p[1] * part) - own for part, own in zip(t.chunk(4), y.chunk(4), strict=True)]


@case(P2, T, Y, truth=vector(1.4, 0.5))
def try_and_except(p, t, y):
    try:
        scale = torch.linalg.inv(torch.stack([p, p.flip(0)]))[0, 0]
    except RuntimeError:
        scale = p[0]
    return scale * t + p[1] - y


@case(P2, T, Y)
def double_inside_of_half(p, t, y):
    return (p[0] * torch.exp(-p[1] * t)).to(torch.bfloat16) - y
