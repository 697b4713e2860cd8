"""Factors where GTSAM has none, at their edges, and in solves: finite values, Jacobians those of differences."""

import math

import numpy as np
import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

import mslsq
from mslsq import factors
from tests.differences import differences

F64 = torch.float64
PINHOLE = [500.0, 480.0, 1.5, 320.0, 240.0]
LENSES = {
    factors.PinholeProjection: PINHOLE,
    factors.RadialTangentialProjection: [*PINHOLE, -0.2, 0.05, 1e-3, -2e-3, 0.02],
    factors.FisheyeProjection: [*PINHOLE, -0.03, 0.01, -0.004, 0.001],
    factors.EquirectangularProjection: [2048.0, 1024.0],
}


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def residual(cost, *arguments, **data):
    """The function of one block."""
    return cost.residual(None, *arguments, **data)


def projected(lens, point, intrinsics=None, pixel=None, **options):
    intrinsics = torch.tensor(LENSES[lens], dtype=F64) if intrinsics is None else intrinsics
    pixel = torch.zeros(2, dtype=F64) if pixel is None else pixel
    # with `self` of the class itself: the methods need no state
    return lens.residual(lens, mslsq.SE3.identity(dtype=F64), point, intrinsics, pixel, **options)


# ---- lenses


def test_pixels_are_those_of_opencv():
    cv2 = pytest.importorskip("cv2")
    points = torch.cat((draw(0, 50, 2), draw(1, 50, 1).abs() + 1), -1)
    fx, fy, _, cx, cy = PINHOLE
    matrix, none = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]), np.zeros(3)
    for lens, project in (
        (factors.RadialTangentialProjection, cv2.projectPoints),
        (factors.FisheyeProjection, cv2.fisheye.projectPoints),
    ):
        intrinsics = torch.tensor(LENSES[lens], dtype=F64)
        intrinsics[2] = 0
        given = points.numpy().reshape(-1, 1, 3)
        expected = project(given, none, none, matrix, intrinsics[5:].numpy())[0].reshape(-1, 2)
        found = vmap(lambda p, lens=lens, k=intrinsics: projected(lens, p, k))(points)
        torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-10, atol=1e-9)


def test_nine_numbers_are_a_lens_without_k3():
    ten = torch.tensor(LENSES[factors.RadialTangentialProjection], dtype=F64)
    ten[9] = 0
    point = torch.tensor([0.3, -0.4, 1.0], dtype=F64)
    nine = projected(factors.RadialTangentialProjection, point, ten[:9])
    assert torch.equal(nine, projected(factors.RadialTangentialProjection, point, ten))


@pytest.mark.parametrize(
    ("direction", "pixel"),
    [
        ((0, 0, 1), (1023.5, 511.5)),
        ((1, 0, 0), (1535.5, 511.5)),
        ((-1, 0, 0), (511.5, 511.5)),
        ((0, 1, 1), (1023.5, 767.5)),
    ],
)
def test_a_panorama(direction, pixel):
    point, expected = 3.0 * torch.tensor(direction, dtype=F64), torch.tensor(pixel, dtype=F64)
    width = torch.tensor([2048.0, 0.0], dtype=F64)
    for measured in (torch.zeros(2, dtype=F64), width / 4, expected, expected - width):
        found = projected(factors.EquirectangularProjection, point, pixel=measured) + measured
        torch.testing.assert_close((found - expected)[0] / 2048, ((found - expected)[0] / 2048).round())
        torch.testing.assert_close(found[1], expected[1])


def test_a_panorama_has_no_seam():
    behind = torch.tensor([1e-3, 0.0, -1.0], dtype=F64)
    measured = projected(factors.EquirectangularProjection, behind * torch.tensor([-1.0, 1.0, 1.0], dtype=F64))
    found = projected(factors.EquirectangularProjection, behind, pixel=measured)
    torch.testing.assert_close(
        found, torch.tensor([-2048 * 2e-3 / (2 * math.pi), 0.0], dtype=F64), rtol=1e-5, atol=1e-9
    )


EDGES = {
    "at the camera": (0.0, 0.0, 0.0),
    "behind": (0.3, 0.2, -2.0),
    "straight behind": (0.0, 0.0, -2.0),
    "in its plane": (1.0, 2.0, 0.0),
    "grazing": (1.0, 2.0, 1e-300),
    "straight ahead": (0.0, 0.0, 2.0),
    "nearly straight ahead": (1e-9, 0.0, 2.0),
    "straight above": (0.0, -1.0, 0.0),
    "tiny": (1e-200, 0.0, 1e-200),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("place", EDGES)
@pytest.mark.parametrize("lens", LENSES)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_lenses_are_finite_everywhere(lens, place, dtype):
    point, intrinsics = torch.tensor(EDGES[place], dtype=dtype), torch.tensor(LENSES[lens], dtype=dtype)
    at = lambda p, k: projected(lens, p, k, torch.zeros(2, dtype=dtype))  # noqa: E731
    for values in (
        at(point, intrinsics),
        *jacfwd(at, (0, 1))(point, intrinsics),
        *jacrev(at, (0, 1))(point, intrinsics),
        jacfwd(jacrev(at))(point, intrinsics),
    ):
        assert bool(values.isfinite().all())


@pytest.mark.parametrize("lens", LENSES)
@pytest.mark.parametrize("place", ["straight behind", "at the camera", "in its plane"])
def test_what_is_not_seen_has_a_stated_residual_and_no_derivative(lens, place):
    point = torch.tensor(EDGES[place], dtype=F64)
    unseen = {
        factors.FisheyeProjection: place != "in its plane",
        factors.EquirectangularProjection: place == "at the camera",
    }
    found = projected(lens, point, unseen=77.0)
    if unseen.get(lens, True):
        assert found.tolist() == [77.0, 77.0]
        assert not jacrev(lambda p: projected(lens, p, unseen=77.0))(point).any()
    else:
        assert 77.0 not in found.tolist()


def test_a_fisheye_at_its_axis_has_the_derivatives_of_the_formula():
    for offset in (0.0, 1e-9, 1e-7, 1e-5, 1e-3):
        point = torch.tensor([offset, -0.5 * offset, 2.0], dtype=F64)
        at = lambda p: projected(factors.FisheyeProjection, p)  # noqa: E731
        torch.testing.assert_close(jacrev(at)(point), differences(at, point, 1e-4), rtol=1e-6, atol=1e-4)


def test_points_that_are_not_seen_do_not_disturb_the_others():
    """A point behind one camera: it keeps its cost, the rest is solved."""
    poses = mslsq.SE3.exp(torch.cat((draw(0, 3, 3), 0.1 * draw(1, 3, 3)), -1) * 0.3)
    points = torch.cat((draw(2, 12, 2), draw(3, 12, 1).abs() + 4), -1)
    i, j = torch.arange(3).repeat_interleave(12), torch.arange(12).repeat(3)
    pose, point = mslsq.Variable("pose", mslsq.SE3, 3), mslsq.Variable("point", mslsq.Euclidean(3), 12)
    intrinsics = torch.tensor(PINHOLE, dtype=F64)
    local = poses[i].inverse().act(points[j])
    pixel = vmap(lambda p: projected(factors.PinholeProjection, p, intrinsics))(local)
    cost = factors.PinholeProjection(pose[i], point[j], pixel=pixel, intrinsics=mslsq.Shared(intrinsics))
    problem = mslsq.Problem(cost, pose.fixed())
    start = {"pose": poses, "point": points + 0.05 * draw(4, 12, 3)}
    start["point"][5] = -start["point"][5]
    solution = mslsq.solve(problem, start)
    assert bool(solution.value["point"].isfinite().all())
    other = torch.arange(12) != 5
    torch.testing.assert_close(solution.value["point"][other], points[other], rtol=0, atol=1e-5)
    assert float(solution.cost) == pytest.approx(0.5 * 6 * 1000.0**2)


@pytest.mark.parametrize("lens", LENSES)
def test_jacobians_with_a_sensor_and_unknown_intrinsics(lens):
    pose, point = mslsq.Variable("pose", mslsq.SE3), mslsq.Variable("point", mslsq.Euclidean(3))
    numbers = torch.tensor(LENSES[lens], dtype=F64)
    camera = mslsq.Variable("camera", mslsq.Euclidean(len(numbers)))
    sensor = mslsq.Shared(mslsq.SE3.exp(draw(1, 6)))
    cost = lens(pose, point, camera, pixel=torch.zeros(1, 2, dtype=F64), sensor=sensor)
    at = mslsq.SE3.exp(draw(2, 6))
    seen = (at @ sensor.value).act(torch.tensor([0.4, -0.3, 1.5], dtype=F64))
    check = mslsq.check_jacobian(cost, {"pose": at, "point": seen, "camera": numbers})
    assert check.ok, str(check)


# ---- places


@pytest.mark.parametrize("turns", [0, 1, -3])
def test_an_angle_of_many_turns_is_an_angle(turns):
    place = torch.tensor([-1.0, 1e-3], dtype=F64)
    measured = torch.tensor(-math.pi + 1e-3 + 2 * math.pi * turns, dtype=F64)
    found = residual(factors.Bearing, mslsq.SE2.identity(dtype=F64), place, measured)
    torch.testing.assert_close(found, torch.tensor([-2e-3], dtype=F64), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_place_at_the_pose_is_finite(dim, dtype):
    group = mslsq.SE2 if dim == 2 else mslsq.SE3
    pose, place = group.identity(dtype=dtype), torch.zeros(dim, dtype=dtype)
    bearing = torch.tensor(0.3, dtype=dtype) if dim == 2 else torch.tensor([0.6, 0.0, 0.8], dtype=dtype)
    distance = torch.tensor(2.0, dtype=dtype)

    def found(delta, place):
        return residual(factors.BearingRange, pose.retract(delta), place, bearing, distance)

    zero = torch.zeros(group.tangent_dim, dtype=dtype)
    expected = torch.tensor([*[0.0] * (dim - 1), -2.0], dtype=dtype)
    torch.testing.assert_close(found(zero, place), expected, rtol=0, atol=4 * torch.finfo(dtype).eps)
    for derivative in (jacfwd, jacrev):
        for part in derivative(found, (0, 1))(zero, place):
            assert not part.any()
    assert bool(jacfwd(jacrev(found, 1), 1)(zero, place).isfinite().all())
    opposite = -bearing if dim == 3 else torch.stack((-bearing.cos(), -bearing.sin()))
    assert bool(jacrev(found, 1)(zero, opposite).isfinite().all())


@pytest.mark.parametrize("dim", [2, 3])
def test_a_product_is_a_pose(dim):
    """With its translation in the frame of the world, so that a height can be held."""
    group, turn = (mslsq.SE2, mslsq.SO2) if dim == 2 else (mslsq.SE3, mslsq.SO3)
    pose, place = group.exp(draw(0, group.tangent_dim)), draw(1, dim)
    product = {"translation": pose.translation, "rotation": pose.rotation}
    bearing = torch.tensor(0.3, dtype=F64) if dim == 2 else torch.tensor([0.6, 0.0, 0.8], dtype=F64)
    for kind, data in (
        (factors.Bearing, (bearing,)),
        (factors.Range, (torch.tensor(1.0, dtype=F64),)),
        (factors.Landmark, (place,)),
    ):
        torch.testing.assert_close(residual(kind, product, place, *data), residual(kind, pose, place, *data))
    fix = residual(factors.Position, product, place, lever=place)
    torch.testing.assert_close(fix, pose.act(place) - place)
    pose_variable = mslsq.Variable("pose", {"translation": mslsq.Euclidean(dim), "rotation": turn})
    cost = factors.Landmark(pose_variable, mslsq.Variable("place", mslsq.Euclidean(dim)), measured=place[None])
    assert mslsq.check_jacobian(cost, {"pose": product, "place": place}).ok


def test_a_landmark_is_seen_in_the_frame_of_the_pose():
    pose, place = mslsq.SE3.exp(draw(0, 6)), draw(1, 3)
    expected = pose.matrix()[:3, :3].numpy().T @ (place - pose.translation).numpy()
    torch.testing.assert_close(residual(factors.Landmark, pose, place, 0 * place), torch.from_numpy(expected))


def test_scans_are_aligned_on_planes():
    """Three walls and a rotated scan of them."""
    generator = torch.Generator().manual_seed(0)
    normals = torch.eye(3, dtype=F64).repeat(30, 1)
    on_plane = torch.rand(90, 3, generator=generator, dtype=F64) * (1 - normals)
    truth = mslsq.SE3.exp(0.2 * draw(1, 6))
    # the scan has other points of the walls than the map
    scan = truth.inverse().act(torch.rand(90, 3, generator=generator, dtype=F64) * (1 - normals))
    pose = mslsq.Variable("pose", mslsq.SE3)
    cost = factors.PointToPlane(pose, point=scan, on_plane=on_plane, normal=normals)
    solution = mslsq.solve(mslsq.Problem(cost), {"pose": mslsq.SE3.identity(dtype=F64)})
    torch.testing.assert_close(truth.local(solution.value["pose"]), torch.zeros(6, dtype=F64), rtol=0, atol=1e-7)
    moved = truth.matrix().numpy()
    expected = np.einsum("ni,ni->n", normals, scan.numpy() @ moved[:3, :3].T + moved[:3, 3] - on_plane.numpy())
    found = mslsq.evaluate(mslsq.Problem(cost), {"pose": truth}).residuals["point_to_plane"][:, 0]
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-14)


# ---- fields of distances


@pytest.mark.parametrize("dim", [2, 3])
def test_a_field_is_interpolated_as_by_scipy(dim):
    from scipy.interpolate import RegularGridInterpolator

    shape = (5, 7, 4)[:dim]
    field, origin, cell = draw(0, *shape), draw(1, dim), 0.3
    axes = [origin[d].item() + cell * np.arange(shape[d]) for d in range(dim)]
    generator = torch.Generator().manual_seed(2)
    places = origin + cell * (torch.tensor(shape) - 1) * torch.rand(40, dim, generator=generator, dtype=F64)
    expected = np.maximum(0.2 - RegularGridInterpolator(axes, field.numpy())(places.numpy()), 0)
    at = lambda p: residual(factors.Collision, p, field, origin, cell, 0.2)  # noqa: E731
    found = vmap(at)(places)
    torch.testing.assert_close(found[:, 0], torch.from_numpy(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(jacrev(at)(places[0]), differences(at, places[0], 1e-6), rtol=1e-7, atol=1e-7)
    # outside: of the nearest place inside, without an end
    far = origin - 1
    assert float(at(far)) == pytest.approx(max(0.2 - float(field[(0,) * dim]), 0))
    assert not jacrev(at)(far).any()
    last = origin + cell * (torch.tensor(shape) - 1)
    assert float(at(last)) == pytest.approx(max(0.2 - float(field[(-1,) * dim]), 0))


def test_a_body_is_pushed_out_of_an_obstacle():
    nodes = torch.stack(
        torch.meshgrid(torch.linspace(-2, 2, 41), torch.linspace(-2, 2, 41), indexing="ij"), -1
    ).double()
    field = nodes.norm(dim=-1) - 0.5
    pose, lever = mslsq.Variable("pose", mslsq.SE2), torch.tensor([0.2, 0.0], dtype=F64)
    given = {"distance": mslsq.Shared(field), "origin": mslsq.Shared(nodes[0, 0]), "cell": 0.1}
    problem = mslsq.Problem(
        factors.Collision(pose, **given, margin=0.3, lever=mslsq.Shared(lever), weight=10.0),
        mslsq.Prior(pose, target=mslsq.SE2.from_xyt(torch.tensor([[0.3, 0.1, 0.2]], dtype=F64)), weight=0.1),
    )
    start = {"pose": mslsq.SE2.from_xyt(torch.tensor([0.3, 0.1, 0.2], dtype=F64))}
    found = mslsq.solve(problem, start).value["pose"].act(lever)
    assert float(found.norm()) == pytest.approx(0.8, abs=0.01)


@pytest.mark.slow
def test_a_motion_of_constant_velocity_has_no_cost():
    rates, times = draw(0, 6), torch.tensor([0.0, 0.4, 1.0, 1.1], dtype=F64)
    poses = mslsq.SE3.exp(draw(1, 6)) @ mslsq.SE3.exp(times[:, None] * rates)
    pose, rate = mslsq.Variable("pose", mslsq.SE3, 4), mslsq.Variable("rate", mslsq.Euclidean(6), 4)
    i, dt = torch.arange(3), times.diff()
    weight = factors.white_acceleration(dt, torch.ones(6, dtype=F64))
    cost = factors.ConstantVelocity(pose[i], rate[i], pose[i + 1], rate[i + 1], dt=dt, weight=weight)
    values = {"pose": poses, "rate": rates.expand(4, 6)}
    assert float(mslsq.evaluate(mslsq.Problem(cost), values).cost) < 1e-24
    assert mslsq.check_jacobian(cost, {"pose": poses, "rate": draw(3, 4, 6)}).ok
    # the weight is the inverse of the covariance that the docstring states
    whitening = weight.value[0]
    step = float(dt[0])
    small = torch.tensor([[step**3 / 3, step**2 / 2], [step**2 / 2, step]], dtype=F64)
    covariance = torch.kron(small, torch.eye(6, dtype=F64))
    torch.testing.assert_close(whitening @ covariance @ whitening.mT, torch.eye(12, dtype=F64), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="times in their order"):
        factors.white_acceleration(-dt, torch.ones(6))
