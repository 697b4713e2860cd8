"""Colours: no two neighbours alike, few of them, quickly."""

import time

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

from mslsq.linearize.compressed.coloring import colored, neighbours
from mslsq.linearize.compressed.compression import compression_of, symmetric_compression_of

CPU = torch.device("cpu")


def sparse(rows, columns, density, seed):
    matrix = csr_array(random_array((rows, columns), density=density, rng=np.random.default_rng(seed)))
    matrix.data = np.ones(matrix.nnz, bool)
    matrix.sort_indices()
    return csr_array(matrix, dtype=bool)


def grid(m):
    """Differences of neighbours on an m x m grid."""
    numbers = np.arange(m * m).reshape(m, m)
    pairs = np.concatenate(
        [
            np.stack([numbers[1:].ravel(), numbers[:-1].ravel()], 1),
            np.stack([numbers[:, 1:].ravel(), numbers[:, :-1].ravel()], 1),
        ]
    )
    pairs.sort(axis=1)
    return csr_array(
        (np.ones(pairs.size, bool), pairs.ravel(), np.arange(0, pairs.size + 1, 2)), shape=(len(pairs), m * m)
    )


@pytest.mark.parametrize("seed", range(5))
def test_no_row_has_two_columns_of_a_colour(seed):
    sets = sparse(80, 60, 0.05, seed)
    colors = colored(neighbours(sets))
    for row in range(80):
        own = colors[sets.indices[sets.indptr[row] : sets.indptr[row + 1]]]
        assert len(set(own)) == len(own)


def test_a_grid_takes_two_colours():
    assert compression_of(grid(20), CPU, torch.float64).colors == 2


def test_a_hundred_thousand_columns_take_less_than_a_second():
    sets = grid(317)
    start = time.process_time()
    compression_of(sets, CPU, torch.float64)
    assert time.process_time() - start < 0.8


@pytest.mark.parametrize("seed", range(5))
def test_a_jacobian_is_recovered_from_products_along_its_colours(seed):
    sets = sparse(50, 40, 0.06, seed)
    matrix = torch.zeros(50, 40, dtype=torch.float64)
    matrix[torch.from_numpy(sets.toarray())] = torch.rand(sets.nnz, dtype=torch.float64)
    compression = compression_of(sets, CPU, torch.float64)
    value, entries = compression.jacobian(lambda x: matrix @ x.sin(), torch.zeros(40, dtype=torch.float64))
    assert torch.equal(value, torch.zeros(50, dtype=torch.float64))
    assert torch.equal(entries, matrix[torch.from_numpy(sets.toarray())])


def test_rows_are_coloured_where_that_takes_fewer():
    """A sum over all unknowns beside one term for each."""
    eye = np.eye(30, dtype=bool)
    sets = csr_array(np.concatenate([eye, np.ones((1, 30), bool)]))
    compression = compression_of(sets, CPU, torch.float64)
    assert not compression.forward
    assert compression.colors == 2
    weights = torch.arange(1.0, 31.0, dtype=torch.float64)
    _, entries = compression.jacobian(lambda x: torch.cat([x**2, (weights * x).sum()[None]]), weights)
    assert torch.equal(entries, torch.cat([2 * weights, weights]))


@pytest.mark.parametrize("chunk", [1, 100, 10**9])
def test_colours_may_be_taken_in_several_goes(chunk, monkeypatch):
    monkeypatch.setattr("mslsq.linearize.compressed.compression.AT_ONCE", chunk)
    sets = csr_array(np.tri(12, 12, dtype=bool))
    compression = compression_of(sets, CPU, torch.float64)
    weights = torch.tril(torch.rand(12, 12, dtype=torch.float64))
    _, entries = compression.jacobian(lambda x: weights @ x, torch.zeros(12, dtype=torch.float64))
    assert torch.equal(entries, weights[torch.from_numpy(sets.toarray())])


@pytest.mark.parametrize("hub", [False, True])
def test_a_hessian_is_recovered_and_a_parameter_of_everything_costs_one_colour(hub):
    """A chain, with or without one unknown that meets all others."""
    n = 200

    def function(x):
        scale = x[0] if hub else 1.0
        return ((x[2:] - scale * x[1:-1].sin()) ** 2).sum() + x[0] ** 3

    x = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    dense = torch.func.hessian(function)(x)
    rows = [sorted({i, i + 1, *([0] if hub else [])}) for i in range(1, n - 1)] + [[0]]
    sets = csr_array(
        (np.ones(sum(map(len, rows)), bool), np.concatenate(rows), np.cumsum([0, *map(len, rows)])),
        shape=(len(rows), n),
    )
    gram = neighbours(sets)
    compression = symmetric_compression_of(gram, CPU, torch.float64)
    assert compression.colors <= 5
    row, column = np.repeat(np.arange(n), np.diff(gram.indptr)), gram.indices
    lower = row >= column
    expected = dense[row[lower], column[lower]]
    assert torch.allclose(compression.hessian(torch.func.grad(function), x), expected, rtol=1e-13, atol=1e-13)
