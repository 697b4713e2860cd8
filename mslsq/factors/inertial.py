"""Accelerometers and gyroscopes: what they measure between two times, integrated once and for all.

Forster, Carlone, Dellaert and Scaramuzza, "On-manifold preintegration for real-time visual-inertial odometry", 2017.
Vectors of nine are (position, rotation, velocity), as in SE3's tangent; biases are (accelerometer, gyroscope).
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.factors.places import pose_of
from mslsq.manifolds import SO3
from mslsq.manifolds.lie_group import hat
from mslsq.problem import CostFunction, SqrtInformation


class Preintegrated(NamedTuple):
    """What an inertial sensor has measured between two times, in the frame of the first; made by `preintegrate`.

    A pytree: data of `Inertial` as it is, with one entry per interval.
    """

    position: Float[Tensor, "*batch 3"]
    """∬ R a, without gravity and the velocity at the beginning."""
    rotation: SO3
    """Of the body at the end, in its frame at the beginning."""
    velocity: Float[Tensor, "*batch 3"]
    """∫ R a."""
    duration: Float[Tensor, "*batch 1"]
    bias: Float[Tensor, "*batch 6"]
    """That was taken from the measurements."""
    by_bias: Float[Tensor, "*batch 9 6"]
    """The first derivative of (position, rotation, velocity) by the bias, rotations moved on the right."""
    covariance: Float[Tensor, "*batch 9 9"]
    """Of the errors of (position, rotation, velocity)."""

    def weight(self) -> SqrtInformation:
        """The weight of `Inertial`: the inverse of the covariance's lower factor.

        Raises:
            ValueError: the covariance has none, from a single sample without `integration_noise` say.
        """
        factor, info = torch.linalg.cholesky_ex(self.covariance)
        if bool((info != 0).any()):
            raise ValueError(
                "Preintegrated.weight: a covariance is singular. Give both noises, and at least two samples in every "
                "interval or an integration_noise."
            )
        unit = torch.eye(9, dtype=factor.dtype, device=factor.device).expand_as(factor)
        return SqrtInformation(torch.linalg.solve_triangular(factor, unit, upper=False))


def preintegrate(
    acceleration: Float[Tensor, "*batch samples 3"],
    angular_velocity: Float[Tensor, "*batch samples 3"],
    dt: Float[Tensor, "*batch samples"] | float,
    bias: Float[Tensor, "*batch 6"] | None = None,
    *,
    accelerometer_noise: float = 0.0,
    gyroscope_noise: float = 0.0,
    integration_noise: float = 0.0,
) -> Preintegrated:
    """What an inertial sensor has measured over intervals, with its derivatives by the bias and its covariance.

    A sample holds for its dt, in the frame at the beginning of it, as in GTSAM: over an interval errors are of first
    order in dt. All intervals at once; differentiable in everything.

    Args:
        acceleration: specific force in the frame of the body (a sensor at rest measures the opposite of gravity), m/s².
        angular_velocity: in the frame of the body, rad/s.
        dt: how long each sample holds, seconds, a number or what broadcasts; zero for samples that an interval lacks.
        bias: (accelerometer, gyroscope), taken from the measurements; zero by default. `Inertial` corrects for another
            one to first order.
        accelerometer_noise, gyroscope_noise: densities of white noise, m/s²/√Hz and rad/s/√Hz.
        integration_noise: density of the error of the position, m/√s.

    GTSAM: `PreintegratedImuMeasurements`, whose parameters are the squares of these noises.

    >>> imu = factors.preintegrate(acceleration, gyro, 0.005, accelerometer_noise=2e-3, gyroscope_noise=1.7e-4)
    >>> imu.rotation.shape, imu.covariance.shape
    (torch.Size([100]), torch.Size([100, 9, 9]))
    """
    batch = acceleration.shape[:-2]
    new = acceleration.new_zeros
    if bias is None:
        bias = new(*batch, 6)
    times = torch.as_tensor(dt, dtype=acceleration.dtype, device=acceleration.device).expand(acceleration.shape[:-1])
    forces, turns = acceleration - bias[..., None, :3], angular_velocity - bias[..., None, 3:]
    state = Preintegrated(
        new(*batch, 3),
        SO3.identity(*batch, dtype=acceleration.dtype, device=acceleration.device),
        new(*batch, 3),
        new(*batch, 1),
        bias.expand(*batch, 6),
        new(*batch, 9, 6),
        new(*batch, 9, 9),
    )
    noises = accelerometer_noise, gyroscope_noise, integration_noise
    for force, turn, time in zip(forces.unbind(-2), turns.unbind(-2), times.unbind(-1), strict=True):
        state = _after(state, force, turn, time[..., None], noises)
    return state


def _after(
    state: Preintegrated,
    force: Float[Tensor, "*batch 3"],
    turn: Float[Tensor, "*batch 3"],
    dt: Float[Tensor, "*batch 1"],
    noises: tuple[float, float, float],
) -> Preintegrated:
    """The state after one more sample."""
    moved = state.rotation.act(force)
    step = SO3.exp(turn * dt)
    rotation, across = state.rotation.matrix(), state.rotation.matrix() @ hat(force)
    time = dt[..., None]
    by_turn = SO3.right_jacobian(turn * dt) * time
    # The errors of (position, rotation, velocity) after the step, of those before it and of both measurements.
    none, unit = torch.zeros_like(rotation), torch.eye(3, dtype=force.dtype, device=force.device).expand_as(rotation)
    transition = _blocks(
        [
            [unit, -0.5 * across * time**2, unit * time],
            [none, step.inverse().matrix(), none],
            [none, -across * time, unit],
        ]
    )
    by_noise = _blocks([[0.5 * rotation * time**2, none], [none, by_turn], [rotation * time, none]])
    by_force, by_gyro = by_noise[..., :3], by_noise[..., 3:]
    # White noise of density σ has the variance σ²/dt in a sample that holds for dt.
    over = torch.where(time > 0, 1 / torch.where(time > 0, time, 1), 0)
    added = over * (noises[0] ** 2 * (by_force @ by_force.mT) + noises[1] ** 2 * (by_gyro @ by_gyro.mT))
    of_position = torch.nn.functional.pad(noises[2] ** 2 * time * unit, (0, 6, 0, 6))
    return Preintegrated(
        state.position + state.velocity * dt + 0.5 * moved * dt**2,
        state.rotation @ step,
        state.velocity + moved * dt,
        state.duration + dt,
        state.bias,
        transition @ state.by_bias - by_noise,
        transition @ state.covariance @ transition.mT + added + of_position,
    )


class Inertial(CostFunction):
    """Two states and the measurements of an inertial sensor between them: the residual (9,) is what the states say of
    (position, rotation, velocity), minus what was measured.

    With R, p, v the states, T the duration, g gravity, and (Δp, ΔR, Δv) corrected for the bias to first order:

        R_iᵀ (p_j − p_i − v_i T − ½ g T²) − Δp
        log(ΔRᵀ R_iᵀ R_j)
        R_iᵀ (v_j − v_i − g T) − Δv

    (Forster et al., 2017, eq. 45.)

    Args:
        pose_i, velocity_i: the pose of the body in the world (SE3 or a product {"translation", "rotation"}), and its
            velocity in the world, Euclidean(3).
        pose_j, velocity_j: those at the end.
        bias: (accelerometer, gyroscope), Euclidean(6), a variable by position, or data by keyword.
        measured: `preintegrate(...)`, one entry per interval.
        gravity: (3,) in the world, `Shared`, pointing down: (0, 0, −9.81) where z is up.
        weight: `measured.weight()`.

    That biases change slowly is `mslsq.Difference(bias[i], bias[j], weight=...)`.

    GTSAM: `ImuFactor`, whose residual is (rotation, position, velocity) in the frame of the second body.

    >>> states = pose[i], velocity[i], pose[j], velocity[j], bias[i]
    >>> factors.Inertial(*states, measured=imu, gravity=mslsq.Shared(g), weight=imu.weight())
    """

    def residual(
        self,
        pose_i: Any,
        velocity_i: Float[Tensor, "3"],
        pose_j: Any,
        velocity_j: Float[Tensor, "3"],
        bias: Float[Tensor, "6"],
        measured: Preintegrated,
        gravity: Float[Tensor, "3"],
    ) -> Float[Tensor, "9"]:
        pose_i, pose_j = pose_of(pose_i), pose_of(pose_j)
        duration, back = measured.duration, pose_i.rotation.inverse()
        change = measured.by_bias @ (bias - measured.bias)
        fall = gravity * duration
        moved = pose_j.translation - pose_i.translation - (velocity_i + 0.5 * fall) * duration
        turned = (measured.rotation @ SO3.exp(change[3:6])).between(back @ pose_j.rotation)
        return torch.cat(
            (
                back.act(moved) - measured.position - change[:3],
                turned.log(),
                back.act(velocity_j - velocity_i - fall) - measured.velocity - change[6:],
            )
        )


def _blocks(rows: list[list[Float[Tensor, "*batch 3 3"]]]) -> Float[Tensor, "*batch rows columns"]:
    return torch.cat([torch.cat(row, -1) for row in rows], -2)
