"""A thousand curve fits at once, with standard errors that mean what they say.

    python examples/curve_fit.py --out outputs/curve_fit

Decays y = a·exp(−b·t) + c with noise of known size, each with its own parameters and some points missing. One call
fits them all; the errors it states are compared with the errors it makes.
"""

import argparse
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import mslsq

NOISE = 0.02


def decay(p: Tensor, t: Tensor) -> Tensor:
    """The model of ONE curve; the batch is `in_dims`' business."""
    return p[0] * torch.exp(-p[1] * t) + p[2]


def make_curves(count: int, points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Times (points,), measurements (count, points) with one in ten missing, and the true parameters (count, 3)."""
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0, 4, points, dtype=torch.float64)
    low, high = torch.tensor([[1.0, 0.7, 0.0], [3.0, 2.0, 1.0]], dtype=torch.float64)
    truth = low + (high - low) * torch.rand(count, 3, generator=generator, dtype=torch.float64)
    clean = torch.func.vmap(decay, in_dims=(0, None))(truth, t)
    y = clean + NOISE * torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    missing = torch.rand(clean.shape, generator=generator) < 0.1
    return t, torch.where(missing, torch.nan, y), truth


def plot(t: Tensor, y: Tensor, fit: mslsq.CurveFit, score: Tensor, path: Path) -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")  # not pyplot: no display is needed
    left, right = figure.subplots(1, 2)
    fine = torch.linspace(0, 4, 200, dtype=torch.float64)
    for number in range(4):
        (line,) = left.plot(fine, decay(fit.value[number], fine))
        left.plot(t, y[number], ".", color=line.get_color())
    left.set(title="four of the fits", xlabel="t", ylabel="y")
    bins, normal = torch.linspace(-4, 4, 41), torch.linspace(-4, 4, 200)
    right.hist(score.numpy(), bins=bins.tolist(), density=True, label=["a", "b", "c"])
    right.plot(normal, torch.exp(-0.5 * normal**2) / (2 * torch.pi) ** 0.5, "k", label="standard normal")
    right.set(title="error / stated standard error", xlabel="standard errors")
    right.legend()
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="A thousand curve fits with standard errors.")
    parser.add_argument("--out", type=Path, default=Path("outputs/curve_fit"))
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)

    t, y, truth = make_curves(options.count, points=40)
    start = torch.ones(3, dtype=torch.float64)
    begin = time.perf_counter()
    fit = mslsq.curve_fit(decay, t, y, start, sigma=NOISE, absolute_sigma=True, in_dims=(None, 0, None))
    seconds = time.perf_counter() - begin

    score = (fit.value - truth) / fit.standard_errors
    within = float((score.abs() < 1.96).double().mean())
    print(f"{options.count} fits of {len(t)} points in {seconds:.2f} s, {float(y.isnan().double().mean()):.0%} missing")
    print(fit.solution.message())
    for number, name in enumerate("abc"):
        error = float((fit.value - truth)[:, number].square().mean().sqrt())
        stated = float(fit.standard_errors[:, number].square().mean().sqrt())
        print(f"  {name}: error {error:.4f} (rms over the fits), standard error {stated:.4f} (as stated)")
    print(f"{within:.1%} of the errors are within 1.96 standard errors; 95 % should be")
    plot(t, y, fit, score, options.out / "curve_fit.png")
    print(f"picture: {options.out / 'curve_fit.png'}")
    return within


if __name__ == "__main__":
    main()
