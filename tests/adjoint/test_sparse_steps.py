"""`Unrolled` and `Truncated` through sparse, Schur and conjugate-gradient solves: what the dense path gives, and
differences of the iterates."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import mslsq
from mslsq.adjoint.attachment import Attachment
from mslsq.solution import Status
from tests.differences import fourth_order_differences

F64 = torch.float64
linear = mslsq.linear

DENSE = linear.Cholesky()
TIGHT = linear.ConjugateGradient(forcing="constant", tolerance=1e-13)
"""Its steps are those of a direct solver to rounding."""
SOLVERS = {
    "sparse": linear.SparseCholesky(),
    "superlu": linear.SparseCholesky(backend="superlu"),
    "schur": linear.Schur(eliminate="landmark"),
    "schur by sparse": linear.Schur(eliminate="landmark", reduced="sparse"),
    "cg": TIGHT,
    "cg, iterative derivatives": dataclasses.replace(TIGHT, derivatives="iterative"),
    "cg, schur": dataclasses.replace(TIGHT, preconditioner="schur_jacobi", eliminate="landmark"),
    "cg, matrix-free": dataclasses.replace(TIGHT, matrix_free=True),
}
every_solver = pytest.mark.parametrize("own", SOLVERS.values(), ids=SOLVERS)
FEW = [SOLVERS[name] for name in ("sparse", "schur", "cg, matrix-free")]


@mslsq.cost
def sighting(pose: mslsq.SE2, landmark: Tensor, seen: Tensor) -> Tensor:
    return pose.inverse().act(landmark) - seen


def scene(poses: int = 6, landmarks: int = 5) -> tuple[mslsq.Problem, dict, Tensor]:
    """Poses along a path, landmarks that some of them see, two gross errors, robust losses, the first pose held."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    truth = mslsq.SE2.exp(normal(poses, 3))
    places = 2 * normal(landmarks, 2)
    i, j = torch.arange(poses - 1), torch.arange(1, poses)
    measured = (truth[i].inverse() @ truth[j]).retract(0.1 * normal(poses - 1, 3))
    who = torch.arange(poses).repeat_interleave(3)
    what = (torch.arange(3 * poses) * 2 + who) % landmarks
    seen = truth[who].inverse().act(places[what]) + 0.1 * normal(len(who), 2)
    seen[[1, 7]] += 1.5
    pose, landmark = mslsq.Variable("pose", mslsq.SE2, poses), mslsq.Variable("landmark", mslsq.Euclidean(2), landmarks)
    problem = mslsq.Problem(
        mslsq.Between(pose[i], pose[j], measured=measured, weight=2.0),
        sighting(pose[who], landmark[what], seen=seen, loss=mslsq.Cauchy(0.5)),
        pose.fixed([0]),
    )
    start = {"pose": truth.retract(0.15 * normal(poses, 3)), "landmark": places + 0.2 * normal(landmarks, 2)}
    return problem, start, seen


PROBLEM, START, SEEN = scene()
ALONG = torch.randn(2, *SEEN.shape, generator=torch.Generator().manual_seed(1), dtype=F64)
AT = torch.tensor([0.2, -0.2], dtype=F64)  # near it no block comes to keep, or to lose, the curvature of its loss
POINTS = torch.stack((AT, -0.5 * AT))

LM = mslsq.LevenbergMarquardt(max_steps=4, initial_damping=0.1)
"""Four damped steps: far from converged."""
GN = mslsq.GaussNewton(max_steps=3)


def flat(solution: mslsq.Solution) -> Tensor:
    """All numbers of a solution, one row per problem of a batch, or one vector."""
    pose, landmark = solution.value["pose"].storage, solution.value["landmark"]
    return torch.cat((pose.flatten(-2), landmark.flatten(-2)), -1)


def function(solver, own, adjoint):
    """Two numbers that move the data, the scale of the loss and the start, to five numbers and the cost."""
    solver = dataclasses.replace(solver, linear_solver=own)
    weights = torch.randn(5, 4 * 6 + 2 * 5, generator=torch.Generator().manual_seed(2), dtype=F64)

    def solved(d: Tensor) -> Tensor:
        data = {"sighting": {"seen": SEEN + 0.1 * torch.einsum("k,kij", d, ALONG), "loss.scale": 0.5 * torch.exp(d[1])}}
        start = {"pose": START["pose"], "landmark": START["landmark"] + 0.1 * d[0] * d[1]}
        solution = mslsq.solve(PROBLEM, start, data, solver=solver, adjoint=adjoint)
        return torch.cat(((weights @ flat(solution)), solution.cost[None]))

    return solved


def off(found: Tensor, expected: Tensor) -> float:
    """The largest deviation, relative to the largest entry."""
    return float((found - expected).abs().max() / expected.abs().max())


def along(f):
    return lambda d: jvp(f, (d,), (AT,))[1]


ADJOINTS = {"unrolled": (LM, mslsq.Unrolled()), "truncated": (mslsq.LevenbergMarquardt(), mslsq.Truncated(2))}
TRANSFORMS = {
    "jacrev": lambda f: jacrev(f)(AT),
    "jacfwd": lambda f: jacfwd(f)(AT),
    "vmap_jacrev": lambda f: vmap(jacrev(f))(POINTS),
    "jacfwd_vmap": lambda f: jacfwd(vmap(f))(POINTS),
    "jacrev_jacrev": lambda f: jacrev(jacrev(f))(AT),
    "jacfwd_jacrev": lambda f: jacfwd(jacrev(f))(AT),
    "jacrev_jacfwd": lambda f: jacrev(jacfwd(f))(AT),
    "jacfwd_jacfwd": lambda f: jacfwd(jacfwd(f))(AT),
    "vmap_hessian": lambda f: vmap(hessian(f))(POINTS),
    "third": lambda f: along(along(along(f)))(AT),
}
QUICK = ("jacrev", "jacfwd_jacfwd")


@pytest.fixture(scope="module")
def dense():
    """The same through the dense solver, each once."""
    known: dict[tuple[str, str], Tensor] = {}

    def of(adjoint: str, transform: str) -> Tensor:
        if (adjoint, transform) not in known:
            solver, kind = ADJOINTS[adjoint]
            known[adjoint, transform] = TRANSFORMS[transform](function(solver, DENSE, kind))
        return known[adjoint, transform]

    return of


def cases():
    """All of them; those of two transforms with `Unrolled`, and every transform of the sparse solver, always run."""
    for name, own in SOLVERS.items():
        for adjoint in ADJOINTS:
            for transform in TRANSFORMS:
                quick = adjoint == "unrolled" and (name == "sparse" or transform in QUICK)
                quick = quick or (adjoint == "truncated" and transform == "jacrev")
                marks = [] if quick else [pytest.mark.slow]
                yield pytest.param(own, adjoint, transform, id=f"{name}-{adjoint}-{transform}", marks=marks)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("own", "adjoint", "transform"), cases())
def test_derivatives_are_those_of_the_dense_path(own, adjoint, transform, dense):
    solver, kind = ADJOINTS[adjoint]
    assert off(TRANSFORMS[transform](function(solver, own, kind)), dense(adjoint, transform)) < 1e-9


# ---- against differences of the iterates ----------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "solver",
    [
        GN,
        # Damping and trust region are held constant: where they are constant, there is nothing to hold.
        mslsq.LevenbergMarquardt(max_steps=1, initial_damping=0.5, scaling="identity"),
    ],
    ids=["three undamped steps", "one damped step"],
)
@pytest.mark.parametrize("own", FEW, ids=lambda own: type(own).__name__)
def test_unrolled_is_the_derivative_of_the_iterate(solver, own):
    f = function(solver, own, mslsq.Unrolled())
    assert int(mslsq.solve(PROBLEM, START, solver=solver).status) == Status.MAX_STEPS
    # What differences resolve: 1e-11 measured, conjugate gradients stop at 1e-13 with another number of iterations.
    tolerance = 1e-8
    assert off(jacrev(f)(AT), fourth_order_differences(f, AT, 3e-4)) < tolerance
    assert (
        off(jacfwd(jacrev(f))(AT), fourth_order_differences(jacrev(f), AT, 3e-4)) < 3 * tolerance
    )  # differences of differences


@pytest.mark.sampled(4)
@every_solver
def test_steps_taken_again_end_where_the_solver_did(own, monkeypatch):
    """Also those of a solver that stops iterating early: each is what it found, not what it was looking for."""
    own = own if not isinstance(own, linear.ConjugateGradient) else dataclasses.replace(own, tolerance=0.1)
    ends = {}
    with_value = Attachment.with_value

    def noted(self, found, fill):
        ends["again"], ends["solver"] = found.values, self.answer.values
        return with_value(self, found, fill)

    monkeypatch.setattr(Attachment, "with_value", noted)
    for forcing in ("constant", "adaptive"):
        if isinstance(own, linear.ConjugateGradient):
            own = dataclasses.replace(own, forcing=forcing)
        seen = SEEN.clone().requires_grad_()
        solver = mslsq.LevenbergMarquardt(max_steps=6, initial_damping=0.1, linear_solver=own)
        mslsq.solve(PROBLEM, START, {"sighting": {"seen": seen}}, solver=solver, adjoint=mslsq.Unrolled())
        for again, found in zip(ends["again"], ends["solver"], strict=True):
            assert torch.allclose(again, found, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "own", [linear.ConjugateGradient(), linear.Schur(reduced="iterative"), linear.ConjugateGradient(matrix_free=True)]
)
def test_through_inexact_steps_unrolled_tends_to_the_implicit_derivative(own):
    """What their residuals' own derivatives would add falls with the residuals."""
    solver = mslsq.LevenbergMarquardt()
    found, exact = (
        jacrev(function(solver, own, adjoint))(AT) for adjoint in (mslsq.Unrolled(), mslsq.Implicit(order=1))
    )
    assert off(found, exact) < 1e-4


# ---- dogleg, recording, checkpoints, dtypes -------------------------------------------------------------


@pytest.mark.parametrize("own", FEW, ids=lambda own: type(own).__name__)
def test_a_dogleg_step_bent_by_its_trust_region_is_differentiated_too(own):
    """Its Cauchy point needs ‖Jv‖², whose kernel has no derivative."""
    solver = mslsq.Dogleg(max_steps=3, initial_radius=3.0)
    found, expected = (jacrev(function(solver, one, mslsq.Unrolled()))(AT) for one in (own, DENSE))
    assert off(found, expected) < 1e-9


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("own", "how"), [(FEW[0], "recorded"), *((own, "second order") for own in FEW)], ids=lambda x: str(x)[:20]
)
def test_backward_gives_what_torch_func_gives(own, how):
    f = function(dataclasses.replace(LM, trace="always" if how == "recorded" else "never"), own, mslsq.Unrolled())
    weights = torch.linspace(-1, 1, 6, dtype=F64)
    d = AT.clone().requires_grad_()
    (found,) = torch.autograd.grad(weights @ f(d), d, create_graph=how == "second order")
    expected = grad(lambda d: weights @ f(d))
    if how == "second order":
        (found,) = torch.autograd.grad(found[0], d)
        assert off(found, grad(lambda d: expected(d)[0])(AT)) < 1e-10
    else:
        assert off(found, expected(AT)) < 1e-10


def test_float32_stays_float32():
    problem, start = PROBLEM, {name: x.to(torch.float32) for name, x in START.items()}
    problem = scene()[0].to(torch.float32)
    seen = SEEN.float().requires_grad_()
    solver = dataclasses.replace(LM, linear_solver=linear.SparseCholesky())
    solution = mslsq.solve(problem, start, {"sighting": {"seen": seen}}, solver=solver, adjoint=mslsq.Unrolled())
    flat(solution).sum().backward()
    double = SEEN.clone().requires_grad_()
    flat(
        mslsq.solve(PROBLEM, START, {"sighting": {"seen": double}}, solver=solver, adjoint=mslsq.Unrolled())
    ).sum().backward()
    assert seen.grad.dtype == torch.float32
    assert off(seen.grad.double(), double.grad) < 1e-3


# ---- batches --------------------------------------------------------------------------------------------

GOOD, NAN = 0, 1


@pytest.mark.sampled(5)
@pytest.mark.parametrize("adjoint", [mslsq.Unrolled(), mslsq.Truncated(2)], ids=repr)
@every_solver
def test_a_failed_entry_leaves_the_gradient_of_shared_parameters_alone(own, adjoint):
    seen = torch.stack((SEEN, SEEN * torch.nan))
    steps = 4 if isinstance(adjoint, mslsq.Unrolled) else 100
    solver = mslsq.LevenbergMarquardt(max_steps=steps, initial_damping=0.1, linear_solver=own)
    gradients, own_data = [], []
    for entries in ([GOOD, NAN], [GOOD]):
        scale, data = torch.tensor(0.5, dtype=F64, requires_grad=True), seen[entries].requires_grad_()
        solution = mslsq.solve(
            PROBLEM,
            START,
            {"sighting": {"seen": data, "loss.scale": scale}},
            in_dims=(None, {"sighting": {"seen": 0, "loss.scale": None}}),
            solver=solver,
            adjoint=adjoint,
        )
        torch.nan_to_num(flat(solution)).sum().backward()
        gradients.append(scale.grad)
        own_data.append(data.grad)
    assert bool(torch.isfinite(gradients[0]))
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-9, atol=0)
    assert torch.allclose(own_data[0][GOOD], own_data[1][GOOD], rtol=1e-9, atol=1e-12)
    assert own_data[0][NAN].isnan().all()


# ---- the automatic choice, one big residual, and what it costs ------------------------------------------


def path(count: int) -> tuple[mslsq.Problem, mslsq.SE2, Tensor]:
    """Poses that are measured from the last two before them."""
    generator = torch.Generator().manual_seed(0)
    pose = mslsq.Variable("pose", mslsq.SE2, count=count)
    i = torch.cat((torch.arange(count - 1), torch.arange(count - 2)))
    j = torch.cat((torch.arange(1, count), torch.arange(2, count)))
    noise = torch.randn(count + len(i), 3, generator=generator, dtype=F64)
    truth = mslsq.SE2.exp(torch.linspace(0, 3, count, dtype=F64)[:, None] * torch.tensor([1.0, 0.3, 0.9]))
    measured = (truth[i].inverse() @ truth[j]).retract(0.1 * noise[count:])
    problem = mslsq.Problem(mslsq.Between(pose[i], pose[j], measured=measured, name="between"), pose.fixed([0]))
    return problem, truth.retract(0.1 * noise[:count]), measured.storage


def gradient(graph, adjoint, own, steps=3):
    """Of a number that depends on all poses, in the measurements."""
    problem, start, measured = graph
    measured = measured.clone().requires_grad_()
    solver = mslsq.LevenbergMarquardt(max_steps=steps, linear_solver=own, trace="never")
    data = {"between": {"measured": measured}}
    solution = mslsq.solve(problem, {"pose": start}, data, solver=solver, adjoint=adjoint)
    solution.value["pose"].storage.square().sum().backward()
    return measured.grad


def test_large_problems_are_differentiated_without_asking_for_a_solver():
    graph = path(120)
    found, expected = (gradient(graph, mslsq.Unrolled(), own) for own in ("auto", DENSE))
    assert off(found, expected) < 1e-9


@pytest.mark.parametrize("own", [*FEW[::2], linear.ConjugateGradient()], ids=repr)
def test_checkpointing_gives_the_same_gradient(own):
    found, expected = (gradient(path(20), mslsq.Unrolled(checkpoint=flag), own) for flag in (True, False))
    assert off(found, expected) < 1e-12


def test_one_big_residual_is_differentiated_too():
    """Its normal equations are sparse, entry by entry."""
    data = torch.linspace(1, 2, 400, dtype=F64)

    def residual(x, data):
        return torch.cat((x.square() - data, 0.5 * x.diff() + 0.1 * x[1:] * x[:-1]))

    def total(data, own):
        solver = mslsq.LevenbergMarquardt(max_steps=3, linear_solver=own)
        start = torch.ones(400, dtype=F64)
        return mslsq.least_squares(residual, start, (data,), solver=solver, adjoint=mslsq.Unrolled()).value.sum()

    for transform in (grad, lambda f: lambda x: jvp(grad(f), (x,), (data,))[1]):
        found, expected = (transform(lambda data, own=own: total(data, own))(data) for own in ("auto", DENSE))
        assert off(found, expected) < 1e-9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("own", ["auto", linear.ConjugateGradient(matrix_free=True)], ids=repr)
@pytest.mark.parametrize("adjoint", [mslsq.Unrolled(), mslsq.Truncated(3)], ids=repr)
def test_memory_is_linear_in_the_number_of_blocks(adjoint, own):
    """Numbers kept for the backward pass, of three steps."""
    kept = []
    for count in (120, 240):
        numbers = []

        def count_numbers(tensor: Tensor, numbers: list[int] = numbers) -> Tensor:
            numbers.append(tensor.numel())
            return tensor

        graph, steps = path(count), 3 if isinstance(adjoint, mslsq.Unrolled) else 100
        with torch.autograd.graph.saved_tensors_hooks(count_numbers, lambda tensor: tensor):
            gradient(graph, adjoint, own, steps)
        kept.append(sum(numbers))
    assert kept[1] < 2.2 * kept[0]
