"""Single pixels that are no terrain (spikes, wells, an undeclared nodata value): found before anything is smoothed.

A blur spreads a blunder over its neighbours, where no loss can tell it from terrain. A pixel is one where it is far
from the median of the 5 x 5 pixels about it: `FAR` times the NMAD of such distances over the model, and `BESIDE` times
the spread of those 5 x 5 pixels, so that cliffs in a plain stay.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy import ndimage
from torch import Tensor

from mslsq.alignment.pyramid import fill

SIDE = 5
FAR = 15.0
BESIDE = 5.0


def typical_step(values: Float[Tensor, "height width"], known: Bool[Tensor, "height width"]) -> float:
    """The NMAD of the distances of pixels from the median about them."""
    return _nmad(_away(_filled(values, known)), known)


def blunders(
    values: Float[Tensor, "height width"], known: Bool[Tensor, "height width"], typical: float | None = None
) -> Bool[Tensor, "height width"]:
    """True where a pixel with data is a blunder; of a part of a model by the `typical_step` of the whole."""
    if typical is None:
        raster = _filled(values, known)
        away = _away(raster)
        typical = _nmad(away, known)
        suspects = away > FAR * typical
    else:
        beside = None if bool(known.all()) else ndimage.maximum_filter(known.numpy(), SIDE)
        raster = _filled(values, known, beside)
        # Who is far from the median is far from the least or the largest: a tenth of a median filter's time.
        low, high = (of(raster, SIDE, mode="mirror") for of in (ndimage.minimum_filter, ndimage.maximum_filter))
        suspects = np.maximum(raster - low, high - raster) > FAR * typical
    rows, columns = np.nonzero(suspects & known.numpy())
    out = np.zeros(raster.shape, dtype=bool)
    reach = SIDE // 2
    padded = np.pad(raster, reach, mode="reflect")
    steps = np.arange(SIDE)
    for part in np.array_split(np.arange(len(rows)), len(rows) // 100_000 + 1):
        r, c = rows[part], columns[part]
        near = padded[r[:, None, None] + steps[:, None], c[:, None, None] + steps].reshape(len(part), SIDE**2)
        middle = np.median(near, 1)
        spread = 1.4826 * np.median(np.abs(near - middle[:, None]), 1)
        out[r, c] = np.abs(raster[r, c] - middle) > np.maximum(FAR * typical, BESIDE * spread)
    return torch.from_numpy(out)


def _filled(
    values: Float[Tensor, "height width"],
    known: Bool[Tensor, "height width"],
    wanted: Bool[np.ndarray, "height width"] | None = None,
) -> np.ndarray:
    if bool(known.all()):
        return values.numpy()
    holes = None if wanted is None else torch.from_numpy(wanted)
    return fill(torch.where(known, values, torch.zeros_like(values))[None], known, holes)[0].numpy()


def _away(raster: np.ndarray) -> np.ndarray:
    """How far each pixel is from the median about it."""
    return np.abs(raster - ndimage.median_filter(raster, SIDE, mode="mirror"))


def _nmad(away: np.ndarray, known: Bool[Tensor, "height width"]) -> float:
    return 1.4826 * float(np.median(away[known.numpy()]))
