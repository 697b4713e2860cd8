"""The optimizer reaches the minima that other programs reach, and behaves as PyTorch's own optimizers do."""

import copy
import io
import pickle
import warnings

import pytest
import scipy.optimize
import torch
from torch import nn
from torch.func import functional_call

import mslsq
from mslsq.optim import LevenbergMarquardt, OptimizerError, PerSample, StepStatus

D = torch.float64


def flat_residual(regression):
    """θ ↦ residuals, and θ at the start; nothing of the optimizer."""
    shapes = {name: p.shape for name, p in regression.model.named_parameters()}

    def residual(theta):
        parts = theta.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return (functional_call(regression.model, named, (regression.x,)) - regression.y).reshape(-1)

    return residual, regression.vector()


def trained(regression, steps, **options):
    optimizer = LevenbergMarquardt(regression.model.parameters(), **options)
    for _ in range(steps):
        optimizer.step(regression.residual)
    return optimizer


@pytest.mark.sampled(1)
@pytest.mark.parametrize("system", ["normal", "cg"])
def test_a_fit_ends_at_the_cost_of_scipy(made, system):
    regression = made(samples=80, width=3)
    residual, start = flat_residual(regression)
    peer = scipy.optimize.least_squares(
        lambda theta: residual(torch.from_numpy(theta)).detach().numpy(),
        start.numpy(),
        jac=lambda theta: torch.func.jacrev(residual)(torch.from_numpy(theta)).detach().numpy(),
        method="lm",
        xtol=1e-12,
        ftol=1e-14,
        gtol=1e-14,
    )
    optimizer = trained(regression, 150, system=system, cg_tolerance=1e-8)
    assert peer.cost > 0.01  # a minimum that is no zero
    assert optimizer.report.loss_after == pytest.approx(peer.cost, rel=1e-6)


def test_the_minimum_is_that_of_least_squares(made):
    regression = made(samples=80, width=3)
    residual, start = flat_residual(regression)
    optimizer = trained(regression, 400)
    polished = mslsq.least_squares(residual, regression.vector())
    assert polished.converged
    assert optimizer.report.loss_after == pytest.approx(float(polished.cost), rel=1e-8)
    assert float(flat_residual(regression)[0](start).square().sum()) > 4 * optimizer.report.loss_after


def test_a_linear_model_takes_the_solution_of_lstsq():
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 2).double(), torch.randn(30, 4, dtype=D), torch.randn(30, 2, dtype=D)
    optimizer = LevenbergMarquardt(model.parameters())
    for _ in range(12):
        optimizer.step(lambda: model(x) - y)
    expected = torch.linalg.lstsq(torch.cat([x, torch.ones(30, 1, dtype=D)], 1), y).solution
    assert torch.allclose(model.weight, expected[:4].T, atol=1e-10)
    assert torch.allclose(model.bias, expected[4], atol=1e-10)
    assert optimizer.report.gradient_norm < 1e-8


def test_the_gain_is_the_ratio_of_actual_to_predicted_decrease(regression):
    residual, start = flat_residual(regression)
    optimizer = LevenbergMarquardt(regression.model.parameters(), damping=1.0, lr=0.7)
    optimizer.step(regression.residual)
    step = regression.vector() - start
    J, r = torch.func.jacrev(residual)(start), residual(start)
    actual = 0.5 * (r @ r - residual(start + step) @ residual(start + step))
    predicted = -(r @ (J @ step)) - 0.5 * (J @ step) @ (J @ step)
    assert optimizer.report.gain == pytest.approx(float(actual / predicted), rel=1e-9)


def test_a_step_whose_trials_all_fail_leaves_the_bits(regression):
    """|θ|^¼ of a parameter near zero: every step of the model overshoots."""
    p = nn.Parameter(torch.tensor([1e-7, -0.3, torch.pi], dtype=D))
    before = p.detach().clone()
    optimizer = LevenbergMarquardt([p], damping=1e-12, max_trials=3)
    loss = optimizer.step(lambda: 1 + 1e3 * (p - before).square() - 1e-3 * (p - before))
    assert optimizer.report.status == StepStatus.REJECTED and optimizer.report.trials == 3
    assert torch.equal(p, before)
    assert optimizer.report.loss == optimizer.report.loss_after == float(loss) == 1.5
    assert optimizer.damping == pytest.approx(1e-12 * 2 * 4 * 8)


def test_a_trial_that_is_nan_is_rejected_and_never_kept():
    p = nn.Parameter(torch.tensor([1.0], dtype=D))
    optimizer = LevenbergMarquardt([p], damping=1e-9)
    seen = []

    def residual():
        seen.append(float(p.detach()))
        return p.log() + 3  # the first step leads to a negative p

    for _ in range(30):
        optimizer.step(residual)
        assert bool(p.isfinite().all()) and p.item() > 0
    assert min(seen) < 0
    assert p.item() == pytest.approx(float(torch.tensor(-3.0).exp()), rel=1e-6)


def test_at_the_minimum_nothing_moves(regression):
    p = nn.Parameter(torch.tensor([2.0], dtype=D))
    optimizer = LevenbergMarquardt([p])
    for _ in range(30):
        optimizer.step(lambda: torch.cat([p - 1, p - 2]))
    assert optimizer.report.status == StepStatus.LEVEL and optimizer.report.trials == 0
    assert p.item() == pytest.approx(1.5, abs=1e-8) and optimizer.report.loss == pytest.approx(0.25)


@pytest.mark.parametrize("status", StepStatus)
def test_every_status_is_a_sentence(status):
    assert status.sentence.endswith(".")


def test_float32_reaches_what_its_rounding_allows(made):
    double, single = made(dtype=D), made(dtype=torch.float32)
    losses = [trained(r, 60).report.loss_after for r in (double, single)]
    assert all(p.dtype == torch.float32 for p in single.model.parameters())
    assert losses[1] < 1.5 * losses[0] + 1e-6


def test_mini_batches_converge():
    """Noise-free data: all batches have one minimum, and batches of ever new samples lead there."""
    torch.manual_seed(0)
    truth, model = (nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double() for _ in range(2))
    x = 2 * torch.randn(2000, 2, dtype=D)
    y = truth(x).detach()
    optimizer = LevenbergMarquardt(model.parameters(), min_damping=1e-3)
    start = float((model(x) - y).detach().square().mean())
    for _ in range(200):
        batch = torch.randint(len(x), (64,))
        optimizer.step(lambda batch=batch: model(x[batch]) - y[batch])
    assert float((model(x) - y).detach().square().mean()) < 1e-4 * start


def test_the_least_damping_is_kept(regression):
    optimizer = trained(regression, 20, min_damping=0.5, damping=0.1)
    assert optimizer.damping >= 0.5 and optimizer.report.damping >= 0.5


# As an optimizer of PyTorch


def test_a_resumed_optimizer_goes_on_to_the_bit(made):
    def steps(regression, optimizer, count):
        return [float(optimizer.step(regression.residual)) for _ in range(count)]

    whole = made()
    optimizer = LevenbergMarquardt(whole.model.parameters())
    steps(whole, optimizer, 5)
    file = io.BytesIO()
    torch.save({"model": whole.model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    expected = steps(whole, optimizer, 5)

    again = made(seed=3)._replace(x=whole.x, y=whole.y)
    resumed = LevenbergMarquardt(again.model.parameters())
    file.seek(0)
    saved = torch.load(file)  # weights_only: nothing but tensors and numbers is in it
    again.model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    assert steps(again, resumed, 5) == expected
    assert torch.equal(again.vector(), whole.vector()) and resumed.damping == optimizer.damping


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_copy_of_model_and_optimizer_takes_the_same_steps(regression, way):
    optimizer = LevenbergMarquardt(
        regression.model.parameters(), loss=mslsq.Huber(0.5), max_trials=7, buffers=regression.model.buffers()
    )
    optimizer.step(regression.residual)
    pair = regression.model, optimizer
    model, copied = pickle.loads(pickle.dumps(pair)) if way == "pickle" else copy.deepcopy(pair)
    other = regression._replace(model=model)
    assert copied.max_trials == 7 and copied.report == optimizer.report
    assert float(copied.step(other.residual)) == float(optimizer.step(regression.residual))
    assert torch.equal(other.vector(), regression.vector())


def test_frozen_parameters_stay_and_thaw(regression):
    first, last = regression.model[0], regression.model[2]
    first.requires_grad_(False)
    before = first.weight.clone()
    optimizer = trained(regression, 5)
    assert torch.equal(first.weight, before) and optimizer.report.status == StepStatus.ACCEPTED
    first.requires_grad_(True)
    optimizer.step(regression.residual)
    assert not torch.equal(first.weight, before)
    assert last.weight.requires_grad


def test_parameters_without_influence_stay(regression):
    idle = nn.Parameter(torch.ones(3, dtype=D))
    parameters = [*regression.model.parameters(), idle]
    for options in ({"system": "normal"}, {"system": "dual"}, {"system": "cg"}):
        optimizer = LevenbergMarquardt(parameters, **options)
        optimizer.step(regression.residual)
        assert torch.equal(idle, torch.ones(3, dtype=D)) and optimizer.report.status == StepStatus.ACCEPTED


def test_groups_have_options_of_their_own(made):
    regression = made()
    before = regression.vector()
    first, last = (list(regression.model[i].parameters()) for i in (0, 2))
    optimizer = LevenbergMarquardt([{"params": first, "lr": 0.0}, {"params": last}])
    optimizer.step(regression.residual)
    moved = regression.vector() != before
    count = sum(p.numel() for p in first)
    assert not moved[:count].any() and moved[count:].all()

    slower = made()
    first, last = (list(slower.model[i].parameters()) for i in (0, 2))
    optimizer = LevenbergMarquardt([{"params": first, "lr": 0.1}, {"params": last}], damping=1e-8)
    losses = [float(optimizer.step(slower.residual)) for _ in range(20)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.8 * losses[0]

    held = made()
    first, last = (list(held.model[i].parameters()) for i in (0, 2))
    optimizer = LevenbergMarquardt(first)
    optimizer.add_param_group({"params": last, "relative_damping": 1e8})
    optimizer.step(held.residual)
    step = (held.vector() - before).abs()
    assert step[count:].max() < 1e-4 * step[:count].max()


def test_schedulers_change_the_share_of_the_step(regression):
    optimizer = LevenbergMarquardt(regression.model.parameters(), damping=10.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.step(regression.residual)
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    plateau.step(optimizer.step(regression.residual))


def test_tied_parameters_are_one_parameter(made):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(2, 2, bias=False).double(), nn.Linear(2, 2, bias=False).double()
            self.decode.weight = self.encode.weight

        def forward(self, x):
            return self.decode(torch.tanh(self.encode(x)))

    fitted = []
    for per_sample in (False, True):
        torch.manual_seed(1)
        model, x = Tied(), made().x
        optimizer = LevenbergMarquardt(model.parameters())
        for _ in range(15):
            optimizer.step(PerSample(model, None, x, x) if per_sample else lambda model=model, x=x: model(x) - x)
        fitted.append(model.encode.weight.detach())
        assert optimizer.report.loss_after < 0.9 * float((torch.tanh(x) - x).square().sum())
    assert torch.allclose(*fitted, rtol=1e-8)


WRONG_PARAMETERS = {
    "half": (lambda: [nn.Parameter(torch.ones(2, dtype=torch.float16))], "dtype torch.float16.*float64"),
    "bfloat16": (lambda: [nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], "dtype torch.bfloat16"),
    "complex": (lambda: [nn.Parameter(torch.ones(2, dtype=torch.complex128))], "shape \\(2,\\) is complex"),
}
WRONG_OPTIONS = {
    "damping": (0, "damping must be a positive number, not 0"),
    "min_damping": (-1, "min_damping must be"),
    "weight_decay": (-1, "weight_decay must be"),
    "relative_damping": (0, "relative_damping must be a positive number"),
    "lr": (-0.1, "lr must be"),
    "system": ("noraml", "Did you mean 'normal'"),
    "max_trials": (0, "max_trials must be a positive integer"),
    "cg_tolerance": (2, "cg_tolerance must be"),
    "loss": ("huber", "loss must be a RobustLoss"),
}


@pytest.mark.parametrize("name", WRONG_PARAMETERS)
def test_parameters_of_other_kinds_are_refused(name):
    parameters, words = WRONG_PARAMETERS[name]
    with pytest.raises(OptimizerError, match=words):
        LevenbergMarquardt(parameters())


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_options_out_of_range_are_refused(regression, name):
    value, words = WRONG_OPTIONS[name]
    with pytest.raises(OptimizerError, match=words):
        LevenbergMarquardt(regression.model.parameters(), **{name: value})


def test_a_group_that_is_refused_is_not_added(regression):
    optimizer = LevenbergMarquardt(regression.model.parameters())
    with pytest.raises(OptimizerError):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1, dtype=D))], "weight_decay": -1})
    assert len(optimizer.param_groups) == 1
    optimizer.step(regression.residual)


def test_one_system_has_one_dtype(regression):
    other = nn.Parameter(torch.ones(1))
    optimizer = LevenbergMarquardt([*regression.model.parameters(), other])
    with pytest.raises(OptimizerError, match=r"torch.float64 on cpu, torch.float32 on cpu"):
        optimizer.step(regression.residual)


def test_something_must_require_grad(regression):
    regression.model.requires_grad_(False)
    with pytest.raises(OptimizerError, match="no parameter requires grad"):
        LevenbergMarquardt(regression.model.parameters()).step(regression.residual)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("system", ["normal", "dual", "cg"])
def test_steps_on_an_accelerator_are_those_on_the_cpu(made, system):
    there, here = made(), made()
    there.model.cuda()
    there = there._replace(x=there.x.cuda(), y=there.y.cuda())
    for regression in (there, here):
        trained(regression, 5, system=system, cg_tolerance=1e-10)
    assert torch.allclose(there.vector().cpu(), here.vector(), rtol=1e-6, atol=1e-8)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_dropout_on_an_accelerator_is_repeated():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1)).double().cuda()
    x = torch.randn(80, 2, dtype=D, device="cuda")
    optimizer = LevenbergMarquardt(model.parameters())
    for _ in range(5):
        optimizer.step(lambda: model(x) - torch.sin(x[:, :1]))
        assert optimizer.report.gain > 0.1
