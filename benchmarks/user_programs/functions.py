"""Residuals that are plain functions."""

import functools
import itertools
import math

import einops
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

F64 = torch.float64
T = torch.linspace(0, 1, 8, dtype=F64)
Y = 2 * torch.exp(-1.1 * T) + 0.3 + 0.02 * torch.sin(9 * T)
START = torch.tensor([1.0, -1.0, 0.5], dtype=F64)
GRAVITY, DEGREE = 9.81, np.pi / 180
BAND_CENTRES = np.array([0.2, 0.4, 0.8])
COLOURS = {"red": 0.3, "green": 0.6}


def decay(p, t, y):
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def damped_oscillation(p, t, y):
    amplitude, rate, frequency = p
    return amplitude * torch.exp(rate * t) * torch.cos(2 * math.pi * frequency * t) - y


def fall_under_gravity(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """Height of a thrown ball; a global constant."""
    return p[0] + p[1] * t - 0.5 * GRAVITY * t**2 - y


def rotation_by_index_writes(p, points, targets):
    """A matrix that is filled entry by entry, as in NumPy."""
    R = torch.zeros(2, 2, dtype=p.dtype)
    R[0, 0] = torch.cos(p[0])
    R[0, 1] = -torch.sin(p[0])
    R[1, 0] = torch.sin(p[0])
    R[1, 1] = torch.cos(p[0])
    return (points @ R.T + p[1:] - targets).reshape(-1)


def residuals_by_index_writes(p, t, y):
    r = torch.empty(len(t) + 1, dtype=p.dtype)
    r[:-1] = p[0] * t + p[1] - y
    r[-1] = 0.1 * p[2]
    return r


def accumulated_in_place(p, t, y):
    total = torch.zeros_like(t)
    for k in range(len(p)):
        total += p[k] * t**k
    return total - y


def new_tensor_written_in_a_loop(p, t, y):
    basis = t.new_zeros(len(t), 3)
    for k in range(3):
        basis[:, k] = t**k
    return basis @ p - y


def gaussians_over_a_numpy_array(p, t, y):
    centres = torch.as_tensor(BAND_CENTRES)
    weights = torch.exp(-((t[:, None] - centres) ** 2) / 0.02)
    return weights @ p - y


def degrees(p, t, y):
    return torch.sin(p[0] * DEGREE * t) + p[1] * np.sqrt(2.0) + p[2] - y


def numpy_constant_inside(p, t, y):
    shift = np.deg2rad(30.0)
    return p[0] * torch.sin(t + shift) + p[1] * t + p[2] - y


def list_of_terms(p, t, y):
    terms = []
    for k, c in enumerate(COLOURS.values()):
        terms.append(c * p[k] * t - y)
    terms.append(p[2:] - 1)
    return torch.cat(terms)


def dictionary_of_terms(p, t, y):
    out = {}
    out["data"] = p[0] * t + p[1] - y
    out["prior"] = 0.1 * p
    return out


def early_return_by_shape(p, t, y):
    if t.ndim == 0:
        return (p[0] * t - y)[None]
    if len(t) < 3:
        raise ValueError(f"too few points: {len(t)}")
    return torch.stack([p[0] * a + p[1] - b + p[2] for a, b in zip(t, y)])


def checked_by_assertions(p, t, y):
    assert p.shape == (3,), f"three parameters, not {tuple(p.shape)}"
    assert t.shape == y.shape
    return torch.softmax(p, dim=0)[0] * t + p[2] - y


def with_einops(p, t, y):
    design = einops.rearrange([torch.ones_like(t), t, t**2], "k n -> n k")
    return einops.einsum(design, p, "n k, k -> n") - y


def log_likelihood(p, t, y):
    rate = F.softplus(p[0]) * torch.exp(-F.softplus(p[1]) * t) + F.softplus(p[2])
    return torch.sqrt(torch.clamp(rate - y * torch.log(rate + 1e-9) + 5, min=1e-12))


def pairs_of_points(p, t, y):
    r = [p[i] - p[j] - (y[i] - y[j]) for i, j in itertools.combinations(range(3), 2)]
    return torch.stack(r)


def reduced(p, t, y):
    return functools.reduce(lambda total, c: total * t + c, p) - y


def mapped_over_points(p, t, y):
    def one(time, value):
        return p[0] * torch.exp(p[1] * time) + p[2] - value

    return torch.vmap(one)(t, y)


def slope_by_torch_func(p, t, y):
    """The slope of a model as data."""

    def model(time):
        return p[0] * torch.sin(p[1] * time) + p[2] * time

    return torch.func.vmap(torch.func.grad(model))(t) - y


def weights_without_gradient(p, t, y):
    r = p[0] * torch.exp(p[1] * t) + p[2] - y
    with torch.no_grad():
        weight = 1 / (1 + r.abs())
    return weight.sqrt() * r


def weights_detached(p, t, y):
    r = p[0] * torch.exp(p[1] * t) + p[2] - y
    return (1 / (1 + r.detach().abs())).sqrt() * r


def in_float64(p, t, y):
    t = t.to(dtype=torch.float64, device=p.device)
    return p[0] * t.double() + p[1] + p[2] * torch.tensor([1.0], dtype=torch.float64, device=torch.device("cpu")) - y


def masked(p, t, y):
    r = p[0] * t + p[1] + p[2] * t**2 - y
    r[t > 0.9] = 0.0
    return r


def solved_for_linear_part(p, t, y):
    """Variable projection by hand."""
    design = torch.stack([torch.exp(p[1] * t), torch.ones_like(t)], dim=1)
    normal = design.T @ design + 1e-9 * torch.eye(2, dtype=p.dtype)
    linear = torch.cholesky_solve((design.T @ y)[:, None], torch.linalg.cholesky(normal))[:, 0]
    return torch.cat([design @ linear - y, 0.1 * p])


def times_two(f):
    @functools.wraps(f)
    def wrapped(*args, **kwargs):
        return 2 * f(*args, **kwargs)

    return wrapped


def closure_over_data():
    t, y, sigma = T, Y, 0.1

    def residual(p):
        return (p[0] * torch.exp(p[1] * t) + p[2] - y) / sigma

    return residual, START, ()


def closure_over_a_list_of_observations():
    observations = [{"time": float(t), "value": float(y)} for t, y in zip(T, Y)]

    def residual(p):
        return torch.stack([p[0] * math.exp(-o["time"]) + p[1] + p[2] * o["time"] - o["value"] for o in observations])

    return residual, START, ()


def partial_of_a_model():
    def model(p, t, y, *, offset, kind="exp"):
        if kind == "exp":
            return p[0] * torch.exp(p[1] * t) + p[2] + offset - y
        elif kind == "linear":
            return p[0] * t + offset - y
        raise ValueError(f"unknown kind {kind!r}")

    return functools.partial(model, t=T, y=Y, offset=0.1), START, ()


def model_from_a_dictionary_of_functions():
    models = {"linear": lambda p, t: p[0] * t + p[1], "square": lambda p, t: p[2] * t**2}

    def residual(p):
        return sum(f(p, T) for f in models.values()) - Y

    return residual, START, ()


def decorated():
    return times_two(decay), START, (T, Y)


PLAIN = (
    *(decay, damped_oscillation, fall_under_gravity, residuals_by_index_writes, accumulated_in_place),
    *(new_tensor_written_in_a_loop, gaussians_over_a_numpy_array, degrees, numpy_constant_inside, list_of_terms),
    *(dictionary_of_terms, early_return_by_shape, checked_by_assertions, with_einops, log_likelihood, pairs_of_points),
    *(reduced, mapped_over_points, slope_by_torch_func, weights_without_gradient, weights_detached, in_float64),
    *(masked, solved_for_linear_part),
)
MADE = (
    *(closure_over_data, closure_over_a_list_of_observations, partial_of_a_model),
    *(model_from_a_dictionary_of_functions, decorated),
)
WRITTEN = {
    **{f.__name__: (lambda f=f: (f, START, (T, Y))) for f in PLAIN},
    **{f.__name__: f for f in MADE},
    "rotation_by_index_writes": lambda: (
        rotation_by_index_writes,
        START,
        (torch.ones(4, 2, dtype=F64), torch.zeros(4, 2, dtype=F64)),
    ),
}
