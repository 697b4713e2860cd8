"""Rasters of one terrain, and how far a placement of them is off."""

import numpy as np
import torch

from mslsq.alignment import Georeference
from mslsq.alignment.big.terrain import Scan, Terrain, write_scan
from mslsq.alignment.measures import project

SIZE = 1024
HERE = Georeference.from_geotransform((500000.0, 2.0, 0.0, 5000000.0, 0.0, -2.0), "EPSG:32632")


def turned(degrees, scale, x, y, size=SIZE):
    c, s = scale * np.cos(np.deg2rad(degrees)), scale * np.sin(np.deg2rad(degrees))
    m = (size - 1) / 2
    return np.array([[c, -s, m - c * m + s * m + x], [s, c, m - s * m - c * m + y], [0, 0, 1]])


TRUTH = turned(2.0, 1.01, -120.3, 80.6)


def scan(path, matrix, seed, size=(SIZE, SIZE), dtype="float32", nodata=None, header=None, **options):
    """One raster of the one terrain of these tests."""
    gain, bias = options.pop("gain", 1.0), options.pop("bias", -2000.0)
    how = Scan(matrix, gain, bias, options.pop("noise", 3.0), dtype, nodata, seed)
    return write_scan(path, Terrain(5, longest=200.0), how, size, header, **options)


def corner_rms(found, truth, size=SIZE):
    """What `corner_sigma` is the standard error of."""
    at = torch.tensor([[0, 0], [size - 1, 0], [size - 1, size - 1], [0, size - 1]], dtype=torch.float64)
    return float((project(found, at) - project(torch.from_numpy(truth), at)).square().sum(1).mean().sqrt())
