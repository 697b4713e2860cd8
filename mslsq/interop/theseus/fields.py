"""Signed distance fields of Theseus, in a form that can be mapped over blocks: its own asserts on values of indices and
writes where a mask is true."""

from typing import Any

import torch
from torch import Tensor


def signed_distance(field: Any, points: Tensor) -> tuple[Tensor, Tensor]:
    """`SignedDistanceField2D.signed_distance`: bilinear interpolation, the boundary value outside.

    Args:
        field: the `SignedDistanceField2D`; its data are (batch, rows, columns).
        points: (batch, 2, points), x and y in the unit of the cells' size.

    Returns:
        Distances (batch, points), and their derivatives in x and y, (batch, points, 2).
    """
    rows, columns, outside = field.convert_points_to_cell(points)
    low_row, low_column = rows.detach().floor(), columns.detach().floor()
    down, right = rows - low_row, columns - low_column
    values = [_at(field.sdf_data.tensor, low_row + row, low_column + column) for row in (0, 1) for column in (0, 1)]
    top = values[0] + right * (values[1] - values[0])
    bottom = values[2] + right * (values[3] - values[2])
    distance = top + down * (bottom - top)
    cell = field.cell_size.tensor.reshape(-1, 1)
    in_x = (values[1] - values[0] + down * (values[3] - values[2] - values[1] + values[0])) / cell
    in_y = (bottom - top) / cell
    boundary = torch.full_like(distance, field.sdf_boundary_value)
    slope = torch.stack([in_x, in_y], -1)
    return torch.where(outside, boundary, distance), torch.where(outside[..., None], torch.zeros_like(slope), slope)


def _at(data: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The cells (batch, points) of data (batch or 1, rows, columns); indices beyond the edge are those of the edge."""
    height, width = data.shape[1:]
    row, column = rows.long().clamp(0, height - 1), columns.long().clamp(0, width - 1)
    flat = data.reshape(len(data), -1).expand(len(rows), -1)
    return flat.gather(1, row * width + column)
