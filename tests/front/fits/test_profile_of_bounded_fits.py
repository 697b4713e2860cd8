"""Profile intervals of fits with bounds: SciPy's roots of the definition, with the other parameters within theirs."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import Tensor

import mslsq

D = torch.float64
T = torch.linspace(0, 4, 30, dtype=D)
START = torch.tensor([2.0, 1.0, 0.4], dtype=D)
INF = np.inf
CASES = {
    "a bound cuts an end off, another holds others back": ([-INF] * 3, [2.45, INF, 0.505]),
    "one on its lower bound": ([-INF, -INF, 0.52], [INF] * 3),
    "two on bounds": ([-INF, 1.29, -INF], [2.3, INF, INF]),
    "far bounds": ([0.0] * 3, [10.0] * 3),
}


def decay(p: Tensor, t: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2]


def measured(*shape: int) -> Tensor:
    noise = torch.randn(*shape, 30, generator=torch.Generator().manual_seed(0), dtype=D)
    return 2.5 * torch.exp(-1.3 * T) + 0.5 + 0.05 * noise


def pair(case: str) -> tuple[Tensor, Tensor]:
    lower, upper = CASES[case]
    return torch.tensor(lower, dtype=D), torch.tensor(upper, dtype=D)


def fitted(y: Tensor, bounds: tuple[Tensor, Tensor]) -> mslsq.CurveFit:
    solver = mslsq.LevenbergMarquardt(ftol=1e-14)
    return mslsq.curve_fit(decay, T, y, START, bounds=bounds, project_start=True, solver=solver)


def by_scipy(y: Tensor, bounds: tuple[Tensor, Tensor]) -> np.ndarray:
    """The definition, one solve after the other."""
    t, data, (lower, upper) = T.numpy(), y.numpy(), (side.numpy() for side in bounds)

    def minimum(held: dict[int, float]) -> tuple[float, np.ndarray]:
        free = [k for k in range(3) if k not in held]

        def complete(x: np.ndarray) -> np.ndarray:
            p = np.empty(3)
            p[free], p[list(held)] = x, list(held.values())
            return p

        def residual(x: np.ndarray) -> np.ndarray:
            p = complete(x)
            return p[0] * np.exp(-p[1] * t) + p[2] - data

        start = np.clip(START.numpy()[free], lower[free] + 1e-3, upper[free] - 1e-3)
        tolerances = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-13}
        found = scipy.optimize.least_squares(residual, start, bounds=(lower[free], upper[free]), **tolerances)
        return 2 * found.cost, complete(found.x)

    least, best = minimum({})
    level = least + scipy.stats.t.ppf(0.975, 27) ** 2 * least / 27
    ends = np.empty((3, 2))
    for k in range(3):
        for number, bound in enumerate((lower[k], upper[k])):
            limit = bound if np.isfinite(bound) else best[k] + (number * 2 - 1) * 0.5
            excess = [minimum({k: c})[0] - level for c in (best[k], limit)]
            root = limit
            if excess[1] > 0:
                root = scipy.optimize.brentq(lambda c, k=k: minimum({k: c})[0] - level, best[k], limit, xtol=1e-12)
            ends[k, number] = root
    return ends


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_the_ends_are_scipys_roots_or_the_bounds(case: str) -> None:
    y = measured()
    interval = fitted(y, pair(case)).confidence_interval(0.95, "profile")
    np.testing.assert_allclose(torch.stack(interval, -1), by_scipy(y, pair(case)), rtol=2e-6)


def test_ends_that_a_bound_cuts_off_are_the_bound_and_the_report_says_so() -> None:
    fit = fitted(measured(), pair("one on its lower bound"))
    interval = fit.confidence_interval(method="profile")
    assert float(interval.lower[2]) == 0.52 < float(interval.upper[2])
    text = fit.report(interval="profile").partition("Intervals of 0.95\n")[2].splitlines()
    assert text[2].endswith("ends at its lower bound") and "bound" not in text[0] + text[1]
    assert "Intervals" not in fit.report()
    fit = fitted(measured(), (torch.tensor([-INF, -INF, 0.48], dtype=D), torch.tensor([INF, INF, 0.5], dtype=D)))
    assert "ends at its lower and its upper bound" in fit.report(interval="profile")
    assert "bound" not in fit.report(interval="linear")


@pytest.mark.slow
def test_a_batch_of_bounds_and_vmap_find_what_single_fits_find() -> None:
    y = measured(4)
    lower, upper = (torch.stack(sides) for sides in zip(*map(pair, CASES), strict=True))
    options = {"project_start": True, "solver": mslsq.LevenbergMarquardt(ftol=1e-14)}
    fits = mslsq.curve_fit(decay, T, y, START, bounds=(lower, upper), in_dims=(None, 0, None), **options)
    batch = fits.confidence_interval(method="profile")
    mapped = torch.func.vmap(lambda *given: fitted(given[0], given[1:]).confidence_interval(method="profile"))(
        y, lower, upper
    )
    for number, case in enumerate(CASES):
        alone = fitted(y[number], pair(case)).confidence_interval(method="profile")
        for found in (
            batch,
            mapped,
            [side[None] for side in fits.of_problem(number).confidence_interval(method="profile")],
        ):
            row = number if len(found[0]) == 4 else 0
            torch.testing.assert_close(
                torch.stack((found[0][row], found[1][row])), torch.stack(alone), rtol=1e-7, atol=0
            )


@pytest.mark.parametrize("case", CASES)
def test_ends_have_derivatives_in_the_data_and_in_the_bounds(case: str) -> None:
    y, (lower, upper) = measured(), pair(case)
    direction = torch.randn(30, generator=torch.Generator().manual_seed(2), dtype=D)

    def ends(step: Tensor) -> Tensor:
        finite = [torch.where(torch.isfinite(side), side, 0.0) for side in (lower, upper)]
        bounds = lower + step * finite[0], upper + step * finite[1]
        return torch.cat(tuple(fitted(y + step * direction, bounds).confidence_interval(method="profile")))

    zero = torch.zeros((), dtype=D)
    numeric = (ends(zero + 1e-5) - ends(zero - 1e-5)) / 2e-5
    torch.testing.assert_close(torch.autograd.functional.jacobian(ends, zero), numeric, rtol=2e-4, atol=1e-5)


def test_a_parameter_alone_or_held_by_equal_bounds_has_its_interval() -> None:
    y = measured()
    fit = mslsq.curve_fit(
        lambda p, t: p * torch.exp(-1.3 * t) + 0.5, T, y, torch.tensor(2.0, dtype=D), bounds=(0.0, 2.45)
    )
    plain = mslsq.curve_fit(lambda p, t: p * torch.exp(-1.3 * t) + 0.5, T, y, torch.tensor(2.0, dtype=D))
    own, other = (f.confidence_interval(method="profile") for f in (fit, plain))
    assert float(own.upper) == min(2.45, float(other.upper)) and float(fit.value) <= 2.45
    bounds = torch.tensor([-INF, 1.2, -INF], dtype=D), torch.tensor([INF, 1.2, INF], dtype=D)
    interval = fitted(y, bounds).confidence_interval(method="profile")
    assert float(interval.lower[1]) == float(interval.upper[1]) == 1.2
    known = mslsq.curve_fit(
        lambda p, t: p[0] * torch.exp(-1.2 * t) + p[1], T, y, START[[0, 2]], absolute_sigma=True, sigma=0.05
    ).confidence_interval(method="profile")
    held = mslsq.curve_fit(decay, T, y, START, bounds=bounds, project_start=True, absolute_sigma=True, sigma=0.05)
    torch.testing.assert_close(held.confidence_interval(method="profile").upper[[0, 2]], known.upper, rtol=1e-7, atol=0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("far", [30.0, 1e5, 1e12])
def test_where_the_points_bound_no_profile_its_end_is_the_bound(far: float) -> None:
    t = torch.linspace(0.1, 1, 8, dtype=D)
    y = 2 * t / (3 + t) + 0.03 * torch.tensor([1, -1, 1, -1, -1, 1, -1, 1], dtype=D)

    def interval(upper: float) -> tuple[Tensor, Tensor]:
        bounds = None, torch.tensor([upper, INF], dtype=D)
        start = torch.tensor([2.0, 3.0], dtype=D)
        return mslsq.curve_fit(lambda p, t: p[0] * t / (p[1] + t), t, y, start, bounds=bounds).confidence_interval(
            method="profile"
        )

    assert bool(interval(INF)[1].isinf().all())
    assert float(interval(far)[1][0]) == far
