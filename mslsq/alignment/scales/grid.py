"""Fields that are bilinear between the nodes of a coarse grid over the pixels of every view."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Grid(NamedTuple):
    """Nodes of all views, over pixels: the outer nodes lie on the outer pixels."""

    views: int
    rows: int
    columns: int
    height: int
    width: int

    @property
    def nodes(self) -> int:
        return self.views * self.rows * self.columns

    def weights(
        self, view: Int[Tensor, " n"], at: Float[Tensor, "n 2"]
    ) -> tuple[Int[Tensor, "n 4"], Float[Tensor, "n 4"]]:
        """The four nodes around a pixel (x, y) of a view, and their bilinear weights."""
        (column, fx), (row, fy) = (
            _between(at[:, axis], count, pixels)
            for axis, (count, pixels) in enumerate(((self.columns, self.width), (self.rows, self.height)))
        )
        down, right = min(1, self.rows - 1), min(1, self.columns - 1)
        first = (view * self.rows + row) * self.columns + column
        nodes = [first, first + right, first + down * self.columns, first + down * self.columns + right]
        shares = [(1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy]
        return torch.stack(nodes, 1), torch.stack(shares, 1)

    def refined(self, nodes: Float[Tensor, " nodes"], finer: "Grid") -> Float[Tensor, " finer_nodes"]:
        """The field at the nodes of another grid."""
        view, y, x = torch.meshgrid(
            torch.arange(self.views, dtype=nodes.dtype, device=nodes.device),
            _places(finer.rows, self.height, nodes),
            _places(finer.columns, self.width, nodes),
            indexing="ij",
        )
        index, share = self.weights(view.flatten().long(), torch.stack([x.flatten(), y.flatten()], 1))
        return (nodes[index] * share).sum(1)

    def dense(self, nodes: Float[Tensor, " nodes"]) -> Float[Tensor, "views height width"]:
        """The field at every pixel."""
        y, x = torch.meshgrid(
            torch.arange(self.height, device=nodes.device),
            torch.arange(self.width, device=nodes.device),
            indexing="ij",
        )
        at = torch.stack([x.flatten(), y.flatten()], 1).to(nodes.dtype)
        index, share = self.weights(torch.zeros(len(at), dtype=torch.int64, device=nodes.device), at)
        fields = (nodes.reshape(self.views, -1)[:, index] * share).sum(-1)
        return fields.reshape(self.views, self.height, self.width)

    def neighbours(self) -> Int[Tensor, "pairs 2"]:
        """Nodes of one view that are next to each other."""
        number = torch.arange(self.nodes, device="cpu").reshape(self.views, self.rows, self.columns)
        across = torch.stack([number[:, :, :-1].flatten(), number[:, :, 1:].flatten()], 1)
        return torch.cat([across, torch.stack([number[:, :-1].flatten(), number[:, 1:].flatten()], 1)])


def _places(nodes: int, pixels: int, like: Tensor) -> Float[Tensor, " nodes"]:
    """Where nodes lie; a single one in the middle."""
    first, last = (0.0, pixels - 1.0) if nodes > 1 else ((pixels - 1) / 2, (pixels - 1) / 2)
    return torch.linspace(first, last, nodes, dtype=like.dtype, device=like.device)


def _between(at: Tensor, nodes: int, pixels: int) -> tuple[Tensor, Tensor]:
    """The node before a coordinate and the share of the next; a single node has all."""
    if nodes == 1:
        return torch.zeros_like(at, dtype=torch.int64), torch.zeros_like(at)
    place = at * ((nodes - 1) / (pixels - 1))
    before = place.floor().clamp(0, nodes - 2)
    return before.long(), place - before
