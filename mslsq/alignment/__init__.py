"""Alignment of overlapping maps: warps, gains and biases by multi-scale least squares."""

from mslsq.alignment import learned, metrics, mosaics, synthetic
from mslsq.alignment.align import align
from mslsq.alignment.bends import Bend
from mslsq.alignment.big import (
    FilesAlignment,
    FilesCoregistration,
    MosaicFiles,
    RasterFile,
    TileLevel,
    align_files,
    coregister_files,
    coregister_files_blocks,
    write_coregistered,
    write_mosaic,
)
from mslsq.alignment.coordinates import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.applying import FoundTransform, LeftOutError, TransformsError, read_transform
from mslsq.alignment.coordinates.placement import WorldPlacement
from mslsq.alignment.dem import (
    Coregistration,
    CoregistrationError,
    CoregistrationStatus,
    ElevationStatistics,
    LocalCoregistration,
    coregister,
    coregister_blocks,
    stable_terrain,
)
from mslsq.alignment.joint import Link, LinkStatus
from mslsq.alignment.kinds import RasterError
from mslsq.alignment.options import AlignmentOptionError
from mslsq.alignment.pairs import Pair, PairAlignment, align_pairs
from mslsq.alignment.result import CONVENTION, Alignment, MapStatus, Stage
from mslsq.alignment.scale_sync import ScaleSync, scale_sync
from mslsq.alignment.scales.fields import ScaleFields, scale_fields
from mslsq.alignment.scales.room import Room, room
from mslsq.alignment.scales.views import DepthViews, depth_views, depths_in_view

__all__ = [
    "CONVENTION",
    "Alignment",
    "AlignmentOptionError",
    "Bend",
    "Coregistration",
    "CoregistrationError",
    "CoregistrationStatus",
    "DepthViews",
    "ElevationStatistics",
    "FilesAlignment",
    "FilesCoregistration",
    "FoundTransform",
    "Georeference",
    "GeoreferenceError",
    "LeftOutError",
    "Link",
    "LinkStatus",
    "LocalCoregistration",
    "MapStatus",
    "MosaicFiles",
    "Pair",
    "PairAlignment",
    "RasterError",
    "RasterFile",
    "Room",
    "ScaleFields",
    "ScaleSync",
    "Stage",
    "TileLevel",
    "TransformsError",
    "WorldPlacement",
    "align",
    "align_files",
    "align_pairs",
    "coregister",
    "coregister_blocks",
    "coregister_files",
    "coregister_files_blocks",
    "depth_views",
    "depths_in_view",
    "learned",
    "metrics",
    "mosaics",
    "read_transform",
    "room",
    "scale_fields",
    "scale_sync",
    "stable_terrain",
    "synthetic",
    "write_coregistered",
    "write_mosaic",
]
