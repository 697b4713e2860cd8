"""The history of whole solves: put in order when it is read, which few do."""

import torch
from torch import Tensor

from mslsq.solution import padded

GROUP = 8
"""Steps of a problem that stand side by side in the history; as in `steps.h`. In all groups but the first its row is
another one."""


class Steps:
    """What the steps of each problem have come to."""

    def __init__(self, columns: list[Tensor]):
        self._columns = columns

    @property
    def columns(self) -> list[Tensor]:
        """Cost, gradient norm, step norm, damping, NaN after the stop, and whether the step was accepted, each
        (batch, n + 1). n are the steps of the problem that took most, or as many as were launched on a GPU, which is
        asked for it where there are very many problems."""
        return self._columns

    @property
    def of_start(self) -> list[Tensor]:
        """Cost and gradient norm of the start, (batch,)."""
        return [column[:, 0] for column in self.columns[:2]]


class Room:
    """Room for the history of all steps, of which little is used: 1,000 fits of ten steps would fill 6 MB with NaN, and
    touch as many new pages, in a third of their time."""

    def __init__(self, batch: int, max_steps: int, dtype: torch.dtype):
        groups = max_steps // GROUP + 1
        self.problems = batch
        self.figures = torch.empty(4, groups, batch, GROUP, dtype=dtype, device="cpu")
        self.accepted = torch.empty(groups, batch, GROUP, dtype=torch.bool, device="cpu")
        self.rows = torch.arange(batch, device="cpu")  # where none are given, a problem has its own

    def columns(self, num_steps: Tensor) -> list[Tensor]:
        """Of the first problems, which took these numbers of steps, as `Steps` has them; in memory of their own."""
        batch, columns = len(num_steps), max(int(num_steps.max()), 0) + 1
        groups = -(-columns // GROUP)
        used = torch.arange(columns, device="cpu") <= num_steps[:, None]
        rows = torch.where(num_steps >= GROUP, self.rows[:batch], 0)

        def side_by_side(x: Tensor) -> Tensor:
            found = x[..., :1, :batch, :]
            if groups > 1:
                found = torch.cat((found, x[..., 1:groups, :, :].index_select(-2, rows)), -3)
            return found.movedim(-2, -3).flatten(-2)[..., :columns]

        figures = side_by_side(self.figures).masked_fill(~used, torch.nan)
        return [*figures.unbind(), side_by_side(self.accepted) & used]


class InRoom(Steps):
    """Steps that are put in order when they are read, which few do; the room is given back then."""

    def __init__(self, room: Room, num_steps: Tensor):
        super().__init__([])
        self._room: Room | None = room
        self._num_steps = num_steps

    @property
    def columns(self) -> list[Tensor]:
        if self._room is not None:
            self._columns, self._room = self._room.columns(self._num_steps), None
        return self._columns

    @property
    def of_start(self) -> list[Tensor]:
        if self._room is None:
            return super().of_start
        return list(self._room.figures[:2, 0, : len(self._num_steps), 0].clone())


class Joined(Steps):
    """Those of several solves, joined when they are read."""

    def __init__(self, parts: list[Steps]):
        super().__init__([])
        self._parts = parts

    @property
    def columns(self) -> list[Tensor]:
        if self._parts:
            histories = [part.columns for part in self._parts]
            length = max(columns[0].shape[1] for columns in histories)
            self._columns = [
                torch.cat([padded(column, length - column.shape[1]) for column in columns])
                for columns in zip(*histories, strict=True)
            ]
            self._parts = []
        return self._columns

    @property
    def of_start(self) -> list[Tensor]:
        if not self._parts:
            return super().of_start
        return [torch.cat(figures) for figures in zip(*(part.of_start for part in self._parts), strict=True)]


class Merged(Steps):
    """Those of a solve in which some problems are where they began; put in order when they are read, which takes a
    second of 20,000 problems with 1,000 steps, and who interrupts a solve does not wait for that."""

    def __init__(self, steps: Steps, at_start: Steps, chosen: Tensor, own: Tensor):
        super().__init__([])
        self._parts: tuple[Steps, Steps] | None = steps, at_start
        self._chosen, self._own = chosen, own

    @property
    def columns(self) -> list[Tensor]:
        if self._parts is not None:
            self._columns, at_start = (part.columns for part in self._parts)
            for whole, own in zip(self._columns, at_start, strict=True):
                whole[self._chosen] = torch.nan if whole.is_floating_point() else False
                whole[self._chosen, :1] = own[self._own]
            self._parts = None
        return self._columns

    @property
    def of_start(self) -> list[Tensor]:
        if self._parts is None:
            return super().of_start
        figures, at_start = (part.of_start for part in self._parts)
        for whole, own in zip(figures, at_start, strict=True):
            whole[self._chosen] = own[self._own]
        return figures
