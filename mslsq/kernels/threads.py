"""Kernels on several threads: each takes a part of the batch."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise


def in_parts(work: Callable[[int, int], None], count: int, threads: int) -> None:
    """work(a, b) over [0, count), in `threads` equal parts; the kernels release the interpreter lock."""
    parts = max(1, min(threads, count))
    if parts == 1:
        work(0, count)
        return
    bounds = [count * k // parts for k in range(parts + 1)]
    with ThreadPoolExecutor(parts) as pool:
        for done in [pool.submit(work, a, b) for a, b in pairwise(bounds)]:
            done.result()
