"""Confidence intervals of parameters: from standard errors, or from the profile of chi-square."""

from typing import Any, Literal, NamedTuple

Method = Literal["linear", "profile"]


class Interval(NamedTuple):
    """The ends of the interval of every parameter, in the shape of the parameters."""

    lower: Any
    upper: Any
