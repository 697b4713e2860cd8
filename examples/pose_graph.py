"""A pose graph in the plane: two noisy laps of a ring, and loop closures of which every fifth is wrong.

    python examples/pose_graph.py --out outputs/pose_graph

Plain least squares believes the wrong closures; with a robust loss on the closures alone they lose their say.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import mslsq

LAP = 48
SIGMA = torch.tensor([0.02, 0.02, 0.01], dtype=torch.float64)
"""Of a measured relative pose: x and y in metres, angle in radians."""


def noisy(clean: mslsq.SE2, generator: torch.Generator) -> mslsq.SE2:
    noise = SIGMA * torch.randn(len(clean), 3, generator=generator, dtype=torch.float64)
    return clean @ mslsq.SE2.exp(noise)


def ring() -> mslsq.SE2:
    """The true poses: two laps of a circle of 5 m, heading along it."""
    angle = torch.arange(2 * LAP, dtype=torch.float64) * (2 * torch.pi / LAP)
    return mslsq.SE2.from_xyt(torch.stack([5 * angle.cos(), 5 * angle.sin(), angle + torch.pi / 2], -1))


def dead_reckoning(first: mslsq.SE2, steps: mslsq.SE2) -> mslsq.SE2:
    """The start: every pose from the one before, so that the errors add up."""
    poses = [first]
    for number in range(len(steps)):
        poses.append(poses[-1] @ steps[number])
    return mslsq.SE2(torch.stack([pose.storage for pose in poses]))


def error(estimate: mslsq.SE2, truth: mslsq.SE2) -> float:
    """Root mean square distance from the true positions, in metres."""
    return float((estimate.translation - truth.translation).square().sum(-1).mean().sqrt())


def plot(panels: dict[str, mslsq.SE2], truth: mslsq.SE2, closures: tuple[Tensor, Tensor], path: Path) -> None:
    figure = Figure(figsize=(4.2 * len(panels), 4.2), layout="constrained")  # not pyplot: no display is needed
    axes = figure.subplots(1, len(panels))
    for axis, (title, poses) in zip(axes, panels.items(), strict=True):
        x, y = poses.translation.unbind(-1)
        for i, j in zip(*closures, strict=True):
            axis.plot([x[i], x[j]], [y[i], y[j]], color="tab:orange", linewidth=0.6)
        axis.plot(*truth.translation.T, color="0.7", linewidth=4, label="truth")
        axis.plot(x, y, ".-", color="tab:blue", linewidth=1, markersize=3, label="estimate")
        axis.set(title=f"{title}: {error(poses, truth):.3f} m", aspect="equal")
    axes[0].legend(loc="center")
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="A pose graph with wrong loop closures.")
    parser.add_argument("--out", type=Path, default=Path("outputs/pose_graph"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)

    generator = torch.Generator().manual_seed(1)
    truth = ring()
    odometry = noisy(truth[:-1].between(truth[1:]), generator)
    i = torch.arange(0, LAP, 2)
    j = i + LAP
    closing = noisy(truth[i].between(truth[j]), generator)
    wrong = torch.arange(len(i)) % 5 == 0
    shift = 3 * torch.randn(len(i), 3, generator=generator, dtype=torch.float64)
    closing = mslsq.SE2(torch.where(wrong[:, None], (closing @ mslsq.SE2.exp(shift)).storage, closing.storage))

    pose = mslsq.Variable("pose", mslsq.SE2, count=2 * LAP)
    weight = mslsq.Diagonal(1 / SIGMA)
    steps = mslsq.Between(pose[:-1], pose[1:], measured=odometry, weight=weight, name="odometry")
    results = {"start": dead_reckoning(truth[0], odometry)}
    for title, loss in (("least squares", None), ("Geman-McClure", mslsq.GemanMcClure(3.0))):
        closures = mslsq.Between(pose[i], pose[j], measured=closing, weight=weight, loss=loss, name="closure")
        problem = mslsq.Problem(steps, closures, pose.fixed([0]))
        solution = mslsq.solve(problem, {"pose": results["start"]})
        results[title] = solution.value["pose"]
        print(f"{title}: cost {float(solution.cost):.1f} after {int(solution.num_steps)} steps. {solution.message()}")
    errors = {title: error(poses, truth) for title, poses in results.items()}
    print(f"{len(truth)} poses, {len(i)} loop closures, {int(wrong.sum())} of them wrong")
    print("\n".join(f"  {title:14s} {value:.3f} m from the truth (rms)" for title, value in errors.items()))
    plot(results, truth, (i, j), options.out / "pose_graph.png")
    print(f"picture: {options.out / 'pose_graph.png'}")
    return errors


if __name__ == "__main__":
    main()
