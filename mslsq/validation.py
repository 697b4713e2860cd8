"""Options checked where a user gives them: one of a few, a number in a range. An error names the option, says what it
must be and what was given, and suggests the nearest name."""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any, cast

__all__ = ["instance_of", "integer", "made_a_tensor", "number", "one_of", "suggestion"]


def suggestion(given: object, known: Iterable[object], prefix: str = "") -> str:
    """The words "Did you mean ...?" with the nearest of the known names behind `prefix`; nothing where none is near.

    >>> suggestion("shur", ["schur", "cholesky"])
    " Did you mean 'schur'?"
    """
    near = get_close_matches(str(given), [name for name in known if isinstance(name, str)], 1)
    return f" Did you mean {prefix + near[0]!r}?" if near else ""


def made_a_tensor(given: object) -> str:
    """How something becomes a tensor that stands where one is meant: " Write torch.from_numpy(...)." and the like;
    nothing of what is none.

    >>> made_a_tensor(1.0)
    ' Write torch.tensor(...).'
    """
    if type(given).__module__.partition(".")[0] == "numpy":
        return " Write torch.as_tensor(...)." if getattr(given, "ndim", 0) else " Write torch.tensor(...)."
    return " Write torch.tensor(...)." if isinstance(given, (Real, list, tuple)) else ""


def one_of(what: str, given: Any, known: Sequence[Any], error: type[Exception] = ValueError) -> None:
    """Raises `error` where `given` is none of `known`.

    >>> one_of("Schur: reduced", "dens", ("auto", "dense"))
    Traceback (most recent call last):
    ValueError: Schur: reduced must be one of 'auto', 'dense', not 'dens'. Did you mean 'dense'?
    """
    if isinstance(given, str | int | float | None) and given in known:
        return
    raise error(f"{what} must be one of {', '.join(map(repr, known))}, not {given!r}.{suggestion(given, known)}")


def instance_of(what: str, given: Any, kind: type, hint: str = "", error: type[Exception] = TypeError) -> None:
    """Raises `error` where `given` is no object of this kind: a string, or the class itself. The message ends in
    `hint`."""
    if isinstance(given, kind):
        return
    is_class = isinstance(given, type) and issubclass(given, kind)
    hint = f" Did you mean {given.__name__}()?" if is_class else f" {hint}" if hint else ""
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise error(f"{what} must be {article} {kind.__name__} object, not {given!r}.{hint}")


def integer(
    what: str,
    given: Any,
    least: int = 0,
    most: int | None = None,
    otherwise: str = "",
    error: type[Exception] = ValueError,
) -> None:
    """Raises `error` where `given` is no integer from `least` to `most`; `otherwise` names other allowed values, for
    the message."""
    if isinstance(given, int) and not isinstance(given, bool) and least <= given and (most is None or given <= most):
        return
    if most is not None:
        expected = f"an integer from {least} to {most}"
    else:
        expected = "a positive integer" if least == 1 else f"an integer, {least} or more"
    raise error(f"{what} must be {otherwise and f'{otherwise} or '}{expected}, not {given!r}.")


def number(
    what: str,
    given: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float | None = None,
    below: float = math.inf,
    error: type[Exception] = ValueError,
) -> None:
    """Raises `error` where `given` is no number with least ≤ number ≤ most and above < number < below.

    Infinity is a number only where `most=math.inf` says so, NaN never.
    """
    if isinstance(given, Real) and not isinstance(given, bool):
        value = cast(float, given)
        below_top = value < below if most is None else value <= most
        if below_top and least <= value and above < value and value > -math.inf:
            return
    raise error(f"{what} must be {_range(least, above, most, below)}, not {given!r}.")


def _range(least: float, above: float, most: float | None, below: float) -> str:
    """The words for a range."""
    has_top = below < math.inf or (most is not None and most < math.inf)
    if above == 0 and not has_top:
        return "a positive number"
    if least > -math.inf and most is not None and most < math.inf:
        return f"a number from {least:g} to {most:g}"
    if above > -math.inf and below < math.inf:
        return f"a number between {above:g} and {below:g}"
    bounds = [f"at least {least:g}"] if least > -math.inf else []
    bounds += [f"more than {above:g}"] if above > -math.inf else []
    bounds += [f"less than {below:g}"] if below < math.inf else []
    bounds += [f"at most {most:g}"] if most is not None and most < math.inf else []
    return " ".join(["a number,", " and ".join(bounds)]) if bounds else "a finite number"
