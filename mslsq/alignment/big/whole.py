"""Rasters that are written window by window: whole under their names, or not there."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mslsq.alignment.big.files import rasterio_here, small_cache
from mslsq.replacing import NotWrittenError, replacing

LOSSLESS = "deflate", "lzw", "zstd", "packbits", "lzma"
"""GDAL's compressions that keep every digit."""


@contextmanager
def whole_rasters(*paths: Path) -> Iterator[list[Path]]:
    """Temporary paths to write to with rasterio; after the block they are renamed, if GDAL has written all of them.

    Raises:
        NotWrittenError: GDAL cannot write; what was there under these names is still there.
    """
    rasterio = rasterio_here()
    with ExitStack() as stack:
        temporary = [stack.enter_context(replacing(one)) for one in paths]
        try:
            yield temporary
            with small_cache():
                for one in temporary:
                    _refuse_torn(one)
        except rasterio.errors.RasterioError as error:
            # What is read has become a RasterError by now.
            said = f"cannot be written: {error.__cause__ or error} (is the disk full?)"
            raise NotWrittenError(5, said, str(paths[0])) from error


def _refuse_torn(path: Path) -> None:
    """GDAL writes its last blocks when a file is closed, and says nothing of a disk that is full by then."""
    rasterio, length = rasterio_here(), path.stat().st_size
    with rasterio.open(path) as dataset:
        levels = len(dataset.overviews(1))
    for level in ({}, *({"overview_level": level} for level in range(levels))):
        with rasterio.open(path, **level) as dataset:
            for band in dataset.indexes:
                for (row, column), _ in dataset.block_windows(band):
                    place = [dataset.get_tag_item(f"BLOCK_{what}_{column}_{row}", "TIFF", bidx=band) for what in
                             ("OFFSET", "SIZE")]  # fmt: skip
                    if place[0] is None or int(place[0]) + int(place[1]) > length:
                        raise NotWrittenError(28, "cannot be written whole: is the disk full?", str(path))
