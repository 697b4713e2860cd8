"""One operation of a graph that is followed: its arguments, and what is known of them."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mslsq.linearize.compressed.sets import Sets, csr
from mslsq.private import arguments_of

Source = str | None
"""Where numbers come from: an input by its name, or (None) the unknowns, on whose values no pattern may hang."""


@dataclass(eq=False)
class Tracked:
    """A tensor while a graph is followed."""

    value: Tensor
    sets: Sets | None = None
    """One set per entry, in row-major order; None where no entry has a derivative."""
    sources: frozenset[Source] = frozenset()
    """The inputs that the numbers come from, derivative or not."""


@dataclass
class Pins:
    """Which inputs decided a pattern by their values: indices, zeros of a matrix."""

    varying: frozenset[Source]
    """Inputs whose values differ from call to call, or between the problems of a batch: nothing may hang on them."""
    pinned: set[Source] = field(default_factory=set)


@dataclass
class Operation:
    """An operation as it was called."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tracked: list[Tracked]
    outputs: list[Tensor]
    columns: int
    """How many unknowns there are."""
    pins: Pins

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the schema."""
        for number, entry in enumerate(arguments_of(self.target)):
            if entry.name == name:
                return self.args[number] if number < len(self.args) else self.kwargs.get(name, entry.default_value)
        return default

    def without_filling(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with zero for a number that the operation writes into free places."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for number, entry in enumerate(arguments_of(self.target)):
            if entry.name == "value" and not isinstance(self.argument("value"), Tracked):
                if number < len(args):
                    args[number] = 0
                elif not entry.kwarg_only:
                    kwargs["value"] = 0
        return tuple(args), kwargs

    def sets(self, one: Tracked) -> Sets:
        """The sets of an input, empty ones for a constant."""
        return one.sets if one.sets is not None else csr((one.value.numel(), self.columns), dtype=bool)

    def pin(self, *decisive: Tracked) -> bool:
        """May the pattern hang on these values? Then the inputs they come from are remembered."""
        sources = frozenset[Source]().union(*(one.sources for one in decisive))
        if sources & self.pins.varying:
            return False
        self.pins.pinned |= sources
        return True
