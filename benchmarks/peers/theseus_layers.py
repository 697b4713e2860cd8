"""Theseus' four backward modes on the problems of `adjoints.py`; imported only where theseus-ai is installed."""

from collections.abc import Callable
from typing import Any

import theseus as th
import torch

import mslsq

MODES = ("implicit", "unroll", "truncated", "dlm")
STEPS = 20
"""With its own tolerances it stops the whole batch with gradients still off by 1e-2."""
Call = Callable[[bool], tuple[Any, Callable[[], Any]]]


def fits(t: torch.Tensor, y: torch.Tensor, start: torch.Tensor, mode: str, gradient: dict[str, torch.Tensor]) -> Call:
    """a·exp(b·t) + c by Theseus' Levenberg–Marquardt on dense normal equations, its cost function under vmap."""

    def error(optim_vars: Any, aux_vars: Any) -> torch.Tensor:
        p, (seen, at) = optim_vars[0].tensor, (v.tensor for v in aux_vars)
        return p[:, :1] * torch.exp(p[:, 1:2] * at) + p[:, 2:] - seen

    objective = th.Objective(dtype=torch.float64)
    unknown = th.Vector(3, name="p", dtype=torch.float64)
    data = [th.Variable(torch.empty_like(y), name="y"), th.Variable(t[None].clone(), name="t")]
    weight = th.ScaleCostWeight(torch.ones(1, 1, dtype=torch.float64))
    cost = th.AutoDiffCostFunction([unknown], error, len(t), weight, aux_vars=data, autograd_mode="vmap")
    objective.add(cost)
    optimizer = th.LevenbergMarquardt(objective, linear_solver_cls=th.CholeskyDenseSolver, max_iterations=STEPS)
    optimizer.set_params(abs_err_tolerance=0.0, rel_err_tolerance=0.0)  # it stops the whole batch at once
    layer = th.TheseusLayer(optimizer, vectorize=True)

    def call(differentiated: bool) -> tuple[Any, Callable[[], Any]]:
        given = y.clone().requires_grad_(differentiated)
        inputs = {"p": start.expand(len(y), -1).clone(), "y": given}
        options: dict[str, Any] = {"damping": 1e-3}  # adapted, it ends so large that "truncated" gives zero
        if differentiated:
            options |= {"backward_mode": mode, "backward_num_iterations": 5}
        with torch.set_grad_enabled(differentiated):
            values, _ = layer.forward(inputs, optimizer_kwargs=options)

        def backward() -> None:
            values["p"].sum().backward()
            assert given.grad is not None
            gradient[mode] = given.grad

        return values, backward

    return call


def graph(
    edges: tuple[torch.Tensor, torch.Tensor], measured: mslsq.SE3, start: mslsq.SE3, mode: str, steps: int
) -> Call:
    """A pose graph by Theseus' Levenberg–Marquardt on CHOLMOD, the first pose held by a strong prior."""
    objective = th.Objective(dtype=torch.float64)
    weight = th.ScaleCostWeight(torch.tensor([[10.0]], dtype=torch.float64))
    strong = th.ScaleCostWeight(torch.tensor([[1e3]], dtype=torch.float64))
    poses = [th.SE3(tensor=m[None], name=f"x{k}") for k, m in enumerate(start.matrix()[:, :3].clone())]
    seen = measured.matrix()[:, :3].clone()
    for number, (i, j) in enumerate(zip(*(index.tolist() for index in edges), strict=True)):
        relative = th.SE3(tensor=seen[number][None], name=f"m{number}")
        objective.add(th.Between(poses[i], poses[j], relative, weight, name=f"between{number}"))
    held = th.SE3(tensor=poses[0].tensor.clone(), name="held")
    objective.add(th.Difference(poses[0], held, strong, name="prior"))
    optimizer = th.LevenbergMarquardt(objective, linear_solver_cls=th.CholmodSparseSolver, max_iterations=steps)
    optimizer.set_params(abs_err_tolerance=0.0, rel_err_tolerance=1e-10)
    layer = th.TheseusLayer(optimizer, vectorize=True)
    starts = {pose.name: pose.tensor.clone() for pose in poses}

    def call(differentiated: bool) -> tuple[Any, Callable[[], Any]]:
        given = seen.clone().requires_grad_(differentiated)
        inputs = starts | {f"m{number}": given[number][None] for number in range(len(given))}
        options: dict[str, Any] = {"damping": 1e-6}  # theirs adapts it for dense solvers alone
        if differentiated:
            options |= {"backward_mode": mode, "backward_num_iterations": 5}
        with torch.set_grad_enabled(differentiated):
            values, _ = layer.forward(inputs, optimizer_kwargs=options)
        return values, lambda: torch.stack([values[name].sum() for name in starts]).sum().backward()

    return call
