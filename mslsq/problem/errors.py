"""One exception class per kind of mistake a user can make in stating a problem; all are `ProblemError`s."""

from collections.abc import Iterable

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


class SecondDerivativeError(NotImplementedError):
    """A derivative of a solution was asked for, and an operation of the residual has no second derivative."""
