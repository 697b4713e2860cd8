"""Rasters that do not fit in memory: aligned by windows of their files, and merged window by window."""

from mslsq.alignment.big.align_files import FilesAlignment, align_files
from mslsq.alignment.big.files import RasterFile
from mslsq.alignment.big.mosaic import MosaicFiles, write_mosaic
from mslsq.alignment.big.records import TileLevel

__all__ = ["FilesAlignment", "MosaicFiles", "RasterFile", "TileLevel", "align_files", "write_mosaic"]
