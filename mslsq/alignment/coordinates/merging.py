"""Maps of ROS, placed and merged: cells stay what they are, and a wall in one map is a wall."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.bends import Bend, warped
from mslsq.alignment.canvas import Canvas
from mslsq.alignment.coordinates.ros import RosMap


def nearest_on(
    canvas: Canvas,
    values: Float[Tensor, "channels height width"],
    mask: Bool[Tensor, "height width"],
    transform: Float[Tensor, "3 3"],
    bend: Bend | None = None,
) -> tuple[Float[Tensor, "channels rows columns"], Bool[Tensor, "rows columns"]]:
    """A map on the canvas, each cell that of the map's nearest one: nothing between walls and free space is made up."""
    height, width = mask.shape
    points = warped(canvas.pixels(values), transform, bend)
    column, row = torch.nan_to_num(points, nan=-1.0).round().long().unbind(-1)
    within = (column >= 0) & (row >= 0) & (column < width) & (row < height)
    column, row = column.clamp(0, width - 1), row.clamp(0, height - 1)
    shape = canvas.height, canvas.width
    return values[:, row, column].reshape(-1, *shape), (within & mask[row, column]).reshape(shape)


def merged(
    layers: Sequence[tuple[Float[Tensor, "1 rows columns"], Bool[Tensor, "rows columns"], RosMap]], ros: RosMap
) -> tuple[Float[Tensor, "1 rows columns"], Bool[Tensor, "rows columns"]]:
    """The greys of `ros` that hold the largest occupancy of all maps that have seen a cell; and which cells any has.

    The largest, as map_merge of m-explore has it: walls are a cell or two wide, and maps lie a cell beside each other,
    so that the mean, or most of the maps, would put gaps into them that a robot drives through.
    """
    seen = [
        np.where(known.numpy(force=True), own.occupancy(grey[0].numpy(force=True)), np.nan)
        for grey, known, own in layers
    ]
    most = np.fmax.reduce(seen)  # NaN where no map has seen the cell
    greys = torch.from_numpy(ros.grey(most).astype(np.float64))
    return greys[None], torch.from_numpy(~np.isnan(most))
