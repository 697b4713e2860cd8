"""Two maps of one raster, and what leaves a grain in both."""

import numpy as np
import scipy.ndimage
import torch

from mslsq.alignment import align
from mslsq.alignment.synthetic import base_raster

SHIFT = np.array([-6.3, 8.6])
SIZE = 160


def views(name):
    """Two maps of one raster, in [0, 1], the second one moved."""
    base = scipy.ndimage.gaussian_filter(np.asarray(base_raster(name), dtype=np.float64), 0.8)
    base = base if base.ndim == 2 else base.mean(-1)
    base = (base - base.min()) / np.ptp(base)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    return [scipy.ndimage.map_coordinates(base, [y + 60 - dy, x + 60 - dx], order=3) for dx, dy in ((0, 0), SHIFT)]


def dithered(one):
    """Of two values, by the ordered dither of Bayer (4 x 4): the same thresholds at the same pixels of all maps."""
    order = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]])
    return (one > np.tile((order + 0.5) / 16, (SIZE // 4, SIZE // 4))).astype(np.float64)


def placed(maps, **options):
    """How far off a placement is, what is stated, and the reason."""
    result = align([torch.from_numpy(one) for one in maps], model="translation", **options)
    off = float(np.hypot(*(result.transforms[1][:2, 2].numpy() - SHIFT)))
    return off, float(result.corner_sigma[1]), result.reasons[1]
