"""Names in `fixed` that neither the start nor the model knows: a slip of the pen would leave a parameter free."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from mslsq import pytree
from mslsq.front.fits.scheme import Divided
from mslsq.front.measurements import Measurements
from mslsq.problem.errors import UnknownNameError
from mslsq.validation import suggestion


class Watched(dict[Any, Any]):
    """Parameters that know which of them were read."""

    def __init__(self, parameters: Mapping[Any, Any], read: set[Any]):
        super().__init__(parameters)
        self.read = read

    def __getitem__(self, key: Any) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        self.read.add(key)
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[Any]:
        self.read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self.read.update(super().keys())
        return super().keys()

    def values(self) -> Any:
        self.read.update(super().keys())
        return super().values()

    def items(self) -> Any:
        self.read.update(super().keys())
        return super().items()

    def copy(self) -> "Watched":
        return Watched(dict(super().items()), self.read)


def check_read(model: Any, measurements: Measurements, p0: Any, fixed: Any, division: Divided) -> None:
    """Is every name in `fixed` that p0 lacks one that the model, or what is tied, reads? Asks the first fit.

    Raises:
        UnknownNameError: one is not.
    """
    new = [key for key in fixed if key not in p0] if isinstance(fixed, Mapping) and isinstance(p0, Mapping) else []
    if not new or division.scheme is None:
        return
    read: set[Any] = set()
    free = [_first(leaf, dim) for leaf, dim in zip(pytree.leaves(division.free), division.free_dims, strict=True)]
    held = [_first(leaf, dim) for leaf, dim in zip(division.held, division.held_dims, strict=True)]
    with torch.no_grad():
        try:
            tree = division.scheme.complete(free, tuple(held))
            for tie in division.scheme.ties.values():
                tie(Watched(tree, read))
            model(Watched(tree, read), measurements.first_t())
        except Exception:  # the solve will say what is wrong
            return
    for key in new:
        if key not in read:
            known = [name for name in p0 if name not in fixed]
            raise UnknownNameError(
                f"fixed has {key!r}, which is not in p0, and which the model does not read.{suggestion(key, known)} "
                f"p0 has {', '.join(map(repr, p0))}."
            )


def _first(leaf: Any, dim: int | None) -> Any:
    """Of the first fit."""
    return leaf if dim is None else leaf.select(dim, 0)
