"""Cholesky written out gives LAPACK's answers, and fails where LAPACK fails, one matrix at a time."""

import pytest
import torch

from mslsq.linear import Cholesky, UnrolledCholesky


@pytest.mark.parametrize("size", range(1, 7))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_step_is_that_of_lapack(size, dtype):
    j = torch.randn(50, 2, size + 2, size, dtype=dtype, generator=torch.Generator().manual_seed(size))
    matrix, rhs = j.mT @ j, (j.mT @ torch.ones(size + 2, 1, dtype=dtype)).flatten(1)
    for damping in (None, torch.full((50, 2 * size), 0.1, dtype=dtype)):
        step, solved = UnrolledCholesky().solve(matrix, rhs, damping)
        expected, expected_solved = Cholesky().solve(matrix, rhs, damping)
        assert torch.equal(solved, expected_solved)
        # Both are backward stable: errors of the condition number (1e4 at worst here) times the rounding.
        scale = expected.abs().amax(1, keepdim=True)
        assert ((step - expected).abs() <= 1e5 * torch.finfo(dtype).eps * scale).all()


def test_an_indefinite_or_nan_matrix_fails_alone():
    matrix = torch.eye(3, dtype=torch.float64).repeat(4, 1, 1, 1)
    matrix[1, 0, 2, 2] = -1
    matrix[2, 0, 1, 1] = torch.nan
    matrix[3, 0, 0, 0] = 0
    step, solved = UnrolledCholesky().solve(matrix, torch.ones(4, 3, dtype=torch.float64), None)
    assert solved.tolist() == [True, False, False, False]
    assert torch.equal(step[0], -torch.ones(3, dtype=torch.float64))
