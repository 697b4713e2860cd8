"""Hot pixels: points that stand out alone, at the same pixels of two maps. They are of the sensor, and of no place."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.prepared import Prepared

STANDS_OUT = 10.0
"""Times the MAD sigma of a pixel less the mean of its neighbours."""

ALONE = 0.3
"""Of what a point stands out by, what any neighbour of it does at most: what a lens has made is wider (0.45 and more of
a star of 0.8 px)."""

FEWEST = 4
"""Points at the same pixels, from which they are the sensor's."""


def in_common(one: Prepared, other: Prepared) -> int:
    """How many points both maps have at the same pixels; 0 of maps of other sizes."""
    if one.mask.shape != other.mask.shape:
        return 0
    return int((_points(one) & _points(other)).count_nonzero())


def _points(prepared: Prepared) -> Bool[Tensor, "height width"]:
    """Inner pixels that stand out alone from the eight around them, in any channel."""
    values = torch.nn.functional.pad(prepared.values, (1, 1, 1, 1), mode="replicate")
    known = torch.nn.functional.pad(prepared.mask, (1, 1, 1, 1))
    height, width = prepared.mask.shape
    places = [(y, x) for y in range(3) for x in range(3) if (y, x) != (1, 1)]
    around = torch.stack([values[:, y : y + height, x : x + width] for y, x in places])
    whole = torch.stack([known[y : y + height, x : x + width] for y, x in places]).all(0) & prepared.mask
    return (_stand_out(prepared.values, around) | _stand_out(-prepared.values, -around)).any(0) & whole


def _stand_out(
    values: Float[Tensor, "channels height width"], around: Float[Tensor, "8 channels height width"]
) -> Bool[Tensor, "channels height width"]:
    above, middle = values - around.mean(0), around.median(0).values
    scale = 1.4826 * above.flatten(1).abs().median(1).values.clamp(min=1e-12)
    alone = around.amax(0) - middle < ALONE * (values - middle)
    return (above > STANDS_OUT * scale[:, None, None]) & alone
