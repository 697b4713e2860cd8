"""What a call of `mslsq.interop.scipy` takes beside SciPy's, on NumPy functions, in one run.

    python benchmarks/scipy_calls.py

Processor time of a call in milliseconds, least of five rounds, and evaluations of the residual. Both are asked for the
same tolerances of 1e-8.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize as theirs

from mslsq.interop import scipy as ours

X = np.linspace(0, 4, 50)
Y = 2.5 * np.exp(-1.3 * X) + 0.5 + 0.05 * np.random.default_rng(0).normal(size=50)


def decay(x: Any, a: float, b: float, c: float) -> Any:
    return a * np.exp(-b * x) + c


def residual(p: Any) -> Any:
    return decay(X, *p) - Y


def jacobian(p: Any) -> Any:
    e = np.exp(-p[1] * X)
    return np.stack([e, -p[0] * X * e, np.ones_like(X)], 1)


def rosenbrock(x: Any) -> Any:
    return np.concatenate([10 * (x[1:] - x[:-1] ** 2), 1 - x[:-1]])


def broyden(x: Any) -> Any:
    f = (3 - x) * x + 1
    f[1:] -= x[:-1]
    f[:-1] -= 2 * x[1:]
    return f


def tridiagonal(n: int) -> Any:
    return sum(np.eye(n, k=k, dtype=int) for k in (-1, 0, 1))


P0 = np.ones(3)
CALLS: dict[str, Callable[[Any], Any]] = {
    "decay, lm": lambda library: library.least_squares(residual, P0, method="lm"),
    "decay, trf": lambda library: library.least_squares(residual, P0),
    "decay, dogbox": lambda library: library.least_squares(residual, P0, method="dogbox"),
    "decay, trf, jac": lambda library: library.least_squares(residual, P0, jacobian),
    "decay, trf, bounds": lambda library: library.least_squares(residual, P0, bounds=(0, 2.4)),
    "decay, trf, cauchy": lambda library: library.least_squares(residual, P0, loss="cauchy", f_scale=0.05),
    "Rosenbrock of 20, trf": lambda library: library.least_squares(rosenbrock, np.full(20, -1.0)),
    "Broyden of 200, trf, sparse": lambda library: library.least_squares(
        broyden, np.full(200, -1.0), jac_sparsity=tridiagonal(200)
    ),
    "decay, curve_fit": lambda library: library.curve_fit(decay, X, Y, P0, ftol=1e-8, xtol=1e-8, full_output=True),
    "decay, curve_fit, bounds": lambda library: library.curve_fit(
        decay, X, Y, P0, bounds=(0, 3), ftol=1e-8, xtol=1e-8, full_output=True
    ),
}


def milliseconds(call: Callable[[], Any]) -> float:
    call()
    best = np.inf
    for _ in range(5):
        begin, count = time.process_time(), 0
        while count < 3 or time.process_time() - begin < 0.05:
            call()
            count += 1
        best = min(best, (time.process_time() - begin) / count)
    return 1e3 * best


def evaluations(result: Any) -> int:
    return result[2]["nfev"] if isinstance(result, tuple) else result.nfev


def main() -> None:
    print("| call | SciPy, ms | mslsq, ms | ratio | evaluations, SciPy | mslsq |\n|---|---|---|---|---|---|")
    for name, call in CALLS.items():
        one, other = milliseconds(lambda call=call: call(theirs)), milliseconds(lambda call=call: call(ours))
        counts = evaluations(call(theirs)), evaluations(call(ours))
        print(f"| {name} | {one:.2f} | {other:.2f} | {other / one:.1f} | {counts[0]} | {counts[1]} |")


if __name__ == "__main__":
    main()
