"""A network learns how far to trust a measurement, from the errors of the solution that its weights lead to.

    python examples/learned_weight.py --out outputs/learned_weight

Positions from distances to eight beacons, whose noise depends on their signal quality q in an unknown way. A network
turns q into a weight, `LeastSquaresLayer` turns weights into a position, and its error trains the network.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import mslsq

torch.set_default_dtype(torch.float64)
BEACONS = 10 * torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0], [1, 0.5], [0.5, 1], [0, 0.5]])


def true_sigma(quality: Tensor) -> Tensor:
    """What the network has to find out: 5 cm at best, 60 cm at worst."""
    return 0.05 + 0.55 * torch.sigmoid(12 * (0.45 - quality))


@mslsq.cost
def distance(position: Tensor, beacon: Tensor, measured: Tensor) -> Tensor:
    """The residual of ONE distance."""
    return torch.linalg.vector_norm(position - beacon)[None] - measured


class Trust(nn.Sequential):
    """Quality (...) to weight (...); only ratios matter, so quality one has weight one."""

    def forward(self, input: Tensor) -> Tensor:
        # From -4 to 4: a tanh layer as PyTorch initialises it sees a straight line in [0, 1].
        log_weight, best = super().forward(8 * input[..., None] - 4), super().forward(torch.full((1,), 4.0))
        return torch.exp(log_weight - best)[..., 0]


def make_batch(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """True positions (count, 2), qualities (count, 8), measured distances (count, 8, 1)."""
    truth, quality = 2 + 6 * torch.rand(count, 2, generator=generator), torch.rand(count, 8, generator=generator)
    noise = true_sigma(quality) * torch.randn(count, 8, generator=generator)
    return truth, quality, (torch.linalg.vector_norm(truth[:, None] - BEACONS, dim=-1) + noise)[..., None]


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="A measurement weight learned through the solve.")
    parser.add_argument("--out", type=Path, default=Path("outputs/learned_weight"))
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    generator = torch.manual_seed(0)
    position = mslsq.Variable("position", mslsq.Euclidean(2))
    problem = mslsq.Problem(distance(position, beacon=BEACONS, measured=torch.ones(8, 1), weight=1.0))
    layer = mslsq.LeastSquaresLayer(problem, solver=mslsq.LevenbergMarquardt(max_steps=30))
    trust = Trust(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    start = {"position": torch.tensor([5.0, 5.0])}

    def errors(weight: Tensor, truth: Tensor, measured: Tensor) -> Tensor:
        solution = layer(start, {"distance": {"measured": measured, "weight": weight}}, in_dims=(None, 0))
        return (solution.value["position"] - truth).square().sum(-1)

    optimizer = torch.optim.Adam(trust.parameters(), lr=1e-2)
    curve: list[float] = []
    for _ in range(options.steps):
        truth, quality, measured = make_batch(256, generator)
        loss = errors(trust(quality), truth, measured).sqrt().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())

    truth, quality, measured = make_batch(2000, generator)
    known = {"equal": torch.ones_like(quality), "learned": trust(quality).detach(), "true": 1 / true_sigma(quality)}
    result = {name: float(errors(weight, truth, measured).mean().sqrt()) for name, weight in known.items()}
    print("\n".join(f"{name:8s} weights: {value:.3f} m from the truth (rms, unseen)" for name, value in result.items()))
    plot(curve, trust, options.out / "learned_weight.png")
    return result


def plot(curve: list[float], trust: Trust, path: Path) -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")  # not pyplot: no display is needed
    left, right = figure.subplots(1, 2)
    left.semilogy(curve)
    left.set(title="mean distance from the truth, m", xlabel="training step")
    q = torch.linspace(0, 1, 100)
    right.semilogy(q, true_sigma(torch.ones(1)) / true_sigma(q), "k--", label="true 1/sigma, relative")
    right.semilogy(q, trust(q).detach(), label="learned weight")
    right.set(title="trust in a measurement", xlabel="its quality q")
    right.legend()
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
