"""NIST's certified regressions from both starts: four digits with default options, six with tight ones."""

from collections.abc import Callable

import pytest
import torch

import mslsq
from mslsq.datasets import nist
from mslsq.solvers import Solver

EACH_RUN = pytest.mark.parametrize(
    ("name", "start"),
    [pytest.param(name, k, id=f"{name}-{('far', 'near')[k]}") for name in nist.MODELS for k in (0, 1)],
)
FAR = ("MGH10", 0)
"""A start from which straight steps do not arrive in 5,000."""
TIGHT = {"ftol": 0, "gtol": 0, "xtol": 1e-15, "max_steps": 2000}


def fit(
    read: Callable[[str], nist.Regression], name: str, start: int, solver: Solver
) -> tuple[nist.Regression, mslsq.Solution]:
    data = read(name)
    return data, mslsq.least_squares(data.residual, data.starts[start], solver=solver)


@pytest.mark.sampled(14)
@EACH_RUN
def test_four_digits_with_defaults(nist_set, name, start):
    solver = mslsq.LevenbergMarquardt(acceleration=0.75 if (name, start) == FAR else None)
    data, solution = fit(nist_set, name, start, solver)
    assert data.digits(solution.value) >= 4
    # Lanczos2's Σ r² is 2e-11 of data of size 1, its J is conditioned like 1e6: the last steps are rounding.
    assert bool(solution.converged) or name == "Lanczos2", solution.message()
    # Lanczos3's sum of squares is 1.6e-8 of data that are given to 5 digits: it is certified to 1e-4 of itself.
    # Lanczos1's is zero to rounding.
    assert 2 * float(solution.cost) == pytest.approx(data.residual_sum_of_squares, rel=1e-4, abs=1e-20)


@pytest.mark.sampled(12)
@EACH_RUN
def test_six_digits_with_tight_tolerances(nist_set, name, start):
    data, solution = fit(
        nist_set, name, start, mslsq.LevenbergMarquardt(**TIGHT, acceleration=0.75 if (name, start) == FAR else None)
    )
    assert data.digits(solution.value) >= 6


@pytest.mark.parametrize("name", ["Misra1a", "DanWood", "Chwirut2", "Gauss1", "Hahn1", "Thurber"])
def test_six_digits_by_qr_and_by_dogleg(nist_set, name):
    for solver in (mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.QR(), **TIGHT), mslsq.Dogleg(**TIGHT)):
        data, solution = fit(nist_set, name, 1, solver)
        assert data.digits(solution.value) >= 6


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", nist.MODELS)
def test_both_starts_as_a_batch_end_where_they_end_alone(nist_set, name):
    data = nist_set(name)
    solver = mslsq.LevenbergMarquardt(**TIGHT, acceleration=0.75 if name == FAR[0] else None)
    batch = mslsq.least_squares(data.residual, data.starts, in_dims=0, solver=solver)
    for value in batch.value:
        assert data.digits(value) >= 6


def test_sets_of_one_shape_as_one_batch(nist_set):
    """Gauss1 and Gauss2 have one model; so do Chwirut1 (214 points) and Chwirut2 (54), the shorter one masked."""
    sets = [nist_set(name) for name in ("Gauss1", "Gauss2")]
    y, t = torch.stack([s.y for s in sets]), torch.stack([s.t for s in sets])
    starts = torch.stack([s.starts[1] for s in sets])
    solution = mslsq.least_squares(lambda p, t, y: sets[0].model(p, t) - y, starts, (t, y), in_dims=0)
    assert all(s.digits(value) >= 4 for s, value in zip(sets, solution.value, strict=True))

    sets = [nist_set(name) for name in ("Chwirut1", "Chwirut2")]
    longest = max(len(s.y) for s in sets)

    def padded(x):
        return torch.nn.functional.pad(x, (0, longest - len(x)), value=1.0)

    y, t = torch.stack([padded(s.y) for s in sets]), torch.stack([padded(s.t) for s in sets])
    mask = torch.stack([torch.arange(longest) < len(s.y) for s in sets])
    starts = torch.stack([s.starts[0] for s in sets])
    solution = mslsq.least_squares(
        lambda p, t, y, mask: torch.where(mask, sets[0].model(p, t) - y, 0), starts, (t, y, mask), in_dims=0
    )
    assert all(s.digits(value) >= 4 for s, value in zip(sets, solution.value, strict=True))
