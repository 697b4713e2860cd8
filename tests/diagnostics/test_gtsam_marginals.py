"""Marginal covariances of pose graphs against GTSAM's, where GTSAM is installed (pip install gtsam)."""

import numpy as np
import pytest

import mslsq
from mslsq.datasets.pose_graph import PoseGraph
from mslsq.datasets.synthetic_graphs import ring_graph, sphere_graph

gtsam = pytest.importorskip("gtsam", reason="GTSAM is not installed: pip install gtsam")

ANCHOR = 0.1
"""Of the prior on the first pose: loose, so that its own covariance is worth comparing."""


def marginals(graph: PoseGraph, at: mslsq.SE2 | mslsq.SE3, keys: list[int]) -> np.ndarray:
    """GTSAM's, in the order (translation, rotation); its tangent of Pose3 has the rotation first."""
    space = graph.dimension == 3
    order = [3, 4, 5, 0, 1, 2] if space else [0, 1, 2]  # its own inverse

    def pose(element: mslsq.SE2 | mslsq.SE3) -> object:
        if isinstance(element, mslsq.SE2):
            return gtsam.Pose2(*element.xyt().tolist())
        return gtsam.Pose3(element.matrix().numpy())

    between = gtsam.BetweenFactorPose3 if space else gtsam.BetweenFactorPose2
    prior = gtsam.PriorFactorPose3 if space else gtsam.PriorFactorPose2
    factors, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    for edge in range(len(graph.first)):
        noise = gtsam.noiseModel.Gaussian.Information(graph.information[edge].numpy()[order][:, order])
        factors.add(between(int(graph.first[edge]), int(graph.second[edge]), pose(graph.measured[edge]), noise))
    sigmas = np.full(len(order), ANCHOR)
    factors.add(prior(0, pose(graph.poses[0]), gtsam.noiseModel.Diagonal.Sigmas(sigmas)))
    for key in range(len(graph.ids)):
        values.insert(key, pose(at[key]))
    found = gtsam.Marginals(factors, values)
    return np.stack([found.marginalCovariance(key)[order][:, order] for key in keys])


@pytest.mark.slow
@pytest.mark.parametrize("laps", [4, 20], ids=["dense", "sparse"])
@pytest.mark.parametrize("kind", ["sphere", "ring"])
def test_blocks_are_those_of_gtsam(kind: str, laps: int) -> None:
    made = sphere_graph(laps=laps, per_lap=10) if kind == "sphere" else ring_graph(laps=laps, per_lap=20)
    graph = made.graph
    problem = graph.problem(anchor_sigma=ANCHOR)
    solution = mslsq.solve(problem, {"pose": graph.poses})
    assert bool(solution.converged), solution.message()
    keys = [0, 3, 7, 31, len(graph.ids) - 1]
    found = mslsq.covariance(problem, solution, "pose", keys).numpy()
    expected = marginals(graph, solution.value["pose"], keys)
    # Residuals are not zero, so this needs the Jacobians of both to be exact; GTSAM's factors are of JᵀJ as ours are,
    # and its condition, 1e6, times 1e-16 is what the two may differ by.
    scale = np.abs(expected).max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=1e-8)
