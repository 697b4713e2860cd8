"""A small network is trained by least squares, and by Adam for the same time: how close does each come?

    python examples/train_by_least_squares.py --out outputs/train_by_least_squares

A surface over the square [-1, 1]² is given at 800 points. A network of two hidden layers is fitted to it, twice from
the same start, with the same seconds of processor time.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import mslsq

torch.set_default_dtype(torch.float64)

Curve = list[tuple[float, float]]  # seconds, and the root mean square of the residuals there


def surface(x: Tensor) -> Tensor:
    """(samples, 2) to (samples, 1)."""
    return torch.sin(3 * x[:, :1] + x[:, 1:] ** 2) * torch.exp(-x[:, 1:])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def trained(step: Callable[[float], Tensor], seconds: float) -> Curve:
    """Steps until the time is over; `step` is given the share of it that is gone, and returns the residuals' rms."""
    curve: Curve = []
    begin = time.process_time()
    while (gone := time.process_time() - begin) < seconds:
        curve.append((gone, float(step(gone / seconds))))
    return curve


def by_least_squares(model: nn.Module, x: Tensor, y: Tensor, seconds: float) -> Curve:
    optimizer = mslsq.optim.LevenbergMarquardt(model.parameters())

    def step(_: float) -> Tensor:
        loss = optimizer.step(lambda: model(x) - y)  # residuals; no backward(), no mean
        return (2 * loss / len(y)).sqrt()

    return trained(step, seconds)


def by_adam(model: nn.Module, x: Tensor, y: Tensor, seconds: float, lr: float = 1e-2) -> Curve:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def step(share: float) -> Tensor:
        optimizer.param_groups[0]["lr"] = lr * (1 - share)  # constant, or from 3e-3 or 3e-2, it ends higher
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach().sqrt()

    return trained(step, seconds)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="A network trained by least squares, beside Adam.")
    parser.add_argument("--out", type=Path, default=Path("outputs/train_by_least_squares"))
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    x, unseen = (2 * torch.rand(800, 2, generator=torch.Generator().manual_seed(seed)) - 1 for seed in (1, 2))
    curves, errors = {}, {}
    for name, method in {"least squares": by_least_squares, "Adam": by_adam}.items():
        model = network()
        curves[name] = method(model, x, surface(x), options.seconds)
        errors[name] = float((model(unseen) - surface(unseen)).detach().square().mean().sqrt())
        print(f"{name:14s} {len(curves[name]):6d} steps: rms error {errors[name]:.1e} at points not seen in training")
    plot(curves, options.out / "train_by_least_squares.png")
    return errors


def plot(curves: dict[str, Curve], path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")  # not pyplot: no display is needed
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.semilogy(*zip(*curve, strict=True), label=name)
    axes.set(title="a network of 337 parameters, 800 points", xlabel="seconds of processor time", ylabel="rms residual")
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
