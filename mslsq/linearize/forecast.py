"""How long the steps of a first solve will take in PyTorch, from linearizations of few of its blocks.

A large problem is worth its native programs at once: a solve of sphere2500 with a residual of one's own takes two
seconds without, and one with them, of which the compiler takes most.
"""

import time
from collections.abc import Sequence

import torch

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.sample import sample_of
from mslsq.problem.system import Inputs
from mslsq.tracing.graph import TRANSFORM_LOCK

EXPECTED_STEPS = 5
"""Of a solve: pose graphs and bundle adjustments take four to ten."""
LEAST_LANES = 1024
"""Fewer are not measured: their steps take milliseconds."""
SAMPLES = 8, 256
"""Lanes that are measured: the difference tells what a lane takes beyond what every call takes."""


def seconds_of_steps(blocks: Sequence[BlockTerm], values: Values, inputs: tuple[Inputs, ...], max_steps: int) -> float:
    """What linearizing all blocks takes in PyTorch in the steps of a solve; those that have Jacobians in closed form
    are not measured. Blocks know how they are differentiated; values and inputs are as given by the user."""
    found = (_seconds_of_one(block, values, given) for block, given in zip(blocks, inputs, strict=True))
    return min(EXPECTED_STEPS, max_steps) * sum(found)


def _seconds_of_one(block: BlockTerm, values: Values, inputs: Inputs) -> float:
    lanes = block.all_lanes
    if block.term.jacobians is not None or lanes < LEAST_LANES:
        return 0.0
    _seconds_of_few(block, values, inputs, SAMPLES[0])  # what a process loads at its first linearization is no step's
    (few, taken), (more, both) = (_seconds_of_few(block, values, inputs, count) for count in SAMPLES)
    return max(0.0, few + (more - few) / (both - taken) * (lanes - taken))


def _seconds_of_few(block: BlockTerm, values: Values, inputs: Inputs, count: int) -> tuple[float, int]:
    """One linearization of that many lanes or a few more, blocks of as many problems as that takes; and how many."""
    places = range(min(block.term.num_blocks, count))
    problems = range(min(block.batch, -(-count // len(places))))
    with torch.no_grad():
        sample = sample_of(block, [values], inputs, problems, places)
        with TRANSFORM_LOCK:
            begun = time.perf_counter()
            sample.linearizations()
            return time.perf_counter() - begun, len(problems) * len(places)
