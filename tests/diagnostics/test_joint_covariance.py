"""Joint covariances of several variables are blocks of the whole inverse, dense and sparse."""

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.datasets.synthetic_graphs import ring_graph
from mslsq.diagnostics import SingularCovarianceError
from mslsq.diagnostics.located import located

D = torch.float64


def slam(count: int, held: bool = True) -> tuple[mslsq.Problem, mslsq.Solution]:
    """Poses in the plane and two landmarks, each seen from every third pose."""
    graph = ring_graph(laps=4, per_lap=count // 4).graph
    poses = graph.poses
    pose, landmark = mslsq.Variable("pose", mslsq.SE2, count), mslsq.Variable("landmark", mslsq.Euclidean(2), 2)
    weight = mslsq.SqrtInformation.from_information(graph.information)
    seen = torch.arange(0, count, 3)

    @mslsq.cost
    def sighting(pose, landmark, measured):
        return pose.inverse().act(landmark) - measured

    places = torch.tensor([[1.0, 2.0], [-3.0, 0.5]], dtype=D)
    number = torch.arange(len(seen)) % 2
    measured = poses[seen].inverse().act(places[number])
    costs = [
        mslsq.Between(pose[graph.first], pose[graph.second], measured=graph.measured, weight=weight),
        sighting(pose[seen], landmark[number], measured=measured, weight=mslsq.Scale(torch.tensor(7.0, dtype=D))),
        *([pose.fixed([5])] if held else []),
    ]
    problem = mslsq.Problem(*costs)
    return problem, mslsq.solve(problem, {"pose": poses, "landmark": places}, adjoint=mslsq.Detached())


@pytest.mark.parametrize("count", [12, 120], ids=["dense", "sparse"])
def test_it_is_a_part_of_the_whole_inverse(count: int) -> None:
    problem, solution = slam(count)
    assert (located(problem, solution.value).pattern is not None) == (count == 120)
    point = located(problem, solution.value, dense=True)
    inverse = torch.linalg.inv(point.linearization().matrix[0, 0])
    found = mslsq.covariance(problem, solution, ["landmark", "pose"], {"pose": [7, 2]})
    columns = torch.cat([point.columns("landmark").reshape(-1), point.columns("pose")[[7, 2]].reshape(-1)])
    assert found.shape == (10, 10)
    torch.testing.assert_close(found, inverse[columns[:, None], columns], rtol=1e-7, atol=1e-13)
    own = mslsq.covariance(problem, solution, "pose", 7)
    torch.testing.assert_close(found[4:7, 4:7], own, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("count", [12, 120], ids=["dense", "sparse"])
def test_blocks_held_fixed_have_none(count: int) -> None:
    problem, solution = slam(count)
    found = mslsq.covariance(problem, solution, ["pose", "landmark"], {"pose": [5, 6], "landmark": 1})
    assert found.shape == (8, 8) and not found[:3].any() and not found[:, :3].any()
    alone = mslsq.covariance(problem, solution, ["pose", "landmark"], {"pose": 6, "landmark": 1})
    torch.testing.assert_close(found[3:, 3:], alone, rtol=1e-12, atol=0)


def test_parts_that_nothing_connects_have_nothing_in_common() -> None:
    x, y = mslsq.Variable("x", mslsq.Euclidean(2), 60), mslsq.Variable("y", mslsq.Euclidean(1), 60)
    sigma = torch.rand(60, 2, generator=torch.Generator().manual_seed(1), dtype=D) + 0.1

    @mslsq.cost
    def both(x, y):
        return torch.cat([x + y, y])

    target = torch.zeros(60, 2, dtype=D)
    problem = mslsq.Problem(
        mslsq.Prior(x, target=target, weight=mslsq.Diagonal(1 / sigma)), both(x[torch.arange(60)], y[torch.arange(60)])
    )
    solution = mslsq.solve(problem, {"x": target, "y": torch.zeros(60, 1, dtype=D)})
    found = mslsq.covariance(problem, solution, ["x", "y"], {"x": [3, 9], "y": 9})

    def normal(number: int) -> Tensor:
        jacobian = torch.tensor([[1.0, 0, 1], [0, 1, 1], [0, 0, 1]], dtype=D)
        prior = torch.cat([sigma[number] ** -2, torch.zeros(1, dtype=D)]).diag()
        return torch.linalg.inv(jacobian.T @ jacobian + prior)

    expected = torch.zeros(5, 5, dtype=D)
    expected[:2, :2], expected[2:, 2:] = normal(3)[:2, :2], normal(9)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("count", [12, 120], ids=["dense", "sparse"])
def test_a_singular_entry_of_a_batch_is_nan_alone_and_a_single_one_an_error(count: int) -> None:
    problem, solution = slam(count)
    weights = torch.tensor([7.0, 0.0, 14.0], dtype=D)
    data = {"sighting": {"weight": weights}}
    start = dict(solution.value)
    batch = mslsq.solve(problem, start, data, in_dims=(None, 0), adjoint=mslsq.Detached())
    found = mslsq.covariance(problem, batch, ["landmark", "pose"], {"pose": 2}, data=data)
    alone = mslsq.covariance(problem, solution, ["landmark", "pose"], {"pose": 2})
    assert found.shape == (3, 7, 7) and bool(found[1].isnan().all())
    torch.testing.assert_close(found[0], alone, rtol=1e-6, atol=1e-12)
    assert not torch.allclose(found[2], alone, rtol=1e-3)
    free, at = slam(count, held=False)
    with pytest.raises(SingularCovarianceError, match="JᵀJ is singular"):
        mslsq.covariance(free, at, ["pose", "landmark"])


def test_names_and_indices_are_checked() -> None:
    problem, solution = slam(12)
    with pytest.raises(mslsq.ProblemError, match="Did you mean 'landmark'"):
        mslsq.covariance(problem, solution, ["pose", "landmarks"])
    with pytest.raises(mslsq.ProblemError, match="variable in index 'pose'"):
        mslsq.covariance(problem, solution, ["landmark"], {"pose": 0})
    with pytest.raises(TypeError, match="dict by name"):
        mslsq.covariance(problem, solution, ["landmark"], 0)
    with pytest.raises(ValueError, match="empty"):
        mslsq.covariance(problem, solution, [])
