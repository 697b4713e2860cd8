"""`result.plot`, `result.report` and the table of a notebook: what the command line writes, of maps in memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.alignment.options import AlignmentOptionError
from mslsq.alignment.outputs import Aligned, canvas_of, chapter_of, comparisons_of, describe, mosaic_of
from mslsq.alignment.rasters import Kind, Raster
from mslsq.alignment.report import sheet_of, summary_html, write_page
from mslsq.alignment.report.figures import overlay_figure
from mslsq.alignment.report.placements import draw_both
from mslsq.alignment.result import Alignment, MapStatus
from mslsq.alignment.scenes import Scene
from mslsq.plotting import save_figure

MEMORY = Kind(".npy", np.dtype(np.float64))


def plot(
    result: Alignment,
    maps: Sequence[Any] | None,
    masks: Sequence[Any] | None,
    names: Sequence[str] | None,
    path: Path | str | None,
) -> Any:
    """`Alignment.plot`."""
    item = aligned_of(result, maps, masks, names)
    try:
        if maps is None:
            figure = draw_both([("", item.result)])
        else:
            figure = overlay_figure([sheet_of(one) for one in comparisons_of(item)] if _usable(result) else [])
    except ImportError as error:
        raise ImportError("Alignment.plot needs matplotlib: pip install matplotlib, or mslsq[align].") from error
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def report(
    result: Alignment,
    path: Path | str,
    maps: Sequence[Any] | None,
    masks: Sequence[Any] | None,
    names: Sequence[str] | None,
    options: Mapping[str, Any] | None,
    title: str,
) -> Path:
    """`Alignment.report`."""
    item = aligned_of(result, maps, masks, names)
    mosaic = mosaic_of(item, canvas_of(item)) if maps is not None and _usable(result) else None
    try:
        return write_page([chapter_of(item, mosaic)], Path(path), options, title=title)
    except ImportError as error:
        raise ImportError("Alignment.report needs matplotlib and pillow: pip install mslsq[align].") from error


def table(result: Alignment) -> str:
    """`Alignment._repr_html_`."""
    return summary_html(describe(aligned_of(result, None, None, None)), f"Alignment, model {result.model}")


def aligned_of(
    result: Alignment, maps: Sequence[Any] | None, masks: Sequence[Any] | None, names: Sequence[str] | None
) -> Aligned:
    """The result with its maps as a scene; without rasters where there are no maps.

    Raises:
        AlignmentOptionError: the maps, the masks or the names are not those of this result.
    """
    count = len(result.reasons)
    for what, given in (("maps", maps), ("masks", masks), ("names", names)):
        if given is not None and len(given) != count:
            raise AlignmentOptionError(f"{what}: this result is of {count} maps, and {len(given)} were given.")
    named = [f"map {i}" for i in range(count)] if names is None else [str(name) for name in names]
    if len(set(named)) < count:
        named = [f"{i} {name}" for i, name in enumerate(named)]
    rasters = [
        None if maps is None else _raster(result, i, maps[i], None if masks is None else masks[i], named[i])
        for i in range(count)
    ]
    return Aligned(Scene("maps", named, rasters), result)


def _raster(result: Alignment, index: int, values: Any, mask: Any, name: str) -> Raster | None:
    """One map as `align` saw it; None where it could not be used."""
    size = result.sizes[index] if result.sizes else None
    if size is None:
        return None
    given = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    bands = given.detach().cpu().to(torch.float64)
    bands = bands[None] if bands.ndim == 2 else bands
    if bands.ndim != 3 or tuple(bands.shape[1:]) != tuple(size):
        raise AlignmentOptionError(
            f"maps: map {index} was of {size[0]} rows and {size[1]} columns when it was aligned, and is of shape "
            f"{tuple(bands.shape)} now. Give the maps that align was called with, in their order."
        )
    known = bands.isfinite().all(0)
    if mask is not None:
        seen = mask if isinstance(mask, Tensor) else torch.from_numpy(np.ascontiguousarray(mask))
        known = known & seen.detach().cpu().bool()
    return Raster(name, bands, known, MEMORY)


def _usable(result: Alignment) -> bool:
    return MapStatus(int(result.status[result.reference])).ok
