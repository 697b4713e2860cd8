"""A real raster laid into the world, and maps of it with any georeference: the truth is known to rounding."""

import numpy as np
import pytest
import scipy.ndimage

from mslsq.alignment import Georeference
from mslsq.alignment.synthetic import base_raster

UTM32, UTM33, DEGREES = "EPSG:32632", "EPSG:32633", "EPSG:4326"


class World:
    """A scene of 512 x 512 m in UTM 32, a metre per number, its upper left corner at (east, north)."""

    east, north = 899_000.0, 5_300_000.0  # far from the zone's middle, so that other CRS are turned against it

    def __init__(self):
        base = scipy.ndimage.gaussian_filter(base_raster("camera").astype(np.float64), 0.8)
        self.coefficients = scipy.ndimage.spline_filter(base, 5, mode="mirror")
        self.side = min(base.shape)

    def at(self, points):
        """Values at (X, Y) of UTM 32; NaN beyond the scene."""
        x, y = points[:, 0] - self.east - 0.5, self.north - points[:, 1] - 0.5
        inner = (x >= 0) & (y >= 0) & (x <= self.side - 1) & (y <= self.side - 1)
        values = scipy.ndimage.map_coordinates(self.coefficients, [y, x], order=5, mode="mirror", prefilter=False)
        return np.where(inner, values, np.nan)

    def seen(self, georeference, size, noise=0.005, seed=0, every=1):
        """A map with this (true) georeference; each pixel the mean of every x every points in it."""
        height, width = size
        steps = (np.arange(every) + 0.5) / every - 0.5
        y, x = np.mgrid[0:height, 0:width].astype(float)
        total = np.zeros(size)
        for dy in steps:
            for dx in steps:
                points = georeference.to_world(np.stack([(x + dx).ravel(), (y + dy).ravel()], -1))
                if georeference.crs not in (None, UTM32):
                    pyproj = pytest.importorskip("pyproj")
                    way = pyproj.Transformer.from_crs(georeference.crs, UTM32, always_xy=True)
                    points = np.stack(way.transform(points[:, 0], points[:, 1]), -1)
                total += self.at(points).reshape(size)
        return total / every**2 + noise * np.random.default_rng(seed).standard_normal(size)


def shifted(georeference, x, y):
    """The same header wrong by (x, y) in its units."""
    matrix = georeference.matrix.copy()
    matrix[:2, 2] += x, y
    return Georeference(matrix, georeference.crs, georeference.source)
