"""Warp itself, where it is installed: imported when it is needed, and not before."""

import importlib
from typing import Any

from mslsq.interop.operators import OperatorError

MISSING = "mslsq.interop.warp needs Warp 1.18 or newer, which is not installed here: pip install 'mslsq[warp]'."
OLDEST = (1, 18)
"""Before it, the adjoint of `y[i].x += ...` was silently wrong."""


class WarpError(OperatorError):
    """A Warp kernel cannot be a residual, or its adjoint would be wrong; the message says why, and what to write."""


def library() -> Any:
    """The module `warp`.

    Raises:
        ImportError: it is not installed, or too old; the message says what installs it.
    """
    try:
        warp = importlib.import_module("warp")
    except ImportError as error:
        raise ImportError(f"{MISSING} ({error})") from error
    warp.init()  # says once what it found, unless warp.config.quiet
    version = str(getattr(warp, "__version__", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        raise ImportError(f"{MISSING} (It is version {version}.)")
    return warp
