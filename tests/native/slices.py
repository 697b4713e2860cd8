"""Native solves that come back to Python after every few steps, as long ones do."""

import signal
from typing import Any

import pytest

from mslsq.native import whole_solves as running


def in_small_parts(monkeypatch: pytest.MonkeyPatch, *interrupted_at: int) -> list[Any]:
    """From now on; the calls into C++ are appended to the list, and Ctrl-C comes in those of these numbers."""
    calls: list[Any] = []
    in_parts = running.in_parts

    def counted(*args: Any) -> None:
        in_parts(*args)
        calls.append(args)
        if len(calls) in interrupted_at:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(running, "in_parts", counted)
    monkeypatch.setattr(running, "FIRST_BUDGET", 1)
    monkeypatch.setattr(running, "SECONDS_AT_A_TIME", 0.0)
    return calls
