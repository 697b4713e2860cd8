"""Rasters that do not fit in memory: aligned by windows of their files, and merged window by window."""

from mslsq.alignment.big.align_files import FilesAlignment, align_files
from mslsq.alignment.big.blocks import coregister_files_blocks
from mslsq.alignment.big.coregister_files import FilesCoregistration, coregister_files
from mslsq.alignment.big.files import RasterFile
from mslsq.alignment.big.mosaic import MosaicFiles, write_mosaic
from mslsq.alignment.big.records import TileLevel
from mslsq.alignment.big.write_elevations import write_coregistered

__all__ = [
    "FilesAlignment",
    "FilesCoregistration",
    "MosaicFiles",
    "RasterFile",
    "TileLevel",
    "align_files",
    "coregister_files",
    "coregister_files_blocks",
    "write_coregistered",
    "write_mosaic",
]
