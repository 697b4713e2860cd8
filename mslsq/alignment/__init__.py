"""Alignment of overlapping maps: warps, gains and biases by multi-scale least squares."""

from mslsq.alignment import learned, mosaics, synthetic
from mslsq.alignment.align import align
from mslsq.alignment.joint import Link, LinkStatus
from mslsq.alignment.kinds import RasterError
from mslsq.alignment.options import AlignmentOptionError
from mslsq.alignment.result import CONVENTION, Alignment, MapStatus, Stage
from mslsq.alignment.scale_sync import ScaleSync, scale_sync

__all__ = [
    "CONVENTION",
    "Alignment",
    "AlignmentOptionError",
    "Link",
    "LinkStatus",
    "MapStatus",
    "RasterError",
    "ScaleSync",
    "Stage",
    "align",
    "learned",
    "mosaics",
    "scale_sync",
    "synthetic",
]
