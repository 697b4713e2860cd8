"""A problem that creeps along a curved valley gets bent steps by itself; all others take the steps they always took."""

import warnings

import pytest
import torch

import mslsq
from mslsq.adjoint import Unrolled
from mslsq.solvers.levenberg_marquardt import CREEPS
from mslsq.solvers.whole_program import NativeDifferenceWarning, SolveDraft
from tests.native.slices import in_small_parts

F64 = torch.float64
T = torch.linspace(0, 2, 24, dtype=F64)


def lm(**options):
    return mslsq.LevenbergMarquardt(**options)


def penalty(x, scale):
    """Penalty II of Moré, Garbow and Hillstrom (24), n = 4: a long curved valley."""
    a = 1e-5**0.5
    i = torch.arange(2, 5, dtype=F64)
    y = (i / 10).exp() + ((i - 1) / 10).exp()
    e = (x / 10).exp()
    weights = torch.arange(4, 0, -1, dtype=F64)
    low = a * (e[1:] - torch.tensor(-0.1, dtype=F64).exp())
    return torch.cat([(x[:1] - 0.2), a * (e[1:] + e[:-1] - y), low, ((weights * x * x).sum() - scale)[None]])


START = torch.full((4,), 0.5, dtype=F64)
ONE = torch.tensor(1.0, dtype=F64)


def solved(solver, start=START):
    return mslsq.least_squares(penalty, start, (ONE,), solver=solver)


def same(one, other):
    """Are two solves the same to the bit, their histories too?"""
    figures = zip(one.history.columns, other.history.columns, strict=True)
    return torch.equal(one.value, other.value) and all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in figures)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", [1.0, 10.0])
def test_a_valley_takes_less_than_half_of_the_steps(start):
    straight, auto = (solved(lm(acceleration=a, native="never"), start * START) for a in (None, "auto"))
    assert auto.converged
    assert 2 * int(auto.num_steps) < int(straight.num_steps)
    assert 2 * float(auto.cost) == pytest.approx(9.37629301e-6, rel=1e-6)  # the authors' minimum
    assert torch.equal(straight.history.cost[: CREEPS + 1], auto.history.cost[: CREEPS + 1])  # nothing is known before


def test_eager_recorded_repeated_and_native_solves_take_the_same_steps():
    eager = solved(lm(trace="never", native="never"))
    for options in ({"trace": "always", "native": "never"}, {"native": "wait"}):
        for _ in range(3):  # what has been recorded is used in the next
            found = solved(lm(**options))
            assert int(found.num_steps) == int(eager.num_steps)
            torch.testing.assert_close(found.value, eager.value, rtol=1e-9, atol=0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{"trace": "never"}, {"trace": "always"}, {"native": "wait"}], ids=str)
def test_neighbours_of_a_problem_that_creeps_do_not_notice(options):
    solver = lm(**({"native": "never"} | options))
    starts = torch.stack([0.3 * START + 1e-3, START, 20 * START])
    together = mslsq.least_squares(penalty, starts, (ONE,), in_dims=(0, None), solver=solver)
    near = torch.stack([starts[0], 1.01 * starts[0], starts[0]])
    other = mslsq.least_squares(penalty, near, (ONE,), in_dims=(0, None), solver=solver)
    assert torch.equal(together.value[0], other.value[0])
    assert int(together.num_steps[0]) == int(other.num_steps[0])
    for k in range(3):
        alone = mslsq.least_squares(penalty, starts[k : k + 1], (ONE,), in_dims=(0, None), solver=solver)
        assert int(alone.num_steps) == int(together.num_steps[k])
        torch.testing.assert_close(alone.value[0], together.value[k], rtol=1e-9, atol=0)


def test_many_that_creep_among_many_that_do_not_take_the_steps_they_take_in_any_order(monkeypatch):
    """A program has one vector for problems that creep, which is full here."""
    shares = torch.linspace(0.2, 40, 60, dtype=F64)[:, None]
    starts = torch.where(torch.arange(60)[:, None] % 3 > 0, shares * START, 0.3 * START + 1e-3 * shares)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))

    def solved_natively(starts):
        return mslsq.least_squares(penalty, starts, (ONE,), in_dims=(0, None), solver=lm(native="wait"))

    python = mslsq.least_squares(penalty, starts, (ONE,), in_dims=(0, None), solver=lm(native="never"))
    one, other = solved_natively(starts), solved_natively(starts[order])
    assert torch.equal(one.value[order], other.value)
    assert torch.equal(one.num_steps[order], other.num_steps)
    assert torch.equal(one.history.cost[order].nan_to_num(), other.history.cost.nan_to_num())
    in_small_parts(monkeypatch)  # it comes back to Python often
    assert torch.equal(solved_natively(starts).value, one.value)
    straight = mslsq.least_squares(penalty, starts, (ONE,), in_dims=(0, None), solver=lm(acceleration=None))
    assert int((one.num_steps < straight.num_steps).sum()) > 16
    assert int((one.num_steps == python.num_steps).sum()) >= 57  # rounding decides
    torch.testing.assert_close(one.cost, python.cost, rtol=1e-6, atol=0)


def test_a_fit_that_does_not_creep_takes_the_steps_of_before_to_the_bit():
    y = torch.stack([(1 + k) * torch.exp(-1.3 * T) + 0.3 + 0.02 * torch.sin(9 * T + k) for k in range(6)])
    start = torch.tensor([1.0, -1.0, 0.0], dtype=F64)
    one, other = (
        mslsq.least_squares(
            lambda p, y: p[0] * torch.exp(p[1] * T) + p[2] - y,
            start,
            (y,),
            in_dims=(None, 0),
            solver=lm(acceleration=a, native="never"),
        )
        for a in (None, "auto")
    )
    assert one.converged.all()
    assert same(one, other)


def by_rows():
    """Blocks of one row and four unknowns are differentiated in reverse mode: their bend is a difference."""
    p = mslsq.Variable("p", mslsq.Euclidean(4))

    @mslsq.cost
    def row(p, number):
        return (penalty(p, ONE) * (torch.arange(8) == number)).sum()[None]

    return mslsq.Problem(row(p, number=torch.arange(8)))


@pytest.mark.slow
def test_what_has_no_bent_program_creeps_on_in_python():
    problem = by_rows()
    python, native = (mslsq.solve(problem, {"p": START}, solver=lm(native=n)) for n in ("never", "wait"))
    straight = mslsq.solve(problem, {"p": START}, solver=lm(native="never", acceleration=None))
    assert 2 * int(python.num_steps) < int(straight.num_steps)
    assert int(native.num_steps) == int(python.num_steps)


def test_an_interrupt_is_kept_where_a_problem_has_crept_out_of_its_program(monkeypatch):
    starts = torch.linspace(1, 20, 40, dtype=F64)[:, None] * START

    def solved_natively():
        solver = lm(native="wait", on_interrupt="return")
        return mslsq.solve(by_rows(), {"p": starts}, in_dims=0, solver=solver)

    whole = solved_natively()  # compared, and in use
    in_small_parts(monkeypatch, 40)
    found = solved_natively()
    rest = found.status == mslsq.Status.INTERRUPTED
    crept = rest & (found.num_steps > 0)
    assert whole.converged.all() and 0 < int(crept.sum()) < int(rest.sum())
    assert (found.cost[crept] < whole.history.cost[crept, 0]).all()
    assert torch.equal(found.value["p"][rest & ~crept], starts[rest & ~crept])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "loss"), [(mslsq.SE2, None), (mslsq.SE2, mslsq.Cauchy(0.5)), (mslsq.UnitVector, mslsq.Tukey(3.0))], ids=str
)
def test_bent_steps_of_programs_are_those_of_python_on_manifolds_and_with_losses(kind, loss, monkeypatch):
    """Every program is compared before its use: one bent step of three problems with Python's."""
    compared = []
    is_alike = SolveDraft._is_alike

    def noted(self, python, moved, bent, expected):
        compared.append(bent)
        return is_alike(self, python, moved, bent, expected)

    monkeypatch.setattr(SolveDraft, "_is_alike", noted)
    random = torch.Generator().manual_seed(0)
    center = kind.random(generator=random, dtype=F64)
    steps = 0.3 * torch.randn(4, 2, kind.tangent_dim, generator=random, dtype=F64)
    samples = kind(center.storage.expand(4, 2, -1)).retract(steps).storage
    x = mslsq.Variable("x", kind)

    @mslsq.cost
    def distance(x, sample):
        return torch.cat([x.local(kind(sample)), x.storage[:1] ** 2])

    problem = mslsq.Problem(distance(x, sample=samples[0], loss=loss))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NativeDifferenceWarning)
        found, expected = (
            mslsq.solve(
                problem,
                {"x": center},
                {"distance": {"sample": samples}},
                in_dims=(None, 0),
                solver=lm(native=n),
            )
            for n in ("wait", "never")
        )
    assert compared == [False, True]
    torch.testing.assert_close(found.value["x"].storage, expected.value["x"].storage, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_bounds_and_losses_are_kept():
    lower, upper = torch.full((4,), -0.1, dtype=F64), torch.full((4,), 0.6, dtype=F64)
    for options in ({"bounds": (lower, upper)}, {"loss": mslsq.Cauchy(0.1)}):
        straight, auto, native = (
            mslsq.least_squares(penalty, START, (ONE,), solver=lm(acceleration=a, native=n), **options)
            for a, n in ((None, "never"), ("auto", "never"), ("auto", "wait"))
        )
        assert auto.converged
        assert int(auto.num_steps) < int(straight.num_steps)
        assert int(native.num_steps) == int(auto.num_steps)
        torch.testing.assert_close(auto.cost, straight.cost, rtol=1e-6, atol=0)


def test_unrolled_takes_straight_steps():
    scale = ONE.clone().requires_grad_()
    unrolled = mslsq.least_squares(penalty, START, (scale,), solver=lm(native="never"), adjoint=Unrolled())
    straight = solved(lm(acceleration=None, native="never"))
    assert torch.equal(unrolled.value.detach(), straight.value)
    (found,) = torch.autograd.grad(unrolled.value.sum(), scale)
    implicit = mslsq.least_squares(penalty, START, (scale,), solver=lm())
    (expected,) = torch.autograd.grad(implicit.value.sum(), scale)
    assert float(found) == pytest.approx(float(expected), rel=1e-2)


def test_without_early_stop_nothing_is_asked_and_steps_are_straight():
    options = {"max_steps": 60, "early_stop": False, "native": "never"}
    assert same(solved(lm(**options)), solved(lm(acceleration=None, **options)))


def test_a_checkpoint_keeps_the_signs_of_creeping(tmp_path):
    file = tmp_path / "solve"
    whole = solved(lm(native="never", trace="never"))
    options = {"native": "never", "trace": "never", "checkpoint": mslsq.Checkpoint(file)}
    solved(lm(max_steps=8, **options))
    resumed = solved(lm(**options))
    assert torch.equal(resumed.value, whole.value)
    assert int(resumed.num_steps) == int(whole.num_steps)
