"""Starts of pose graphs: from a spanning tree of their edges, and from two linear solves over all of them."""

import pytest
import torch

import mslsq
from mslsq.datasets.synthetic_graphs import ring_graph, sphere_graph
from mslsq.initialization import chordal, spanning_tree


@pytest.mark.parametrize("group", [mslsq.SE2, mslsq.SE3, mslsq.SO3, mslsq.Sim3])
def test_measurements_without_noise_give_the_truth_back(group):
    generator = torch.Generator().manual_seed(0)
    truth = group.random(40, generator=generator, dtype=torch.float64)
    i = torch.randint(40, (150,), generator=generator)
    j = torch.randint(40, (150,), generator=generator)
    keep = i != j
    i, j = torch.cat((i[keep], torch.arange(1, 40))), torch.cat((j[keep], torch.arange(39)))
    poses = spanning_tree(i, j, truth[i].between(truth[j]), 40, root=5)
    expected = truth[5].inverse() @ truth
    assert float(expected.local(poses).abs().max()) < 1e-8  # Sim3's scales reach e⁻³ to e³ and their products more


def test_a_chain_equals_walking_it_and_is_not_walked_pose_by_pose():
    steps = mslsq.SE2.exp(torch.tensor([[1.0, 0.0, 0.01]], dtype=torch.float64).expand(50_000, 3))
    order = torch.arange(50_000)
    poses = spanning_tree(order, order + 1, steps, 50_001)
    whole = mslsq.SE2.exp(torch.tensor([1.0, 0.0, 0.01], dtype=torch.float64) * 1000)
    torch.testing.assert_close(poses.storage[1000], whole.storage, rtol=1e-9, atol=1e-9)


def test_the_shortest_way_is_taken_and_of_repeated_edges_the_first():
    # 0-1-2-3 in steps of one, and a closure 0-3 that says ten; the edge 0-1 comes once more and says five
    i, j = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1, 2, 3, 3, 0])
    steps = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0], [10, 0, 0], [5, 0, 0]])
    poses = spanning_tree(i, j, mslsq.SE2.from_xyt(steps), 4)
    assert poses.translation[:, 0].tolist() == pytest.approx([0, 1, 2, 10])


def test_parts_without_a_connection_start_each_at_the_identity():
    i, j = torch.tensor([3, 1]), torch.tensor([4, 0])
    poses = spanning_tree(i, j, mslsq.SE2.from_xyt(torch.tensor([[1.0, 2, 0], [3, 4, 0]])), 6)
    assert poses.translation.tolist() == [[0, 0], [-3, -4], [0, 0], [0, 0], [1, 2], [0, 0]]


def test_a_graph_without_edges_is_all_identity():
    none = torch.zeros(0, dtype=torch.int64)
    assert torch.equal(spanning_tree(none, none, mslsq.SE3.identity(0), 3).storage, mslsq.SE3.identity(3).storage)


def test_the_start_is_differentiable_in_the_measurements():
    storage = mslsq.SE2.from_xyt(torch.tensor([[1.0, 0, 0.5], [1, 0, 0]])).storage.requires_grad_()
    poses = spanning_tree(torch.tensor([0, 1]), torch.tensor([1, 2]), mslsq.SE2(storage), 3)
    (gradient,) = torch.autograd.grad(poses.translation[2, 0], storage)
    assert gradient[0, 0] == 1
    assert gradient[1, 0] == pytest.approx(float(torch.tensor(0.5).cos()))


@pytest.mark.parametrize(("second", "count", "root", "says"), [(7, 3, 0, "7"), (1, 3, 3, "root=3"), (-1, 3, 0, "-1")])
def test_numbers_out_of_range_are_refused(second, count, root, says):
    with pytest.raises(ValueError, match=says):
        spanning_tree(torch.tensor([0]), torch.tensor([second]), mslsq.SE2.identity(1), count, root)


@pytest.mark.parametrize("group", [mslsq.SE2, mslsq.SE3])
def test_chordal_gives_the_truth_back_where_there_is_no_noise(group):
    generator = torch.Generator().manual_seed(0)
    truth = group.random(30, generator=generator, dtype=torch.float64)
    # two parts: poses 0 to 19 and 20 to 29
    i = torch.cat((torch.arange(19), torch.arange(20, 29), torch.randint(20, (40,), generator=generator)))
    j = torch.cat((torch.arange(1, 20), torch.arange(21, 30), torch.randint(20, (40,), generator=generator)))
    i, j = i[i != j], j[i != j]
    poses = chordal(i, j, truth[i].between(truth[j]), 30, root=4)
    for part, root in ((slice(0, 20), 4), (slice(20, 30), 20)):
        expected = truth[root].inverse() @ truth[part]
        assert float(expected.local(poses[part]).abs().max()) < 1e-9  # normal equations of 20 poses: condition 1e4


@pytest.mark.parametrize("made", [ring_graph, sphere_graph])
def test_chordal_starts_nearer_to_the_minimum_than_a_tree(made):
    graph = made(laps=6, per_lap=16).graph
    first = chordal(graph.first, graph.second, graph.measured, len(graph.ids), information=graph.information)
    tree = graph.from_edges().poses
    problem = graph.problem()
    solver = mslsq.LevenbergMarquardt(max_steps=50)
    costs = [
        mslsq.solve(problem, {"pose": start}, solver=solver, adjoint=mslsq.Detached()).history.cost
        for start in (graph.poses[0] @ first, tree)
    ]
    minimum = float(costs[1][costs[1].isfinite()][-1])
    assert float(costs[0][0]) < 0.1 * float(costs[1][0])
    assert float(costs[0][0]) < 3 * minimum
    assert float(costs[0][costs[0].isfinite()][-1]) == pytest.approx(minimum, rel=1e-9)


def test_chordal_refuses_other_groups_and_weights_that_are_not_positive():
    i, j = torch.tensor([0]), torch.tensor([1])
    with pytest.raises(TypeError, match="SE2 or SE3"):
        chordal(i, j, mslsq.SO3.identity(1), 2)
    with pytest.raises(ValueError, match="positive"):
        chordal(i, j, mslsq.SE2.identity(1), 2, information=torch.zeros(1, 3, 3))
