"""Graduated non-convexity: wrong loop closures beside GTSAM's GNC, and fits of which half the points are wrong.

    python benchmarks/robust_estimation.py fits
    python benchmarks/robust_estimation.py graphs --graph intel --seeds 1 2 3

A graph gets wrong loop closures between random poses, with random rotations and translations up to the extent of the
graph, until `--share` of all closures are wrong. Both solvers start at the odometry, may reject closures alone, and
have the same scale: twenty times the noise, which is that of the residuals of the solution without wrong closures (the
information matrices of these files promise a noise that is 3 to 150 times larger). The measure is the distance of the
positions to that solution (root mean square), divided by the extent of the graph, and how far the root mean square of
the residuals of all right edges is above that of that solution. Times are of the processor, one thread. A contestant
with more than `--limit` seconds of it is stopped; GTSAM factors the graph with all wrong closures in every step.

Seeds 0 and, of fits, 0 to 2 were used to choose the defaults: the others tell.
"""

import argparse
import math
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from peers import gtsam_graphs
from peers.turns import shared_data
from timing import print_machine, print_table
from torch import Tensor

import mslsq
from mslsq.datasets import read_g2o
from mslsq.datasets.pose_graph import PoseGraph

FACTOR = 20.0
"""The scale in units of the noise."""

# ---- fits


@dataclass(frozen=True)
class Fits:
    """A batch of problems with known parameters and known outliers."""

    residual: Callable[..., Tensor]
    start: Tensor
    args: tuple[Tensor, Tensor]
    truth: Tensor
    wrong: Tensor
    canonical: Callable[[Tensor], Tensor] = lambda p: p
    """The parameters where different ones may mean the same."""


NOISE, POINTS = 0.02, 60


def line(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return p[0] * t + p[1] - y


def exponential(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def circle(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return ((x - p[0]) ** 2 + (y - p[1]) ** 2 + 1e-12).sqrt() - p[2]


def ellipse(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Centre, half axes, angle; Sampson's distance. (A distance in units of the half axes is zero for an infinite
    ellipse.)"""
    cos, sin = p[4].cos(), p[4].sin()
    u, v = (cos * (x - p[0]) + sin * (y - p[1])) / p[2], (cos * (y - p[1]) - sin * (x - p[0])) / p[3]
    return (u * u + v * v - 1) / (2 * ((u / p[2]) ** 2 + (v / p[3]) ** 2 + 1e-12).sqrt())


def shape_of_ellipse(p: Tensor) -> Tensor:
    """Centre and matrix, (batch, 5): the same for axes in another order."""
    cos, sin = p[:, 4].cos(), p[:, 4].sin()
    a, b = p[:, 2] ** -2, p[:, 3] ** -2
    matrix = a * cos * cos + b * sin * sin, (a - b) * cos * sin, a * sin * sin + b * cos * cos
    return torch.stack((p[:, 0], p[:, 1], *matrix), 1)


def damped_sine(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) * torch.sin(p[2] * t) + p[3] - y


def plane(p: Tensor, xy: Tensor, z: Tensor) -> Tensor:
    return xy @ p[:2] + p[2] - z


KINDS = ("line", "circle", "exponential", "ellipse", "damped sine", "plane")
"""Defaults were chosen on the first three (with other seeds), the others were looked at when all was done."""


def fits(kind: str, count: int, seed: int, share: float) -> Fits:
    """`count` problems of 60 points, of which a share is wrong."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def noise() -> Tensor:
        return NOISE * torch.randn(count, POINTS, generator=generator, dtype=torch.float64)

    order = uniform(count, POINTS).argsort(1)
    wrong = order < round(share * POINTS)
    if kind == "circle":
        p = torch.stack([2 * uniform(count) - 1, 2 * uniform(count) - 1, 0.5 + 1.5 * uniform(count)], 1)
        angle = 2 * math.pi * uniform(count, POINTS)
        x, y = p[:, :1] + p[:, 2:] * angle.cos() + noise(), p[:, 1:2] + p[:, 2:] * angle.sin() + noise()
        x, y = (torch.where(wrong, 8 * uniform(count, POINTS) - 4, one) for one in (x, y))
        return Fits(circle, torch.stack([x.mean(1), y.mean(1), torch.ones_like(p[:, 0])], 1), (x, y), p, wrong)
    if kind == "line":
        p, t = 4 * uniform(count, 2) - 2, 2 * uniform(count, POINTS) - 1
        y = torch.where(wrong, 10 * uniform(count, POINTS) - 5, p[:, :1] * t + p[:, 1:] + noise())
        return Fits(line, torch.zeros_like(p), (t, y), p, wrong)
    if kind == "ellipse":
        p = torch.stack([uniform(count) - 0.5, uniform(count) - 0.5, *(1 + uniform(2, count)), uniform(count) - 0.5], 1)
        angle = 2 * math.pi * uniform(count, POINTS)
        u, v = p[:, 2:3] * angle.cos(), p[:, 3:4] * angle.sin()
        cos, sin = p[:, 4:].cos(), p[:, 4:].sin()
        x, y = p[:, :1] + cos * u - sin * v + noise(), p[:, 1:2] + sin * u + cos * v + noise()
        x, y = (torch.where(wrong, 8 * uniform(count, POINTS) - 4, one) for one in (x, y))
        ones = torch.ones_like(x.mean(1))
        return Fits(
            ellipse,
            torch.stack([x.mean(1), y.mean(1), ones, 1.1 * ones, 0 * ones], 1),
            (x, y),
            p,
            wrong,
            shape_of_ellipse,
        )
    if kind == "damped sine":
        p = torch.stack([1 + uniform(count), 0.2 + uniform(count), 5 + 2 * uniform(count), uniform(count) - 0.5], 1)
        t = 2 * uniform(count, POINTS)
        y = p[:, :1] * torch.exp(-p[:, 1:2] * t) * torch.sin(p[:, 2:3] * t) + p[:, 3:] + noise()
        y = torch.where(wrong, 8 * uniform(count, POINTS) - 4, y)
        start = torch.tensor([1.0, 0.5, 6.0, 0.0], dtype=torch.float64).expand_as(p)
        return Fits(damped_sine, start, (t, y), p, wrong)
    if kind == "plane":
        p, xy = 4 * uniform(count, 3) - 2, 2 * uniform(count, POINTS, 2) - 1
        z = torch.where(wrong, 10 * uniform(count, POINTS) - 5, (xy @ p[:, :2, None])[..., 0] + p[:, 2:] + noise())
        return Fits(plane, torch.zeros_like(p), (xy, z), p, wrong)
    p = torch.stack([1 + 2 * uniform(count), -0.5 - 2.5 * uniform(count), uniform(count) - 0.5], 1)
    t = 2 * uniform(count, POINTS)
    y = p[:, :1] * torch.exp(p[:, 1:2] * t) + p[:, 2:] + noise()
    y = torch.where(wrong, 8 * uniform(count, POINTS) - 4, y)
    start = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64).expand_as(p)
    return Fits(exponential, start, (t, y), p, wrong)


OPTIONS: dict[str, dict[str, Any]] = {
    "truncated": {"scale": 3 * NOISE},
    "one descent": {"scale": 3 * NOISE, "descents": 1},
    "Geman-McClure": {"scale": 3 * NOISE, "loss": "geman_mcclure"},
    "scale from MAD": {},
}


def fit_rows(count: int, seeds: list[int], share: float) -> list[tuple]:
    """How many problems come within 0.05 of the plain fit of their right points from the truth, in percent."""
    rows = []
    for kind in KINDS:
        found: dict[str, list[Tensor]] = {name: [] for name in ("Cauchy", *OPTIONS)}
        seconds, limit = [], []
        for seed in seeds:
            data = fits(kind, count, seed, share)
            right = (~data.wrong).double()

            def weighted(p: Tensor, a: Tensor, b: Tensor, w: Tensor, f: Any = data.residual) -> Tensor:
                return f(p, a, b) * w

            def solved(start: Tensor, function: Any, args: Any, **more: Any) -> Tensor:
                return mslsq.least_squares(
                    function, start, args=args, in_dims=0, adjoint=mslsq.Detached(), **more
                ).value

            best = solved(data.truth, weighted, (*data.args, right))

            def recovered(value: Tensor, best: Tensor = best, data: Fits = data) -> Tensor:
                return (data.canonical(value) - data.canonical(best)).norm(dim=1) < 0.05

            # What is left to do for a solver that finds the minimum of the truncated cost next to the truth.
            there = mslsq.GraduatedNonConvexity(scale=3 * NOISE, max_rounds=0)
            limit.append(recovered(solved(best, data.residual, data.args, solver=there)))
            for name in found:
                begin = time.process_time()
                if name == "Cauchy":
                    value = solved(data.start, data.residual, data.args, loss=mslsq.Cauchy(3 * NOISE))
                else:
                    solver = mslsq.GraduatedNonConvexity(**OPTIONS[name])
                    value = solved(data.start, data.residual, data.args, solver=solver)
                if name == "truncated":
                    seconds.append(time.process_time() - begin)
                found[name].append(recovered(value))
        shares = (f"{100 * torch.cat(oks).double().mean():.1f}" for oks in found.values())
        shares = (*shares, f"{100 * torch.cat(limit).double().mean():.1f}")
        rows.append((kind, count * len(seeds), *shares, 1e3 * sorted(seconds)[len(seconds) // 2] / count))
    return rows


# ---- graphs


@dataclass(frozen=True)
class Spoiled:
    """A pose graph in the order odometry, right closures, wrong closures, and its solution without the wrong ones."""

    graph: PoseGraph
    num_odometry: int
    num_right: int
    clean: Any
    """Poses of the solution without wrong closures."""
    scale: float
    extent: float

    def problem(self, count: int | None = None) -> mslsq.Problem:
        """Of all edges, or of the first `count`."""
        graph, count = self.graph, len(self.graph.first) if count is None else count
        pose = mslsq.Variable("pose", type(graph.poses), count=len(graph.ids))
        root = torch.linalg.cholesky(graph.information, upper=True)

        def between(name: str, low: int, high: int) -> mslsq.Between:
            part = slice(low, high)
            return mslsq.Between(
                pose[graph.first[part]],
                pose[graph.second[part]],
                measured=graph.measured[part],
                weight=mslsq.SqrtInformation(root[part]),
                name=name,
            )

        anchor = mslsq.Prior(pose[[0]], target=graph.poses[:1], weight=1e6)
        odometry = between("odometry", 0, self.num_odometry)
        return mslsq.Problem(odometry, between("closures", self.num_odometry, count), anchor)

    def figures(self, poses: Any, accepted: Tensor) -> tuple[float, float, int, int]:
        """Distance, excess of the residuals, right closures lost, wrong ones kept."""
        distance = float((poses.translation - self.clean.translation).pow(2).sum(1).mean().sqrt()) / self.extent
        right = self.problem(self.num_odometry + self.num_right)
        stay = mslsq.LevenbergMarquardt(max_steps=0)
        costs = [float(mslsq.solve(right, {"pose": x}, solver=stay).cost) for x in (poses, self.clean)]
        excess = math.sqrt(costs[0] / costs[1]) - 1
        return distance, excess, int((~accepted[: self.num_right]).sum()), int(accepted[self.num_right :].sum())


def spoiled(name: str, seed: int, share: float) -> Spoiled:
    """The graph of a file with wrong closures."""
    given = read_g2o(shared_data() / "g2o" / f"{name}.g2o.gz")
    kind: Any = type(given.poses)
    order = ((given.second - given.first) != 1).to(torch.int64).argsort(stable=True)
    num_odometry = int(((given.second - given.first) == 1).sum())
    parts = (given.first[order], given.second[order], given.measured[order], given.information[order])
    graph = replace(given, first=parts[0], second=parts[1], measured=parts[2], information=parts[3])
    num_right = len(order) - num_odometry
    start = [graph.poses[0].normalized()]
    for number in range(len(graph.ids) - 1):  # the first edge of every pose to the next
        edge = int((graph.first[:num_odometry] == number).nonzero()[0])
        start.append((start[-1] @ graph.measured[edge]).normalized())
    graph = graph.at(kind(torch.stack([pose.storage for pose in start])))
    solution = mslsq.solve(Spoiled(graph, num_odometry, num_right, None, 0, 0).problem(), {"pose": graph.poses})
    clean, rows = solution.value["pose"], graph.information.shape[-1]
    noise = math.sqrt(2 * float(solution.cost) / (rows * (len(graph.first) - len(graph.ids) + 1)))
    extent = float((clean.translation - clean.translation.mean(0)).abs().max())
    generator = torch.Generator().manual_seed(seed)
    count = round(share / (1 - share) * num_right)
    first, second = torch.randint(len(graph.ids), (2, 3 * count), generator=generator)
    apart = (first - second).abs() > 1
    first, second = first[apart][:count], second[apart][:count]
    move = extent * (2 * torch.rand(count, graph.dimension, generator=generator, dtype=torch.float64) - 1)
    if graph.dimension == 2:
        turn = math.pi * (2 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 1)
        wrong: Any = mslsq.SE2.from_xyt(torch.cat([move, turn], 1))
    else:
        turn = torch.nn.functional.normalize(torch.randn(count, 4, generator=generator, dtype=torch.float64), dim=1)
        wrong = mslsq.SE3(torch.cat([move, turn], 1))
    like = num_odometry + torch.randint(num_right, (count,), generator=generator)
    graph = replace(
        graph,
        first=torch.cat([graph.first, first]),
        second=torch.cat([graph.second, second]),
        measured=kind(torch.cat([graph.measured.storage, wrong.storage])),
        information=torch.cat([graph.information, graph.information[like]]),
    )
    return Spoiled(graph, num_odometry, num_right, clean, FACTOR * noise, extent)


def own(data: Spoiled) -> tuple[Any, Tensor, float]:
    """This library: the poses, which closures are accepted, seconds."""
    rounds = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.ConjugateGradient())
    solver = mslsq.GraduatedNonConvexity(costs=["closures"], scale=data.scale, rounds=rounds)
    problem, begin = data.problem(), time.process_time()
    solution = mslsq.solve(problem, {"pose": data.graph.poses}, solver=solver, adjoint=mslsq.Detached())
    return solution.value["pose"], solution.weights["closures"] > 0.5, time.process_time() - begin


def gtsam(data: Spoiled) -> tuple[Any, Tensor, float]:
    """GTSAM's GNC with truncated least squares around Levenberg-Marquardt, its own defaults."""
    import gtsam as library

    factors, start = gtsam_graphs.pose_graph(data.graph)
    options = library.GncLMParams(library.LevenbergMarquardtParams())
    options.setLossType(library.GncLossType.TLS)
    options.setKnownInliers([*range(data.num_odometry), factors.size() - 1])
    optimizer = library.GncLMOptimizer(factors, start, options)
    optimizer.setInlierCostThresholds(0.5 * data.scale**2)
    begin = time.process_time()
    values = optimizer.optimize()
    seconds = time.process_time() - begin
    accepted = torch.from_numpy(optimizer.getWeights())[data.num_odometry : -1] > 0.5
    if data.graph.dimension == 2:
        poses = [values.atPose2(key) for key in range(len(data.graph.ids))]
        return mslsq.SE2.from_xyt(torch.tensor([[p.x(), p.y(), p.theta()] for p in poses]).double()), accepted, seconds
    storage = []
    for key in range(len(data.graph.ids)):
        pose = values.atPose3(key)
        q = pose.rotation().toQuaternion()
        storage.append([*pose.translation(), q.x(), q.y(), q.z(), q.w()])
    return mslsq.SE3(torch.tensor(storage, dtype=torch.float64)), accepted, seconds


def _send(pipe: Any, contestant: Callable[[Spoiled], Any], data: Spoiled, limit: int) -> None:
    torch.set_num_threads(1)
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (spent + limit, spent + limit + 5))
    poses, accepted, seconds = contestant(data)
    pipe.send((data.figures(poses, accepted), seconds))


def limited(contestant: Callable[[Spoiled], Any], data: Spoiled, limit: int) -> tuple[Any, float] | None:
    """Figures and seconds of a contestant in a process of its own; None where it takes too long."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, contestant, data, limit))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode != -signal.SIGXCPU:
            raise RuntimeError(f"{contestant.__name__} has failed, see above") from None
        return None
    finally:
        process.join()


def graph_rows(name: str, seeds: list[int], share: float, limit: int) -> list[tuple]:
    contestants: dict[str, Callable[[Spoiled], Any]] = {"mslsq": own}
    if gtsam_graphs.INSTALLED:
        contestants["GTSAM"] = gtsam
    rows = []
    for seed in seeds:
        data, times = spoiled(name, seed, share), {}
        wrong = len(data.graph.first) - data.num_odometry - data.num_right
        for label, contestant in contestants.items():
            found = limited(contestant, data, limit)
            times[label] = limit if found is None else found[1]
            more = "> " if found is None else ""
            ratio = f"{more}{times[label] / times['mslsq']:.1f}"
            if found is None:
                rows.append((name, seed, label, "stopped", "", "", "", ratio))
                continue
            (distance, excess, lost, kept), _ = found
            outcome = (f"{distance:.1e}", f"{100 * excess:.2f} %", f"{lost} of {data.num_right}", f"{kept} of {wrong}")
            rows.append((name, seed, label, *outcome, ratio))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fits", "graphs"))
    parser.add_argument("--graph", nargs="+", default=["intel", "sphere2500", "parking-garage"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4])
    parser.add_argument("--share", type=float, help="of wrong measurements; 0.5 of fits, 0.4 of graphs by default")
    parser.add_argument("--count", type=int, default=400, help="problems of a batch of fits")
    parser.add_argument("--limit", type=int, default=100, help="seconds of processor time for each contestant")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine(["torch", "gtsam"])
    if arguments.what == "fits":
        print_table(
            f"Fits with {100 * (arguments.share or 0.5):.0f} % wrong points, recovered in percent",
            ("fit", "problems", "Cauchy", *OPTIONS, "from the truth", "truncated, ms a problem"),
            fit_rows(arguments.count, arguments.seeds, arguments.share or 0.5),
        )
        return
    for name in arguments.graph:
        print_table(
            f"{name}, {100 * (arguments.share or 0.4):.0f} % of all closures wrong",
            ("graph", "seed", "by", "distance / extent", "residuals above", "right lost", "wrong kept", "time / mslsq"),
            graph_rows(name, arguments.seeds, arguments.share or 0.4, arguments.limit),
        )


if __name__ == "__main__":
    main()
