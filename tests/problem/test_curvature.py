"""Second derivatives that a cost supplies: of the library's factors, of a user's, and the Hessians made of them."""

import pytest
import torch
from torch.func import grad, jacfwd, jacrev

import mslsq
from mslsq.manifolds import space_of_value
from mslsq.manifolds.space import space_of
from mslsq.problem.curvature import (
    COADJOINT,
    SMALL,
    cotangent_series,
    curvature_of_local,
    inverse_jacobian_derivatives,
    inverse_right_jacobian_transposed,
)
from mslsq.problem.errors import ProblemError, ShapeError

F64 = torch.float64
GROUPS = [mslsq.SO2, mslsq.SE2, mslsq.SO3, mslsq.SE3]
KINDS = [*GROUPS, mslsq.Sim2, mslsq.Sim3, mslsq.UnitVector, mslsq.Euclidean(2)]
PRODUCT = {"pose": mslsq.SE3, "bias": mslsq.Euclidean(2), "inner": {"turn": mslsq.SO2, "up": mslsq.UnitVector}}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=F64)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("size", [0.0, 1e-7, 0.2, 0.49, 0.51, 1.5, 3.0])
def test_polynomials_in_ad_are_the_inverse_jacobians_and_their_derivatives(group, size):
    """From zero through the switch of series at half a radian to near pi, to rounding."""
    error = normal(group.tangent_dim)
    angle = error[-1:] if group in (mslsq.SO2, mslsq.SE2) else error[-3:]
    error, w = size * error / angle.norm(), normal(group.tangent_dim, seed=1)
    product = inverse_right_jacobian_transposed(group, error, w)
    assert torch.allclose(product, group.right_jacobian_inverse(error).mT @ w, rtol=1e-12, atol=1e-14)
    of_right, of_left = inverse_jacobian_derivatives(group, error, w)
    right = jacfwd(lambda e: group.right_jacobian_inverse(e).mT @ w)(error)
    left = jacfwd(lambda e: group.left_jacobian_inverse(e).mT @ w)(error)
    assert torch.allclose(of_right, right, rtol=1e-11, atol=1e-13)
    assert torch.allclose(of_left, left, rtol=1e-11, atol=1e-13)


def test_the_groups_with_closed_forms_are_those_tested_here():
    assert set(COADJOINT) == set(GROUPS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_curvature_of_a_difference_is_its_hessian(kind):
    space = space_of(kind)
    a, b = (space.random(generator=generator(seed), dtype=F64) for seed in (1, 2))
    n, w = space.tangent_dim, normal(space.tangent_dim)

    def paired(delta):
        return (space.local(space.retract(a, delta[:n]), space.retract(b, delta[n:])) * w).sum()

    found = curvature_of_local(space, a, b, w)
    expected = jacfwd(jacrev(paired))(torch.zeros(2 * n, dtype=F64))
    assert torch.allclose(0.5 * (found + found.mT), expected, rtol=1e-11, atol=1e-13)


# ---- Hessians of problems: with the cost's own second derivatives, and without ------------------------


class Weighted(mslsq.CostFunction):
    """A complex residual with Jacobians: a turned and scaled arrow."""

    curvature = mslsq.CostFunction.curvature_from_jacobians

    def residual(self, pose, z, seen):
        return torch.polar(z[0].exp(), pose.log()[2] + z[1]) * seen

    def jacobians(self, pose, z, seen):
        r = self.residual(pose, z, seen)
        turn = 1j * r
        zero = torch.zeros_like(r)
        return torch.stack((zero, zero, turn), -1)[None], torch.stack((r, turn), -1)[None]


def between(kind, **options):
    pose = mslsq.Variable("pose", kind, count=4)
    i, j = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 2, 3, 0, 2])
    tangent = space_of(kind).tangent_dim
    measured = kind.exp(0.7 * normal(5, tangent, seed=3))
    problem = mslsq.Problem(
        mslsq.Between(pose[i], pose[j], measured=measured, **options),
        mslsq.Prior(pose[[1]], target=kind.exp(0.4 * normal(1, tangent, seed=4)), weight=0.5),
        mslsq.Difference(pose[[1, 2]], pose[[3, 3]], measured=normal(2, tangent, seed=5)),
        pose.fixed([0]),
    )
    return problem, {"pose": kind.exp(normal(4, tangent, seed=6))}


def product():
    state = mslsq.Variable("state", PRODUCT, count=3)
    space = space_of(PRODUCT)
    start = space.wrap(space.random(3, generator=generator(1), dtype=F64))
    target = space.wrap(space.random(1, generator=generator(2), dtype=F64))
    problem = mslsq.Problem(
        mslsq.Difference(state[[0, 1]], state[[1, 2]], measured=normal(2, space.tangent_dim)),
        mslsq.Prior(state[[0]], target=target, loss=mslsq.Cauchy(2.0)),
    )
    return problem, {"state": start}


def cameras():
    pose, point = mslsq.Variable("pose", mslsq.SE3, count=2), mslsq.Variable("point", mslsq.Euclidean(3), count=3)
    i, j = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 0, 1, 2])
    points = normal(3, 3) + torch.tensor([0.0, 0.0, 6.0], dtype=F64)
    cost = mslsq.Reprojection(
        pose[i],
        point[j],
        pixel=normal(6, 2, seed=2),
        focal=2.0,
        distortion=mslsq.Shared(torch.tensor([0.1, 0.02], dtype=F64)),
        loss=mslsq.SoftL1(0.7),
    )
    camera = mslsq.Variable("camera", mslsq.Euclidean(9), count=2)
    snavely = mslsq.SnavelyReprojection(camera[i], point[j], pixel=normal(6, 2, seed=7))
    values = {
        "pose": mslsq.SE3.exp(0.1 * normal(2, 6, seed=3)),
        "point": points,
        "camera": torch.cat((0.3 * normal(2, 6, seed=4), torch.tensor([[2.0, 0.1, 0.01]] * 2, dtype=F64)), 1),
    }
    return mslsq.Problem(cost, snavely), values


def arrows():
    pose, z = mslsq.Variable("pose", mslsq.SE2, count=2), mslsq.Variable("z", mslsq.Euclidean(2))
    seen = torch.complex(normal(4), normal(4, seed=1))
    cost = Weighted(pose[[0, 1, 0, 1]], z, seen=seen, weight=mslsq.SqrtInformation(normal(2, 2, seed=2)))
    return mslsq.Problem(cost), {"pose": mslsq.SE2.exp(normal(2, 3, seed=3)), "z": normal(2, seed=4)}


PROBLEMS = {
    **{kind.__name__: lambda kind=kind: between(kind) for kind in (*GROUPS, mslsq.Sim2, mslsq.Sim3)},
    "weights": lambda: between(mslsq.SE3, weight=mslsq.SqrtInformation(normal(5, 6, 6, seed=8))),
    "robust": lambda: between(mslsq.SE3, weight=mslsq.Diagonal(normal(6, seed=8)), loss=mslsq.GemanMcClure(1.5)),
    "product": product,
    "cameras": cameras,
    "complex": arrows,
}


def hessian_of(problem, values, monkeypatch=None, form="normal"):
    """The exact Hessian at a point that is no minimum, as the adjoint would factor it."""
    from mslsq.front.problem_statement import stated
    from mslsq.linearize.plan_cache import PlanCache
    from mslsq.solvers.planning import planned
    from mslsq.solvers.task import Task

    linear = mslsq.linear.Cholesky() if form == "normal" else mslsq.linear.SparseCholesky()
    statement = stated(problem, values, None)
    solver = mslsq.LevenbergMarquardt(linear_solver=linear)
    task = Task(statement.system, solver, 1, statement.batched, PlanCache())
    _, linearizer, prepared = planned(task, statement.values, statement.inputs)
    whole = linearizer.hessian(statement.values, prepared)
    if linearizer.normal_equations_are_exact:
        normal_equations = linearizer.linearize(statement.values, prepared).matrix
        from_normal = linearizer.curvature(statement.values, prepared, normal_equations)
        assert torch.allclose(from_normal, whole, rtol=1e-11, atol=1e-12)
        gradient, once = linearizer.gradient_and_curvature(statement.values, prepared, normal_equations)
        assert torch.equal(once, from_normal)
        assert torch.allclose(gradient, linearizer.gradient(statement.values, prepared), rtol=1e-13, atol=1e-13)
    return whole


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["normal", "sparse"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_hessians_from_a_costs_own_second_derivatives_are_those_of_autodiff(name, form, monkeypatch):
    problem, values = PROBLEMS[name]()
    found = hessian_of(problem, values, form=form)
    for cost in problem:
        assert cost.curvature is not None
        monkeypatch.setattr(type(cost), "curvature", None)
    expected = hessian_of(problem, values, form=form)
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROBLEMS)
def test_check_jacobian_checks_second_derivatives_too(name):
    problem, values = PROBLEMS[name]()
    for cost in problem:
        check = mslsq.check_jacobian(cost, values, blocks=[0])
        assert check, str(check)


# ---- a user's own ------------------------------------------------------------------------------------


class Range(mslsq.CostFunction):
    def residual(self, p, beacon):
        return (p - beacon).norm()[None] - 1.0

    def jacobians(self, p, beacon):
        return (((p - beacon) / (p - beacon).norm())[None],)


class Bent(Range):
    def curvature(self, cotangent, p, beacon):
        along = (p - beacon) / (p - beacon).norm()
        eye = torch.eye(2, dtype=p.dtype)
        return cotangent[0] * (eye - along[:, None] * along) / (p - beacon).norm()


class Wrong(Range):
    def curvature(self, cotangent, p, beacon):
        return 0.9 * Bent.curvature(self, cotangent, p, beacon)


class Misshaped(Range):
    def curvature(self, cotangent, p, beacon):
        return cotangent


class Differentiated(Range):
    curvature = mslsq.CostFunction.curvature_from_jacobians


def located(kind, beacon):
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    solver = mslsq.LevenbergMarquardt(ftol=0, gtol=1e-14, xtol=1e-16)
    start = {"p": torch.tensor([0.4, 0.3], dtype=F64)}
    return mslsq.solve(mslsq.Problem(kind(p, beacon=beacon)), start, solver=solver).value["p"]


BEACONS = torch.tensor([[0.0, 0.0], [2.5, 0.0], [0.0, 2.0], [1.0, 0.4]], dtype=F64)


@pytest.mark.parametrize("kind", [Bent, Differentiated])
def test_a_users_second_derivatives_enter_the_derivative_of_the_solve(kind):
    expected = jacrev(lambda b: located(Range, b))(BEACONS)
    assert torch.allclose(jacrev(lambda b: located(kind, b))(BEACONS), expected, rtol=1e-9, atol=1e-12)
    biased = jacrev(lambda b: located(Wrong, b))(BEACONS)
    assert not torch.allclose(biased, expected, rtol=1e-4, atol=1e-5)  # they are really used


def test_wrong_second_derivatives_are_found_by_check_jacobian():
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    values = {"p": torch.tensor([0.4, 0.3], dtype=F64)}
    check = mslsq.check_jacobian(Wrong(p, beacon=BEACONS), values)
    assert not check
    assert check.source == "curvature"
    assert "nested autodiff says" in str(check)
    assert check.worst_error == pytest.approx(0.1, rel=1e-3)
    assert mslsq.check_jacobian(Bent(p, beacon=BEACONS), values)


def test_a_curvature_of_a_wrong_shape_is_an_error_in_words():
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    with pytest.raises(ShapeError, match="curvature"):
        mslsq.check_jacobian(Misshaped(p, beacon=BEACONS), {"p": torch.ones(2, dtype=F64)})
    with pytest.raises(ShapeError, match=r"curvature.*joint tangent"):
        jacrev(lambda b: located(Misshaped, b))(BEACONS)


def test_a_subclass_with_another_residual_does_not_inherit_the_curvature():
    class Other(Bent):
        def residual(self, p, beacon):
            return (p - beacon) ** 2

    assert Other.curvature is None
    assert Other.jacobians is None


def test_curvature_from_jacobians_refuses_what_is_no_exponential():
    class Towards(mslsq.CostFunction):
        curvature = mslsq.CostFunction.curvature_from_jacobians

        def residual(self, u, seen):
            return seen.local(u)

        def jacobians(self, u, seen):
            return (jacfwd(lambda d: seen.local(u.retract(d)))(torch.zeros(2, dtype=F64)),)

    u = mslsq.Variable("u", mslsq.UnitVector)
    seen = mslsq.UnitVector.random(3, generator=generator(), dtype=F64)
    start = {"u": mslsq.UnitVector.random(generator=generator(1), dtype=F64)}

    def solved(storage):
        problem = mslsq.Problem(Towards(u, seen=mslsq.UnitVector(storage)))
        return mslsq.solve(problem, start).value["u"].storage.sum()

    with pytest.raises(ProblemError, match=r"group's exponential, which is not so for UnitVector"):
        grad(solved)(seen.storage)


def test_spaces_of_values_are_recognised_inside_a_map():
    """The factors ask for the space of what they are given, which under vmap is a placeholder."""
    assert space_of_value(mslsq.SE3.identity(dtype=F64)).name == "SE3"


def test_the_derivative_of_the_cotangent_series_is_right_at_its_very_end_too():
    for q in (0.5 * SMALL, SMALL, 2 * SMALL):
        point = torch.tensor(q, dtype=F64)
        slope = cotangent_series(point)[1]
        h = 1e-4 * q
        differences = (cotangent_series(point + h)[0] - cotangent_series(point - h)[0]) / (2 * h)
        assert torch.allclose(slope, differences, rtol=1e-6)
        assert torch.allclose(jacfwd(lambda z: cotangent_series(z)[0])(point), slope, rtol=1e-10)
