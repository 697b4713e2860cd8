"""Memory that large problems allocate in every step: kept by the process instead of handed back."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt."""


def keep_freed_memory() -> bool:
    """Have this process keep the memory it frees, for its next use; True where that could be arranged (glibc).

    By default every tensor above 32 MB is mapped again, and its pages cost about as much as the arithmetic on them: a
    step of a pose graph of 100,000 edges takes 0.35 s with it instead of 0.58, of 1,000,000 4.0 s instead of 5.4. The
    process then holds the most it has ever needed (8.0 GB there instead of 4.1). A choice for a whole process, to be
    made by its owner, before it solves: `scripts/solve.py` does, the library never by itself.

    >>> import mslsq.kernels
    >>> kept = mslsq.kernels.keep_freed_memory()
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
