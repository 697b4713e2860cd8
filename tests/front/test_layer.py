"""The layer is an `nn.Module` like any other: real parameters, no state, threads, precision, processes, copies."""

import concurrent.futures
import copy
import os
import pickle
import socket

import pytest
import torch
from torch import nn

import mslsq

F64 = torch.float64
TIGHT = mslsq.LevenbergMarquardt(ftol=1e-15, gtol=1e-15, xtol=1e-12)
EDGES = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])


def steps(seed: int = 0, count: int = 5) -> torch.Tensor:
    """Tangents of measured steps between poses; the rings they form do not close."""
    return 0.2 * torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=F64)


class Learned(mslsq.CostFunction):
    """A relative pose, corrected by a network of the cost's own."""

    def __init__(self, *variables, **options):
        super().__init__(*variables, **options)
        self.correction = nn.Linear(3, 3, dtype=F64)
        with torch.no_grad():
            self.correction.weight.copy_(0.1 * torch.eye(3))
            self.correction.bias.zero_()

    def residual(self, a: mslsq.SE2, b: mslsq.SE2, step):
        return (a.inverse() @ b).log() - step - self.correction(step)


def ring(**options) -> mslsq.Problem:
    pose = mslsq.Variable("pose", mslsq.SE2, count=4)
    learned = Learned(
        pose[EDGES[:, 0]],
        pose[EDGES[:, 1]],
        step=steps(),
        weight=mslsq.Diagonal(nn.Parameter(torch.ones(3, dtype=F64))),
        loss=mslsq.Cauchy(nn.Parameter(torch.tensor(2.0, dtype=F64))),
        name="learned",
    )
    return mslsq.Problem(learned, pose.fixed([0]))


def layer(**options) -> mslsq.LeastSquaresLayer:
    return mslsq.LeastSquaresLayer(ring(), **options)


def identity(count: int = 4, dtype=F64) -> dict[str, mslsq.SE2]:
    return {"pose": mslsq.SE2.exp(torch.zeros(count, 3, dtype=dtype))}


def total(solution: mslsq.Solution) -> torch.Tensor:
    return solution.value["pose"].storage.sum()


def gradients(module: nn.Module, data=None) -> dict[str, torch.Tensor]:
    module.zero_grad()
    total(module(identity(), data)).backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


# ---- a module ---------------------------------------------------------------------------------------


def test_weights_scales_and_networks_are_parameters_and_all_get_gradients():
    module = layer()
    names = {name.rpartition("costs.")[2].split(".", 1)[-1] for name, _ in module.named_parameters()}
    assert names >= {"weight.value", "loss.scale", "correction.weight", "correction.bias"}
    for name, gradient in gradients(module).items():
        assert torch.isfinite(gradient).all(), name
        assert gradient.abs().max() > 0, name


@pytest.mark.slow
def test_the_gradient_of_a_parameter_equals_a_difference_of_two_solves():
    solver = mslsq.LevenbergMarquardt(ftol=0, gtol=1e-13, xtol=1e-15, max_steps=100)
    module = layer(solver=solver)
    found = gradients(module)
    for name, parameter in module.named_parameters():
        values = []
        with torch.no_grad():
            for step in (1e-5, -2e-5):
                parameter.view(-1)[0] += step
                values.append(float(total(module(identity()))))
            parameter.view(-1)[0] += 1e-5
        difference = (values[0] - values[1]) / 2e-5
        assert float(found[name].reshape(-1)[0]) == pytest.approx(difference, rel=1e-6, abs=1e-9), name


def test_a_state_dict_carries_everything_to_another_layer():
    first, second = layer(), layer()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.mul_(1.1)
    assert not torch.allclose(total(first(identity())), total(second(identity())), rtol=1e-6)
    second.load_state_dict(first.state_dict())
    assert torch.equal(total(first(identity())), total(second(identity())))


def test_to_converts_data_and_parameters():
    module = layer().to(torch.float32)
    solution = module(identity(dtype=torch.float32))
    assert solution.value["pose"].storage.dtype == solution.cost.dtype == torch.float32
    solution.value["pose"].storage.sum().backward()
    assert {p.grad.dtype for p in module.parameters()} == {torch.float32}
    expected = layer()(identity()).value["pose"].storage
    assert torch.allclose(solution.value["pose"].storage.double(), expected, atol=1e-4)


def test_a_call_leaves_nothing_behind():
    # A program that a process before has left is taken up in a later call, and differs in the last bit.
    module = layer(solver=mslsq.LevenbergMarquardt(native="never"))
    other = {"learned": {"step": steps(seed=1)}}
    first = module(identity())
    module(identity(), other)
    again = module(identity())
    assert torch.equal(first.value["pose"].storage, again.value["pose"].storage)
    assert torch.equal(first.num_steps, again.num_steps)
    assert not any(name.startswith("_last") for name in vars(module))
    assert module.state_dict().keys() == layer().state_dict().keys()


def test_a_warm_start_is_the_last_solution_passed_by_hand():
    module = layer()
    cold = module(identity())
    warm = module({"pose": mslsq.SE2(cold.value["pose"].storage.detach())})
    assert int(warm.num_steps) < int(cold.num_steps)
    assert torch.allclose(warm.value["pose"].storage, cold.value["pose"].storage, atol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.slow
def test_copies_and_pickles_of_a_layer_solve_the_same_and_are_their_own(copied):
    module = layer()
    gradients(module)
    twin = copied(module)
    assert torch.equal(total(twin(identity())), total(module(identity())))
    before = total(module(identity())).detach()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert torch.equal(total(module(identity())), before)
    assert not torch.equal(total(twin(identity())), before)


def test_solutions_can_be_copied_pickled_and_saved(tmp_path):
    with torch.no_grad():
        solution = layer()(identity())
    for twin in (copy.deepcopy(solution), pickle.loads(pickle.dumps(solution))):
        assert torch.equal(twin.value["pose"].storage, solution.value["pose"].storage)
        assert twin.message() == solution.message()


def test_only_a_problem_makes_a_layer():
    with pytest.raises(TypeError, match=r"must be a Problem"):
        mslsq.LeastSquaresLayer(lambda x: x)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"solver": mslsq.GaussNewton}, r"GaussNewton\(\)"), ({"adjoint": "implicit"}, "Adjoint object")],
)
def test_wrong_options_are_refused_in_words(options, message):
    with pytest.raises(TypeError, match=message):
        layer(**options)(identity())


# ---- training ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_the_cost_decreases_the_loss():
    """Poses are measured with a systematic error of the steps; the network in the cost learns to take it off."""
    truth = layer()
    with torch.no_grad():
        truth.get_parameter(next(n for n, _ in truth.named_parameters() if n.endswith("correction.bias"))).add_(
            torch.tensor([0.1, -0.05, 0.02], dtype=F64)
        )
        wanted = truth(identity()).value["pose"].storage
    module = layer()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (module(identity()).value["pose"].storage - wanted).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.02 * losses[0]


def test_a_bad_sample_adds_nothing_to_the_gradient_of_a_training_step():
    # At the minimum to rounding: how exact a gradient is depends on what has been recorded or compiled by then.
    module = layer(solver=mslsq.LevenbergMarquardt(ftol=0.0, gtol=1e-13, xtol=1e-15))
    good, bad = steps(seed=1), steps(seed=2)
    bad[0, 0] = torch.nan
    expected = gradients(module, {"learned": {"step": good}})
    module.zero_grad()
    solution = module(identity(), {"learned": {"step": torch.stack((good, bad))}}, in_dims=(None, 0))
    assert solution.differentiable.tolist() == [True, False]
    torch.nan_to_num(solution.value["pose"].storage).sum().backward()
    for name, parameter in module.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], rtol=1e-8, atol=1e-12), name


def test_a_network_in_bfloat16_around_a_solve_in_float32():
    torch.manual_seed(0)
    module, network = layer().to(torch.float32), nn.Linear(8, 15)
    z = torch.randn(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = network(z)
        assert predicted.dtype == torch.bfloat16
        step = predicted.reshape(5, 3).to(torch.float32)
        inside = module(identity(dtype=torch.float32), {"learned": {"step": step}})
    assert inside.value["pose"].storage.dtype == torch.float32
    outside = module(identity(dtype=torch.float32), {"learned": {"step": step.detach()}})
    # The solve is that in float32, whatever autocast says outside: bfloat16 would leave 1e-2.
    assert torch.allclose(inside.value["pose"].storage, outside.value["pose"].storage, atol=1e-5)
    total(inside).backward()
    assert network.weight.grad is not None
    assert torch.isfinite(network.weight.grad).all()
    assert network.weight.grad.abs().max() > 0


# ---- several at once --------------------------------------------------------------------------------


@pytest.mark.slow
def test_threads_share_a_layer():
    # At the minimum to rounding: a gradient from recorded graphs is one chord step less exact than an eager one.
    module = layer(solver=mslsq.LevenbergMarquardt(ftol=0.0, gtol=1e-13, xtol=1e-15))
    data = [{"learned": {"step": steps(seed=seed)}} for seed in range(6)]

    def solved(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        step = data[number]["learned"]["step"].clone().requires_grad_()
        value = total(module(identity(), {"learned": {"step": step}}))
        (gradient,) = torch.autograd.grad(value, step)
        return value.detach(), gradient

    alone = [solved(number) for number in range(6)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(solved, list(range(6)) * 2))
    for number, (value, gradient) in zip(list(range(6)) * 2, together, strict=True):
        assert torch.allclose(value, alone[number][0], rtol=1e-10, atol=0)
        assert torch.allclose(gradient, alone[number][1], rtol=1e-8, atol=1e-12)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Network(nn.Module):
    """A network in front of the layer."""

    def __init__(self):
        super().__init__()
        self.before, self.layer = nn.Linear(2, 15, dtype=F64), layer()
        with torch.no_grad():
            weight = torch.randn(15, 2, generator=torch.Generator().manual_seed(5), dtype=F64)
            self.before.weight.copy_(0.2 * weight)
            self.before.bias.zero_()

    def forward(self, z):
        step = self.before(z).reshape(len(z), 5, 3)
        solution = self.layer(identity(), {"learned": {"step": step}}, in_dims=(None, 0))
        return solution.value["pose"].storage.sum((1, 2))


SAMPLES = torch.randn(4, 2, generator=torch.Generator().manual_seed(6), dtype=F64)


def _worker(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        module = nn.parallel.DistributedDataParallel(Network())
        module(SAMPLES[2 * rank : 2 * rank + 2]).mean().backward()
        found = {name: p.grad for name, p in module.module.named_parameters()}
        torch.save(found, os.path.join(folder, f"{rank}.pt"))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_get_the_gradients_of_one(tmp_path):
    torch.multiprocessing.spawn(_worker, (_free_port(), str(tmp_path)), nprocs=2)
    single = Network()
    single(SAMPLES).mean().backward()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, parameter in single.named_parameters():
            assert torch.allclose(found[name], parameter.grad, rtol=1e-9, atol=1e-13), name


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_network_in_a_closure_gets_its_gradients(kind):
    """PyTorch maps none of them over lanes."""
    torch.manual_seed(0)
    net, t = kind(1, 3, batch_first=True).to(F64), torch.linspace(0, 1, 6, dtype=F64)

    def solved():
        def residual(p, y):
            return p[0] * net(t[None, :, None])[0].sum(-1)[0] + p[1] - y

        y = torch.stack((torch.sin(3 * t), torch.cos(3 * t)))
        return mslsq.least_squares(residual, torch.ones(2, dtype=F64), (y,), in_dims=(None, 0), solver=TIGHT).value

    solved().sum().backward()
    for weight in (net.weight_hh_l0, net.bias_ih_l0):
        ends = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                weight.view(-1)[0] += step
            ends.append(float(solved().detach().sum()))
        assert float(weight.grad.view(-1)[0]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)


def normalized(kind):
    """A network with statistics of its own, as training has left them."""
    net = nn.Sequential(nn.Linear(2, 8), nn.Unflatten(-1, (4, 2)), kind(4), nn.Flatten(), nn.Tanh(), nn.Linear(8, 2))
    net = net.double().eval()
    generator = torch.Generator().manual_seed(5)
    for tensor in net.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) + 0.2)
    return net


def instance_norm(channels):
    return nn.InstanceNorm1d(channels, affine=True, track_running_stats=True)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, instance_norm])
def test_a_normalized_network_in_a_cost_gets_its_gradients(kind):
    """PyTorch refuses derivatives in the running statistics, which are inputs of the solve like every buffer."""

    class Corrected(mslsq.CostFunction):
        def __init__(self, *variables, **data):
            super().__init__(*variables, **data)
            self.net = normalized(kind)

        def residual(self, x, seen):
            return torch.cat([x - seen, self.net(x[None])[0]])

    x = mslsq.Variable("x", mslsq.Euclidean(2))
    cost = Corrected(x, seen=torch.tensor([[0.3, -0.2], [0.5, 0.1]], dtype=torch.float64))
    solver = mslsq.LevenbergMarquardt(ftol=0, gtol=1e-13, xtol=1e-15)
    layer, start = mslsq.LeastSquaresLayer(mslsq.Problem(cost), solver=solver), {"x": torch.zeros(2).double()}
    layer(start).value["x"].sum().backward()
    weight, difference = cost.net[0].weight, 0.0
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            weight[0, 1] += step
            difference += float(layer(start).value["x"].sum()) / (2 * step)
            weight[0, 1] -= step
    torch.testing.assert_close(float(weight.grad[0, 1]), difference, rtol=1e-5, atol=1e-9)
    assert abs(difference) > 1e-4  # it matters
