"""A number that stands for "no data" (-9999, black borders) where no header says so: named where it does harm."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

FEWEST, SHARE = 16, 1e-3
"""Pixels, and their part of all, that equal the number at least."""
FRAME = 0.02
"""Of all pixels, those that hold it and hang together with the border, where it is no farther from others than they."""
VALUES, LOOKED_AT = 32, 10_000
"""Different numbers that the others have at least, of these that are looked at: maps of few classes lack nothing."""

IF_SO = "If so, mask it: nodata= where files are read, masks=, or NaN."

NUMBERS = frozenset(-float(number) for number in (999, 9999, 99999, 999999, 9999999, 32767, 32768, 2147483648))
LARGE, APART = 1e15, 10.0
"""What is certainly no data: one of these numbers, a magnitude beyond all units, or one that many ranges below others.
(The largest numbers of integers are saturated pixels as well.)"""


class Undeclared(NamedTuple):
    """A number that may stand for no data, and its share of the pixels."""

    number: float
    share: float
    apart: float
    """How far it is from all others, over how far they are from each other."""

    @property
    def certain(self) -> bool:
        """Can it be nothing else?"""
        if self.apart <= 1.0:
            return False
        return self.number in NUMBERS or abs(self.number) >= LARGE or (self.number < 0 and self.apart > APART)

    def words(self, what: str) -> str:
        """In a sentence; `what` is whose pixels they are."""
        return f"{self.share:.1%} of the pixels of {what} hold exactly {self.number:.8g}, as if that stood for no data."


def undeclared(
    values: Float[Tensor, "channels height width"],
    known: Bool[Tensor, "height width"],
    frames: bool = False,
    extremes: tuple[float, float] | None = None,
) -> Undeclared | None:
    """The least or the largest number of a map where it repeats exactly, and lies farther from all others than they
    from each other; None where there is none. With `frames` one that covers a part of the border, too, however near
    others are. `extremes` are the least and the largest, where they are known."""
    raster, mask = values.numpy(), known.numpy()  # in which such passes take a third of the time
    total = int(np.count_nonzero(mask))
    if extremes is None:
        data = raster if total == mask.size else raster[:, mask]
        extremes = float(data.min()), float(data.max())
    for number in extremes:
        if np.count_nonzero(raster[0] == number) < max(FEWEST, SHARE * total):
            continue  # of most maps, which are asked no more
        equal = mask & (raster == number).all(0)
        count = int(np.count_nonzero(equal))
        if count < max(FEWEST, SHARE * total) or count == total:
            continue
        others = raster[:, mask & ~equal].ravel()
        if len(np.unique(others[:: max(1, others.size // LOOKED_AT)])) < VALUES:
            continue
        low, high = float(others.min()), float(others.max())
        found = Undeclared(number, count / total, max(low - number, number - high) / (high - low))
        if found.apart > 1.0 or (frames and _at_border(equal) > FRAME * total):
            return found
    return None


def _at_border(equal: Bool[np.ndarray, "height width"]) -> int:
    """How many of these pixels hang together with the border."""
    from scipy import ndimage

    parts = np.empty(equal.shape, np.int32)
    ndimage.label(equal, output=parts)
    border = {int(one) for side in (parts[0], parts[-1], parts[:, 0], parts[:, -1]) for one in side} - {0}
    return sum(int((parts == one).sum()) for one in border)
