"""Theseus itself, where it is installed: imported when it is needed, and not before."""

import importlib
from typing import Any

from mslsq.problem import ProblemError

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
        return importlib.import_module("theseus")
    except ImportError as error:
        raise ImportError(f"{MISSING} ({error})") from error
