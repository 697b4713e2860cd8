"""The problems that the ranks of the tests solve, and how solutions are compared."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import mslsq
from mslsq.datasets import synthetic_graphs

TIMEOUT = 200.0
"""Of the process group: on a busy machine (a load of 16) a rank comes more than a minute after the other."""
PATIENCE = 4.0
"""A short time-out, for ranks that are lost."""
SCENARIOS: dict[str, Callable[[], Any]] = {}


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[function.__name__] = function
    return function


def rank() -> int:
    return dist.get_rank()


def said(call: Callable[[], Any]) -> list[str]:
    """The kind and the words of what a call raises."""
    try:
        call()
    except BaseException as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def furthest(a: Any, b: Any) -> float:
    """The largest difference of two solutions' values, relative to the size of the first where that is above one."""
    worst = 0.0
    for name in a.value:
        values = (x.value[name] for x in (a, b))
        one, other = ((x.storage if isinstance(x, mslsq.Manifold) else x).detach() for x in values)
        worst = max(worst, float(((one - other).abs() / one.abs().clamp(min=1)).max()))
    return worst


def compared(one: mslsq.Solution, many: mslsq.Solution) -> dict[str, Any]:
    return {
        "difference": furthest(one, many),
        "cost": abs(float(one.cost - many.cost)) / max(float(one.cost), 1e-300),
        "status": [int(one.status), int(many.status)],
        "steps": [int(one.num_steps), int(many.num_steps)],
    }


class Decay(mslsq.CostFunction):
    def residual(self, p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return p[0] * torch.exp(-p[1] * t) + p[2] - y


PARAMETERS = mslsq.Variable("p", mslsq.Euclidean(3))
START = {"p": torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)}


def samples(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0, 3, count, dtype=torch.float64)
    return t, 2 * torch.exp(-1.3 * t) + 0.5 + 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)


def fit(count: int = 200, prior: bool = True, loss: Any = None) -> mslsq.Problem:
    t, y = samples(count)
    costs = [Decay(PARAMETERS, t=t, y=y, loss=loss)]
    if prior:
        costs.append(mslsq.Prior(PARAMETERS, target=torch.zeros(1, 3, dtype=torch.float64), weight=0.1))
    return mslsq.Problem(*costs)


def part_of_fit(start: int, stop: int, prior: bool = False) -> mslsq.Problem:
    t, y = samples(200)
    costs: list[Any] = [Decay(PARAMETERS, t=t[start:stop], y=y[start:stop])]
    if prior:
        costs.append(mslsq.Prior(PARAMETERS, target=torch.zeros(1, 3, dtype=torch.float64), weight=0.1))
    return mslsq.Problem(*costs)


class Far(mslsq.CostFunction):
    """Relative pose by a residual of the user's own."""

    def residual(self, a: mslsq.SE3, b: mslsq.SE3, measured: mslsq.SE3) -> Tensor:
        return (measured.inverse() @ (a.inverse() @ b)).log()


def sphere(laps: int, per_lap: int) -> tuple[mslsq.Problem, dict[str, Any]]:
    graph = synthetic_graphs.sphere_graph(laps, per_lap).graph
    return graph.problem(), {"pose": graph.poses}


def small_sphere() -> tuple[mslsq.Problem, dict[str, Any]]:
    return sphere(4, 10)


def own_graph() -> tuple[mslsq.Problem, dict[str, Any]]:
    """A chain of poses with one closure, by a residual of the user's own: no closed form."""
    generator = torch.Generator().manual_seed(1)
    count = 6
    pose = mslsq.Variable("pose", mslsq.SE3, count=count)
    steps = mslsq.SE3.exp(0.3 * torch.randn(count, 6, generator=generator, dtype=torch.float64))
    i = torch.arange(count)
    problem = mslsq.Problem(Far(pose[i], pose[(i + 1) % count], measured=steps), pose.fixed([0]))
    return problem, {"pose": mslsq.SE3.identity(count).to(torch.float64)}


METHODS = (mslsq.LevenbergMarquardt, mslsq.GaussNewton, mslsq.Dogleg)
CONJUGATE = mslsq.linear.ConjugateGradient(matrix_free=True)
