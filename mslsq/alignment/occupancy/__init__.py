"""Occupancy maps: their cells, a search for all rotations and shifts, and whether a placement is believed."""

from mslsq.alignment.occupancy.cells import without_unknown
from mslsq.alignment.occupancy.placing import place

__all__ = ["place", "without_unknown"]
