"""One exception class per kind of mistake a user can make in stating a problem; all are `ProblemError`s."""

from collections.abc import Iterable

import torch

from mslsq.validation import suggestion


class ProblemError(ValueError):
    """A problem, cost function, variable or its data was stated wrongly. The message names the thing and what to
    try."""


class ShapeError(ProblemError):
    """A tensor has a shape other than the one its use implies."""


class DtypeError(ProblemError):
    """Tensors of a problem do not agree in dtype."""


class DeviceError(ProblemError):
    """Tensors of a problem do not live on one device."""


class IndexRangeError(ProblemError):
    """An index refers to blocks that a variable does not have."""


class UnknownNameError(ProblemError):
    """A name that the problem does not know."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not known: suggests the nearest one."""
    known = list(known)
    listed = ", ".join(map(repr, known)) or "none"
    return UnknownNameError(f"Unknown {kind} {name!r}.{suggestion(name, known)} Known: {listed}.")


def check_start(what: str, start: torch.Tensor) -> None:
    """Raises `DtypeError` where variables of this dtype cannot be solved for, `DeviceError` where there are none."""
    dtype = start.dtype
    if start.is_meta:
        raise DeviceError(
            f"{what} is on the device meta, whose tensors have no numbers: there is nothing to start from."
        )
    if not dtype.is_floating_point:
        raise DtypeError(f"{what} must be real floating point, not {dtype}: use x0.to(torch.float64).")
    if dtype.itemsize < 4:
        raise DtypeError(
            f"{what} is {dtype}; least squares needs float32 or float64, since squares and factorisations lose half of "
            "the digits. Write x0.float(), and convert what the residual reads (under autocast: its result)."
        )


class SecondDerivativeError(NotImplementedError):
    """A derivative of a solution was asked for, and an operation of the residual has no second derivative."""
