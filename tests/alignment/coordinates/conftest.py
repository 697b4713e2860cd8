"""One world for all tests of coordinates."""

import pytest

from mslsq.alignment import Georeference
from tests.alignment.coordinates.world import UTM32, World


@pytest.fixture(scope="session")
def world():
    return World()


@pytest.fixture(scope="session")
def reference(world):
    """160 x 160 m of it, pixels of 1 m."""
    return Georeference.from_geotransform((world.east + 150, 1, 0, world.north - 150, 0, -1), UTM32)
