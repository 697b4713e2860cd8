"""An objective written for Theseus, solved by Theseus and by mslsq: fits of a·exp(−b·t) + c, differentiated.

    python examples/theseus_objective.py --out outputs/theseus_objective

It needs Theseus (scripts/install_theseus.sh). Theseus' implicit gradients leave out the second derivatives of the
errors, which counts where the data are noisy: both are compared with finite differences.
"""

import argparse
import importlib
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from mslsq.interop.theseus import from_theseus_layer

T = torch.linspace(0, 3, 25, dtype=torch.float64)
START = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)


def model(p: Tensor) -> Tensor:
    return p[:, :1] * torch.exp(-p[:, 1:2] * T) + p[:, 2:]


def error(optim_vars: Any, aux_vars: Any) -> Tensor:
    return model(optim_vars[0].tensor) - aux_vars[0].tensor


def theseus_layer(th: Any) -> Any:
    """As a user of Theseus writes it."""
    objective = th.Objective(dtype=torch.float64)
    p = th.Vector(tensor=START.clone(), name="p")
    y = th.Variable(torch.zeros(1, len(T), dtype=torch.float64), name="y")
    weight = th.ScaleCostWeight(torch.ones(1, 1, dtype=torch.float64))
    objective.add(th.AutoDiffCostFunction([p], error, len(T), weight, aux_vars=[y]))
    optimizer = th.LevenbergMarquardt(objective, th.CholeskyDenseSolver, max_iterations=50)
    optimizer.set_params(abs_err_tolerance=0.0, rel_err_tolerance=0.0)
    return th.TheseusLayer(optimizer)


def decay_rates(layer: Any, y: Tensor) -> Tensor:
    values, _ = layer.forward({"p": START.expand(len(y), -1), "y": y}, {"backward_mode": "implicit"})
    return values["p"][:, 1]


def gradient(layer: Any, y: Tensor) -> Tensor:
    y = y.clone().requires_grad_()
    return torch.autograd.grad(decay_rates(layer, y).sum(), y)[0]


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="An objective of Theseus, solved by both.")
    parser.add_argument("--out", type=Path, default=Path("outputs/theseus_objective"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        th = importlib.import_module("theseus")
    except ImportError as missing:
        raise SystemExit(f"Theseus is not installed ({missing}): sh scripts/install_theseus.sh") from None

    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(64, 3, generator=generator, dtype=torch.float64) + 0.5
    y = model(truth) + 0.1 * torch.randn(64, len(T), generator=generator, dtype=torch.float64)
    layers = {"Theseus": theseus_layer(th), "mslsq": from_theseus_layer(theseus_layer(th))}  # the one line

    row, h = 3, 1e-5
    moved = torch.zeros_like(y)
    moved[:, row] = h
    ends = [decay_rates(layers["mslsq"], y + sign * moved).detach() for sign in (1, -1)]
    expected = (ends[0] - ends[1]) / (2 * h)
    errors = {}
    figure = Figure(figsize=(6, 4), layout="constrained")  # not pyplot: no display is needed
    axes = figure.subplots()
    for name, layer in layers.items():
        gradient(layer, y)
        begin = time.process_time()
        found = gradient(layer, y)[:, row]
        off = (found - expected).abs()
        errors[name] = float(off.max())
        print(f"{name:8s} {1e3 * (time.process_time() - begin):6.1f} ms, gradient off by {errors[name]:.1e} at most")
        axes.semilogy(off.sort().values.clamp_min(1e-12), ".-", label=name)
    axes.set(xlabel="fit, by its error", ylabel="error of d b / d y against finite differences")
    axes.legend()
    figure.savefig(options.out / "theseus_objective.png", dpi=110)
    return errors


if __name__ == "__main__":
    main()
