"""Parts of a reference side by side in one raster, and where each of them lies on it."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Slots:
    """Squares of `side` pixels, `columns` of them in a row. The first pixel of slot k is `corners`[k] (column, row) of
    the reference."""

    side: int
    columns: int
    corners: Float[Tensor, "slots 2"]
    size: tuple[int, int]
    """Height and width of the reference."""
    thinning: float = 1.0
    """Pixels of the overlap for which one that is stored stands."""

    def places(self, pixels: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """Pixels (column, row) of the raster as those of the reference."""
        if len(self.corners) == 1:
            return pixels + self.corners[0]
        at = (pixels / self.side).floor()
        column, row = at.long().unbind(-1)
        return pixels - at * self.side + self.corners[row * self.columns + column]
