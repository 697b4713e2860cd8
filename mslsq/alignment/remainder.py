"""Does what lies beside the forms agree that two maps have in common?

The frame of a picture is no part of it. Two discs, dials, eyes, or pictures in one kind of frame lie on each other
along their outlines, in the blocks with the most to be seen, better than anywhere else; what the outlines hold is of
two scenes. So long edges that both maps show are taken out of them, all of them, with a margin, and of what remains the
detail must agree, block by block, by a little more than chance has it. Where the edges in common cover most of the
overlap, it is the scene that agrees.

In scenes of which parts have moved, and in other modalities, less agrees than elsewhere, and a little is enough: by
chance blocks agree by 0 in the mean, whatever they show. Where nothing is seen beside the forms, they must say enough
by themselves.
"""

from typing import NamedTuple

import numpy as np
import scipy.ndimage
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.evidence import FAINTEST, compared, compared_in
from mslsq.alignment.pair_level import PairLevel

SIDE = 8
"""Samples: of the blocks that are compared beside the forms."""

BRIGHT = 0.99
"""The quantile of the maps' common slopes that edges are compared with."""

STRONG = 0.2
"""Of it, an edge in common has this much."""

LONG = 0.25
"""Of the shorter side of a map: an edge in common that reaches as far, or farther, is a form."""

MARGIN = 6
"""Samples on either side of a form's edge that show it still, behind filters."""

OUTLINES = 0.1, 0.7
"""Share of the overlap that forms and their margins cover: of less they are small, of more the scene itself."""

ENOUGH = 8
"""Blocks that must show something beside the forms, for these to tell."""

LOUD = 4.0
"""Times the median energy: blocks do not count for more."""

AGREEING = 0.3, 0.12
"""What the blocks beside the forms must agree by in the mean, of values and of what else is compared. Of eyes, coins,
dishes, gauges and portholes it was 0.15 at most by values and 0.04 by edges; of 212 placements of maps with a match two
have less (half "choose"). Other forms leave pieces beside them that agree: see the results."""

NEARLY_ALL = 0.1, 0.5
"""Where all but this share of the larger blocks agree by this much, forms are not looked for (2 to 4 ms)."""


class Remainder(NamedTuple):
    """What is left of the overlap beside the forms that both maps show."""

    covered: float
    """Share of the overlap that forms and their margins cover; 0 without any."""
    blocks: int
    """That show something beside them."""
    hidden: int
    """That noise hides."""
    agreement: float
    """Their mean correlation, over what noise leaves of it, weighed by energy up to `LOUD`; 0 without any."""


def agree_everywhere(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> bool:
    """Do all but a few of the blocks of a level agree? Then there is nothing else beside a form."""
    seen, (share, least) = compared(level, matrix), NEARLY_ALL
    if len(seen.correlation) < ENOUGH:
        return False
    return float(np.quantile(seen.correlation / np.maximum(seen.reliability, FAINTEST), share)) >= least


def remainder(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Remainder:
    """What is left of a level beside all forms; one of 128² takes about 2 ms."""
    sampled, valid = level.look(matrix)
    known = valid.reshape(level.grid).numpy(force=True)
    one, other = (values.T.reshape(-1, *level.grid).numpy(force=True) for values in (sampled, level.target))
    edges = forms(one, other, known)
    if not edges.any():
        return Remainder(0.0, 0, 0, 0.0)
    out = known & (np.asarray(scipy.ndimage.distance_transform_edt(~edges)) <= MARGIN)
    left = torch.from_numpy(known & ~out).to(valid.device).reshape(-1)
    beside = compared_in(level, matrix, SIDE, left)
    shown = beside.reliability > FAINTEST
    count, hidden, covered = int(shown.sum()), int((~shown).sum()), float(out.sum() / known.sum())
    if not count:
        return Remainder(covered, 0, hidden, 0.0)
    agreement = np.minimum(beside.correlation[shown] / beside.reliability[shown], 1.0)
    return Remainder(
        covered, count, hidden, float(np.average(agreement, weights=np.minimum(beside.energy[shown], LOUD)))
    )


def forms(
    one: Float[np.ndarray, "channels height width"],
    other: Float[np.ndarray, "channels height width"],
    known: Bool[np.ndarray, "height width"],
) -> Bool[np.ndarray, "height width"]:
    """The edges that both maps show in one place, and that run on for `LONG`."""
    slopes = [np.array(np.gradient(np.where(known, values, 0.0), axis=(1, 2))) for values in (one, other)]
    common = (slopes[0] * slopes[1]).sum((0, 1))
    inner = scipy.ndimage.binary_erosion(known, iterations=2)  # where nothing is known, values end
    common = np.where(inner, np.maximum(common, 0.0), 0.0)
    if not common.any():
        return np.zeros_like(known)
    strong = common >= STRONG * np.quantile(common[known], BRIGHT)
    strong = scipy.ndimage.binary_closing(strong & (common > 0), np.ones((3, 3)))
    number = np.empty(known.shape, dtype=np.int64)
    scipy.ndimage.label(strong, np.ones((3, 3)), number)
    reach = [max(part.stop - part.start for part in box) for box in scipy.ndimage.find_objects(number)]
    long = [k + 1 for k, extent in enumerate(reach) if extent >= LONG * min(known.shape)]
    return np.isin(number, long)
