"""Occupancy maps: walls and free space, drawn by robots; what is unknown is missing, and walls have drifted."""

from dataclasses import dataclass
from typing import ClassVar

from mslsq.alignment.metrics.metric import Metric
from mslsq.alignment.pyramid import Level


@dataclass(frozen=True)
class Occupancy(Metric):
    """Walls are laid on walls, free space on free space; the unknown counts for nothing (`mslsq.alignment.occupancy`).

    For plans of buildings of one scale, dark walls on light free space, as robots draw them. The place is searched for,
    judged and solved by how near walls are to walls, in cells of a 160th of the map, which maps may have drifted by.
    Where the values of the finest level say the same place, they make it more accurate.

    Args:
        wall: cells darker than this share of the map's range (least to largest value) are walls.
        free: cells lighter than this are free; what is between is unknown, as in ROS's `map_server`. None: half way
            between the most frequent light value and the most frequent one between it and the walls.
    """

    wall: float = 0.35
    free: float | None = None
    name: ClassVar[str] = "occupancy"
    words: ClassVar[str] = "walls and free space"
    values: ClassVar[bool] = True

    def level(self, level: Level) -> Level:
        return level
