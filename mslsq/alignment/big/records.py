"""What a refinement by tiles has used, for messages and reports."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TileLevel:
    """What one level of the refinement used."""

    factor: int
    """Pixels of the files per sample, of the finer map of a link."""
    tiles: int
    of: int
    """How many tiles the maps of the links have in all, those without data and beyond the overlap among them."""
    samples: int
    unreadable: int = 0
    """Tiles whose part of a file is damaged."""

    @property
    def words(self) -> str:
        """ "48 tiles of 6,400"."""
        return f"{self.tiles:,} tiles of {self.of:,}" + (
            f" ({self.unreadable:,} more could not be read)" if self.unreadable else ""
        )
