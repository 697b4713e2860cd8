"""What a linearisation and a whole step cost: eager transforms, replayed, compiled, native, with analytic Jacobians.

    python benchmarks/linearize.py              # one thread and default threads: about five minutes
    python benchmarks/linearize.py --sizes 1 1024 --blocks 5000     # less

Linearisations of 1024 curve fits (32 residuals, 3 parameters; with JᵀJ and Jᵀr), residuals and Jacobian blocks of SE(3)
between factors (6 residuals, 12 tangent dimensions). Steps: 20 of Levenberg-Marquardt through `least_squares`, all of
them taken, with everything that a call costs. "Analytic": Jacobians in closed form. "Native": the plain residual as a
native program (`MSLSQ_NATIVE=wait`), on sphere2500 and on Ladybug 49, where the data sets are there.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from peers.turns import shared_data
from timing import for_each_thread_setting, interleaved, print_machine, print_table

import mslsq
from mslsq.datasets import read_bal, read_g2o
from mslsq.front.problem_statement import stated
from mslsq.linearize.plan_cache import PlanCache
from mslsq.problem.leaf import leaf_space
from mslsq.problem.system import Slot, System, Term, Unknown
from mslsq.solvers.planning import planned
from mslsq.solvers.task import Task
from mslsq.tracing.recording import Recorded

F64 = torch.float64


def fits(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """t, y and the common start of well-posed exponential fits."""
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0, 2, 32, dtype=F64)
    a, b, c = torch.rand(3, size, 1, generator=generator, dtype=F64)
    noise = torch.randn(size, 32, generator=generator, dtype=F64)
    y = (0.5 + 1.5 * a) * torch.exp((-2 + 1.5 * b) * t) - 1 + 2 * c + 0.01 * noise
    return t, y, torch.tensor([1.0, -1.0, 0.0], dtype=F64)


def residual(p: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def jacobian(p: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    exponential = torch.exp(p[1] * t)
    return torch.stack((exponential, p[0] * t * exponential, torch.ones_like(t)), -1)


class Numeric(mslsq.CostFunction):
    """The residual of `mslsq.Between` without its Jacobians."""

    def residual(self, a: Any, b: Any, measured: Any) -> torch.Tensor:
        return measured.between(a.between(b)).log()


class Reprojected(mslsq.CostFunction):
    """The residual of `mslsq.SnavelyReprojection` as a user writes it."""

    def residual(self, camera: torch.Tensor, point: torch.Tensor, pixel: torch.Tensor) -> torch.Tensor:
        w, t, f, k1, k2 = camera[:3], camera[3:6], camera[6], camera[7], camera[8]
        squared = w @ w
        small = squared < 1e-16
        angle = torch.where(small, 1.0, squared).sqrt()
        sine = torch.where(small, 1.0, torch.sin(angle) / angle)
        cosine = torch.where(small, 0.5, (1 - torch.cos(angle)) / (angle * angle))
        along = torch.linalg.cross(w, point)
        seen = point + sine * along + cosine * torch.linalg.cross(w, along) + t
        p = -seen[:2] / seen[2]
        n = p @ p
        return f * (1 + k1 * n + k2 * n * n) * p - pixel


class Given(NamedTuple):
    """A system with its tensors, as the engine takes them."""

    system: System
    values: tuple[torch.Tensor, ...]
    inputs: tuple[dict[str, torch.Tensor], ...]
    batched: tuple[frozenset[str], ...]
    batch: int


def fit_system(size: int, analytic: bool) -> Given:
    t, y, start = fits(size)
    space = leaf_space(start, "x0")
    term = Term(
        "fit",
        (Slot(0, 0),),
        1,
        lambda values, inputs: residual(values[0], inputs["t"], inputs["y"]),
        (lambda values, inputs: (jacobian(values[0], inputs["t"], inputs["y"]),)) if analytic else None,
        elementwise_loss=True,
    )
    system = System((Unknown("x0", space, 1),), (term,), (space,))
    return Given(system, (start.expand(size, 1, 3).contiguous(),), ({"t": t, "y": y},), (frozenset({"y"}),), size)


def graph_system(blocks: int, analytic: bool) -> Given:
    """Two factors between each pose of a chain and the next."""
    torch.manual_seed(0)
    pose = mslsq.Variable("pose", mslsq.SE3, count=blocks // 2 + 1)
    values = {"pose": mslsq.SE3.random(blocks // 2 + 1, dtype=F64)}
    i = torch.arange(blocks // 2).repeat(2)
    factor = mslsq.Between if analytic else Numeric
    cost = factor(pose[i], pose[i + 1], measured=mslsq.SE3.random(len(i), dtype=F64), name="between")
    return given_of(mslsq.Problem(cost), values)


def given_of(problem: mslsq.Problem, values: dict[str, Any]) -> Given:
    statement = stated(problem, values, None)
    return Given(statement.system, statement.values, statement.inputs, statement.batched, 1)


def sphere(analytic: bool) -> Given:
    graph: Any = read_g2o(shared_data() / "g2o" / "sphere2500.g2o.gz")
    pose = mslsq.Variable("pose", mslsq.SE3, count=len(graph.ids))
    factor = mslsq.Between if analytic else Numeric
    cost = factor(pose[graph.first], pose[graph.second], measured=graph.measured, name="between")
    return given_of(mslsq.Problem(cost), {"pose": graph.poses})


def ladybug(analytic: bool) -> Given:
    scene = read_bal(shared_data() / "bal" / "problem-49-7776-pre.txt.bz2")
    camera = mslsq.Variable("camera", mslsq.Euclidean(9), count=len(scene.cameras))
    point = mslsq.Variable("point", mslsq.Euclidean(3), count=len(scene.points))
    factor = mslsq.SnavelyReprojection if analytic else Reprojected
    problem = mslsq.Problem(factor(camera[scene.camera], point[scene.point], pixel=scene.pixels))
    return given_of(problem, {"camera": scene.cameras, "point": scene.points})


def blocks_function(given: Given, native: bool) -> Callable[[], Any]:
    """Residuals and Jacobian blocks of the first term, replayed or native."""
    os.environ["MSLSQ_NATIVE"] = "wait" if native else "never"
    task = Task(given.system, mslsq.LevenbergMarquardt(), given.batch, given.batched, PlanCache())
    with torch.no_grad():
        plan, linearizer, inputs = planned(task, given.values, given.inputs)
    block = linearizer.blocks[0]
    if not native:
        recorded = Recorded(lambda values, own: block.linearizations(values, own), (given.values, inputs[0]))
        return lambda: without_gradients(recorded, given.values, inputs[0])
    if block.program is None:
        raise RuntimeError(plan.notes.text)
    return lambda: without_gradients(block.linearizations, given.values, inputs[0])


def data_sets(repeats: int) -> None:
    rows = []
    cases = {"sphere2500, 4,949 SE(3) between": sphere, "Ladybug 49, 31,843 reprojections": ladybug}
    for name, make in cases.items():
        own, closed = make(False), make(True)
        contestants = {
            "autodiff replayed": blocks_function(own, native=False),
            "analytic replayed": blocks_function(closed, native=False),
            "native, own residual": blocks_function(own, native=True),
            "native, analytic": blocks_function(closed, native=True),
        }
        times = interleaved(contestants, repeats)
        rows.append([name, "CPU", *[timing.cpu for timing in times.values()]])
        rows.append(["", "wall", *[timing.wall for timing in times.values()]])
    print_table("### Residuals and Jacobian blocks of data sets", ["", "ms", *contestants], rows)


def functions(given: Given, blocks_only: bool, compiled: bool) -> dict[str, Callable[[], Any]]:
    """The linearisation eagerly, replayed and compiled, all of the same function on the same tensors."""
    made = {}
    for name in ("eager", "replayed", "compiled") if compiled else ("eager", "replayed"):
        solver = mslsq.LevenbergMarquardt(compile=name == "compiled", native="never")
        task = Task(given.system, solver, given.batch, given.batched, PlanCache())
        with torch.no_grad():
            _, linearizer, inputs = planned(task, given.values, given.inputs)
        block = linearizer.blocks[0]

        def plain(values: Any, inputs: Any, block: Any = block, linearizer: Any = linearizer) -> Any:
            if blocks_only:
                return block.over_lanes(block.linearization_of_block, values, inputs[0])
            return linearizer.linearize(values, inputs)

        function: Any = plain
        if name != "eager":
            function = Recorded(plain, (given.values, inputs))
            if name == "compiled":
                function.compile()
        made[name] = lambda function=function, inputs=inputs: without_gradients(function, given.values, inputs)
    return made


def without_gradients(function: Callable[..., Any], *args: Any) -> Any:
    with torch.no_grad():
        return function(*args)


def linearizations(blocks: list[int], repeats: int) -> None:
    cases: dict[str, tuple[Callable[[bool], Given], bool]] = {
        "1024 fits (32 x 3), with JᵀJ and Jᵀr": (lambda analytic: fit_system(1024, analytic), False)
    }
    for count in blocks:
        cases[f"{count} SE(3) between factors (6 x 12)"] = (lambda analytic, n=count: graph_system(n, analytic), True)
    rows = []
    for name, (make, blocks_only) in cases.items():
        contestants = {f"autodiff {k}": f for k, f in functions(make(False), blocks_only, compiled=True).items()}
        contestants |= {f"analytic {k}": f for k, f in functions(make(True), blocks_only, compiled=True).items()}
        times = interleaved(contestants, repeats)
        rows.append([name, "CPU", *[timing.cpu for timing in times.values()]])
        rows.append(["", "wall", *[timing.wall for timing in times.values()]])
        header = ["", "ms", *times]
    print_table("### One linearisation", header, rows)


def steps(sizes: list[int], repeats: int) -> None:
    rows = []
    for size in sizes:
        t, y, start = fits(size)
        contestants = {}
        for name, solver in (
            ("eager", mslsq.LevenbergMarquardt(max_steps=20, early_stop=False, trace="never")),
            ("replayed", mslsq.LevenbergMarquardt(max_steps=20, early_stop=False, trace="always")),
            ("compiled", mslsq.LevenbergMarquardt(max_steps=20, early_stop=False, compile=True)),
        ):
            contestants[name] = lambda solver=solver, t=t, y=y, start=start: mslsq.least_squares(
                residual, start, (t, y), in_dims=(None, None, 0), solver=solver
            )
        times = interleaved(contestants, repeats if size < 10000 else 3)
        rows.append([f"batch {size}", *[figure for timing in times.values() for figure in timing]])
    header = ["", *[f"{name} {kind} ms" for name in ("eager", "replayed", "compiled") for kind in ("CPU", "wall")]]
    print_table("### A whole call with 20 steps of Levenberg-Marquardt", header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 64, 1024, 16384])
    parser.add_argument("--blocks", type=int, nargs="*", default=[5000, 20000])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only-data-sets", action="store_true", help="only residuals and Jacobian blocks of data sets")
    parser.add_argument("--here", action="store_true", help="in this process, with the threads it has")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    if not arguments.here:
        print_machine(("torch",))
        return for_each_thread_setting(__file__, sys.argv[1:])
    data_sets(arguments.repeats)
    if arguments.only_data_sets:
        return 0
    steps(arguments.sizes, arguments.repeats)
    linearizations(arguments.blocks, arguments.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
