"""A residual that PyTorch cannot see into, in plain Python and NumPy, fitted by SciPy's calls.

    python examples/numpy_residual.py

A star is pulled to and fro by a planet: its radial velocity over time follows from Kepler's equation, which is solved
by a loop that runs until it has converged. `mslsq.interop.scipy` calls this function at one point at a time, with
finite differences. A few readings are wrong, so that the loss is robust; the eccentricity has bounds.
"""

import argparse
import math

import numpy as np
from scipy import optimize

from mslsq.interop import scipy

TRUTH = np.array([55.0, 4.23, 0.4, 1.1, 0.7, 3.0])
"""Amplitude (m/s), period (days), eccentricity, argument of the periapsis, mean anomaly at the start, drift (m/s)."""
NOISE = 3.0


def eccentric_anomaly(mean: float, eccentricity: float) -> float:
    """E of Kepler's equation E − e sin E = M, by Newton's steps."""
    found = mean + eccentricity * math.sin(mean)
    while abs(miss := found - eccentricity * math.sin(found) - mean) > 1e-13:
        found -= miss / (1 - eccentricity * math.cos(found))
    return found


def velocities(orbit: np.ndarray, days: np.ndarray) -> np.ndarray:
    """The radial velocity on these days, (points,) in m/s."""
    amplitude, period, eccentricity, periapsis, start, drift = (float(x) for x in orbit)
    readings = []
    for day in days:
        anomaly = eccentric_anomaly((start + 2 * math.pi * day / period) % (2 * math.pi), eccentricity)
        half = math.sqrt((1 + eccentricity) / (1 - eccentricity)) * math.tan(anomaly / 2)
        direction = 2 * math.atan(half) + periapsis
        readings.append(amplitude * (math.cos(direction) + eccentricity * math.cos(periapsis)) + drift)
    return np.array(readings)


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="A fit of an orbit in plain Python, by SciPy's calls.")
    parser.add_argument("--points", type=int, default=60)
    options = parser.parse_args(arguments)

    rng = np.random.default_rng(0)
    days = np.sort(30 * rng.random(options.points))
    measured = velocities(TRUTH, days) + NOISE * rng.normal(size=options.points)
    measured[:: options.points // 4] += 60

    def residual(orbit: np.ndarray) -> np.ndarray:
        return (velocities(orbit, days) - measured) / NOISE

    start = [40.0, 4.2, 0.2, 0.8, 1.0, 0.0]
    limits = ([0, 3, 0, -4, -4, -100], [200, 6, 0.95, 4, 4, 100])
    worst = 0.0
    for name, library in (("SciPy", optimize), ("mslsq", scipy)):
        result = library.least_squares(residual, start, bounds=limits, loss="soft_l1", x_scale="jac")
        errors = np.sqrt(np.diag(np.linalg.inv(result.jac.T @ result.jac)))
        worst = float(np.max(np.abs(result.x - TRUTH) / errors))
        print(f"{name}: cost {result.cost:.6f}, {result.nfev} evaluations. {result.message}")
        for word, value, error in zip(("amplitude", "period", "eccentricity"), result.x, errors, strict=False):
            print(f"  {word:12} {value:8.4f} ± {error:.4f}")
    return worst


if __name__ == "__main__":
    main()
