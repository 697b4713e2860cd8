"""What `make cuda` measures, in small on the CPU."""

import importlib
from typing import Any

import pytest

import mslsq
from tests.benchmarks.test_gate import GATE


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(GATE.parent))
    return importlib.import_module("cuda")


@pytest.mark.slow
def test_every_case_runs_or_says_why(cuda, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cuda, "REPEATS", 1)
    # The eight minutes that a GPU has are too few on a CPU that others use as well.
    assert cuda.main(["--device", "cpu", "--small", "--minutes", "60", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "cuda_cpu.md").read_text()
    assert page in capsys.readouterr().out
    rows = [line for line in page.splitlines() if line.startswith(("| 65", "| 1,", "| one", "| sph", "| Lady", "| 2,"))]
    assert len(rows) == 6 * len(cuda.CASES)
    assert not [line for line in rows if "not there: " in line]  # in small, on the CPU, all have programs
    wrong = [line for line in rows if "Error" in line and "FileNotFoundError" not in line]
    assert not wrong, wrong
    whole = [line.split("|") for line in page.splitlines() if line.startswith(("| a batch on", "| align, a"))]
    assert len(whole) == 4 and all(float(cells[-2]) < 0.02 for cells in whole), page  # pixels, of 48²


@pytest.mark.parametrize("arguments", [[], ["--look"]])
def test_without_a_gpu_it_says_so(cuda, arguments, capsys, monkeypatch):
    monkeypatch.setattr(cuda.torch.cuda, "is_available", lambda: False)
    for version, why in ((None, "built without CUDA"), ("13.0", "does nvidia-smi show one?")):
        monkeypatch.setattr(cuda.torch.version, "cuda", version)
        assert cuda.main(arguments) == 1
        assert why in capsys.readouterr().out


def fits(*sizes: int) -> Any:
    return importlib.import_module("cuda_cases").fits(*sizes)


def only(cuda: Any, monkeypatch: Any, *cases: Any) -> None:
    monkeypatch.setattr(cuda, "CASES", [cuda.Case(str(number), make) for number, make in enumerate(cases)])
    monkeypatch.setattr(cuda, "REPEATS", 1)
    monkeypatch.setattr(cuda.cuda_pairs, "tell", lambda *_: print("whole alignments were told"))


def test_what_cannot_be_made_is_a_sentence_and_the_next_case_runs(cuda, monkeypatch, tmp_path, capsys):
    def too_large(*_: Any) -> Any:
        raise MemoryError("CUDA out of memory")

    only(cuda, monkeypatch, too_large, fits(1, 64))
    monkeypatch.setattr(cuda, "WAYS", {"eager": {"trace": "never"}})
    assert cuda.main(["--device", "cpu", "--small", "--out", str(tmp_path)]) == 0
    lines = (tmp_path / "cuda_cpu.md").read_text().splitlines()
    assert sum("MemoryError: CUDA out of memory" in line for line in lines) == 2
    assert sum(line.startswith("| 1 ") and "eager" in line for line in lines) == 2


def test_what_ends_the_process_takes_no_figure_away(cuda, monkeypatch, tmp_path):
    def dies(*_: Any) -> Any:
        raise SystemExit  # as a signal does

    only(cuda, monkeypatch, fits(1, 64), dies)
    monkeypatch.setattr(cuda, "WAYS", {"eager": {"trace": "never"}})
    with pytest.raises(SystemExit):
        cuda.main(["--device", "cpu", "--small", "--out", str(tmp_path)])
    assert "| 0 " in (tmp_path / "cuda_cpu.md").read_text()


def test_after_its_minutes_nothing_is_begun(cuda, monkeypatch, capsys):
    only(cuda, monkeypatch, lambda *_: pytest.fail("begun"))
    assert cuda.main(["--device", "cpu", "--small", "--minutes", "-1"]) == 0
    assert (
        capsys.readouterr().out.count("the minutes of --minutes are over") == 4
    )  # two are of cuDSS and of whole alignments


def test_where_there_is_no_native_program_a_sentence_says_why(cuda):
    start = cuda.torch.tensor([1.0, 2.0], dtype=cuda.torch.float64)

    def solve(options: dict[str, Any]) -> Any:
        return mslsq.least_squares(
            lambda p: cuda.torch.linalg.matrix_exp(cuda.torch.diag(p)) @ p - 1,
            start,
            solver=importlib.import_module("cuda_cases").solver(options),
        )

    assert "linalg_matrix_exp has no form in scalars" in cuda.why_not_native(solve)
