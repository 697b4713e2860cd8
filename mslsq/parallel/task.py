"""One task where it runs: the answer is a text of JSON, and what goes wrong a sentence."""

import contextlib
import json
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

MOST = 2000
"""Letters of a sentence."""


def answer(work: Callable[[Any], Any], item: Any) -> str:
    """`{"result": ..., "seconds": ...}`, or `{"error": ..., "seconds": ...}` where `work` has raised, or has returned
    what JSON has no words for (NaN and infinity among it)."""
    begin = time.perf_counter()
    try:
        with one_thread():
            result = work(item)
        return json.dumps({"result": result, "seconds": _since(begin)}, allow_nan=False)
    except Exception as error:
        return json.dumps({"error": sentence(error), "seconds": _since(begin)})


def sentence(error: BaseException) -> str:
    """What was raised, and where."""
    said = f"{type(error).__name__}: {error}".strip()
    said = said if len(said) <= MOST else f"{said[:MOST]}..."
    frames = traceback.extract_tb(error.__traceback__)
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else said


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch with a single thread: processes are the parallelism, and a result does not depend on their number."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _since(begin: float) -> float:
    return round(time.perf_counter() - begin, 6)
