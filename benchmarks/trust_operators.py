"""Operators in residuals, through the library: is what `least_squares` finds what plain autograd finds?

    python benchmarks/trust_operators.py --seed 0 --count 20000 --out benchmarks/results/operators.json
    python benchmarks/trust_operators.py --only grid_sample --count 200 --out some.json
    python benchmarks/trust_operators.py --only batch_norm --out some.json --into benchmarks/results/operators.json

A check is one operator on one of OpInfo's samples, in one dtype, with one choice of which inputs depend on the
unknowns, in one form: a single problem, a batch, a batch whose steps are recorded, the derivative of a converged batch.
The residual is r(p) = (w (op(A(p)) - y), p) of three unknowns. Cost and gradient at the point that `least_squares`
returns are compared with plain reverse mode in float64, one problem at a time; its derivative in y with the implicit
function theorem from reverse over reverse. Where they differ, central differences decide.
"""

import argparse
import dataclasses
import faulthandler
import json
import random
import re
import signal
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from attempts import Ledger, TooSlow, alarmed, drive
from operator_cases import (
    LANES,
    Case,
    cases,
    gradient,
    hessian,
    hessian_by_differences,
    jacobian,
    jacobian_by_differences,
    operators,
    value,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import mslsq
from mslsq.tracing.operators import REWRITTEN

DTYPES = {"float64": torch.float64, "float32": torch.float32, "complex128": torch.complex128}
FORMS = ("single", "batch", "recorded", "derivative")
ROUNDS = {"bfloat16": 0.05, "half": 0.01, "chalf": 0.01, "float": 1e-5, "cfloat": 1e-5}
"""Operators that round: their derivatives are rounded too."""
RECORDED_SHARE = 0.1
"""Recording a step takes twenty times as long as the other forms."""
SECONDS = 30
"""A check that takes longer is counted as slow."""

RIGHT, REWRITTEN_RIGHT, REFUSED = "right", "right by rewriting", "refused with a sentence"
BARE, WRONG, SLOW, CRASHED = "refused by PyTorch's error", "WRONG", "slow", "CRASHED"
UNDECIDED, UNFIT = "not differentiable there", "no case"
DEFECTS = (WRONG, SLOW, CRASHED, BARE)


class Seen(TorchDispatchMode):
    """Which aten operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(func)
        return func(*args, **(kwargs or {}))


@dataclasses.dataclass
class Fit:
    """The case as a least-squares problem, one a lane."""

    case: Case
    y: Tensor
    weight: float

    def residual(self, p: Tensor, y: Tensor, *data: Tensor) -> Tensor:
        return torch.cat([self.weight * (self.case.residual(p, *data) - y), p])


def fit_of(case: Case, seed: int) -> Fit:
    values = torch.stack([value(case, lane).detach() for lane in range(LANES)])
    finite = values[values.isfinite()]
    scale = float(finite.abs().max()) + 1e-3 if finite.numel() else 1.0
    noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Fit(case, values + (0.3 * scale * noise).to(values.dtype), 1 / scale)


# ---- the truth: cost and gradient of one lane at a point, from plain reverse mode in float64


@dataclasses.dataclass
class Truth:
    cost: Tensor
    gradient: Tensor
    size: Tensor
    """|J|ᵀ|r|: what rounding is measured by."""


def truth_at(fit: Fit, lane: int, p: Tensor, by_differences: bool = False) -> Truth:
    points = fit.case.points.clone()
    points[lane] = p.to(points.dtype)
    at = dataclasses.replace(fit.case, points=points)
    r = value(at, lane).detach()
    J = (jacobian_by_differences if by_differences else jacobian)(at, lane)
    r = torch.cat([fit.weight * (r - fit.y[lane]), points[lane]])
    J = torch.cat([fit.weight * J, torch.eye(J.shape[-1], dtype=J.dtype)])
    return Truth(0.5 * (r * r).sum(), J.T @ r, (J.abs().T @ r.abs()).max())


def agrees(cost: Tensor, gradient_norm: Tensor, truth: Truth, tolerance: float) -> bool:
    def same(found: Tensor, expected: Tensor, size: Tensor) -> bool:
        found, expected = found.double(), expected.double()
        if not expected.isfinite():
            return not bool(found.isfinite())
        return bool((found - expected).abs() <= tolerance * (size.double() + expected.abs() + 1e-6))

    return same(cost, truth.cost, truth.cost) and same(gradient_norm, truth.gradient.abs().max(), truth.size)


# ---- one check


def solution_of(fit: Fit, form: str) -> Any:
    case = fit.case
    if form == "single":
        solver = mslsq.LevenbergMarquardt(max_steps=0, trace="never")
        return mslsq.least_squares(fit.residual, case.points[0], (fit.y[0], *(d[0] for d in case.data)), solver=solver)
    if form == "batch":
        solver = mslsq.LevenbergMarquardt(max_steps=0, trace="never")
    elif form == "recorded":
        solver = mslsq.LevenbergMarquardt(max_steps=1, trace="always")
    else:
        solver = mslsq.LevenbergMarquardt(max_steps=60)
    in_dims = (0,) * (2 + len(case.data))
    return mslsq.least_squares(fit.residual, case.points, (fit.y, *case.data), in_dims=in_dims, solver=solver)


def checked(fit: Fit, double: Fit, form: str) -> tuple[str, str]:
    """The class of the outcome, and what was found."""
    tolerance = 2e-7 if fit.case.dtype in (torch.float64, torch.complex128) else 2e-3
    tolerance = max(tolerance, ROUNDS.get(fit.case.name, 0.0))
    solution = solution_of(fit, form)
    points, costs, norms = solution.value.detach(), solution.cost.detach(), solution.gradient_norm
    if form == "single":
        points, costs, norms = points[None], costs[None], norms[None]
    for lane in range(len(points)):
        p = points[lane].double()
        truth = truth_at(double, lane, p)
        if agrees(costs[lane], norms[lane], truth, tolerance):
            continue
        if agrees(costs[lane], norms[lane], truth_at(fit, lane, points[lane]), tolerance):
            continue  # a jump between float32 and float64
        found = f"lane {lane}: cost {float(costs[lane]):.6e} and |gradient| {float(norms[lane]):.6e}"
        expected = f"plain autograd {float(truth.cost):.6e} and {float(truth.gradient.abs().max()):.6e}"
        numeric = truth_at(double, lane, p, by_differences=True)
        if agrees(costs[lane], norms[lane], numeric, 1e-3):
            continue  # plain autograd is wrong: 0 · NaN, tangents of a triangle that is not read
        if not agrees(truth.cost, truth.gradient.abs().max(), numeric, 1e-3):
            return UNDECIDED, f"{found}, {expected}, differences {float(numeric.gradient.abs().max()):.6e}"
        return WRONG, f"{found}, {expected}"
    return RIGHT, ""


def derivative_checked(fit: Fit) -> tuple[str, str]:
    """d Σ value / d y of a converged batch, in float64."""
    y = fit.y.clone().requires_grad_()
    solution = solution_of(dataclasses.replace(fit, y=y), "derivative")
    (found,) = torch.autograd.grad(solution.value.sum(), y)
    compared = 0
    for lane in range(LANES):
        if not (bool(solution.converged[lane]) and bool(solution.differentiable[lane])):
            continue
        star = solution.value[lane].detach()
        expected, limit, at = implicit_derivative(fit, lane, star)
        if expected is None:
            continue
        compared += 1

        def error(expected: Tensor, lane: int = lane) -> float:
            return float((found[lane] - expected).abs().max() / expected.abs().max().clamp(min=1e-10))

        if error(expected) <= limit:
            continue
        # The solver stops near the minimum; where third derivatives are large the derivative differs there.
        H, g = hessian_of(fit, at, lane)[0], gradient_of(fit, at, lane)
        polished = implicit_derivative(fit, lane, star - torch.linalg.solve(H, g))[0]
        if polished is not None and (
            error(polished) <= limit or (polished - expected).abs().max() > 0.1 * (found[lane] - expected).abs().max()
        ):
            continue
        numeric = implicit_derivative(fit, lane, star, differences=True)[0]
        if numeric is None or (numeric - expected).abs().max() > 1e-2 * expected.abs().max():
            return UNDECIDED, f"lane {lane}: relative error {error(expected):.1e}"
        return WRONG, f"lane {lane}: derivative of the solution, relative error {error(expected):.1e}"
    return (RIGHT, "") if compared else (UNFIT, "nothing converged to a minimum with a derivative")


def implicit_derivative(fit: Fit, lane: int, p: Tensor, differences: bool = False) -> tuple[Tensor | None, float, Case]:
    """d Σ p / d y by the implicit function theorem, None where there is no minimum; its tolerance; the case there."""
    points = fit.case.points.clone()
    points[lane] = p
    at = dataclasses.replace(fit.case, points=points)
    J = jacobian(at, lane)
    H, how = hessian_of(fit, at, lane, differences)
    if not H.isfinite().all() or torch.linalg.eigvalsh(0.5 * (H + H.T))[0] < 1e-6:
        return None, 0.0, at
    expected = fit.weight**2 * J @ torch.linalg.solve(H, torch.ones(len(H), dtype=H.dtype))
    limit = (1e-5 if how == "reverse" else 1e-3) * float(torch.linalg.cond(H))
    return (expected if expected.isfinite().all() else None), limit, at


def gradient_of(fit: Fit, at: Case, lane: int) -> Tensor:
    """Of the lane's cost."""
    return gradient(of_lane(fit, at, lane), lane, at.points[lane].clone().requires_grad_()).detach()


def of_lane(fit: Fit, at: Case, lane: int) -> Case:
    """The case whose residual is the lane's whole one."""
    weighted = dataclasses.replace(at)
    weighted.residual = lambda p, *data: fit.residual(p, fit.y[lane], *data)  # type: ignore[method-assign]
    return weighted


def hessian_of(fit: Fit, at: Case, lane: int, differences: bool = False) -> tuple[Tensor, str]:
    """Of the lane's cost."""
    if differences:
        return hessian_by_differences(of_lane(fit, at, lane), lane), "differences"
    return hessian(of_lane(fit, at, lane), lane)


def attempt(case: Case, form: str, seed: int) -> tuple[str, str]:
    try:
        if value(case, 0).numel() == 0:
            return UNFIT, "empty"
        if not torch.equal(value(case, 0).nan_to_num(), value(case, 0).nan_to_num()):
            return UNFIT, "random"
        fit, double = fit_of(case, seed), case.in_double()
        double_fit = Fit(double, fit.y.double(), fit.weight)
        jacobian(double, 0)
        with Seen() as seen, torch.no_grad():
            value(case, 0)
    except TooSlow:
        raise
    except Exception as error:
        return UNFIT, f"plain autograd raises {first_line(error)}"
    try:
        if form == "derivative":
            outcome = derivative_checked(fit)
        else:
            outcome = checked(fit, double_fit, form)
    except TooSlow:
        return SLOW, f"more than {SECONDS} s"
    except Exception as error:
        of_mslsq = type(error).__module__.startswith("mslsq") or "mslsq" in str(error)
        return (REFUSED if of_mslsq else BARE), first_line(error, 400 if of_mslsq else 200)
    if outcome[0] == RIGHT and seen.operators & REWRITTEN:
        return REWRITTEN_RIGHT, ", ".join(sorted(str(op) for op in seen.operators & REWRITTEN))
    return outcome


def first_line(error: BaseException, length: int = 200) -> str:
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}".strip())[:length]


# ---- the run


def work_of(arguments: argparse.Namespace) -> list[tuple[int, str, str]]:
    """(round, operator, dtype) in a random order, round after round."""
    wanted = set(arguments.only.split(",")) if arguments.only else None
    names = [
        (op.formatted_name, dtype)
        for op in operators()
        for dtype in arguments.dtypes.split(",")
        if DTYPES[dtype] in op.supported_dtypes("cpu")
        and (wanted is None or op.formatted_name in wanted or op.name in wanted)
    ]
    found = []
    for number in range(arguments.rounds):
        shuffled = list(names)
        random.Random(f"{arguments.seed} {number}").shuffle(shuffled)
        found += [(number, *name) for name in shuffled]
    return found


def worker(arguments: argparse.Namespace) -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    alarmed()
    ledger = Ledger(arguments.ledger)
    by_name = {op.formatted_name: op for op in operators()}
    lines = Path(arguments.out + "l")
    count = sum(1 for _ in lines.open()) if lines.exists() else 0
    with lines.open("a") as out:

        def write(work: str, case: Case | None, form: str, outcome: tuple[str, str], op: str) -> None:
            line = {
                "op": op,
                "check": f"{case.label if case else work} {form}",
                "class": outcome[0],
                "what": outcome[1],
            }
            if case is not None and outcome[0] in DEFECTS:
                line["summary"] = case.summary
            out.write(json.dumps(line) + "\n")
            out.flush()

        for number, name, dtype in work_of(arguments):
            if count >= arguments.count or time.time() > ledger.begun + 60 * arguments.minutes:
                break
            work = f"{number} {name} {dtype}"
            if work in ledger.done:
                continue
            fatal = ledger.fatal.get(work, [])
            for part in fatal:
                write(work, None, part, (CRASHED, "the process died"), name)
            seed = arguments.seed * 1000 + number
            recorder = random.Random(f"{seed} {work}")
            try:
                signal.alarm(SECONDS)
                for case in cases(by_name[name], DTYPES[dtype], seed, 1, at_random=True):
                    for form in FORMS:
                        if form == "derivative" and (dtype == "float32" or case.variant != "all"):
                            continue
                        if form == "recorded" and recorder.random() > RECORDED_SHARE:
                            continue
                        part = f"{case.label} {form}"
                        if part in fatal:
                            continue
                        ledger.start(work, part)
                        warnings.simplefilter("ignore")  # OpInfo's samples change the filters as they are made
                        signal.alarm(SECONDS)
                        write(work, case, form, attempt(case, form, seed), name)
                        count += 1
            except TooSlow:
                write(work, None, "sample", (SLOW, "making the sample, or plain autograd"), name)
            except Exception as error:
                write(work, None, "sample", (UNFIT, f"no sample: {first_line(error)}"), name)
            finally:
                signal.alarm(0)
            ledger.finish(work)
    ledger.finished = True
    ledger.save()


def summary(arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    lines = [json.loads(line) for line in Path(arguments.out + "l").read_text().splitlines()]
    counts = Counter(line["class"] for line in lines)
    tried = sum(n for name, n in counts.items() if name != UNFIT)
    per_operator: dict[str, Any] = {}
    for line in lines:
        entry = per_operator.setdefault(line["op"], {"counts": {}, "what": {}})
        entry["counts"][line["class"]] = entry["counts"].get(line["class"], 0) + 1
        if line["what"]:
            entry["what"].setdefault(line["class"], line["what"])
    return {
        "torch": torch.__version__,
        "seed": arguments.seed,
        "checks": tried,
        "seconds": round(seconds, 1),
        "checks per hour": round(3600 * tried / seconds) if seconds else 0,
        "defects per thousand": round(1000 * sum(counts[name] for name in DEFECTS) / max(tried, 1), 2),
        "counts": dict(counts.most_common()),
        "defects": [line for line in lines if line["class"] in DEFECTS][:500],
        "operators": dict(sorted(per_operator.items())),
    }


def merged(whole: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """The result of a whole run in which some operators have been checked again; its times are those of that run."""
    operators = dict(sorted({**whole["operators"], **again["operators"]}.items()))
    counts = Counter()
    for entry in operators.values():
        counts.update(entry["counts"])
    tried = sum(n for name, n in counts.items() if name != UNFIT)
    kept = [defect for defect in whole["defects"] if defect["op"] not in again["operators"]]
    return {
        **whole,
        "checks": tried,
        "defects per thousand": round(1000 * sum(counts[name] for name in DEFECTS) / max(tried, 1), 2),
        "counts": dict(counts.most_common()),
        "defects": [*kept, *again["defects"]][:500],
        "operators": operators,
        "again": sorted({*whole.get("again", ()), *again["operators"]}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="JSON; one line a check goes beside it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20000, help="stop after this many checks")
    parser.add_argument("--minutes", type=float, default=1e9, help="or after this many minutes")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", default="", help="names of operators, as OpInfo has them, by comma")
    parser.add_argument("--into", default="", help="JSON of a whole run, in which these operators are replaced")
    parser.add_argument("--dtypes", default="float64,float32,complex128")
    parser.add_argument("--ledger", default="")
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    begun = time.monotonic()
    Path(arguments.out + "l").unlink(missing_ok=True)
    drive(arguments.out + ".ledger", arguments.out + ".log")
    found = summary(arguments, time.monotonic() - begun)
    Path(arguments.out).write_text(json.dumps(found, indent=1))
    if arguments.into:
        whole = json.loads(Path(arguments.into).read_text())
        Path(arguments.into).write_text(json.dumps(merged(whole, found), indent=1))
    for line in found["defects"][:40]:
        print(f"{line['class']}: {line['check']}: {line['what']}  [{line.get('summary', '')}]")
    for name in ("counts", "checks", "checks per hour", "defects per thousand"):
        print(f"{name}: {found[name]}")


if __name__ == "__main__":
    main()
