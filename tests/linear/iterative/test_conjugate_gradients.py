"""The iteration of conjugate gradients: each entry of a batch solved, stopped or given up by itself."""

import pytest
import torch

from mslsq.linear.iterative.conjugate_gradients import conjugate_gradients


def systems(batch: int = 4, size: int = 12, dtype: torch.dtype = torch.float64):
    """Positive definite matrices of conditions up to 1e4, and right-hand sides."""
    generator = torch.Generator().manual_seed(batch)
    root = torch.randn(batch, size, size, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + 0.1 * torch.eye(size, dtype=torch.float64)
    return matrix.to(dtype), torch.randn(batch, size, generator=generator, dtype=torch.float64).to(dtype)


def solved(matrix, rhs, precondition=None, **options):
    options = {"tolerance": 1e-12, "max_iterations": 100, **options}
    return conjugate_gradients(lambda x: (matrix @ x[..., None])[..., 0], rhs, precondition or (lambda r: r), **options)


def jacobi(matrix):
    return lambda r: r / matrix.diagonal(dim1=-2, dim2=-1)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_it_solves_what_cholesky_solves(dtype, tolerance):
    matrix, rhs = systems(dtype=dtype)
    result = solved(matrix, rhs, jacobi(matrix), tolerance=tolerance)
    exact = torch.cholesky_solve(rhs.double()[..., None], torch.linalg.cholesky(matrix.double()))[..., 0]
    assert result.converged.all() and result.definite.all()
    assert result.solution.dtype == dtype
    # The error is the residual times the condition, at most 1e4.
    torch.testing.assert_close(result.solution.double(), exact, rtol=1e4 * tolerance, atol=1e4 * tolerance)


def test_the_exact_inverse_as_preconditioner_takes_one_iteration():
    matrix, rhs = systems()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
    result = solved(matrix, rhs, lambda r: (inverse @ r[..., None])[..., 0], tolerance=1e-9)
    assert result.iterations.tolist() == [1] * 4


def test_every_entry_stops_by_itself():
    matrix, rhs = systems()
    matrix = matrix + 10 * torch.eye(12, dtype=torch.float64)
    tolerance = torch.tensor([1e-1, 1e-3, 1e-6, 1e-12], dtype=torch.float64)
    together = solved(matrix, rhs, tolerance=tolerance)
    assert (together.residual <= tolerance).all()
    assert together.iterations[0] < together.iterations[2]
    for k in range(4):
        alone = solved(matrix[k : k + 1], rhs[k : k + 1], tolerance=float(tolerance[k]))
        assert alone.iterations == together.iterations[k]
        torch.testing.assert_close(alone.solution[0], together.solution[k], rtol=1e-12, atol=1e-12)


def test_entries_that_cannot_be_solved_do_not_disturb_the_others():
    matrix, rhs = systems(6)
    clean = solved(matrix, rhs)
    broken, b = matrix.clone(), rhs.clone()
    broken[1, 3, 3] = torch.nan
    broken[2] = -broken[2]  # negative curvature at once
    broken[3, 0, 0] -= 2 * broken[3].diagonal().sum()  # indefinite
    b[4] = torch.inf
    b[5] = 0
    result = solved(broken, b)
    assert result.converged.tolist() == [True, False, False, False, False, True]
    assert result.definite.tolist()[:4] == [True, True, False, False]
    assert torch.isfinite(result.solution).all()
    assert torch.equal(result.solution[0], clean.solution[0])
    assert torch.equal(result.solution[5], torch.zeros(12, dtype=torch.float64))
    assert result.iterations[5] == 0 and result.residual[5] == 0


def test_too_few_iterations_are_not_converged_and_the_model_decrease_is_still_half_the_slope():
    """xᵀ(b − Ax) = 0 for every iterate: what the predicted decrease of an inexact step rests on."""
    matrix, rhs = systems()
    result = solved(matrix, rhs, jacobi(matrix), max_iterations=4)
    assert not result.converged.any() and (result.iterations == 4).all()
    x = result.solution
    curvature = torch.einsum("bi,bij,bj->b", x, matrix, x)
    torch.testing.assert_close(curvature, (x * rhs).sum(-1), rtol=1e-10, atol=0)


def test_the_test_of_nash_and_sofer_stops_where_the_model_gains_no_more():
    matrix, rhs = systems(size=60)
    loose = solved(matrix, rhs, model_tolerance=0.1)
    full = solved(matrix, rhs)
    assert loose.converged.all() and (loose.iterations < full.iterations).all()
    # Of the decrease that can be had no more than a share comparable to the tolerance is left.
    left = 1 - (loose.solution * rhs).sum(-1) / (full.solution * rhs).sum(-1)
    assert (left < 0.3).all()


def test_a_preconditioner_that_is_not_definite_is_noticed():
    matrix, rhs = systems()
    result = solved(matrix, rhs, lambda r: -r)
    assert not result.converged.any() and not result.definite.any()
    assert torch.equal(result.solution, torch.zeros_like(rhs))
