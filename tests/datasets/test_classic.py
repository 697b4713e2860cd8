"""The classic problems: SciPy reaches the published minima from the published starts."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import scipy.optimize
import torch
from torch.func import jacfwd, jacrev, vmap

from mslsq.datasets import classic

PROBLEMS = [pytest.param(problem, id=name) for name, problem in classic.PROBLEMS.items()]
SOLVED = [pytest.param(problem, id=name) for name, problem in classic.PROBLEMS.items() if problem.solution is not None]

# ‖r‖ at the start: as MINPACK's own test driver prints it, or by hand where it is a round number
START_NORMS = {
    "rosenbrock": math.sqrt(24.2),
    "freudenstein_roth": 20.012496096,
    "helical_valley": 50.0,
    "bard": 6.456136295,
    "meyer": 41153.466555,
    "powell_singular": 14.662878299,
    "kowalik_osborne": 0.0728915103,
    "brown_dennis": 2815.438,
    "osborne_1": 0.937564021,
    "osborne_2": 1.446865415,
    "watson": 5.477225575,
    "brown_almost_linear": 16.5302162063,
    "chebyquad": 0.1965137864,
    "linear_full_rank": 5.0,
    "linear_rank_one": 291.521868819,
}


def scipys_answer(problem, start):
    """By ``trf``: SciPy 1.17's ``lm`` gave two answers for biggs_exp6 in one process, one of them after three steps."""
    jacobian: Any = lambda x: jacfwd(problem.residual)(torch.from_numpy(x)).numpy()  # noqa: E731
    return scipy.optimize.least_squares(
        lambda x: problem.residual(torch.from_numpy(x)).numpy(),
        start.numpy(),
        jacobian,
        method="trf",
        x_scale="jac",
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
        max_nfev=2000,
    )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_scipy_reaches_a_published_minimum_from_the_published_start(problem):
    found = 2 * scipys_answer(problem, problem.start).cost
    # minima are given to six digits or more; zero ones are reached to the rounding of the residuals (Powell's singular
    # problem stops at x ~ 1e-8, its residuals being quadratic there)
    assert any(found == pytest.approx(minimum, rel=1e-5, abs=1e-17) for minimum in problem.minima), found


@pytest.mark.parametrize("problem", SOLVED)
def test_the_solution_has_the_least_sum_of_squares(problem):
    assert problem.residual(problem.solution).square().sum().item() == pytest.approx(problem.minima[0], abs=1e-25)


@pytest.mark.parametrize("name", START_NORMS)
def test_the_residual_at_the_start_is_the_published_one(name):
    problem = classic.PROBLEMS[name]
    assert problem.residual(problem.start).norm().item() == pytest.approx(START_NORMS[name], rel=1e-6)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_residuals_map_over_points_and_differentiate_both_ways(problem):
    points = problem.start * torch.linspace(0.9, 1.1, 3, dtype=torch.float64)[:, None] + 1e-3
    forward, reverse = vmap(jacfwd(problem.residual))(points), vmap(jacrev(problem.residual))(points)
    one_by_one = torch.stack([jacrev(problem.residual)(point) for point in points])
    scale = one_by_one.abs().max()
    torch.testing.assert_close(forward / scale, one_by_one / scale, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(reverse / scale, one_by_one / scale, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_jacobian_agrees_with_finite_differences(problem):
    x = problem.start + 1e-3
    step = 1e-6 * (1 + x.abs())
    columns = [
        (problem.residual(x + e * step) - problem.residual(x - e * step)) / (2 * step[i])
        for i, e in enumerate(torch.eye(len(x), dtype=torch.float64))
    ]
    numeric = torch.stack(columns, -1)
    torch.testing.assert_close(jacfwd(problem.residual)(x), numeric, rtol=1e-5, atol=1e-6 * numeric.abs().max().item())


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_residual_has_the_dtype_of_the_point(problem):
    assert problem.residual(problem.start.float()).dtype == torch.float32


def test_the_helix_turns_as_in_the_paper():
    """θ = atan(x₂/x₁)/2π, plus one half where x₁ < 0."""
    for x in [(1.0, 0.5), (1.0, -0.5), (-1.0, 0.5), (-1.0, -0.5)]:
        theta = math.atan(x[1] / x[0]) / (2 * math.pi) + (0.5 if x[0] < 0 else 0.0)
        point = torch.tensor([*x, 0.0], dtype=torch.float64)
        assert classic.helical_valley(point)[0].item() == pytest.approx(-100 * theta)


def test_the_page_of_the_data_sets_lists_every_problem_as_it_is():
    page = (Path(__file__).parents[2] / "docs" / "guide" / "datasets.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| ([^|]*) \|", page, re.MULTILINE)
    listed = {name: (int(n), int(m), [float(x) for x in minima.split(",")]) for name, n, m, minima in rows}
    assert list(listed) == list(classic.PROBLEMS)
    for name, problem in classic.PROBLEMS.items():
        unknowns, residuals, minima = listed[name]
        assert (unknowns, residuals) == (len(problem.start), len(problem.residual(problem.start)))
        assert minima == pytest.approx(problem.minima, rel=1e-5)
