"""Preintegration against GTSAM's, finite differences, and a motion whose integrals are known."""

import pytest
import torch
from torch.func import jacrev

import mslsq
from mslsq import factors
from tests.differences import differences

F64 = torch.float64
NOISE = {"accelerometer_noise": 0.02, "gyroscope_noise": 0.003, "integration_noise": 0.001}
GRAVITY = torch.tensor([0.0, 0.0, -9.81], dtype=F64)
DT = 0.01


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def samples(intervals=3, count=20):
    return 2 * draw(0, intervals, count, 3) + 5, draw(1, intervals, count, 3), 0.1 * draw(2, intervals, 6)


def by_gtsam(gtsam, acceleration, turns, bias):
    parameters = gtsam.PreintegrationParams(GRAVITY.numpy())
    unit = torch.eye(3, dtype=F64).numpy()
    parameters.setAccelerometerCovariance(NOISE["accelerometer_noise"] ** 2 * unit)
    parameters.setGyroscopeCovariance(NOISE["gyroscope_noise"] ** 2 * unit)
    parameters.setIntegrationCovariance(NOISE["integration_noise"] ** 2 * unit)
    own = gtsam.imuBias.ConstantBias(bias[:3].numpy(), bias[3:].numpy())
    found = gtsam.PreintegratedImuMeasurementsManifold(parameters, own)
    for a, w in zip(acceleration, turns, strict=True):
        found.integrateMeasurement(a.numpy(), w.numpy(), DT)
    return found


def test_all_figures_are_those_of_gtsam():
    gtsam = pytest.importorskip("gtsam")
    acceleration, turns, bias = samples()
    imu = factors.preintegrate(acceleration, turns, DT, bias, **NOISE)
    for k in range(3):
        found = by_gtsam(gtsam, acceleration[k], turns[k], bias[k])
        close = lambda a, b, atol=1e-12: torch.testing.assert_close(a, torch.as_tensor(b), rtol=1e-10, atol=atol)  # noqa: E731
        close(imu.position[k], found.deltaPij())
        close(imu.velocity[k], found.deltaVij())
        rotation = imu.rotation[k].matrix()
        close(rotation, found.deltaRij().matrix())
        close(imu.duration[k, 0], torch.tensor(found.deltaTij(), dtype=F64))
        # GTSAM's errors are (rotation, position, velocity), the last two in the frame at the end.
        turn = torch.block_diag(rotation.mT, torch.eye(3, dtype=F64), rotation.mT)
        order = [3, 4, 5, 0, 1, 2, 6, 7, 8]
        close((turn @ imu.covariance[k] @ turn.mT)[order][:, order], found.preintMeasCov(), 1e-15)


def test_the_prediction_with_another_bias_is_that_of_gtsam():
    """To first order in the bias, as there."""
    gtsam = pytest.importorskip("gtsam")
    acceleration, turns, bias = samples()
    imu = factors.preintegrate(acceleration, turns, DT, bias, **NOISE)
    change, pose, velocity = 0.05 * draw(3, 6), mslsq.SE3.exp(draw(4, 6)), draw(5, 3)
    for k in range(3):
        found = by_gtsam(gtsam, acceleration[k], turns[k], bias[k])
        other = bias[k] + change
        state = gtsam.NavState(gtsam.Pose3(pose.matrix().numpy()), velocity.numpy())
        end = found.predict(state, gtsam.imuBias.ConstantBias(other[:3].numpy(), other[3:].numpy()))
        at = mslsq.SE3.from_matrix(torch.as_tensor(end.pose().matrix()))
        one = [part[k : k + 1] for part in imu]
        residual = residual_of(factors.Preintegrated(*one), pose, velocity, at, torch.as_tensor(end.velocity()), other)
        torch.testing.assert_close(residual, torch.zeros(9, dtype=F64), rtol=0, atol=1e-11)


def cost_of(imu, **options):
    kinds = mslsq.SE3, mslsq.Euclidean(3), mslsq.SE3, mslsq.Euclidean(3), mslsq.Euclidean(6)
    states = [mslsq.Variable(name, kind) for name, kind in zip("avbwu", kinds, strict=True)]
    return factors.Inertial(*states, measured=imu, gravity=mslsq.Shared(GRAVITY), **options)


def residual_of(imu, *states):
    values = dict(zip("avbwu", states, strict=True))
    return mslsq.evaluate(mslsq.Problem(cost_of(imu)), values).residuals["inertial"][0]


def test_the_derivative_by_the_bias_is_that_of_preintegration():
    acceleration, turns, bias = samples(1)

    def integrated(b):
        imu = factors.preintegrate(acceleration[0], turns[0], DT, b)
        turned = reference.rotation.local(imu.rotation)
        return torch.cat((imu.position, turned, imu.velocity))

    reference = factors.preintegrate(acceleration[0], turns[0], DT, bias[0])
    torch.testing.assert_close(reference.by_bias, differences(integrated, bias[0]), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(jacrev(integrated)(bias[0]), reference.by_bias, rtol=1e-9, atol=1e-11)


def test_the_covariance_is_that_of_many_draws():
    acceleration, turns, _ = samples(1, 10)
    imu = factors.preintegrate(acceleration[0], turns[0], DT, accelerometer_noise=0.02, gyroscope_noise=0.003)
    count = 20_000
    root = DT**-0.5
    drawn = factors.preintegrate(
        acceleration + 0.02 * root * draw(7, count, 10, 3), turns + 0.003 * root * draw(8, count, 10, 3), DT
    )
    errors = torch.cat(
        (drawn.position - imu.position, imu.rotation.local(drawn.rotation), drawn.velocity - imu.velocity), -1
    )
    scale = imu.covariance.diagonal().sqrt()
    found, expected = torch.cov((errors / scale).mT), imu.covariance / (scale[:, None] * scale)
    torch.testing.assert_close(found, expected, rtol=0, atol=5 / count**0.5)


def test_a_circle_is_integrated():
    """A body that turns at one rad/s on a circle of radius 2: constant measurements, known ends."""
    turned = 1.0

    def error(count):
        dt = turned / count
        up = -GRAVITY.expand(count, 3)
        inwards = torch.tensor([0.0, 2.0, 0.0], dtype=F64)  # to the left of where it goes
        turns = torch.tensor([0.0, 0.0, 1.0], dtype=F64).expand(count, 3)
        imu = factors.preintegrate(up + inwards, turns, dt)
        at = lambda t: mslsq.SE3.from_matrix(  # noqa: E731
            torch.tensor(
                [
                    [torch.cos(t), -torch.sin(t), 0, 2 * torch.sin(t)],
                    [torch.sin(t), torch.cos(t), 0, -2 * torch.cos(t)],
                    [0, 0, 1, 0],
                ],
                dtype=F64,
            )
        )
        speed = lambda t: 2 * torch.stack((torch.cos(t), torch.sin(t), torch.zeros_like(t)))  # noqa: E731
        ends = [torch.tensor(t, dtype=F64) for t in (0.0, turned)]
        one = factors.Preintegrated(*[part[None] for part in imu])
        states = at(ends[0]), speed(ends[0]), at(ends[1]), speed(ends[1]), torch.zeros(6, dtype=F64)
        return float(residual_of(one, *states).norm())

    assert error(100) < 0.02
    assert error(100) / error(200) == pytest.approx(2, abs=0.1)  # of first order over an interval of fixed length


def test_samples_that_last_no_time_are_not_there():
    acceleration, turns, bias = samples(1, 10)
    short = factors.preintegrate(acceleration[:, :7], turns[:, :7], DT, bias, **NOISE)
    times = torch.full((1, 10), DT, dtype=F64)
    times[:, 7:] = 0
    padded = factors.preintegrate(acceleration, turns, times, bias, **NOISE)
    for a, b in zip(short, padded, strict=True):
        a, b = (x.storage if isinstance(x, mslsq.SO3) else x for x in (a, b))
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15)


def test_a_singular_covariance_has_no_weight():
    acceleration, turns, _ = samples(1, 1)
    with pytest.raises(ValueError, match="at least two samples"):
        factors.preintegrate(acceleration, turns, DT, accelerometer_noise=0.1, gyroscope_noise=0.1).weight()


def test_jacobians_and_the_recovery_of_a_bias():
    """A body that tumbles: its biases, poses and velocities from its sensor and fixes of its position."""
    intervals, count = 8, 25
    acceleration, turns, _ = samples(intervals, count)
    true_bias = torch.tensor([0.1, -0.2, 0.05, 0.02, -0.01, 0.03], dtype=F64)
    clean = factors.preintegrate(acceleration, turns, DT)
    poses, velocities = [mslsq.SE3.identity(dtype=F64)], [torch.zeros(3, dtype=F64)]
    for k in range(intervals):
        pose, v, t = poses[-1], velocities[-1], clean.duration[k]
        moved = pose.translation + v * t + 0.5 * GRAVITY * t**2 + pose.rotation.act(clean.position[k])
        poses.append(mslsq.SE3.from_parts(pose.rotation @ clean.rotation[k], moved))
        velocities.append(v + GRAVITY * t + pose.rotation.act(clean.velocity[k]))
    imu = factors.preintegrate(acceleration + true_bias[:3], turns + true_bias[3:], DT, **NOISE)
    assert mslsq.check_jacobian(cost_of(factors.Preintegrated(*[part[:1] for part in imu]))).ok
    pose = mslsq.Variable("pose", mslsq.SE3, intervals + 1)
    v, u = mslsq.Variable("v", mslsq.Euclidean(3), intervals + 1), mslsq.Variable("u", mslsq.Euclidean(6))
    i = torch.arange(intervals)
    truth = mslsq.SE3(torch.stack([p.storage for p in poses]))
    problem = mslsq.Problem(
        factors.Inertial(
            pose[i], v[i], pose[i + 1], v[i + 1], u, measured=imu, gravity=mslsq.Shared(GRAVITY), weight=imu.weight()
        ),
        factors.Position(pose, measured=truth.translation, weight=1e3),
    )
    start = {"pose": truth.retract(0.05 * draw(5, intervals + 1, 6)), "v": torch.stack(velocities), "u": 0 * true_bias}
    solution = mslsq.solve(problem, start)
    # the correction for the bias is of first order: preintegrate with what was found, once more
    imu = factors.preintegrate(
        acceleration + true_bias[:3], turns + true_bias[3:], DT, solution.value["u"].expand(intervals, 6), **NOISE
    )
    data = {"inertial": {"measured": imu}}
    solution = mslsq.solve(problem, solution.value, data)
    assert bool(solution.converged)
    torch.testing.assert_close(solution.value["u"], true_bias, rtol=0, atol=2e-4)
    torch.testing.assert_close(solution.value["pose"].storage[:, :3], truth.translation, rtol=0, atol=1e-5)
