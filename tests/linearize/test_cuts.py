"""An operator that takes a variable for a constant gets a warning; constants that are meant get none."""

import warnings

import pytest
import scipy.special
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import mslsq
from mslsq.errors import CutDerivativeWarning
from mslsq.tracing.replacements.formulas import linspace

F64 = torch.float64
T = torch.linspace(0.1, 2, 12, dtype=F64)
Y = 2 * torch.exp(-1.1 * T) + 0.3
START = torch.tensor([1.2, 0.7], dtype=F64)


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):  # pyright: ignore[reportIncompatibleMethodOverride]
        return 2 * g

    @staticmethod
    def jvp(ctx, t):  # pyright: ignore[reportIncompatibleMethodOverride]
        return 2 * t


def caught(residual, **options):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        mslsq.least_squares(residual, START, (T, Y), solver=mslsq.LevenbergMarquardt(max_steps=2), **options)
    return [str(one.message) for one in seen if one.category is CutDerivativeWarning]


def test_a_conjugate_of_the_unknowns_is_no_cut():
    def residual(p, t, y):
        z = torch.complex(p[0] * t, p[1] * t)
        return torch.view_as_real(z * z.conj() * 1j - y)

    assert caught(residual) == []


@pytest.mark.parametrize(
    ("residual", "operator"),
    [
        (lambda p, t, y: p[0] * torch.special.airy_ai(p[1] * t) - y, "special_airy_ai"),
        (lambda p, t, y: {"r": (p[0] + torch.special.airy_ai(p[1] * t).exp()) - y}, "special_airy_ai"),
        (lambda p, t, y: torch.histc(p[0] * t, 4, 0, 2) + p[1] - y[:4], "histc"),
    ],
)
def test_an_operator_without_a_derivative_is_named(residual, operator):
    (message,) = caught(residual)
    assert operator in message and ".detach()" in message


def weighted(p, t, y):
    r = p[0] * torch.exp(-p[1] * t) - y
    with torch.no_grad():
        weight = torch.histc(r, 4).sum() / (1 + r.abs())
    return weight * r


def logged(p, t, y):
    seen = torch.histc(p[0] * t, 4)  # noqa: F841 - a histogram that does not lead to the residual
    return p[0] * torch.exp(-p[1] * t) - y


def with_indices(p, t, y):
    x = p[0] * torch.exp(-p[1] * t)
    best, place = x.max(0)
    return torch.cat([x - y, best[None], t[x.argsort()][:2] * p[0], (y[place] - p[1])[None]])


NETWORK = torch.nn.Sequential(
    torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)
)
NETWORK = NETWORK.double().eval()


@pytest.mark.parametrize(
    "residual",
    [
        lambda p, t, y: p[0] * torch.exp(-p.detach()[1] * t) - y * p[1],
        lambda p, t, y: p[0] * torch.exp(-p.data[1] * t) - y * p[1],
        lambda p, t, y: p[0] * torch.exp(-p[1] * t) - y + torch.special.airy_ai(p[1] * t).detach(),
        lambda p, t, y: p[0] * torch.special.airy_ai(t) + p[1] - y,
        lambda p, t, y: torch.where(p[1] * t > 1, p[0] * t, p[1]) - y,
        lambda p, t, y: (p[0] * t > 1).double() * p[1] - y + p[0],
        lambda p, t, y: torch.round(p[0] * t) + p[1] * t - y,
        lambda p, t, y: y[(p[0] * 3).long()] * p[1] - y + p[0],
        lambda p, t, y: torch.searchsorted(t, p[0] * t).double() * p[1] - y + p[0],
        lambda p, t, y: torch.zeros_like(p[0] * t) + torch.ones_like(p)[0] + p[0] * t - y * p[1],
        lambda p, t, y: Doubled.apply(p[0] * t) + p[1] - y,
        lambda p, t, y: NETWORK(p[0] * t[:, None])[:, 0] + p[1] - y,
        lambda p, t, y: F.max_pool1d((p[0] * torch.sin(5 * t))[None], 3)[0] + p[1] - y[:4],
        lambda p, t, y: F.layer_norm(p[0] * t * t + p[1], (12,)) - y + p[0],
        lambda p, t, y: checkpoint(lambda p: p[0] * torch.exp(-p[1] * t), p, use_reentrant=False) - y,
        lambda p, t, y: torch.special.bessel_j0(p[1] * t) * p[0] - y,
        lambda p, t, y: torch.func.jvp(lambda s: p[0] * torch.sin(p[1] * s), (t,), (torch.ones_like(t),))[1] - y,
        weighted,
        logged,
        with_indices,
    ],
)
def test_what_is_constant_on_purpose_is_no_reason_to_warn(residual):
    assert not caught(residual)


def test_a_jacobian_that_is_given_needs_no_derivative():
    def jacobian(p, t, y):
        value, slope = (torch.from_numpy(one) for one in scipy.special.airy((0.7 * t).numpy())[:2])
        return torch.stack([value, p[0] * t * slope], -1)

    assert not caught(lambda p, t, y: p[0] * torch.special.airy_ai(p[1] * t) - y, jac=jacobian)


def test_a_grid_between_unknown_ends_has_its_derivative():
    def residual(p, t, y):
        return torch.linspace(p[0], 2 * p[1], 12, dtype=F64) - y - 0.1 * p[0] * p[1]

    solution = mslsq.least_squares(residual, START, (T, Y))
    best = scipy.optimize.least_squares(
        lambda p: residual(torch.from_numpy(p), T, Y).numpy(), START.numpy(), xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    torch.testing.assert_close(solution.value, torch.from_numpy(best.x), rtol=1e-5, atol=1e-6)
    ends = torch.tensor([0.1, 0.7], dtype=F64)
    assert torch.equal(linspace(ends[0], ends[1], 7, dtype=F64)[[0, -1]], ends)
