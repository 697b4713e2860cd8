"""Whole solves as CUDA C: what NVRTC makes of each. No GPU is needed.

    pip install nvidia-cuda-nvrtc-cu12        # or MSLSQ_NVRTC=/path/to/libnvrtc.so.12
    python benchmarks/cuda_solves.py          # the second table of results/cuda_programs.md

A thread has one problem: its start is one kernel, its steps are another, or several in a row where that one spills.
Nothing is run on a GPU here; tests/native/cuda compile the same text for the processor and compare its solutions with
those of the native program and of PyTorch.
"""

import argparse
import copy
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from batched_fits import MAX_STEPS, fits, solve_mslsq
from cuda_programs import DTYPES, ForArchitecture, draw
from timing import print_table
from torch import Tensor

import mslsq
from mslsq.front.problem_statement import stated
from mslsq.front.residual_statement import stated_residual
from mslsq.front.statement import Statement
from mslsq.kernels.build import CompilerError
from mslsq.native.cuda import solves
from mslsq.native.cuda.nvrtc import FLAGS, nvrtc
from mslsq.native.cuda.solve_building import CudaSolveMaking
from mslsq.native.cuda.solves import ADVANCE, BEGIN, PIECE
from mslsq.solvers.planning import planned
from mslsq.solvers.whole_program import NAME, RecordedSolves, recorded_solves

BATCH = 64
WARP = 32
"""Threads that step together."""
LM = mslsq.LevenbergMarquardt(max_steps=100)


@dataclass(frozen=True)
class Solve:
    """Something to solve many times: `least_squares`, or a problem of one cost."""

    residual: Callable[..., Tensor] | mslsq.Problem
    start: Any
    data: tuple[Tensor, ...]
    own: tuple[int | None, ...]
    """Of which data each problem has its own."""
    solver: mslsq.LevenbergMarquardt | mslsq.GaussNewton | mslsq.Dogleg = LM
    options: dict[str, Any] = field(default_factory=dict)

    def to(self, target: torch.dtype | str) -> "Solve":
        """The same in a dtype, or on a device."""
        start, data = self.start.to(target), tuple(x.to(target) for x in self.data)
        residual = self.residual
        if isinstance(residual, mslsq.Problem):
            residual = copy.deepcopy(residual).to(target)
        options = {name: _moved(option, target) for name, option in self.options.items()}
        return Solve(residual, start, data, self.own, self.solver, options)

    def statement(self) -> Statement:
        """As the engine takes it."""
        if isinstance(self.residual, mslsq.Problem):
            return stated(self.residual, {"x": self.start}, self._named, (None, self._own_named))
        return stated_residual(
            self.residual, self.start, self.data, in_dims=(None, *self.own), **self.options
        ).statement

    def solved(self, **options: Any) -> mslsq.Solution:
        """By the front door; `options` of the solver."""
        solver = dataclasses.replace(self.solver, **options)
        if isinstance(self.residual, mslsq.Problem):
            values = {"x": self.start}
            return mslsq.solve(self.residual, values, self._named, in_dims=(None, self._own_named), solver=solver)
        dims = (None, *self.own)
        return mslsq.least_squares(self.residual, self.start, self.data, in_dims=dims, solver=solver, **self.options)

    @property
    def _named(self) -> dict[str, dict[str, Tensor]]:
        return {"cost": {"measured": self.data[0]}}

    @property
    def _own_named(self) -> dict[str, dict[str, int]]:
        return {"cost": {"measured": 0}}


def _moved(option: Any, target: torch.dtype | str) -> Any:
    if isinstance(option, tuple):
        return tuple(_moved(part, target) for part in option)
    return option.to(target) if isinstance(option, (Tensor, torch.nn.Module)) else option


def decay(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def decays(solver: Any = LM, **options: Any) -> Solve:
    """Three parameters, 20 points."""
    t = torch.linspace(0, 2, 20, dtype=torch.float64)
    a, b, c = (x[:, None] for x in torch.rand(3, BATCH, generator=torch.Generator().manual_seed(0)).double())
    y = (0.5 + 1.5 * a) * torch.exp((-2 + 1.5 * b) * t) + 2 * c - 1 + 0.01 * draw(1, BATCH, 20)
    start = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    return Solve(decay, start, (t, y), (None, 0), solver, options)


def peaks(count: int, points: int, **options: Any) -> Solve:
    """Sums of peaks, three parameters each."""
    t = torch.linspace(0, 1, points, dtype=torch.float64)
    places = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    truth = torch.stack((torch.ones_like(places), places, torch.full_like(places, 0.25 / count)), 1).reshape(-1)

    def model(p: Tensor, t: Tensor) -> Tensor:
        height, place, width = p.reshape(count, 3, 1).unbind(1)
        return (height * torch.exp(-(((t - place) / width) ** 2))).sum(0)

    y = model(truth, t) + 0.01 * draw(1, BATCH, points)
    start = truth * (1 + 0.03 * draw(2, 3 * count))
    return Solve(lambda p, t, y: model(p, t) - y, start, (t, y), (None, 0), LM, options)


def spots() -> Solve:
    """Round Gaussians of 15 × 15 pixels, five parameters."""
    rows, columns = torch.meshgrid(*[torch.arange(15.0, dtype=torch.float64)] * 2, indexing="ij")

    def residual(p: Tensor, rows: Tensor, columns: Tensor, image: Tensor) -> Tensor:
        squared = (rows - p[1]) ** 2 + (columns - p[2]) ** 2
        return p[0] * torch.exp(-0.5 * squared / p[3] ** 2) + p[4] - image

    centre = 7 + draw(1, BATCH, 2)
    clean = torch.exp(-0.125 * ((rows - centre[:, 0, None, None]) ** 2 + (columns - centre[:, 1, None, None]) ** 2))
    start = torch.tensor([1.5, 7.0, 7.0, 1.5, 0.2], dtype=torch.float64)
    return Solve(residual, start, (rows, columns, clean + 0.02 * draw(2, BATCH, 15, 15)), (None, None, 0))


class Seen(mslsq.CostFunction):
    """A known point in the camera whose pose is sought."""

    def residual(self, x: Any, point: Tensor, measured: Tensor) -> Tensor:
        seen = x.act(point)
        return seen[:2] / seen[2] - measured


class Distance(mslsq.CostFunction):
    """From a measured element."""

    def residual(self, x: Any, measured: Any) -> Tensor:
        return measured.local(x)


def poses() -> Solve:
    """Poses in SE(3) from twelve points each."""
    points = 0.5 * draw(1, 12, 3) + torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64)
    truth = mslsq.SE3.exp(0.1 * draw(2, BATCH, 1, 6))
    seen = truth.act(points)
    cost = Seen(mslsq.Variable("x", mslsq.SE3), point=points, measured=seen[0, :, :2], name="cost")
    pixels = seen[..., :2] / seen[..., 2:] + 1e-3 * draw(3, BATCH, 12, 2)
    return Solve(mslsq.Problem(cost), mslsq.SE3.identity(dtype=torch.float64), (pixels,), (0,))


def means(kind: Any) -> Solve:
    """Robust means of four elements."""
    random = torch.Generator().manual_seed(1)
    base = kind.random(BATCH, 1, generator=random, dtype=torch.float64)
    near = type(base)(base.storage.expand(-1, 4, -1)).retract(0.2 * draw(2, BATCH, 4, kind.tangent_dim))
    measured = kind.random(4, generator=random, dtype=torch.float64)
    cost = Distance(mslsq.Variable("x", kind), measured=measured, loss=mslsq.Cauchy(1.0), name="cost")
    return Solve(mslsq.Problem(cost), kind(base.storage[0, 0]), (near,), (0,))


ZOO: dict[str, Callable[[], Solve]] = {
    "decay, 3 unknowns, 20 points": decays,
    "the same, Gauss-Newton": lambda: decays(mslsq.GaussNewton(max_steps=100)),
    "the same, Dogleg": lambda: decays(mslsq.Dogleg(max_steps=100)),
    "the same, Huber": lambda: decays(loss=mslsq.Huber(0.05)),
    "the same, bounds": lambda: decays(bounds=(torch.tensor([0.0, -1.6, -0.5]).double(), None), project_start=True),
    "spot, 5 unknowns, 15 × 15 pixels": spots,
    "2 peaks, 6 unknowns, 32 points": lambda: peaks(2, 32),
    "4 peaks, 12 unknowns, 64 points": lambda: peaks(4, 64),
    "6 peaks, 18 unknowns, 96 points": lambda: peaks(6, 96),
    "pose, SE(3), 12 points": poses,
    **{f"robust mean of 4, {kind.__name__}": lambda kind=kind: means(kind)
       for kind in (mslsq.SE2, mslsq.SO3, mslsq.SE3, mslsq.Sim3)},
}  # fmt: skip


def recorded(solve: Solve) -> RecordedSolves:
    """Its start, step and linearization as scalars. NotScalarError where there are none."""
    statement = solve.statement()
    task = statement.task(solve.solver)
    plan, *_ = planned(task, statement.values, statement.inputs, native=False, bounds=statement.bounds.tensors or None)
    return recorded_solves(task, plan, statement.values, statement.inputs)


def rows(capability: int) -> Iterator[tuple[Any, ...]]:
    """A line of the table for every solve."""
    tools = ForArchitecture(capability)
    for name, made in ZOO.items():
        for dtype in DTYPES:
            found = recorded(made().to(dtype))
            making = CudaSolveMaking(NAME, found.functions, found.layout, dtype, tools)
            began = time.process_time()
            compiled, loops, pieces, _ = making.compiled(found.functions)
            seconds = time.process_time() - began
            assert nvrtc().compiled(making.source(found.functions), capability, ptx=True).image
            kernels = [compiled.resources[f"{NAME}_{BEGIN}"]]
            names = [f"{PIECE}{number}" for number in range(pieces)] or [ADVANCE]
            kernels += [compiled.resources[f"{NAME}_{kernel}"] for kernel in names]
            told = zip(*[(one.registers, one.spilled, one.stack) for one in kernels], strict=True)
            yield (
                name,
                str(dtype).removeprefix("torch."),
                found.layout.state,
                *(", ".join(map(str, figures)) for figures in told),
                loops,
                f"{seconds:.1f}",
            )


# ---- what threads wait for: counted, for steps that solves on a processor have taken


def until_the_slowest(steps: Tensor) -> int:
    """Steps of threads where those of a warp go on as long as the slowest of them."""
    filled = torch.zeros(-(-len(steps) // WARP) * WARP, dtype=torch.int64)
    filled[: len(steps)] = steps
    return WARP * int(filled.view(-1, WARP).amax(1).sum())


def by_launches(steps: Tensor) -> int:
    """The same where problems that have stopped leave between launches, as `mslsq.native.cuda.solves` has it."""
    paid = taken = 0
    while bool((running := steps > 0).any()):
        steps = steps[running] if int(running.sum()) * solves.FULL <= len(steps) else steps
        most = min(max(taken, solves.FIRST_STEPS), solves.MOST_STEPS)
        paid, taken = paid + until_the_slowest(steps.clamp(max=most)), taken + most
        steps = (steps - most).clamp(min=0)
    return paid


def by_themselves(steps: Tensor) -> int:
    """Where a thread takes the next problem: its start, as long as a step, is waited for by the others of its warp."""
    waiting, left, paid = steps.tolist()[::-1], [0] * WARP, 0
    while True:
        starts = 0
        for lane in range(WARP):
            if not left[lane] and waiting:
                left[lane], starts = waiting.pop(), 1
        if not any(left):
            return WARP * paid
        paid += 1 + starts
        left = [max(more - 1, 0) for more in left]


def waited(batch: int) -> Iterator[tuple[Any, ...]]:
    """A line for every kind of batch: how many times the steps and starts that problems need, warps take."""
    random = torch.Generator().manual_seed(0)
    alike = 8 + torch.randint(0, 5, (batch,), generator=random)
    few = alike.clone()
    few[torch.randperm(batch, generator=random)[: batch // 100]] = 200
    solver = mslsq.LevenbergMarquardt(max_steps=MAX_STEPS, native="wait")
    kinds = {"8 to 12 steps": alike, "the same, 1 % of them 200": few} | {
        f"decays, {case} starts": solve_mslsq(fits(case, batch), solver).num_steps for case in ("well-posed", "hard")
    }
    for name, steps in kinds.items():
        steps = steps.clamp(min=1)
        needed = int(steps.sum()) + batch
        alone = sum(by_themselves(part) for part in steps.chunk(64))  # by 64 warps
        yield (
            name,
            f"{float(steps.double().mean()):.1f}",
            int(steps.max()),
            (until_the_slowest(steps) + batch) / needed,
            (by_launches(steps) + batch) / needed,
            alone / needed,
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, default=90, help="of the GPU that is compiled for: 90 for 9.0")
    parser.add_argument("--waiting", action="store_true", help="what threads wait for, alone")
    options = parser.parse_args(arguments)
    header = ("16,384 problems", "mean", "largest", "one launch", "launches", "threads take the next")
    print_table("Steps and starts of warps, in those that problems need", header, list(waited(16_384)))
    if options.waiting:
        return 0
    try:
        version = nvrtc().version
    except CompilerError as error:
        print(f"{error}.")
        return 1
    print(f"NVRTC {version}, sm_{options.capability}, {' '.join(FLAGS)}; torch {torch.__version__}")
    header = ("solve", "dtype", "numbers of a state", "registers", "spilled bytes", "bytes of stack", "loops")
    header += ("compile, s",)
    print_table("Whole solves, a thread each: start, step", header, list(rows(options.capability)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
