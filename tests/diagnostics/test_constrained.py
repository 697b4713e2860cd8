"""Covariance under constraints: of what equalities and strictly active inequalities leave free."""

import pytest
import torch
from torch import Tensor

import mslsq

F64 = torch.float64
A = torch.tensor([[1.0, 0.4, -0.2], [0.1, 2.0, 0.3], [0.5, -0.3, 1.5], [1.0, 1.0, 1.0]], dtype=F64)
B = torch.tensor([0.3, 0.9, 0.4, 1.6], dtype=F64)


class Linear(mslsq.CostFunction):
    def residual(self, x: Tensor, row: Tensor, target: Tensor) -> Tensor:
        return (row @ x - target)[None]


class SumsTo(mslsq.CostFunction):
    def residual(self, x: Tensor, total: Tensor) -> Tensor:
        return x.sum()[None] - total


class Product(mslsq.CostFunction):
    def residual(self, x: Tensor, bound: Tensor) -> Tensor:
        return (x[0] * x[1] - bound)[None]


def measured(x: mslsq.Variable) -> Linear:
    return Linear(x[torch.zeros(4, dtype=torch.int64)], row=A, target=B, weight=10.0, name="measured")


def with_sum(kind: type = mslsq.Equality, total: float = 1.0, **bounds: Tensor) -> mslsq.Problem:
    x = mslsq.Variable("x", mslsq.Euclidean(3), count=1, **bounds)
    return mslsq.Problem(measured(x), kind(SumsTo(x[[0]], total=torch.full((1,), total, dtype=F64), name="sum")))


START = {"x": torch.zeros(1, 3, dtype=F64)}
SUM_ELIMINATED = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=F64)
"""x from its first two entries, where the third is what is left of the sum."""


def eliminated(jacobian: Tensor, basis: Tensor) -> Tensor:
    """By hand: the covariance of the entries that are left, propagated to all."""
    reduced = jacobian @ basis
    return basis @ torch.linalg.inv(reduced.T @ reduced) @ basis.T


def test_an_equality_is_eliminated():
    problem = with_sum()
    solution = mslsq.solve(problem, START)
    expected = eliminated(10 * A, SUM_ELIMINATED)
    found = mslsq.covariance(problem, solution, "x", 0)
    assert torch.allclose(found, expected, rtol=1e-10)
    assert torch.linalg.matrix_rank(found, hermitian=True, rtol=1e-9) == 2
    assert abs(float(found.sum())) < 1e-14  # the sum is known
    assert torch.allclose(mslsq.covariance(problem, solution.value, "x", 0), expected, rtol=1e-10)
    assert torch.allclose(mslsq.covariance(problem, solution, ["x"]), expected, rtol=1e-10)


def test_the_estimates_scatter_as_it_says():
    """4,000 measurements of a point on a hyperbola, a nonlinear constraint, each solved."""
    x = mslsq.Variable("x", mslsq.Euclidean(3), count=1)
    on_curve = mslsq.Equality(Product(x[[0]], bound=torch.full((1,), 0.5, dtype=F64)))
    problem = mslsq.Problem(measured(x), on_curve)
    truth = torch.tensor([1.0, 0.5, 0.2], dtype=F64)
    generator = torch.Generator().manual_seed(0)
    noise = 0.02 * torch.randn(4000, 4, generator=generator, dtype=F64)
    data = {"measured": {"target": A @ truth + noise, "weight": torch.tensor(50.0, dtype=F64)}}
    solution = mslsq.solve(
        problem, {"x": truth[None]}, data, in_dims=(None, {"measured": {"target": 0, "weight": None}})
    )
    assert bool(solution.converged.all())
    scatter = torch.cov(solution.value["x"][:, 0].T)
    exact = mslsq.solve(
        problem, {"x": truth[None]}, {"measured": {"target": A @ truth, "weight": data["measured"]["weight"]}}
    )
    found = mslsq.covariance(problem, exact, "x", 0, {"measured": {"weight": data["measured"]["weight"]}})
    assert (scatter - found).abs().max() < 0.06 * found.abs().max()
    free = torch.linalg.inv(2500 * A.T @ A)
    assert (scatter - free).abs().max() > 0.3 * found.abs().max()  # it matters that there is a constraint


def test_an_inequality_counts_where_it_holds_back():
    held, loose = with_sum(mslsq.Inequality, 1.0), with_sum(mslsq.Inequality, 5.0)
    equal = with_sum()
    found = [mslsq.covariance(problem, mslsq.solve(problem, START), "x", 0) for problem in (held, loose, equal)]
    assert torch.allclose(found[0], found[2], rtol=1e-8)
    assert torch.allclose(found[1], torch.linalg.inv(100 * A.T @ A), rtol=1e-8)


def test_an_inequality_that_is_just_met_counts_as_absent():
    free = torch.linalg.lstsq(A, B[:, None]).solution[:, 0]
    problem = with_sum(mslsq.Inequality, float(free.sum()))
    found = mslsq.covariance(problem, mslsq.solve(problem, START), "x", 0)
    assert torch.allclose(found, torch.linalg.inv(100 * A.T @ A), rtol=1e-8)


def test_a_batch_is_its_problems_with_active_rows_of_their_own():
    problem = with_sum(mslsq.Inequality)
    totals = torch.tensor([1.0, 5.0, 0.5], dtype=F64)[:, None]
    data = {"sum": {"total": totals}}
    solution = mslsq.solve(problem, START, data, in_dims=(None, 0))
    batch = mslsq.covariance(problem, solution, "x", 0, data)
    for number in range(3):
        one = {"sum": {"total": totals[number]}}
        alone = mslsq.covariance(problem, mslsq.solve(problem, START, one), "x", 0, one)
        assert torch.allclose(batch[number], alone, rtol=1e-8)
    assert not torch.allclose(batch[0], batch[1])


def test_what_is_said_twice_is_known_once():
    x = mslsq.Variable("x", mslsq.Euclidean(3), count=1)
    total = torch.ones(1, dtype=F64)
    twice = mslsq.Problem(
        measured(x),
        mslsq.Equality(SumsTo(x[[0]], total=total, name="one")),
        mslsq.Equality(SumsTo(x[[0]], total=total, name="other")),
    )
    value = mslsq.solve(with_sum(), START).value
    assert torch.allclose(mslsq.covariance(twice, value, "x", 0), eliminated(10 * A, SUM_ELIMINATED), rtol=1e-9)


def test_a_constraint_fixes_what_costs_leave_open():
    """Differences alone say nothing of the mean; the sum does."""
    p = mslsq.Variable("p", mslsq.Euclidean(1), count=3)
    steps = mslsq.Difference(p[[0, 1]], p[[1, 2]], measured=torch.ones(2, 1, dtype=F64))
    first = mslsq.Prior(p[[0]], target=torch.zeros(1, 1, dtype=F64), name="first")
    problem = mslsq.Problem(steps, mslsq.Equality(first))
    start = {"p": torch.zeros(3, 1, dtype=F64)}
    found = mslsq.covariance(problem, mslsq.solve(problem, start), "p")[:, 0, 0]
    assert torch.allclose(found, torch.tensor([0.0, 1.0, 2.0], dtype=F64), atol=1e-12)
    with pytest.raises(mslsq.errors.SingularCovarianceError, match="JᵀJ is singular"):
        mslsq.covariance(mslsq.Problem(steps), start, "p")
    alone = mslsq.Problem(mslsq.Equality(first))
    with pytest.raises(mslsq.errors.SingularCovarianceError, match="constraints alone"):
        mslsq.covariance(alone, start, "p")


def test_bounds_and_constraints_both_hold():
    upper = torch.tensor([[torch.inf, 0.2, torch.inf]], dtype=F64)
    problem = with_sum(upper=upper)
    solution = mslsq.solve(problem, START)
    assert solution.active["x"].tolist() == [[0, 1, 0]]
    basis = torch.tensor([[1.0], [0.0], [-1.0]], dtype=F64)
    assert torch.allclose(mslsq.covariance(problem, solution, "x", 0), eliminated(10 * A, basis), rtol=1e-9)


def test_on_a_manifold_it_is_that_of_the_tangent():
    """A pose whose position is held on a line, by elimination of that direction."""
    generator = torch.Generator().manual_seed(3)
    truth = mslsq.SE2.from_xyt(torch.tensor([[0.3, -0.5, 0.7]], dtype=F64))

    class OnLine(mslsq.CostFunction):
        def residual(self, pose: mslsq.SE2, normal: Tensor) -> Tensor:
            return (normal @ pose.translation)[None] - 0.1

    pose = mslsq.Variable("pose", mslsq.SE2, count=1)
    root = torch.randn(3, 3, generator=generator, dtype=F64)
    prior = mslsq.Prior(pose[[0]], target=truth, weight=mslsq.SqrtInformation(root))
    normal = torch.tensor([[0.6, 0.8]], dtype=F64)
    problem = mslsq.Problem(prior, mslsq.Equality(OnLine(pose[[0]], normal=normal)))
    solution = mslsq.solve(problem, {"pose": truth})

    def differences(function) -> Tensor:  # type: ignore[no-untyped-def]
        columns = []
        for direction in torch.eye(3, dtype=F64):
            sides = [function(solution.value["pose"].retract(step * direction[None])) for step in (1e-6, -1e-6)]
            columns.append((sides[0] - sides[1]) / 2e-6)
        return torch.stack(columns, -1)

    jacobian = differences(lambda at: truth.local(at)[0])
    row = differences(lambda at: normal[0] @ at.translation[0])
    basis = torch.linalg.svd(row[None])[2][1:].T
    expected = eliminated(root @ jacobian, basis)
    assert torch.allclose(mslsq.covariance(problem, solution, "pose", 0), expected, rtol=1e-5, atol=1e-8)


def test_values_without_multipliers_do_not_tell_what_is_active():
    problem = with_sum(mslsq.Inequality)
    with pytest.raises(mslsq.ProblemError, match="told by their multipliers"):
        mslsq.covariance(problem, START, "x")


def test_a_problem_too_large_for_dense_matrices_is_refused():
    count = 12_000
    p = mslsq.Variable("p", mslsq.Euclidean(1), count=count)
    every = torch.arange(count)
    steps = mslsq.Difference(p[every[:-1]], p[every[1:]], measured=torch.ones(count - 1, 1, dtype=F64))
    first = mslsq.Equality(mslsq.Prior(p[[0]], target=torch.zeros(1, 1, dtype=F64), name="first"))
    with pytest.raises(mslsq.ProblemError, match="factorised densely here"):
        mslsq.covariance(mslsq.Problem(steps, first), {"p": torch.zeros(count, 1, dtype=F64)}, "p", 3)
