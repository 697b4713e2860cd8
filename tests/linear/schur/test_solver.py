"""The Schur complement: the same solutions as dense Cholesky, whatever is eliminated, and failures that stay alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, hessian, vmap

import mslsq
from mslsq.datasets.bal import read_bal
from mslsq.linear import Schur, SparseCholesky, choice
from mslsq.linear.block_structure import BlockStructure, analyze, present, sorted_keys
from mslsq.linear.choice import fastest_sparse
from mslsq.linear.independent_kinds import EliminationError, independent_kinds
from mslsq.linear.schur import by_kernels, by_tensors


class Bundle:
    """Random normal equations JᵀJ of a bundle adjustment: cameras see points, and some cameras each other."""

    def __init__(self, cameras=4, points=9, extra=0, sizes=(4, 3, 2), seed=0, seen=0.6, chords=2, cameras_first=True):
        generator = np.random.default_rng(seed)
        counts = {"camera": cameras, "point": points, "other": extra}
        order = ["camera", "point", "other"] if cameras_first else ["other", "point", "camera"]
        self.kinds, first = {}, 0
        for name in order:
            if counts[name]:
                self.kinds[name] = first + np.arange(counts[name])
                first += counts[name]
        size = dict(zip(("camera", "point", "other"), sizes, strict=True))
        self.sizes = np.concatenate([np.full(counts[name], size[name]) for name in self.kinds])
        pairs = [
            (c, p)
            for name in ("point", "other")
            for p in self.kinds.get(name, ())
            for c in self.kinds["camera"]
            if generator.random() < seen
        ]
        pairs += [tuple(generator.choice(self.kinds["camera"], 2, replace=False)) for _ in range(chords)]
        rows, cols = (np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1))
        self.structure: BlockStructure = analyze(self.sizes, rows, cols)
        self.generator = generator

    def values(self, batch=1, dtype=torch.float64, ridge=1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Flat values and the dense matrices that they stand for: Σ J_eᵀJ_e over all stored pairs, and a ridge."""
        s = self.structure
        values = torch.zeros(batch, s.num_values, dtype=torch.float64)
        dense = torch.zeros(batch, s.num_unknowns, s.num_unknowns, dtype=torch.float64)
        for e in range(len(s.rows)):
            i, j = int(s.rows[e]), int(s.cols[e])
            columns = np.concatenate([np.arange(s.starts[k], s.starts[k + 1]) for k in ({i, j})])
            J = torch.from_numpy(self.generator.standard_normal((batch, 2, len(columns))))
            dense[:, columns[:, None], columns] += J.mT @ J
        dense += ridge * torch.eye(s.num_unknowns)
        for e in range(len(s.rows)):
            i, j = int(s.rows[e]), int(s.cols[e])
            block = dense[:, s.starts[i] : s.starts[i + 1], s.starts[j] : s.starts[j + 1]]
            values[:, s.offsets[e] : s.offsets[e] + block[0].numel()] = block.flatten(1)
        return values.to(dtype), dense

    def rhs(self, batch=1) -> torch.Tensor:
        return torch.from_numpy(self.generator.standard_normal((batch, self.structure.num_unknowns)))


def solved_densely(dense: torch.Tensor, rhs: torch.Tensor, damping: torch.Tensor | None) -> torch.Tensor:
    if damping is not None:
        dense = dense + torch.diag_embed(damping)
    return -torch.cholesky_solve(rhs[..., None], torch.linalg.cholesky(dense))[..., 0]


@pytest.fixture(params=[False, True], ids=["kernels", "tensors"])
def any_device(request, monkeypatch) -> None:
    """Plans as they are made where kernels work, and where none do."""
    if request.param:
        monkeypatch.setattr("mslsq.linear.schur.plan.run_on", lambda device: False)


def tight(solver: Schur, batch: int) -> Schur:
    """The same solver; where it iterates, until nothing is left to gain."""
    return solver.to_accuracy(torch.full((batch,), 1e-13, dtype=torch.float64)) if solver.is_inexact else solver


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("reduced", ["dense", "sparse", "iterative"])
@pytest.mark.parametrize("cameras_first", [True, False])
@pytest.mark.parametrize("sizes", [(9, 3, 2), (6, 3, 1), (3, 2, 2), (1, 1, 1), (7, 5, 9)])
def test_it_solves_what_dense_cholesky_solves(sizes, cameras_first, reduced):
    bundle = Bundle(cameras=5, points=12, extra=4, sizes=sizes, cameras_first=cameras_first)
    values, dense = bundle.values(batch=2)
    rhs, damping = bundle.rhs(2), torch.rand(2, bundle.structure.num_unknowns, dtype=torch.float64)
    solver = tight(Schur(reduced=reduced).bound(bundle.structure, bundle.kinds), 2)
    assert set(solver.elimination.names) == {"point", "other"}
    for shift in (None, damping):
        step, solved = solver.solve(values, rhs, shift)
        assert bool(solved.all())
        torch.testing.assert_close(step, solved_densely(dense, rhs, shift), rtol=1e-10, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(
    cameras=st.integers(2, 6),
    points=st.integers(1, 9),
    extra=st.integers(0, 4),
    seen=st.floats(0, 1),
    chords=st.integers(0, 4),
    cameras_first=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_structure_is_solved(cameras, points, extra, seen, chords, cameras_first, seed):
    """Points that no camera sees, cameras that see nothing, several kinds, either order."""
    bundle = Bundle(cameras, points, extra, (3, 2, 1), seed, seen, chords, cameras_first)
    values, dense = bundle.values()
    rhs = bundle.rhs()
    names = ("point", "other") if extra else "point"
    solver = Schur(names, reduced="dense").bound(bundle.structure, bundle.kinds)
    expected = solved_densely(dense, rhs, None)
    torch.testing.assert_close(solver.solve(values, rhs, None)[0], expected, rtol=1e-10, atol=1e-10)
    tables = solver.elimination.tables
    _, carried, matrix, reduced_rhs, _ = by_kernels.reduce(values, values.new_zeros(0), rhs, *tables.packed)
    again = by_tensors.reduce(values, None, rhs, tables)
    for ours, theirs in zip((carried, reduced_rhs), (again.carried, again.rhs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    n = tables.num_reduced
    lower = [m.reshape(n, n).tril() for m in (matrix, again.matrix)]
    torch.testing.assert_close(*lower, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("where", ["a point", "a camera", "nan"])
def test_a_singular_entry_does_not_disturb_its_batch_mates(where):
    bundle = Bundle(sizes=(4, 3, 2))
    values, dense = bundle.values(batch=3)
    rhs = bundle.rhs(3)
    structure = bundle.structure
    block = bundle.kinds["point" if where == "a point" else "camera"][1]
    diagonal = structure.diagonal_index[structure.starts[block]]
    values[1, diagonal] = torch.nan if where == "nan" else -5.0
    solver = Schur(eliminate="point").bound(structure, bundle.kinds)
    step, solved = solver.solve(values, rhs, None)
    assert solved.tolist() == [True, False, True]
    good = [0, 2]
    torch.testing.assert_close(step[good], solved_densely(dense[good], rhs[good], None), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("reduced", ["dense", "iterative"])
def test_a_factor_without_kernels_solves_and_says_what_is_definite(reduced, monkeypatch):
    monkeypatch.setattr("mslsq.linear.schur.plan.run_on", lambda device: False)
    bundle = Bundle(sizes=(4, 3, 2), extra=3)
    values, dense = bundle.values(batch=3)
    structure = bundle.structure
    values[1, structure.diagonal_index[0]] = -1.0
    rhs = bundle.rhs(3)
    solver = Schur(reduced=reduced).bound(structure, bundle.kinds)
    factor, definite, _ = solver.definite_factor(values)
    assert definite.tolist() == [True, False, True]
    good = [0, 2]
    solved = solver.solve_factored(factor, rhs)
    assert bool(torch.isfinite(solved).all())
    torch.testing.assert_close(solved[good], -solved_densely(dense[good], rhs[good], None), rtol=1e-10, atol=1e-10)
    product = (dense[good] @ rhs[good][..., None])[..., 0]
    torch.testing.assert_close(solver.storage.product(values, rhs)[good], product, rtol=1e-12, atol=1e-12)


def test_float32_in_is_float32_out_and_summed_in_float64():
    bundle = Bundle(cameras=6, points=200, sizes=(9, 3, 2))
    values, _ = bundle.values(dtype=torch.float32)
    rhs = bundle.rhs().to(torch.float32)
    solver = Schur().bound(bundle.structure, bundle.kinds)
    step, solved = solver.solve(values, rhs, None)
    exact, _ = solver.solve(values.double(), rhs.double(), None)
    assert step.dtype == torch.float32
    assert bool(solved)
    torch.testing.assert_close(step, exact.to(torch.float32), rtol=0, atol=0)


def test_blocks_too_large_for_kernels_go_through_blas():
    bundle = Bundle(cameras=3, points=4, sizes=(70, 40, 2))
    values, dense = bundle.values()
    rhs = bundle.rhs()
    solver = Schur().bound(bundle.structure, bundle.kinds)
    assert not solver.elimination.by_kernels
    torch.testing.assert_close(
        solver.solve(values, rhs, None)[0], solved_densely(dense, rhs, None), rtol=1e-9, atol=1e-9
    )


def test_everything_may_be_eliminated():
    structure = analyze(np.array([2, 3, 2]), np.zeros(0, np.int64), np.zeros(0, np.int64))
    solver = Schur(eliminate="x").bound(structure, {"x": np.arange(3)})
    values = torch.rand(1, structure.num_values, dtype=torch.float64)
    values[:, structure.diagonal_index] += 5.0
    rhs = torch.rand(1, 7, dtype=torch.float64)
    expected, _ = SparseCholesky(structure=structure).solve(values, rhs, None)
    torch.testing.assert_close(solver.solve(values, rhs, None)[0], expected, rtol=1e-13, atol=0)


# ---- what is eliminated


def test_the_kinds_that_leave_the_fewest_unknowns_are_found():
    bundle = Bundle(cameras=5, points=12, extra=3)
    assert set(independent_kinds(bundle.structure, bundle.kinds)) == {"point", "other"}
    without_chords = Bundle(cameras=5, points=2, chords=0)
    assert independent_kinds(without_chords.structure, without_chords.kinds) == ("camera",)


def test_landmarks_seen_from_poses_that_are_all_held_are_eliminated_without_being_asked_for():
    problem, start, _, _ = seen_from_poses()
    held = mslsq.Problem(problem["sighting"], problem.variables["pose"].fixed(torch.arange(5)))
    start = {**start, "landmark": start["landmark"] + 0.2}
    dense, schur = (
        mslsq.solve(held, start, solver=mslsq.LevenbergMarquardt(linear_solver=linear)).value["landmark"]
        for linear in (mslsq.linear.Cholesky(), Schur())
    )
    torch.testing.assert_close(schur, dense, rtol=0, atol=1e-9)


def test_fixed_blocks_take_no_part():
    kinds = {"camera": np.array([-1, 0, 1]), "point": np.array([2, -1, 3, -1])}
    structure = analyze(np.array([4, 4, 3, 3]), np.array([2, 3, 2]), np.array([0, 1, 1]))
    solver = Schur().bound(structure, kinds)
    assert solver.elimination.names == ("camera",)
    assert solver.elimination.eliminated.tolist() == [0, 1]
    assert solver.elimination.tables.num_reduced == 6


def test_an_unknown_name_suggests_the_nearest():
    bundle = Bundle()
    with pytest.raises(EliminationError, match="Did you mean 'point'"):
        Schur(eliminate="points").bound(bundle.structure, bundle.kinds)


def test_blocks_that_touch_are_named():
    structure = analyze(np.array([3, 3, 3, 3]), np.array([2, 3]), np.array([1, 1]))
    with pytest.raises(EliminationError, match=r"pose\[1\] and pose\[2\].*SparseCholesky"):
        Schur(eliminate="pose").bound(structure, {"pose": np.array([0, 1, 2]), "landmark": np.array([3])})
    both = {"pose": np.array([0, 1]), "landmark": np.array([2, 3])}
    with pytest.raises(EliminationError, match=r"pose\[1\] and landmark\[0\]"):
        Schur(eliminate=("pose", "landmark")).bound(structure, both)


def test_where_nothing_can_be_eliminated_it_says_so():
    structure = analyze(np.array([3, 3]), np.array([1]), np.array([0]))
    with pytest.raises(EliminationError, match="SparseCholesky"):
        Schur().bound(structure, {"pose": np.array([0, 1])})


@pytest.mark.parametrize("wrong", [{"reduced": "denes"}, {"eliminate": ()}, {"eliminate": 3}])
def test_options_without_sense_are_errors(wrong):
    with pytest.raises(ValueError, match="Schur"):
        Schur(**wrong)


@pytest.mark.kernels
def test_bundles_get_a_schur_complement_and_pose_graphs_do_not():
    bundle = Bundle(cameras=20, points=800, sizes=(9, 3, 1), seen=0.2)
    assert isinstance(fastest_sparse(bundle.structure, bundle.kinds), Schur)
    count = 500
    chain = analyze(np.full(count, 6), np.arange(1, count), np.arange(count - 1))
    assert isinstance(fastest_sparse(chain, {"pose": np.arange(count)}), SparseCholesky)
    # Landmarks beside a pose graph, seen from one pose each: few to gain.
    rows = np.concatenate((np.arange(1, count), count + np.arange(20)))
    cols = np.concatenate((np.arange(count - 1), np.arange(20)))
    mixed = analyze(np.concatenate((np.full(count, 6), np.full(20, 3))), rows, cols)
    kinds = {"pose": np.arange(count), "landmark": count + np.arange(20)}
    assert isinstance(fastest_sparse(mixed, kinds), SparseCholesky)


@pytest.mark.kernels
def test_the_best_order_is_sought_only_where_the_first_one_leaves_a_doubt(monkeypatch):
    bundle = Bundle(cameras=20, points=800, sizes=(9, 3, 1), seen=0.2)

    def chosen() -> tuple[Schur, BlockStructure]:
        s = bundle.structure
        fresh = analyze(s.block_sizes, s.rows, s.cols, eliminate=False)
        found = fastest_sparse(fresh, bundle.kinds)
        assert isinstance(found, Schur)
        return found, fresh

    quick, without_order = chosen()
    monkeypatch.setattr(choice, "ORDERS_GAIN", np.inf)
    slow, with_order = chosen()
    assert "elimination_nanoseconds" not in vars(without_order) and "elimination" not in vars(with_order)
    best, first = with_order.elimination_nanoseconds, without_order.rough_nanoseconds
    assert best <= first <= 1.2 * best
    assert quick.elimination.tables.factor_size == slow.elimination.tables.factor_size


@pytest.mark.parametrize("end", [50, 10**6, 2**45])
def test_numbers_are_sorted_and_told_apart_whatever_their_size(end):
    numbers = np.random.default_rng(0).integers(0, end, 400)
    assert np.array_equal(present(numbers, end), np.unique(numbers))
    keys, order = sorted_keys(numbers * (1 if end < 2**40 else 2**14))
    assert np.array_equal(order, np.argsort(numbers, kind="stable"))
    assert np.array_equal(keys, np.sort(numbers) * (1 if end < 2**40 else 2**14))


def test_blocks_have_their_numbers_in_small_structures_and_in_large_ones():
    for count in (30, 3000):
        generator = np.random.default_rng(0)
        structure = analyze(np.ones(count, np.int64), *generator.integers(0, count, (2, 400)), eliminate=False)
        some = generator.integers(0, len(structure.rows), 200)
        assert np.array_equal(structure.numbers_of(structure.rows[some], structure.cols[some]), some)


# ---- whole solves


@pytest.mark.parametrize("reduced", ["dense", "sparse"])
@pytest.mark.kernels
def test_dubrovnik_takes_the_steps_of_sparse_cholesky(shared_data, reduced):
    scene = read_bal(shared_data / "bal/dubrovnik-3-7-pre.txt")
    values = {"camera": scene.cameras, "point": scene.points}
    solutions = [
        mslsq.solve(scene.problem(), values, solver=mslsq.LevenbergMarquardt(linear_solver=linear, max_steps=8))
        for linear in (SparseCholesky(), Schur(reduced=reduced))
    ]
    costs = [solution.history.cost for solution in solutions]
    # hardly damped, the matrix is conditioned badly: 3e-10 apart
    torch.testing.assert_close(*costs, rtol=1e-8, atol=0, equal_nan=True)
    torch.testing.assert_close(*(s.history.accepted for s in solutions), rtol=0, atol=0)


@pytest.mark.kernels
def test_what_was_chosen_is_said(shared_data, capsys):
    scene = read_bal(shared_data / "bal/dubrovnik-3-7-pre.txt")
    values = {"camera": scene.cameras, "point": scene.points}
    solver = mslsq.LevenbergMarquardt(linear_solver=Schur("point"), max_steps=1, verbose=True)
    mslsq.solve(scene.problem(), values, solver=solver)
    assert "Schur (without 7 blocks of 'point': 27 unknowns, sparse)" in capsys.readouterr().out


@mslsq.cost
def sighting(pose: mslsq.SE2, landmark: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return pose.inverse().act(landmark) - seen


@pytest.mark.kernels
def test_large_bundles_are_eliminated_by_themselves(capsys):
    generator = torch.Generator().manual_seed(0)
    places = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    truth = mslsq.SE2.random(10, generator=generator, dtype=torch.float64)
    who, what = torch.arange(10).repeat_interleave(200), torch.arange(200).repeat(10)
    pose, landmark = mslsq.Variable("pose", mslsq.SE2, count=10), mslsq.Variable("landmark", mslsq.Euclidean(2), 200)
    seen = truth[who].inverse().act(places[what])
    problem = mslsq.Problem(sighting(pose[who], landmark[what], seen=seen), pose.fixed([0]))
    start = {"pose": truth, "landmark": places + 0.1 * torch.randn(200, 2, generator=generator, dtype=torch.float64)}
    solution = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(verbose=True))
    torch.testing.assert_close(solution.value["landmark"], places, rtol=1e-6, atol=1e-6)
    said = capsys.readouterr().out
    assert "Schur (without 200 blocks of 'landmark': 27 unknowns" in said
    assert "a solve by estimate" in said


def seen_from_poses() -> tuple[mslsq.Problem, dict, torch.Tensor, torch.Generator]:
    """Landmarks seen from poses, the first pose held: problem, start, what was seen."""
    generator = torch.Generator().manual_seed(1)
    truth = mslsq.SE2.random(5, generator=generator, dtype=torch.float64)
    places = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    who, what = torch.arange(5).repeat_interleave(6), torch.arange(6).repeat(5)
    seen = truth[who].inverse().act(places[what])
    seen = seen + 0.05 * torch.randn(30, 2, generator=generator, dtype=torch.float64)
    pose = mslsq.Variable("pose", mslsq.SE2, count=5)
    landmark = mslsq.Variable("landmark", mslsq.Euclidean(2), count=6)
    problem = mslsq.Problem(sighting(pose[who], landmark[what], seen=seen), pose.fixed([0]))
    return problem, {"pose": truth, "landmark": places}, seen, generator


@pytest.mark.parametrize("method", [mslsq.LevenbergMarquardt, mslsq.GaussNewton, mslsq.Dogleg])
def test_every_method_takes_the_steps_of_dense_cholesky(method):
    problem, start, _, _ = seen_from_poses()
    start = {**start, "landmark": start["landmark"] + 0.2}
    dense, schur = (
        mslsq.solve(problem, start, solver=method(linear_solver=linear, max_steps=3)).history.cost
        for linear in (mslsq.linear.Cholesky(), Schur())
    )
    torch.testing.assert_close(schur, dense, rtol=1e-10, atol=0, equal_nan=True)


def test_a_nan_problem_does_not_disturb_its_batch_mates():
    problem, start, seen, _ = seen_from_poses()
    data = torch.stack([seen, seen * torch.nan, seen + 0.01])
    solver = mslsq.LevenbergMarquardt(linear_solver=Schur())
    in_dims = (None, {"sighting": {"seen": 0}})
    batch = mslsq.solve(problem, start, {"sighting": {"seen": data}}, in_dims=in_dims, solver=solver)
    assert mslsq.Status(int(batch.status[1])) is mslsq.Status.NON_FINITE
    for k in (0, 2):
        single = mslsq.solve(problem, start, {"sighting": {"seen": data[k]}}, solver=solver)
        torch.testing.assert_close(batch.value["landmark"][k], single.value["landmark"], rtol=1e-9, atol=1e-9)


def survey(linear: mslsq.linear.LinearSolver):
    """A sum of the solution as a function of the data."""
    problem, start, seen, generator = seen_from_poses()
    direction = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    solver = mslsq.LevenbergMarquardt(linear_solver=linear, ftol=0, xtol=1e-15, gtol=1e-13, max_steps=60)
    weights = torch.randn(6, 2, generator=generator, dtype=torch.float64)

    def function(a: torch.Tensor) -> torch.Tensor:
        data = {"sighting": {"seen": seen + a[0] * direction + a[1] * direction.flip(0) ** 2}}
        solution = mslsq.solve(problem, start, data, solver=solver)
        return (solution.value["landmark"] * weights).sum()

    return function


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("any_device")
def test_derivatives_through_a_solve_equal_those_of_dense_cholesky():
    schur, dense = survey(Schur("landmark")), survey(mslsq.linear.Cholesky())
    point = torch.tensor([0.2, -0.1], dtype=torch.float64)
    h = 1e-5
    basis = h * torch.eye(2, dtype=torch.float64)
    differences = torch.stack([(schur(point + e) - schur(point - e)) / (2 * h) for e in basis])
    torch.testing.assert_close(grad(schur)(point), differences, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(grad(schur)(point), grad(dense)(point), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(hessian(schur)(point), hessian(dense)(point), rtol=1e-7, atol=1e-8)
    points = torch.stack((point, 0.5 * point))
    torch.testing.assert_close(vmap(grad(schur))(points)[0], grad(schur)(point), rtol=1e-8, atol=1e-9)


def test_an_iterative_reduced_solve_reaches_the_same_minimum():
    point = torch.tensor([0.2, -0.1], dtype=torch.float64)
    iterative, dense = survey(Schur("landmark", reduced="iterative")), survey(mslsq.linear.Cholesky())
    torch.testing.assert_close(iterative(point), dense(point), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grad(iterative)(point), grad(dense)(point), rtol=1e-7, atol=1e-8)


def test_a_recorded_step_takes_the_same_steps(shared_data):
    scene = read_bal(shared_data / "bal/dubrovnik-3-7-pre.txt")
    values = {"camera": scene.cameras, "point": scene.points}
    costs = [
        mslsq.solve(
            scene.problem(),
            values,
            solver=mslsq.LevenbergMarquardt(linear_solver=Schur(), trace=trace, max_steps=5, native="never"),
        ).cost
        for trace in ("never", "always")
    ]
    torch.testing.assert_close(*costs, rtol=1e-12, atol=0)
