"""Columns of a system: each free entry has its own, connected blocks share a component, fixed ones have none."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.csgraph
import torch

import mslsq
from mslsq.front.problem_statement import stated
from mslsq.problem.structure import SMALL, Structure, least_connected, structure_of

F64 = torch.float64


def structure(problem: mslsq.Problem) -> Structure:
    values = {
        name: torch.zeros(variable.num_blocks, variable.space.storage_dim, dtype=F64)
        for name, variable in problem.variables.items()
    }
    return structure_of(stated(problem, values, None).system)


def chain(x, i, j):
    return mslsq.cost(lambda a, b: b - a)(x[i], x[j], name="link")


def used(plan: Structure) -> list[int]:
    entries = torch.cat([columns.reshape(-1) for columns in plan.columns])
    return sorted(entries[entries < plan.num_columns].tolist())


def test_a_small_system_is_one_dense_one_in_order():
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=4)
    plan = structure(mslsq.Problem(chain(x, [0, 2], [1, 3])))
    assert (plan.num_components, plan.size, plan.natural, plan.padding) == (1, 8, True, None)
    assert plan.columns[0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_fixed_blocks_have_no_column():
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
    plan = structure(mslsq.Problem(chain(x, [0, 1], [1, 2]), x.fixed([1])))
    assert plan.num_columns == 4 and not plan.natural
    assert plan.columns[0].tolist() == [[0, 1], [4, 4], [2, 3]]


@pytest.mark.parametrize("lengths", [(30, 30), (30, 20, 10), (20,) * 10])
def test_connected_components_are_found_and_padded(lengths):
    total = sum(lengths)
    assert 2 * total > SMALL
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=total)
    firsts = [sum(lengths[:k]) for k in range(len(lengths))]
    # The blocks of the chains are dealt out, so that no component is contiguous.
    place = torch.randperm(total, generator=torch.Generator().manual_seed(0))
    i = torch.cat([first + torch.arange(n - 1) for first, n in zip(firsts, lengths, strict=True)])
    plan = structure(mslsq.Problem(chain(x, place[i], place[i + 1])))
    assert (plan.num_components, plan.size) == (len(lengths), 2 * max(lengths))
    assert len(used(plan)) == len(set(used(plan))) == 2 * total
    component = plan.columns[0][place] // plan.size
    for first, n in zip(firsts, lengths, strict=True):
        assert len(component[first : first + n].unique()) == 1
    padding = torch.zeros(plan.num_columns, dtype=torch.bool) if plan.padding is None else plan.padding
    assert int(padding.sum()) == plan.num_columns - 2 * total
    assert not bool(padding[used(plan)].any())


def test_a_fixed_block_cuts_a_chain_in_two():
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=61)
    i = torch.arange(60)
    assert structure(mslsq.Problem(chain(x, i, i + 1))).num_components == 1
    assert structure(mslsq.Problem(chain(x, i, i + 1), x.fixed([30]))).num_components == 2


def test_one_variable_for_all_blocks_connects_them():
    x, shared = mslsq.Variable("x", mslsq.Euclidean(2), count=60), mslsq.Variable("s", mslsq.Euclidean(2))
    look = mslsq.cost(lambda x, s: x - s)
    alone = mslsq.cost(lambda x: x)
    connected = mslsq.Problem(look(x, shared, name="look"))
    values = {"x": torch.zeros(60, 2, dtype=F64), "s": torch.zeros(2, dtype=F64)}
    assert structure_of(stated(connected, values, None).system).num_components == 1
    assert structure(mslsq.Problem(alone(x, name="alone"))).num_components == 60


def test_components_of_very_different_sizes_are_not_padded_at_a_loss():
    """One of 100 columns and 200 of 2: 201 matrices of 100 x 100 would be eight times the one dense matrix."""
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=250)
    alone = mslsq.cost(lambda x: x)
    plan = structure(mslsq.Problem(chain(x, torch.arange(49), torch.arange(49) + 1), alone(x, name="alone")))
    assert plan.num_components == 1 and plan.size == 500


@pytest.mark.parametrize("links", [0, 40, 90, 99, 300])
def test_connected_nodes_are_those_that_scipy_finds(links):
    rng = np.random.default_rng(links)
    one, other = rng.integers(0, 100, links), rng.integers(0, 100, links)
    if links == 99:  # a path in no order: the most rounds
        order = rng.permutation(100)
        one, other = order[:-1], order[1:]
    graph = scipy.sparse.coo_array((np.ones(links), (one, other)), shape=(100, 100))
    _, part = scipy.sparse.csgraph.connected_components(graph, directed=False)
    least = [np.flatnonzero(part == p).min() for p in part]
    assert least_connected(100, one, other).tolist() == least
