"""One problem on 1, 2 and 4 processes: weak and strong scaling, what is exchanged, a cost model and its check.

    python benchmarks/distributed.py            # five minutes; the tables of benchmarks/results/distributed.md
    python benchmarks/distributed.py --quick

Times are processor time of a rank, gloo's threads included: cores may be shared with others, and a rank that waits for
another uses none. Counts of collectives and bytes are exact. The model is fitted on processes that work beside one
another, each on a problem of its own, and on empty collectives of as many, and compared with runs of 1, 2 and 4 ranks
that it has not seen. Ranks keep the memory that they free: else a step finds its pages new or old as it happens, at a
price of up to twice its arithmetic, and no model can know which (`--pages` leaves it to the C library, and shows that).
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rank_simulation import main as simulations
from rank_simulation import messages_of_step
from timing import print_machine, print_table
from torch import Tensor

import mslsq
import mslsq.distributed
import mslsq.kernels
from mslsq.datasets.synthetic_graphs import sphere_graph

UNKNOWNS = 12
STEPS = 8
REPEATS = 7
"""Turns, of which the least counts: with one of each, the prediction of a single process was wrong by a factor of 2.6
(load 20)."""
LATENCY_CALLS = 100
DOUBLE = 8
"""Bytes."""


class Series(mslsq.CostFunction):
    """A sum of six decays: twelve unknowns, one row a block."""

    def residual(self, p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return (p[:6] * torch.exp(-p[6:] * t)).sum() - y


def series(rows: int) -> tuple[mslsq.Problem, dict[str, Tensor]]:
    """A fit with that many rows."""
    generator = torch.Generator().manual_seed(0)
    t = 3 * torch.rand(rows, generator=generator, dtype=torch.float64)
    truth = torch.cat((torch.ones(6), 2.0 ** torch.arange(-2, 4))).to(torch.float64)
    y = (truth[:6] * torch.exp(-truth[6:] * t[:, None])).sum(1)
    y = y + 0.01 * torch.randn(rows, generator=generator, dtype=torch.float64)
    p = mslsq.Variable("p", mslsq.Euclidean(UNKNOWNS))
    return mslsq.Problem(Series(p, t=t, y=y)), {"p": truth * 1.2}


def sphere(laps: int) -> tuple[mslsq.Problem, dict[str, Any]]:
    """A pose graph with 50 poses a lap."""
    graph = sphere_graph(laps, 50).graph
    return graph.problem(), {"pose": graph.poses}


POSES = 200


def network(edges: int) -> tuple[mslsq.Problem, dict[str, Any]]:
    """Poses between which very much is measured: a product is long, what is exchanged of it short."""
    random = torch.Generator().manual_seed(0)
    truth = mslsq.SE3.random(POSES, generator=random, dtype=torch.float64)
    i = torch.randint(POSES, (edges,), generator=random)
    j = (i + torch.randint(1, POSES, (edges,), generator=random)) % POSES
    noise = 0.01 * torch.randn(edges, 6, generator=random, dtype=torch.float64)
    measured = mslsq.SE3(truth.storage[i]).between(mslsq.SE3(truth.storage[j])).retract(noise)
    pose = mslsq.Variable("pose", mslsq.SE3, count=POSES)
    start = truth.retract(0.05 * torch.randn(POSES, 6, generator=random, dtype=torch.float64))
    cost = mslsq.Between(pose[i], pose[j], measured=measured)
    return mslsq.Problem(cost, pose.fixed([0])), {"pose": start}


PROBLEMS: dict[str, Callable[[int], tuple[mslsq.Problem, dict[str, Any]]]] = {
    "fit": series,
    "sphere": sphere,
    "network": network,
}
MATRIX_FREE = mslsq.linear.ConjugateGradient(matrix_free=True)
LINEAR = {"fit": mslsq.linear.Cholesky(), "sphere": MATRIX_FREE, "network": MATRIX_FREE}


def spent(kind: str, problem: mslsq.Problem, start: dict[str, Any], steps: int, group: Any) -> dict[str, float]:
    """One solve of that many steps over the ranks of a group: what it costs this rank."""
    options = {"max_steps": steps, "native": "never", "linear_solver": LINEAR[kind]}
    solver = mslsq.LevenbergMarquardt(ftol=0, gtol=0, xtol=0, **options)
    before, cpu, paged = mslsq.distributed.traffic(), time.process_time(), new_pages()
    solution = mslsq.distributed.solve(problem, start, solver=solver, group=group, timeout=300)
    cpu, paged, after = time.process_time() - cpu, new_pages() - paged, mslsq.distributed.traffic()
    return {
        "cpu": cpu,
        "pages": paged,
        "collectives": after.collectives - before.collectives,
        "bytes": after.bytes - before.bytes,
        "steps": int(solution.num_steps),
        "cost": float(solution.cost),
    }


def new_pages() -> int:
    """That this process has been given so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


Turn = Callable[[], list[dict[str, float]]]
"""Measures once; of what it returns the least of several turns counts."""


def solves(kind: str, size: int, group: Any) -> Turn:
    """A short solve and a long one, whose plan is made."""
    problem, start = PROBLEMS[kind](size)
    spent(kind, problem, start, STEPS, group)
    return lambda: [spent(kind, problem, start, steps, group) for steps in (1, STEPS)]


def one_step(few: dict[str, float], many: dict[str, float]) -> dict[str, float]:
    """A step more: the difference of a long solve and a short one."""
    more = many["steps"] - few["steps"]
    return many | {figure: (many[figure] - few[figure]) / more for figure in ("cpu", "pages", "collectives", "bytes")}


def exchanged(numbers: int) -> list[dict[str, float]]:
    """One collective of that many doubles behind a millisecond of work, and that work alone: in a loop of collectives
    alone no rank waits long enough to be put to sleep, and one takes 0.6 to 0.8 of the processor time."""
    tensor, own = torch.zeros(numbers, dtype=torch.float64), torch.zeros(100_000, dtype=torch.float64)
    calls = max(20, min(LATENCY_CALLS, 10_000_000 // max(numbers, 1)))
    taken = []
    for exchanges in (False, True):
        cpu = time.process_time()
        for _ in range(calls):
            for _ in range(20):
                own.add_(1.0)
            if exchanges:
                dist.all_reduce(tensor)
        taken.append({"cpu": (time.process_time() - cpu) / calls})
    return taken


ALONE = ", alone"
"""Of a job: every rank does all of it by itself, beside the others."""


def work(jobs: list[list[Any]], keeps_memory: bool) -> None:
    """A rank: the jobs one after the other; the first one prints what all found."""
    torch.set_num_threads(1)
    if keeps_memory:
        mslsq.kernels.keep_freed_memory()
    rank = mslsq.distributed.initialize("gloo", timeout=300)
    groups = [dist.new_group([number]) for number in range(dist.get_world_size())]
    turns: list[Turn] = [
        (lambda size=size: exchanged(size))
        if kind == "exchange"
        else solves(kind.removesuffix(ALONE), size, groups[rank] if kind.endswith(ALONE) else None)
        for kind, size in jobs
    ]
    taken: list[list[list[dict[str, float]]]] = [[] for _ in jobs]
    for _ in range(REPEATS):  # in turn, so that all jobs meet the same company
        for turn, of in zip(turns, taken, strict=True):
            dist.barrier()  # all begin together
            of.append(turn())
    least = [[min(part, key=lambda one: one["cpu"]) for part in zip(*of, strict=True)] for of in taken]
    found = [
        {"cpu": parts[1]["cpu"] - parts[0]["cpu"]} if kind == "exchange" else one_step(*parts)
        for (kind, _), parts in zip(jobs, least, strict=True)
    ]
    of_all_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all_ranks, found)
    if rank == 0:
        print("FOUND " + json.dumps(of_all_ranks), flush=True)
    dist.destroy_process_group()


def on_ranks(count: int, jobs: list[list[Any]], keeps_memory: bool = True) -> list[list[dict[str, float]]]:
    """By job and rank, what they found."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={count}", "--standalone", __file__]
    given = ["--jobs", json.dumps(jobs), *([] if keeps_memory else ["--pages"])]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    by_rank = json.loads(line.removeprefix("FOUND "))
    return [list(ranks) for ranks in zip(*by_rank, strict=True)]


def slowest(ranks: list[dict[str, float]], figure: str = "cpu") -> float:
    return max(rank[figure] for rank in ranks)


def scaling(counts: list[int], sizes: dict[str, int]) -> None:
    """Strong scaling: the same problem on more ranks. Weak: as much for each.

    Args:
        sizes: by problem, of the one that all ranks share, and of what each has.
    """
    one = {}
    for count in counts:
        one[count] = on_ranks(count, [[kind, size * of] for kind, size in sizes.items() for of in (1, count)])
    rows = []
    for number, name in enumerate(f"{kind}, {how}" for kind in sizes for how in ("strong", "weak")):
        alone = slowest(one[1][number])
        for count in counts:
            ranks = one[count][number]
            ideal = alone / count if "strong" in name else alone
            rows.append(
                [
                    name,
                    count,
                    1e3 * slowest(ranks),
                    ideal / slowest(ranks),
                    ranks[0]["collectives"],
                    ranks[0]["bytes"] / 1e3,
                    f"{ranks[0]['cost']:.10g}",
                ]
            )
    head = ["problem", "ranks", "ms of processor a step", "efficiency", "collectives a step", "kB a step", "cost"]
    print_table("Scaling", head, rows)


@dataclass(frozen=True)
class Model:
    """Seconds of a step of a dense fit on a rank: what its rows take, and what is exchanged."""

    work: dict[int, float]
    """By number of rows, seconds of a process beside as many others as there will be ranks, which share caches and
    memory, and perhaps cores. Not a line: a Jacobian that no cache holds takes longer for a row."""
    latency: float
    """Seconds for a collective of six integers."""
    byte: float
    """Seconds for a byte of a large collective."""

    def seconds(self, rows: float, unknowns: int = UNKNOWNS) -> float:
        """Of a rank with that many rows."""
        known, seconds = (np.log(np.array(list(one))) for one in (self.work.keys(), self.work.values()))
        work = float(np.exp(np.interp(np.log(rows), known, seconds)))
        return work + COLLECTIVES * self.latency + self.byte * bytes_of_fit(unknowns)


COLLECTIVES = 3.0
"""In a step of a dense fit: the sum, announced; what the first rank has come to."""


def bytes_of_fit(unknowns: int) -> float:
    """What a rank gives in a step."""
    return sum(messages_of_step(unknowns))


def check(count: int, of_model: list[int], of_check: list[int], keeps_memory: bool = True) -> list[list[Any]]:
    """Fits on that many ranks that the model has not seen, in turn with what it is fitted on: processes that exchange
    nothing, and empty collectives. `of_model` and `of_check` are the rows of a rank."""
    alone = [["fit" + ALONE, rows] for rows in of_model]
    jobs = [*alone, ["exchange", 6], ["exchange", 1_000_000], *(["fit", rows * count] for rows in of_check)]
    found = on_ranks(count, jobs, keeps_memory)
    *work, empty, large = (slowest(ranks) for ranks in found[: len(alone) + 2])
    # One process exchanges as well, with itself: what a collective takes it is in its work.
    latency, byte = (0.0, 0.0) if count == 1 else (empty, max(large - empty, 0) / (1_000_000 * DOUBLE))
    model = Model(dict(zip(of_model, work, strict=True)), latency, byte)
    pages_of = [f"{slowest(ranks, 'pages'):.0f}" for ranks in found[: len(alone)]]
    timed = zip(model.work.items(), pages_of, strict=True)
    took = ", ".join(f"{1e3 * seconds:.1f} ms and {new} new pages for {rows:,} rows" for (rows, seconds), new in timed)
    print(
        f"\n{count} processes beside one another, a step: {took}. A collective of six integers {1e6 * latency:.0f} us, "
        f"a byte {1e9 * byte:.2f} ns. All in processor time."
    )
    rows = []
    for size, ranks in zip(of_check, found[len(alone) + 2 :], strict=True):
        measured, calls, given = slowest(ranks), ranks[0]["collectives"], ranks[0]["bytes"]
        counted = f"{calls:.1f} ({COLLECTIVES:.0f})", f"{given:.0f} ({bytes_of_fit(UNKNOWNS):.0f})"
        predicted, pages = model.seconds(size), slowest(ranks, "pages")
        figures = [1e3 * predicted, 1e3 * measured, predicted / measured, f"{pages:.0f}"]
        rows.append([count, f"{size * count:,}", *figures, *counted])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the size")
    parser.add_argument("--model", action="store_true", help="the cost model and its check alone")
    parser.add_argument("--pages", action="store_true", help="with --model: freed memory goes back to the system")
    parser.add_argument("--only", choices=list(PROBLEMS), help="the scaling of one problem alone")
    parser.add_argument("--jobs", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jobs:
        work(json.loads(options.jobs), not options.pages)
        return
    print_machine(["torch", "numpy"])
    print(f"instructions: {torch.backends.cpu.get_cpu_capability()}; one thread a rank, gloo")
    quick = options.quick
    sizes = {"fit": 40_000 if quick else 200_000, "sphere": 5, "network": 4_000 if quick else 20_000}
    if options.only:
        scaling([1, 2, 4], {options.only: sizes[options.only]})
        return
    if not options.model:
        scaling([1, 2, 4], sizes)
    of_model = [10_000, 30_000, 100_000] if quick else [40_000, 150_000, 500_000]
    of_check = [15_000, 40_000, 80_000] if quick else [60_000, 200_000, 400_000]
    rows = [row for count in (1, 2, 4) for row in check(count, of_model, of_check, not options.pages)]
    head = ["ranks", "rows", "predicted ms", "measured ms", "ratio", "new pages"]
    head += ["collectives (model)", "bytes (model)"]
    print_table("The model: processor time of a step", head, rows)
    simulations()


if __name__ == "__main__":
    main()
