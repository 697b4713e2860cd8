"""The three systems have one solution, that of the definition."""

import pytest
import torch
from torch import nn

import mslsq
from mslsq.optim.linearization import SystemOptions, chosen_system

D = torch.float64


def stepped(regression, **options):
    """(n,) How one step moves the parameters."""
    before = regression.vector()
    optimizer = mslsq.optim.LevenbergMarquardt(
        regression.model.parameters(), damping=1e-2, cg_tolerance=1e-13, cg_max_iterations=2000, **options
    )
    optimizer.step(regression.residual)
    assert optimizer.report.status == mslsq.optim.StepStatus.ACCEPTED
    return regression.vector() - before, optimizer


@pytest.mark.parametrize("samples", [12, 60], ids=["fewer residuals", "fewer parameters"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.3},
        {"loss": mslsq.Huber(0.3)},
        {"loss": mslsq.Cauchy(0.5), "weight_decay": 0.01, "lr": 0.5},
    ],
    ids=["plain", "decay", "Huber", "Cauchy, decay, lr"],
)
def test_the_three_systems_take_the_same_step(made, samples, options):
    steps = {system: stepped(made(samples=samples), system=system, **options) for system in ("normal", "dual", "cg")}
    reference = steps["normal"][0]
    assert reference.norm() > 1e-2
    for system, (step, optimizer) in steps.items():
        assert optimizer.report.system == system
        assert torch.allclose(step, reference, rtol=0, atol=1e-8 * float(reference.norm()))


@pytest.mark.parametrize("system", ["normal", "dual", "cg"])
def test_the_step_is_that_of_the_definition(made, system):
    """(JᵀJ + μD + λ) p = −(Jᵀr + λθ) with J by plain reverse mode, an inverse, and μ relative to the unit kept."""
    regression = made()
    start, r = regression.vector(), regression.residual().reshape(-1)
    rows = [torch.cat([g.reshape(-1) for g in gradients]) for gradients in each_row(r, regression.model)]
    J, r = torch.stack(rows), r.detach()
    step, optimizer = stepped(regression, system=system, weight_decay=0.2, relative_damping=3.0)
    (state,) = optimizer.state.values()
    mu = 3.0 * state["unit"] * optimizer.report.damping
    eye = torch.eye(len(start), dtype=D)
    expected = -torch.linalg.inv(J.T @ J + (mu + 0.2) * eye) @ (J.T @ r + 0.2 * start)
    assert torch.allclose(step, expected, atol=1e-8)
    assert optimizer.report.loss == pytest.approx(0.5 * float(r @ r) + 0.1 * float(start @ start), rel=1e-12)
    assert 0.2 < state["unit"] / float(J.square().sum() / len(start)) < 3  # an estimate


def each_row(r, model):
    for entry in r:
        yield torch.autograd.grad(entry, list(model.parameters()), retain_graph=True)


@pytest.mark.parametrize(
    ("rows", "columns", "memory", "expected"),
    [
        (1000, 100, 2**29, "normal"),
        (100, 1000, 2**29, "dual"),
        (10**6, 5000, 2**29, "normal"),
        (10**6, 6000, 2**29, "cg"),
        (10**4, 10**6, 2**29, "cg"),
        (50, 10**6, 2**29, "dual"),
    ],
)
def test_auto_takes_the_smaller_dense_system_if_it_fits(rows, columns, memory, expected):
    assert chosen_system(rows, columns, 8, SystemOptions("auto", memory, 1e-3, 10)) == expected


def test_a_robust_step_has_the_gradient_of_the_robust_loss(made):
    """Damped enough that the step is −gradient / (μ unit)."""
    regression = made()
    loss = mslsq.Cauchy(0.2)
    parameters = list(regression.model.parameters())
    value = 0.5 * loss(regression.residual().square()).sum()
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, parameters)])
    before = regression.vector()
    optimizer = mslsq.optim.LevenbergMarquardt(parameters, damping=1e8, loss=loss)
    assert float(optimizer.step(regression.residual)) == pytest.approx(value.item(), rel=1e-12)
    step = regression.vector() - before
    (state,) = optimizer.state.values()
    assert torch.allclose(step * state["unit"] * 1e8, -gradient, rtol=1e-5, atol=1e-7 * float(gradient.abs().max()))


def test_complex_residuals_count_as_two_real_ones():
    def fitted(as_pairs, loss=None):
        amplitude = nn.Parameter(torch.tensor([0.5, 0.1], dtype=D))
        t = torch.linspace(0, 1, 20, dtype=D)
        y = torch.polar(1 + t, 2 * t)

        def residual():
            z = (amplitude[0] + t) * torch.exp(1j * (amplitude[1] + t)) - y
            return torch.view_as_real(z) if as_pairs else z

        optimizer = mslsq.optim.LevenbergMarquardt([amplitude], loss=loss)
        losses = [float(optimizer.step(residual)) for _ in range(3)]
        return losses, amplitude.detach()

    (pairs, there), (whole, here) = fitted(True), fitted(False)
    assert pairs == pytest.approx(whole, rel=1e-12) and torch.allclose(there, here, rtol=1e-12)


def test_a_loss_of_complex_residuals_sees_their_modulus():
    z = nn.Parameter(torch.tensor([3.0, 4.0], dtype=D))
    optimizer = mslsq.optim.LevenbergMarquardt([z], loss=mslsq.Huber(1.0))
    value = optimizer.step(lambda: torch.view_as_complex(z[None]))
    assert float(value) == pytest.approx(0.5 * (2 * 5 - 1))  # ½ρ(25)
    direction = z.detach() - torch.tensor([3.0, 4.0], dtype=D)
    assert direction[1] / direction[0] == pytest.approx(4 / 3)  # along the modulus
