"""How many small blocks agree all but entirely: what speaks for a placement when a part of the scene is elsewhere.

Where things have moved, the median of the blocks says little: of blocks of 16 × 16 samples most hold a piece of what
has moved, or its edge. Of smaller ones many hold nothing of it, and agree as if nothing had happened. As of the inliers
of a sample consensus (Fischler and Bolles, 1981) their number counts, beyond the unknowns of the warp, and not their
share; and as elsewhere an edge that runs on from one block into the next is counted once (`mslsq.alignment.apertures`).

Numbers alone are no proof: one half of two pictures may be the same, and the rest of them not, and where a texture
repeats, all blocks agree in many places. So the median of the larger blocks must not be that of chance, and the
placement must stand out from all other shifts as any other must.
"""

from functools import partial

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.apertures import independent
from mslsq.alignment.evidence import compared_in, evidence
from mslsq.alignment.pair_level import PairLevel

SIDE = 8
"""Samples: of the blocks that are counted."""

ENTIRELY = 0.9
"""Correlation of a block from which it is counted."""

ENOUGH = 8.0
"""Blocks beyond the unknowns of the warp. Of 256 placements of maps without a match those that led any other by 1 had
4.3 at most by similarities, and 5.9 by affine warps, two rails on two others; of 18 true ones of scenes of which 30 %
had moved 13 at least (the half "choose" of `benchmarks/alignment_truth.py` and `benchmarks/metric_pairs.py`)."""

LESS = 0.2
"""Taken off the least detail of the larger blocks in the median: 0.4 is left of 0.6, not of chance, and of a block of
which more than half has moved. It was 0.48 and more in those 18, and 0.28 in two views of a street of which one house
lies on itself."""


def consensus(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> float:
    """The number of blocks that agree in what no other block has said; the level keeps the last one."""
    return level.kept("consensus", matrix, partial(_counted, level))


def _counted(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> float:
    asked = compared_in(level, matrix, SIDE).asked
    return independent(asked.slopes, asked.at, (asked.correlation >= ENTIRELY).astype(np.float64))


def united(level: PairLevel, matrix: Float[Tensor, "3 3"], least: float, unknowns: int) -> bool:
    """Do blocks enough agree where the `least` detail of a placement without moved parts is this?"""
    return evidence(level, matrix).agreement >= least - LESS and consensus(level, matrix) >= ENOUGH + unknowns
