"""A robot maps landmarks while it drives: bearings and ranges, a problem that grows, and how sure the map is.

    python examples/bearing_range_slam.py --out outputs/bearing_range_slam

The robot goes around a hall twice. The problem grows by ten poses at a time, and the landmarks that they see first:
new poses start where dead reckoning puts them, all else where the solve before has left it.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import mslsq
from mslsq import factors
from mslsq.manifolds import cat

F64 = torch.float64
STEP, SIGHT = torch.tensor([0.05, 0.02, 0.02], dtype=F64), torch.tensor([0.01, 0.05], dtype=F64)
"""Standard deviations: of steps in metres and radians; of directions in radians, and distances in metres."""
POSES, LANDMARKS, CHUNK, REACH = 120, 30, 10, 4.0


class Drive:
    """Where the robot was, and what it has measured."""

    def __init__(self, generator: torch.Generator):
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=F64)  # noqa: E731
        x, y = (t := torch.arange(POSES, dtype=F64) * (4 * torch.pi / POSES)).cos(), t.sin()
        self.truth = mslsq.SE2.from_xyt(torch.stack((8 * x, 5 * y, torch.atan2(5 * x, -8 * y)), -1))
        around = torch.linspace(0, 2 * torch.pi, LANDMARKS + 1, dtype=F64)[1:]
        away = 1 + 0.3 * torch.tensor([1.0, -1.0], dtype=F64).repeat(LANDMARKS // 2)
        self.landmarks = torch.stack((8 * away * around.cos(), 5 * away * around.sin()), -1)
        self.odometry = self.truth[:-1].between(self.truth[1:]).retract(STEP * draw(POSES - 1, 3))
        seen = self.truth.inverse()[:, None].act(self.landmarks)
        self.pose, self.landmark = (seen.norm(dim=-1) < REACH).nonzero().unbind(-1)
        seen, noise = seen[self.pose, self.landmark], SIGHT * draw(len(self.pose), 2)
        order = list(dict.fromkeys(self.landmark.tolist()))  # landmarks are numbered as they are seen
        self.landmarks, self.landmark = self.landmarks[order], torch.tensor(order).argsort()[self.landmark]
        self.first = [self.landmark.tolist().index(number) for number in range(LANDMARKS)]
        self.bearing = torch.atan2(seen[:, 1], seen[:, 0]) + noise[:, 0]
        self.range = seen.norm(dim=-1) + noise[:, 1]

    def measured(self, before: int, count: int) -> list[mslsq.CostFunction]:
        """What the poses from `before` to `count` - 1 have measured."""
        own, pose = (self.pose >= before) & (self.pose < count), mslsq.Variable("pose", mslsq.SE2, count)
        landmark = mslsq.Variable("landmark", mslsq.Euclidean(2), int((self.pose[self.first] < count).sum()))
        sight, data = mslsq.Diagonal(1 / SIGHT), {"bearing": self.bearing[own], "range": self.range[own]}
        i, step = torch.arange(max(before - 1, 0), count - 1), mslsq.Diagonal(1 / STEP)
        return [
            factors.BearingRange(pose[self.pose[own]], landmark[self.landmark[own]], **data, weight=sight),
            mslsq.Between(pose[i], pose[i + 1], measured=self.odometry[i], weight=step),
        ]

    def grown(self, poses: mslsq.SE2, landmarks: Tensor, count: int) -> tuple[mslsq.SE2, Tensor]:
        """A start for `count` poses: what is known, dead reckoning from there, new landmarks as first seen."""
        for k in range(len(poses), count):
            poses = cat([poses, poses[-1:] @ self.odometry[k - 1 : k]])
        new = [k for k in self.first[len(landmarks) :] if self.pose[k] < count]
        seen = self.range[new, None] * torch.stack((self.bearing[new].cos(), self.bearing[new].sin()), -1)
        return poses, torch.cat((landmarks, poses[self.pose[new]].act(seen)))


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Bearing-range SLAM that grows.")
    parser.add_argument("--out", type=Path, default=Path("outputs/bearing_range_slam"))
    (options := parser.parse_args(arguments)).out.mkdir(parents=True, exist_ok=True)
    drive = Drive(torch.Generator().manual_seed(0))
    problem = mslsq.Problem(*drive.measured(0, CHUNK), mslsq.Variable("pose", mslsq.SE2, CHUNK).fixed([0]))
    poses, landmarks = drive.truth[:1], drive.landmarks[:0]
    for count in range(CHUNK, POSES + 1, CHUNK):
        problem = problem.extended(*drive.measured(count - CHUNK, count)) if count > CHUNK else problem
        poses, landmarks = drive.grown(poses, landmarks, count)
        solution = mslsq.solve(problem, {"pose": poses, "landmark": landmarks})
        poses, landmarks = solution.value["pose"], solution.value["landmark"]
        print(f"{count:4d} poses: cost {float(solution.cost):6.1f} after {int(solution.num_steps)} steps")
    reckoned, _ = drive.grown(drive.truth[:1], landmarks, POSES)
    # errors in standard deviations: chi-squared of two degrees
    factor = torch.linalg.cholesky_ex(mslsq.covariance(problem, solution, "landmark"))[0]
    errors = torch.linalg.solve_triangular(factor, (landmarks - drive.landmarks)[..., None], upper=False)
    found = {
        "dead reckoning": float((reckoned.translation - drive.truth.translation).square().sum(-1).mean().sqrt()),
        "SLAM": float((poses.translation - drive.truth.translation).square().sum(-1).mean().sqrt()),
        "share of landmarks within 95 %": float((errors.square().sum((1, 2)) < 5.99).double().mean()),
    }
    print(", ".join(f"{name}: {value:.3f}" for name, value in found.items()))
    axis = (figure := Figure(figsize=(6, 4), layout="constrained")).subplots()
    for title, at in {"truth": drive.truth, "dead reckoning": reckoned, "SLAM": poses}.items():
        axis.plot(*at.translation.T, label=title)
    axis.plot(*landmarks.T, "k+", label="landmarks")
    axis.set(aspect="equal", title=f"SLAM: {found['SLAM']:.3f} m from the truth")
    figure.savefig(options.out / "bearing_range_slam.png", dpi=110)
    return found


if __name__ == "__main__":
    main()
