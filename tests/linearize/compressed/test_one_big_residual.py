"""`least_squares` of a large sparse residual: answers, steps and derivatives of the dense path, from few columns.

The dense path is taken where a Jacobian is given; here it is that of automatic differentiation.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mslsq
from mslsq.front.plans import _KEPT, kept_for_callable
from mslsq.problem.errors import ProblemError
from mslsq.tracing.inplace import InPlaceResidualWarning

F64 = torch.float64


@pytest.fixture(autouse=True)
def also_small_ones(monkeypatch):
    """Small enough for a dense comparison, and compressed all the same."""
    _KEPT.clear()
    monkeypatch.setattr("mslsq.solvers.compressing.LARGEST_DENSE", 5)


def plan_of(residual):
    """The plan of the only solve without a given Jacobian."""
    (plan,) = [plan for plan in kept_for_callable(residual).plans._plans.values() if plan.compressed is not None]
    return plan


def random(*shape, seed=0, dtype=F64):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_same_steps(one, other, rtol):
    assert torch.equal(one.num_steps, other.num_steps)
    assert torch.equal(one.status, other.status)
    assert torch.allclose(one.history.cost, other.history.cost, rtol=rtol, atol=0, equal_nan=True)


# ---- residuals


def maps(x, ratios):
    """Maps known up to a scale each, compared in every cell: the cells do not touch each other."""
    m = x.reshape(4, -1)
    i, j = torch.combinations(torch.arange(4)).T
    return torch.cat([(ratios * m[i] - m[j] ** 2).reshape(-1), m[0].exp() - 2])


def maps_in_place(x, ratios):
    cells = ratios.shape[1]
    error = torch.zeros(7 * cells, dtype=x.dtype)
    pair = 0
    for i in range(4):
        for j in range(i + 1, 4):
            error[pair * cells : (pair + 1) * cells] = (
                ratios[pair] * x[i * cells : (i + 1) * cells] - x[j * cells : (j + 1) * cells] ** 2
            )
            pair += 1
    error[6 * cells :] = x[:cells].exp() - 2
    return error


def membrane(u, data):
    """A grid of neighbours with data: one connected part."""
    return {"data": u.exp() - data, "along": torch.sinh(u[:, 1:] - u[:, :-1]), "down": torch.sinh(u[1:] - u[:-1])}


def waves(x, data):
    """Complex: neighbouring phasors and their product."""
    z = torch.complex(x[0], x[1])
    return {"phasors": z - data, "products": z[1:] * z[:-1] - 1, "lengths": 0.1 * (x[0] ** 2 + x[1] ** 2)}


LENGTHS = [8, 9, 10, 11, 12]


def chains(x, data):
    """Chains that do not touch each other; the second to last unknown of each hangs on nothing but its neighbours."""
    parts = x.split(LENGTHS)
    return [
        torch.cat([part.diff().sinh() for part in parts]) - 0.1 * data,
        torch.cat([part[::2] for part in parts]) - 1,
    ]


def with_gain(x, data):
    """One unknown that every entry depends on."""
    return {"data": x["gain"] * x["curve"] - data, "smooth": x["curve"].diff(), "gain": x["gain"] - 1}


def chain(x, measured):
    """Poses in a row."""
    return {
        "steps": (measured.inverse() @ (x["poses"][:-1].inverse() @ x["poses"][1:])).log(),
        "origin": x["poses"][0].log(),
    }


def dense_of(residual):
    """The Jacobian by automatic differentiation, in the order of the residual's real rows."""

    def jac(x, *args):
        from mslsq import pytree

        def flat(x):
            leaves = pytree.leaves(residual(x, *args))
            return torch.cat([leaf.reshape(-1) for leaf in leaves])

        return torch.func.jacfwd(flat)(x)

    return jac


CASES = {
    "components": (maps, lambda: torch.ones(4 * 30, dtype=F64), lambda: (random(6, 30) + 0.5,)),
    "unequal parts": (chains, lambda: torch.ones(50, dtype=F64), lambda: (random(45) + 0.5,)),
    "a grid": (membrane, lambda: torch.zeros(9, 8, dtype=F64), lambda: (random(9, 8) + 0.5,)),
    "one for all": (
        with_gain,
        lambda: {"gain": torch.ones((), dtype=F64), "curve": torch.zeros(60, dtype=F64)},
        lambda: (random(60) + 1,),
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("solver", "linear"),
    [
        (mslsq.LevenbergMarquardt, "auto"),
        (mslsq.LevenbergMarquardt, mslsq.linear.Cholesky()),
        (mslsq.LevenbergMarquardt, mslsq.linear.SparseCholesky()),
        (mslsq.GaussNewton, "auto"),
        (mslsq.Dogleg, mslsq.linear.SparseCholesky()),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_the_steps_are_those_of_the_dense_path(name, solver, linear):
    residual, start, args = CASES[name]
    sparse = mslsq.least_squares(residual, start(), args(), solver=solver(linear_solver=linear))
    dense = mslsq.least_squares(
        residual, start(), args(), jac=dense_of(residual), solver=solver(linear_solver=mslsq.linear.Cholesky())
    )
    assert_same_steps(sparse, dense, rtol=1e-10)
    assert bool(sparse.converged)
    assert plan_of(residual).compressed is not None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("loss", [mslsq.Huber(0.3), mslsq.Cauchy(0.2)])
@pytest.mark.parametrize("name", CASES)
def test_a_robust_loss_acts_as_in_the_dense_path(name, loss):
    residual, start, args = CASES[name]
    sparse = mslsq.least_squares(residual, start(), args(), loss=loss)
    dense = mslsq.least_squares(residual, start(), args(), loss=loss, jac=dense_of(residual))
    assert_same_steps(sparse, dense, rtol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_bent_by_the_same_acceleration_as_in_the_dense_path(name):
    residual, start, args = CASES[name]
    solver = mslsq.LevenbergMarquardt(acceleration=0.75)
    sparse = mslsq.least_squares(residual, start(), args(), solver=solver)
    dense = mslsq.least_squares(residual, start(), args(), jac=dense_of(residual), solver=solver)
    straight = mslsq.least_squares(residual, start(), args())
    assert_same_steps(sparse, dense, rtol=1e-9)
    assert not torch.equal(sparse.history.cost, straight.history.cost)


@pytest.mark.parametrize("loss", [None, mslsq.Cauchy(0.2)])
def test_complex_entries_count_by_their_modulus(loss, monkeypatch):
    x0, data = random(2, 40) + 0.5, (torch.complex(random(40, seed=1), random(40, seed=2)),)
    sparse = mslsq.least_squares(waves, x0, data, loss=loss)
    assert plan_of(waves).compressed.pairs > 0
    # The dense path itself, on a function of its own: a Jacobian cannot be given for complex and real leaves together.
    monkeypatch.setattr("mslsq.solvers.compressing.LARGEST_DENSE", 10**9)
    dense = mslsq.least_squares(lambda x, data: waves(x, data), x0, data, loss=loss)
    assert_same_steps(sparse, dense, rtol=1e-10)


def test_the_plan_is_made_for_the_right_parts():
    mslsq.least_squares(maps, torch.ones(4 * 30, dtype=F64), (random(6, 30) + 0.5,))
    plan = plan_of(maps)
    assert (plan.structure.num_components, plan.structure.size) == (30, 4)
    assert plan.compressed.jacobian.colors == 4
    assert plan.compressed.sets.nnz == 30 * (6 * 2 + 1)


def test_the_literal_code_of_the_in_place_bug_takes_one_derivative_per_map():
    start, args = torch.ones(4 * 30, dtype=F64), (random(6, 30) + 0.5,)
    with pytest.warns(InPlaceResidualWarning, match="torch.cat"):
        literal = mslsq.least_squares(maps_in_place, start, args)
    plain = mslsq.least_squares(maps, start, args)
    assert_same_steps(literal, plain, rtol=1e-12)
    assert plan_of(maps_in_place).compressed.jacobian.colors == 4


def test_the_answer_is_that_of_a_batch_over_the_cells():
    def one_cell(m, ratios):
        i, j = torch.combinations(torch.arange(4)).T
        return torch.cat([ratios * m[i] - m[j] ** 2, m[:1].exp() - 2])

    ratios = random(6, 30) + 0.5
    whole = mslsq.least_squares(maps, torch.ones(4 * 30, dtype=F64), (ratios,))
    cells = mslsq.least_squares(one_cell, torch.ones(30, 4, dtype=F64), (ratios,), in_dims=(0, 1))
    # Stopping by the cost, to 1e-12 of it, leaves 1e-6 of the unknowns.
    assert torch.allclose(whole.value.reshape(4, 30).T, cells.value, rtol=0, atol=1e-5)
    assert torch.allclose(whole.cost, cells.cost.sum(), rtol=1e-12, atol=0)


def test_parts_of_unequal_size_are_padded():
    mslsq.least_squares(chains, torch.ones(50, dtype=F64), (random(45),))
    structure = plan_of(chains).structure
    assert (structure.num_components, structure.size) == (5, 12)
    assert int(structure.padding.sum()) == 5 * 12 - 50


def test_an_unknown_that_nothing_depends_on_stays_where_it_is():
    def residual(x):
        return torch.cat([x[:50].exp() - 2, x[:50].diff()])

    solution = mslsq.least_squares(residual, torch.full((60,), 0.3, dtype=F64))
    assert bool(solution.converged)
    assert torch.equal(solution.value[50:], torch.full((10,), 0.3, dtype=F64))


def test_poses_move_on_their_manifold():
    measured = mslsq.SE3.exp(0.3 * random(11, 6) - 0.1)
    start = {"poses": mslsq.SE3.exp(0.2 * random(12, 6, seed=1))}
    solution = mslsq.least_squares(chain, start, (measured,))
    assert float(solution.cost) < 1e-20
    assert plan_of(chain).compressed.jacobian.colors <= 18


def test_a_leaf_whose_entries_do_not_touch_each_other_is_eliminated_first():
    """Two factors of a matrix of which some entries are known: a Schur complement by the leaves of x0."""
    i, j = torch.randint(0, 5, (300,), generator=torch.Generator().manual_seed(0)), torch.arange(300) % 60

    def factors(x, known):
        return {"fit": x["a"][i] * x["b"][j] - known, "gauge": x["a"][:1] - 1, "prior": 0.1 * (x["b"] - 1)}

    start = {"a": torch.ones(5, dtype=F64), "b": torch.ones(60, dtype=F64)}

    def gradient(linear):
        known = (random(300) + 0.5).requires_grad_()
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        solution = mslsq.least_squares(factors, start, (known,), solver=solver)
        (found,) = torch.autograd.grad(solution.value["a"].square().sum(), known)
        return solution, found

    schur, of_schur = gradient(mslsq.linear.Schur(eliminate="x0[1]"))
    dense, of_dense = gradient(mslsq.linear.Cholesky())
    assert_same_steps(schur, dense, rtol=1e-10)
    assert torch.allclose(of_schur, of_dense, rtol=1e-7, atol=1e-10)


def test_a_batch_shares_one_plan():
    ratios = random(3, 6, 30) + 0.5
    start = torch.ones(4 * 30, dtype=F64)
    batch = mslsq.least_squares(maps, start, (ratios,), in_dims=(None, 0))
    for number in range(3):
        one = mslsq.least_squares(maps, start, (ratios[number],))
        assert torch.allclose(batch.value[number], one.value, rtol=0, atol=1e-9)
    mapped = torch.func.vmap(lambda ratios: mslsq.least_squares(maps, start, (ratios,)).value)(ratios)
    assert torch.allclose(mapped, batch.value, rtol=0, atol=1e-12)


def test_float32_stays_float32():
    start, args = torch.ones(4 * 30), (random(6, 30, dtype=torch.float32) + 0.5,)
    single = mslsq.least_squares(maps, start, args)
    assert single.value.dtype == torch.float32
    double = mslsq.least_squares(maps, start.double(), (args[0].double(),))
    assert torch.allclose(single.value.double(), double.value, rtol=0, atol=2e-3)  # √ε of float32 and a little


@pytest.mark.parametrize("options", [{"trace": "always"}, {"trace": "never"}, {"early_stop": False, "max_steps": 25}])
def test_recording_changes_nothing(options):
    start, args = torch.ones(4 * 30, dtype=F64), (random(6, 30) + 0.5,)
    expected = mslsq.least_squares(maps, start, args).value
    found = mslsq.least_squares(maps, start, args, solver=mslsq.LevenbergMarquardt(**options)).value
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)


# ---- when the pattern changes, and where there is none


def springs(x, i, j, length):
    return torch.cat([x[i] - x[j] - length, 0.1 * x])


@pytest.mark.slow
def test_another_index_tensor_is_another_pattern():
    x0, length = torch.zeros(40, dtype=F64), random(60)
    for seed in range(3):
        i, j = torch.randint(0, 40, (2, 60), generator=torch.Generator().manual_seed(seed))
        solution = mslsq.least_squares(springs, x0, (i, j, length))
        matrix = torch.func.jacfwd(springs)(x0, i, j, length)
        expected = torch.linalg.lstsq(matrix, -springs(x0, i, j, length)).solution
        assert torch.allclose(solution.value, expected, rtol=0, atol=1e-8)  # gtol is 1e-10, JᵀJ at least 0.01


def test_another_index_tensor_is_not_an_answer_where_it_cannot_be_read():
    """Without early_stop nothing is asked of the device: the answer is NaN, not wrong."""
    solver = mslsq.LevenbergMarquardt(early_stop=False, max_steps=5)
    i, j = torch.randint(0, 40, (2, 60), generator=torch.Generator().manual_seed(0))
    x0, length = torch.zeros(40, dtype=F64), random(60)
    mslsq.least_squares(springs, x0, (i, j, length), solver=solver)
    changed = mslsq.least_squares(springs, x0, (j.flip(0), i, length), solver=solver)
    assert bool(changed.value.isnan().all())


def test_index_tensors_may_differ_within_a_batch():
    i, j = torch.randint(0, 40, (2, 3, 60), generator=torch.Generator().manual_seed(0))
    x0, length = torch.zeros(40, dtype=F64), random(60)
    batch = mslsq.least_squares(springs, x0, (i, j, length), in_dims=(None, 0, 0, None))
    for number in range(3):
        one = mslsq.least_squares(springs, x0, (i[number], j[number], length))
        assert torch.allclose(batch.value[number], one.value, rtol=0, atol=1e-9)


def test_a_sum_over_all_unknowns_is_differentiated_by_rows():
    def residual(x, data):
        return torch.cat([x.exp() - data, x.sum()[None] - 3])

    solution = mslsq.least_squares(residual, torch.zeros(60, dtype=F64), (random(60) + 0.5,))
    dense = mslsq.least_squares(
        residual, torch.zeros(60, dtype=F64), (random(60) + 0.5,), jac=torch.func.jacfwd(residual)
    )
    plan = plan_of(residual)
    assert not plan.compressed.jacobian.forward
    assert plan.compressed.jacobian.colors == 2
    assert_same_steps(solution, dense, rtol=1e-10)


def test_grid_sample_is_rewritten_so_that_forward_mode_takes_it():
    image = torch.outer(torch.linspace(0, 3, 16, dtype=F64).sin(), torch.linspace(1, 2, 16, dtype=F64))[None, None]

    def residual(x, image):
        seen = torch.nn.functional.grid_sample(image, x.reshape(1, 1, 30, 2), align_corners=True)
        return {"seen": seen.reshape(-1) - 0.2, "stay": 0.1 * x}

    solution = mslsq.least_squares(residual, 0.4 * random(60) - 0.2, (image,))
    assert bool(solution.converged)
    assert plan_of(residual).compressed.jacobian.forward


def test_an_operation_without_forward_mode_is_differentiated_in_reverse():
    """`embedding_bag` knows reverse mode alone."""
    pairs = torch.stack([torch.arange(59), torch.arange(1, 60)], 1)

    def residual(x):
        means = torch.nn.functional.embedding_bag(pairs, x[:, None])[:, 0]
        return torch.cat([means**2 - 0.25, 0.1 * (x - 0.5)])

    solution = mslsq.least_squares(residual, 0.4 + 0.1 * random(60))
    assert bool(solution.converged)
    assert torch.allclose(solution.value, torch.full((60,), 0.5, dtype=F64), atol=1e-6)


def test_a_residual_without_sparsity_takes_the_dense_path_and_verbose_says_so(capsys):
    full = random(80, 60)

    def residual(x, full):
        return full @ x - 1

    solution = mslsq.least_squares(
        residual, torch.zeros(60, dtype=F64), (full,), solver=mslsq.LevenbergMarquardt(verbose=True)
    )
    expected = torch.linalg.lstsq(full, torch.ones(80, dtype=F64)).solution
    assert torch.allclose(solution.value, expected, rtol=0, atol=1e-9)
    assert "60 derivatives for 60 unknowns" in capsys.readouterr().out


def test_verbose_says_what_was_found(capsys):
    args = (random(6, 30) + 0.5,)
    mslsq.least_squares(maps, torch.ones(120, dtype=F64), args, solver=mslsq.LevenbergMarquardt(verbose=True))
    said = capsys.readouterr().out
    assert "210 x 120 with 390 non-zeros in the Jacobian, from 4 derivatives (forward mode)" in said
    assert "30 x 4 unknowns" in said


def test_a_dense_jacobian_beyond_memory_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr("mslsq.solvers.compressing.os.sysconf", lambda name: 300)

    def residual(x):
        return x - x.mean() ** 2

    with pytest.raises(ProblemError, match=r"does not fit into memory.*many small terms"):
        mslsq.least_squares(residual, random(60))


def test_a_derivative_that_vanishes_at_the_start_is_not_lost():
    # The tangent of z² is copied into the layout of z²; the recorded graph left the copy out, and at the start, where
    # the derivative is zero, the comparison with reverse mode sees no difference.
    def residual(x, data):
        z = torch.complex(x[::2], x[1::2])
        return z**2 + z - data

    data = torch.complex(random(10), random(10, seed=1))
    found = mslsq.least_squares(residual, torch.zeros(20, dtype=F64), (data,))
    assert plan_of(residual)
    dense = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.QR())
    expected = mslsq.least_squares(residual, torch.zeros(20, dtype=F64), (data,), solver=dense)
    assert torch.equal(found.num_steps, expected.num_steps)
    # The residual falls to zero, where costs are rounding.
    torch.testing.assert_close(found.history.cost, expected.history.cost, rtol=1e-8, atol=1e-20, equal_nan=True)


def test_a_capture_that_is_not_the_residual_is_not_solved_with(monkeypatch):
    import mslsq.solvers.compressing as compressing

    def wrong(function, example, *, name):
        captured = capture(function, example, name=name)
        captured.graph.forward = lambda *leaves: [torch.zeros_like(leaf) for leaf in leaves[:1]]
        return captured

    capture = compressing.capture
    monkeypatch.setattr(compressing, "capture", wrong)
    found = mslsq.least_squares(lambda x: x - torch.arange(20.0, dtype=F64), torch.ones(20, dtype=F64))
    torch.testing.assert_close(found.value, torch.arange(20.0, dtype=F64))


def test_a_wrong_pattern_is_found_out(monkeypatch):
    """Whatever a rule has got wrong, the derivatives are compared with reverse mode before anybody solves with them."""
    from mslsq.linearize.compressed import rulebook
    from mslsq.linearize.compressed.sets import take

    nothing = np.full(60, -1)
    monkeypatch.setitem(
        rulebook._RULES, torch.ops.aten.sinh.default, lambda operation: [take(operation.tracked[0].sets, nothing)]
    )

    def residual(x):
        return torch.cat([torch.sinh(x) - 1, x.diff()])

    solution = mslsq.least_squares(residual, torch.zeros(60, dtype=F64))
    assert torch.allclose(solution.value, torch.ones(60, dtype=F64).asinh(), rtol=0, atol=1e-9)


# ---- derivatives through the solve


def answers(residual, start, given):
    """The solution as a function of the data: compressed, and by the dense path."""

    def sparse(data):
        return torch.cat([leaf.reshape(-1) for leaf in mslsq.pytree.leaves(_value(residual, start, data, None))])

    def dense(data):
        jac = dense_of(residual)
        return torch.cat([leaf.reshape(-1) for leaf in mslsq.pytree.leaves(_value(residual, start, data, jac))])

    return sparse, dense, given


def _value(residual, start, data, jac):
    return mslsq.least_squares(residual, start, (data,), jac=jac).value


@pytest.fixture(params=CASES)
def both(request):
    residual, start, args = CASES[request.param]
    return answers(residual, start(), args()[0])


def test_gradients_are_those_of_the_dense_path(both):
    sparse, dense, data = both
    weights = torch.linspace(-1, 1, len(sparse(data)), dtype=F64)
    found = torch.func.grad(lambda data: weights @ sparse(data))(data)
    expected = torch.func.grad(lambda data: weights @ dense(data))(data)
    assert torch.allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_backward_gives_the_same(both):
    sparse, dense, data = both
    data = data.clone().requires_grad_()
    (found,) = torch.autograd.grad(sparse(data).square().sum(), data)
    (expected,) = torch.autograd.grad(dense(data).square().sum(), data)
    assert torch.allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_jacobians_of_a_batch_are_those_of_the_dense_path(both):
    sparse, dense, data = both
    several = torch.stack([data, data * 1.05])
    found = torch.func.vmap(torch.func.jacrev(sparse))(several)
    assert torch.allclose(found[1], torch.func.jacfwd(dense)(several[1]), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("adjoint", [mslsq.Unrolled(), mslsq.DirectLossMinimization()])
def test_other_adjoints_see_the_same(adjoint):
    """With components small enough for dense systems: `Unrolled` differentiates the linear solver."""
    start, data = torch.ones(4 * 30, dtype=F64), random(6, 30) + 0.5

    def gradient(**how):
        given = data.clone().requires_grad_()
        mslsq.least_squares(maps, start, (given,), adjoint=adjoint, **how).value.square().sum().backward()
        return given.grad

    assert torch.allclose(gradient(), gradient(jac=torch.func.jacfwd(maps)), rtol=1e-5, atol=1e-6)


def test_a_part_held_constant_has_no_derivative():
    def residual(x):
        return torch.cat([x * x.detach() - 2, x.diff()])

    start = torch.linspace(1, 2, 60, dtype=F64)
    found = mslsq.least_squares(residual, start, solver=mslsq.GaussNewton(max_steps=1))
    dense = mslsq.least_squares(residual, start, jac=torch.func.jacrev(residual), solver=mslsq.GaussNewton(max_steps=1))
    assert torch.allclose(found.value, dense.value, rtol=1e-12, atol=0)


def test_second_derivatives_are_those_of_the_dense_path(both):
    sparse, dense, data = both
    along = torch.randn(data.shape, generator=torch.Generator().manual_seed(0), dtype=F64)

    def second(function):
        slope = torch.func.grad(lambda data: function(data).square().sum())
        return torch.func.jvp(slope, (data,), (along,))[1]

    found, expected = second(sparse), second(dense)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-8 * float(expected.abs().max()))


# ---- what it costs


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is counted in other units elsewhere")
def test_the_in_place_bug_is_solved_in_less_than_400_megabytes():
    """8 maps of 256 cells, 14,592 residuals of 2,048 unknowns; a dense Jacobian alone is 239 MB, a solve 1.2 GB."""
    benchmark = Path(__file__).parents[3] / "benchmarks" / "one_big_residual.py"
    command = [sys.executable, str(benchmark), "--measure", "maps in_place"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["peak MB"] < 400
    assert figures["derivatives"] == 8


def test_batches_of_smaller_residuals_are_compressed_too(capsys):
    def chain(x, y):
        return torch.cat([torch.sinh(x[1:] - x[:-1]), x - y])

    y = torch.randn(64, 90, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    start = torch.zeros(90, dtype=torch.float64)
    solver = mslsq.LevenbergMarquardt(verbose=True, gtol=1e-12)
    batch = mslsq.least_squares(chain, start, (y,), in_dims=(None, 0), solver=solver)
    said = capsys.readouterr().out
    assert "SparseCholesky (mslsq) of 90" in said
    assert "from 2 derivatives" in said
    (slope,) = torch.autograd.grad(batch.value.square().sum(), y)
    for k in (0, 63):  # one by one they are dense
        own = y[k].detach().requires_grad_()
        single = mslsq.least_squares(chain, start, (own,), solver=solver)
        assert "Cholesky of 90" in capsys.readouterr().out
        torch.testing.assert_close(batch.value[k], single.value, rtol=0, atol=1e-9)
        (expected,) = torch.autograd.grad(single.value.square().sum(), own)
        torch.testing.assert_close(slope[k], expected, rtol=1e-6, atol=1e-8)
