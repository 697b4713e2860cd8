"""The gate of the benchmarks: passes on its own baseline, fails on every kind of regression."""

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GATE = Path(__file__).resolve().parents[2] / "benchmarks" / "gate.py"
SPEC = importlib.util.spec_from_file_location("gate_of_benchmarks", GATE)
assert SPEC and SPEC.loader
gate: Any = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = gate
SPEC.loader.exec_module(gate)

BASELINE = {
    "pose_graph/sphere2500/mslsq LM": {"steps": 9.0, "cost": 675.7009629, "ratio": 0.9},
    "bundle_adjustment/49-7776/float32": {"cost_float32": 13345.0, "ratio": 0.5},
}


def changed(name: str, kind: str, value: float | None) -> dict[str, dict[str, float]]:
    """The baseline with one number replaced, or left out."""
    metrics = copy.deepcopy(BASELINE)
    if value is None:
        del metrics[name][kind]
    else:
        metrics[name][kind] = value
    return metrics


def failures(metrics: dict[str, dict[str, float]]) -> list[tuple[str, str]]:
    return [(finding.name, finding.kind) for finding in gate.compare(metrics, BASELINE) if finding.failed]


def test_the_baseline_is_as_good_as_itself() -> None:
    assert failures(BASELINE) == []


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("pose_graph/sphere2500/mslsq LM", "steps", 11.0),
        ("pose_graph/sphere2500/mslsq LM", "cost", 675.7029),
        ("pose_graph/sphere2500/mslsq LM", "cost", float("nan")),
        ("pose_graph/sphere2500/mslsq LM", "ratio", 1.4),
        ("bundle_adjustment/49-7776/float32", "cost_float32", 13360.0),
        ("pose_graph/sphere2500/mslsq LM", "cost", None),
    ],
)
def test_one_number_that_is_worse_or_gone_fails_and_is_named(name: str, kind: str, value: float | None) -> None:
    assert failures(changed(name, kind, value)) == [(name, kind)]


def test_better_numbers_noise_and_a_peer_that_is_not_installed_pass() -> None:
    name = "pose_graph/sphere2500/mslsq LM"
    assert failures(changed(name, "steps", 5.0)) == []
    assert failures(changed(name, "ratio", 1.0)) == []
    assert failures(changed(name, "cost", 675.70096291)) == []
    assert failures(changed(name, "ratio", None)) == []


def run(tmp_path: Path, measured: Any, *options: Any) -> tuple[int, str]:
    """Exit code and output of the command that compares these measurements."""
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(measured))
    command = [sys.executable, GATE, "--measured", path, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_command_fails_on_a_regression_of_the_committed_baseline(tmp_path: Path) -> None:
    committed = json.loads(gate.BASELINE.read_text())
    slower = copy.deepcopy(committed)
    target, of_target = next(iter(next(iter(slower.values())).items()))
    name = next(name for name, numbers in of_target["metrics"].items() if "ratio" in numbers)
    of_target["metrics"][name]["ratio"] *= 2
    assert run(tmp_path, committed)[0] == 0
    code, output = run(tmp_path, slower)
    assert code == 1 and f"WORSE    {target}/{name}, ratio" in output


def of(processor: str = "one", **targets: Any) -> dict[str, Any]:
    """What is measured, or the baseline, by processor and instruction set."""
    return {processor: {target: {"about": {}, "metrics": metrics} for target, metrics in targets.items()}}


def test_an_instruction_set_is_compared_with_its_own_baseline(tmp_path: Path) -> None:
    """Slower with AVX2 than with AVX-512 is no regression; slower than with AVX2 before is one."""
    name = "pose_graph/sphere2500/mslsq LM"
    both = of(avx512=BASELINE, avx2=changed(name, "ratio", 1.8))
    for ratio, expected in ((1.9, []), (3.0, [f"avx2/{name}"])):
        findings, missing = gate.compare_targets(of(avx2=changed(name, "ratio", ratio)), both)
        assert [finding.name for finding in findings if finding.failed] == expected
        assert missing == ["avx512: not measured"]


def test_another_processor_is_asked_for_steps_and_costs_alone() -> None:
    """By the same code a graph takes 0.36 of the peer's time on one processor and 0.55 on another."""
    name = "pose_graph/sphere2500/mslsq LM"
    before = of(avx2=BASELINE)
    findings, missing = gate.compare_targets(of("another", avx2=changed(name, "ratio", 3.0)), before)
    assert {finding.kind for finding in findings} == {"steps", "cost", "cost_float32"}
    assert not any(finding.failed for finding in findings)
    assert missing == ["avx2: times were not measured on another, steps and costs are those of one"]
    findings, _ = gate.compare_targets(of("another", avx2=changed(name, "steps", 20.0)), before)
    assert [finding.name for finding in findings if finding.failed] == [f"avx2/{name}"]
    own = before | of("another", avx2=changed(name, "ratio", 2.9))
    findings, missing = gate.compare_targets(of("another", avx2=changed(name, "ratio", 3.0)), own)
    assert not missing and not any(finding.failed for finding in findings)


def test_this_processor_has_a_name() -> None:
    assert gate.processor() == gate.processor() != ""


@pytest.mark.parametrize(
    ("maker", "family", "model", "name"),
    [
        ("AuthenticAMD", 25, 1, "AuthenticAMD 25"),
        ("GenuineIntel", 6, 207, "GenuineIntel 6-207"),
        ("GenuineIntel", 6, 158, "GenuineIntel 6-158"),  # without AVX-512, seven years older
    ],
)
def test_processors_of_intel_are_told_apart_by_their_model(
    maker: str, family: int, model: int, name: str, tmp_path: Path
) -> None:
    about = f"vendor_id\t: {maker}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {maker} 3.0 GHz\n"
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{about}\nprocessor\t: 1\n{about}")
    assert gate.processor(tmp_path / "cpuinfo") == name


def test_one_without_a_baseline_is_said_and_nothing_compared_is_no_success(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps(of(avx512=BASELINE)))
    code, output = run(tmp_path, of(avx2=BASELINE), "--baseline", baseline)
    assert code == 2 and "avx512: not measured" in output and "avx2: there is no baseline" in output


def test_an_update_replaces_one_instruction_set_and_keeps_the_others(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    better = changed("pose_graph/sphere2500/mslsq LM", "steps", 5.0)
    for measured in (of(avx512=BASELINE), of(avx2=BASELINE), of("another", avx2=BASELINE), of(avx2=better)):
        assert run(tmp_path, measured, "--baseline", baseline, "--update")[0] == 0
    assert json.loads(baseline.read_text()) == of(avx512=BASELINE, avx2=better) | of("another", avx2=BASELINE)


def test_what_the_machine_lacks_is_not_measured(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """No compiled kernels, or an instruction set in MSLSQ_TARGET that the processor does not have."""
    import mslsq.kernels

    monkeypatch.setattr(gate, "measure", lambda repeats: BASELINE)
    for error in (ValueError("MSLSQ_TARGET=avx512: ..."), mslsq.kernels.KernelsMissingError("no kernels")):

        def lacking(error: Exception = error) -> str:
            raise error

        monkeypatch.setattr(mslsq.kernels, "target", lacking)
        assert gate.measure_target(1) == {}
        assert f"not measured: {error}" in capsys.readouterr().err
    monkeypatch.setattr(mslsq.kernels, "target", lambda: "avx2")
    assert gate.measure_target(1)[gate.processor()]["avx2"]["metrics"] == BASELINE
