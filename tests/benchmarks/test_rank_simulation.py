"""The model of ranks that are not here, beside the simulation of every message."""

import importlib
from dataclasses import replace
from typing import Any

import pytest

from tests.benchmarks.test_gate import GATE


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(GATE.parent))
    return importlib.import_module("rank_simulation")


def test_one_rank_waits_for_no_other(simulation):
    alone = simulation.Cluster(1, 1, spread=0.0)
    expected = 1e6 * 1000**2 / alone.flops + 1000**3 / 3 / alone.cholesky
    assert simulation.simulated(alone, 1e6, 1000) == pytest.approx(expected)
    assert simulation.predicted(alone, 1e6, 1000) == pytest.approx(expected)


@pytest.mark.parametrize("machines", [1, 2, 8])
def test_ranks_that_work_equally_long_take_what_the_model_says(simulation, machines):
    cluster = replace(simulation.Cluster(machines), spread=0.0)
    assert simulation.simulated(cluster, 1e7, 300) == pytest.approx(simulation.predicted(cluster, 1e7, 300), rel=1e-9)


@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_the_slowest_of_unequal_ranks_is_waited_for(simulation, spread):
    cluster = replace(simulation.Cluster(8), spread=spread)
    found, equal = (simulation.simulated(one, 1e9, 1000) for one in (cluster, replace(cluster, spread=0.0)))
    assert found > (1 + 2 * spread) * simulation.work(cluster, 1e9, 1000) > 0.99 * equal
    assert found == pytest.approx(simulation.predicted(cluster, 1e9, 1000), rel=0.02)


def test_a_late_rank_holds_all_others(simulation):
    cluster = simulation.Cluster(2, 4)
    for size in (48.0, 1e6):
        clocks = simulation.np.zeros(cluster.ranks)
        clocks[5] = 1.0
        assert (simulation.summed(cluster, clocks, size) > 1.0).all()


def test_messages_are_those_that_were_counted(simulation):
    """Three of a step, of 1,568 bytes with twelve unknowns, whatever the ranks; `tests/distributed` counts them."""
    assert len(simulation.messages_of_step(12)) == 3
    assert sum(simulation.messages_of_step(12)) == 1568
