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


def blunders(
    values: Float[Tensor, "height width"], known: Bool[Tensor, "height width"]
) -> Bool[Tensor, "height width"]:
    """True where a pixel with data is a blunder."""
    filled = values if bool(known.all()) else fill(torch.where(known, values, torch.zeros_like(values))[None], known)[0]
    raster = filled.numpy()
    away = np.abs(raster - ndimage.median_filter(raster, SIDE, mode="mirror"))
    data = away[known.numpy()]
    typical = 1.4826 * float(np.median(data))
    rows, columns = np.nonzero((away > FAR * typical) & known.numpy())
    out = np.zeros(raster.shape, dtype=bool)
    reach = SIDE // 2
    padded = np.pad(raster, reach, mode="reflect")
    steps = np.arange(SIDE)
    for part in np.array_split(np.arange(len(rows)), len(rows) // 100_000 + 1):
        r, c = rows[part], columns[part]
        near = padded[r[:, None, None] + steps[:, None], c[:, None, None] + steps].reshape(len(part), SIDE**2)
        middle = np.median(near, 1, keepdims=True)
        spread = 1.4826 * np.median(np.abs(near - middle), 1)
        out[r, c] = away[r, c] > BESIDE * spread
    return torch.from_numpy(out)
