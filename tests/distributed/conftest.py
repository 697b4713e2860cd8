"""Starts programs on several processes, and reads what each rank found."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LIMIT = 400.0
"""Seconds after which a test ends its processes."""


@dataclass
class Ended:
    """What became of one rank."""

    code: int
    output: str
    found: dict[str, Any]
    """By scenario, what it returned."""
    seconds: float


Run = Callable[..., list[Ended]]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"OMP_NUM_THREADS": "1", "MSLSQ_NATIVE": "never", "PYTHONPATH": path} | more


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`run_ranks(program, *scenarios, count=2)`: scenarios of a program of this folder, one after the other, on `count`
    processes; `world` is the number that they are told, where it is another."""
    if not dist.is_available():
        pytest.skip("this PyTorch has no torch.distributed")

    def run(program: str, *scenarios: str, count: int = 2, world: int | None = None) -> list[Ended]:
        folder, port, began = tmp_path_factory.mktemp("ranks"), str(free_port()), time.monotonic()
        processes = []
        for rank in range(count):
            told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world or count)}
            told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            command = [sys.executable, str(HERE / program), str(folder), *scenarios]
            with open(folder / f"{rank}.txt", "w") as output:
                processes.append(
                    subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment(**told))
                )
        ended = []
        try:
            for rank, process in enumerate(processes):
                code = process.wait(timeout=LIMIT)
                report = folder / f"{rank}.json"
                found = json.loads(report.read_text()) if report.exists() else {}
                seconds = time.monotonic() - began
                ended.append(Ended(code, (folder / f"{rank}.txt").read_text(), found, seconds))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return ended

    return run
