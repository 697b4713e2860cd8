"""Eliminated blocks that couple with the same kept blocks go together, and give what they give one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mslsq.linear import Schur, SparseCholesky
from mslsq.linear.block_structure import analyze
from mslsq.linear.schur import alike, by_kernels, by_tensors, plan
from mslsq.linear.schur.reduced import Reduced
from mslsq.linear.schur.tables import SchurTables

DOUBLE = torch.float64
pytestmark = pytest.mark.kernels


class Scene:
    """Points of which many are seen from the same cameras; blocks of several sizes, before and after the points."""

    def __init__(self, seed: int, points: int = 90, sets: int = 5, sizes=(9, 6, 3, 9, 7, 9, 2), depths=(3,), before=4):
        rng = np.random.default_rng(seed)
        kept, depth = np.array(sizes), rng.choice(depths, points)
        blocks = np.concatenate((kept[:before], depth, kept[before:]))
        number = np.concatenate((np.arange(before), points + np.arange(before, len(kept))))
        known = [np.flatnonzero(rng.random(len(kept)) < 0.6) for _ in range(sets)]
        seen = [
            known[k] if k < sets else np.flatnonzero(rng.random(len(kept)) < 0.5)
            for k in rng.integers(0, sets + 1, points)
        ]
        point = before + np.arange(points).repeat([len(s) for s in seen])
        self.structure = analyze(blocks, point, number[np.concatenate(seen)])
        self.kinds = {"kept": number, "point": before + np.arange(points)}
        generator = torch.Generator().manual_seed(seed)
        self.values = torch.randn(2, self.structure.num_values, dtype=DOUBLE, generator=generator)
        self.values[:, self.structure.diagonal_index] += 60.0
        self.rhs = torch.randn(2, self.structure.num_unknowns, dtype=DOUBLE, generator=generator)
        self.damping = torch.rand(2, self.structure.num_unknowns, dtype=DOUBLE, generator=generator)

    def solver(self, reduced: Reduced = "dense") -> Schur:
        return Schur("point", reduced=reduced).bound(self.structure, self.kinds)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    points=st.integers(1, 120),
    sets=st.integers(1, 6),
    before=st.integers(0, 7),
    depths=st.sampled_from([(3,), (1, 2), (2, 3, 5)]),
    sizes=st.sampled_from([(9, 6, 3, 9, 7, 9, 2), (9,) * 7, (6,) * 7, (1, 2, 1, 3, 1, 1, 20), (17, 9, 8, 16, 3, 4, 5)]),
    reduced=st.sampled_from(["dense", "sparse"]),
)
def test_together_is_what_one_by_one_is(seed, points, sets, before, depths, sizes, reduced):
    scene = Scene(seed, points, sets, sizes, depths, before)
    solver = scene.solver(reduced)
    tables = solver.elimination.tables
    got = by_kernels.Reduction(*by_kernels.reduce(scene.values, scene.damping, scene.rhs, *tables.packed))
    expected = by_tensors.reduce(scene.values, scene.damping, scene.rhs, tables)
    for ours, theirs in ((got.carried, expected.carried), (got.rhs, expected.rhs)):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    step, solved = solver.solve(scene.values, scene.rhs, scene.damping)
    by_another_way, _ = SparseCholesky().bound(scene.structure, {}).solve(scene.values, scene.rhs, scene.damping)
    assert bool(solved.all())
    torch.testing.assert_close(step, by_another_way, rtol=1e-11, atol=1e-11)


def clustered(tables: SchurTables) -> int:
    return sum(int(group.count.sum()) for group in tables.alike)


def test_points_seen_from_the_same_cameras_go_together_and_others_do_not():
    tables = Scene(3, points=100, sets=3, sizes=(9, 9, 9, 9), before=4).solver().elimination.tables
    assert 60 < clustered(tables) < 100
    assert tables.pairs  # the others
    for group in tables.alike:
        assert int(torch.bincount(group.set, group.count).min()) >= alike.FEWEST_OF_SET
        assert int(group.count.min()) >= alike.fewest()


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32], ids=str)
def test_a_set_in_many_pieces_is_that_in_one(dtype, monkeypatch):
    """Piece by piece, with sums that wait for more of their set, and with sums that do not wait."""
    monkeypatch.setattr(plan, "FEWEST_PAIRS", 1)
    monkeypatch.setattr(plan, "FEWER_PAIRS", 1)
    found, slots = [], []
    for cached, wait in ((1_000_000, 64), (4_000, 64), (4_000, 0)):
        monkeypatch.setattr(plan, "CACHED", cached)
        monkeypatch.setattr(alike, "LONGEST_WAIT", wait)
        scene = Scene(1, points=600, sets=3)
        tables = scene.solver().elimination.tables
        assert (tables.num_pieces > 5) == (cached == 4_000)
        assert clustered(tables) > 300
        slots.append(sum(group.slots for group in tables.alike))
        values, rhs = scene.values.to(dtype), scene.rhs.to(dtype)
        found.append(by_kernels.Reduction(*by_kernels.reduce(values, values.new_zeros(0), rhs, *tables.packed)))
    assert slots[2] <= slots[1]
    n = int(found[0].rhs.shape[1])
    for other in found[1:]:
        lower = [x.matrix.reshape(-1, n, n).tril() for x in (found[0], other)]
        torch.testing.assert_close(*lower, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[0].rhs, other.rhs, rtol=1e-12, atol=1e-12)


def test_signatures_that_collide_are_told_apart(monkeypatch):
    """Where the random numbers of two sets agree, the blocks themselves decide."""
    monkeypatch.setattr(np.random, "default_rng", lambda seed: type("Same", (), {"integers": same_numbers})())
    pivot, other = np.repeat(np.arange(40), 2), np.tile([0, 1, 0, 2], 20)
    sizes = np.full(80, 3), np.full(40, 3)
    models = alike.Couplings(pivot, other, np.zeros(80, bool), *sizes).models()
    assert models[::2].tolist() == [0] * 20
    assert models[1::2].tolist() == list(range(1, 40, 2))


def same_numbers(self, low: int, high: int, count: int, dtype: type) -> np.ndarray:
    return np.ones(count, dtype)


def test_bits_do_not_depend_on_what_was_in_memory():
    scene, other = Scene(5, points=200), Scene(6, points=300, sizes=(6,) * 7)
    tables = scene.solver().elimination.tables
    none = scene.values.new_zeros(0)
    before = by_kernels.reduce(scene.values, none, scene.rhs, *tables.packed)
    spoiled = torch.full_like(other.values, float("nan"))
    spoiled[:, other.structure.diagonal_index] = 1.0
    by_kernels.reduce(spoiled, none, other.rhs, *other.solver().elimination.tables.packed)
    after = by_kernels.reduce(scene.values, none, scene.rhs, *tables.packed)
    n = tables.num_reduced
    assert torch.equal(before[2].reshape(-1, n, n).tril(), after[2].reshape(-1, n, n).tril())
    assert torch.equal(before[3], after[3])


@pytest.mark.parametrize("pivot", [1e-310, 1e308])
def test_numbers_too_small_for_normal_ones_count_as_zero(pivot):
    """What happens to be in memory beside Y is read: where it was denormal, cameras of six took up to four times as
    long. So such numbers count as zero, and a block that is one is singular, or whose inverse is."""
    scene = Scene(7, points=200, depths=(1,))
    tables, values, none = scene.solver().elimination.tables, scene.values.clone(), scene.values.new_zeros(0)
    first = scene.structure.starts[int(scene.kinds["point"][70])]
    values[0, scene.structure.diagonal_index[first]] = pivot
    assert by_kernels.reduce(values, none, scene.rhs, *tables.packed)[4].tolist() == [False, True]


@pytest.mark.parametrize("entry", [0, 1])
def test_a_singular_entry_of_the_batch_stays_alone(entry):
    scene = Scene(2)
    values = scene.values.clone()
    point = int(scene.kinds["point"][70])
    values[entry, scene.structure.diagonal_index[scene.structure.starts[point]]] = -1.0
    tables = scene.solver().elimination.tables
    none = values.new_zeros(0)
    got = by_kernels.Reduction(*by_kernels.reduce(values, none, scene.rhs, *tables.packed))
    well = by_kernels.Reduction(*by_kernels.reduce(scene.values, none, scene.rhs, *tables.packed))
    assert got.regular.tolist() == [entry == 1, entry == 0]
    assert not got.matrix[entry].any()
    torch.testing.assert_close(got.matrix[1 - entry], well.matrix[1 - entry], rtol=0, atol=0)
