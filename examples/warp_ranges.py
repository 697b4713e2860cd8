"""A track from ranges to beacons whose residual is a kernel of NVIDIA Warp.

    pip install 'mslsq[warp]'
    python examples/warp_ranges.py

A vehicle hears eight beacons and measures how far they are; its positions are found together, with a cost of this
library's own that keeps the track smooth. The kernel is compiled by Warp, for the processor or the device that the
tensors are on, and differentiated by its adjoint; a derivative of the solution in the beacons goes through it too.
"""

import argparse

import torch
import warp as wp  # pyright: ignore[reportMissingImports]
from torch import Tensor

import mslsq
from mslsq.interop import warp

BEACONS, NOISE = 8, 0.05


@wp.kernel
def distance(
    position: wp.array(dtype=wp.vec3),  # pyright: ignore
    beacon: wp.array(dtype=wp.vec3),  # pyright: ignore
    measured: wp.array(dtype=float),  # pyright: ignore
    residual: wp.array(dtype=float),  # pyright: ignore
):
    i = wp.tid()
    residual[i] = wp.length(position[i] - beacon[i]) - measured[i]


Distance = warp.cost(distance, second="differences")


def make_track(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions (count, 3), beacons (BEACONS, 3), and ranges (count, BEACONS) with noise."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linspace(0, 3, count)
    track = torch.stack([4 * torch.cos(turn), 4 * torch.sin(turn), 0.5 * turn], 1)
    beacons = 20 * torch.rand(BEACONS, 3, generator=generator) - 10
    ranges = torch.linalg.vector_norm(track[:, None] - beacons, dim=-1)
    return track, beacons, ranges + NOISE * torch.randn(ranges.shape, generator=generator)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="A track from ranges, by a kernel of Warp.")
    parser.add_argument("--count", type=int, default=50)
    options = parser.parse_args(arguments)
    track, beacons, ranges = make_track(options.count)
    count = len(track)

    position = mslsq.Variable("position", mslsq.Euclidean(3), count)
    at = torch.arange(count).repeat_interleave(BEACONS)
    problem = mslsq.Problem(
        Distance(position[at], beacon=beacons.repeat(count, 1), measured=ranges.reshape(-1), weight=1 / NOISE),
        mslsq.Difference(
            position[torch.arange(count - 1)],
            position[torch.arange(1, count)],
            measured=track.diff(dim=0) + 0.02 * torch.randn(count - 1, 3, generator=torch.Generator().manual_seed(1)),
            weight=1 / 0.02,
        ),
    )
    start = {"position": torch.zeros(count, 3) + 0.1}
    solution = mslsq.solve(problem, start)
    error = float((solution.value["position"] - track).norm(dim=1).mean())

    # The last position as a function of where the first beacon stands.
    moved = beacons.clone().requires_grad_()
    data = {"distance": {"beacon": moved.repeat(count, 1)}}
    last = mslsq.solve(problem, solution.value, data).value["position"][-1]
    (gradient,) = torch.autograd.grad(last[0], moved)

    print(f"{count} positions: {solution.message()}")
    print(f"mean error {error:.4f} m, of ranges with {NOISE} m")
    print(f"1 m of the first beacon along x moves the last position by {float(gradient[0, 0]):.4f} m")
    return {"error": error, "gradient": float(gradient[0, 0])}


if __name__ == "__main__":
    main()
