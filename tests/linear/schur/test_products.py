"""The products Y Yᵀ of an elimination for blocks of every size, which are cut into registers by rows and columns."""

import numpy as np
import pytest
import torch

from mslsq.linear import Schur, SparseCholesky, cost_models
from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.schur import alike, by_kernels, by_tensors, plan

DOUBLE = torch.float64


def seen_by_all(sizes: list[int], points: int, depth: int, points_first: bool) -> tuple[BlockStructure, dict]:
    """Kept blocks of these sizes, each coupled with each of the points."""
    kept, gone = np.arange(len(sizes)), len(sizes) + np.arange(points)
    blocks = np.concatenate((sizes, np.full(points, depth)))
    if points_first:
        kept, gone, blocks = kept + points, gone - len(sizes), np.roll(blocks, points)
    rows, cols = (x.ravel() for x in np.meshgrid(gone, kept))
    return analyze(blocks, rows, cols), {"kept": kept, "point": gone}


def well_posed(structure: BlockStructure, dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(structure.num_values)
    values = torch.randn(1, structure.num_values, dtype=DOUBLE, generator=generator)
    values[:, structure.diagonal_index] += 30.0
    return values.to(dtype)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("points_first", [False, True])
@pytest.mark.parametrize("width", range(1, 20))
def test_all_sizes_of_blocks_give_what_tensors_give(width, points_first, monkeypatch):
    monkeypatch.setattr(plan, "CACHED", 40)  # several pieces
    monkeypatch.setattr(plan, "FEWEST_PAIRS", 1)
    monkeypatch.setattr(plan, "FEWER_PAIRS", 1)
    for height in range(1, 14):
        for depth in (1, 2, 3):
            structure, kinds = seen_by_all([height, width], 7, depth, points_first)
            tables = Schur("point", reduced="dense").bound(structure, kinds).elimination.tables
            values, rhs = well_posed(structure), torch.ones(1, structure.num_unknowns, dtype=DOUBLE)
            got = by_kernels.reduce(values, values.new_zeros(0), rhs, *tables.packed)
            expected = by_tensors.reduce(values, None, rhs, tables)
            n = tables.num_reduced
            for ours, theirs in ((got[1], expected.carried), (got[3], expected.rhs)):
                torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
            lower = [m.reshape(n, n).tril() for m in (got[2], expected.matrix)]
            torch.testing.assert_close(*lower, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("points_first", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 6, 8, 9, 17])
def test_the_ninth_of_nine_columns_stands_behind_the_others(depth, points_first, dtype):
    structure, kinds = seen_by_all([9] * 4, 7, depth, points_first)
    solver = Schur("point").bound(structure, kinds)
    tables = solver.elimination.tables
    assert (tables.edges[0].target >> 32).eq(8).all()
    values, rhs = well_posed(structure, dtype), torch.ones(1, structure.num_unknowns, dtype=dtype)
    damping = torch.rand(1, structure.num_unknowns, dtype=dtype)
    got = by_kernels.reduce(values, damping, rhs, *tables.packed)
    expected = by_tensors.reduce(values, damping, rhs, tables)
    torch.testing.assert_close(got[1], expected.carried, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(got[3], expected.rhs, rtol=1e-13, atol=1e-13)
    step, solved = solver.solve(values, rhs, damping)
    expected, _ = SparseCholesky().bound(structure, {}).solve(values.double(), rhs.double(), damping.double())
    assert bool(solved.all())
    tolerance = 1e-12 if dtype == DOUBLE else 1e-6
    torch.testing.assert_close(step.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("made_for", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_rows_of_nine_columns_for_other_registers_are_read_too(depth, made_for, monkeypatch):
    """A plan may have been made for another instruction set (a recording that is replayed under emulation)."""
    structure, kinds = seen_by_all([9] * 4, 7, depth, points_first=False)
    monkeypatch.setattr(cost_models, "speed", lambda: cost_models.SPEEDS[made_for])
    monkeypatch.setattr(alike, "speed", cost_models.speed)
    tables = Schur("point", reduced="dense").bound(structure, kinds).elimination.tables
    assert (tables.edges[0].target >> 32).eq(8).all()
    values, rhs = well_posed(structure), torch.ones(1, structure.num_unknowns, dtype=DOUBLE)
    got = by_kernels.reduce(values, values.new_zeros(0), rhs, *tables.packed)
    expected = by_tensors.reduce(values, None, rhs, tables)
    torch.testing.assert_close(got[3], expected.rhs, rtol=1e-13, atol=1e-13)
    n = tables.num_reduced
    torch.testing.assert_close(
        got[2].reshape(n, n).tril(), expected.matrix.reshape(n, n).tril(), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("reduced", ["dense", "sparse"])
@pytest.mark.parametrize("cached", [1, 100, 1_000_000])
def test_an_elimination_in_pieces_is_that_in_one(cached, reduced, dtype, monkeypatch):
    """Kept blocks of two sizes and points of two, piece by piece: what is solved does not depend on the pieces, and the
    numbers that vectors read beyond a block are not used."""
    monkeypatch.setattr(plan, "CACHED", cached)
    monkeypatch.setattr(plan, "FEWEST_PAIRS", 1)
    monkeypatch.setattr(plan, "FEWER_PAIRS", 1)
    rng = np.random.default_rng(0)
    blocks = np.concatenate((np.full(6, 9), np.full(3, 6), np.full(40, 3), np.full(30, 2), np.full(4, 5)))
    seen = rng.random((74, 9)) < 0.4
    point, camera = np.nonzero(seen)
    structure = analyze(blocks, 9 + point, camera)
    solver = Schur("point", reduced=reduced).bound(structure, {"camera": np.arange(9), "point": np.arange(9, 83)})
    tables = solver.elimination.tables
    assert (tables.num_pieces > 10) == (cached < 1_000)
    values, rhs = well_posed(structure, dtype), torch.ones(1, structure.num_unknowns, dtype=dtype)
    damping = torch.rand(1, structure.num_unknowns, dtype=dtype)
    step, solved = solver.solve(values, rhs, damping)
    expected, _ = SparseCholesky().bound(structure, {}).solve(values.double(), rhs.double(), damping.double())
    assert bool(solved.all())
    tolerance = 1e-12 if dtype == DOUBLE else 1e-6
    torch.testing.assert_close(step.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("pairs", "pieces"), [(31, 1), (32, 4), (96, 12)])
def test_pieces_may_have_fewer_pairs_where_there_are_several(pairs, pieces):
    """With registers of every length: this fails where eight numbers of AVX-512 ask for more pairs."""
    starts = np.arange(0, 100 * plan.CACHED, 1_000)  # room for a hundred pieces
    assert int(plan._pieces(starts, pairs * 100, 100).max()) + 1 == pieces


@pytest.mark.parametrize("sizes", [[9, 6, 5], [9, 9, 9]], ids=str)
@pytest.mark.parametrize("cached", [40, 1_000_000])
def test_what_a_call_leaves_in_memory_does_not_change_the_next(cached, sizes, monkeypatch):
    """A thread keeps the memory of a call: after one of numbers that are not finite the next gives the same bits."""
    monkeypatch.setattr(plan, "CACHED", cached)
    monkeypatch.setattr(plan, "FEWEST_PAIRS", 1)
    monkeypatch.setattr(plan, "FEWER_PAIRS", 1)

    def reduced(points: int, spoiled: bool) -> by_kernels.Reduction:
        structure, kinds = seen_by_all(sizes, points, 3, points_first=False)
        tables = Schur("point", reduced="dense").bound(structure, kinds).elimination.tables
        values, rhs = well_posed(structure), torch.ones(1, structure.num_unknowns, dtype=DOUBLE)
        if spoiled:
            couplings = torch.ones(structure.num_values, dtype=torch.bool)
            for block in np.flatnonzero(structure.rows == structure.cols):
                size = int(structure.block_sizes[structure.rows[block]])
                couplings[structure.offsets[block] : structure.offsets[block] + size * size] = False
            values[:, couplings] = float("nan")
        return by_kernels.Reduction(*by_kernels.reduce(values, values.new_zeros(0), rhs, *tables.packed))

    before = reduced(20, spoiled=False)
    assert reduced(60, spoiled=True).matrix.isnan().any()
    after = reduced(20, spoiled=False)
    assert all(map(torch.equal, before[1:], after[1:]))  # above the diagonal of L anything may stand
