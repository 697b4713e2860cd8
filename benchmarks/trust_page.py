"""`docs/trust.md` from what was measured: the long runs' results and the report of a test run.

python benchmarks/trust_operators.py --seed 0 --count 20000 --out operators.json
python benchmarks/trust_solves.py --seed 0 --count 500 --out solves.json
make test ARGS="--junitxml=tests.xml"
python benchmarks/trust_page.py --operators operators.json --solves solves.json --tests tests.xml > docs/trust.md
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
    "problem": "automatic differentiation, finite differences",
    "solvers": "NIST's certified values, SciPy, minima found by dense search, hidden state that changes",
    "scripts": "files read back",
    "training": "runs that were killed and resumed",
    "benchmarks": "the long runs' own samples",
}

KNOWN = """\
- **One look per plan and per solve.** The once-per-plan comparison looks at up to six blocks at one point near the start; an
  operator that is wrong only at other values is not seen. The comparison of each solve looks at up to four blocks.
- **Where plain reverse mode has no derivative**, central differences judge; where these fail too, `verbose=True` says "not
  checked". Given Jacobians are not checked in a solve: `check_jacobian` does that.
- **Transforms around a solve** (`torch.func.vmap`, `jacfwd` of `jacrev`, ...) of an operator whose rules are wrong in that
  nesting alone are not compared. The gradient, the Hessian and the mixed derivative that `backward()` uses are.
- **The two wrong programs** of the run above (a derivative off by 8e-4 and by 2e-3) were made by a version of the chord steps that is gone:
  run again, both are right. The other 498 were not run again with the code of today.
- **Checks that ended in PyTorch's own words** are, but for quantiles outside of [0, 1], a `SystemError` around a warning. Why is not
  known; where the same operators were run by themselves (`to_sparse`, `glu`, `embedding_bag`, `masked_mean`) none did.
- **PyTorch's own two modes may differ**: where `cosine_similarity` clamps (a vector shorter than 1e-8) its reverse derivative is wrong.
  That function is computed by its formula. Another one of that kind would raise `NonDeterministicResidualError` for the whole batch
  where a solve ends; none is known.
- **Tensors that require grad in classes and imported modules** are inputs wherever functions of PyTorch see them. Given directly to an
  `autograd.Function` or to TorchScript they raise `UncollectedTensorError`, as plain globals that require grad do, and as any do that
  `torch.func` is transforming. So do tensors that were not found at all (an attribute whose name is made at run time). These are
  looked for once, in the first solve of a plan of which derivatives are taken: one that requires grad only later is not seen.
- **A `gtol` that is given is SciPy's, absolute**: a fit that runs away to where its variables have no influence any more (−3.7 e^(−201 t))
  meets it, and has converged by that letter. The default is relative to the residual, and does not.
- **Of several minima** a solve finds one, which need not be SciPy's: of 160 fits of small systems one ends at 0.79987, with `lm`, `dogbox`
  and `trf` in the units of the columns (`x_scale="jac"`), while `trf` as it comes ends at 0.80864.
- **A matrix that `torch.linalg.cholesky` cannot factor at the start** gives NaN for its problem alone. PyTorch's error is raised
  where the first block of a single problem has one, or that of the first 16 problems of a batch.
- **A saddle, or a minimum at which a column of J vanishes**, ends as STALLED where steps no longer help, not as converged; so does
  the true minimum of x² + 1.
- **Nothing here ran on CUDA**, and no other version of PyTorch than the one named above was tried.
- **A residual that changes only where nothing is looked at** (other blocks than the four, after the solution was compared)
  is not noticed in that call. The blocks move on from call to call.
- **Kinks.** A minimum at a kink ends as STALLED, without a derivative. Exactly at the seam of a Huber loss the derivative is
  one-sided or NaN. In float32, kinks narrower than 2e-6 of the variable count as rounding.
"""


def operators_section(path: Path) -> list[str]:
    found = json.loads(path.read_text())
    lines = [
        "## Operators",
        "",
        f"Every differentiable operator of PyTorch {found['torch']} in a residual of its own, on random samples, float32, float64",
        "and complex; one problem, a batch, recorded, and the derivative of the solution; against plain reverse mode, one",
        f"problem at a time ([operators.md](operators.md) has every operator). Seed {found['seed']}.",
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
        f"{len(verdicts):,} programs, chosen so that every pair of front door, method, linear solver, batch form, dtype, way of",
        f"recording, family of residuals, kind of hidden state and derivative stands in one; each calls its solve {calls} times while",
        "the hidden state changes. What claims to have converged is judged by plain PyTorch: a gradient that vanishes, or a cost",
        "not above SciPy's. Derivatives: by the implicit function theorem in plain reverse mode. A plateau is a point where only the",
        "`gtol` that the program gave is met, as SciPy's would be: a fit that ran away.",
        f"{watched} of them have a callback, {compiled} are compiled. Seeds: {seeds}.",
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
        "against the user's own Python ([solvers.md](solvers.md#what-is-checked)). Below is what was tried from outside to find where",
        "that is not enough.",
        "",
        *operators_section(arguments.operators),
        *solves_section(arguments.solves),
        *tests_section(arguments.tests),
        "## Known not to work, or not looked at",
        "",
        KNOWN,
    ]
    print("\n".join(lines).rstrip())


if __name__ == "__main__":
    main()
