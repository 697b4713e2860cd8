"""Waiting for a collective: not longer than the time-out, and such that Python can run what a signal has asked for.

gloo's `work.wait(seconds)` returns after that time, and can be called again. NCCL's returns at once and lets the GPU
wait: the next look at its numbers has no time-out, should a rank be gone. Where NCCL is told to block
(`TORCH_NCCL_BLOCKING_WAIT`), a time that passes ends the communicator. So NCCL is asked again and again.
"""

import time
from datetime import timedelta
from typing import Any

SLICE = 1.0
"""Seconds of waiting after which Python looks for signals."""

SPINNING = 1e-3
"""Seconds in which is asked without a pause: most collectives take less."""

PAUSE = 1e-4
"""Seconds between two questions after that."""


def wait_for(work: Any, deadline: float, polls: bool) -> None:
    """Return once a collective has ended.

    Args:
        work: what `torch.distributed` returns for a collective with `async_op`.
        deadline: on the clock of `time.perf_counter`.
        polls: ask whether it has ended (NCCL), in the place of waiting in slices (gloo).

    Raises:
        RuntimeError: it has failed, or has not ended by the deadline ("timed out").
    """
    if polls:
        _polled(work, deadline)
    else:
        _in_slices(work, deadline)


def _polled(work: Any, deadline: float) -> None:
    paused_from = time.perf_counter() + SPINNING
    while not work.is_completed():
        now = time.perf_counter()
        if now > deadline:
            raise RuntimeError("timed out")
        if now > paused_from:
            time.sleep(PAUSE)
    work.wait()  # raises what has gone wrong; the current stream comes after it


def _in_slices(work: Any, deadline: float) -> None:
    while True:
        left = deadline - time.perf_counter()
        try:
            work.wait(timedelta(seconds=max(min(SLICE, left), 1e-3)))
            return
        except RuntimeError as error:
            if work.is_completed() or "imed out" not in str(error) or left <= SLICE:
                raise
