"""GTSAM, where it is installed (`pip install gtsam`), through its Python interface: pose graphs, bundle adjustment."""

import importlib.util
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mslsq.datasets.pose_graph import PoseGraph

INSTALLED = importlib.util.find_spec("gtsam") is not None
ROTATION_FIRST = [3, 4, 5, 0, 1, 2]
"""GTSAM's tangent of Pose3 is (rotation, translation), the files' and this library's (translation, rotation)."""


class Graph(NamedTuple):
    """A factor graph and its start."""

    factors: Any
    start: Any


def pose_graph(graph: PoseGraph, anchor_sigma: float = 1e-6) -> Graph:
    """A BetweenFactor per edge, and a PriorFactor on the first pose."""
    import gtsam

    space = graph.dimension == 3
    pose_of = _pose3 if space else _pose2
    between = gtsam.BetweenFactorPose3 if space else gtsam.BetweenFactorPose2
    prior = gtsam.PriorFactorPose3 if space else gtsam.PriorFactorPose2
    poses, measured = _storage(graph.poses), _storage(graph.measured)
    information = graph.information.numpy()
    if space:
        information = information[:, ROTATION_FIRST][:, :, ROTATION_FIRST]
    factors, start = gtsam.NonlinearFactorGraph(), gtsam.Values()
    gaussian = gtsam.noiseModel.Gaussian.Information
    for i, j, row, omega in zip(graph.first.tolist(), graph.second.tolist(), measured, information, strict=True):
        factors.add(between(i, j, pose_of(row), gaussian(omega)))
    for key, row in enumerate(poses):
        start.insert(key, pose_of(row))
    sigmas = np.full(6 if space else 3, anchor_sigma)
    factors.add(prior(0, pose_of(poses[0]), gtsam.noiseModel.Diagonal.Sigmas(sigmas)))
    return Graph(factors, start)


def _storage(poses: Any) -> list[list[float]]:
    """Numbers of Python: x y theta, or x y z qx qy qz qw."""
    rows = poses.normalized()
    return (rows.xyt() if hasattr(rows, "xyt") else rows.storage).tolist()


def _pose2(row: list[float]) -> Any:
    import gtsam

    return gtsam.Pose2(*row)


def _pose3(row: list[float]) -> Any:
    import gtsam

    x, y, z, qx, qy, qz, qw = row
    return gtsam.Pose3(gtsam.Rot3.Quaternion(qw, qx, qy, qz), np.array([x, y, z]))


def optimize(graph: Graph, method: str) -> tuple[Any, int]:
    """Solve by "LM" or "GN" with GTSAM's own defaults; the values and the number of iterations."""
    import gtsam

    if method == "LM":
        optimizer = gtsam.LevenbergMarquardtOptimizer(graph.factors, graph.start, gtsam.LevenbergMarquardtParams())
    else:
        optimizer = gtsam.GaussNewtonOptimizer(graph.factors, graph.start, gtsam.GaussNewtonParams())
    values = optimizer.optimize()
    return values, optimizer.iterations()


def errors_of_steps(graph: Graph, tolerance: float, most: int = 100) -> tuple[list[float], list[int]]:
    """The errors before and after every step of GTSAM's Levenberg-Marquardt, until one gains less than the tolerance's
    share; and the trials up to each. A trial that fails multiplies its lambda by ten, one that succeeds divides it."""
    import gtsam

    optimizer = gtsam.LevenbergMarquardtOptimizer(graph.factors, graph.start, gtsam.LevenbergMarquardtParams())
    errors, trials = [optimizer.error()], [0]
    while len(errors) <= most:
        before = optimizer.lambda_()
        optimizer.iterate()
        errors.append(optimizer.error())
        trials.append(trials[-1] + max(round(math.log10(optimizer.lambda_() / before)) + 2, 1))
        if not errors[-2] - errors[-1] > max(tolerance * errors[-2], tolerance):
            break
    return errors, trials


def poses_of(values: Any, count: int, dimension: int) -> np.ndarray:
    """Storage rows as in the files: (count, 3) or (count, 7)."""
    rows = []
    for key in range(count):
        if dimension == 2:
            pose = values.atPose2(key)
            rows.append([pose.x(), pose.y(), pose.theta()])
        else:
            pose = values.atPose3(key)
            q = pose.rotation().toQuaternion()
            rows.append([*pose.translation(), q.x(), q.y(), q.z(), q.w()])
    return np.array(rows)


def bundle_adjustment(path: Path) -> Graph:
    """A BAL file (not compressed) as GTSAM reads it: a GeneralSFMFactor per observation, pixels of sigma 1."""
    import gtsam

    data = gtsam.SfmData.FromBalFile(str(path))
    factors = data.generalSfmFactors(gtsam.noiseModel.Unit.Create(2))
    return Graph(factors, gtsam.initialCamerasAndPointsEstimate(data))


def adjust(graph: Graph, steps: int) -> tuple[Any, list[float]]:
    """Steps of GTSAM's Levenberg-Marquardt for structure from motion, with its Ceres-like damping and a Schur
    complement; the values and the errors that GTSAM sees after each."""
    import gtsam

    params = gtsam.SfmLevenbergMarquardtParams.ceresDefaults()
    params.setEliminationMode(gtsam.SfmEliminationMode.Schur)
    optimizer = gtsam.SfmLevenbergMarquardtOptimizer(graph.factors, graph.start, params)
    errors = [optimizer.error()]
    for _ in range(steps):
        optimizer.iterate()
        errors.append(optimizer.error())
    return optimizer.values(), errors


def cameras_and_points(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values of a bundle adjustment as BAL has them: cameras (w, t, f, k1, k2) that look along −z, points."""
    import gtsam

    keys = list(map(int, values.keys()))
    first_point = gtsam.symbol("p", 0)
    cameras = []
    for key in sorted(k for k in keys if k < first_point):
        camera = values.atPinholeCameraCal3Bundler(key)
        pose, lens = camera.pose(), camera.calibration()
        turn = np.diag([1.0, -1.0, -1.0]) @ pose.rotation().matrix().T  # world to a camera that looks along −z
        w = gtsam.Rot3.Logmap(gtsam.Rot3(turn))
        cameras.append([*w, *(-turn @ pose.translation()), lens.fx(), lens.k1(), lens.k2()])
    points = [values.atPoint3(key) for key in sorted(k for k in keys if k >= first_point)]
    return np.array(cameras), np.array(points)


def error_after(graph: Graph, steps: int) -> float:
    """GTSAM's error after a number of steps of Levenberg-Marquardt."""
    import gtsam

    optimizer = gtsam.LevenbergMarquardtOptimizer(graph.factors, graph.start, gtsam.LevenbergMarquardtParams())
    for _ in range(steps):
        optimizer.iterate()
    return optimizer.error()
