"""Which dense matrices have a factor for derivatives."""

import torch

from mslsq import linear


def test_a_pivot_of_a_few_units_in_the_last_place_is_rounding():
    """Of a matrix that is singular but for rounding elimination leaves as much."""
    eps = torch.finfo(torch.float64).eps
    matrices = torch.tensor([[[1, 1], [1, 1 + 6 * eps]], [[1, 1], [1, 1 + 1e-13]]], dtype=torch.float64)[:, None]
    assert linear.Cholesky().definite_factor(matrices).definite.tolist() == [False, True]
