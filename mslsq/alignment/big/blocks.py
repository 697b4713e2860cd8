"""`coregister_files_blocks`: shifts that vary over elevation models that do not fit in memory, block by block."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mslsq.alignment.big.coregister_files import PROCESS, coregister_files
from mslsq.alignment.big.memory import bytes_of
from mslsq.alignment.big.passing import MARGIN, Progress
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.local import SMALLEST_BLOCK, Box, LocalCoregistration, Part, borders, by_blocks
from mslsq.validation import integer

PER_PIXEL = 450
"""Bytes that a fit needs of a pixel of a block and its margin."""


def coregister_files_blocks(
    reference: str | Path,
    dem: str | Path,
    *,
    block: int,
    memory: str | float = "2GB",
    progress: Progress | None = None,
    **options: Any,
) -> LocalCoregistration:
    """`coregister_blocks` of elevation models in files, of which windows are read (needs rasterio).

    Args:
        reference, dem: as of `coregister_files`.
        block: pixels of the reference, at least 32, along a side of a block.
        memory: that the process may take: blocks are read whole, one after the other, with 64 pixels around them.
        progress: as of `coregister_files`; "blocks" last.
        **options: of `coregister_files`.

    Returns:
        As of `coregister_blocks`; its `whole` is what `coregister_files` found. `write_coregistered` writes the model,
        moved by the smooth field.

    Raises:
        CoregistrationError: as of `coregister_files`; blocks that are too small, or too large for `memory`.
        RasterError: as of `coregister_files`.
        AlignmentOptionError: `memory` is no size.
    """
    integer("coregister_files_blocks: block", block, SMALLEST_BLOCK, error=CoregistrationError)
    most = int((max(bytes_of(memory) - PROCESS, 0) / PER_PIXEL) ** 0.5) - 2 * MARGIN
    if block > most:
        raise CoregistrationError(
            f"coregister_files_blocks: block={block}; a block is held in memory, and {memory!r} is enough for one of "
            f"{max(most, 0)} pixels. Give smaller blocks, or more memory."
        )
    whole = coregister_files(reference, dem, memory=memory, progress=progress, **options)
    return by_blocks(whole, block, _parts(whole, block, progress), options.get("loss", "tukey"))


def _parts(whole: Any, block: int, progress: Progress | None) -> Callable[[Box], Part]:
    """The windows of blocks, with a word after each."""
    total, done = int(np.prod([len(sides) - 1 for sides in borders(whole.shape, block)])), 0

    def part(box: Box) -> Part:
        nonlocal done
        found, done = whole.passes.block(whole, box), done + 1
        if progress is not None:
            progress("blocks", done, total)
        return found

    return part
