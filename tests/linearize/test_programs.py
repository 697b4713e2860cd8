"""Blocks linearized by native programs: the numbers and steps of PyTorch, and PyTorch itself where there is none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.datasets import nist, read_bal, read_g2o
from mslsq.linearize import assembly, programs, prospects
from mslsq.linearize.programs import Draft, Prospect
from mslsq.native import derivative
from mslsq.solvers import planning, whole_solves
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER


class Attempt(Draft):
    """A draft whose program can be looked at."""

    made: Any = None

    def program(self, *args: Any) -> Any:
        self.made = super().program(*args)
        return self.made


@pytest.fixture(autouse=True)
def blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small dense solves would be programs as a whole."""
    for module in (planning, whole_solves):
        monkeypatch.setattr(module, "is_small_and_dense", lambda *_: False)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Attempt]:
    """What became of every program that is asked for; programs are made at once."""
    made: list[Attempt] = []

    def noted(*args: Any) -> Attempt:
        made.append(Attempt(*args))
        return made[-1]

    monkeypatch.setenv("MSLSQ_NATIVE", "wait")
    monkeypatch.setattr(prospects, "Draft", noted)
    monkeypatch.setattr(planning, "prospect_of", lambda *_: Prospect())  # nothing is known of other tests' terms
    return made


class OwnBetween(mslsq.CostFunction):
    """The residual of `mslsq.Between`, without its Jacobians."""

    def residual(self, a: Any, b: Any, measured: Any) -> Tensor:
        return measured.between(a.between(b)).log()


class OwnDifference(mslsq.CostFunction):
    """How far a measured element is from one after the other, on any manifold."""

    def residual(self, a: Any, b: Any, measured: Any) -> Tensor:
        return a.local(b) - a.local(measured)


class Positive(mslsq.Manifold):
    """Numbers above zero, moved by factors."""

    storage_dim = tangent_dim = 1

    def retract(self, delta: Tensor) -> "Positive":
        raise NotImplementedError  # each test has its own

    def local(self, other: Any) -> Tensor:
        return (other.storage / self.storage).log()

    @classmethod
    def identity(cls, *batch_shape: int, dtype: Any = None, device: Any = None) -> "Positive":
        return cls(torch.ones(*batch_shape, 1, dtype=dtype, device=device))


class OwnReprojection(mslsq.CostFunction):
    """The residual of `mslsq.SnavelyReprojection` as its paper has it."""

    def residual(self, camera: Tensor, point: Tensor, pixel: Tensor) -> Tensor:
        w, t, f, k1, k2 = camera[:3], camera[3:6], camera[6], camera[7], camera[8]
        squared = w @ w
        small = squared < 1e-16
        angle = torch.where(small, 1.0, squared).sqrt()
        along = torch.linalg.cross(w, point)
        sine = torch.where(small, 1.0, torch.sin(angle) / angle)
        cosine = torch.where(small, 0.5, (1 - torch.cos(angle)) / (angle * angle))
        seen = point + sine * along + cosine * torch.linalg.cross(w, along) + t
        p = -seen[:2] / seen[2]
        n = p @ p
        return f * (1 + k1 * n + k2 * n * n) * p - pixel


def pose_graph(graph: Any, cost: type) -> tuple[mslsq.Problem, dict[str, Any]]:
    pose = mslsq.Variable("pose", type(graph.poses), count=len(graph.ids))
    weight = mslsq.SqrtInformation.from_information(graph.information)
    between = cost(pose[graph.first], pose[graph.second], measured=graph.measured, weight=weight, name="between")
    return mslsq.Problem(between, pose.fixed([0])), {"pose": graph.poses}


def natively_and_not(solve: Callable[[], mslsq.Solution], monkeypatch: Any) -> tuple[mslsq.Solution, mslsq.Solution]:
    monkeypatch.setenv("MSLSQ_NATIVE", "never")
    plain = solve()
    monkeypatch.setenv("MSLSQ_NATIVE", "wait")
    return solve(), plain


def assert_same_steps(native: mslsq.Solution, plain: mslsq.Solution, rtol: float = 1e-7) -> None:
    """Costs of a path differ by more than those of a point: steps of thousands of unknowns are conditioned badly."""
    assert torch.equal(native.status, plain.status) and torch.equal(native.num_steps, plain.num_steps)
    torch.testing.assert_close(native.history.cost, plain.history.cost, rtol=rtol, atol=0, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["sphere2500", "input_M3500_g2o", "parking-garage", "intel"])
def test_a_pose_graph_of_ones_own_residual_takes_the_steps_of_pytorch(name, shared_data, attempts, monkeypatch):
    graph = read_g2o(shared_data / "g2o" / f"{name}.g2o.gz")

    def solve() -> mslsq.Solution:
        problem, start = pose_graph(graph, OwnBetween)
        return mslsq.solve(problem, start, solver=mslsq.GaussNewton(max_steps=5))

    native, plain = natively_and_not(solve, monkeypatch)
    assert attempts and all(attempt.made is not None for attempt in attempts)
    assert_same_steps(native, plain)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cost", [OwnReprojection, mslsq.SnavelyReprojection])
def test_a_bundle_adjustment_takes_the_steps_of_pytorch(cost, shared_data, attempts, monkeypatch):
    scene = read_bal(shared_data / "bal" / "problem-49-7776-pre.txt.bz2")
    camera = mslsq.Variable("camera", mslsq.Euclidean(9), count=len(scene.cameras))
    point = mslsq.Variable("point", mslsq.Euclidean(3), count=len(scene.points))

    def solve() -> mslsq.Solution:
        problem = mslsq.Problem(cost(camera[scene.camera], point[scene.point], pixel=scene.pixels))
        start = {"camera": scene.cameras, "point": scene.points}
        return mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(max_steps=5))

    native, plain = natively_and_not(solve, monkeypatch)
    assert attempts[0].made is not None
    assert_same_steps(native, plain)


@pytest.mark.parametrize("name", ["Misra1a", "Thurber", "MGH17"])
def test_regressions_end_where_they_end_by_pytorch(name, shared_data, attempts, monkeypatch):
    data = nist.read(shared_data / "nist" / f"{name}.dat")
    native, plain = natively_and_not(lambda: mslsq.least_squares(data.residual, data.starts[1]), monkeypatch)
    assert attempts[0].made is not None, attempts[0].why_not
    assert data.digits(native.value) >= 4
    torch.testing.assert_close(native.cost, plain.cost, rtol=1e-9, atol=0)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("manifold", [mslsq.SO2, mslsq.SE2, mslsq.SO3, mslsq.SE3, mslsq.Sim2, mslsq.Sim3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_jacobians_on_manifolds_are_those_of_forward_mode(manifold, dtype, attempts):
    torch.manual_seed(0)
    pose = mslsq.Variable("pose", manifold, count=12)
    i = torch.arange(11)
    start = manifold.random(12, dtype=dtype)
    cost = OwnBetween(pose[i], pose[i + 1], measured=manifold.random(11, dtype=dtype), name="between")
    mslsq.solve(mslsq.Problem(cost), {"pose": start}, solver=mslsq.GaussNewton(max_steps=1))
    assert attempts[0].made is not None, attempts[0].why_not  # it has been compared with forward mode


def ring(manifold: type) -> tuple[mslsq.Problem, dict[str, Any]]:
    """Each element measured from the next."""
    generator = torch.Generator().manual_seed(2)
    x, i = mslsq.Variable("x", manifold, count=12), torch.arange(12)
    measured = manifold.random(12, generator=generator, dtype=F64)
    cost = OwnDifference(x[i], x[(i + 1) % 12], measured=measured, name="difference")
    return mslsq.Problem(cost), {"x": manifold.random(12, generator=generator, dtype=F64)}


def test_a_manifold_of_ones_own_may_change_under_its_name(attempts, monkeypatch):
    """How its elements move is recorded again for every program; the program is compared with forward mode."""
    solver = mslsq.GaussNewton(max_steps=1)
    for factor in (1.0, 3.0):
        moved = lambda self, delta, factor=factor: Positive(self.storage * (factor * delta).exp())  # noqa: E731
        monkeypatch.setattr(Positive, "retract", moved)
        problem, start = ring(Positive)
        mslsq.solve(problem, start, solver=solver)
        assert attempts[-1].made is not None, attempts[-1].why_not
    assert len(attempts) == 2


def test_a_program_leaves_the_users_random_numbers_alone(attempts):
    programs.kept_moves.cache_clear()
    problem, start = ring(mslsq.SO2)
    before = torch.get_rng_state()
    mslsq.solve(problem, start, solver=mslsq.GaussNewton(max_steps=1))
    assert attempts[0].made is not None, attempts[0].why_not
    assert torch.equal(torch.get_rng_state(), before)


def graphs_of_a_batch(problems: int) -> tuple[mslsq.Problem, dict[str, Any], dict[str, Any]]:
    """Rings of 40 poses, all measured between in another way."""
    generator = torch.Generator().manual_seed(5)
    pose = mslsq.Variable("pose", mslsq.SE2, count=40)
    i = torch.arange(40)
    measured = mslsq.SE2.random(problems, 40, generator=generator, dtype=F64)
    cost = OwnBetween(pose[i], pose[(i + 1) % 40], measured=measured[0], weight=0.5, name="between")
    start = {"pose": mslsq.SE2.random(40, generator=generator, dtype=F64)}
    return mslsq.Problem(cost, pose.fixed([0])), start, {"between": {"measured": measured}}


@pytest.mark.parametrize("piece", [100, 10**9])
def test_a_batch_of_graphs_and_graphs_in_pieces_take_the_steps_of_pytorch(piece, attempts, monkeypatch):
    problem, start, data = graphs_of_a_batch(3)
    monkeypatch.setattr(assembly, "PIECE", piece)
    for linear_solver in ("auto", mslsq.linear.SparseCholesky()):
        solver = mslsq.LevenbergMarquardt(max_steps=3, linear_solver=linear_solver)

        def batch(solver: Any = solver) -> mslsq.Solution:
            return mslsq.solve(problem, start, data, in_dims=(None, {"between": {"measured": 0}}), solver=solver)

        def single(solver: Any = solver) -> mslsq.Solution:
            return mslsq.solve(problem, start, solver=solver)

        for solve in (batch, single):
            native, plain = natively_and_not(solve, monkeypatch)
            assert_same_steps(native, plain)
    assert len(attempts) == 4 and all(attempt.made is not None for attempt in attempts)


def test_lanes_neither_know_their_place_nor_their_neighbours(attempts):
    """The bits of a problem are the same alone, at any place of a batch, and beside one that is not finite."""
    generator = torch.Generator().manual_seed(1)
    t = torch.linspace(0, 1, 7, dtype=F64)
    y = torch.randn(21, 7, generator=generator, dtype=F64)

    mslsq.least_squares(
        lambda p, y: p[0] * torch.exp(p[1] * t) + torch.sin(p[2] * t) - y,
        torch.ones(3, dtype=F64),
        (y,),
        in_dims=(None, 0),
        solver=mslsq.LevenbergMarquardt(max_steps=1),
    )
    program = attempts[0].made
    assert program is not None, attempts[0].why_not
    # The storage, and the closure's t (shared) and y (a number per lane), in the order of the term's inputs.
    lanes = torch.randn(3, 21, generator=generator, dtype=F64)
    tensors = [lanes] + [y.T.contiguous() if argument.has_lanes else t for argument in program.inputs[1:]]

    def linearized(a: int, b: int, at: list[Tensor] = tensors) -> tuple[Tensor, Tensor]:
        cut = [x[:, a:b] if argument.has_lanes else x for x, argument in zip(at, program.inputs, strict=True)]
        return program.linearizations(cut, [False] * len(cut), 1, b - a)

    whole = linearized(0, 21)
    for a, b in ((0, 1), (3, 4), (0, 8), (1, 10), (5, 21), (2, 18), (19, 21)):
        for part, all_of_it in zip(linearized(a, b), whole, strict=True):
            assert torch.equal(part, all_of_it[..., a:b])
    beside = [x.clone() for x in tensors]
    beside[0][:, 4] = torch.nan
    for part, all_of_it in zip(linearized(0, 21, beside), whole, strict=True):
        assert torch.equal(part[..., 5:], all_of_it[..., 5:]) and torch.equal(part[..., :4], all_of_it[..., :4])


def test_threads_change_no_bit(attempts):
    t = torch.linspace(0, 1, 5, dtype=F64)
    y = torch.randn(9001, 5, generator=torch.Generator().manual_seed(1), dtype=F64)
    costs = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            solver = mslsq.LevenbergMarquardt(max_steps=0)
            start = torch.ones(2, dtype=F64)
            costs.append(
                mslsq.least_squares(
                    lambda p, y: p[0] * torch.exp(p[1] * t) - y, start, (y,), in_dims=(None, 0), solver=solver
                ).cost
            )
        finally:
            torch.set_num_threads(1)
    assert attempts[0].made is not None
    assert torch.equal(*costs)


def test_an_image_is_looked_up_between_its_pixels(attempts, monkeypatch):
    """Indices that depend on values: the derivative passes through the weights of the interpolation."""
    generator = torch.Generator().manual_seed(2)
    rough = torch.rand(1, 1, 9, 9, generator=generator, dtype=F64)
    image = torch.nn.functional.interpolate(rough, size=(80, 90), mode="bicubic", align_corners=True)[0, 0]
    places = torch.rand(300, 2, generator=generator, dtype=F64) * 40 + 20

    class Seen(mslsq.CostFunction):
        def residual(self, shift: Tensor, place: Tensor, value: Tensor, image: Tensor) -> Tensor:
            x = place + shift
            corner = x.floor()
            i, j = corner.long().unbind()
            a, b = (x - corner).unbind()
            rows = [image[i, j] * (1 - b) + image[i, j + 1] * b, image[i + 1, j] * (1 - b) + image[i + 1, j + 1] * b]
            return (rows[0] * (1 - a) + rows[1] * a - value)[None]

    shift = mslsq.Variable("shift", mslsq.Euclidean(2))
    corner = (places + torch.tensor([1.3, -0.8])).round().long()
    value = image[corner[:, 0], corner[:, 1]]

    def solve() -> mslsq.Solution:
        cost = Seen(shift, place=places, value=value, image=mslsq.Shared(image))
        return mslsq.solve(mslsq.Problem(cost), {"shift": torch.zeros(2, dtype=F64)})

    native, plain = natively_and_not(solve, monkeypatch)
    assert attempts[0].made is not None, attempts[0].why_not
    assert_same_steps(native, plain)
    torch.testing.assert_close(native.value["shift"], plain.value["shift"], rtol=1e-9, atol=1e-9)


def test_a_place_outside_of_an_image_is_not_a_number(attempts):
    """PyTorch raises there; a program must not read other memory."""

    def residual(p: Tensor, table: Tensor) -> Tensor:
        return table[(p * 10).long()] * p

    table = torch.arange(20.0, dtype=F64)
    mslsq.least_squares(residual, torch.tensor([0.5], dtype=F64), (table,), solver=mslsq.GaussNewton(max_steps=0))
    program = attempts[0].made
    assert program is not None, attempts[0].why_not
    places = torch.tensor([[0.5, 1.99, -0.3, 2.0, -2.11, 1e300, torch.nan]], dtype=F64)
    found = program.residuals([places, table], [False, False], 1, 7)[0, 0]
    inside = residual(places[0, :3], table)  # a negative index counts from the end
    torch.testing.assert_close(found[:3], inside)
    assert found[3:].isnan().all()


@pytest.mark.parametrize(
    ("residual", "word"),
    [
        (lambda p: torch.linalg.eigvalsh(torch.diag(p.repeat(2)) + 1)[:3] * p, "eigenvalues of 6 rows"),
        (lambda p: torch.linalg.matrix_exp(torch.diag(p)) @ p - 1, "linalg_matrix_exp"),
        (lambda p: torch.linalg.svdvals(torch.outer(p, p) + torch.eye(3, dtype=F64)) - 1, "singular values"),
        (lambda p: torch.cos(p[0] * torch.linspace(0, 1, 3000, dtype=F64)) * p[1] - p[2], "operations"),
    ],
)
def test_what_has_no_form_in_scalars_is_solved_by_pytorch_and_verbose_says_why(residual, word, attempts, capsys):
    start = torch.tensor([0.3, 1.7, -0.4], dtype=F64)
    solver = mslsq.LevenbergMarquardt(max_steps=3, verbose=True)
    solution = mslsq.least_squares(residual, start, solver=solver)
    assert attempts[0].made is None
    said = capsys.readouterr().out
    assert "has no native program" in said and word in said
    assert torch.isfinite(solution.cost)


def test_a_program_that_differs_from_pytorch_is_not_used(attempts, monkeypatch, capsys):
    right = derivative._product
    monkeypatch.setattr(derivative, "_product", lambda a, b: right(a, b) * 1.001)
    start = torch.tensor([0.3, 1.7], dtype=F64)
    solution = mslsq.least_squares(
        lambda p: torch.sin(p * p) - 0.2, start, solver=mslsq.LevenbergMarquardt(verbose=True)
    )
    assert attempts[0].made is None and "differ from those of PyTorch" in capsys.readouterr().out
    assert bool(solution.converged)


def test_a_residual_that_writes_in_place_has_a_program(attempts):
    def residual(p: Tensor) -> Tensor:
        r = torch.zeros(3, dtype=F64)
        r[0] = p[0] ** 2 - 4
        r[1:] += p * 0.5
        return r

    with pytest.warns(UserWarning, match="in place"):
        solution = mslsq.least_squares(residual, torch.tensor([3.0, 1.0], dtype=F64))
    assert attempts[0].made is not None, attempts[0].why_not
    assert bool(solution.converged)


def test_a_program_does_not_outlive_what_its_residual_reads(attempts):
    """A number in an object that no key holds: the witness sees that it has changed."""

    class Opaque:
        __slots__ = ("factor",)

    opaque = Opaque()
    opaque.factor = 1.0

    def residual(p: Tensor) -> Tensor:
        return torch.exp(p) * opaque.factor - 3

    start = torch.tensor([0.5], dtype=F64)
    for factor in (1.0, 2.0, 5.0):
        opaque.factor = factor
        solution = mslsq.least_squares(residual, start)
        torch.testing.assert_close(solution.value, torch.tensor([3 / factor], dtype=F64).log())


@pytest.mark.parametrize("adjoint", [mslsq.Implicit(), mslsq.Unrolled(), mslsq.Truncated()])
def test_derivatives_of_a_solution_do_not_change(adjoint, attempts, monkeypatch):
    t = torch.linspace(0, 1, 6, dtype=F64)

    def solve() -> mslsq.Solution:
        y = (2 * torch.exp(-t)).requires_grad_()
        for trace in ("always", "always", "never"):
            solver = mslsq.LevenbergMarquardt(trace=trace)
            solution = mslsq.least_squares(
                lambda p, y: p[0] * torch.exp(p[1] * t) - y,
                torch.tensor([1.0, 0.0], dtype=F64), (y,), solver=solver, adjoint=adjoint,
            )  # fmt: skip
            found.append(torch.autograd.grad(solution.value.sum() + solution.cost, y)[0])
        return solution

    found: list[Tensor] = []
    natively_and_not(solve, monkeypatch)
    for gradient in found[1:]:
        torch.testing.assert_close(gradient, found[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("trace", ["always", "never"])
def test_a_program_serves_recorded_and_eager_steps(trace, attempts, monkeypatch):
    points = {"always": 5, "never": 6}[trace]  # a plan of its own for each
    y = torch.linspace(0, 1, 8 * points, dtype=F64).reshape(8, points)
    t = torch.linspace(0, 1, points, dtype=F64)

    def model(p: Tensor, y: Tensor) -> Tensor:
        return p[0] * torch.exp(p[1] * t) - y

    def solve() -> mslsq.Solution:
        solver = mslsq.LevenbergMarquardt(trace=trace)
        return mslsq.least_squares(model, torch.zeros(2, dtype=F64), (y,), in_dims=(None, 0), solver=solver)

    native, plain = natively_and_not(solve, monkeypatch)
    assert [attempt.made is not None for attempt in attempts] == [True]
    torch.testing.assert_close(native.value, plain.value, rtol=1e-9, atol=1e-9)


def test_an_unknown_wish_is_refused(monkeypatch):
    monkeypatch.setenv("MSLSQ_NATIVE", "sometimes")
    with pytest.raises(ValueError, match="one of 'auto', 'wait', 'never'"):
        mslsq.least_squares(lambda p: p - 1, torch.zeros(1, dtype=F64))


def test_without_a_compiler_pytorch_solves(attempts, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    solver = mslsq.GaussNewton(verbose=True)
    solution = mslsq.least_squares(lambda p: p - 1, torch.zeros(1, dtype=F64), solver=solver)
    assert bool(solution.converged) and "no C++ compiler" in capsys.readouterr().out


def test_given_jacobians_are_recorded_and_not_differentiated(attempts):
    """A wrong Jacobian of the user's stays wrong: it is theirs."""

    class Scaled(mslsq.CostFunction):
        def residual(self, x: Tensor, y: Tensor) -> Tensor:
            return x * 2 - y

        def jacobians(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
            return (torch.eye(2, dtype=F64) * 4,)

    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
    problem = mslsq.Problem(Scaled(x[torch.arange(3)], y=torch.ones(3, 2, dtype=F64)))
    solution = mslsq.solve(problem, {"x": torch.zeros(3, 2, dtype=F64)}, solver=mslsq.GaussNewton(max_steps=1))
    assert attempts[0].made is not None, attempts[0].why_not
    torch.testing.assert_close(solution.value["x"], torch.full((3, 2), 0.25, dtype=F64))


def test_a_problem_that_grows_keeps_its_program_and_begins_with_one_once_that_pays(monkeypatch):
    """With `native="auto"`: no program in the first solves, none more for more blocks, the same answer with it."""
    made = []

    class Noted(Draft):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.wait()
            made.append(self)

    monkeypatch.setenv("MSLSQ_NATIVE", "auto")
    monkeypatch.setattr(prospects, "Draft", Noted)

    class Distance(mslsq.CostFunction):
        def residual(self, a: Tensor, b: Tensor, measured: Tensor) -> Tensor:
            return torch.linalg.vector_norm(b - a, keepdim=True) - measured

    def solve(count: int) -> mslsq.Solution:
        point = mslsq.Variable("point", mslsq.Euclidean(2), count=count)
        i = torch.arange(count - 1)
        start = torch.stack((torch.arange(count), torch.arange(count) % 3), -1).to(F64)
        distance = Distance(point[i], point[i + 1], measured=torch.full((count - 1, 1), 1.3, dtype=F64))
        problem = mslsq.Problem(distance, mslsq.Prior(point, target=start, weight=mslsq.Scale(0.1)))
        return mslsq.solve(problem, {"point": start})

    plain = {count: solve(count) for count in (5, 9, 14)}
    assert not made  # too little time has been spent
    monkeypatch.setattr(prospects, "PROGRAM_SECONDS", 0.0)
    native = {count: solve(count) for count in (5, 9, 14)}
    assert len(made) == 2 and all(not draft.why_not for draft in made)  # one for each cost, whatever its count
    for count, solution in native.items():
        assert_same_steps(solution, plain[count])
