"""What a closure may return, and what is said of one that returns something else."""

import numpy as np
import pytest
import torch
from torch import nn

import mslsq
from mslsq.optim import LevenbergMarquardt, PerSample, ResidualError, StepStatus

D = torch.float64


@pytest.fixture
def optimizer(regression):
    return LevenbergMarquardt(regression.model.parameters())


def wrong_ones(r):
    """A closure, and words of the error that it meets."""

    def steps_by_itself():
        loss = r.residual().square().mean()
        loss.backward()
        return loss

    def on_the_residual():
        residual = r.residual()
        torch.autograd.grad(residual.sum(), list(r.model.parameters()))
        return residual

    return {
        "a loss": (lambda: r.residual().square().mean(), "before they are squared and summed"),
        "backward": (steps_by_itself, r"called backward\(\)"),
        "the graph is used up": (on_the_residual, "retain_graph=True"),
        "None": (lambda: None, "'NoneType'"),
        "a number": (lambda: 3.0, "'float'"),
        "a list of numbers": (lambda: [1.0, 2.0], "'float'"),
        "no_grad": (lambda: torch.no_grad()(r.residual)(), "no graph that leads to the parameters"),
        "detached": (lambda: r.residual().detach(), "no graph"),
        "NumPy": (lambda: torch.from_numpy(np.asarray(r.residual().detach())), "no graph"),
        "empty": (lambda: r.model(r.x[:0]) - r.y[:0], r"no residual: shape \(0, 1\).*empty"),
        "other dtype": (lambda: r.residual().float(), "dtype torch.float32, the parameters are torch.float64"),
        "half": (lambda: r.residual().half(), "dtype torch.float16"),
        "integers": (lambda: torch.arange(3), "dtype torch.int64"),
        "NaN": (lambda: r.residual() + torch.where(torch.arange(60) == 7, torch.nan, 0)[:, None], "1 of 60.*entry 7"),
        "another model": (lambda: nn.Linear(2, 1).double()(r.x), "no graph that leads"),
        "infinite derivative": (
            lambda: r.residual() + (r.model[2].bias * 0).sqrt(),
            r"derivative is NaN or infinite in 1 of 4 .* shape \(1,\).*square root",
        ),
        "infinite": (lambda: r.residual() / 0, "60 of 60 residuals are NaN or infinite.*finite: look at the data"),
    }


NAMES = list(wrong_ones(None))  # nothing is called


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_the_error_says_what_is_wrong_and_leaves_parameters_alone(regression, optimizer, name):
    closure, words = wrong_ones(regression)[name]
    before = regression.vector()
    with pytest.raises(ResidualError, match=words):
        optimizer.step(closure)
    assert torch.equal(regression.vector(), before)


def test_parameters_that_are_nan_are_named_as_the_cause(regression, optimizer):
    with torch.no_grad():
        next(regression.model.parameters())[0, 0] = torch.nan
    with pytest.raises(ResidualError, match="A parameter itself is not finite"):
        optimizer.step(regression.residual)


@pytest.mark.parametrize("closure", [None, 3])
def test_a_step_needs_a_closure(optimizer, closure):
    with pytest.raises(TypeError, match=r"optimizer.step\(lambda: model\(x\) - y\)"):
        optimizer.step(closure)


def test_steps_inside_no_grad_are_steps(regression, optimizer):
    with torch.no_grad():
        loss = optimizer.step(regression.residual)
    assert optimizer.report.loss_after < 0.9 * float(loss)


@pytest.mark.parametrize("shape", [(60,), (60, 1), (3, 20), (1, 60, 1)])
def test_any_shape_will_do(made, shape):
    fitted = []
    for reshape in (lambda r: r, lambda r: r.reshape(shape)):
        regression = made()
        optimizer = LevenbergMarquardt(regression.model.parameters())
        optimizer.step(lambda reshape=reshape, regression=regression: reshape(regression.residual()))
        fitted.append(regression.vector())
    assert torch.allclose(*fitted, rtol=1e-9, atol=1e-12)


def test_several_tensors_are_one_residual(made):
    """A ridge by hand, the parameters as residuals, is weight decay."""
    by_hand, built_in = made(), made()
    parameters = list(by_hand.model.parameters())
    first = LevenbergMarquardt(parameters, damping=1e-2)
    second = LevenbergMarquardt(built_in.model.parameters(), damping=1e-2, weight_decay=0.01)
    losses = [
        (
            float(first.step(lambda: [by_hand.residual(), *(0.1 * p for p in parameters)])),
            float(second.step(built_in.residual)),
        )
        for _ in range(60)
    ]
    assert first.report.loss_after < 0.2 * losses[0][0]
    # The first damping is relative to a Jacobian with or without the ridge: other steps, the same minimum.
    assert losses[0][0] == pytest.approx(losses[0][1], rel=1e-12)
    assert losses[-1][0] == pytest.approx(losses[-1][1], rel=1e-6)


def test_gradients_are_neither_read_nor_written(regression, optimizer):
    for number, p in enumerate(regression.model.parameters()):
        if number:
            p.grad = torch.full_like(p, 7.0)
    optimizer.step(regression.residual)
    gradients = [p.grad for p in regression.model.parameters()]
    assert gradients[0] is None and all(bool((g == 7).all()) for g in gradients[1:])
    optimizer.zero_grad()
    assert all(p.grad is None for p in regression.model.parameters())


def test_a_closure_may_take_derivatives_in_its_input():
    """u'' + u = 0, u(0) = 0, u'(0) = 1: autograd.grad inside a plain closure, and torch.func per sample."""
    torch.manual_seed(0)
    x = torch.linspace(0, 2, 20, dtype=D)[:, None]
    start = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    state = {name: value.clone() for name, value in start.state_dict().items()}

    def value(model, x):
        return x + x**2 * model(x)  # has the right start

    def plain():
        z = x.clone().requires_grad_()
        u = value(start, z)
        (du,) = torch.autograd.grad(u.sum(), z, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), z, create_graph=True)
        return ddu + u

    def of_one(model, x):
        u = lambda x: value(model, x).sum()  # noqa: E731
        return torch.func.grad(lambda x: torch.func.grad(u)(x).sum())(x) + u(x)

    fitted = {}
    for name, closure in {"plain": plain, "per sample": PerSample(start, of_one, x)}.items():
        start.load_state_dict(state)
        optimizer = LevenbergMarquardt(start.parameters())
        for _ in range(60):
            optimizer.step(closure)
        fitted[name] = optimizer.report
        assert float((value(start, x).detach() - torch.sin(x)).abs().max()) < 1e-4
    assert fitted["per sample"].jacobian == "samples" and fitted["plain"].jacobian in ("rows", "columns")


def test_a_per_sample_closure_says_what_data_it_needs(regression):
    with pytest.raises(ResidualError, match=r"one entry per sample.*not none"):
        PerSample(regression.model, None)
    with pytest.raises(ResidualError, match=r"not Tensor, float"):
        PerSample(regression.model, None, regression.x, 3.0)
    with pytest.raises(ResidualError, match=r"\(60, 2\), \(59, 1\)"):
        PerSample(regression.model, None, regression.x, regression.y[1:])
    with pytest.raises(ResidualError, match="must be a tensor, not float"):
        LevenbergMarquardt(regression.model.parameters()).step(
            PerSample(regression.model, lambda m, x: 1.0, regression.x)
        )
    other = nn.Linear(2, 1).double()
    with pytest.raises(ResidualError, match=r"none of the optimizer's parameters|no graph"):
        LevenbergMarquardt(regression.model.parameters()).step(PerSample(other, None, regression.x, regression.y))


def test_per_sample_and_plain_closures_take_the_same_steps(made):
    plain, sampled = made(outputs=2), made(outputs=2)
    optimizers = [LevenbergMarquardt(r.model.parameters(), loss=mslsq.Huber(0.2)) for r in (plain, sampled)]
    for _ in range(5):
        optimizers[0].step(plain.residual)
        optimizers[1].step(PerSample(sampled.model, None, sampled.x, sampled.y))
    assert optimizers[1].report.status == StepStatus.ACCEPTED
    assert torch.allclose(plain.vector(), sampled.vector(), rtol=1e-8, atol=1e-10)


def test_a_parameter_may_be_a_residual_itself():
    """What the closure returns is then the memory that a trial writes into."""
    p = nn.Parameter(torch.tensor([3.0, 4.0], dtype=D))
    optimizer = LevenbergMarquardt([p])
    assert float(optimizer.step(lambda: p)) == 12.5
    assert optimizer.report.gain == pytest.approx(1.0) and float(p.detach().norm()) < 0.1
