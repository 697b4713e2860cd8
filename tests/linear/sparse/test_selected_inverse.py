"""Chosen blocks of an inverse by the front-wise recursion, against the dense inverse."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.sparse.multifrontal import factor
from mslsq.linear.sparse.selected_inverse import diagonal_blocks, squared_pivots


def system(seed: int, count: int, pairs: int, batch: int = 2):
    """A structure of blocks of 1 to 6, definite matrices on it, and the same dense."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, count)
    structure = analyze(sizes, rng.integers(0, count, pairs), rng.integers(0, count, pairs))
    dense = np.zeros((batch, structure.num_unknowns, structure.num_unknowns))
    rows, columns = structure.places
    values = rng.normal(size=(batch, structure.num_values))
    dense[:, rows, columns] = values
    dense = np.tril(dense) + np.tril(dense, -1).transpose(0, 2, 1)
    dense += (1 + np.abs(dense).sum(-1).max()) * np.eye(structure.num_unknowns)
    return structure, dense[:, rows, columns], dense


def factored(structure: BlockStructure, values: np.ndarray) -> tuple[BlockStructure, np.ndarray, np.ndarray]:
    factors, definite = factor(torch.from_numpy(values), torch.zeros(0), *structure.elimination.packed)
    return structure, factors.numpy(), definite.numpy()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 80))
def test_chosen_blocks_are_those_of_the_dense_inverse(seed, count, pairs):
    structure, values, dense = system(seed, count, pairs)
    inverse = np.linalg.inv(dense)
    chosen = np.random.default_rng(seed).integers(0, count, 1 + count // 3)
    found = dict(diagonal_blocks(*factored(structure, values), chosen))
    assert sorted(found) == list(range(len(chosen)))
    for number, block in found.items():
        own = structure.starts[chosen[number]] + np.arange(structure.block_sizes[chosen[number]])
        np.testing.assert_allclose(block, inverse[:, own[:, None], own], rtol=1e-9, atol=1e-15)


def test_an_entry_that_is_not_definite_is_nan_and_its_neighbour_is_not():
    structure, values, dense = system(0, 12, 20)
    values[0] = -values[0]
    for number, block in diagonal_blocks(*factored(structure, values), np.arange(12)):
        own = structure.starts[number] + np.arange(structure.block_sizes[number])
        assert np.isnan(block[0]).all()
        np.testing.assert_allclose(block[1], np.linalg.inv(dense[1])[own[:, None], own], rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_pivots_multiply_to_the_determinant(dtype):
    structure, values, dense = system(3, 20, 40)
    pivots = squared_pivots(*factored(structure, values.astype(dtype))[:2])
    tolerance = 1e-12 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(np.log(pivots).sum(1), np.linalg.slogdet(dense)[1], rtol=tolerance)
