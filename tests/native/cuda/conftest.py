"""What the tests of CUDA C take from the benchmarks, programs and solves; and solves whose programs are CUDA C."""

import importlib
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mslsq.front import plans
from mslsq.native.cuda import solves
from mslsq.native.cuda.solve_building import CudaSolveMaking
from mslsq.native.steps_text import Functions
from mslsq.native.tables import Layout
from mslsq.solvers import whole_program
from tests.benchmarks.test_gate import GATE
from tests.native.cuda.host import Host, host_driver


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`benchmarks/cuda_programs.py`."""
    monkeypatch.syspath_prepend(str(GATE.parent))
    return importlib.import_module("cuda_programs")


@pytest.fixture
def solve_zoo(zoo: Any) -> Any:
    """`benchmarks/cuda_solves.py`."""
    return importlib.import_module("cuda_solves")


Launch = tuple[str, int, int]
"""Kernel, problems, steps."""


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launch]]:
    """Whole solves are CUDA C, run by the processor; what they launch. Every context that was entered is left."""
    monkeypatch.setattr(plans, "_KEPT", weakref.WeakKeyDictionary())  # no program of other tests

    def made(
        name: str, functions: Functions, layout: Layout, dtype: torch.dtype, device: torch.device
    ) -> CudaSolveMaking:
        return CudaSolveMaking(name, functions, layout, dtype, Host())

    monkeypatch.setattr(whole_program, "making_solves", made)
    launched: list[Launch] = []
    launch = solves.CudaSolves._launch

    def noted(self: Any, kernel: str, problems: Any, shared: Any, first: int, steps: int, pieces: Any) -> None:
        launched.append((kernel, problems.count, steps))
        launch(self, kernel, problems, shared, first, steps, pieces)

    monkeypatch.setattr(solves.CudaSolves, "_launch", noted)
    yield launched
    assert launched and host_driver()._library.contexts_left() == 0
