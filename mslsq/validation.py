"""Options checked where a user gives them: one of a few, a number in a range. An error names the option, says what it
must be and what was given, and suggests the nearest name.

Options come from configurations, too. What is meant without doubt is taken (numbers of NumPy, single entries of arrays
and tensors); text where a number or a truth value is meant is refused, with what to write: YAML reads `1e-8` as text.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, cast

import torch

from mslsq.private import is_wrapped

__all__ = [
    "boolean",
    "instance_of",
    "integer",
    "made_a_tensor",
    "number",
    "one_of",
    "plain_number",
    "plain_options",
    "suggestion",
]

PLAIN = (int, float, bool, str, type(None))
TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


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


def plain_number(given: Any) -> Any:
    """A number of NumPy, or the entry of an array or tensor without axes, as Python's; anything else as it is.

    >>> plain_number(torch.tensor(5))
    5
    """
    if type(given) in PLAIN or type(given).__module__.partition(".")[0] not in ("numpy", "torch"):
        return given
    if getattr(given, "ndim", None) != 0 or getattr(given, "requires_grad", False):
        return given
    return given if isinstance(given, torch.Tensor) and is_wrapped(given) else given.item()


def plain_options(options: object) -> None:
    """Make Python's of what is a number among the fields of a dataclass, as `plain_number` does, frozen or not."""
    for name, given in vars(options).items():
        if type(given) not in PLAIN and (plain := plain_number(given)) is not given:
            object.__setattr__(options, name, plain)


def boolean(what: str, given: Any, error: type[Exception] = ValueError) -> None:
    """Raises `error` where `given` is neither True nor False (0 and 1 are): the text "false" would count as true.

    >>> boolean("LevenbergMarquardt: verbose", "false")
    Traceback (most recent call last):
    ValueError: LevenbergMarquardt: verbose must be True or False, not 'false'. It is text: write False.
    """
    if isinstance(given, bool) or (isinstance(plain_number(given), Integral) and given in (0, 1)):
        return
    meant = TRUTHS.get(given.lower()) if isinstance(given, str) else None
    hint = "" if meant is None else f" It is text: write {meant}."
    raise error(f"{what} must be True or False, not {given!r}.{hint}")


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
    if isinstance(given, Mapping) and "_target_" in given:
        hint = " It says how to make one: hydra.utils.instantiate(...) does."
    elif isinstance(given, functools.partial):
        hint = " It is a functools.partial that makes one: call it."
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
    value = given if type(given) is int else plain_number(given)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
        return
    if most is not None:
        expected = f"an integer from {least} to {most}"
    else:
        expected = "a positive integer" if least == 1 else f"an integer, {least} or more"
    hint = " Options of a dictionary are given as **options." if isinstance(given, Mapping) else ""
    meant = _number_in(value)
    if meant is not None and meant.is_integer():
        hint = f" It is text: write {meant:.0f}." if isinstance(given, str) else f" Write {meant:.0f}."
    raise error(f"{what} must be {otherwise and f'{otherwise} or '}{expected}, not {given!r}.{hint}")


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
    real = plain_number(given)
    if isinstance(real, Real) and not isinstance(real, bool):
        value = cast(float, real)
        below_top = value < below if most is None else value <= most
        if below_top and least <= value and above < value and value > -math.inf:
            return
    value, hint = _number_in(given) if isinstance(given, str) else None, ""
    if value is not None and math.isfinite(value):
        in_yaml = "" if "." in given else f" (in YAML {given.lower().replace('e', '.0e')}, with a point)"
        hint = f" It is text: write {value!r}{in_yaml if 'e' in given.lower() else ''}."
    raise error(f"{what} must be {_range(least, above, most, below)}, not {given!r}.{hint}")


def _number_in(given: Any) -> float | None:
    """The number that a float or text says."""
    try:
        return float(given) if isinstance(given, (str, float)) else None
    except ValueError:
        return None


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
