"""Theseus itself, where it is installed: imported when it is needed, and not before."""

import functools
import importlib
from typing import Any

from mslsq.problem import ProblemError
from mslsq.tracing.reading.origins import declare_fixed

MISSING = (
    "mslsq.interop.theseus needs Theseus (theseus-ai 0.2.3), which is not installed here. Its dependency scikit-sparse "
    "is compiled against SuiteSparse: scripts/install_theseus.sh in the repository installs it into an environment "
    "(docs/how_to/theseus.md says what it does)."
)


class TheseusError(ProblemError):
    """An objective, a layer or a cost function cannot be carried over from or to Theseus; the message says why."""


def library() -> Any:
    """The module `theseus`.

    Raises:
        ImportError: it is not installed; the message says what installs it.
    """
    try:
        found = importlib.import_module("theseus")
    except ImportError as error:
        raise ImportError(f"{MISSING} ({error})") from error
    _declare_its_variables()
    return found


@functools.cache
def _declare_its_variables() -> None:
    """Variables and elements of groups are what their tensors say: who reads these alone reads nothing else. Their
    methods read thresholds, which a user may set."""
    th = importlib.import_module("theseus")
    kinds = (th.Variable, th.Vector, th.Point2, th.Point3, th.SO2, th.SE2, th.SO3, th.SE3)
    thresholds = importlib.import_module("theseus.global_params")
    bases = dict.fromkeys(base for kind in kinds for base in kind.__mro__ if base.__module__.startswith("theseus."))
    declare_fixed(bases, (thresholds._THESEUS_GLOBAL_PARAMS, thresholds._LIE_GP))
