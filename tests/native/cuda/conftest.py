"""What the tests of CUDA C take from the benchmark: its programs."""

import importlib
from typing import Any

import pytest

from tests.benchmarks.test_gate import GATE


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`benchmarks/cuda_programs.py`."""
    monkeypatch.syspath_prepend(str(GATE.parent))
    return importlib.import_module("cuda_programs")
