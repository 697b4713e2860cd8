"""A bilinear sample of an image as a residual: a kernel of Warp beside the same in PyTorch, in one run.

    OMP_NUM_THREADS=1 python benchmarks/warp_sampling.py

A picture is moved by one shift; every point is a block. The residual with its Jacobian (under `vmap`), and whole solves
of a problem that was solved before, in float32, with the library's defaults.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import warp as wp
from timing import interleaved, print_machine, print_table
from torch import Tensor
from torch.func import jacrev, vmap

import mslsq
from mslsq.interop import warp
from mslsq.kernels import target

COUNTS = (4_096, 32_768, 262_144)
SIDE = 600


@wp.kernel
def sampled(
    shift: wp.array(dtype=wp.vec2),
    at: wp.array(dtype=wp.vec2),
    seen: wp.array(dtype=float),
    image: wp.array2d(dtype=float),
    residual: wp.array(dtype=float),
):
    i = wp.tid()
    p = at[i] + shift[i]
    x = int(wp.floor(p[0]))
    y = int(wp.floor(p[1]))
    u = p[0] - float(x)
    v = p[1] - float(y)
    top = image[y, x] * (1.0 - u) + image[y, x + 1] * u
    bottom = image[y + 1, x] * (1.0 - u) + image[y + 1, x + 1] * u
    residual[i] = top * (1.0 - v) + bottom * v - seen[i]


def sampled_by_torch(shift: Tensor, at: Tensor, seen: Tensor, image: Tensor) -> Tensor:
    p = at + shift
    low = p.detach().floor()
    u, v = (p - low).unbind(-1)
    x, y = low.long().unbind(-1)
    corner = (y * image.shape[1] + x)[..., None] + torch.tensor([0, 1, image.shape[1], image.shape[1] + 1])
    a, b, c, d = image.reshape(-1)[corner].unbind(-1)
    top, bottom = a * (1 - u) + b * u, c * (1 - u) + d * u
    return top * (1 - v) + bottom * v - seen


def compared(
    count: int, image: Tensor, kinds: dict[str, Any], functions: dict[str, Any], repeats: int
) -> list[list[Any]]:
    """The rows of the table for a number of points."""
    torch.manual_seed(0)
    shift, truth, start = mslsq.Variable("shift", mslsq.Euclidean(2)), torch.tensor([1.3, -0.7]), torch.zeros(2)
    at = 20 + (SIDE - 40) * torch.rand(count, 2)
    seen = vmap(sampled_by_torch, (None, 0, 0, None))(truth, at, torch.zeros(count), image)
    contestants, steps, errors = {}, {}, {}
    for name, kind in kinds.items():
        problem = mslsq.Problem(kind(shift, at=at, seen=seen, image=mslsq.Shared(image)))
        jacobian = vmap(jacrev(functions[name]), (None, 0, 0, None))
        found = mslsq.solve(problem, {"shift": start})
        steps[name], errors[name] = int(found.num_steps), float((found.value["shift"] - truth).abs().max())
        contestants[f"{name}, Jacobian"] = partial(jacobian, start, at, seen, image)
        contestants[f"{name}, solve"] = partial(mslsq.solve, problem, {"shift": start})
    times = interleaved(contestants, repeats)
    rows = []
    for what in ("Jacobian", "solve"):
        mine, other = times[f"Warp, {what}"].cpu, times[f"PyTorch, {what}"].cpu
        counts = [steps["Warp"], steps["PyTorch"]] if what == "solve" else ["", ""]
        rows.append([count, what, mine, other, mine / other, *counts, max(errors.values())])
    return rows


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    wp.config.quiet = True
    y, x = torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)), indexing="ij")
    image = torch.sin(0.03 * x) + torch.cos(0.02 * y) + 0.3 * torch.sin(0.00003 * x * y)
    operator = warp.operator(sampled, shared=("image",))
    kinds = {
        "Warp": warp.cost(sampled, shared=("image",)),
        "PyTorch": mslsq.cost(sampled_by_torch),
    }
    functions = {"Warp": operator, "PyTorch": sampled_by_torch}
    rows = [row for count in COUNTS for row in compared(count, image, kinds, functions, repeats)]
    print_machine(["torch", "warp-lang", "mslsq"])
    print(f"Instruction set: {target()}. {Path(__file__).name}, medians of {repeats}, float32.")
    header = ["points", "what", "Warp, cpu ms", "PyTorch, cpu ms", "ratio", "steps Warp", "steps PyTorch", "error, px"]
    print_table("Bilinear samples", header, rows)


if __name__ == "__main__":
    main()
