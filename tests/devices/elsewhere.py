"""A process beside pytest's, in which the claimed device is entered: tests run there by name.

`python -m tests.devices.elsewhere` reads calls from its input and writes tracebacks to its output.
"""

import functools
import importlib
import inspect
import pickle
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.devices.claimed import CAN_CLAIM, REAL, Device, claimed_device

PROCESS: list[subprocess.Popen[bytes]] = []


def elsewhere(test: Callable[..., None]) -> Callable[..., None]:
    """The test in that process; it takes the entered device as `device`."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        if REAL is not None:
            test(device=Device(), **arguments)
            return
        if not CAN_CLAIM:
            pytest.skip(f"torch {torch.__version__} has no backends written in Python")
        failure = _ask(test.__module__, test.__name__, arguments)
        if failure:
            raise AssertionError(failure)

    parameters = [p for name, p in inspect.signature(test).parameters.items() if name != "device"]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what pytest fills
    run.body = test  # type: ignore[attr-defined]
    return run


def _ask(module: str, name: str, arguments: dict[str, Any]) -> str:
    if not PROCESS or PROCESS[0].poll() is not None:
        PROCESS[:] = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.devices.elsewhere"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=Path(__file__).parents[2],
            )
        ]
    asked, told = PROCESS[0].stdin, PROCESS[0].stdout
    assert asked is not None and told is not None
    pickle.dump((module, name, arguments), asked)
    asked.flush()
    try:
        return pickle.load(told)
    except EOFError:
        return f"the process ended without a word (status {PROCESS[0].wait()})"


def main() -> None:
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # what a test prints is no answer
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with claimed_device() as device:
        while True:
            try:
                module, name, arguments = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            failure = ""
            device.transfers.clear()
            try:
                getattr(importlib.import_module(module), name).body(device=device, **arguments)
            except BaseException:
                failure = traceback.format_exc()
            pickle.dump(failure, answers)
            answers.flush()


if __name__ == "__main__":
    main()
