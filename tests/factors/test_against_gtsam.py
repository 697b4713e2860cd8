"""Residuals at random poses are those of GTSAM's factors, in the units and orders that the docstrings state."""

import math

import numpy as np
import pytest
import torch

import mslsq
from mslsq import factors

gtsam = pytest.importorskip("gtsam")

F64 = torch.float64
UNIT = {rows: gtsam.noiseModel.Unit.Create(rows) for rows in (1, 2, 3, 6, 12)}


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def pose3(pose):
    return gtsam.Pose3(pose.matrix().numpy())


def pose2(pose):
    return gtsam.Pose2(*pose.xyt().tolist())


def values(*elements):
    found = gtsam.Values()
    for key, element in enumerate(elements):
        found.insert(key, element)
    return found


def residual(cost, *variables):
    """Of one block, by `mslsq.evaluate`."""
    names = [reference.variable.name for reference in cost.references]
    return mslsq.evaluate(mslsq.Problem(cost), dict(zip(names, variables, strict=True))).residuals[cost.name][0]


def variables(*kinds):
    return [mslsq.Variable(f"x{k}", kind) for k, kind in enumerate(kinds)]


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=F64).reshape(found.shape), rtol=1e-11, atol=atol)


@pytest.mark.parametrize("seed", range(5))
def test_bearing_and_range_in_the_plane(seed):
    pose, point = mslsq.SE2.exp(draw(seed, 3)), draw(seed + 50, 2)
    angle, distance = 9 * draw(seed + 99, 1), draw(seed + 7, 1).abs()
    x, y = variables(mslsq.SE2, mslsq.Euclidean(2))
    at = values(pose2(pose), point.numpy())
    rotation = gtsam.Rot2(float(angle))
    bearing = gtsam.BearingFactor2D(0, 1, rotation, UNIT[1]).unwhitenedError(at)
    range_ = gtsam.RangeFactor2D(0, 1, float(distance), UNIT[1]).unwhitenedError(at)
    both = gtsam.BearingRangeFactor2D(0, 1, rotation, float(distance), UNIT[2]).unwhitenedError(at)
    close(residual(factors.Bearing(x, y, measured=angle), pose, point), bearing)
    close(residual(factors.Range(x, y, measured=distance), pose, point), range_)
    close(residual(factors.BearingRange(x, y, bearing=angle, range=distance), pose, point), both)
    other = mslsq.SE2.exp(draw(seed + 11, 3))
    x, y = variables(mslsq.SE2, mslsq.SE2)
    at = values(pose2(pose), pose2(other))
    expected = gtsam.BearingRangeFactorPose2(0, 1, rotation, float(distance), UNIT[2]).unwhitenedError(at)
    close(residual(factors.BearingRange(x, y, bearing=angle, range=distance), pose, other), expected)


@pytest.mark.parametrize("seed", range(5))
def test_bearing_and_range_in_space(seed):
    """A direction has no preferred basis: the length of its residual is compared, the angle."""
    pose, point = mslsq.SE3.exp(draw(seed, 6)), draw(seed + 50, 3)
    direction = torch.nn.functional.normalize(draw(seed + 99, 1, 3), dim=-1)
    distance = draw(seed + 7, 1).abs()
    x, y = variables(mslsq.SE3, mslsq.Euclidean(3))
    at = values(pose3(pose), point.numpy())
    bearing = gtsam.BearingFactor3D(0, 1, gtsam.Unit3(direction[0].numpy()), UNIT[2]).unwhitenedError(at)
    found = residual(factors.Bearing(x, y, measured=direction), pose, point)
    close(found.norm(), math.hypot(*bearing))
    again = residual(factors.Bearing(x, y, measured=mslsq.UnitVector(direction)), pose, point)
    close(again, found)
    range_ = gtsam.RangeFactor3D(0, 1, float(distance), UNIT[1]).unwhitenedError(at)
    close(residual(factors.Range(x, y, measured=distance), pose, point), range_)
    both = residual(factors.BearingRange(x, y, bearing=direction, range=distance), pose, point)
    close(both, torch.cat((found, torch.as_tensor(range_))))


def test_ranges_between_points_and_between_poses():
    a, b, distance = draw(0, 3), draw(1, 3), draw(2, 1).abs()
    x, y = variables(mslsq.Euclidean(3), mslsq.Euclidean(3))
    expected = gtsam.RangeFactor3(0, 1, float(distance), UNIT[1]).unwhitenedError(values(a.numpy(), b.numpy()))
    close(residual(factors.Range(x, y, measured=distance), a, b), expected)
    a, b = mslsq.SE3.exp(draw(0, 6)), mslsq.SE3.exp(draw(1, 6))
    x, y = variables(mslsq.SE3, mslsq.SE3)
    expected = gtsam.RangeFactorPose3(0, 1, float(distance), UNIT[1]).unwhitenedError(values(pose3(a), pose3(b)))
    close(residual(factors.Range(x, y, measured=distance), a, b), expected)


def test_a_position_with_and_without_a_lever():
    pose, fix, arm = mslsq.SE3.exp(draw(0, 6)), draw(1, 1, 3), draw(2, 3)
    (x,) = variables(mslsq.SE3)
    expected = gtsam.GPSFactor(0, fix[0].numpy(), UNIT[3]).unwhitenedError(values(pose3(pose)))
    close(residual(factors.Position(x, measured=fix), pose), expected)
    expected = gtsam.GPSFactorArm(0, fix[0].numpy(), arm.numpy(), UNIT[3]).unwhitenedError(values(pose3(pose)))
    close(residual(factors.Position(x, measured=fix, lever=mslsq.Shared(arm)), pose), expected)


CAMERAS = {
    "Cal3_S2": (factors.PinholeProjection, [500.0, 480.0, 1.5, 320.0, 240.0]),
    "Cal3DS2": (factors.RadialTangentialProjection, [500.0, 480.0, 1.5, 320.0, 240.0, -0.2, 0.05, 1e-3, -2e-3]),
    "Cal3Fisheye": (factors.FisheyeProjection, [300.0, 310.0, 0.5, 320.0, 240.0, -0.03, 0.01, -0.004, 0.001]),
}


@pytest.mark.parametrize("name", CAMERAS)
@pytest.mark.parametrize("seed", range(3))
def test_cameras(name, seed):
    kind, numbers = CAMERAS[name]
    calibration = getattr(gtsam, name)(*numbers)
    pose, sensor = mslsq.SE3.exp(draw(seed, 6)), mslsq.SE3.exp(0.3 * draw(seed + 5, 6))
    seen = torch.cat((draw(seed + 1, 2), draw(seed + 2, 1).abs() + 1))
    point, pixel = (pose @ sensor).act(seen), 300 + 100 * draw(seed + 3, 1, 2)
    intrinsics = torch.tensor(numbers, dtype=F64)
    x, y, k = variables(mslsq.SE3, mslsq.Euclidean(3), mslsq.Euclidean(len(numbers)))
    make = getattr(gtsam, f"GenericProjectionFactor{name}")
    expected = make(pixel[0].numpy(), UNIT[2], 0, 1, calibration, pose3(sensor)).unwhitenedError(
        values(pose3(pose), point.numpy())
    )
    shared = {"sensor": mslsq.Shared(sensor), "intrinsics": mslsq.Shared(intrinsics)}
    close(residual(kind(x, y, pixel=pixel, **shared), pose, point), expected, 1e-9)
    # the intrinsics as a variable
    camera = pose @ sensor
    at = values(pose3(camera), point.numpy(), calibration)
    expected = getattr(gtsam, f"GeneralSFMFactor2{name}")(pixel[0].numpy(), UNIT[2], 0, 1, 2).unwhitenedError(at)
    close(residual(kind(x, y, k, pixel=pixel), camera, point, intrinsics), expected, 1e-9)


def test_a_point_behind_the_camera_has_the_residual_that_is_asked_for():
    kind, numbers = CAMERAS["Cal3_S2"]
    point, pixel = torch.tensor([0.1, 0.2, -3.0], dtype=F64), torch.zeros(1, 2, dtype=F64)
    x, y = variables(mslsq.SE3, mslsq.Euclidean(3))
    pose = mslsq.SE3.identity(dtype=F64)
    factor = gtsam.GenericProjectionFactorCal3_S2(pixel[0].numpy(), UNIT[2], 0, 1, gtsam.Cal3_S2(*numbers))
    expected = factor.unwhitenedError(values(pose3(pose), point.numpy()))
    cost = kind(x, y, pixel=pixel, intrinsics=mslsq.Shared(torch.tensor(numbers, dtype=F64)), unseen=2 * numbers[0])
    close(residual(cost, pose, point), expected)


@pytest.mark.parametrize("seed", range(3))
def test_stereo(seed):
    numbers = [500.0, 480.0, 320.0, 240.0, 0.12]
    pose = mslsq.SE3.exp(draw(seed, 6))
    point = pose.act(torch.cat((draw(seed + 1, 2), draw(seed + 2, 1).abs() + 1)))
    pixel = 300 + 100 * draw(seed + 3, 1, 3)
    x, y = variables(mslsq.SE3, mslsq.Euclidean(3))
    factor = gtsam.GenericStereoFactor3D(
        gtsam.StereoPoint2(*pixel[0].tolist()), UNIT[3], 0, 1, gtsam.Cal3_S2Stereo(*numbers[:2], 0.0, *numbers[2:])
    )
    expected = factor.unwhitenedError(values(pose3(pose), point.numpy()))
    cost = factors.Stereo(x, y, pixel=pixel, intrinsics=mslsq.Shared(torch.tensor(numbers, dtype=F64)))
    close(residual(cost, pose, point), expected, 1e-9)


@pytest.mark.parametrize("kind", ["Pose3", "Pose2", "Point3"])
def test_the_gaussian_process_prior(kind):
    """GTSAM's tangents have the rotation first; Pose2's have not."""
    group = {"Pose3": mslsq.SE3, "Pose2": mslsq.SE2, "Point3": mslsq.Euclidean(3)}[kind]
    n = 6 if kind == "Pose3" else 3
    order = [3, 4, 5, 0, 1, 2] if kind == "Pose3" else [0, 1, 2]
    dt, density = 0.3, draw(9, n).abs() + 0.2
    rates = draw(3, n), draw(4, n)
    if kind == "Point3":
        states = draw(0, 3), draw(1, 3)
        ends = [state.numpy() for state in states]
    else:
        states = group.exp(draw(0, n)), group.exp(draw(1, n))
        ends = [(pose3 if kind == "Pose3" else pose2)(state) for state in states]
    at = values(ends[0], rates[0][order].numpy(), ends[1], rates[1][order].numpy())
    factor = getattr(gtsam, f"WnoaMotionFactor{kind}")(
        gtsam.StateData(0, 1, 1.0), gtsam.StateData(2, 3, 1.0 + dt), density[order].numpy()
    )
    a, va, b, vb = variables(group, mslsq.Euclidean(n), group, mslsq.Euclidean(n))
    times = torch.tensor([dt], dtype=F64)
    plain = factors.ConstantVelocity(a, va, b, vb, dt=times)
    found = residual(plain, states[0], rates[0], states[1], rates[1])
    twice = order + [n + k for k in order]
    close(found[twice].abs(), torch.as_tensor(factor.unwhitenedError(at)).abs(), 1e-10)
    weight = factors.white_acceleration(times, density)
    weighted = factors.ConstantVelocity(a, va, b, vb, dt=times, weight=weight)
    at_states = dict(zip(("x0", "x1", "x2", "x3"), (states[0], rates[0], states[1], rates[1]), strict=True))
    cost = mslsq.evaluate(mslsq.Problem(weighted), at_states).cost
    close(cost, factor.error(at), 1e-9)


# Tangents of Pose3 have the rotation first, those of Pose2 the translation, as all have here.
ORDER = {3: [0, 1, 2], 6: [3, 4, 5, 0, 1, 2]}


def array(*shape):
    """Where GTSAM writes a derivative."""
    return np.zeros(shape, order="F")


def in_our_order(by_pose):
    """A derivative in GTSAM's tangent of a pose, in the order of ours."""
    tangent = by_pose.shape[1]
    return by_pose[:, ORDER[tangent] if tangent == 3 else np.argsort(ORDER[tangent])]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dim", [2, 3])
def test_a_landmark(dim, seed):
    """`KnownLandmarkFactor` for a point that is known; `transformTo` for one that is not, with both derivatives."""
    group, to_gtsam = (mslsq.SE2, pose2) if dim == 2 else (mslsq.SE3, pose3)
    tangent = 3 * dim - 3
    pose, point, seen = group.exp(draw(seed, tangent)), 2 * draw(seed + 50, dim), draw(seed + 99, 1, dim)
    x, y = variables(group, mslsq.Euclidean(dim))
    cost = factors.Landmark(x, y, measured=seen)
    found = residual(cost, pose, point)
    known = getattr(gtsam, f"KnownLandmarkFactorPose{dim}")(0, point.numpy(), seen[0].numpy(), UNIT[dim])
    at = values(to_gtsam(pose))
    close(found, known.unwhitenedError(at))
    by_pose, by_point = cost.jacobians(pose, point, measured=seen[0])
    matrix, offset = known.linearize(at).jacobian()
    close(by_pose, in_our_order(matrix))
    close(found, -offset)
    theirs = array(dim, tangent), array(dim, dim)
    close(found + seen[0], to_gtsam(pose).transformTo(point.numpy(), *theirs))
    close(by_pose, in_our_order(theirs[0]))
    close(by_point, theirs[1])


@pytest.mark.parametrize("seed", range(5))
def test_a_point_on_a_plane(seed):
    """`OrientedPlane3.transform` carries the plane into the frame of the pose; the residual is the distance of the
    point from it there, n'·p + d', where GTSAM's planes are n·x + d = 0."""
    pose, point, on_plane = mslsq.SE3.exp(draw(seed, 6)), draw(seed + 50, 3), draw(seed + 99, 3)
    normal = torch.nn.functional.normalize(draw(seed + 7, 3), dim=0)
    plane = gtsam.OrientedPlane3(gtsam.Unit3(normal.numpy()), -float(normal @ on_plane))
    by_plane, by_pose = array(3, 3), array(3, 6)
    there = plane.transform(pose3(pose), by_plane, by_pose)
    (x,) = variables(mslsq.SE3)
    cost = factors.PointToPlane(x, point=point[None], on_plane=on_plane[None], normal=normal[None])
    close(residual(cost, pose), there.normal().point3() @ point.numpy() + there.distance())
    expected = point.numpy() @ there.normal().basis() @ by_pose[:2] + by_pose[2]
    (found,) = cost.jacobians(pose, point=point, on_plane=on_plane, normal=normal)
    close(found, in_our_order(expected[None]))


@pytest.mark.parametrize("seed", range(5))
def test_a_panorama(seed):
    """`SphericalCamera` has the direction in the frame of the camera, with its derivatives, and no pixels. Longitude
    and latitude are computed here by half angles and the arc sine, on the image of OpenMVG's `Intrinsic_Spherical`."""
    size, pixel = np.array([400.0, 200.0]), 100 + 50 * draw(seed + 3, 1, 2)
    pose, point = mslsq.SE3.exp(draw(seed, 6)), 3 * draw(seed + 50, 3)
    by_pose, by_point = array(2, 6), array(2, 3)
    direction = gtsam.SphericalCamera(pose3(pose)).project(point.numpy(), by_pose, by_point)
    x, y, z = direction.point3()
    level = math.hypot(x, z)
    turned = np.array([2 * math.atan2(x, level + z), math.asin(y)])
    expected = size * turned / (2 * math.pi, math.pi) + (size - 1) / 2
    a, b = variables(mslsq.SE3, mslsq.Euclidean(3))
    shared = mslsq.Shared(torch.as_tensor(size))
    cost = factors.EquirectangularProjection(a, b, intrinsics=shared, pixel=pixel)
    found = residual(cost, pose, point)
    difference = expected - pixel[0].numpy()
    difference[0] -= size[0] * round(difference[0] / size[0])
    close(found, difference, 1e-10)
    along = np.array([[z, 0, -x], [-x * y, level**2, -z * y]]) / [[level**2], [level]]  # of λ, and of φ
    slopes = along * (size / (2 * math.pi, math.pi))[:, None]
    found_by = torch.func.jacfwd(
        lambda pose_delta, point_delta: cost.residual(
            pose.retract(pose_delta), point + point_delta, intrinsics=torch.as_tensor(size), pixel=pixel[0]
        ),
        argnums=(0, 1),
    )(torch.zeros(6, dtype=F64), torch.zeros(3, dtype=F64))
    close(found_by[0], in_our_order(slopes @ direction.basis() @ by_pose), 1e-9)
    close(found_by[1], slopes @ direction.basis() @ by_point, 1e-9)
