"""Jacobians that factors write are those of automatic differentiation, whatever pose and place are."""

import pytest
import torch
from torch.func import jacfwd

import mslsq
from mslsq import factors
from mslsq.factors.places import pose_of
from mslsq.manifolds import space_of, space_of_value

F64 = torch.float64
FLAT = {"translation": mslsq.Euclidean(2), "rotation": mslsq.SO2}
SOLID = {"rotation": mslsq.SO3, "translation": mslsq.Euclidean(3)}
"""The rotation first: the tangent has the order of the dict."""
POSES = {2: [mslsq.SE2, FLAT], 3: [mslsq.SE3, SOLID]}
PLACES = {2: [mslsq.Euclidean(2), *POSES[2]], 3: [mslsq.Euclidean(3), *POSES[3]]}


def draw(kind, seed: int):
    space = space_of(kind)
    return space.wrap(space.random(generator=torch.Generator().manual_seed(seed), dtype=F64))


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def angle(dim: int) -> torch.Tensor:
    return numbers(1, seed=9) if dim == 2 else numbers(3, seed=9)


def data_of(factor, dim: int):
    return {
        factors.Bearing: {"measured": angle(dim)},
        factors.Range: {"measured": numbers(1, seed=8)},
        factors.BearingRange: {"bearing": angle(dim), "range": numbers(1, seed=8)},
        factors.Landmark: {"measured": numbers(dim, seed=8)},
        factors.Position: {"measured": numbers(dim, seed=8), "lever": numbers(dim, seed=7)},
        factors.PointToPlane: {
            "point": numbers(dim, seed=8), "on_plane": numbers(dim, seed=7), "normal": numbers(dim, seed=6)
        },
    }[factor]  # fmt: skip


CASES = [
    (factor, dim, kinds)
    for dim in (2, 3)
    for factor, sides in (
        (factors.Bearing, (POSES, PLACES)),
        (factors.Range, (PLACES, PLACES)),
        (factors.BearingRange, (POSES, PLACES)),
        (factors.Landmark, (POSES, PLACES)),
        (factors.Position, (POSES,)),
        (factors.PointToPlane, (POSES,)),
    )
    for kinds in (
        [(a,) for a in sides[0][dim]] if len(sides) == 1 else [(a, b) for a in sides[0][dim] for b in sides[1][dim]]
    )
]


def made(factor, kinds, **data):
    variables = [mslsq.Variable(f"v{number}", kind) for number, kind in enumerate(kinds)]
    return factor(*variables, **{name: mslsq.Shared(value) for name, value in data.items()})


def by_differentiation(cost, values, data):
    found = []
    for number, value in enumerate(values):
        space = space_of_value(value)

        def moved(delta, number=number, value=value, space=space):
            storage = space.retract(space.unwrap(value), delta)
            return cost.residual(*values[:number], space.wrap(storage), *values[number + 1 :], **data)

        found.append(jacfwd(moved)(torch.zeros(space.tangent_dim, dtype=F64)))
    return found


@pytest.mark.parametrize(
    ("factor", "dim", "kinds"),
    CASES,
    ids=lambda x: getattr(x, "__name__", None) or str(x) if not isinstance(x, tuple) else "",
)
def test_closed_forms_are_those_of_automatic_differentiation(factor, dim, kinds):
    data = data_of(factor, dim)
    cost = made(factor, kinds, **data)
    values = [draw(kind, seed) for seed, kind in enumerate(kinds)]
    for given in (data, {k: v for k, v in data.items() if k != "lever"}):
        expected = by_differentiation(cost, values, given)
        for found, right in zip(cost.jacobians(*values, **given), expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "seen", [(0, 0, 0), (0, 0, 2), (1e-9, 0, 2), (1e-160, 0, 2), (0, 0, -2 + 1e-9), (1e-3, 1e-3, -2)]
)
def test_bearings_at_their_edges(seen):
    """The place at the pose, straight ahead of it, nearly behind it."""
    data = {"measured": torch.tensor([0.0, 0.0, 1.0], dtype=F64)}
    cost = made(factors.Bearing, (mslsq.SE3, mslsq.Euclidean(3)), **data)
    values = [mslsq.SE3.identity(dtype=F64), torch.tensor(seen, dtype=F64)]
    found = cost.jacobians(*values, **data)
    if seen[2] == -2 + 1e-9:  # no way around is shorter: finite, and that is all
        assert all(bool(x.isfinite().all()) for x in found)
        return
    for one, right in zip(found, by_differentiation(cost, values, data), strict=True):
        torch.testing.assert_close(one, right, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("dim", [2, 3])
def test_where_both_places_are_one(dim):
    at = numbers(dim, seed=1)
    for factor, kinds in (
        (factors.Range, (mslsq.Euclidean(dim),) * 2),
        (factors.BearingRange, (POSES[dim][0], mslsq.Euclidean(dim))),
    ):
        values = (
            [at, at] if factor is factors.Range else [POSES[dim][0].identity(dtype=F64), torch.zeros(dim, dtype=F64)]
        )
        data = data_of(factor, dim)
        assert all(not x.any() for x in made(factor, kinds, **data).jacobians(*values, **data))


def test_a_place_that_is_known_and_a_measurement_that_is_not():
    pose, bias = mslsq.Variable("pose", mslsq.SE2, 3), mslsq.Variable("bias", mslsq.Euclidean(1))
    place = mslsq.Variable("place", mslsq.Euclidean(2), 3)
    known = factors.Landmark(pose, place=numbers(3, 2, seed=1), measured=numbers(3, 2, seed=2))
    assert mslsq.check_jacobian(known).ok and known.jacobians is not None
    unknown = factors.Range(pose, place, bias)
    assert unknown.jacobians is None and mslsq.check_jacobian(unknown).ok


@pytest.mark.parametrize("dim", [2, 3])
def test_derivatives_through_a_solve_are_those_without_closed_forms(dim):
    """Curvature comes from the Jacobians."""
    plain = mslsq.cost(_bearing_range)
    kind, count = POSES[dim][0], 4
    pose, place = mslsq.Variable("pose", kind), mslsq.Variable("place", mslsq.Euclidean(dim), count)
    places, at = 3 * numbers(count, dim, seed=3), draw(kind, 4)
    seen = at.inverse().act(places) + 0.05 * numbers(count, dim, seed=5)
    bearing = torch.atan2(seen[:, 1], seen[:, 0]) if dim == 2 else seen
    prior = mslsq.Prior(place, target=places, weight=5.0)
    found = []
    for cost in (factors.BearingRange, plain):
        length = seen.norm(dim=-1).requires_grad_()
        problem = mslsq.Problem(cost(pose, place, bearing=bearing, range=length, name="seen"), prior)
        solution = mslsq.solve(problem, {"pose": at, "place": places})
        found.append(torch.autograd.grad(solution.value["pose"].storage.sum(), length)[0])
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


def _bearing_range(pose, place, bearing, range):
    return factors.BearingRange.residual(None, pose, place, bearing, range)


LENSES = {
    factors.PinholeProjection: (torch.tensor([500.0, 480.0, 1.5, 320.0, 240.0], dtype=F64), 2),
    factors.Stereo: (torch.tensor([500.0, 480.0, 320.0, 240.0, 0.3], dtype=F64), 3),
}


@pytest.mark.parametrize("lens", LENSES)
@pytest.mark.parametrize("kind", POSES[3])
@pytest.mark.parametrize("depth", [2.0, -2.0, 1e-9])
@pytest.mark.parametrize("with_sensor", [False, True])
def test_cameras(lens, kind, depth, with_sensor):
    """Before and behind the camera, and in its plane; intrinsics known and not."""
    intrinsics, rows = LENSES[lens]
    sensor = draw(mslsq.SE3, 3) if with_sensor else None
    pose = draw(kind, 1)
    camera = pose_of(pose)
    camera = camera @ sensor if with_sensor else camera
    point = camera.act(torch.tensor([0.3, -0.4, depth], dtype=F64))
    pixel = numbers(rows, seed=2)
    options = {"sensor": mslsq.Shared(sensor)} if with_sensor else {}
    variables = [mslsq.Variable("pose", kind), mslsq.Variable("point", mslsq.Euclidean(3))]
    for known in (True, False):
        values = [pose, point] if known else [pose, point, intrinsics]
        data = {"intrinsics": intrinsics} if known else {}
        own = variables if known else [*variables, mslsq.Variable("camera", mslsq.Euclidean(5))]
        cost = lens(*own, **{name: mslsq.Shared(x) for name, x in data.items()}, pixel=mslsq.Shared(pixel), **options)
        data |= {"pixel": pixel, "sensor": sensor}
        expected = by_differentiation(cost, values, data)
        for found, right in zip(cost.jacobians(*values, **data), expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def test_a_lens_of_a_users_own_has_no_jacobians_of_another():
    class Squeezed(factors.PinholeProjection):
        @staticmethod
        def project(point, intrinsics):
            pixel, is_seen = factors.PinholeProjection.project(point, intrinsics)
            return 0.5 * pixel, is_seen

    pose, point = mslsq.Variable("pose", mslsq.SE3), mslsq.Variable("point", mslsq.Euclidean(3))
    cost = Squeezed(
        pose, point, intrinsics=mslsq.Shared(LENSES[factors.PinholeProjection][0]), pixel=torch.zeros(1, 2).double()
    )
    assert cost.jacobians is None
    assert factors.RadialTangentialProjection.jacobians is None
