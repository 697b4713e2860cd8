"""Waiting for NCCL, with works that are made up: nothing of CUDA is needed."""

import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch

from mslsq.distributed import group, waiting
from mslsq.ranks import RankLostError


class Made:
    """A work as NCCL's: it has ended after some time, and its `wait` returns at once."""

    def __init__(self, seconds: float, error: str = ""):
        self.ends, self.error, self.waits = time.perf_counter() + seconds, error, 0

    def is_completed(self) -> bool:
        return time.perf_counter() >= self.ends

    def wait(self, *limits: timedelta) -> bool:
        assert not limits, "a time that passes would end the communicator"
        self.waits += 1
        if self.error:
            raise RuntimeError(self.error)
        return True


def waited(work: Any, timeout: float) -> float:
    began = time.perf_counter()
    waiting.wait_for(work, began + timeout, polls=True)
    return time.perf_counter() - began


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_work_that_ends_is_waited_for_once(seconds: float):
    work = Made(seconds)
    assert waited(work, 60.0) >= seconds * 0.9
    assert work.waits == 1


def test_a_work_that_never_ends_is_given_up_within_the_time_out():
    work, began = Made(3600.0), time.perf_counter()
    with pytest.raises(RuntimeError, match="timed out"):
        waited(work, 0.2)
    assert 0.2 <= time.perf_counter() - began < 5
    assert work.waits == 0  # it would return at once, as if all were well


def test_what_a_work_has_failed_of_is_raised():
    with pytest.raises(RuntimeError, match="remote process exited"):
        waited(Made(0.01, "NCCL error: remote process exited"), 60.0)


def test_ctrl_c_is_answered_while_one_waits():
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        waited(Made(3600.0), 60.0)
    assert time.perf_counter() - began < 10
    timer.join()


def test_a_rank_on_gpus_says_who_has_not_answered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group.dist, "get_rank", lambda _: 0)
    monkeypatch.setattr(group.dist, "get_world_size", lambda _: 2)
    monkeypatch.setattr(group.dist, "all_reduce", lambda *_, async_op: Made(3600.0))
    ranks = group.Together(None, 0.2, torch.device("meta"))  # not a CPU: it is polled
    with pytest.raises(RankLostError, match=r"Rank 0 of 2: another rank has not answered \(0\.\d s, time-out 0\.2 s"):
        ranks.product_sum(torch.zeros(3, device="meta"))
