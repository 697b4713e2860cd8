"""explain: rank, gauge, what is unconstrained, disconnected, not finite or badly scaled, in words and figures."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.datasets.synthetic_graphs import ring_graph

D = torch.float64


def chain(kind: Any, count: int = 5) -> tuple[Any, mslsq.Variable, mslsq.CostFunction]:
    poses = kind.random(count, generator=torch.Generator().manual_seed(0), dtype=D)
    pose = mslsq.Variable("pose", kind, count)
    i = torch.arange(count - 1)
    return poses, pose, mslsq.Between(pose[i], pose[i + 1], measured=poses[i].inverse() @ poses[i + 1])


@pytest.mark.parametrize(
    ("kind", "freedoms", "words"),
    [
        (mslsq.SE2, 3, r"shifted \(2\) and turned \(1\)"),
        (mslsq.SE3, 6, r"shifted \(3\) and turned \(3\)"),
        (mslsq.SO3, 3, r"turned \(3\)"),
    ],
)
def test_a_pose_graph_has_the_gauge_of_its_group(kind: Any, freedoms: int, words: str) -> None:
    poses, pose, between = chain(kind)
    said = mslsq.explain(mslsq.Problem(between), {"pose": poses})
    assert said.gauge_freedoms == freedoms
    assert said.rank == said.num_columns - freedoms
    assert said.unconstrained == []
    assert re.search(words, said)
    held = mslsq.explain(mslsq.Problem(between, pose.fixed([0])), {"pose": poses})
    assert held.rank == held.num_columns
    assert "everything is determined" in held


def test_the_rank_is_that_of_the_jacobian_by_autodiff() -> None:
    # Ranges between points of the plane: 4 points, 5 of the 6 distances, so 8 columns, rank 5, gauge 3.
    points = torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=D)
    i, j = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 2, 3, 2, 3])

    class Range(mslsq.CostFunction):
        def residual(self, a: Tensor, b: Tensor, measured: Tensor) -> Tensor:
            return torch.linalg.vector_norm(a - b).reshape(1) - measured

    point = mslsq.Variable("point", mslsq.Euclidean(2), 4)
    problem = mslsq.Problem(Range(point[i], point[j], measured=torch.ones(5, 1, dtype=D)))
    said = mslsq.explain(problem, {"point": points})
    jacobian = torch.func.jacfwd(lambda x: torch.linalg.vector_norm(x[i] - x[j], dim=-1))(points).reshape(5, 8)
    assert said.rank == int(torch.linalg.matrix_rank(jacobian))
    assert said.gauge_freedoms == 3
    assert "shifted (2) and turned (1)" in said


def test_a_reconstruction_from_images_is_free_up_to_a_similarity() -> None:
    generator = torch.Generator().manual_seed(2)
    points = torch.rand(12, 3, generator=generator, dtype=D) + torch.tensor([0.0, 0.0, 4.0], dtype=D)
    poses = mslsq.SE3.exp(0.2 * torch.randn(3, 6, generator=generator, dtype=D))
    i, j = (index.reshape(-1) for index in torch.meshgrid(torch.arange(3), torch.arange(12), indexing="ij"))
    pose, point = mslsq.Variable("pose", mslsq.SE3, 3), mslsq.Variable("point", mslsq.Euclidean(3), 12)
    seen = mslsq.Reprojection(pose[i], point[j], pixel=torch.zeros(36, 2, dtype=D), focal=100.0)
    values = {"pose": poses, "point": points}
    said = mslsq.explain(mslsq.Problem(seen), values)
    assert said.gauge_freedoms == 7
    assert "shifted (3), turned (3) and scaled (1)" in said
    # With the first pose held only the scale about it is left.
    held = mslsq.explain(mslsq.Problem(seen, pose.fixed([0])), values)
    assert held.gauge_freedoms == 1


def test_variables_without_influence_are_named() -> None:
    x = mslsq.Variable("x", mslsq.Euclidean(2), 4)

    class First(mslsq.CostFunction):
        def residual(self, x: Tensor) -> Tensor:
            return x[:1] - 1.0

    problem = mslsq.Problem(First(x[[0, 1]]), mslsq.Prior(x[[2]], target=torch.zeros(1, 2, dtype=D)))
    said = mslsq.explain(problem, {"x": torch.ones(4, 2, dtype=D)})
    assert sorted(said.unconstrained) == [("x", 0, 1), ("x", 1, 1), ("x", 3, 2)]
    assert said.gauge_freedoms == 0
    assert "No cost refers to x[3]" in said
    assert "2 blocks of x (0, 1) have no effect in 1 of 2 directions" in said


def test_disconnected_parts_are_counted() -> None:
    poses, pose, _ = chain(mslsq.SE2, 6)
    i, j = torch.tensor([0, 1, 3, 4]), torch.tensor([1, 2, 4, 5])
    problem = mslsq.Problem(mslsq.Between(pose[i], pose[j], measured=poses[i].inverse() @ poses[j]))
    said = mslsq.explain(problem, {"pose": poses})
    assert said.num_parts == 2
    assert said.gauge_freedoms == 6
    assert "2 disconnected parts" in said


def test_many_disconnected_parts_solved_as_a_batch_are_ranked_too() -> None:
    x = mslsq.Variable("x", mslsq.Euclidean(2), 80)
    i = torch.arange(0, 80, 2)
    problem = mslsq.Problem(mslsq.Difference(x[i], x[i + 1]), mslsq.Prior(x[i[1:]], target=torch.zeros(39, 2, dtype=D)))
    said = mslsq.explain(problem, {"x": torch.zeros(80, 2, dtype=D)})
    assert (said.num_parts, said.rank, said.gauge_freedoms) == (40, 158, 2)


def test_residuals_that_are_not_finite_are_named() -> None:
    class Logarithm(mslsq.CostFunction):
        def residual(self, x: Tensor) -> Tensor:
            return torch.log(x)

    x = mslsq.Variable("x", mslsq.Euclidean(1), 5)
    values = {"x": torch.tensor([[1.0], [-1.0], [2.0], [0.0], [3.0]], dtype=D)}
    said = mslsq.explain(mslsq.Problem(Logarithm(x)), values)
    assert said.non_finite == [("logarithm", 1), ("logarithm", 3)]
    assert said.rank is None
    assert "'logarithm'" in said


def test_bad_scale_is_mentioned_and_does_not_change_the_rank() -> None:
    x = mslsq.Variable("x", mslsq.Euclidean(3))
    units = mslsq.Diagonal(torch.tensor([1e9, 1.0, 1e-3], dtype=D))
    problem = mslsq.Problem(mslsq.Prior(x, target=torch.zeros(1, 3, dtype=D), weight=units))
    said = mslsq.explain(problem, {"x": torch.zeros(3, dtype=D)})
    assert said.rank == 3
    assert "Badly scaled" in said
    assert "x[0], entry 2" in said


def test_a_problem_too_large_for_dense_solvers_is_explained() -> None:
    """More than 300 columns: its solver stores normal equations by blocks, the rank needs them dense."""
    graph = ring_graph(laps=4, per_lap=30).graph
    pose = mslsq.Variable("pose", mslsq.SE2, 120)
    problem = mslsq.Problem(mslsq.Between(pose[graph.first], pose[graph.second], measured=graph.measured))
    found = mslsq.explain(problem, {"pose": graph.poses})
    assert (found.num_columns, found.rank, found.gauge_freedoms) == (360, 357, 3)
