"""The experiment `pose_graph_weights`: how far to trust each measurement of a pose graph, learned through the solve.

A robot goes round a loop and recognises places it has been. A recognition comes with two scores: the worse the first,
the noisier it is, and with a bad second one it may be of another place altogether. The network is told neither. It
turns the scores into a weight, `LeastSquaresLayer` turns weights into poses, and the error of the poses trains the
network and the scale of the robust loss together. (It learns the noise; the loss takes care of the wrong places.)
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import mslsq
from mslsq.plotting import figure_of, save_figure
from mslsq.validation import integer, number
from training.loop import Schedule

STEP_SIGMA = 0.03
"""Of the odometry, known."""


class Graphs(NamedTuple):
    """A batch of graphs over one set of edges."""

    truth: mslsq.SE2
    """(batch, poses)"""
    start: mslsq.SE2
    """(batch, poses): the odometry added up."""
    measured: mslsq.SE2
    """(batch, edges), the odometry first."""
    scores: Tensor
    """(batch, closures, 2)"""
    sigma: Tensor
    """(batch, closures): what the recognitions were made with; of outliers infinite."""


class Weighting(nn.Module):
    """Scores (..., 2) to weights (...), 1/sigma, and the scale of the robust loss."""

    def __init__(self, problem: mslsq.Problem, hidden: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        )
        self.log_scale = nn.Parameter(torch.tensor(2.0))
        self.solve = mslsq.LeastSquaresLayer(
            problem, mslsq.LevenbergMarquardt(max_steps=25, ftol=1e-6, xtol=1e-6, gtol=1e-6, trace="never")
        )  # never: recording takes longer than it saves, and a resumed run must round as one that was not stopped

    def forward(self, scores: Tensor) -> Tensor:
        return torch.exp(2.0 + self.layers(6 * scores - 3)[..., 0])


class PoseGraphWeights:
    """The task: graphs drawn at random, the root mean square error of the positions."""

    def __init__(self, options: dict[str, Any], schedule: Schedule, seed: int):
        for name, low in (("poses", 4), ("closures", 1), ("hidden", 1), ("test_graphs", 1)):
            integer(f"pose_graph_weights.{name}", options[name], low)
        number("pose_graph_weights.outliers", options["outliers"], least=0, most=1)
        torch.manual_seed(seed)
        self.seed, self.batch, self.options = seed, schedule.batch, options
        generator = torch.Generator().manual_seed(seed)
        poses, closures = options["poses"], options["closures"]
        chain = torch.stack([torch.arange(poses - 1), torch.arange(1, poses)])
        first = torch.randint(0, poses - 2, (closures,), generator=generator)
        gap = 2 + (torch.rand(closures, generator=generator) * (poses - 2 - first)).long()
        self.edges = torch.cat([chain, torch.stack([first, first + gap])], 1)
        self.module = Weighting(self._problem(), options["hidden"])

    def _problem(self) -> mslsq.Problem:
        pose = mslsq.Variable("pose", mslsq.SE2, count=self.options["poses"])
        steps = self.options["poses"] - 1
        (i, j), closures = self.edges, self.options["closures"]
        return mslsq.Problem(
            mslsq.Between(
                pose[i[:steps]],
                pose[j[:steps]],
                measured=mslsq.SE2.identity(steps),
                weight=mslsq.Scale(1 / STEP_SIGMA),
                name="odometry",
            ),
            mslsq.Between(
                pose[i[steps:]],
                pose[j[steps:]],
                measured=mslsq.SE2.identity(closures),
                weight=mslsq.Scale(torch.ones(closures)),
                loss=mslsq.GemanMcClure(torch.ones(())),
                name="closure",
            ),
            pose.fixed([0]),
        )

    def draw(self, count: int, generator: torch.Generator) -> Graphs:
        """Random loops, odometry with drift, recognitions of all qualities."""
        poses, closures = self.options["poses"], self.options["closures"]

        def noise(*shape: int) -> Tensor:
            return torch.randn(*shape, 3, generator=generator)

        turn = torch.tensor([1.0, 0.0, 2 * torch.pi / poses])
        moves = mslsq.SE2.exp(turn + 0.3 * noise(count, poses - 1) * torch.tensor([1.0, 1.0, 0.3]))
        truth, odometry = [mslsq.SE2.identity(count)], [mslsq.SE2.identity(count)]
        steps = moves @ mslsq.SE2.exp(STEP_SIGMA * noise(count, poses - 1))
        for k in range(poses - 1):
            truth.append(truth[-1] @ mslsq.SE2(moves.storage[:, k]))
            odometry.append(odometry[-1] @ mslsq.SE2(steps.storage[:, k]))
        true = mslsq.SE2(torch.stack([pose.storage for pose in truth], 1))
        start = mslsq.SE2(torch.stack([pose.storage for pose in odometry], 1))
        scores = torch.rand(count, closures, 2, generator=generator)
        sigma = 0.01 + 0.2 * (1 - scores[..., 0]) ** 2
        wrong = torch.rand(count, closures, generator=generator) < 2 * self.options["outliers"] * (scores[..., 1] < 0.5)
        i, j = self.edges[:, poses - 1 :]
        relative = mslsq.SE2(true.storage[:, i]).between(mslsq.SE2(true.storage[:, j]))
        closed = relative @ mslsq.SE2.exp(sigma[..., None] * noise(count, closures))
        closed = torch.where(
            wrong[..., None], (relative @ mslsq.SE2.exp(1.5 * noise(count, closures))).storage, closed.storage
        )
        measured = mslsq.SE2(torch.cat([steps.storage, closed], 1))
        return Graphs(true, start, measured, scores, torch.where(wrong, torch.inf, sigma))

    def errors(self, graphs: Graphs, weight: Tensor, scale: Tensor) -> Tensor:
        """Root mean square error of the positions, per graph."""
        steps = self.options["poses"] - 1
        data = {
            "odometry": {"measured": mslsq.SE2(graphs.measured.storage[:, :steps])},
            "closure": {
                "measured": mslsq.SE2(graphs.measured.storage[:, steps:]),
                "weight": weight,
                "loss.scale": scale,
            },
        }
        dims = {"odometry": {"measured": 0}, "closure": {"measured": 0, "weight": 0, "loss.scale": None}}
        found = self.module.solve({"pose": graphs.start}, data, in_dims=({"pose": 0}, dims)).value["pose"]
        squared = (found.translation - graphs.truth.translation).square().sum(-1)
        return (squared.mean(-1) + 1e-12).sqrt()

    def loss(self, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        graphs = self.draw(self.batch, torch.Generator().manual_seed(1_000_000 * self.seed + step))
        errors = self.errors(graphs, self.module(graphs.scores), self.module.log_scale.exp())
        figures = {"error": float(errors.detach().mean()), "scale": float(self.module.log_scale.detach().exp())}
        return torch.log(errors).mean(), figures

    def evaluate(self, folder: Path, report: Callable[[str], None]) -> tuple[dict[str, Any], list[Path]]:
        """Learned weights against equal ones and those of who made the data, on new graphs."""
        graphs = self.draw(self.options["test_graphs"], torch.Generator().manual_seed(self.seed + 999_999_937))
        with torch.no_grad():
            learned, wide = self.module(graphs.scores), torch.tensor(1e3)
            one = torch.ones_like(learned)
            ways = {
                "odometry_alone": (1e-6 * one, wide),
                "equal": (one / 0.1, wide),
                "equal_robust": (one / 0.1, torch.tensor(3.0)),
                "learned": (learned, self.module.log_scale.exp()),
                "true": (torch.where(graphs.sigma.isinf(), 1e-6, 1 / graphs.sigma), wide),
            }
            errors = {name: self.errors(graphs, *way) for name, way in ways.items()}
        figures: dict[str, Any] = {f"rms_error_{name}": float(e.square().mean().sqrt()) for name, e in errors.items()}
        figures |= {f"median_error_{name}": float(e.median()) for name, e in errors.items()}
        figures["loss_scale"] = float(self.module.log_scale.detach().exp())
        return figures, [self.picture(folder / "weights.png")]

    def picture(self, path: Path) -> Path:
        """The learned weight over both scores."""
        axis = torch.linspace(0, 1, 50)
        scores = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
        with torch.no_grad():
            weight = self.module(scores)
        figure = figure_of(5, 4)
        axes = figure.subplots()
        image = axes.imshow(weight.log10(), origin="lower", extent=(0, 1, 0, 1))
        axes.set(
            xlabel="first score (noise)",
            ylabel="second score (wrong place below 0.5)",
            title="log10 of the learned weight",
        )
        figure.colorbar(image)
        return save_figure(figure, path)
