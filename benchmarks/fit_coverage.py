"""How often the intervals and bands of `curve_fit` hold the truth, on simulated fits.

    python benchmarks/fit_coverage.py               # 1,000 fits per case: about a minute
    python benchmarks/fit_coverage.py --fits 10000

For each case the same model with the same true parameters is measured again and again with Gaussian noise, and all
measurements are fitted as one batch. A share of 95 % of 1,000 has a standard deviation of 0.7 %. Ends that are NaN
count as misses; infinite ones hold everything on their side.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from scipy import __version__ as scipy_version
from torch import Tensor

import mslsq

D = torch.float64


class Case(NamedTuple):
    name: str
    model: Callable[[dict[str, Tensor], Tensor], Tensor]
    truth: dict[str, float]
    t: Tensor
    noise: float
    absolute: bool = False
    """Is the noise told to the fit?"""


def decay(p: dict[str, Tensor], t: Tensor) -> Tensor:
    return p["a"] * torch.exp(-p["rate"] * t) + p["c"]


def saturation(p: dict[str, Tensor], t: Tensor) -> Tensor:
    """Michaelis and Menten's."""
    return p["most"] * t / (p["half"] + t)


def peak(p: dict[str, Tensor], t: Tensor) -> Tensor:
    return p["height"] * torch.exp(-0.5 * ((t - p["at"]) / p["width"]) ** 2) + p["ground"]


CASES = (
    Case("decay, 15 points", decay, {"a": 2.5, "rate": 1.3, "c": 0.5}, torch.linspace(0, 4, 15, dtype=D), 0.05),
    Case("decay, sigma known", decay, {"a": 2.5, "rate": 1.3, "c": 0.5}, torch.linspace(0, 4, 15, dtype=D), 0.05, True),
    Case("decay seen half", decay, {"a": 2.5, "rate": 0.5, "c": 0.5}, torch.linspace(0, 2, 12, dtype=D), 0.06),
    Case("saturation, 8 points", saturation, {"most": 2.0, "half": 1.0}, torch.linspace(0.2, 2, 8, dtype=D), 0.12),
    Case(
        "peak, 20 points",
        peak,
        {"height": 3.0, "at": 0.2, "width": 0.7, "ground": 1.0},
        torch.linspace(-3, 3, 20, dtype=D),
        0.3,
    ),
)


def share(held: Tensor) -> str:
    return f"{float(held.double().mean()):.1%}"


def measured(case: Case, fits: int, level: float) -> list[str]:
    """One line per parameter, and one for the bands."""
    generator = torch.Generator().manual_seed(0)
    truth = {name: torch.tensor(value, dtype=D) for name, value in case.truth.items()}
    clean = case.model(truth, case.t)
    y = clean + case.noise * torch.randn(fits, len(case.t), generator=generator, dtype=D)
    sigma = case.noise if case.absolute else None
    begin = time.process_time()
    fit = mslsq.curve_fit(
        case.model, case.t, y, case.truth, sigma=sigma, absolute_sigma=case.absolute, in_dims=(None, 0, None)
    )
    seconds = [time.process_time() - begin]
    linear = fit.confidence_interval(level)
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mslsq.errors.ProfileWarning)
        profile = fit.confidence_interval(level, method="profile")
    seconds.append(time.process_time() - begin)
    lines = []
    for name, true in truth.items():
        shares = [share((i.lower[name] <= true) & (true <= i.upper[name])) for i in (linear, profile)]
        ends = torch.cat([profile.lower[name], profile.upper[name]])
        odd = f"{int(ends.isinf().sum())} infinite, {int(ends.isnan().sum())} NaN"
        lines.append(f"| {case.name} | {name} | {shares[0]} | {shares[1]} | {odd} |")
    confidence, prediction = fit.predict(case.t, level), fit.predict(case.t, level, band="prediction")
    again = clean + case.noise * torch.randn(y.shape, generator=generator, dtype=D)
    shares = [share((b.lower <= v) & (v <= b.upper)) for b, v in ((confidence, clean), (prediction, again))]
    lines.append(f"| {case.name} | bands: curve, new measurement | {shares[0]}, {shares[1]} | | |")
    lines.append(f"| {case.name} | seconds: fits, profiles | {seconds[0]:.2f}, {seconds[1]:.2f} | | |")
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Coverage of intervals and bands.")
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--level", type=float, default=0.95)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{options.fits} fits per case, level {options.level}; torch {torch.__version__}, SciPy {scipy_version}\n")
    print("| case | parameter | linear | profile | ends of profiles |\n|---|---|---|---|---|")
    for case in CASES:
        print("\n".join(measured(case, options.fits, options.level)), flush=True)


if __name__ == "__main__":
    main()
