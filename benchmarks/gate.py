"""Fails where steps, costs or relative times of the sparse benchmarks have become worse than the committed baseline.

    python benchmarks/gate.py                    # measure (about three minutes) and compare with baseline.json
    python benchmarks/gate.py --update           # measure, and make that the baseline
    python benchmarks/gate.py --measured FILE    # compare what was measured before
    MSLSQ_TARGET=avx2 python benchmarks/gate.py  # another instruction set than the best that the processor has

There is one baseline per family of processors and instruction set of the compiled kernels (avx512, avx2, baseline):
steps, times and the last digits of the costs differ between instruction sets, and times between processors. One that
was not measured is said to be so, and is no failure; without compiled kernels, or for an instruction set that the
processor lacks, nothing is measured. On a processor without a baseline of its own, steps and costs are compared with
another's, and times with none.

Times are compared as ratios to a peer that solved the same problem in the same run (GTSAM for pose graphs, Ceres for
bundle adjustment), one thread, processor time, so that a busy machine does not fail. Between processors that does not
hold: intel took 0.36 of GTSAM's time on a Zen 5 and 0.55 on a Zen 3, by the same code. A ratio whose peer is not
installed is left out, and said.

Exit codes: 0 as good as the baseline; 1 a regression; 2 nothing could be compared.
"""

import argparse
import json
import platform
import sys
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

BASELINE = Path(__file__).resolve().parent / "baseline.json"

Metrics = dict[str, dict[str, float]]
"""By name of the measurement, what was measured: `steps`, `cost`, `ratio`."""

Measured = dict[str, dict[str, dict[str, Any]]]
"""By family of processors and by instruction set, `about` (when and where it was measured) and `metrics`: what --output
and --update write."""

TOLERANCES = {
    "steps": 1.0,  # more: rounding can move a stop by one
    "cost": 1e-6,  # relatively more: the optima are known to 1e-9
    "cost_float32": 5e-4,  # relatively more: rounding in other orders moved it by 2e-4
    "ratio": 0.5,  # relatively more: two runs among ten other processes differed by up to 39 %
}
"""How much worse than the baseline is still as good as it."""


class Finding(NamedTuple):
    """One number beside its baseline."""

    name: str
    kind: str
    now: float | None
    before: float
    limit: float

    @property
    def failed(self) -> bool:
        """Is it worse than its limit, NaN, or gone? (Of a ratio the peer may be gone: that is no failure.)"""
        if self.now is None:
            return self.kind != "ratio"
        return not self.now <= self.limit

    def __str__(self) -> str:
        now = "not measured" if self.now is None else f"{self.now:.9g}"
        verdict = "WORSE" if self.failed else "left out" if self.now is None else "ok"
        return f"{verdict:8} {self.name}, {self.kind}: {now} (baseline {self.before:.9g}, limit {self.limit:.9g})"


def compare(now: Metrics, before: Metrics, tolerances: dict[str, float] = TOLERANCES) -> list[Finding]:
    """Every number of the baseline beside what was measured now. What is new in `now` has nothing to be compared
    with."""
    findings = []
    for name, numbers in before.items():
        for kind, value in numbers.items():
            allowed = tolerances[kind]
            limit = value + allowed if kind == "steps" else value * (1 + allowed)
            findings.append(Finding(name, kind, now.get(name, {}).get(kind), value, limit))
    return findings


def compare_targets(now: Measured, before: Measured) -> tuple[list[Finding], list[str]]:
    """Findings of every instruction set that both have, and a sentence for what was compared with another processor's
    baseline or with none."""
    findings, missing = [], []
    known = dict.fromkeys(target for of_targets in before.values() for target in of_targets)
    measured = {target for of_targets in now.values() for target in of_targets}
    missing += [f"{target}: not measured" for target in known if target not in measured]
    for processor, of_targets in now.items():
        for target, found in of_targets.items():
            other = next((name for name in (processor, *before) if target in before.get(name, {})), None)
            if other is None:
                missing.append(f"{target}: there is no baseline (make one with --update)")
                continue
            baseline = before[other][target]["metrics"]
            if other != processor:
                baseline = {name: _without_times(numbers) for name, numbers in baseline.items()}
                missing.append(
                    f"{target}: times were not measured on {processor}, steps and costs are those of {other}"
                )
            for finding in compare(found["metrics"], baseline):
                findings.append(finding._replace(name=f"{target}/{finding.name}"))
    return findings, missing


def _without_times(numbers: dict[str, float]) -> dict[str, float]:
    return {kind: value for kind, value in numbers.items() if kind != "ratio"}


def processor(about: Path = Path("/proc/cpuinfo")) -> str:
    """The maker and the family of this processor, as Linux names them ("AuthenticAMD 25": Zen 3 and 4, "AuthenticAMD
    26": Zen 5); of Intel's, which are all of one family, the model, too ("GenuineIntel 6-207": Emerald Rapids).
    Elsewhere what Python knows of it."""
    lines = about.read_text().splitlines() if about.exists() else []
    named = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "vendor_id" not in named or "cpu family" not in named:
        return platform.processor() or platform.machine()
    name = f"{named['vendor_id']} {named['cpu family']}"
    return f"{name}-{named['model']}" if named["vendor_id"] == "GenuineIntel" and "model" in named else name


def measure_target(repeats: int) -> Measured:
    """Everything that the baseline holds, for the instruction set in use; nothing, and why, where there is none."""
    from mslsq.kernels import KernelsMissingError, target

    try:
        name = target()
    except (KernelsMissingError, ValueError) as error:  # ValueError: $MSLSQ_TARGET is not one of this processor
        print(f"not measured: {error}", file=sys.stderr)
        return {}
    about = {"date": str(date.today()), "python": platform.python_version(), "machine": platform.machine()}
    return {processor(): {name: {"about": about, "metrics": measure(repeats)}}}


def measure(repeats: int = 5) -> Metrics:
    """Everything that the baseline holds, with one thread."""
    from peers.turns import limit_threads

    limit_threads(1)
    return {**_pose_graphs(repeats), **_bundle_adjustment(min(repeats, 3)), **_scaling()}


def _pose_graphs(repeats: int) -> Metrics:
    import pose_graph

    metrics: Metrics = {}
    only = ("mslsq LM, new", "mslsq LM, again", "mslsq LM, again, ftol 1e-6", "mslsq GN, again, ftol 1e-6", "GTSAM LM")
    for name in pose_graph.GRAPHS:
        found = pose_graph.measured(pose_graph.read(name), 1, repeats, compiled=False, only=only)
        peer = found["GTSAM LM"][1].cpu if "GTSAM LM" in found else None
        for who, (cost, turn) in found.items():
            if who.startswith("mslsq"):
                numbers = {"steps": float(turn.last.steps), "cost": cost}
                metrics[f"pose_graph/{name}/{who}"] = numbers | ({} if peer is None else {"ratio": turn.cpu / peer})
    return metrics


def _bundle_adjustment(repeats: int) -> Metrics:
    import bundle_adjustment

    peer = "Ceres DENSE_SCHUR"
    only = ("mslsq, new", "mslsq, again", "mslsq, again, float32", peer)
    _, found = bundle_adjustment.measured(1, repeats, compiled=False, only=only)
    metrics: Metrics = {}
    for who, (cost, turn) in found.items():
        if who != peer:
            numbers = {"cost_float32" if who.endswith("float32") else "cost": cost}
            ratio = {"ratio": turn.cpu / found[peer][1].cpu} if peer in found else {}
            metrics[f"bundle_adjustment/49-7776/{who}"] = numbers | ratio
    return metrics


def _scaling() -> Metrics:
    """Does a step grow with the number of edges alone, and is building cheap beside a step?

    A step is compared with adding two arrays of the size of its Jacobians, in the same process: both take what memory
    and caches allow just then. (The time per edge of the larger graph to that of a smaller one varied by 60 % between
    runs of the same code: a small graph is measured for a tenth of a second, and stays in a cache that neighbours use.)
    Building is measured five times: the first of a process is 0.038 or 0.077 of a step, as memory happens to be free.
    """
    import scaling

    metrics: Metrics = {}
    for edges in (10_000, 100_000):
        found = scaling.in_own_process(edges, "auto, freed memory kept")
        if found is None:
            return {}
        ratio = found["step"] / found["streaming"]
        metrics[f"scaling/step to adding its Jacobians, {edges:,} edges"] = {"ratio": ratio}
    metrics["scaling/building to a step, 100,000 edges"] = {"ratio": found["build"] / found["step"]}
    return metrics


def _write(path: Path, measured: Measured) -> None:
    path.write_text(json.dumps(measured, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="make what is measured the baseline of its target")
    parser.add_argument("--measured", type=Path, help="a file of an earlier --output")
    parser.add_argument("--output", type=Path, help="write what was measured there")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    now: Measured = json.loads(options.measured.read_text()) if options.measured else measure_target(options.repeats)
    before: Measured = json.loads(options.baseline.read_text()) if options.baseline.exists() else {}
    if options.output:
        _write(options.output, now)
    if options.update and now:
        _write(options.baseline, before | {name: before.get(name, {}) | found for name, found in now.items()})
        updated = ", ".join(f"{target} on {name}" for name, found in now.items() for target in found)
        print(f"the baseline of {updated} is what was measured now: {options.baseline}")
        return 0
    findings, missing = compare_targets(now, before)
    for line in (*findings, *missing):
        print(line)
    failed = sum(finding.failed for finding in findings)
    print(f"{failed} of {len(findings)} worse than the baseline")
    if not findings:
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
