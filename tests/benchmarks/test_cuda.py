"""What `make cuda` measures, in small on the CPU."""

import importlib
from typing import Any

import pytest

from tests.benchmarks.test_gate import GATE


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(GATE.parent))
    return importlib.import_module("cuda")


@pytest.mark.slow
def test_every_case_runs_or_says_why(cuda, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cuda, "REPEATS", 1)
    assert cuda.main(["--device", "cpu", "--small", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "cuda_cpu.md").read_text()
    assert page in capsys.readouterr().out
    rows = [line for line in page.splitlines() if line.startswith(("| 65", "| 1,", "| one", "| sph", "| Lady"))]
    assert len(rows) == 6 * len(cuda.CASES)
    assert not [line for line in rows if "not there: " in line]  # in small, on the CPU, all have programs
    wrong = [line for line in rows if "Error" in line and "FileNotFoundError" not in line]
    assert not wrong, wrong


def test_without_a_gpu_it_says_so(cuda, capsys):
    if cuda.torch.cuda.is_available():
        pytest.skip("there is one")
    assert cuda.main([]) == 1
    assert "no GPU" in capsys.readouterr().out


def test_where_there_is_no_native_program_a_sentence_says_why(cuda):
    start = cuda.torch.tensor([1.0, 2.0], dtype=cuda.torch.float64)

    def solve(options: dict[str, Any]) -> Any:
        return cuda.mslsq.least_squares(lambda p: p.sort().values - 1, start, solver=cuda.solver(options))

    assert "sort has no form in scalars" in cuda.why_not_native(solve)
