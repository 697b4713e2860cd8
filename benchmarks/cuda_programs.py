"""Native programs as CUDA C: what NVRTC makes of each, and their numbers beside PyTorch's. No GPU is needed.

    pip install nvidia-cuda-nvrtc-cu12        # or MSLSQ_NVRTC=/path/to/libnvrtc.so.12
    python benchmarks/cuda_programs.py        # the table of results/cuda_programs.md

Every program (residual and Jacobian of one block) is compiled to machine code of an architecture, whose registers and
spills ptxas tells, and to PTX. Nothing is run on a GPU here; tests/native/cuda compile the same text for the processor
and compare its numbers with PyTorch's.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from cuda_forms import FORMS
from timing import print_table
from torch import Tensor

import mslsq
from mslsq import factors
from mslsq.alignment import models
from mslsq.alignment.objective import Photometric
from mslsq.front.problem_statement import stated
from mslsq.kernels.build import CompilerError
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.first_block import block_term
from mslsq.linearize.programs import Draft
from mslsq.linearize.unmoved import Influence
from mslsq.linearize.ways import way_of
from mslsq.native.building import Written
from mslsq.native.cuda.nvrtc import FLAGS, Compiled, nvrtc
from mslsq.native.cuda.programs import Kernels
from mslsq.native.cuda.segments import WIDEST, segments_text
from mslsq.native.operator import LINEARIZATIONS, RESIDUALS
from mslsq.problem.system import Inputs

BLOCKS = 9
DTYPES = (torch.float64, torch.float32)


class OwnBetween(mslsq.CostFunction):
    """A relative pose in plain PyTorch, without Jacobians."""

    def residual(self, a: Any, b: Any, measured: Any) -> Tensor:
        return measured.between(a.between(b)).log()


class OwnProjection(mslsq.CostFunction):
    """A point in a camera, in plain PyTorch."""

    def residual(self, camera: Any, point: Tensor, pixel: Tensor) -> Tensor:
        x = camera.act(point)
        return x[:2] / x[2] - pixel


class Peaks(mslsq.CostFunction):
    """Points of a sum of two peaks."""

    def residual(self, p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        first = p[0] * torch.exp(-(((t - p[1]) / p[2]) ** 2))
        return first + p[3] * torch.exp(-(((t - p[4]) / p[5]) ** 2)) - y


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def elements(kind: Any, count: int, seed: int) -> Any:
    if isinstance(kind, mslsq.Euclidean):
        return draw(seed, count, kind.dim)
    return kind.random(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Case = tuple[mslsq.CostFunction, dict[str, Any]]
"""A cost with `BLOCKS` blocks, and where its variables are."""


def between(cost: type, kind: type) -> Case:
    pose, i = mslsq.Variable("pose", kind, BLOCKS), torch.arange(BLOCKS)
    made = cost(pose[i], pose[(i + 1) % BLOCKS], measured=elements(kind, BLOCKS, 1))
    return made, {"pose": elements(kind, BLOCKS, 2)}


def pair(factor: Callable[..., Any], a: Any, b: Any, **data: Any) -> Case:
    first, second = mslsq.Variable("a", a, BLOCKS), mslsq.Variable("b", b, BLOCKS)
    return factor(first, second, **data), {"a": elements(a, BLOCKS, 1), "b": elements(b, BLOCKS, 2)}


def seen(factor: Callable[..., Any], rows: int, *intrinsics: float) -> Case:
    """Points two to four in front of the cameras."""
    camera = mslsq.SE3.exp(0.2 * draw(1, BLOCKS, 6))
    point = camera.inverse().act(0.3 * draw(2, BLOCKS, 3) + torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64))
    known = {"intrinsics": mslsq.Shared(torch.tensor(intrinsics, dtype=torch.float64))} if intrinsics else {}
    a, b = mslsq.Variable("a", mslsq.SE3, BLOCKS), mslsq.Variable("b", mslsq.Euclidean(3), BLOCKS)
    return factor(a, b, **known, pixel=draw(3, BLOCKS, rows)), {"a": camera.inverse(), "b": point}


def snavely() -> Case:
    a, b = mslsq.Variable("a", mslsq.Euclidean(9), BLOCKS), mslsq.Variable("b", mslsq.Euclidean(3), BLOCKS)
    camera = torch.cat((0.1 * draw(1, BLOCKS, 6), 500 + draw(2, BLOCKS, 1), 0.01 * draw(3, BLOCKS, 2)), 1)
    point = 0.3 * draw(4, BLOCKS, 3) - torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64)
    return mslsq.SnavelyReprojection(a, b, pixel=draw(5, BLOCKS, 2)), {"a": camera, "b": point}


def motion() -> Case:
    pose, rate = mslsq.Variable("pose", mslsq.SE3, BLOCKS), mslsq.Variable("rate", mslsq.Euclidean(6), BLOCKS)
    i, times = torch.arange(BLOCKS - 1), torch.linspace(0.1, 0.9, BLOCKS - 1, dtype=torch.float64)
    weight = factors.white_acceleration(times, torch.ones(6, dtype=torch.float64))
    cost = factors.ConstantVelocity(pose[i], rate[i], pose[i + 1], rate[i + 1], dt=times, weight=weight)
    return cost, {"pose": elements(mslsq.SE3, BLOCKS, 1), "rate": draw(2, BLOCKS, 6)}


def inertial() -> Case:
    accelerations, rates = draw(1, BLOCKS - 1, 20, 3), 0.1 * draw(2, BLOCKS - 1, 20, 3)
    imu = factors.preintegrate(accelerations, rates, 0.005, accelerometer_noise=2e-3, gyroscope_noise=1.7e-4)
    pose, i = mslsq.Variable("pose", mslsq.SE3, BLOCKS), torch.arange(BLOCKS - 1)
    v, bias = mslsq.Variable("v", mslsq.Euclidean(3), BLOCKS), mslsq.Variable("bias", mslsq.Euclidean(6), BLOCKS)
    gravity = mslsq.Shared(torch.tensor([0.0, 0.0, -9.81], dtype=torch.float64))
    cost = factors.Inertial(pose[i], v[i], pose[i + 1], v[i + 1], bias[i], measured=imu, gravity=gravity)
    return cost, {"pose": elements(mslsq.SE3, BLOCKS, 3), "v": draw(4, BLOCKS, 3), "bias": 0.01 * draw(5, BLOCKS, 6)}


def collision() -> Case:
    nodes = torch.linspace(-2, 2, 41, dtype=torch.float64)
    field = torch.stack(torch.meshgrid(nodes, nodes, indexing="ij"), -1).norm(dim=-1) - 0.5
    pose, origin = mslsq.Variable("pose", mslsq.SE2, BLOCKS), torch.full((2,), -2.0, dtype=torch.float64)
    cost = factors.Collision(pose, distance=mslsq.Shared(field), origin=mslsq.Shared(origin), cell=0.1, margin=0.9)
    return cost, {"pose": mslsq.SE2.from_xyt(0.3 * draw(1, BLOCKS, 3))}


def peaks() -> Case:
    p = mslsq.Variable("p", mslsq.Euclidean(6), BLOCKS)
    truth = torch.tensor([1.0, 0.3, 0.1, 0.7, 0.7, 0.15], dtype=torch.float64)
    t = torch.linspace(0, 1, 32, dtype=torch.float64)
    return Peaks(p, t=mslsq.Shared(t), y=draw(1, BLOCKS, 32)), {"p": truth + 0.01 * draw(2, BLOCKS, 6)}


def photometric(model: str) -> Case:
    """Samples of two maps, as the alignment has them: one warp, values looked up between the pixels."""
    warp, value = mslsq.Variable("warp", models.MODELS[model]), mslsq.Variable("value", mslsq.Euclidean(2))
    shared: dict[str, Any] = {
        "coefficients": draw(1, 1, 45, 66),
        "to_level": torch.tensor([0.5, 31.0, 20.0], dtype=torch.float64),
        "freedom": torch.ones(2, dtype=torch.float64),
    }
    data: dict[str, Any] = {name: mslsq.Shared(x) for name, x in shared.items()}
    data |= {"point": 0.3 * draw(2, BLOCKS, 2), "target": draw(3, BLOCKS, 1), "valid": torch.ones(BLOCKS).double()}
    cost = Photometric(warp, value, **data)
    kind = models.MODELS[model]
    start = kind.identity(dtype=torch.float64).retract(0.02 * draw(4, kind.tangent_dim))
    return cost, {"warp": start, "value": 0.1 * draw(5, 2)}


ZOO: dict[str, Callable[[], Case]] = {
    **{f"own between, {kind.__name__}": lambda kind=kind: between(OwnBetween, kind)
       for kind in (mslsq.SO2, mslsq.SE2, mslsq.SO3, mslsq.SE3, mslsq.Sim2, mslsq.Sim3)},
    "own projection": lambda: seen(OwnProjection, 2),
    "own peaks, 32 points": peaks,
    **{f"Between, {kind.__name__}": lambda kind=kind: between(mslsq.Between, kind) for kind in (mslsq.SE2, mslsq.SE3)},
    "SnavelyReprojection": snavely,
    "Bearing": lambda: pair(factors.Bearing, mslsq.SE3, mslsq.Euclidean(3), measured=draw(3, BLOCKS, 3)),
    "Range": lambda: pair(factors.Range, mslsq.SE3, mslsq.Euclidean(3), measured=draw(3, BLOCKS, 1)),
    "BearingRange": lambda: pair(
        factors.BearingRange, mslsq.SE2, mslsq.Euclidean(2), bearing=draw(3, BLOCKS, 1), range=draw(4, BLOCKS, 1)
    ),
    "Landmark": lambda: pair(factors.Landmark, mslsq.SE3, mslsq.Euclidean(3), measured=draw(3, BLOCKS, 3)),
    "Position": lambda: (
        factors.Position(mslsq.Variable("a", mslsq.SE3, BLOCKS), measured=draw(3, BLOCKS, 3)),
        {"a": elements(mslsq.SE3, BLOCKS, 1)},
    ),
    "PointToPlane": lambda: (
        factors.PointToPlane(
            mslsq.Variable("a", mslsq.SE3, BLOCKS),
            **{name: draw(k, BLOCKS, 3) for k, name in enumerate(("point", "on_plane", "normal"))},
        ),
        {"a": elements(mslsq.SE3, BLOCKS, 1)},
    ),
    "PinholeProjection": lambda: seen(factors.PinholeProjection, 2, 500.0, 480.0, 1.5, 320.0, 240.0),
    "RadialTangentialProjection": lambda: seen(
        factors.RadialTangentialProjection, 2, 500.0, 480.0, 1.5, 320.0, 240.0, -0.2, 0.1, 1e-3, -2e-3, 0.01
    ),
    "FisheyeProjection": lambda: seen(
        factors.FisheyeProjection, 2, 500.0, 480.0, 1.5, 320.0, 240.0, -0.02, 0.01, 1e-3, -2e-3
    ),
    "EquirectangularProjection": lambda: seen(factors.EquirectangularProjection, 2, 2048.0, 1024.0),
    "Stereo": lambda: seen(factors.Stereo, 3, 500.0, 480.0, 320.0, 240.0, 0.3),
    "ConstantVelocity": motion,
    "Inertial": inertial,
    "Collision": collision,
    **{f"alignment, {model}": lambda model=model: photometric(model) for model in models.MODELS},
}  # fmt: skip


@dataclass(frozen=True)
class Drafted:
    """The program of a case as scalars, and what it is to be compared with."""

    written: Written
    block: BlockTerm
    values: Values
    inputs: Inputs


def drafted(name: str, dtype: torch.dtype) -> Drafted:
    """A case in a dtype. CompilerError where it has no program."""
    cost, start = (ZOO | FORMS)[name]()
    problem = mslsq.Problem(cost).to(dtype=dtype)
    given = stated(problem, {key: value.to(dtype) for key, value in start.items()}, None)
    term, inputs = given.system.terms[0], given.inputs[0]
    block = block_term(term, given.system, 1, given.batched[0], given.values, inputs, Influence(given.system))
    block = block.going(way_of(block, given.values, inputs).way)
    draft = Draft(block, given.values, inputs, compiled=False, may_be_kept=False)
    if draft.why_not:
        raise CompilerError(draft.why_not)
    return Drafted(draft._scalars[0], block, given.values, inputs)


@dataclass(frozen=True)
class ForArchitecture:
    """`Tools` of an architecture that need not be there: nothing is loaded."""

    capability: int

    def compiled(self, source: str) -> Compiled:
        return nvrtc().compiled(source, self.capability)

    def load(self, image: bytes) -> Any:
        raise CompilerError("no GPU")


def rows(capability: int, names: Iterable[str] = (*ZOO, *FORMS)) -> Iterator[tuple[Any, ...]]:
    """A line of a table for every program."""
    for name in names:
        for dtype in DTYPES:
            precision = str(dtype).removeprefix("torch.")
            try:
                written = drafted(name, dtype).written
            except CompilerError as error:
                yield (name, precision, f"no program: {error}", "", "", "", "", "", "")
                continue
            began = time.process_time()
            kernels = Kernels.of([written], ForArchitecture(capability))
            seconds = time.process_time() - began
            ptx = nvrtc().compiled(kernels.source, capability, ptx=True).image
            parts = kernels.parts[0][LINEARIZATIONS]
            alone = kernels.parts[0][RESIDUALS]
            yield (
                name,
                precision,
                written.program.count([*written.residual, *written.jacobian]),
                len(parts),
                " + ".join(str(part.resources.registers) for part in parts),
                " + ".join(str(part.resources.spilled) for part in parts),
                " + ".join(str(part.resources.registers) for part in alone),
                f"{len(ptx) / 1024:.0f}",
                f"{seconds:.1f}",
            )


def segment_rows(capability: int) -> Iterator[tuple[Any, ...]]:
    """A line for every width of the sums over segments that normal equations are made of."""
    for dtype, width in itertools.product(DTYPES, range(1, WIDEST + 1)):
        text, precision = segments_text(dtype, width), str(dtype).removeprefix("torch.")
        began = time.process_time()
        compiled = nvrtc().compiled(text, capability)
        seconds, ptx = time.process_time() - began, nvrtc().compiled(text, capability, ptx=True).image
        taken = [compiled.resources[f"{name}_{width}"] for name in ("add_products", "add_chunks")]
        registers, spilled = zip(*((part.registers, part.spilled) for part in taken), strict=True)
        yield width, precision, *registers, *spilled, f"{len(ptx) / 1024:.0f}", f"{seconds:.1f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, default=90, help="of the GPU that is compiled for: 90 for 9.0")
    parser.add_argument("--only", choices=("costs", "forms", "segments"), help="one of the tables")
    options = parser.parse_args(arguments)
    try:
        version = nvrtc().version
    except CompilerError as error:
        print(f"{error}.")
        return 1
    print(f"NVRTC {version}, sm_{options.capability}, {' '.join(FLAGS)}; torch {torch.__version__}")
    header = ("program", "dtype", "operations", "kernels", "registers", "spilled bytes")
    header += ("registers, residual alone", "PTX, KiB", "compile, s")
    titles = {
        "Residual and Jacobian of a block, by a thread": ZOO,
        "PyTorch's larger operations (cuda_forms.py)": FORMS,
    }
    for title, cases in titles.items():
        if options.only is None or options.only == ("forms" if cases is FORMS else "costs"):
            print_table(title, header, list(rows(options.capability, cases)))
    if options.only in (None, "segments"):
        header = ("columns", "dtype", "registers, products", "registers, chunks", "spilled", "spilled, chunks")
        title = "Sums of products over segments, by a thread (mslsq/native/source/segments.h)"
        print_table(title, (*header, "PTX, KiB", "compile, s"), list(segment_rows(options.capability)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
