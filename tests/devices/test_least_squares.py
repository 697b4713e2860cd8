"""Methods, transforms and reports of fits on another device: the CPU's numbers. (`test_front_doors` has every door.)"""

from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from tests.devices.claimed import REAL, Device, assert_same, here, there
from tests.devices.elsewhere import elsewhere

pytestmark = pytest.mark.fake_cuda
F64 = torch.float64
SOLVERS = {
    "dogleg": mslsq.Dogleg(),
    "gauss_newton": mslsq.GaussNewton(),
}
STEPS = 8
"""Enough for all fits below."""


def decay(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def fits() -> tuple[Tensor, Tensor, Tensor]:
    """A start, points, and four sets of data."""
    t = torch.linspace(0, 1, 16, dtype=F64)
    noise = torch.randn(4, 16, dtype=F64, generator=torch.Generator().manual_seed(0))
    return torch.tensor([1.0, -1.0, 0.0], dtype=F64), t, 2 * torch.exp(-1.5 * t) + 0.3 + 0.01 * noise


def solved(p0: Tensor, t: Tensor, y: Tensor, **options: Any) -> mslsq.Solution:
    return mslsq.least_squares(decay, p0, (t, y), in_dims=(None, None, 0), **options)


@pytest.mark.parametrize("name", SOLVERS)
@elsewhere
def test_a_step_asks_the_device_once(name: str, device: Device):
    """In a plan that is known: the first call compares derivatives too."""
    solver, args = SOLVERS[name], fits()
    first = solved(*there(args), solver=solver)
    device.transfers.clear()
    again = solved(*there(args), solver=solver)
    asked = device.transfers.total()
    assert_same(again.value, solved(*args, solver=solver).value)
    assert asked <= int(here(first.num_steps).max()) + 2, device.transfers


@pytest.mark.parametrize("name", SOLVERS)
@elsewhere
def test_without_an_early_stop_the_device_is_never_asked(name: str, device: Device):
    solver, args = type(SOLVERS[name])(early_stop=False, max_steps=STEPS), fits()
    solved(*there(args), solver=solver)
    device.transfers.clear()
    again = solved(*there(args), solver=solver)
    assert not device.transfers
    assert_same(again.value, solved(*args, solver=solver).value)


@pytest.mark.parametrize("transform", ["vmap", "jacrev", "jacfwd"])
@elsewhere
def test_transforms(transform: str, device: Device):
    start, t, y = fits()

    def mapped(start: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return getattr(torch.func, transform)(lambda y: mslsq.least_squares(decay, start, (t, y)).value)(y)

    y = y if transform == "vmap" else y[0]
    assert_same(mapped(*there((start, t, y))), mapped(start, t, y))


@elsewhere
def test_a_curve_fit_and_its_report(device: Device):
    start, t, y = fits()

    def fitted(start: Tensor, t: Tensor, y: Tensor) -> mslsq.CurveFit:
        return mslsq.curve_fit(lambda p, t: p[0] * torch.exp(p[1] * t) + p[2], t, y, start)

    found, known = fitted(*there((start, t, y[0]))), fitted(start, t, y[0])
    assert_same((found.value, found.covariance), (known.value, known.covariance))
    assert found.report() == known.report()
    profile = {"method": "profile"}
    assert_same(found.confidence_interval(**profile), known.confidence_interval(**profile))


@elsewhere
@pytest.mark.slow
def test_in_place_writes(device: Device):
    def written(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        out = torch.zeros_like(t)
        out[:8] = decay(p, t, y)[:8]
        out[8:] = decay(p, t, y)[8:]
        return out

    args = fits()
    found, known = (
        mslsq.least_squares(written, *first, in_dims=(None, None, 0)).value
        for first in ((there(args[0]), there(args[1:])), (args[0], args[1:]))
    )
    assert_same(found, known)


@elsewhere
def test_a_network_is_trained(device: Device):
    x = torch.randn(20, 3, dtype=F64, generator=torch.Generator().manual_seed(1))

    def trained(weight: Tensor, x: Tensor) -> Tensor:
        weight = torch.nn.Parameter(weight)
        optimizer = mslsq.optim.LevenbergMarquardt([weight])
        for _ in range(3):
            optimizer.step(lambda: torch.tanh(x @ weight) - torch.tanh(x.sum(1)))
        return weight

    start = torch.full((3,), 0.3, dtype=F64)
    assert_same(trained(there(start.clone()), there(x)), trained(start, x))


@pytest.mark.parametrize(("system", "layers"), [("normal", False), ("normal", True), ("dual", True), ("cg", False)])
@elsewhere
def test_a_step_of_training_asks_once_for_each_trial(device: Device, system: str, layers: bool):
    """Rows of layers are compared with the graph, and iterations of conjugate gradients allowed, by the same one."""
    x = torch.randn(20, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
    weights = [torch.full((1, 3), 0.3, dtype=F64), torch.full((1,), 0.1, dtype=F64)]

    def trained(weights: list[Tensor], x: Tensor) -> tuple[list[Any], int]:
        weights = [torch.nn.Parameter(weight) for weight in weights]

        def residual() -> Tensor:
            linear = torch.nn.functional.linear(x, *weights) if layers else x @ weights[0].T + weights[1]
            return torch.tanh(linear)[:, 0] - torch.tanh(x.sum(1))

        optimizer = mslsq.optim.LevenbergMarquardt(weights, system=system, weight_decay=1e-3)
        optimizer.step(residual)  # with what is looked at once
        device.transfers.clear()
        losses = []
        trials = 0
        for _ in range(4):
            losses.append(optimizer.step(residual))
            trials += optimizer.report.trials
        return [*weights, *losses], trials

    found, trials = trained(there([weight.clone() for weight in weights]), there(x))
    asked = device.transfers.total()
    known, trials_known = trained(weights, x)
    assert_same(found, known)
    assert trials == trials_known
    assert REAL is not None or asked <= trials, device.transfers
