"""Components of blocks that are held: the solution is that of the problem restated in what is left, in every path."""

import numpy as np
import pytest
import scipy.optimize
import torch
from torch.func import jacfwd, jacrev, vmap

import mslsq
from mslsq import linear
from mslsq.errors import CheckpointError, ProblemError
from tests.differences import differences

F64 = torch.float64
CAMERAS, POINTS = 6, 20
I, J = torch.arange(CAMERAS).repeat_interleave(POINTS), torch.arange(POINTS).repeat(CAMERAS)


def model(camera, point):
    d = (point - camera[..., :3]).unbind(-1)
    focal, skew = camera[..., 3], camera[..., 4]
    rows = focal * d[0] + 0.1 * d[2] ** 2, focal * d[1] + skew * d[0] * d[1], d[2] + skew * camera[..., 0]
    return torch.stack(rows, -1)


class See(mslsq.CostFunction):
    def residual(self, camera, point, seen):
        return model(camera, point) - seen


class SeeInClosedForm(See):
    """With Jacobians of its own."""

    def residual(self, camera, point, seen):
        return model(camera, point) - seen

    def jacobians(self, camera, point, seen):
        return jacrev(model, argnums=(0, 1))(camera, point)


def scene(seed=0):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=F64)  # noqa: E731
    cameras, points = normal(CAMERAS, 5), 2 * normal(POINTS, 3)
    cameras[:, 3] += 3
    seen = model(cameras[I], points[J]) + 0.05 * normal(len(I), 3)
    return seen, {"camera": cameras + 0.05 * normal(CAMERAS, 5), "point": points + 0.05 * normal(POINTS, 3)}


CAMERA = mslsq.Variable("camera", mslsq.Euclidean(5), CAMERAS)
POINT = mslsq.Variable("point", mslsq.Euclidean(3), POINTS)
HELD = {
    "the last of all": [CAMERA.fixed([0]), CAMERA.fixed(components=[3, 4])],
    "in between": [CAMERA.fixed([0]), CAMERA.fixed(components=[1, 3])],
    "of some": [
        CAMERA.fixed([0]),
        CAMERA.fixed([1, 3], components=[0]),
        CAMERA.fixed([3], components=slice(2, None, 2)),
        POINT.fixed([2, 5], components=1),
    ],
}


def problem_of(held, seen, cost=See):
    return mslsq.Problem(cost(CAMERA[I], POINT[J], seen=seen), *HELD[held])


def free_of(problem):
    """(count, tangent) of each variable."""
    every = [(CAMERAS, 5), (POINTS, 3)]
    masks = [problem.free_entries(variable) for variable in (CAMERA, POINT)]
    return [torch.ones(shape, dtype=torch.bool) if m is None else m for m, shape in zip(masks, every, strict=True)]


def restated(problem, start, seen):
    """The residual as a function of what is free alone, and its start."""
    free, values = free_of(problem), list(start.values())
    counts = [int(mask.sum()) for mask in free]

    def filled(x):
        parts = x.split(counts)
        return [v.masked_scatter(m, part) for v, m, part in zip(values, free, parts, strict=True)]

    def residual(x):
        camera, point = filled(x)
        return (model(camera[I], point[J]) - seen).reshape(-1)

    return residual, filled, torch.cat([v[m] for v, m in zip(values, free, strict=True)])


def by_scipy(problem, start, seen):
    residual, filled, x0 = restated(problem, start, seen)
    jacobian = lambda x: differences(residual, torch.from_numpy(x), 1e-6).numpy()  # noqa: E731
    found = scipy.optimize.least_squares(
        lambda x: residual(torch.from_numpy(x)).numpy(), x0.numpy(), jacobian, xtol=1e-15, ftol=1e-15, gtol=1e-14
    )
    return torch.from_numpy(found.x), filled, torch.from_numpy(found.jac), found.cost


LINEAR = [
    *("auto", linear.Cholesky(), linear.QR(), linear.SparseCholesky(), linear.Schur(), linear.ConjugateGradient()),
    *(linear.Schur(eliminate="camera"), linear.ConjugateGradient(preconditioner="jacobi")),
    *(linear.ConjugateGradient(matrix_free=True), linear.ConjugateGradient(matrix_free=True, preconditioner="jacobi")),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("cost", [See, SeeInClosedForm])
def test_the_solution_is_that_of_the_restated_problem(held, cost):
    seen, start = scene()
    problem = problem_of(held, seen, cost)
    x, filled, _, least = by_scipy(problem, start, seen)
    expected = filled(x)
    for solver in LINEAR:
        solution = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(gtol=1e-10, linear_solver=solver))
        assert bool(solution.converged), solver
        assert float(solution.cost) == pytest.approx(least, rel=1e-12)
        for (name, found), e, free in zip(solution.value.items(), expected, free_of(problem), strict=True):
            assert torch.equal(found[~free], start[name][~free])
            torch.testing.assert_close(found, e, rtol=0, atol=1e-7)


@pytest.mark.parametrize("held", HELD)
def test_the_covariance_of_what_is_held_is_zero(held):
    seen, start = scene()
    problem = problem_of(held, seen)
    x, filled, jacobian, _ = by_scipy(problem, start, seen)
    free = torch.cat([mask.reshape(-1) for mask in free_of(problem)])
    whole = torch.zeros(len(free), len(free), dtype=F64)
    rows = free.nonzero()[:, 0]
    whole[rows[:, None], rows] = torch.linalg.inv(jacobian.mT @ jacobian)
    values = dict(zip(start, filled(x), strict=True))
    every = mslsq.covariance(problem, values, ["camera", "point"])
    torch.testing.assert_close(every, whole, rtol=1e-6, atol=1e-9)
    cameras = mslsq.covariance(problem, values, "camera")
    blocks = torch.stack([whole[5 * k : 5 * k + 5, 5 * k : 5 * k + 5] for k in range(CAMERAS)])
    torch.testing.assert_close(cameras, blocks, rtol=1e-6, atol=1e-9)


def test_the_covariance_by_blocks_of_a_large_problem():
    count = 300
    generator = torch.Generator().manual_seed(0)
    x = mslsq.Variable("x", mslsq.Euclidean(3), count)
    i = torch.arange(count - 1)
    measured = torch.randn(count - 1, 3, generator=generator, dtype=F64)

    class Link(mslsq.CostFunction):
        def residual(self, a, b, measured):
            return b - a + 0.3 * torch.sin(a.roll(1) * b) - measured

    held = [x.fixed([0]), x.fixed([4], components=[1]), x.fixed(range(10, 20), components=[0, 2])]
    prior = mslsq.Prior(x, target=torch.zeros(count, 3, dtype=F64), weight=0.5)
    problem = mslsq.Problem(Link(x[i], x[i + 1], measured=measured), prior, *held)
    solution = mslsq.solve(problem, {"x": torch.zeros(count, 3, dtype=F64)})
    some = [0, 1, 4, 9, 12, 200]
    found = mslsq.covariance(problem, solution, "x", some)
    small = mslsq.covariance(problem, solution, ["x"], {"x": some})
    expected = torch.stack([small[3 * k : 3 * k + 3, 3 * k : 3 * k + 3] for k in range(len(some))])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert not found[2][1].any() and not found[2][:, 1].any() and bool(found[2][0, 0] > 0)
    assert not found[4][[0, 2]].any() and bool(found[4][1, 1] > 0)


# ---- derivatives and transforms


def small_problem(seen, held):
    return mslsq.Problem(See(CAMERA[I], POINT[J], seen=seen), CAMERA.fixed([0]), *held)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("solver", "adjoint"),
    [
        ("auto", mslsq.Implicit()),
        ("auto", mslsq.Unrolled()),
        (linear.SparseCholesky(), mslsq.Implicit()),
        (linear.ConjugateGradient(matrix_free=True), mslsq.Implicit()),
    ],
)
def test_derivatives_are_those_of_finite_differences(solver, adjoint):
    seen, start = scene()
    problem = problem_of("of some", seen)
    options = mslsq.LevenbergMarquardt(gtol=1e-13, ftol=0.0, xtol=1e-14, linear_solver=solver)
    weights = torch.randn(CAMERAS, 5, generator=torch.Generator().manual_seed(3), dtype=F64)

    def end(change, offset):
        """By the start of camera 3, of which 0, 2 and 4 are held, and by a shift of the data."""
        values = start | {"camera": torch.cat((start["camera"][:3], change[None], start["camera"][4:]))}
        data = {"see": {"seen": seen + offset}}
        found = mslsq.solve(problem, values, data, solver=options, adjoint=adjoint).value
        return (weights * found["camera"]).sum() + found["point"].square().sum()

    at, zero = start["camera"][3], torch.zeros(3, dtype=F64)
    by_start, by_data = torch.func.grad(end, argnums=(0, 1))(at, zero)
    expected = differences(lambda c: end(c, zero), at)
    torch.testing.assert_close(by_start[[0, 2, 4]], expected[[0, 2, 4]], rtol=1e-5, atol=1e-6)
    if isinstance(adjoint, mslsq.Implicit):
        assert not by_start[[1, 3]].any()  # a minimum does not depend on where it was begun
    torch.testing.assert_close(by_data, differences(lambda d: end(at, d), zero), rtol=1e-5, atol=1e-6)
    change, offset = at.clone().requires_grad_(), zero.clone().requires_grad_()
    end(change, offset).backward()
    torch.testing.assert_close(offset.grad, by_data, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(change.grad[[0, 2, 4]], by_start[[0, 2, 4]], rtol=1e-7, atol=1e-9)


def test_second_derivatives():
    x = mslsq.Variable("x", mslsq.Euclidean(3))
    t = torch.linspace(0, 2, 12, dtype=F64)

    @mslsq.cost
    def fit(p, t, y):
        return (p[0] * torch.exp(-p[1] * t) + p[2] * t - y).reshape(1)

    problem = mslsq.Problem(fit(x, t=t, y=torch.zeros_like(t)), x.fixed(components=[1]))

    def end(q):
        y = q[0] * torch.exp(-1.3 * t) + q[1] * torch.sin(t)
        solution = mslsq.solve(
            problem,
            {"x": torch.stack((q[0] * 0 + 1, q[2], q[0] * 0))},
            {"fit": {"y": y}},
            solver=mslsq.LevenbergMarquardt(gtol=1e-13),
        )
        return solution.value["x"].square().sum()

    at = torch.tensor([2.0, 0.3, 1.1], dtype=F64)
    gradient = lambda q: differences(end, q, 1e-4)  # noqa: E731
    torch.testing.assert_close(jacfwd(end)(at), gradient(at), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(jacfwd(jacrev(end))(at), differences(gradient, at, 1e-3), rtol=1e-4, atol=1e-5)


def test_a_batch_and_vmap_are_single_solves():
    batch = [scene(seed) for seed in range(3)]
    seen, start = torch.stack([b[0] for b in batch]), [b[1] for b in batch]
    starts = {name: torch.stack([s[name] for s in start]) for name in start[0]}
    problem = problem_of("of some", seen[0])
    singly = [mslsq.solve(problem, s, {"see": {"seen": y}}).value["camera"] for s, y in zip(start, seen, strict=True)]
    together = mslsq.solve(problem, starts, {"see": {"seen": seen}}, in_dims=(0, 0)).value["camera"]
    mapped = vmap(lambda s, y: mslsq.solve(problem, s, {"see": {"seen": y}}).value["camera"])(starts, seen)
    for found in (together, mapped):
        torch.testing.assert_close(found, torch.stack(singly), rtol=0, atol=1e-7)


# ---- manifolds


def graph(group, count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    poses = group.random(count, generator=generator, dtype=F64)
    i = torch.arange(count)
    j = (i + 1) % count
    noise = 0.1 * torch.randn(count, group.tangent_dim, generator=generator, dtype=F64)
    measured = poses[i].between(poses[j]).retract(noise)
    start = poses.retract(0.1 * torch.randn(count, group.tangent_dim, generator=generator, dtype=F64))
    return i, j, measured, start


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("group", "components"),
    [
        (mslsq.SE3, "rotation"),
        (mslsq.SE3, "translation"),
        (mslsq.SE3, [2, 3, 4]),
        (mslsq.SE3, [0, 1, 3, 4]),
        (mslsq.SE2, "rotation"),
        (mslsq.SO3, [0, 1]),
        (mslsq.Sim3, "scale"),
        (mslsq.Sim2, ["rotation", "scale"]),
    ],
)
@pytest.mark.parametrize("solver", ["auto", linear.SparseCholesky(), linear.ConjugateGradient(matrix_free=True)])
def test_on_a_group_the_distance_from_the_start_is_zero_there(group, components, solver):
    """Against the minimum over δ of the cost at start ⊞ δ, δ zero in what is held, by SciPy."""
    i, j, measured, start = graph(group)
    pose = mslsq.Variable("pose", group, len(start))
    marker = pose.fixed(components=components)
    problem = mslsq.Problem(mslsq.Between(pose[i], pose[j], measured=measured), pose.fixed([0]), marker)
    options = mslsq.LevenbergMarquardt(gtol=1e-11, max_steps=200, linear_solver=solver)
    solution = mslsq.solve(problem, {"pose": start}, solver=options)
    assert bool(solution.converged)
    found = solution.value["pose"]
    assert start.local(found)[:, list(marker.components)].abs().max() < 1e-13
    free = problem.free_entries(pose)

    def residual(x):
        delta = torch.zeros(free.shape, dtype=F64).masked_scatter(free, torch.from_numpy(x))
        at = start.retract(delta)
        return measured.between(at[i].between(at[j])).log().reshape(-1).numpy()

    least = scipy.optimize.least_squares(residual, np.zeros(int(free.sum())), xtol=1e-14, ftol=1e-14, gtol=1e-12)
    assert float(solution.cost) == pytest.approx(least.cost, rel=1e-9, abs=1e-12)
    # three-point differences know the minimum to 1e-6
    delta = start.local(found)[free]
    torch.testing.assert_close(delta, torch.from_numpy(least.x), rtol=0, atol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("components", ["rotation", "translation", [2, 3, 4]])
@pytest.mark.parametrize("adjoint", [mslsq.Implicit(), mslsq.Unrolled()])
def test_derivatives_by_the_start_of_what_is_held_on_a_group(components, adjoint):
    i, j, measured, start = graph(mslsq.SE3, 4)
    pose = mslsq.Variable("pose", mslsq.SE3, len(start))
    problem = mslsq.Problem(
        mslsq.Between(pose[i], pose[j], measured=measured), pose.fixed([0]), pose.fixed(components=components)
    )
    options = mslsq.LevenbergMarquardt(gtol=1e-13, ftol=0.0, xtol=1e-15, max_steps=100)
    weights = torch.randn(4, 7, generator=torch.Generator().manual_seed(3), dtype=F64)

    def end(change, noise):
        data = {"between": {"measured": measured.retract(noise)}}
        solution = mslsq.solve(problem, {"pose": start.retract(change)}, data, solver=options, adjoint=adjoint)
        return (solution.value["pose"].storage * weights).sum()

    zero = torch.zeros(4, 6, dtype=F64)
    by_start, by_data = torch.func.grad(end, argnums=(0, 1))(zero, zero)
    torch.testing.assert_close(by_data, differences(lambda d: end(zero, d), zero), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(by_start, differences(lambda d: end(d, zero), zero), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "components"),
    [
        (mslsq.SE3, [2]),
        (mslsq.SE3, [0, 1]),
        (mslsq.SE3, [3]),
        (mslsq.SO3, [2]),
        (mslsq.SE2, [0]),
        (mslsq.UnitVector, [0]),
        ({"pose": mslsq.SE3, "bias": mslsq.Euclidean(3)}, [2]),
    ],
)
def test_components_that_do_not_stay_are_refused(kind, components):
    x = mslsq.Variable("x", kind)
    prior = mslsq.cost(lambda x: torch.ones(1))(x, name="prior")
    with pytest.raises(ProblemError, match=r"Variable 'x': components \[.*\] of the tangent of .* cannot be held"):
        mslsq.Problem(prior, x.fixed(components=components))


def test_a_height_is_held_in_a_product():
    """Poses that turn freely and keep their height."""
    i, j, measured, start = graph(mslsq.SE3)
    kind = {"translation": mslsq.Euclidean(3), "rotation": mslsq.SO3}
    pose = mslsq.Variable("pose", kind, len(start))

    @mslsq.cost
    def between(a, b, measured):
        a, b = (mslsq.SE3.from_parts(x["rotation"], x["translation"]) for x in (a, b))
        return measured.between(a.between(b)).log()

    problem = mslsq.Problem(between(pose[i], pose[j], measured=measured), pose.fixed([0]), pose.fixed(components=[2]))
    value = mslsq.solve(problem, {"pose": {"translation": start.translation, "rotation": start.rotation}}).value["pose"]
    assert torch.equal(value["translation"][:, 2], start.translation[:, 2])
    assert not torch.equal(value["translation"][1:, :2], start.translation[1:, :2])


# ---- beside other parts


def test_bounds_and_what_is_held_do_not_disturb_each_other():
    x = mslsq.Variable("x", mslsq.Euclidean(3), 2, lower=[-1.0, -1.0, -1.0], upper=0.5)
    target = torch.tensor([[2.0, 0.3, -3.0], [0.2, 2.0, 0.1]], dtype=F64)

    @mslsq.cost
    def pull(x, target):
        d = x - target
        return torch.stack((d[0] + 0.5 * d[1], d[1] - 0.3 * d[2], d[2] + 0.2 * d[0]))

    start = torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.4, 0.0]], dtype=F64)
    problem = mslsq.Problem(pull(x, target=target), x.fixed([0], components=[1]))
    solution = mslsq.solve(problem, {"x": start}, solver=mslsq.LevenbergMarquardt(gtol=1e-12))

    def residual(z):
        p = torch.stack((torch.tensor([z[0], 0.2, z[1]]), torch.tensor(z[2:])))
        d = p - target
        rows = d[:, 0] + 0.5 * d[:, 1], d[:, 1] - 0.3 * d[:, 2], d[:, 2] + 0.2 * d[:, 0]
        return torch.cat(rows).numpy()

    found = scipy.optimize.least_squares(
        residual, start.reshape(-1)[[0, 2, 3, 4, 5]].numpy(), bounds=(-1, 0.5), xtol=1e-15, ftol=1e-15, gtol=1e-15
    )
    torch.testing.assert_close(
        solution.value["x"].reshape(-1)[[0, 2, 3, 4, 5]], torch.from_numpy(found.x), rtol=0, atol=1e-6
    )
    assert float(solution.value["x"][0, 1]) == 0.2 and int(solution.active["x"][0, 1]) == 0
    values = mslsq.covariance(problem, solution, "x")
    assert not values[0, 1].any()


@pytest.mark.parametrize("solver", [mslsq.Dogleg(), mslsq.GaussNewton()])
def test_by_other_solvers(solver):
    seen, start = scene()
    problem = problem_of("of some", seen)
    found = mslsq.solve(problem, start, solver=solver).value["camera"]
    torch.testing.assert_close(found, mslsq.solve(problem, start).value["camera"], rtol=0, atol=1e-6)


def test_under_a_constraint():
    x = mslsq.Variable("x", mslsq.Euclidean(3))

    @mslsq.cost
    def pull(x):
        return x - torch.tensor([2.0, 1.0, 0.0], dtype=x.dtype)

    @mslsq.cost
    def sphere(x):
        return (x @ x - 1).reshape(1)

    problem = mslsq.Problem(pull(x), mslsq.Equality(sphere(x)), x.fixed(components=[2]))
    value = mslsq.solve(problem, {"x": torch.tensor([0.5, 0.5, 0.6], dtype=F64)}).value["x"]
    expected = 0.8 * torch.tensor([2.0, 1.0], dtype=F64) / 5**0.5  # nearest point of a circle of radius 0.8
    torch.testing.assert_close(value, torch.cat((expected, torch.tensor([0.6], dtype=F64))), rtol=0, atol=1e-6)


def test_prepared_and_repeated_calls_keep_what_is_held():
    seen, start = scene()
    problem = problem_of("of some", seen)
    expected = mslsq.solve(problem, start).value["camera"]
    call = mslsq.prepared(problem, start)
    for _ in range(3):
        assert torch.equal(call(start).value["camera"], expected)
        assert torch.equal(mslsq.solve(problem, start).value["camera"], expected)
    problem.fixed = problem.fixed[:1]
    free = mslsq.solve(problem, start).value["camera"]
    again = mslsq.Problem(See(CAMERA[I], POINT[J], seen=seen), CAMERA.fixed([0]))
    torch.testing.assert_close(free, mslsq.solve(again, start).value["camera"])


def test_a_checkpoint_knows_what_is_held(tmp_path):
    seen, start = scene()
    checkpoint = mslsq.Checkpoint(tmp_path / "solve", seconds=0)
    one, other = (problem_of(held, seen) for held in ("the last of all", "in between"))
    mslsq.solve(one, start, solver=mslsq.LevenbergMarquardt(max_steps=1, checkpoint=checkpoint))
    with pytest.raises(CheckpointError, match="what is held"):
        mslsq.solve(other, start, solver=mslsq.LevenbergMarquardt(checkpoint=checkpoint))
    rest = mslsq.solve(one, start, solver=mslsq.LevenbergMarquardt(checkpoint=checkpoint))
    torch.testing.assert_close(rest.value["camera"], mslsq.solve(one, start).value["camera"])


def test_a_layer_and_robust_solvers():
    seen, start = scene()
    problem = problem_of("of some", seen)
    layer = mslsq.LeastSquaresLayer(problem)
    plain = mslsq.solve(problem, start).value["camera"]
    torch.testing.assert_close(layer(start).value["camera"], plain)
    robust = mslsq.GraduatedNonConvexity(scale=10.0)
    value = mslsq.solve(problem, start, solver=robust).value["camera"]
    free = problem.free_entries(CAMERA)
    assert torch.equal(value[~free], start["camera"][~free])
    torch.testing.assert_close(value, plain, rtol=0, atol=1e-5)


def test_many_small_parts_are_solved_apart():
    """Blocks that nothing couples, of different sizes."""
    count = 40
    x = mslsq.Variable("x", mslsq.Euclidean(3), count)
    target = torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=F64)

    @mslsq.cost
    def pull(x, target):
        d = x - target
        return torch.stack((d[0] + 0.5 * d[1], d[1] - 0.3 * d[2], d[2] + 0.2 * d[0]))

    problem = mslsq.Problem(
        pull(x, target=target), x.fixed([3, 4]), x.fixed([5, 7], components=[1]), x.fixed([6], components=[0, 2])
    )
    value = mslsq.solve(problem, {"x": torch.zeros(count, 3, dtype=F64)}).value["x"]
    matrix = torch.tensor([[1, 0.5, 0], [0, 1, -0.3], [0.2, 0, 1]], dtype=F64)
    for block, free in {0: [0, 1, 2], 3: [], 5: [0, 2], 6: [1], 7: [0, 2], 39: [0, 1, 2]}.items():
        expected = torch.zeros(3, dtype=F64)
        if free:
            expected[free] = torch.linalg.lstsq(matrix[:, free], matrix @ target[block]).solution
        torch.testing.assert_close(value[block], expected, rtol=0, atol=1e-9)


def test_explain_names_what_is_held_and_what_is_left():
    i, j, measured, start = graph(mslsq.SE2)
    pose = mslsq.Variable("pose", mslsq.SE2, len(start))
    between = mslsq.Between(pose[i], pose[j], measured=measured)
    said = mslsq.explain(mslsq.Problem(between, pose.fixed([0], components="rotation")), {"pose": start})
    assert said.gauge_freedoms == 2 and "shifted (2)" in said and "1 fixed in part" in said
    said = mslsq.explain(mslsq.Problem(between, pose.fixed([0], components="translation")), {"pose": start})
    assert said.gauge_freedoms == 1


@pytest.mark.parametrize(
    ("components", "error", "match"),
    [
        ([3], ProblemError, "components 0 to 2; 3 is none of them"),
        ([0.5], ProblemError, "is none of them"),
        ("height", ProblemError, "Unknown component of variable 'x' 'height'"),
        ([], ProblemError, "names no component"),
        ([True, False], ProblemError, "one entry per dimension"),
    ],
)
def test_components_that_are_not_there(components, error, match):
    x = mslsq.Variable("x", mslsq.SE2)
    with pytest.raises(error, match=match):
        x.fixed(components=components)


def test_the_forms_of_components():
    x = mslsq.Variable("x", {"height": mslsq.Euclidean(2), "pose": mslsq.SE3}, 4)
    assert x.fixed(components="pose").components == (2, 3, 4, 5, 6, 7)
    assert x.fixed(components=["height", 4]).components == (0, 1, 4)
    assert x.fixed(components=torch.tensor([1, -1])).components == (1, 7)
    assert x.fixed(components=np.arange(8) < 1).components == (0,)
    assert x.fixed(components=slice(6, None)).components == (6, 7)
    assert x.fixed(1).components == tuple(range(8))
