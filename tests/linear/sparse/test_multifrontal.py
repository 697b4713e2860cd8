"""The block-sparse Cholesky against NumPy's dense algebra, and by residuals where dense is too large."""

import numpy as np
import pytest
import torch

from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.sparse import multifrontal
from mslsq.linear.sparse.fill_reducing import fill_reducing_order
from mslsq.linear.stored_blocks import StoredBlocks


class factor:
    """The factors of A + diag(shift) in NumPy's arrays."""

    def __init__(self, structure: BlockStructure, values: np.ndarray, shift: np.ndarray | None = None):
        matrix, self.plan = torch.from_numpy(values), structure.elimination.packed
        moved = matrix.new_zeros(0) if shift is None else torch.from_numpy(shift)
        self.entries, self.definite = multifrontal.factor(matrix, moved, *self.plan)
        self.ok = self.definite.numpy()


def solve(factored: factor, rhs: np.ndarray) -> np.ndarray:
    return multifrontal.solve(factored.entries, factored.definite, torch.from_numpy(rhs), *factored.plan).numpy()


def matvec(structure: BlockStructure, values: np.ndarray, x: np.ndarray) -> np.ndarray:
    storage, matrix = StoredBlocks(structure), torch.from_numpy(values)
    columns = [storage.product(matrix, column) for column in torch.from_numpy(x).unbind(-1)]
    return torch.stack(columns, -1).numpy()


def to_dense(structure: BlockStructure, values: np.ndarray) -> np.ndarray:
    """(batch, N, N) from the documented storage, block by block."""
    n, s, d = structure.num_unknowns, structure.starts, structure.block_sizes
    full = np.zeros((len(values), n, n), values.dtype)
    for e, (i, j) in enumerate(zip(structure.rows, structure.cols, strict=True)):
        block = values[:, structure.offsets[e] :][:, : d[i] * d[j]].reshape(-1, d[i], d[j])
        full[:, s[i] : s[i] + d[i], s[j] : s[j] + d[j]] = block
        full[:, s[j] : s[j] + d[j], s[i] : s[i] + d[i]] = block.swapaxes(1, 2)
    return full


def positive_definite(structure: BlockStructure, rng: np.random.Generator, batch=1, dtype: type = np.float64):
    """Random values whose rows are diagonally dominant, diagonal blocks symmetric."""
    values = rng.standard_normal((batch, structure.num_values)).astype(dtype)
    for e in np.flatnonzero(structure.rows == structure.cols):
        d = structure.block_sizes[structure.rows[e]]
        own = values[:, structure.offsets[e] : structure.offsets[e] + d * d].reshape(batch, d, d)
        own += own.swapaxes(1, 2).copy()
    full = to_dense(structure, values)
    values[:, structure.diagonal_index.numpy()] += np.abs(full).sum(2) + 0.1
    return values


def assert_solves(structure, values, rng, columns=1, shift=None, tolerance=1e-12):
    """x against numpy.linalg.solve; diagonal dominance keeps the condition near a few dozen, so 1e-12 is generous."""
    full = to_dense(structure, values).astype(np.float64)
    if shift is not None:
        full = full + np.eye(full.shape[1]) * shift[:, None, :]
    rhs = rng.standard_normal((len(values), structure.num_unknowns, columns)).astype(values.dtype)
    factored = factor(structure, values, shift)
    assert factored.ok.all()
    x = solve(factored, rhs)
    assert x.dtype == values.dtype
    expected = np.linalg.solve(full, rhs.astype(np.float64))
    np.testing.assert_allclose(x, expected, rtol=0, atol=tolerance * np.abs(expected).max())


PATTERNS = {
    "one block": ([3], [], []),
    "one unknown": ([1], [], []),
    "no off-diagonal block": ([2, 3, 9, 1], [], []),
    "chain": ([6] * 40, range(1, 40), range(39)),
    "arrow": ([9] + [3] * 300, range(1, 301), [0] * 300),
    "arrow the other way": ([3] * 300 + [9], [300] * 300, range(300)),
    "two parts": ([2] * 20, [*range(1, 10), *range(11, 20)], [*range(9), *range(10, 19)]),
    "complete": ([2] * 30, *np.tril_indices(30, -1)),
    "upper triangle, twice, diagonal too": ([2, 3, 4], [0, 0, 1, 2, 1, 1], [1, 2, 2, 1, 0, 1]),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_special_patterns_agree_with_dense_algebra(name):
    sizes, rows, cols = PATTERNS[name]
    structure = analyze(np.array(sizes), np.array([*rows]), np.array([*cols]))
    rng = np.random.default_rng(0)
    assert_solves(structure, positive_definite(structure, rng), rng)


@pytest.mark.parametrize("seed", range(12))
def test_random_patterns_agree_with_dense_algebra(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 150))
    pairs = int(rng.integers(1, 4 * n))
    structure = analyze(
        rng.choice([[6], [3, 9], [1, 2, 7]][seed % 3], n), rng.integers(0, n, pairs), rng.integers(0, n, pairs)
    )
    shift = rng.random((2, structure.num_unknowns)) if seed % 2 else None
    assert_solves(structure, positive_definite(structure, rng, batch=2), rng, 1 + seed, shift)


def bundle(rng: np.random.Generator) -> BlockStructure:
    """Cameras of 9, points of 3, each point seen by a few cameras."""
    cameras, points = 8, 120
    camera = np.concatenate([rng.choice(cameras, 3, replace=False) for _ in range(points)])
    return analyze(np.array([9] * cameras + [3] * points), np.repeat(np.arange(points) + cameras, 3), camera)


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 9, 30])
def test_any_number_of_right_hand_sides(columns):
    rng = np.random.default_rng(columns)
    structure = bundle(rng)
    assert_solves(structure, positive_definite(structure, rng, batch=3), rng, columns)


@pytest.mark.parametrize("columns", [1, 5])
def test_float32_stays_float32(columns):
    rng = np.random.default_rng(1)
    structure = bundle(rng)
    # a hundred roundings of 6e-8
    assert_solves(structure, positive_definite(structure, rng, 2, np.float32), rng, columns, tolerance=1e-5)


def test_wide_fronts_use_every_tile_height():
    rng = np.random.default_rng(2)
    for blocks in (3, 5, 8, 13, 21, 34):
        structure = analyze(np.full(blocks, 7), *np.tril_indices(blocks, -1))
        assert_solves(structure, positive_definite(structure, rng), rng, 4)


def two_rooms(side: int, between: int) -> BlockStructure:
    """Two complete graphs of `side` blocks, each joined to all of a third."""
    blocks = np.arange(2 * side + between)
    first, second = np.tril_indices(len(blocks), -1)
    apart = (second < side) & (first >= side) & (first < 2 * side)
    return analyze(np.full(len(blocks), 7), first[~apart], second[~apart])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("side", "between"), [(0, 75), (47, 72)], ids=["alone", "with rows below"])
def test_fronts_beyond_the_second_cache_agree_with_dense_algebra(side, between, dtype):
    rng = np.random.default_rng(4)
    structure = two_rooms(side, between)
    large = [
        f for f in structure.elimination.fronts.tolist() if f[1] * (f[1] + f[3]) >= 2**18
    ]  # as large_fronts.h has it
    assert any(bool(f[3]) == bool(side) for f in large)
    assert_solves(
        structure, positive_definite(structure, rng, 1, dtype), rng, 2, tolerance=1e-12 if dtype == np.float64 else 1e-5
    )


def test_a_pivot_that_is_not_positive_is_found_in_any_block_of_a_large_front():
    structure = two_rooms(0, 75)
    values = positive_definite(structure, np.random.default_rng(5), batch=3)
    values[1, structure.diagonal_index[520]] = -1
    values[2, structure.diagonal_index[3]] = np.nan
    assert factor(structure, values).ok.tolist() == [True, False, False]


@pytest.mark.parametrize("poison", ["indefinite", "nan", "infinite", "zero"])
def test_a_failing_entry_does_not_disturb_its_batch_mates(poison):
    rng = np.random.default_rng(3)
    structure = bundle(rng)
    values = positive_definite(structure, rng, batch=4)
    rhs = rng.standard_normal((4, structure.num_unknowns, 2))
    expected = solve(factor(structure, values), rhs)
    at = structure.diagonal_index[17]
    if poison == "zero":
        values[2] = 0
    else:
        values[2, at] = {"indefinite": -1.0, "nan": np.nan, "infinite": np.inf}[poison]
    factored = factor(structure, values)
    assert factored.ok.tolist() == [True, True, False, True]
    x = solve(factored, rhs)
    assert np.isnan(x[2]).all()
    np.testing.assert_array_equal(x[[0, 1, 3]], expected[[0, 1, 3]])


def test_the_shift_repairs_a_singular_entry():
    rng = np.random.default_rng(4)
    structure = bundle(rng)
    values = np.zeros((2, structure.num_values))
    shift = 1 + rng.random((2, structure.num_unknowns))
    rhs = rng.standard_normal((2, structure.num_unknowns, 1))
    np.testing.assert_allclose(solve(factor(structure, values, shift), rhs), rhs / shift[..., None], rtol=1e-15)


def test_threads_change_nothing(monkeypatch):
    rng = np.random.default_rng(5)
    structure = bundle(rng)
    values = positive_definite(structure, rng, batch=7)
    rhs = rng.standard_normal((7, structure.num_unknowns, 3))
    expected = solve(factor(structure, values), rhs)
    monkeypatch.setattr(multifrontal, "WORTH_THREADS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    np.testing.assert_array_equal(solve(factor(structure, values), rhs), expected)


def test_products_and_diagonals_agree_with_dense_algebra():
    rng = np.random.default_rng(6)
    structure = bundle(rng)
    values = positive_definite(structure, rng, batch=2)
    full = to_dense(structure, values)
    x = rng.standard_normal((2, structure.num_unknowns, 3))
    np.testing.assert_allclose(matvec(structure, values, x), full @ x, atol=1e-12 * np.abs(full).max())
    diagonal = StoredBlocks(structure).diagonal(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(diagonal, np.einsum("bii->bi", full))


def test_offsets_say_where_a_block_lies_and_which_way_round():
    structure = analyze(np.array([2, 3, 1]), np.array([0]), np.array([1]))
    assert structure.num_values == 4 + 6 + 9 + 1
    offsets, transposed = structure.offset_of([0, 1, 0, 1, 2], [0, 0, 1, 1, 2])
    assert offsets.tolist() == [0, 4, 4, 10, 19]
    assert transposed.tolist() == [False, False, True, False, False]
    with pytest.raises(KeyError, match=r"block \(2, 1\)"):
        structure.offset_of([0, 2], [0, 1])


def test_only_the_lower_triangle_of_diagonal_blocks_is_read():
    rng = np.random.default_rng(7)
    structure = analyze(np.array([3, 3]), np.array([1]), np.array([0]))
    values = positive_definite(structure, rng)
    rhs = rng.standard_normal((1, 6, 1))
    expected = solve(factor(structure, values), rhs), matvec(structure, values, rhs)
    for e in (0, 2):
        values[0, structure.offsets[e] + np.array([1, 2, 5])] = np.nan
    np.testing.assert_array_equal(solve(factor(structure, values), rhs), expected[0])
    np.testing.assert_array_equal(matvec(structure, values, rhs), expected[1])


def grid(side: int, size: int) -> BlockStructure:
    g = np.arange(side * side).reshape(side, side)
    rows, cols = np.concatenate((g[1:].ravel(), g[:, 1:].ravel())), np.concatenate((g[:-1].ravel(), g[:, :-1].ravel()))
    return analyze(np.full(side * side, size), rows, cols)


@pytest.mark.parametrize(("side", "size", "columns"), [(150, 2, 1), (60, 6, 9)])
def test_a_large_grid_is_solved_to_rounding(side, size, columns):
    structure = grid(side, size)
    rng = np.random.default_rng(8)
    values = rng.standard_normal((1, structure.num_values))
    ones = np.ones((1, structure.num_unknowns, 1))
    # dominance from |A| 1, without the dense matrix; the symmetric part of diagonal blocks is their lower triangle
    values[:, structure.diagonal_index.numpy()] = 0
    values[:, structure.diagonal_index.numpy()] = matvec(structure, np.abs(values), ones)[..., 0] + 0.1
    rhs = rng.standard_normal((1, structure.num_unknowns, columns))
    x = solve(factor(structure, values), rhs)
    assert np.abs(matvec(structure, values, x) - rhs).max() <= 1e-12


def test_the_order_fills_less_than_multiple_minimum_degree():
    import scipy.sparse as sp
    from scipy.sparse.linalg import splu

    structure = grid(60, 1)
    n = structure.num_unknowns
    pairs = structure.rows != structure.cols
    pattern = sp.coo_matrix((np.full(pairs.sum(), -1.0), (structure.rows[pairs], structure.cols[pairs])), (n, n))
    graph = (pattern + pattern.T).tocsr()
    start, neighbour = graph.indptr.astype(np.int64), graph.indices.astype(np.int32)
    order = fill_reducing_order(np.ones(n, np.int64), start, neighbour)
    assert sorted(order) == list(range(n))
    matrix = (graph + 5 * sp.eye(n)).tocsc()
    options = {"SymmetricMode": True}
    ours = splu(matrix[order][:, order].tocsc(), permc_spec="NATURAL", diag_pivot_thresh=0, options=options).L.nnz
    theirs = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0, options=options).L.nnz
    assert ours <= theirs  # theirs knows the degrees that ours bounds, ours tries several numberings
    shuffled = np.random.default_rng(0).permutation(n)
    graph = graph[shuffled][:, shuffled].tocsr()
    order = fill_reducing_order(np.ones(n, np.int64), graph.indptr.astype(np.int64), graph.indices.astype(np.int32))
    matrix = matrix[shuffled][:, shuffled]
    again = splu(matrix[order][:, order].tocsc(), permc_spec="NATURAL", diag_pivot_thresh=0, options=options).L.nnz
    assert again <= 1.1 * ours  # however the vertices are numbered


def test_a_hundred_thousand_blocks_are_analysed_without_overflow():
    structure = grid(317, 1)
    values = np.zeros((1, structure.num_values))
    values[:] = -1.0
    values[:, structure.diagonal_index.numpy()] = 4.1
    rhs = np.random.default_rng(9).standard_normal((1, structure.num_unknowns, 1))
    x = solve(factor(structure, values), rhs)
    assert np.abs(matvec(structure, values, x) - rhs).max() <= 1e-12


def test_wrong_pairs_and_types_are_named():
    structure = analyze(np.array([2, 2]), np.array([1]), np.array([0]))
    with pytest.raises(ValueError, match="pair 1 is"):
        analyze(np.array([2, 2]), np.array([1, 2]), np.array([0, 0]))
    with pytest.raises(TypeError, match="float64 or float32"):
        factor(structure, np.zeros((1, structure.num_values), np.int64))
    factored = factor(structure, np.zeros((1, structure.num_values)))
    with pytest.raises(TypeError, match="float32"):
        solve(factored, np.zeros((1, 4, 1), np.float32))


def test_nothing_is_left_in_the_kept_memory_by_another_factorisation():
    """A thread keeps the memory of update matrices: other structures, NaN and float32 leave nothing there."""
    rng = np.random.default_rng(3)
    star = analyze(np.full(40, 3), rows=np.arange(1, 40).repeat(2), cols=np.r_[0:39].repeat(2) // np.tile([1, 3], 39))
    chain = analyze(np.full(60, 6), rows=np.arange(1, 60), cols=np.arange(59))
    values = positive_definite(star, rng)
    expected = factor(star, values).entries
    for other in (positive_definite(chain, rng), np.full((1, chain.num_values), np.nan)):
        for dtype in (np.float64, np.float32):
            factor(chain, other.astype(dtype))
            assert torch.equal(factor(star, values).entries, expected)


@pytest.mark.parametrize("columns", [1, 2, 3, 5])
def test_half_a_solve_gives_the_form_of_the_inverse(columns):
    """‖L⁻¹v‖² = vᵀA⁻¹v, and NaN for what could not be factored."""
    rng = np.random.default_rng(columns)
    structure = bundle(rng)
    values = positive_definite(structure, rng, batch=2)
    values[1] *= -1
    factored = factor(structure, values)
    rhs = torch.from_numpy(rng.standard_normal((2, structure.num_unknowns, columns)))
    lower = multifrontal.solve_lower(factored.entries, factored.definite, rhs, *factored.plan)
    whole = multifrontal.solve(factored.entries, factored.definite, rhs, *factored.plan)
    torch.testing.assert_close(lower.square().sum(1)[0], (rhs * whole).sum(1)[0], rtol=1e-12, atol=0)
    assert lower[1].isnan().all()


def test_two_right_hand_sides_are_solved_as_each_alone():
    rng = np.random.default_rng(0)
    structure = bundle(rng)
    factored = factor(structure, positive_definite(structure, rng, batch=2))
    rhs = rng.standard_normal((2, structure.num_unknowns, 2))
    both = solve(factored, rhs)
    for k in range(2):
        np.testing.assert_array_equal(both[..., k : k + 1], solve(factored, rhs[..., k : k + 1].copy()))
