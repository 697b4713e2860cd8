"""`docs/project/trust.md` from what was measured: the long runs' results and the report of a test run.

python benchmarks/trust_operators.py --seed 0 --count 20000 --out operators.json
python benchmarks/trust_solves.py --seed 0 --count 500 --out solves.json
make test ARGS="--junitxml=tests.xml"
python benchmarks/trust_page.py --operators operators.json --solves solves.json --tests tests.xml > docs/project/trust.md
"""

# ruff: noqa: E501 (prose of the page)

import argparse
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

JUDGES = {
    "adjoint": "finite differences, implicit function theorem by plain reverse mode, converged unrolling",
    "alignment": "known warps, phase correlation, bytes of files written by other programs",
    "datasets": "NIST's certified values, published optima, files of other programs",
    "diagnostics": "GTSAM's marginals, dense inverses, finite differences",
    "interop": "the same solve in eager mode",
    "kernels": "every instruction set against the best one, PyTorch's operations, planted files",
    "linear": "dense factorisations, SciPy, PyTorch",
    "linearize": "plain `torch.autograd`, one block at a time, without `torch.func`",
    "manifolds": "matrix exponentials, finite differences, group axioms on random elements",
    "native": "PyTorch in eager mode and `torch.func.jacfwd`, at ordinary and special values",
    "problem": "automatic differentiation, finite differences",
    "solvers": "NIST's certified values, SciPy, minima found by dense search, hidden state that changes",
    "scripts": "files read back",
    "training": "runs that were killed and resumed",
    "benchmarks": "the long runs' own samples",
    "docs": "the pages' own code, in a new process; the import linter's contract",
    "tracing": "the same residual without a graph",
}

KNOWN = """\
- **One comparison per plan, one per solve.** The comparison of a plan looks at up to six blocks, at one point near the start. An
  operator that is wrong only at other values is not noticed. The comparison of a solve looks at up to four blocks.
- **Operators without a derivative in plain reverse mode** are compared with central differences. If these fail too, `verbose=True`
  prints "not checked". Jacobians that you give are not checked in a solve: use `check_jacobian`.
- **Transforms around a solve** (`torch.func.vmap`, `jacfwd` of `jacrev`, ...) are not compared for operators whose rules are wrong in
  that nesting alone. The gradient, the Hessian and the mixed derivative that `backward()` uses are compared.
- **The three wrong programs** of the runs above. Two (a derivative off by 8e-4 and one by 2e-3) come from an earlier version of the
  chord steps and are right with the present one. The third is a fit that runs away (the `gtol` below): the judge counts such a point as
  a plateau now. The other programs were not run again.
- **Some checks ended in an error of PyTorch**: quantiles outside of [0, 1].
- **PyTorch's two modes may differ.** If `cosine_similarity` clamps (a vector shorter than 1e-8), its reverse derivative is wrong, so
  mslsq computes it by its formula. Another operator of that kind would raise `NonDeterministicResidualError` for the whole batch if a
  solve ends there. None is known.
- **Tensors that require grad in classes and imported modules** are inputs if functions of PyTorch receive them. They raise
  `UncollectedTensorError` if they are passed directly to an `autograd.Function` or to TorchScript, if `torch.func` is transforming
  them, or if they were not found at all (an attribute whose name is made at run time). Plain globals that require grad raise it, too.
  The search takes place once, in the first solve of a plan that is differentiated: a tensor that requires grad only later is not
  noticed.
- **Long curved valleys** take Levenberg–Marquardt many steps, and it says so: NIST's MGH10 from its far start is not solved in 5,000
  (`Dogleg` takes 306). Until November 2026 it ended there as converged, at a wrong point.
- **A `gtol` that you give is absolute, as in SciPy.** A fit that runs away to where its variables have no influence (−3.7 e^(−201 t))
  meets it, and counts as converged. The default is relative to the residual and is not met there.
- **Of several minima** a solve finds one, which need not be SciPy's. Of 160 fits of small systems, one ends at 0.79987, as `lm`, `dogbox`
  and `trf` with `x_scale="jac"` do; `trf` with its default scale ends at 0.80864.
- **A matrix that `torch.linalg.cholesky` cannot factor at the start** gives NaN for its own problem. PyTorch's error is raised only if
  it occurs in the first block of a single problem, or in that of each of the first 16 problems of a batch.
- **A saddle, or a minimum at which a column of J vanishes**, ends as STALLED when no step helps any more, not as converged. So does the
  true minimum of x² + 1.
- **Nothing here ran on CUDA**, and only the version of PyTorch named above was tried.
- **A residual that changes only where no comparison looks** (other blocks than the four, or after the solution was compared) is not
  noticed in that call. The blocks change from call to call.
- **Kinks.** A minimum at a kink ends as STALLED, without a derivative. Exactly at the seam of a Huber loss, the derivative is one-sided
  or NaN. In float32, kinks narrower than 2e-6 of the variable count as rounding.
"""


def operators_section(path: Path) -> list[str]:
    found = json.loads(path.read_text())
    lines = [
        "## Operators",
        "",
        f"Every differentiable operator of PyTorch {found['torch']} was put into a residual of its own, on random samples in float32,",
        "float64 and complex: as one problem, as a batch, recorded, and for the derivative of the solution. Each result was compared",
        "with plain reverse mode, one problem at a time. [Operators in residuals](../reference/operators.md) lists them all.",
        f"Seed {found['seed']}.",
        "",
        "| outcome | checks |",
        "|---|---|",
    ]
    lines += [f"| {name} | {count:,} |" for name, count in sorted(found["counts"].items(), key=lambda pair: -pair[1])]
    return [*lines, f"| all | {found['checks']:,} |", ""]


def solves_section(paths: list[Path]) -> list[str]:
    runs = [json.loads(path.read_text()) for path in paths]
    verdicts: list[dict[str, Any]] = [verdict for run in runs for verdict in run["verdicts"]]
    calls = max(run.get("calls", 4) for run in runs)
    seeds = ", ".join(str(run["seed"]) for run in runs)
    watched = sum(verdict["case"].get("callback", "none") != "none" for verdict in verdicts)
    compiled = sum(verdict["case"].get("compile") == "yes" for verdict in verdicts)
    lines = [
        "## Whole solves",
        "",
        f"{len(verdicts):,} programs were chosen so that every pair of front door, method, linear solver, batch form, dtype, way of",
        f"recording, family of residuals, kind of hidden state and derivative occurs in one. Each calls its solve {calls} times while",
        "the hidden state changes. A solve that claims to have converged is judged by plain PyTorch: its gradient must vanish, or its",
        "cost must not exceed SciPy's. Derivatives are judged by the implicit function theorem in plain reverse mode.",
        "A plateau is a point that meets only the `gtol` that the program gave, as it would SciPy's: a fit that ran away.",
        f"{watched} of the programs have a callback, {compiled} are compiled. Seeds: {seeds}.",
        "",
        "| outcome | programs |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in Counter(v["outcome"] for v in verdicts).most_common()),
        "",
    ]
    refused = defaultdict(list)
    for verdict in verdicts:
        if verdict["outcome"] != "right" and verdict["detail"]:
            said = " ".join(verdict["detail"].split(":", 1)[-1].split())[:110]
            refused[(verdict["outcome"], said)].append(verdict["case"])
    if refused:
        lines += ["| outcome | what was said | programs |", "|---|---|---|"]
        lines += [
            f"| {outcome} | {text.replace('|', '/')} | {len(cases)} |"
            for (outcome, text), cases in sorted(refused.items(), key=lambda pair: -len(pair[1]))
        ]
        lines.append("")
    return lines


def tests_section(paths: list[Path]) -> list[str]:
    """Of several reports the later ones stand for the tests that were run again."""
    states: dict[tuple[str, str], str] = {}
    for path in paths:
        for case in ElementTree.parse(path).iter("testcase"):
            state = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
            states[case.get("classname") or "", case.get("name") or ""] = state
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for (place, _), state in states.items():
        parts = place.split(".")
        counts[parts[1] if len(parts) > 2 else "front doors"][state] += 1
    lines = ["## Tests", "", "| room | passed | skipped | failed | judged by |", "|---|---|---|---|---|"]
    for room, count in sorted(counts.items()):
        failed = count["failure"] + count["error"]
        judge = JUDGES.get(room, "SciPy, closed forms, finite differences")
        lines.append(f"| {room} | {count['passed']:,} | {count['skipped']} | {failed} | {judge} |")
    return [*lines, "", "Skipped: CUDA, peers and backends that are not installed.", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=Path, required=True)
    for name in ("solves", "tests"):
        parser.add_argument(f"--{name}", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    lines = [
        "# Why to trust it: what was tried",
        "",
        "<!-- Written by benchmarks/trust_page.py; do not edit. -->",
        "",
        "The engine checks itself while it runs: every plan once against plain reverse mode, every solve that used a recorded graph",
        "against the user's own Python ([what is checked](../guide/solvers.md#what-is-checked)). This page reports what was tried from",
        "outside to find wrong answers that these checks miss.",
        "",
        *operators_section(arguments.operators),
        *solves_section(arguments.solves),
        *tests_section(arguments.tests),
        "## Known not to work, or not tried",
        "",
        KNOWN,
    ]
    print("\n".join(lines).rstrip())


if __name__ == "__main__":
    main()
