"""What the ranks of the tests do: each scenario returns figures, which the test compares (`conftest.run_ranks`)."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import mslsq
from mslsq import distributed
from mslsq.datasets import synthetic_graphs
from mslsq.datasets.bal import read_bal
from mslsq.front.plans import kept_for

TIMEOUT = 60.0
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


# ---- problems


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


# ---- the solution of one process


@scenario
def dense() -> Any:
    problem = fit()
    return {
        method.__name__: compared(
            mslsq.solve(problem, START, solver=method()),
            distributed.solve(problem, START, solver=method(), timeout=TIMEOUT),
        )
        for method in METHODS
    }


@scenario
def robust() -> Any:
    problem = fit(loss=mslsq.Huber(0.1))
    return compared(mslsq.solve(problem, START), distributed.solve(problem, START))


@scenario
def graphs() -> Any:
    """A pose graph by every kind of linear solver."""
    problem, start = small_sphere()
    found = {}
    for name, linear in {
        "auto": "auto",
        "Cholesky": mslsq.linear.Cholesky(),
        "SparseCholesky": mslsq.linear.SparseCholesky(),
        "stored": mslsq.linear.ConjugateGradient(),
        "matrix-free": CONJUGATE,
    }.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        found[name] = compared(
            mslsq.solve(problem, start, solver=solver), distributed.solve(problem, start, solver=solver)
        )
    return found


@scenario
def users_own() -> Any:
    problem, start = own_graph()
    return compared(mslsq.solve(problem, start), distributed.solve(problem, start))


@scenario
def parts() -> Any:
    """Each rank has stated its own blocks; the first one alone has the prior."""
    bounds = [200 * k // dist.get_world_size() for k in range(dist.get_world_size() + 1)]
    own = part_of_fit(bounds[rank()], bounds[rank() + 1], prior=rank() == 0)
    return compared(mslsq.solve(fit(), START), distributed.solve(own, START, holds="part"))


@scenario
def fewer_blocks_than_ranks() -> Any:
    """One block: only the last rank has any."""
    problem = mslsq.Problem(mslsq.Prior(PARAMETERS, target=torch.ones(1, 3, dtype=torch.float64)))
    found = {}
    for name, linear in {"dense": "auto", "matrix-free": CONJUGATE}.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        found[name] = compared(mslsq.solve(problem, START), distributed.solve(problem, START, solver=solver))
    return found


@scenario
def twice() -> Any:
    """Again and again, with another start: the plan is kept on all ranks."""
    problem, found = fit(), []
    for k in range(3):
        start = {"p": START["p"] + 0.1 * k}
        found.append(compared(mslsq.solve(problem, start), distributed.solve(problem, start)))
    return found


@scenario
def large() -> Any:
    """1e5 rows, a sphere of 400 poses, and a part of a real bundle adjustment."""
    found = {"rows": compared(mslsq.solve(fit(100_000), START), distributed.solve(fit(100_000), START))}
    problem, start = sphere(20, 20)
    for name, linear in {"sphere": "auto", "sphere, matrix-free": CONJUGATE}.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        found[name] = compared(
            mslsq.solve(problem, start, solver=solver), distributed.solve(problem, start, solver=solver)
        )
    return found


@scenario
def bundle() -> Any:
    """Eight cameras of Ladybug 49 and what three of them see; the first camera is held, priors hold the scale."""
    folder = Path(os.environ.get("MSLSQ_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    path = folder / "bal" / "problem-49-7776-pre.txt.bz2"
    if not path.exists():
        return None
    scene = read_bal(path)
    near = scene.camera < 8
    seen = torch.bincount(scene.point[near], minlength=len(scene.points)) >= 3
    kept = near & seen[scene.point]
    numbers = seen.cumsum(0) - 1
    camera = mslsq.Variable("camera", mslsq.Euclidean(9), count=8)
    point = mslsq.Variable("point", mslsq.Euclidean(3), count=int(seen.sum()))
    start = {"camera": scene.cameras[:8], "point": scene.points[seen]}
    costs = mslsq.SnavelyReprojection(
        camera[scene.camera[kept]], point[numbers[scene.point[kept]]], pixel=scene.pixels[kept]
    )
    strong = torch.tensor([1e3] * 9, dtype=torch.float64)
    priors = mslsq.Prior(
        camera[torch.arange(8)], target=start["camera"], weight=mslsq.Diagonal(1 / strong), name="cameras"
    )
    weak = mslsq.Prior(point[torch.arange(len(start["point"]))], target=start["point"], weight=0.3, name="points")
    problem = mslsq.Problem(costs, priors, weak, camera.fixed([0]))
    found = {}
    for name, linear in {
        "Schur": mslsq.linear.Schur(),
        "auto": "auto",
        "matrix-free": mslsq.linear.ConjugateGradient(matrix_free=True, max_iterations=5000),
    }.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        found[name] = compared(
            mslsq.solve(problem, start, solver=solver), distributed.solve(problem, start, solver=solver)
        )
    return found


# ---- derivatives


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
        gathered = [torch.stack(parts) for parts in zip(*everybody(many), strict=True)]
        found[name] = {
            "difference": max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(one, many, strict=True)),
            "between ranks": max(float((each - each[0]).abs().max()) for each in gathered),
        }
    return found


def everybody(tensors: list[Tensor]) -> list[list[Tensor]]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, tensors)
    return found


@scenario
def gradients_of_parts() -> Any:
    """y is each rank's own; the weight of its cost is everybody's."""
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


# ---- batches


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


# ---- what goes wrong


@scenario
def refusals() -> Any:
    problem, solve = fit(), distributed.solve
    bounded = mslsq.Variable("b", mslsq.Euclidean(1), lower=0.0)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    at = {"b": torch.ones(1, dtype=torch.float64)}
    return {
        "bounds": said(lambda: solve(mslsq.Problem(mslsq.Prior(bounded, target=zero)), at)),
        "constraints": said(
            lambda: solve(
                mslsq.Problem(
                    mslsq.Prior(mslsq.Variable("b", mslsq.Euclidean(1)), target=zero),
                    mslsq.Equality(mslsq.Prior(mslsq.Variable("b", mslsq.Euclidean(1)), target=zero, name="other")),
                ),
                at,
            )
        ),
        "rejection": said(lambda: solve(problem, START, solver=mslsq.GraduatedNonConvexity())),  # type: ignore[arg-type]
        "QR": said(lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.QR()))),
        "compile": said(lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(compile=True))),
        "early_stop": said(lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(early_stop=False))),
        "checkpoint": said(
            lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(checkpoint=mslsq.Checkpoint("x")))
        ),
        "acceleration": said(lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(acceleration=0.75))),
        "adjoint": said(lambda: solve(problem, START, adjoint=mslsq.Unrolled())),
        "transform": said(lambda: torch.func.vmap(lambda x: solve(problem, {"p": x}).cost)(START["p"].expand(2, 3))),
        "the same blocks": said(lambda: solve(problem, START, holds="part")),
        "other blocks": said(lambda: solve(part_of_fit(100 * rank(), 100 * rank() + 100), START)),
        "no batch": said(lambda: distributed.solve_batch(problem, START, in_dims=None)),
        "after all that": compared(mslsq.solve(problem, START), solve(problem, START))["difference"],
    }


@scenario
def unequal_ranks() -> Any:
    """Something that must be the same is not. All ranks say so, and can go on."""
    other = mslsq.Variable("q" if rank() == 1 else "p", mslsq.Euclidean(3))
    named = mslsq.Problem(mslsq.Prior(other, target=torch.zeros(1, 3, dtype=torch.float64)))
    shifted = {"p": START["p"] + rank()}
    steps = mslsq.LevenbergMarquardt(max_steps=5 + rank())
    only_one = mslsq.LevenbergMarquardt() if rank() else mslsq.Dogleg()
    held = [PARAMETERS.fixed(components=[0])] if rank() else []
    return {
        "variables": said(lambda: distributed.solve(named, {other.name: START["p"]})),
        "start": said(lambda: distributed.solve(fit(), shifted)),
        "options": said(lambda: distributed.solve(fit(), START, solver=steps)),
        "method": said(lambda: distributed.solve(fit(), START, solver=only_one)),
        "held": said(lambda: distributed.solve(mslsq.Problem(*fit(), *held), START)),
        "batch": said(
            lambda: distributed.solve_batch(*many_fits(3 + rank()), in_dims=IN_DIMS),
        ),
        "after all that": compared(mslsq.solve(fit(), START), distributed.solve(fit(), START))["difference"],
    }


@scenario
def failures() -> Any:
    """One rank fails, is interrupted, or has NaN; all end alike, and can go on."""
    (t, y), own = samples(200), part_of_fit(100 * rank(), 100 * rank() + 100)
    broken = y.clone()
    broken[150] = torch.nan
    with_nan = mslsq.Problem(Decay(PARAMETERS, t=t[100 * rank() :][:100], y=broken[100 * rank() :][:100]))
    nan = distributed.solve(with_nan, START, holds="part")

    def raises(info: Any) -> None:
        if rank() == 1 and int(info.step) == 1:
            raise ValueError("mine")

    def interrupts(info: Any) -> None:
        if rank() == 1 and int(info.step) == 2:
            raise KeyboardInterrupt

    def signals(info: Any) -> None:
        if rank() == 1 and int(info.step) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def stops(info: Any) -> bool:
        return rank() == 1 and int(info.step) == 2

    def solved(callback: Any, **more: Any) -> mslsq.Solution:
        return distributed.solve(own, START, holds="part", solver=mslsq.LevenbergMarquardt(callback=callback, **more))

    interrupted = solved(interrupts, on_interrupt="return")
    signalled = solved(signals, on_interrupt="return")
    stopped = solved(stops)
    late = solved(lambda info: time.sleep(0.3 * rank()), time_budget=0.2)
    missing = said(lambda: distributed.solve(own, START if rank() == 0 else {}, holds="part"))
    return {
        "nan": [int(nan.status), int(nan.num_steps)],
        "raises": said(lambda: solved(raises)),
        "missing": missing,
        "interrupted": [int(interrupted.status), int(interrupted.num_steps), interrupted.value["p"].tolist()],
        "signalled": [int(signalled.status), int(signalled.num_steps)],
        "raised": said(lambda: solved(signals)),
        "stopped": [int(stopped.status), int(stopped.num_steps)],
        "late": [int(late.status), int(late.num_steps)],
        "after all that": compared(mslsq.solve(fit(prior=False), START), distributed.solve(own, START, holds="part"))[
            "difference"
        ],
    }


@scenario
def a_rank_that_changes_its_mind() -> Any:
    """A residual of one rank reads what no plan knows of, and its graph goes stale: all solve again."""
    os.environ["FACTOR"] = "1.0"

    class Reads(mslsq.CostFunction):
        def residual(self, p: Tensor, t: Tensor, y: Tensor) -> Tensor:
            return float(os.environ["FACTOR"]) * (p[0] * torch.exp(-p[1] * t) + p[2] - y)

    t, y = samples(200)
    own = slice(100 * rank(), 100 * rank() + 100)
    problem = mslsq.Problem(Reads(PARAMETERS, t=t[own], y=y[own]))
    always = mslsq.LevenbergMarquardt(trace="always")
    costs = []
    for factor in (1.0, 1.0, 3.0):
        os.environ["FACTOR"] = str(factor if rank() == 1 else 1.0)
        costs.append(float(distributed.solve(problem, START, holds="part", solver=always).cost))
    weights = torch.ones(200, dtype=torch.float64)
    weights[100:] = 3.0
    one = mslsq.solve(mslsq.Problem(Decay(PARAMETERS, t=t, y=y, weight=mslsq.Scale(weights))), START)
    plan = next(iter(kept_for(problem).plans._plans.values()))
    return {
        "again": abs(costs[1] / costs[0] - 1),
        "changed": abs(costs[2] / float(one.cost) - 1),
        "graphs": sorted(plan.execution.graphs),
    }


@scenario
def a_rank_that_dies() -> Any:
    if rank() == 1:
        distributed.solve(fit(), START)
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.solve(fit(), START)
    began = time.monotonic()
    words = said(lambda: distributed.solve(fit(), START, timeout=PATIENCE))
    return [*words, time.monotonic() - began]


@scenario
def a_rank_that_hangs() -> Any:
    def waits(info: Any) -> None:
        if rank() == 1 and int(info.step) == 1:
            time.sleep(3 * PATIENCE)

    began = time.monotonic()
    words = said(
        lambda: distributed.solve(fit(), START, solver=mslsq.LevenbergMarquardt(callback=waits), timeout=PATIENCE)
    )
    return [*words, time.monotonic() - began]


# ---- around the layer


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


def main() -> None:
    torch.set_num_threads(1)
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    distributed.initialize("gloo", timeout=TIMEOUT)
    found = {name: SCENARIOS[name]() for name in names}
    (folder / f"{rank()}.json").write_text(json.dumps(found))
    if "a_rank_that_dies" in names or "a_rank_that_hangs" in names:
        os._exit(0)  # the process group is of no more use
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
