"""The graph of maps in every cell: which ratios join which maps, and which maps hang together."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Graph(NamedTuple):
    """Measurements sorted by the two maps that they join, whichever order these were given in.

    Measurements `start[e]` to `start[e + 1]` are those of edge e, of map `second[e]` over map `first[e]`, and
    first < second. Both orders of a pair, and a pair that is given several times, are one edge: each measurement keeps
    its own robust weight, the linear system sees their sums.
    """

    maps: int
    first: Int[Tensor, " edges"]
    second: Int[Tensor, " edges"]
    start: Int[Tensor, " edges_and_one"]
    order: Int[Tensor, " measurements"]
    """Which of the caller's pairs each measurement is."""
    sign: Float[Tensor, " measurements"]
    """−1 where the caller's pair is the other way round."""

    @property
    def ends(self) -> tuple[Int[Tensor, " measurements"], Int[Tensor, " measurements"]]:
        """The two maps of every measurement."""
        counts = self.start.diff()
        return self.first.repeat_interleave(counts), self.second.repeat_interleave(counts)


def graph_of(pairs: Int[Tensor, "pairs 2"], maps: int) -> Graph:
    """
    >>> graph = graph_of(torch.tensor([[0, 1], [1, 2], [1, 0]]), 3)
    >>> graph.first.tolist(), graph.second.tolist(), graph.start.tolist(), graph.sign.tolist()
    ([0, 1], [1, 2], [0, 2, 3], [1.0, -1.0, 1.0])
    """
    low, high = pairs.min(1).values, pairs.max(1).values
    edge, order = torch.sort(low * maps + high, stable=True)
    edges, counts = torch.unique_consecutive(edge, return_counts=True)
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    sign = torch.where(pairs[:, 0] < pairs[:, 1], 1.0, -1.0)[order].to(torch.float64)
    return Graph(maps, edges // maps, edges % maps, start, order, sign)


def components(observed: Bool[Tensor, "measurements cells"], graph: Graph) -> Int[Tensor, "maps cells"]:
    """In every cell, the smallest map that a chain of observed ratios leads to; −1 for a map that nothing leads to.

    The reachability matrix is squared until it cannot grow: log₂ N products of N × N matrices per cell.
    """
    n = graph.maps
    first, second = graph.ends
    links = observed.to(torch.float32)
    joined = links.new_zeros(n * n, links.shape[1])
    joined = joined.index_add(0, first * n + second, links).index_add(0, second * n + first, links)
    reach = joined.reshape(n, n, -1).permute(2, 0, 1)
    alone = reach.sum(-1) == 0
    reach = ((reach + torch.eye(n, device=links.device)) > 0).to(torch.float32)
    for _ in range(max(1, (n - 1).bit_length())):
        before, reach = reach, ((reach @ reach) > 0).to(torch.float32)
        if torch.equal(before, reach):
            break
    return torch.where(alone, -1, reach.argmax(-1)).T


def free_maps(component: Int[Tensor, "maps cells"]) -> Float[Tensor, "maps cells"]:
    """1 for a map that has to be found; 0 for the smallest one of a component, which holds its gauge, and for one that
    is not seen."""
    maps = torch.arange(len(component), device=component.device)[:, None]
    return ((component >= 0) & (component != maps)).to(torch.float64)


def centred(
    logs: Float[Tensor, "maps cells"], component: Int[Tensor, "maps cells"], reference: int | None
) -> Float[Tensor, "maps cells"]:
    """The logs in their gauge: zero at the reference in its component, with mean zero in every other one."""
    member = (component >= 0).to(logs.dtype)
    label = component.clamp(min=0)
    total = torch.zeros_like(logs).scatter_add(0, label, logs * member)
    size = torch.zeros_like(logs).scatter_add(0, label, member)
    offset = (total / size.clamp(min=1)).gather(0, label)
    if reference is not None:
        with_reference = (component == component[reference]) & (component >= 0)
        offset = torch.where(with_reference, logs[reference], offset)
    return logs - offset
