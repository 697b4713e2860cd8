"""Maps between which a gain and a bias leave a curve of values, as a gamma does: all taken to the reference's values.

The curve of a map is the mean of what others show at its values, where all maps are laid. The reference's values are
known, and along the tree of links those of each map that is reached. What no other map shows keeps its gain and bias.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mslsq.alignment.curves import curve_of, taken_along
from mslsq.alignment.joint.state import Coordinates, State
from mslsq.alignment.linking import Linker
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.prepared import Prepared

AS_IT_IS = (0.0, 1.0)
"""Mean and spread of values that are not standardised."""


def of_reference(
    linker: Linker,
    coordinates: Coordinates,
    state: State,
    order: Sequence[int],
    pairs: Collection[tuple[int, int]],
    in_pixels: Mapping[int, tuple[float, float]],
    prefilter: float,
) -> Linker:
    """The maps with the values that the reference, the first in `order`, has where they are laid: each seen from those
    before it that `pairs` join it with, behind a prefilter. `in_pixels` are gains and biases."""
    maps: list[Prepared | None] = list(linker.maps)
    for place, index in enumerate(order[1:], 1):
        partners = [other for other in order[:place] if (other, index) in pairs or (index, other) in pairs]
        seen = [_shown(linker, maps, coordinates, state, other, index, prefilter) for other in partners]
        curve = None
        if seen:
            curve = curve_of(*(torch.cat(each) for each in zip(*seen, strict=True)))
        maps[index] = (
            taken_along(linker.map(index), curve, *AS_IT_IS)
            if curve is not None
            else linker.map(index).changed(*in_pixels[index])
        )
    return replace(linker, maps=maps)


def _shown(
    linker: Linker,
    maps: Sequence[Prepared | None],
    coordinates: Coordinates,
    state: State,
    fixed: int,
    moving: int,
    prefilter: float,
) -> tuple[Tensor, Tensor]:
    """Of the common samples the values of the map `moving`, and those of another one in the reference's values."""
    one, other = maps[fixed], linker.map(moving)
    assert one is not None
    shown, seen = (each.pyramid(1, *AS_IT_IS, prefilter)[0] for each in (one, other))
    level = PairLevel.of(shown, seen, linker.frame(fixed), 0)
    warp = level.planes.new_tensor(coordinates.between(state, fixed, moving).matrix.tolist())
    sampled, valid = level.look(warp)
    return sampled[valid], level.target[valid]
