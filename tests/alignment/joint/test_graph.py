"""Links between maps: which are believed together, and where they put the maps."""

import numpy as np
import pytest
import torch

from mslsq.alignment.joint.connections import bridges, component, components, strongest_tree
from mslsq.alignment.joint.consensus import agreed, poses_of_tree, poses_of_trees
from mslsq.alignment.joint.gathering import SEARCHES, Gathering
from mslsq.alignment.joint.links import UNDECIDED_ALONE, Link, LinkStatus, in_line
from mslsq.alignment.joint.pose_graph import Graph, Linkage, adjugate, excess, robustly_solved, solved
from mslsq.alignment.joint.screening import Candidate
from mslsq.alignment.linking import Linked, Linker
from mslsq.alignment.models import MODELS
from mslsq.alignment.options import Options
from mslsq.alignment.pairwise import Placed
from mslsq.alignment.prepared import prepare
from mslsq.alignment.result import MapStatus, Stage

SIDE = 65


def linker_of(count, model="sim2"):
    generator = torch.Generator().manual_seed(0)
    maps = [torch.rand(SIDE, SIDE + 8 * i, dtype=torch.float64, generator=generator) for i in range(count)]
    return Linker(prepare(maps, None)[0], Options(model=model), "auto")


def poses_of(kind, count, seed=0):
    """Warps from the reference to every map, in normalised coordinates."""
    random = np.random.default_rng(seed)
    steps = torch.from_numpy(0.3 * random.standard_normal((count, kind.tangent_dim)))
    steps[0] = 0
    return kind.identity(count, dtype=torch.float64).retract(steps)


def link_of(linker, poses, fixed, moving, error=0.0, ncc=0.95, status=MapStatus.ALIGNED, gain=1.0, rms=0.1):
    """A link that says what the poses say, times R(error)."""
    kind = type(poses)
    frame, own = linker.frame(0), linker.frame(fixed)
    matrix = poses.matrix()
    between = frame.to_pixels(matrix[moving] @ torch.linalg.inv(matrix[fixed]))
    step = torch.full((kind.tangent_dim,), error, dtype=torch.float64)
    warp = kind.from_matrix(own.from_pixels(between)).retract(step).matrix()
    covariance = 1e-8 * torch.eye(kind.tangent_dim, dtype=torch.float64)
    stages = [Stage(moving, 0, (SIDE, SIDE), "sim2", "l2", [rms], 0.5, ncc)]
    placed = Placed(status, warp, torch.zeros(2).double(), covariance, ncc, ncc, float("nan"), 0.5, 0.01, stages, "")
    linked = Linked(fixed, moving, placed, own.to_pixels(warp), torch.tensor(gain), torch.tensor(0.0), 1.0)
    return Link.of(linked)


def graph_of(model, ends, count, **options):
    linker = linker_of(count, model)
    poses = poses_of(MODELS[model], count)
    links = [link_of(linker, poses, *pair, **options) for pair in ends]
    return Graph(linker, links, linker.frame(0), {0: torch.eye(3).double()}), poses


@pytest.mark.parametrize("model", list(MODELS))
def test_links_without_error_give_the_poses_back(model):
    graph, poses = graph_of(model, [(0, 1), (1, 2), (3, 2), (0, 3), (0, 2)], 4)
    through_tree = poses_of_tree(graph)
    assert float(poses.local(through_tree).abs().max()) < 1e-9
    off = through_tree.retract(0.01 * torch.ones(4, MODELS[model].tangent_dim, dtype=torch.float64))
    off.storage[0] = poses.storage[0]
    assert float(poses.local(solved(graph, off)).abs().max()) < 1e-7
    assert float(graph.whitened(poses).max()) < 1e-6


def test_a_link_compares_in_the_frame_of_the_map_that_it_was_measured_on():
    graph, poses = graph_of("affine", [(2, 1)], 3, error=0.01)
    cost = Linkage.residual
    data = {name: value[0] for name, value in graph.data.items()}
    apart = cost(None, type(poses)(poses.storage[2]), type(poses)(poses.storage[1]), **data)
    # measured = true R(e), so that the residual, local(measured, true), is -e to first order.
    torch.testing.assert_close(apart, torch.full_like(apart, -0.01), atol=1e-3, rtol=0)


def test_the_adjugate_is_the_inverse_up_to_scale():
    matrix = torch.randn(5, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    product = matrix @ adjugate(matrix)
    torch.testing.assert_close(product, torch.linalg.det(matrix)[:, None, None] * torch.eye(3).double())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", ["translation", "sim2", "homography"])
def test_a_wrong_link_is_outvoted_by_loops(model):
    ends = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (0, 2), (1, 3)]
    graph, poses = graph_of(model, ends, 6)
    wrong = link_of(graph.linker, poses, 2, 5, error=0.4, ncc=0.99)  # the best of all by its own account
    graph = graph.restricted([*graph.links, wrong])
    found, agree = robustly_solved(graph, poses_of_trees(graph))
    assert agree.tolist() == [1.0] * len(ends) + [0.0]
    assert float(poses.local(found).abs().max()) < 1e-3


def gathering_of(graph):
    gathering = Gathering(graph.linker, list(range(len(graph.linker.maps))))
    gathering.links = {link.pair: link for link in graph.links}
    return gathering


def test_two_links_that_contradict_each_other_leave_a_map_out():
    graph, poses = graph_of("sim2", [(0, 1), (0, 2), (1, 2), (2, 3)], 4)
    rival = link_of(graph.linker, poses, 1, 3, error=0.5)
    graph = graph.restricted([*graph.links, rival])
    consensus = agreed(gathering_of(graph), graph)
    assert consensus.placed == [0, 1, 2]
    assert "contradict" in consensus.doubts[3]
    assert len(consensus.alternatives) == 1  # where the pixels are asked next


def test_a_link_with_far_more_support_is_believed_against_another():
    graph, poses = graph_of("sim2", [(0, 1), (0, 2), (1, 2), (2, 3)], 4)
    rival = link_of(graph.linker, poses, 1, 3, error=0.5, ncc=0.6)
    graph = graph.restricted([*graph.links, rival])
    gathering = gathering_of(graph)
    assert agreed(gathering, graph).placed == [0, 1, 2, 3]
    assert gathering.links[1, 3].status is LinkStatus.CONTRADICTED


def test_a_single_chain_is_believed_as_its_links_are():
    graph, _ = graph_of("sim2", [(0, 1), (1, 2)], 4)
    consensus = agreed(gathering_of(graph), graph)
    assert consensus.placed == [0, 1, 2]
    assert not consensus.doubts


def test_without_any_link_the_reference_stands_alone():
    graph, _ = graph_of("sim2", [], 3)
    assert agreed(gathering_of(graph), graph).placed == [0]


def test_a_refused_link_carries_nothing():
    assert not UNDECIDED_ALONE & {MapStatus.ALIGNED}
    graph, _ = graph_of("sim2", [(0, 1)], 2, status=MapStatus.LOW_CORRELATION)
    assert graph.links[0].status is LinkStatus.REFUSED
    assert agreed(gathering_of(graph), graph).placed == [0]


OPEN = {"status": MapStatus.LOW_CORRELATION}


def with_open(graph, poses, ends, error=0.0):
    """Links that their pairs alone leave open beside those of the graph."""
    found = [link_of(graph.linker, poses, *pair, error=error, **OPEN) for pair in ends]
    assert all(link.is_open and not link.carries for link in found)
    return graph.restricted([*graph.links, *found])


def test_a_loop_that_closes_speaks_for_its_open_links():
    graph, poses = graph_of("sim2", [(0, 1), (2, 3), (3, 4)], 5)
    graph = with_open(graph, poses, [(1, 2), (0, 4)])
    gathering = gathering_of(graph)
    consensus = agreed(gathering, graph)
    assert consensus.placed == [0, 1, 2, 3, 4]
    assert gathering.links[1, 2].status is LinkStatus.USED
    assert float(poses.local(consensus.poses).abs().max()) < 1e-6
    again = agreed(gathering, graph)  # what was used is asked again, and still needs its loop
    assert again.placed == [0, 1, 2, 3, 4]


def test_an_open_link_without_a_loop_carries_nothing_but_says_where_to_ask():
    graph, poses = graph_of("sim2", [(0, 1), (2, 3)], 4)
    graph = with_open(graph, poses, [(1, 2)])
    consensus = agreed(gathering_of(graph), graph)
    assert consensus.placed == [0, 1]
    assert [sorted(where) for where in consensus.alternatives] == [[0, 1, 2, 3]]


def test_an_open_link_whose_loop_does_not_close_places_nothing_and_contradicts_nothing():
    graph, poses = graph_of("sim2", [(0, 1), (1, 2), (0, 2)], 5)
    graph = with_open(graph, poses, [(2, 3)])
    graph = with_open(graph, poses, [(0, 3)], error=0.5)
    graph = with_open(graph, poses, [(0, 4), (1, 4)])
    gathering = gathering_of(graph)
    consensus = agreed(gathering, graph)
    assert consensus.placed == [0, 1, 2, 4] and not consensus.against
    assert gathering.links[0, 3].status is LinkStatus.REFUSED


def test_open_links_do_not_outvote_others():
    """Two of them close a loop that contradicts the only link of two maps that is believed."""
    graph, poses = graph_of("sim2", [(0, 1)], 4)
    graph = with_open(graph, poses, [(0, 2)])
    graph = with_open(graph, poses, [(1, 2)], error=0.5)
    graph = with_open(graph, poses, [(1, 3), (2, 3)])
    consensus = agreed(gathering_of(graph), graph)
    assert {link.pair for link in consensus.links} >= {(0, 1)}
    assert float(poses.storage[1].sub(consensus.poses.storage[1]).abs().max()) < 1e-6


def test_links_that_do_not_close_make_standard_errors_larger():
    graph, poses = graph_of("sim2", [(0, 1), (1, 2), (0, 2), (2, 3), (1, 3)], 4)
    assert excess(graph, solved(graph, poses)) == 1.0
    bent = [link_of(graph.linker, poses, *link.pair, error=1e-3 * (-1) ** k) for k, link in enumerate(graph.links)]
    graph = graph.restricted(bent)
    found = solved(graph, poses)
    squares = float(graph.whitened(found, tolerant=False).square().sum())
    assert excess(graph, found) == pytest.approx(squares / ((5 - 3) * 4)) and squares > 100
    tree = graph.restricted(bent[:2])
    assert excess(tree, solved(tree, poses)) == 1.0, "a tree has nothing to tell by"


def test_residuals_that_the_noise_of_both_maps_does_not_explain_are_out_of_line():
    linker, poses = linker_of(4), poses_of(MODELS["sim2"], 4)
    good = [link_of(linker, poses, *pair, rms=0.1) for pair in ((0, 1), (1, 2), (2, 3))]
    bad = link_of(linker, poses, 0, 3, rms=0.5)
    assert in_line([*good, bad]) == good
    noisy = link_of(linker, poses, 0, 3, rms=0.4)  # 16 of 20 times the variance
    assert in_line([*good, noisy]) == [*good, noisy]
    # In its own values, of twice the size, map 3 has twice the residual: the same noise.
    scaled = link_of(linker, poses, 0, 3, rms=0.1, gain=0.5)
    assert in_line([*good, scaled]) == [*good, scaled]


class Searching(Gathering):
    """A gathering whose searches find what is told, at once."""

    def attempt(self, fixed, moving, initial=None, predicted=False):
        self.asked.append((fixed, moving))
        status = MapStatus.ALIGNED if frozenset((fixed, moving)) in self.found else MapStatus.LOW_CORRELATION
        link = self.links[fixed, moving] = link_of(self.linker, self.poses, fixed, moving, status=status)
        return link


def searching(count, found):
    """Maps of which none hangs together yet, and the pairs that a full search would find."""
    linker = linker_of(count)
    gathering = Searching(linker, range(count))
    gathering.poses, gathering.asked = poses_of(MODELS["sim2"], count), []
    gathering.found = {frozenset(pair) for pair in found}
    return gathering


def test_a_map_that_belongs_to_nothing_is_given_up_after_a_few_searches():
    chain = [(i, i + 1) for i in range(8)]
    gathering = searching(10, chain)
    ranked = [*chain, *((i, 9) for i in range(9))]
    gathering._search([Candidate(*pair, 1.0, []) for pair in ranked])
    assert gathering.asked[:8] == chain
    assert gathering.asked[8:] == [(i, 9) for i in range(SEARCHES)]


def test_failures_of_one_map_do_not_keep_another_from_those_that_hang_together():
    gathering = searching(7, [(0, 1), (1, 2), (0, 6)])
    ranked = [(0, 1), (1, 2), *((i, j) for j in (3, 4, 5) for i in range(3)), (0, 6)]
    gathering._search([Candidate(*pair, 1.0, []) for pair in ranked])
    assert (0, 6) in gathering.asked
    assert len(gathering.used) == 3


def test_components_bridges_and_trees():
    linker, poses = linker_of(6), poses_of(MODELS["sim2"], 6)
    links = [link_of(linker, poses, *pair) for pair in ((0, 1), (1, 2), (0, 2), (2, 3), (4, 5))]
    assert component([0], links) == {0, 1, 2, 3}
    assert components(range(6), links) == [{0, 1, 2, 3}, {4, 5}]
    assert [(link.pair, part) for link, part in bridges([0], links)] == [((2, 3), {3})]
    assert components(range(6), links, [3, 5]) == [{0, 1, 2, 3, 4, 5}]
    assert [part for _, part in bridges([2, 4], links)] == [{3}, {5}]
    strong = link_of(linker, poses, 1, 3, ncc=0.999)
    assert strongest_tree([0], [*links, strong])[3] is strong
