"""Elevation models: shift in metres and vertical bias, by least squares on differences of elevation."""

from mslsq.alignment.dem.coregister import coregister
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.local import LocalCoregistration, coregister_blocks
from mslsq.alignment.dem.masks import stable_terrain
from mslsq.alignment.dem.result import Coregistration, CoregistrationStatus
from mslsq.alignment.dem.statistics import ElevationStatistics

__all__ = [
    "Coregistration",
    "CoregistrationError",
    "CoregistrationStatus",
    "ElevationStatistics",
    "LocalCoregistration",
    "coregister",
    "coregister_blocks",
    "stable_terrain",
]
