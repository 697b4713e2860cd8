"""Derivatives of a solution by programs of scalars, compiled and run by PyTorch: those of differences of solutions."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.adjoint import judging, looking, pullback
from mslsq.kernels.build import CompilerError, compiler
from mslsq.linearize.programs import Pending, Prospect
from mslsq.linearize.second_order import MixedDraft, SecondOrderDraft
from mslsq.solvers import planning, run, second_order
from mslsq.solvers.task import plan_key

F64 = torch.float64
pytestmark = pytest.mark.kernels
try:
    HAS_COMPILER = bool(compiler())
except CompilerError:
    HAS_COMPILER = False

TIGHT = mslsq.LevenbergMarquardt(max_steps=200, ftol=1e-16, xtol=1e-14, native="wait")
PLAIN = mslsq.LevenbergMarquardt(max_steps=200, ftol=1e-16, xtol=1e-14, native="never", trace="never")


class Made:
    """What became of every program of second derivatives, and the solver that takes them."""

    def __init__(self, solver: mslsq.LevenbergMarquardt) -> None:
        self.solver = solver
        self.drafts: list[Pending[Any]] = []
        self.programs: list[Any] = []

    def is_complete(self) -> bool:
        """Was there every program that was asked for, as the solver wants it?"""
        compiled = self.solver.native == "wait"
        return bool(self.programs) and all(one is not None and one.is_compiled == compiled for one in self.programs)


@pytest.fixture(params=["compiled", "run by PyTorch"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Made:
    compiled = request.param == "compiled"
    if compiled and not HAS_COMPILER:
        pytest.skip("there is no C++ compiler")
    found = Made(TIGHT if compiled else dataclasses.replace(TIGHT, native="never"))
    monkeypatch.setattr(looking, "REPLAY_SECONDS", 0.0)
    monkeypatch.setattr(looking, "REPLAY_LANES", 0)

    def noting(kind: Any) -> Any:
        class Noted(kind):
            def noted(self, program: Any) -> Any:
                found.drafts.append(self)
                found.programs.append(program)
                return program

            def program(self, *args: Any) -> Any:
                return self.noted(super().program(*args))

            def replayed(self, *args: Any) -> Any:
                return self.noted(super().replayed(*args))

        return Noted

    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    monkeypatch.setattr(second_order, "SecondOrderDraft", noting(SecondOrderDraft))
    monkeypatch.setattr(second_order, "MixedDraft", noting(MixedDraft))
    # Those of whole solves have tests of their own (`test_ends`).
    monkeypatch.setattr(judging, "look_of", lambda *_: None)
    monkeypatch.setattr(pullback, "pull_of", lambda *_: None)
    # Nothing is known of other tests' terms and plans.
    monkeypatch.setattr(planning, "prospect_of", lambda *_: Prospect())
    for module in (planning, run):
        monkeypatch.setattr(module, "plan_key", lambda *given: (request.node.nodeid, plan_key(*given)))
    return found


class OwnDifference(mslsq.CostFunction):
    """How far a measured element is from one after the other, on any manifold."""

    def residual(self, a: Any, b: Any, measured: Any) -> Tensor:
        return a.inverse().compose(b).local(measured)


def ring(manifold: type, count: int = 5) -> tuple[Callable[..., mslsq.Problem], dict[str, Any], dict[str, Tensor]]:
    """A ring of elements whose measurements contradict each other, its start, and what it is differentiated in."""
    generator = torch.Generator().manual_seed(2)
    i = torch.arange(count)
    truth = manifold.random(count, generator=generator, dtype=F64)

    def noise(size: float) -> Tensor:
        return size * torch.randn(count, manifold.tangent_dim, generator=generator, dtype=F64)

    measured = (truth.inverse() @ truth[(i + 1) % count]).retract(noise(0.2))
    root = torch.eye(manifold.tangent_dim, dtype=F64)
    root = root + 0.2 * torch.randn(count, *root.shape, generator=generator, dtype=F64)
    inputs = {"measured": measured.storage, "root": root, "scale": torch.tensor(0.7, dtype=F64)}

    def problem(loss: Any = mslsq.Cauchy, **given: Tensor) -> mslsq.Problem:
        given = {**inputs, **given}
        x = mslsq.Variable("x", manifold, count=count)
        cost = OwnDifference(
            x[i],
            x[(i + 1) % count],
            measured=manifold(given["measured"]),
            weight=mslsq.SqrtInformation(given["root"]),
            loss=loss(given["scale"]) if loss else None,
            name="difference",
        )
        return mslsq.Problem(cost, x.fixed([0]))

    return problem, {"x": truth.retract(noise(0.05))}, inputs


def weighted(value: Any) -> Tensor:
    """A number that depends on all of a solution."""
    storage = value if isinstance(value, Tensor) else value.storage
    return (storage * torch.arange(1.0, storage.numel() + 1, dtype=F64).cos().reshape(storage.shape)).sum()


def difference(function: Callable[[Tensor], Tensor], at: Tensor, along: Tensor, h: float = 2e-3) -> Tensor:
    """The derivative by central differences of fourth order."""
    with torch.no_grad():
        pairs = [function(at + k * h * along) - function(at - k * h * along) for k in (1, 2)]
    return (8 * pairs[0] - pairs[1]) / (12 * h)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "manifold",
    [
        mslsq.SO2,
        mslsq.SO3,
        mslsq.SE3,
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in (mslsq.SE2, mslsq.Sim3, mslsq.UnitVector)),
    ],
)
def test_the_gradient_in_measurements_weights_and_scale_equals_differences(manifold, made):
    if manifold is mslsq.UnitVector:
        problem, start, inputs = unit_vectors()
    else:
        problem, start, inputs = ring(manifold)

    def solved(solver: Any, **given: Tensor) -> Tensor:
        solution = mslsq.solve(problem(**given), start, solver=solver)
        assert bool(solution.converged)
        return weighted(solution.value["x"])

    given = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    found = torch.autograd.grad(solved(made.solver, **given), list(given.values()))
    assert made.is_complete(), made.drafts[0].why_not
    assert {type(draft).__mro__[1] for draft in made.drafts} == {SecondOrderDraft, MixedDraft}
    alone = torch.autograd.grad(solved(PLAIN, **given), list(given.values()))
    for (name, tensor), gradient, right in zip(inputs.items(), found, alone, strict=True):
        assert torch.allclose(gradient, right, rtol=1e-6, atol=1e-7), name
        along = torch.arange(1.0, tensor.numel() + 1, dtype=F64).sin().reshape(tensor.shape)
        if name == "measured":
            along = manifold(tensor).retract(1e-6 * along.reshape(len(tensor), -1)[:, : manifold.tangent_dim]).storage
            along = (along - tensor) * 1e6
        expected = difference(lambda x, name=name: solved(PLAIN, **{name: x}), tensor, along)
        # A solution is known to 1e-9 or so, its differences are over 4e-3.
        assert torch.allclose((gradient * along).sum(), expected, rtol=1e-4, atol=1e-5), name


def unit_vectors() -> tuple[Callable[..., mslsq.Problem], dict[str, Any], dict[str, Tensor]]:
    """Directions, each near two measured ones: a manifold that is no group."""
    generator = torch.Generator().manual_seed(3)
    measured = mslsq.UnitVector.random(6, generator=generator, dtype=F64)
    i = torch.arange(6) // 2
    inputs = {"measured": measured.storage, "scale": torch.tensor(0.9, dtype=F64)}

    class Towards(mslsq.CostFunction):
        def residual(self, x: Any, measured: Tensor) -> Tensor:
            return x.storage - 1.5 * measured

    def problem(**given: Tensor) -> mslsq.Problem:
        given = {**inputs, **given}
        x = mslsq.Variable("x", mslsq.UnitVector, count=3)
        return mslsq.Problem(Towards(x[i], measured=given["measured"], loss=mslsq.SoftL1(given["scale"])))

    return problem, {"x": measured[::2]}, inputs


def test_every_layout_of_inputs_gets_the_gradient_of_pytorch(made):
    """Per block, shared, per problem of a batch; many blocks of one variable, and one block per problem."""
    generator = torch.Generator().manual_seed(6)
    t = torch.rand(7, generator=generator, dtype=F64)
    y = torch.exp(t) + 0.4 + 0.1 * torch.randn(4, 7, generator=generator, dtype=F64)
    p = mslsq.Variable("p", mslsq.Euclidean(2))

    class Curve(mslsq.CostFunction):
        def residual(self, p: Tensor, t: Tensor, y: Tensor, slope: Tensor) -> Tensor:
            return (torch.exp(p[0] * t) * slope + p[1] - y)[None]

    start = {"p": torch.zeros(2, dtype=F64)}
    problem = mslsq.Problem(Curve(p, t=t, y=y[0], slope=mslsq.Shared(torch.ones((), dtype=F64)), name="curve"))

    def blocks(solver: Any) -> list[Tensor]:
        own = [x.clone().requires_grad_() for x in (t, y, torch.tensor(1.2, dtype=F64))]
        data = {"curve": {"t": own[0], "y": own[1], "slope": own[2]}}
        in_dims = (None, {"curve": {"t": None, "y": 0, "slope": None}})
        value = mslsq.solve(problem, start, data, in_dims=in_dims, solver=solver).value["p"]
        return list(torch.autograd.grad(weighted(value), own))

    def residual(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return torch.exp(p[0] * t) + p[1] - y

    def fits(solver: Any) -> list[Tensor]:
        own = [x.clone().requires_grad_() for x in (t, y)]
        value = mslsq.least_squares(residual, start["p"], tuple(own), in_dims=(None, None, 0), solver=solver).value
        return list(torch.autograd.grad(weighted(value), own))

    def one_fit(solver: Any) -> list[Tensor]:
        own = [x.clone().requires_grad_() for x in (t, y[0])]
        value = mslsq.least_squares(residual, start["p"], tuple(own), solver=solver, loss=mslsq.Huber(0.5)).value
        return list(torch.autograd.grad(weighted(value), own))

    for gradients in (blocks, fits, one_fit):
        made.programs.clear()
        native = gradients(made.solver)
        assert len(made.programs) >= 2 and made.is_complete()
        for own, expected in zip(native, gradients(PLAIN), strict=True):
            assert torch.allclose(own, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.sampled(1)
def test_a_batch_of_graphs_gets_the_gradient_of_each_alone(made):
    problem, start, inputs = ring(mslsq.SE2)
    built = problem(loss=None)
    scale = torch.tensor([1.0, 1.01, 0.98], dtype=F64)
    measured = (inputs["measured"] * scale[:, None, None]).requires_grad_()
    in_dims = (None, {"difference": {"measured": 0}})

    def solved(measured: Tensor, in_dims: Any = None) -> Tensor:
        data = {"difference": {"measured": measured}}
        return mslsq.solve(built, start, data, in_dims=in_dims, solver=made.solver).value["x"].storage

    (together,) = torch.autograd.grad(torch.stack([*map(weighted, solved(measured, in_dims))]).sum(), measured)
    for alone, found in zip(measured, together, strict=True):
        (expected,) = torch.autograd.grad(weighted(solved(alone)), alone)
        assert torch.allclose(found, expected, rtol=1e-7, atol=1e-10)
    assert made.is_complete()


def second_directional(solver: Any, built: mslsq.Problem, start: Any, measured: Tensor, along: Tensor) -> Tensor:
    given = measured.clone().requires_grad_()
    value = mslsq.solve(built, start, {"difference": {"measured": given}}, solver=solver).value["x"]
    (gradient,) = torch.autograd.grad(weighted(value), given, create_graph=True)
    (found,) = torch.autograd.grad((gradient * along).sum(), given)
    return (found * along).sum()


@pytest.mark.sampled(1)
def test_second_derivatives_equal_differences_of_native_gradients(made):
    problem, start, inputs = ring(mslsq.SE2, 4)
    built, measured = problem(), inputs["measured"]
    along = torch.arange(1.0, measured.numel() + 1, dtype=F64).sin().reshape(measured.shape)

    def slope(at: Tensor) -> Tensor:
        with torch.enable_grad():
            given = at.clone().requires_grad_()
            value = mslsq.solve(built, start, {"difference": {"measured": given}}, solver=made.solver).value["x"]
            (gradient,) = torch.autograd.grad(weighted(value), given)
        return (gradient * along).sum()

    found = second_directional(made.solver, built, start, measured, along)
    assert made.is_complete()
    assert torch.allclose(found, difference(slope, measured, along), rtol=1e-6)
    assert torch.allclose(found, second_directional(PLAIN, built, start, measured, along), rtol=1e-7)


@pytest.mark.sampled(1)
def test_transforms_outside_of_a_native_solve_give_the_same(made):
    problem, start, inputs = ring(mslsq.SE2, 4)
    built = problem()
    several = torch.stack([inputs["measured"], 1.01 * inputs["measured"]])

    def number(measured: Tensor) -> Tensor:
        return weighted(
            mslsq.solve(built, start, {"difference": {"measured": measured}}, solver=made.solver).value["x"]
        )

    mapped = torch.func.vmap(torch.func.grad(number))(several)
    forward = torch.func.vmap(torch.func.jacfwd(number))(several)
    for one, found, other in zip(several, mapped, forward, strict=True):
        given = one.clone().requires_grad_()
        (expected,) = torch.autograd.grad(number(given), given)
        assert torch.allclose(found, expected, rtol=1e-7, atol=1e-10)
        assert torch.allclose(other, expected, rtol=1e-7, atol=1e-10)
    assert made.is_complete()


def test_what_has_no_form_in_scalars_is_differentiated_by_pytorch(made):
    y, t = torch.tensor([3.0, 1.0, 2.5], dtype=F64), torch.tensor([0.1, 0.4, 1.1], dtype=F64)

    def residual(p: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(torch.diag(0.1 * y)).diagonal() - torch.exp(p[0] * t) - p[1]

    def gradient(solver: Any) -> Tensor:
        given = y.clone().requires_grad_()
        value = mslsq.least_squares(residual, torch.zeros(2, dtype=F64), (given,), solver=solver).value
        return torch.autograd.grad(weighted(value), given)[0]

    found = gradient(made.solver)
    assert made.programs and not any(made.programs) and "matrix_exp" in made.drafts[0].why_not
    assert torch.allclose(found, gradient(PLAIN), rtol=1e-8)


def unseen_state() -> tuple[dict[str, float], Any, Tensor, Tensor]:
    """A number that a residual reads where no key can look, through the object; and the data of a decay."""
    state = {"factor": 1.0}

    class Opaque:
        __slots__ = ()

        @property
        def factor(self) -> float:
            return state["factor"]

    t = torch.linspace(0, 1, 6, dtype=F64)
    return state, Opaque(), t, torch.exp(-t) + 0.1 * torch.arange(6.0, dtype=F64).sin()


def test_derivatives_are_of_the_residual_that_the_solve_ran_on(made):
    """Also those that are taken when what the residual reads is something else."""
    state, opaque, t, y = unseen_state()

    def residual(p: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-p[0] * t * opaque.factor) + p[1] ** 2 - y

    def both(changes: bool) -> tuple[Tensor, Tensor]:
        state["factor"] = 1.0
        given = y.clone().requires_grad_()
        solution = mslsq.least_squares(residual, torch.ones(2, dtype=F64), (given,), solver=made.solver)
        state["factor"] = 2.0 if changes else 1.0
        (gradient,) = torch.autograd.grad(weighted(solution.value) + solution.cost, given, create_graph=True)
        return gradient.detach(), torch.autograd.grad(gradient.square().sum(), given)[0]

    expected = both(False)
    assert made.is_complete()
    for found, right in zip(both(True), expected, strict=True):
        assert torch.allclose(found, right, rtol=1e-9) and bool(found.norm() > 0)


def test_no_program_is_made_where_none_is_wanted(made):
    problem, start, inputs = ring(mslsq.SE2)
    given = inputs["measured"].clone().requires_grad_()
    weighted(mslsq.solve(problem(measured=given), start, solver=PLAIN).value["x"]).backward()
    assert given.grad is not None and not made.drafts


def test_what_a_residual_reads_unseen_is_noticed_at_the_next_solve(made):
    """A program of second derivatives alone, with nothing else recorded, must not outlive what it was written from."""
    state, opaque, t, y = unseen_state()

    def residual(p: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-p[0] * t * opaque.factor) + p[1] - y

    def gradient(solver: Any) -> Tensor:
        given = y.clone().requires_grad_()
        value = mslsq.least_squares(residual, torch.ones(2, dtype=F64), (given,), solver=solver).value
        return torch.autograd.grad(weighted(value), given)[0]

    gradient(made.solver)
    assert made.is_complete()
    state["factor"] = 2.0
    assert torch.allclose(gradient(made.solver), gradient(PLAIN), rtol=1e-6)
