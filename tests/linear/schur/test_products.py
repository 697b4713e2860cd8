"""The products Y Yᵀ of an elimination for blocks of every size, which are cut into registers by rows and columns."""

import pytest
import torch

from mslsq.kernels import Kernel

DOUBLE = torch.float64
FIRST = torch.tensor([0, 3, 7])
ORDER = torch.tensor([3, 1, 0, 6, 5, 4, 2])


@pytest.mark.parametrize("columns", range(1, 20))
def test_the_sums_of_products_are_those_of_matrices(columns):
    subtract = Kernel("schur_subtract_pairs", "ndndn?nlllllnnn")
    generator = torch.Generator().manual_seed(columns)
    for rows in range(1, 14):
        for depth in (1, 2, 3):
            one = torch.randn(7, depth, rows, dtype=DOUBLE, generator=generator)
            other = torch.randn(7, depth, columns, dtype=DOUBLE, generator=generator)
            beyond = torch.full((16,), torch.nan, dtype=DOUBLE)  # is read, and must not be used
            work = torch.cat((one.flatten(), other.flatten(), beyond))[None]
            left, right = torch.arange(7) * depth * rows, one.numel() + ORDER * depth * columns
            blocks, regular = torch.zeros(1, 2 * rows * columns, dtype=DOUBLE), torch.ones(1, dtype=torch.bool)
            target, stride = torch.tensor([0, rows * columns]), torch.tensor([columns, columns])
            of = 1, work, work.shape[1], blocks, blocks.shape[1], regular
            subtract(*of, 2, FIRST, target, stride, left, right, rows, depth, columns)
            products = torch.einsum("ekr,ekc->erc", one, other[ORDER])
            sums = torch.stack((products[:3].sum(0), products[3:].sum(0)))
            torch.testing.assert_close(-blocks.view_as(sums), sums, rtol=1e-13, atol=1e-13)
