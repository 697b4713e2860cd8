"""Pairs of files with known truth, small ones that are reduced as large ones are."""

import numpy as np
import pytest

from mslsq.alignment import Georeference
from mslsq.alignment.big import coarse
from tests.alignment.big.scans import HERE, TRUTH, scan


@pytest.fixture
def reduced(monkeypatch):
    """Files of a million pixels are reduced by four."""
    monkeypatch.setattr(coarse, "PIXELS", 1 << 16)


@pytest.fixture(scope="package")
def pair(tmp_path_factory):
    """The reference as uint16 with nodata 0 and a header, the map as int16 with a hole and a header 40 m off."""
    pytest.importorskip("rasterio")
    folder = tmp_path_factory.mktemp("pair")
    here = HERE.matrix @ np.linalg.inv(TRUTH)
    header = Georeference(np.array([[1, 0, 40.0], [0, 1, -30.0], [0, 0, 1]]) @ here, HERE.crs)
    one = scan(folder / "a.tif", np.eye(3), 1, dtype="uint16", nodata=0, header=HERE)
    other = scan(
        folder / "b.tif", TRUTH, 2, dtype="int16", nodata=-32768, header=header, gain=0.8, bias=-1500.0, window=256,
        holes=lambda row, column: (row, column) == (1, 2),
    )  # fmt: skip
    return one, other
