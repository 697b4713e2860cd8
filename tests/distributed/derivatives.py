"""Scenarios: gradients of one problem, and batches."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from problems import CONJUGATE, PARAMETERS, START, Decay, fit, furthest, rank, said, samples, scenario
from torch import Tensor, nn

import mslsq
from mslsq import distributed


def gradients_of(solve: Callable[..., mslsq.Solution], problem: mslsq.Problem, start: Any, data: Any) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for own in data.values() for tensor in own.values()]
    rest = iter(leaves)
    given = {cost: {name: next(rest) for name in own} for cost, own in data.items()}
    solution = solve(problem, start, given)
    (solution.value["p"].sin().sum() + 0.3 * solution.cost).backward()
    return [leaf.grad for leaf in leaves]  # type: ignore[misc]


@scenario
def gradients() -> Any:
    problem, (_, y) = fit(loss=mslsq.Cauchy(0.5)), samples(200)
    data = {
        "decay": {"y": y, "loss.scale": torch.tensor(0.5, dtype=torch.float64)},
        "prior": {"weight": torch.tensor(0.1, dtype=torch.float64)},
    }
    exact = mslsq.LevenbergMarquardt(ftol=0, xtol=0)
    one = gradients_of(lambda *a: mslsq.solve(*a, solver=exact), problem, START, data)
    found = {}
    for name, linear in {"dense": "auto", "matrix-free": CONJUGATE}.items():
        solver = mslsq.LevenbergMarquardt(ftol=0, xtol=0, linear_solver=linear)
        many = gradients_of(lambda *a, solver=solver: distributed.solve(*a, solver=solver), problem, START, data)
        gathered = [torch.stack(parts) for parts in zip(*of_all_ranks(many), strict=True)]
        found[name] = {
            "difference": max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(one, many, strict=True)),
            "between ranks": max(float((each - each[0]).abs().max()) for each in gathered),
        }
    return found


def of_all_ranks(tensors: list[Tensor]) -> list[list[Tensor]]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, tensors)
    return found


@scenario
def gradients_of_parts() -> Any:
    """y is each rank's own; the weight of its cost is that of both."""
    half = 100 if rank() == 0 else 200
    start, (_, y) = half - 100, samples(200)
    weight = torch.tensor(1.5, dtype=torch.float64)
    t, _ = samples(200)

    def problem(a: int, b: int) -> mslsq.Problem:
        return mslsq.Problem(
            Decay(PARAMETERS, t=t[a:b], y=y[a:b], weight=1.5),
            mslsq.Prior(PARAMETERS, target=torch.zeros(1, 3, dtype=torch.float64), weight=0.1 if a == 0 else 0.0),
        )

    one = gradients_of(mslsq.solve, problem(0, 200), START, {"decay": {"y": y, "weight": weight}})
    many = gradients_of(
        lambda *a: distributed.solve(*a, holds="part"),
        problem(start, half),
        START,
        {"decay": {"y": y[start:half], "weight": weight}},
    )
    return {
        "own": float((one[0][start:half] - many[0]).abs().max() / one[0].abs().max()),
        "shared": float((one[1] - many[1]).abs() / one[1].abs()),
    }


@scenario
def different_losses() -> Any:
    """The ranks do not compute the same loss."""
    problem, (_, y) = fit(), samples(200)
    y = y.requires_grad_()
    solution = distributed.solve(problem, START, {"decay": {"y": y}})
    return said(lambda: solution.value["p"][rank()].backward())


def many_fits(count: int) -> tuple[mslsq.Problem, dict[str, Tensor], dict[str, Any]]:
    generator = torch.Generator().manual_seed(3)
    t, y = samples(40)
    ys = y + 0.1 * torch.randn(count, 40, generator=generator, dtype=torch.float64)
    problem = mslsq.Problem(Decay(PARAMETERS, t=t, y=y, weight=nn.Parameter(torch.tensor(1.5, dtype=torch.float64))))
    return problem, {"p": START["p"].expand(count, 3).contiguous()}, {"decay": {"y": ys}}


IN_DIMS = ({"p": 0}, {"decay": {"y": 0}})


@scenario
def batches() -> Any:
    found = {}
    for count in (7, 1):  # one problem: the other ranks have none
        problem, start, data = many_fits(count)
        one = mslsq.solve(problem, start, data, in_dims=IN_DIMS)
        all_of_it = distributed.solve_batch(problem, start, data, in_dims=IN_DIMS)
        own = distributed.solve_batch(problem, start, data, in_dims=IN_DIMS, gather=False)
        first = count * rank() // dist.get_world_size()
        part = one.value["p"][first : first + len(own.cost)]
        found[str(count)] = {
            "gathered": furthest(one, all_of_it),
            "status": bool((one.status == all_of_it.status).all()),
            "history": list(all_of_it.history.cost.shape) == list(one.history.cost.shape),
            "own": float((own.value["p"] - part).abs().max()) if len(part) else 0.0,
            "count": len(own.cost),
        }
    return found


@scenario
def gradients_of_batches() -> Any:
    found = {}

    def gradients(gather: bool | None) -> list[Tensor]:
        problem, start, data = many_fits(5)
        ys = data["decay"]["y"].requires_grad_()
        if gather is None:
            solution = mslsq.solve(problem, start, data, in_dims=IN_DIMS)
        else:
            solution = distributed.solve_batch(problem, start, data, in_dims=IN_DIMS, gather=gather)
        (solution.value["p"].sin().sum() + 0.3 * solution.cost.sum()).backward()
        (weight,) = problem.parameters()
        return [ys.grad, weight.grad]  # type: ignore[list-item]

    one = gradients(None)
    for gather in (True, False):
        many = gradients(gather)
        found[str(gather)] = max(
            float((a - b).abs().max() / a.abs().max().clamp(min=1e-3)) for a, b in zip(one, many, strict=True)
        )
    return found
