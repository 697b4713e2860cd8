"""Steps on machines that are not here: a cost model, and a simulation of every rank and message that it is checked by.

    python benchmarks/rank_simulation.py      # seconds; the last tables of benchmarks/results/distributed.md

A dense fit on machines of eight GPUs. In the simulation each rank has a clock: it works for a time of its own, another
in every step, and then takes part in the collectives of a step, one message after the other; who receives one waits for
the sender. Small sums go by recursive doubling, large ones by rings: within machines, between them, within them again
(R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005). The model
is a formula of the same rates. What rates are taken is assumed: no GPU was there.
"""

import math
from dataclasses import dataclass

import numpy as np
from timing import print_table

DOUBLE = 8
"""Bytes."""
SMALL = 64 * 1024
"""Bytes up to which a sum goes by recursive doubling."""
STEPS = 200
"""That are simulated."""

Clocks = np.ndarray
"""Of every rank, in seconds."""


@dataclass(frozen=True)
class Link:
    """Between two GPUs: what a message takes at least, in seconds, and bytes a second."""

    latency: float
    bandwidth: float

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Machines of equal GPUs, powers of two of both. Rates are assumed."""

    machines: int
    gpus: int = 8
    flops: float = 20e12
    """A second, in float64."""
    memory: float = 2e12
    """Bytes a second."""
    cholesky: float = 1e12
    """Operations a second of a factorisation."""
    near: Link = Link(3e-6, 300e9)
    """Within a machine."""
    far: Link = Link(12e-6, 25e9)
    """Between machines; each GPU has its own."""
    spread: float = 0.02
    """Standard deviation of the time that a rank works, relative to its mean."""

    @property
    def ranks(self) -> int:
        return self.machines * self.gpus


def messages_of_step(unknowns: int) -> list[float]:
    """Bytes of the collectives of a step of `distributed.solve`: an announcement, the sum of cost, gradient and matrix,
    and what the first rank says of the step."""
    numbers = (6, 1 + unknowns + unknowns**2, 2 * unknowns + 9)
    return [float(DOUBLE * n) for n in numbers]


def work(cluster: Cluster, rows: float, unknowns: int) -> float:
    """Seconds of a rank for its rows: products, or a Jacobian that is written and read once."""
    mine = rows / cluster.ranks
    return max(mine * unknowns**2 / cluster.flops, mine * unknowns * DOUBLE * 2 / cluster.memory)


def cholesky(cluster: Cluster, unknowns: int) -> float:
    """Seconds of the factorisation, which every rank does."""
    return unknowns**3 / 3 / cluster.cholesky


# ---- the simulation


def simulated(cluster: Cluster, rows: float, unknowns: int, seed: int = 0) -> float:
    """Seconds of a step: of many, the last rank's clock over their number."""
    random = np.random.default_rng(seed)
    clocks = np.zeros(cluster.ranks)
    mean, alone = work(cluster, rows, unknowns), cholesky(cluster, unknowns)
    for _ in range(STEPS):
        announced, total, told = messages_of_step(unknowns)
        clocks = clocks + mean * np.maximum(1 + cluster.spread * random.standard_normal(cluster.ranks), 0)
        clocks = summed(cluster, summed(cluster, clocks, announced), total) + alone
        clocks = summed(cluster, clocks, told)
    return float(clocks.max()) / STEPS


def summed(cluster: Cluster, clocks: Clocks, size: float) -> Clocks:
    """After a sum over all ranks."""
    if cluster.ranks == 1:
        return clocks
    return (_by_doubling if size <= SMALL else _by_rings)(cluster, clocks, size)


def _by_doubling(cluster: Cluster, clocks: Clocks, size: float) -> Clocks:
    ranks = np.arange(cluster.ranks)
    distance = 1
    while distance < cluster.ranks:
        link = cluster.near if distance < cluster.gpus else cluster.far
        clocks = np.maximum(clocks, clocks[ranks ^ distance]) + link.seconds(size)
        distance *= 2
    return clocks


def _by_rings(cluster: Cluster, clocks: Clocks, size: float) -> Clocks:
    grid = clocks.reshape(cluster.machines, cluster.gpus)
    part = size / cluster.gpus
    grid = _around(grid, 1, cluster.near, part, cluster.gpus - 1)
    grid = _around(grid, 0, cluster.far, part / cluster.machines, 2 * (cluster.machines - 1))
    return _around(grid, 1, cluster.near, part, cluster.gpus - 1).reshape(-1)


def _around(grid: Clocks, axis: int, link: Link, size: float, rounds: int) -> Clocks:
    """Each sends to its neighbour and receives from the other one, `rounds` times."""
    for _ in range(rounds):
        sent = grid + size / link.bandwidth
        grid = np.maximum(sent, np.roll(sent, 1, axis) + link.latency)
    return grid


# ---- the model


def predicted(cluster: Cluster, rows: float, unknowns: int) -> float:
    """Seconds of a step, by a formula: the slowest of all ranks, the factorisation, every message."""
    slowest = 1 + cluster.spread * _largest_of(cluster.ranks)
    messages = sum(_seconds_of(cluster, size) for size in messages_of_step(unknowns))
    return work(cluster, rows, unknowns) * slowest + cholesky(cluster, unknowns) + messages


def _seconds_of(cluster: Cluster, size: float) -> float:
    """Of one sum."""
    if cluster.ranks == 1:
        return 0.0
    if size <= SMALL:
        near, far = (math.log2(count) for count in (cluster.gpus, cluster.machines))
        return near * cluster.near.seconds(size) + far * cluster.far.seconds(size)
    part = size / cluster.gpus
    near = 2 * (cluster.gpus - 1) * cluster.near.seconds(part)
    return near + 2 * (cluster.machines - 1) * cluster.far.seconds(part / cluster.machines)


def _largest_of(count: int) -> float:
    """Of `count` standard normal numbers, in the mean (G. Blom, "Statistical estimates and transformed beta-variables",
    1958)."""
    if count == 1:
        return 0.0
    return _quantile((count - 0.375) / (count + 0.25))


def _quantile(share: float) -> float:
    """Of the standard normal distribution."""
    low, high = -10.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * math.erfc(-middle / math.sqrt(2)) < share else (low, middle)
    return low


# ---- the tables


def checked(unknowns: int = 1000) -> list[tuple[object, ...]]:
    """The model beside the simulation, at three sizes on three clusters."""
    lines: list[tuple[object, ...]] = []
    for rows in (1e6, 1e7, 1e9):
        for machines in (1, 2, 8):
            cluster = Cluster(machines)
            model, found = predicted(cluster, rows, unknowns), simulated(cluster, rows, unknowns)
            alone = predicted(Cluster(1, 1), rows, unknowns)
            efficiency = alone / (cluster.ranks * found)
            lines.append((f"{rows:.0e}", cluster.ranks, 1e3 * model, 1e3 * found, model / found, efficiency))
    return lines


def main() -> None:
    head = ["rows", "GPUs", "model, ms", "simulated, ms", "model / simulated", "efficiency"]
    print_table(f"A step of a dense fit of 1,000 unknowns, float64; {STEPS} simulated steps", head, checked())
    taken = Cluster(8)
    print(
        f"\nAssumed: {taken.flops:.0e} flop/s in float64, {taken.memory:.0e} B/s of memory (J is written and read "
        f"once), Cholesky at {taken.cholesky:.0e} flop/s; within a machine {1e6 * taken.near.latency:.0f} us and "
        f"{1e-9 * taken.near.bandwidth:.0f} GB/s, between machines {1e6 * taken.far.latency:.0f} us and "
        f"{1e-9 * taken.far.bandwidth:.0f} GB/s for each GPU; ranks differ by {taken.spread:.0%} (standard deviation)."
    )


if __name__ == "__main__":
    main()
