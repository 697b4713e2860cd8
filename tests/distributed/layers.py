"""Scenarios: DDP and FSDP around a layer."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from problems import PARAMETERS, START, Decay, fit, rank, said, samples, scenario
from torch import Tensor, nn

import mslsq
from mslsq import distributed


class Network(nn.Module):
    """Predicts the measurements of a fit from a picture of them; the layer's own weight is learned too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        t, y = samples(12)
        self.predict = nn.Linear(12, 12, dtype=torch.float64)
        weight = nn.Parameter(torch.tensor([1.5], dtype=torch.float64))
        problem = mslsq.Problem(
            Decay(PARAMETERS, t=t, y=y, weight=mslsq.Diagonal(weight)),
            mslsq.Prior(PARAMETERS, target=torch.zeros(1, 3, dtype=torch.float64), weight=0.1),
        )
        self.layer = mslsq.LeastSquaresLayer(problem)

    def forward(self, x: Tensor) -> Tensor:
        y = x + 0.1 * self.predict(x)
        start = START["p"].expand(len(x), 3).contiguous()
        return self.layer({"p": start}, {"decay": {"y": y}}, in_dims=({"p": 0}, {"decay": {"y": 0}})).value["p"]


def pictures() -> Tensor:
    _, y = samples(12)
    return y + 0.05 * torch.randn(4, 12, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def gradients_of_network(around: Callable[[nn.Module], nn.Module], own: bool) -> dict[str, Tensor]:
    network = Network()
    wrapped = around(network)
    x = pictures()
    x = x[2 * rank() : 2 * rank() + 2] if own else x
    (wrapped(x) ** 2).sum(-1).mean().backward()
    found = {}
    for name, parameter in network.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        found[name.removeprefix("_fsdp_wrapped_module.")] = (
            gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        )
    return found


def differences(one: dict[str, Tensor], many: dict[str, Tensor]) -> float:
    assert one.keys() == many.keys(), (list(one), list(many))
    return max(float((one[name] - many[name]).abs().max() / one[name].abs().max()) for name in one)


@scenario
def under_ddp() -> Any:
    from torch.nn.parallel import DistributedDataParallel

    one = gradients_of_network(lambda module: module, own=False)
    many = gradients_of_network(DistributedDataParallel, own=True)

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return distributed.solve(fit(), {"p": x}).value["p"] * self.weight

    inside = DistributedDataParallel(Inside())
    return {"difference": differences(one, many), "inside": said(lambda: inside(START["p"]))}


@scenario
def under_fsdp() -> Any:
    from torch.distributed.fsdp import fully_shard

    def around(module: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh

        return fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))  # type: ignore[return-value]

    one = gradients_of_network(lambda module: module, own=False)
    return {"difference": differences(one, gradients_of_network(around, own=True))}
