"""`solve`: values come back in the types they were given, data can be replaced, names are checked, the loop reports."""

# Wrong arguments on purpose.
# pyright: reportArgumentType=false

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import mslsq
import mslsq.datasets.classic
from mslsq import Status
from mslsq.problem import ProblemError

F64 = torch.float64


class Between(mslsq.CostFunction):
    def residual(self, a: mslsq.SE2, b: mslsq.SE2, measured: mslsq.SE2):
        return (measured.inverse() @ (a.inverse() @ b)).log()


class Pull(mslsq.CostFunction):
    def residual(self, x, towards):
        return x - towards


def loop_of_poses(seed: int = 0, **options):
    generator = torch.Generator().manual_seed(seed)
    pose = mslsq.Variable("pose", mslsq.SE2, count=6)
    i, j = torch.arange(6), (torch.arange(6) + 1) % 6
    step = torch.tensor([1.0, 0.0, 2 * torch.pi / 6], dtype=F64).expand(6, 3)
    measured = mslsq.SE2.exp(step + 0.05 * torch.randn(6, 3, generator=generator, dtype=F64))
    problem = mslsq.Problem(Between(pose[i], pose[j], measured=measured, **options), pose.fixed(0))
    corners = [mslsq.SE2.exp(torch.zeros(3, dtype=F64))]
    for k in range(5):
        corners.append(corners[-1] @ mslsq.SE2.exp(step[k]))
    corners = mslsq.SE2(torch.stack([corner.storage for corner in corners]))
    start = corners.retract(0.1 * torch.randn(6, 3, generator=generator, dtype=F64))
    return problem, start


def pulls(count: int = 4, **options):
    """Each x is pulled towards its own datum: the answer is the datum."""
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=count)
    towards = torch.arange(2.0 * count, dtype=F64).reshape(count, 2)
    return mslsq.Problem(Pull(x, towards=towards, **options)), towards


# ---- types ------------------------------------------------------------------------------------------


def test_elements_and_storage_give_the_same_answer_in_their_own_type():
    problem, start = loop_of_poses()
    solver = mslsq.LevenbergMarquardt(native="never")  # bits are compared
    as_element = mslsq.solve(problem, {"pose": start}, solver=solver)
    as_storage = mslsq.solve(problem, {"pose": start.storage}, solver=solver)
    assert isinstance(as_element.value["pose"], mslsq.SE2)
    assert isinstance(as_storage.value["pose"], torch.Tensor)
    assert torch.equal(as_element.value["pose"].storage, as_storage.value["pose"])


def test_products_come_back_as_dicts():
    kind = {"turn": mslsq.SO2, "offset": mslsq.Euclidean(2)}
    body = mslsq.Variable("body", kind, count=3)

    @mslsq.cost
    def seen(body, point, image):
        return body["turn"].act(point) + body["offset"] - image

    generator = torch.Generator().manual_seed(0)
    truth = {
        "turn": mslsq.SO2.exp(torch.tensor([[0.3], [-1.0], [2.0]], dtype=F64)),
        "offset": torch.randn(3, 2, generator=generator, dtype=F64),
    }
    index = torch.arange(3).repeat(2)
    point = torch.randn(6, 2, generator=generator, dtype=F64)
    image = mslsq.SO2(truth["turn"].storage[index]).act(point) + truth["offset"][index]
    problem = mslsq.Problem(seen(body[index], point=point, image=image))
    start = {"turn": mslsq.SO2.exp(torch.zeros(3, 1, dtype=F64)), "offset": torch.zeros(3, 2, dtype=F64)}
    solution = mslsq.solve(problem, {"body": start})
    assert set(solution.value["body"]) == {"turn", "offset"}
    assert isinstance(solution.value["body"]["turn"], mslsq.SO2)
    assert torch.allclose(solution.value["body"]["offset"], truth["offset"], atol=1e-6)
    assert torch.allclose(solution.value["body"]["turn"].storage, truth["turn"].storage, atol=1e-6)


def test_a_single_block_has_no_leading_axis():
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    towards = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F64)
    solution = mslsq.solve(mslsq.Problem(Pull(x, towards=towards)), {"x": torch.zeros(2, dtype=F64)})
    assert torch.allclose(solution.value["x"], towards.mean(0))


def test_float32_problems_stay_float32():
    problem, towards = pulls()
    problem = problem.to(torch.float32)
    solution = mslsq.solve(problem, {"x": torch.zeros(4, 2)})
    assert solution.value["x"].dtype == solution.cost.dtype == torch.float32
    assert torch.allclose(solution.value["x"], towards.float())


# ---- several variables, costs, fixed blocks, components ----------------------------------------------


def test_several_kinds_of_variables_and_costs_equal_one_dense_least_squares():
    generator = torch.Generator().manual_seed(0)
    pose, point = mslsq.Variable("pose", mslsq.SE2, count=3), mslsq.Variable("point", mslsq.Euclidean(2), count=4)
    i, j = torch.arange(3).repeat_interleave(4), torch.arange(4).repeat(3)
    seen = torch.randn(12, 2, generator=generator, dtype=F64)
    prior = mslsq.SE2.exp(torch.randn(3, 3, generator=generator, dtype=F64))
    spread = torch.rand(12, 2, generator=generator, dtype=F64) + 0.5

    @mslsq.cost
    def sight(pose, point, seen):
        return pose.inverse().act(point) - seen

    @mslsq.cost
    def prior_pose(pose, at):
        return at.local(pose)

    problem = mslsq.Problem(
        sight(pose[i], point[j], seen=seen, weight=mslsq.Diagonal(spread)), prior_pose(pose, at=prior, weight=2.0)
    )

    def everything(x):
        first = spread * (mslsq.SE2(x["pose"].storage[i]).inverse().act(x["point"][j]) - seen)
        return {"sight": first, "prior": 2.0 * prior.local(x["pose"])}

    start = {"pose": prior, "point": torch.zeros(4, 2, dtype=F64)}
    solution, dense = mslsq.solve(problem, start), mslsq.least_squares(everything, start)
    assert float(solution.cost) == pytest.approx(float(dense.cost), rel=1e-9)
    assert torch.allclose(solution.value["point"], dense.value["point"], atol=1e-5)
    assert torch.allclose(solution.value["pose"].storage, dense.value["pose"].storage, atol=1e-5)


def test_fixed_blocks_stay_exactly_where_they_are():
    problem, start = loop_of_poses()
    solution = mslsq.solve(problem, {"pose": start})
    assert torch.equal(solution.value["pose"].storage[0], start.storage[0])
    assert not torch.allclose(solution.value["pose"].storage[1], start.storage[1])


@pytest.mark.parametrize(
    "linear",
    [
        mslsq.linear.Cholesky(),
        mslsq.linear.SparseCholesky(),
        mslsq.linear.Schur(),
        mslsq.linear.ConjugateGradient(),
        mslsq.linear.ConjugateGradient(matrix_free=True),
        mslsq.linear.QR(),
    ],
    ids=repr,
)
def test_everything_fixed_is_already_solved(linear):
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=2)
    problem = mslsq.Problem(Pull(x, towards=torch.ones(2, 2, dtype=F64)), x.fixed())
    solver = mslsq.LevenbergMarquardt(linear_solver=linear)
    solution = mslsq.solve(problem, {"x": torch.zeros(2, 2, dtype=F64)}, solver=solver)
    assert bool(solution.converged) and float(solution.cost) == 2.0
    assert torch.equal(mslsq.covariance(problem, solution, "x"), torch.zeros(2, 2, 2, dtype=F64))
    assert torch.equal(solution.value["x"], torch.zeros(2, 2, dtype=F64))


def chains(*lengths: int):
    """Disconnected chains of 2-D points with measured differences, their first points fixed; one per length."""
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=sum(lengths))
    firsts = [sum(lengths[:k]) for k in range(len(lengths))]
    i = torch.cat([first + torch.arange(n - 1) for first, n in zip(firsts, lengths, strict=True)])

    @mslsq.cost
    def bend(a, b, d):
        return (b - a) * (1 + 0.1 * (b - a).square().sum()) - d

    d = torch.randn(len(i), 2, generator=torch.Generator().manual_seed(len(lengths) + 7), dtype=F64)
    skip = torch.cat([first + torch.arange(n - 2) for first, n in zip(firsts, lengths, strict=True)])
    costs = [bend(x[i], x[i + 1], d=d, name="step")]
    if len(skip):
        costs.append(bend(x[skip], x[skip + 2], d=d[: len(skip)], name="skip"))
    start = torch.arange(2.0 * sum(lengths), dtype=F64).reshape(-1, 2).sin()
    return mslsq.Problem(*costs, x.fixed(firsts)), start, (i, skip, d)


def test_two_disconnected_graphs_are_solved_as_if_alone():
    """29 and 17 points: beyond the size from which components are looked for, and padded to one size."""
    problem, start, (i, skip, d) = chains(29, 17)
    solver = mslsq.LevenbergMarquardt(ftol=1e-15, gtol=1e-11, max_steps=300)
    together = mslsq.solve(problem, {"x": start}, solver=solver)

    bend = type(next(iter(problem)))
    for part in (slice(0, 29), slice(29, 46)):
        inside, also = (i >= part.start) & (i < part.stop), (skip >= part.start) & (skip < part.stop)
        x = mslsq.Variable("x", mslsq.Euclidean(2), count=part.stop - part.start)
        a, b = i[inside] - part.start, skip[also] - part.start
        alone = mslsq.Problem(
            bend(x[a], x[a + 1], d=d[inside], name="step"),
            bend(x[b], x[b + 2], d=d[: len(skip)][also], name="skip"),
            x.fixed(0),
        )
        solution = mslsq.solve(alone, {"x": start[part]}, solver=solver)
        assert torch.allclose(together.value["x"][part], solution.value["x"], atol=1e-7)


@pytest.mark.parametrize("linear", [mslsq.linear.Cholesky(), mslsq.linear.QR()])
def test_many_small_blocks_are_independent_fits(linear):
    """60 exponentials of two parameters, eight samples each: as one problem, and one by one."""
    generator = torch.Generator().manual_seed(0)
    p = mslsq.Variable("p", mslsq.Euclidean(2), count=60)
    index = torch.arange(60).repeat_interleave(8)
    t = torch.linspace(0, 1, 8, dtype=F64).repeat(60)
    truth = 1 + torch.rand(60, 2, generator=generator, dtype=F64)
    y = truth[index, 0] * torch.exp(truth[index, 1] * t) + 0.01 * torch.randn(480, generator=generator, dtype=F64)

    @mslsq.cost
    def sample(p, t, y):
        return p[0] * torch.exp(p[1] * t) - y

    start = truth + 0.3
    solver = mslsq.LevenbergMarquardt(linear_solver=linear, ftol=1e-15, gtol=1e-10, max_steps=300)
    together = mslsq.solve(mslsq.Problem(sample(p[index], t=t, y=y)), {"p": start}, solver=solver)
    one_by_one = mslsq.least_squares(
        lambda p, t, y: p[0] * torch.exp(p[1] * t) - y,
        start,
        (t.reshape(60, 8), y.reshape(60, 8)),
        in_dims=0,
        solver=solver,
    )
    assert float(together.cost) == pytest.approx(float(one_by_one.cost.sum()), rel=1e-10)
    assert torch.allclose(together.value["p"], one_by_one.value, atol=1e-6)


def test_analytic_jacobians_take_the_place_of_autodiff():
    class Analytic(Between):
        calls = 0

        def jacobians(self, a, b, measured):
            Analytic.calls += 1
            left, right = torch.func.jacfwd(
                lambda d, e: self.residual(a.retract(d), b.retract(e), measured), argnums=(0, 1)
            )(a.storage.new_zeros(3), a.storage.new_zeros(3))
            return left, right

    problem, start = loop_of_poses()
    cost = next(iter(problem))
    pose = cost.references[0].variable
    measured = cost.data_arguments(cost.state_dict())["measured"]
    analytic = mslsq.Problem(Analytic(*cost.references, measured=measured), pose.fixed(0))
    a, b = mslsq.solve(problem, {"pose": start}), mslsq.solve(analytic, {"pose": start})
    assert Analytic.calls > 0
    assert int(a.num_steps) == int(b.num_steps)
    assert torch.allclose(a.value["pose"].storage, b.value["pose"].storage, atol=1e-10)


def test_jacobians_of_a_wrong_shape_name_the_cost_and_the_shape():
    class Turned(Pull):
        def residual(self, x, towards):
            return torch.cat((x - towards, x[:1]))

        def jacobians(self, x, towards):
            return (torch.cat((torch.eye(2, dtype=F64), torch.ones(1, 2, dtype=F64))).T,)

    x = mslsq.Variable("x", mslsq.Euclidean(2), count=2)
    problem = mslsq.Problem(Turned(x, towards=torch.ones(2, 2, dtype=F64)))
    with pytest.raises(ProblemError, match=r"'turned'.*\(2, 3\).*expected.*\(3, 2\)"):
        mslsq.solve(problem, {"x": torch.zeros(2, 2, dtype=F64)})


def test_many_samples_of_one_variable_in_chunks_give_the_same_normal_equations():
    @mslsq.cost
    def sample(p, t, y):
        return p[0] * torch.exp(p[1] * t) - y

    t = torch.linspace(0, 1, 1000, dtype=F64)
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    values = []
    for chunk in (None, 64):
        sample.chunk = chunk
        problem = mslsq.Problem(sample(p, t=t, y=torch.exp(-2 * t) + 0.1 * torch.sin(40 * t)))
        values.append(mslsq.solve(problem, {"p": torch.ones(2, dtype=F64)}).value["p"])
    assert torch.allclose(*values, rtol=1e-9)


# ---- data --------------------------------------------------------------------------------------------


def test_data_weight_and_loss_scale_can_be_replaced():
    problem, start = loop_of_poses(weight=mslsq.Diagonal(torch.ones(3, dtype=F64)), loss=mslsq.Huber(1.0))
    other, _ = loop_of_poses(
        seed=1, weight=mslsq.Diagonal(torch.tensor([1.0, 2.0, 3.0], dtype=F64)), loss=mslsq.Huber(0.02)
    )
    measured = next(iter(other)).data_arguments(dict(next(iter(other)).named_buffers()))["measured"]
    replaced = mslsq.solve(
        problem,
        {"pose": start},
        {
            "between": {
                "measured": measured,
                "weight": torch.tensor([1.0, 2.0, 3.0], dtype=F64),
                "loss.scale": torch.tensor(0.02, dtype=F64),
            }
        },
    )
    expected = mslsq.solve(other, {"pose": start})
    unchanged = mslsq.solve(problem, {"pose": start})
    assert torch.allclose(replaced.value["pose"].storage, expected.value["pose"].storage, atol=1e-9)
    assert not torch.allclose(replaced.value["pose"].storage, unchanged.value["pose"].storage, atol=1e-3)


def test_a_shared_weight_may_become_one_per_block_and_the_loss_scale_too():
    x = mslsq.Variable("x", mslsq.Euclidean(1))
    towards = torch.tensor([[0.0], [1.0], [5.0]], dtype=F64)
    problem = mslsq.Problem(Pull(x, towards=towards, weight=mslsq.Scale(torch.ones((), dtype=F64))))
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    solution = mslsq.solve(problem, {"x": torch.zeros(1, dtype=F64)}, {"pull": {"weight": weight}})
    assert torch.allclose(solution.value["x"], (weight**2 * towards[:, 0]).sum() / (weight**2).sum())
    weights = torch.stack((weight, weight.flip(0)))
    batch = mslsq.solve(
        problem,
        {"x": torch.zeros(1, dtype=F64)},
        {"pull": {"weight": weights}},
        in_dims=(None, {"pull": {"weight": 0}}),
    )
    assert torch.allclose(batch.value["x"][:, 0], (weights**2 * towards[:, 0]).sum(1) / (weights**2).sum(1))


def test_a_loss_acts_on_the_squared_norm_of_each_block():
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    towards = torch.randn(9, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    towards[4] += 30
    loss = mslsq.Cauchy(0.8)
    problem = mslsq.Problem(Pull(x, towards=towards, loss=loss))
    solution = mslsq.solve(problem, {"x": torch.zeros(2, dtype=F64)})

    def cost(x):
        return 0.5 * loss.rho((x - towards).square().sum(-1)).sum()

    assert float(solution.cost) == pytest.approx(float(cost(solution.value["x"])), rel=1e-12)
    assert torch.func.grad(cost)(solution.value["x"]).abs().max() < 1e-5  # ftol: 1e-12 of the cost is left


def test_parameters_of_a_module_among_the_data_are_replaced_by_their_names():
    net = nn.Linear(2, 2).to(F64)
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)

    @mslsq.cost
    def through(x, net, target):
        return net(x) - target

    target = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    problem = mslsq.Problem(through(x, net=net, target=target))
    assert {name for name, _ in problem.named_parameters()} == {"costs.0.net.weight", "costs.0.net.bias"}
    start = {"x": torch.zeros(3, 2, dtype=F64)}
    identity = {"net.weight": torch.eye(2, dtype=F64), "net.bias": torch.zeros(2, dtype=F64)}
    assert torch.allclose(mslsq.solve(problem, start, {"through": identity}).value["x"], target, atol=1e-7)
    own = mslsq.solve(problem, start).value["x"]
    assert torch.allclose(net(own), target, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "data", "words"),
    [
        ({"pos": None}, {}, ["variable 'pos'", "Did you mean 'pose'"]),
        ({}, {}, ["no start for variable 'pose'"]),
        (None, {}, ["dict by variable name", "'pose'"]),
        ("start", {"betwen": {}}, ["cost 'betwen'", "Did you mean 'between'"]),
        ("start", {"between": {"mesured": 1}}, ["'between'", "'mesured'", "Did you mean 'measured'"]),
        ("start", {"between": {"weights": torch.ones(3)}}, ["'weights'", "measured"]),
        ("start", {"between": None}, ["data['between'] must be a dict"]),
        ("start", {"between": {"measured": 3.0}}, ["'measured'", "tensor", "float"]),
        ("start", {"between": {"measured": torch.ones(5, 4, dtype=F64)}}, ["'measured'", "(5, 4)", "(6,", "in_dims"]),
        (torch.ones(5, 4, dtype=F64), {}, ["'pose'", "(5, 4)", "(6, 4)", "in_dims"]),
        (torch.ones(6, 4), {}, ["float32", "float64", "between"]),
        (torch.ones(6, 4, dtype=torch.int64), {}, ["'pose'", "int64"]),
        (torch.ones(6, 4, device="meta", dtype=F64), {}, ["'pose'", "meta", "no numbers"]),
        (mslsq.SE3.exp(torch.zeros(6, 6, dtype=F64)), {}, ["'pose'", "SE3", "SE2"]),
        ([1.0, 2.0], {}, ["'pose'", "list"]),
    ],
)
def test_a_wrong_start_or_datum_is_an_error_that_says_what_and_where(values, data, words):
    problem, start = loop_of_poses()
    if isinstance(values, str):
        values = {"pose": start}
    elif values is not None and not isinstance(values, dict):
        values = {"pose": values}
    with pytest.raises(ProblemError) as caught:
        mslsq.solve(problem, values, data)
    for word in words:
        assert word in str(caught.value)


def test_an_element_of_another_group_is_not_taken_for_its_storage():
    """SE2 and SO3 have the same number of storage entries."""
    problem, start = loop_of_poses()
    storage = next(iter(problem)).state_dict()["measured"]
    assert mslsq.SO3.storage_dim == mslsq.SE2.storage_dim
    rotations = mslsq.SO3(torch.nn.functional.normalize(storage, dim=-1))
    with pytest.raises(ProblemError, match=r"SO3.*SE2"):
        mslsq.solve(problem, {"pose": start}, {"between": {"measured": rotations}})


def test_starts_on_different_devices_are_an_error():
    a, b = mslsq.Variable("a", mslsq.Euclidean(1)), mslsq.Variable("b", mslsq.Euclidean(1))
    problem = mslsq.Problem(mslsq.cost(lambda a, b: a - b)(a, b, name="same"))
    with pytest.raises(ProblemError, match="'b': the start is on the device meta"):
        mslsq.solve(problem, {"a": torch.ones(1, dtype=F64), "b": torch.ones(1, dtype=F64, device="meta")})


def test_solve_takes_a_problem_and_says_so():
    with pytest.raises(TypeError, match="least_squares"):
        mslsq.solve(lambda x: x, {})  # type: ignore[arg-type]


# ---- state -------------------------------------------------------------------------------------------


def test_a_copy_and_a_pickle_solve_alike():
    problem, start = loop_of_poses()
    expected = mslsq.solve(problem, {"pose": start}).value["pose"].storage
    for other in (copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert torch.equal(mslsq.solve(other, {"pose": start}).value["pose"].storage, expected)


def test_a_second_solve_starts_from_its_own_start():
    problem, start = loop_of_poses()
    first, second = mslsq.solve(problem, {"pose": start}), mslsq.solve(problem, {"pose": start})
    assert int(second.num_steps) == int(first.num_steps) > 0
    assert torch.equal(first.value["pose"].storage, second.value["pose"].storage)


# ---- the loop's report -------------------------------------------------------------------------------

T = torch.linspace(0, 1, 20, dtype=F64)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)


def fit(solver, y=None, start=START):
    if y is None:
        y = 2.0 * torch.exp(-1.5 * T) + 0.3 + 0.01 * torch.cos(40 * T)
    in_dims = (None, 0) if y.ndim > 1 else None

    def residual(p, y):
        return p[0] * torch.exp(p[1] * T) + p[2] - y

    return mslsq.least_squares(residual, start, (y,), in_dims=in_dims, solver=solver)


SOLVERS = [mslsq.LevenbergMarquardt, mslsq.Dogleg, mslsq.GaussNewton]


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_start_at_the_minimum_converges_at_once(solver):
    y = 2.0 * torch.exp(-1.5 * T) + 0.3
    solution = fit(solver(), y, torch.tensor([2.0, -1.5, 0.3], dtype=F64))
    assert Status(int(solution.status)) is Status.GRADIENT_TOLERANCE
    assert int(solution.num_steps) == 0 and int(solution.num_evaluations) == 1


@pytest.mark.parametrize("solver", SOLVERS)
def test_max_steps_is_reported_and_kept(solver):
    solution = fit(solver(max_steps=2))
    assert Status(int(solution.status)) is Status.MAX_STEPS
    assert int(solution.num_steps) == 2 and not bool(solution.converged)
    assert "max_steps" in solution.message()
    at_start = fit(solver(max_steps=0))
    assert torch.equal(at_start.value, START) and int(at_start.num_steps) == 0
    assert at_start.history.cost.shape == (1,)


@pytest.mark.parametrize("solver", SOLVERS)
def test_tolerances_of_zero_are_never_met(solver):
    solution = fit(solver(ftol=0, gtol=0, xtol=0, max_steps=60))
    assert Status(int(solution.status)) in (Status.STALLED, Status.MAX_STEPS)
    assert float(solution.gradient_norm) < 1e-9  # and the point is the minimum all the same


def test_a_step_tolerance_of_zero_is_not_met_by_small_variables_either():
    """x of norm 0.3: a threshold of −1 · (−1 + |x|), meant as never, is 0.7."""
    kowalik_osborne = mslsq.datasets.classic.PROBLEMS["kowalik_osborne"]
    solver = mslsq.LevenbergMarquardt(gtol=0, xtol=0)
    solution = mslsq.least_squares(kowalik_osborne.residual, kowalik_osborne.start, solver=solver)
    assert Status(int(solution.status)) in (Status.COST_TOLERANCE, Status.STALLED)
    assert 2 * float(solution.cost) == pytest.approx(kowalik_osborne.minima[0], rel=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_each_tolerance_alone_gives_its_own_status(solver):
    only = {"ftol": 0, "gtol": 0, "xtol": 0}
    for name, status in (
        ("ftol", Status.COST_TOLERANCE),
        ("gtol", Status.GRADIENT_TOLERANCE),
        ("xtol", Status.STEP_TOLERANCE),
    ):
        solution = fit(solver(**{**only, name: 1e-6}))
        assert Status(int(solution.status)) is status
    solution = fit(solver(**{**only, "gtol": 1e-6}))
    assert float(solution.gradient_norm) <= 1e-6


@pytest.mark.parametrize("solver", SOLVERS)
def test_evaluations_are_counted_one_at_the_start_and_one_per_step_tried(solver):
    """As MINPACK counts `nfev`; checked against the calls of the residual itself."""
    calls = []

    def counted(p, y):
        calls.append(1)
        return p[0] * torch.exp(p[1] * T) + p[2] - y

    y = 2.0 * torch.exp(-1.5 * T) + 0.3 + 0.01 * torch.cos(40 * T)

    def jac(p, y):
        e = torch.exp(p[1] * T)
        return torch.stack((e, p[0] * T * e, torch.ones_like(T)), -1)

    options = {"solver": solver(trace="never", native="never"), "jac": jac}
    mslsq.least_squares(counted, START, (y,), **options)
    calls.clear()
    solution = mslsq.least_squares(counted, START, (y,), **options)
    assert int(solution.num_evaluations) == len(calls) == int(solution.num_steps) + 1


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_history_tells_the_solve(solver):
    y = torch.stack([k * torch.exp(-k * T) + 0.1 * torch.cos(40 * T) for k in (0.5, 2.0, 6.0)])
    solution = fit(solver(max_steps=40), y)
    history = solution.history
    for figure in (history.cost, history.gradient_norm, history.step_norm, history.damping, history.accepted):
        assert figure.shape == (3, 41)
    for k in range(3):
        steps = int(solution.num_steps[k])
        used, rest = history.cost[k, : steps + 1], history.cost[k, steps + 1 :]
        assert bool(used.isfinite().all()) and bool(rest.isnan().all())
        assert not bool(history.accepted[k, steps + 1 :].any())
        decrease, accepted = -used.diff(), history.accepted[k, 1 : steps + 1]
        assert bool((decrease[accepted] >= -1e-13 * used[0]).all())  # accepted below the rounding of the cost: equal
        assert bool((decrease[~accepted] == 0).all())
        assert float(used[-1]) == float(solution.cost[k])
        assert float(history.gradient_norm[k, steps]) == float(solution.gradient_norm[k])
    first = 0.5 * (START[0] * torch.exp(START[1] * T) + START[2] - y[0]).square().sum()
    assert float(history.cost[0, 0]) == pytest.approx(float(first), rel=1e-12)


def test_a_callback_sees_every_step_and_may_stop():
    seen = []
    whole = fit(mslsq.LevenbergMarquardt(callback=seen.append))
    assert [info.step for info in seen] == list(range(int(whole.num_steps) + 1))
    assert float(seen[-1].cost) == float(whole.cost)
    stopped = fit(mslsq.LevenbergMarquardt(callback=lambda info: info.step == 2))
    assert int(stopped.num_steps) == 2 and Status(int(stopped.status)) is Status.MAX_STEPS


def test_verbose_prints_a_line_per_step_and_the_reason(capsys):
    solution = fit(mslsq.LevenbergMarquardt(verbose=True, native="never"))
    lines = capsys.readouterr().out.splitlines()
    assert "LevenbergMarquardt, Cholesky of 3 unknowns" in lines[0]
    assert len(lines) == 2 + int(solution.num_steps) + 1 + 1
    assert f"{float(solution.cost):.8e}" in lines[-2]
    assert solution.message() in lines[-1]


def test_quiet_is_quiet(capsys):
    fit(mslsq.LevenbergMarquardt())
    assert capsys.readouterr() == ("", "")


class Syncs(TorchDispatchMode):
    """Counts what asks the device for a value: `.item()`, `bool()`, `nonzero`, boolean masks."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        masks = name == "aten::index" and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal") or masks:
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("solver", "trace"),
    [*((solver, "never") for solver in SOLVERS), (mslsq.LevenbergMarquardt, "always")],
)
def test_without_early_stopping_the_values_are_the_same_and_no_step_asks_the_device(solver, trace):
    y = torch.stack([k * torch.exp(-k * T) + 0.1 * torch.cos(40 * T) for k in (0.5, 2.0, 6.0)])
    early = fit(solver(max_steps=30, trace=trace, native="never"), y)
    blind = fit(solver(max_steps=30, trace=trace, early_stop=False, native="never"), y)
    assert torch.equal(early.value, blind.value)
    assert torch.equal(early.status, blind.status)
    assert torch.equal(early.num_steps, blind.num_steps)
    assert torch.equal(early.cost, blind.cost)

    def syncs(**options):
        fit(solver(trace=trace, **options), y)  # recorded, planned
        with Syncs() as mode:
            fit(solver(trace=trace, **options), y)
        return mode.count

    assert syncs(max_steps=30, early_stop=False) == 0
    # Early stopping asks once per step; a recorded graph is compared with the function at the start and the solution.
    steps = int(early.num_steps.max())
    assert steps <= syncs(max_steps=30) <= steps + 3


# ---- singular problems -------------------------------------------------------------------------------


def test_a_singular_problem_says_so_under_gauss_newton_and_is_damped_by_the_others():
    line = mslsq.cost(lambda x: (x[0] + x[1] - 1)[None])
    problem = mslsq.Problem(line(mslsq.Variable("x", mslsq.Euclidean(2)), name="line"))
    start = {"x": torch.tensor([3.0, 1.0], dtype=F64)}
    bare = mslsq.solve(problem, start, solver=mslsq.GaussNewton())
    assert Status(int(bare.status)) is Status.SINGULAR and not bool(bare.converged)
    assert "Prior" in bare.message()
    assert torch.equal(bare.value["x"], start["x"])
    for solver in (mslsq.LevenbergMarquardt(), mslsq.Dogleg()):
        solution = mslsq.solve(problem, start, solver=solver)
        assert bool(solution.converged)
        assert float(solution.value["x"].sum()) == pytest.approx(1, abs=1e-6)
        assert float((solution.value["x"] - start["x"]).norm()) < 3  # the nearest solution is at 2.12


def test_blocks_that_no_cost_mentions_stay_put():
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=5)
    problem = mslsq.Problem(Pull(x[[0, 3]], towards=torch.ones(2, 2, dtype=F64)))
    start = torch.arange(10.0, dtype=F64).reshape(5, 2)
    solution = mslsq.solve(problem, {"x": start})
    assert bool(solution.converged)
    assert torch.equal(solution.value["x"][[1, 2, 4]], start[[1, 2, 4]])
    assert torch.allclose(solution.value["x"][[0, 3]], torch.ones(2, 2, dtype=F64))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"max_steps": -1}, "max_steps"),
        ({"max_steps": 1.5}, "max_steps"),
        ({"ftol": -1e-3}, "ftol"),
        ({"xtol": "small"}, "xtol"),
        ({"gtol": float("nan")}, "gtol"),
        ({"trace": "yes"}, "trace"),
        ({"linear_solver": "cholesky"}, "linear.Cholesky"),
        ({"linear_solver": mslsq.linear.QR}, "linear.QR"),
    ],
)
def test_a_senseless_option_is_an_error(option, words):
    with pytest.raises(ValueError, match=words):
        mslsq.LevenbergMarquardt(**option)


def test_a_misspelt_option_is_an_error():
    with pytest.raises(TypeError, match="max_step"):
        mslsq.LevenbergMarquardt(max_step=3)  # type: ignore[call-arg]


def test_a_large_problem_pays_no_jacobian_for_a_rejection_after_a_rejection():
    """40 chained scalars, dense or by blocks: the same steps; by blocks a run of rejections costs one Jacobian."""
    counted = []

    class Steep(mslsq.CostFunction):
        def residual(self, a, b):
            return torch.cat((torch.exp(3 * a) - 2, b - a))

        def jacobians(self, a, b):
            counted.append(1)
            one, zero = torch.ones_like(a), torch.zeros_like(a)
            return torch.stack((3 * torch.exp(3 * a), -one)), torch.stack((zero, one))

    x = mslsq.Variable("x", mslsq.Euclidean(1), 40)
    problem = mslsq.Problem(Steep(x[torch.arange(39)], x[torch.arange(1, 40)]))
    start = {"x": torch.full((40, 1), -2.0, dtype=torch.float64)}

    def solve(linear):
        counted.clear()
        solver = mslsq.LevenbergMarquardt(
            linear_solver=linear, initial_damping=1e-8, max_steps=60, trace="never", native="never"
        )
        solution = mslsq.solve(problem, start, solver=solver, adjoint=mslsq.Detached())
        return solution, len(counted)

    solve(mslsq.linear.Cholesky())  # the comparison with plain reverse mode is made once, and takes a Jacobian
    dense, of_dense = solve(mslsq.linear.Cholesky())
    sparse, of_sparse = solve(mslsq.linear.SparseCholesky())
    assert bool(sparse.converged)
    steps = int(dense.num_steps)
    assert torch.equal(sparse.history.accepted[: steps + 1], dense.history.accepted[: steps + 1])
    torch.testing.assert_close(sparse.cost, dense.cost, rtol=1e-10, atol=1e-25)
    accepted = dense.history.accepted[1 : steps + 1]
    saved = int((~accepted[1:] & ~accepted[:-1]).sum())
    assert saved >= 3
    assert of_sparse == of_dense - saved
