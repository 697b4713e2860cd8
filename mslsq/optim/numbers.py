"""Numbers of a step that its decisions need: sent to the host together, when the first of them is read.

Reading a number of an accelerator waits for all that it has been told to do. A step has a dozen such numbers, most of
which are not needed before a trial has been evaluated.
"""

from collections.abc import Callable

import torch
from torch import Tensor


class Numbers:
    """The numbers of one step.

    Args:
        device: on which they are computed.
    """

    def __init__(self, device: torch.device):
        self.are_here = device.type == "cpu"
        """Does reading cost nothing? Then decisions are made as early as they can be."""
        self._waiting: list[tuple[Tensor, Number]] = []
        self._dtype = torch.float32 if device.type == "mps" else torch.float64

    def later(self, tensor: Tensor) -> "Number":
        """A number, a condition or a count of 0 dimensions, to be read when it is needed; at once where that costs
        nothing."""
        if self.are_here:
            return Number(self._read, float(tensor))
        number = Number(self._read)
        self._waiting.append((tensor.detach(), number))
        return number

    def _read(self) -> None:
        """Everything that is waiting, in one question to the device."""
        read = torch.stack([tensor.to(self._dtype) for tensor, _ in self._waiting]).tolist()
        for (_, number), value in zip(self._waiting, read, strict=True):
            number.known = value
        self._waiting.clear()


class Number:
    """One of them."""

    def __init__(self, read: Callable[[], None], known: float | None = None):
        self._read, self.known = read, known

    @property
    def value(self) -> float:
        """Asks the device, unless that has been done since it was noted."""
        if self.known is None:
            self._read()
        assert self.known is not None  # it was waiting
        return self.known
