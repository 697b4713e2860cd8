"""Alignment of overlapping maps: warps, gains and biases by multi-scale least squares."""

from mslsq.alignment.align import align
from mslsq.alignment.options import AlignmentOptionError
from mslsq.alignment.result import CONVENTION, Alignment, MapStatus, Stage

__all__ = ["CONVENTION", "Alignment", "AlignmentOptionError", "MapStatus", "Stage", "align"]
