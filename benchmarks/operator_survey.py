"""Which PyTorch operators are right under which transforms: raw PyTorch, or captured by `mslsq` (`--captured`).

    python benchmarks/operator_survey.py --out survey.jsonl [--captured] [--only linalg_solve,...] [--samples 3]

One line of JSON a case. Each operator runs in a process that may die: the transform at fault is then named and left
out, and the next process goes on behind it.
"""

import argparse
import faulthandler
import functools
import json
import signal
import warnings
from pathlib import Path
from typing import Any

import torch
from attempts import Ledger, TooSlow, alarmed, drive
from operator_cases import cases, hessian, hessian_by_differences, jacobian, jacobian_by_differences, operators, value
from torch import Tensor
from torch.func import jacfwd, jacrev, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from mslsq.tracing.operators import WHILE_RECORDING

DTYPES = {"float64": torch.float64, "float32": torch.float32, "complex128": torch.complex128}
SECONDS = 20


def recorded(function: Any, *example: Tensor) -> Any:
    with torch.no_grad():
        graph = make_fx(function, decomposition_table=WHILE_RECORDING)(*[x.clone() for x in example])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def transforms(case: Any, function: Any) -> dict[str, Any]:
    """By name: what is run, and which truth it must equal."""
    p, data, in_dims = case.points, case.data, (0, *(0 for _ in case.data))

    def field(z: Tensor, *d: Tensor) -> Tensor:
        pair: Any = vjp(lambda z: function(z, *d), z)
        # Without gradients, as the engine runs, a pullback takes kernels that have no derivative (silu, mish, norms).
        return pair[1](pair[0], create_graph=True)[0]

    def of_unknowns(transform: Any, of: Any) -> Any:
        # `jacfwd` refuses complex arguments, those that it does not differentiate too.
        return lambda z, *d: transform(lambda moved: of(moved, *d))(z)

    forward, reverse = of_unknowns(jacfwd, function), of_unknowns(jacrev, function)
    hessian, reverse_twice = of_unknowns(jacfwd, field), of_unknowns(jacrev, field)
    first = (p[0], *(d[0] for d in data))
    all_ = (p, *data)
    last = (p.T.contiguous(), *(d.movedim(0, -1).contiguous() for d in data))
    last_dims = tuple(-1 for _ in all_)
    rolled = tuple(x.roll(1, 0) for x in all_)

    def replay(transformed: Any) -> Any:
        return recorded(vmap(transformed, in_dims=in_dims), *rolled)(*all_)

    return {
        "vmap": (lambda: vmap(function, in_dims=in_dims)(*all_), "value"),
        "jacfwd": (lambda: forward(*first)[None], "jacobian"),
        "jacrev": (lambda: reverse(*first)[None], "jacobian"),
        "vmap(jacfwd)": (lambda: vmap(forward, in_dims=in_dims)(*all_), "jacobian"),
        "vmap(jacrev)": (lambda: vmap(reverse, in_dims=in_dims)(*all_), "jacobian"),
        "vmap(jacfwd), lanes last": (lambda: vmap(forward, in_dims=last_dims)(*last), "jacobian"),
        "vmap(jacrev), lanes last": (lambda: vmap(reverse, in_dims=last_dims)(*last), "jacobian"),
        "jacfwd(vjp)": (lambda: hessian(*first)[None], "hessian"),
        "vmap(jacfwd(vjp))": (lambda: vmap(hessian, in_dims=in_dims)(*all_), "hessian"),
        "vmap(jacrev(vjp))": (lambda: vmap(reverse_twice, in_dims=in_dims)(*all_), "hessian"),
        "make_fx(vmap(jacfwd))": (lambda: replay(forward), "jacobian"),
        "make_fx(vmap(jacrev))": (lambda: replay(reverse), "jacobian"),
        "make_fx(vmap(jacfwd(vjp)))": (lambda: replay(hessian), "hessian"),
    }


def truth_of(case: Any) -> tuple[dict[str, Tensor], str]:
    lanes = range(len(case.points))
    values = torch.stack([value(case, k).detach() for k in lanes])
    jacobians = torch.stack([jacobian(case, k) for k in lanes])
    found = [hessian(case, k) for k in lanes]
    return {"value": values, "jacobian": jacobians, "hessian": torch.stack([h for h, _ in found])}, found[0][1]


def difference(got: Tensor, want: Tensor) -> float:
    """Largest relative to the largest entry; NaN and infinity equal themselves."""
    want = want[: len(got)].double()
    got = got.detach().double()
    if got.shape != want.shape:
        return float("inf")
    same = (got == want) | (got.isnan() & want.isnan())
    finite = want.isfinite()
    scale = float(want[finite].abs().max()) if finite.any() else 0.0
    error = torch.where(same, 0.0, (got - want).abs())
    return float(error.nan_to_num(float("inf")).max()) / (scale + 1e-3) if error.numel() else 0.0


def run_case(case: Any, captured: bool, skip: set[str], started: Any) -> dict[str, Any]:
    line: dict[str, Any] = {"case": case.label, "op": case.name, "summary": case.summary, "results": {}}
    try:
        if value(case, 0).numel() == 0:
            return {**line, "skipped": "empty"}
        again = [value(case, 0) for _ in range(2)]
        if difference(*again) > 0:
            return {**line, "skipped": "random"}
        truth, how = truth_of(case.in_double())
        line["rows"], line["hessian by"] = truth["value"].shape[-1], how
        own = truth if case.dtype in (torch.float64, torch.complex128) else truth_of(case)[0]
    except TooSlow:
        raise
    except Exception as error:
        return {**line, "skipped": f"plain autograd raises {first_line(error)}"}
    function: Any = case.residual
    if captured:
        from mslsq.tracing.capture import capture

        started("capture")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function = capture(case.residual, (case.points[0], *(d[0] for d in case.data)), name="op")
        except TooSlow:
            raise
        except Exception as error:
            cause = error.__cause__ or error
            return {**line, "skipped": f"capture refuses: {first_line(error)} / {first_line(cause)}"}
    limit = 1e-6 if case.dtype in (torch.float64, torch.complex128) else 2e-3
    for name, (run, which) in transforms(case, function).items():
        if name.startswith("make_fx") and case.variant != "all" and not name.endswith("vjp)))"):
            continue  # recording takes most of the time, and what differs between variants shows in one of three
        if name in skip:
            line["results"][name] = "CRASHES"
            continue
        started(name)
        try:
            with torch.no_grad():
                got = run()
        except TooSlow:
            line["results"][name] = "slow"
            continue
        except Exception as error:
            line["results"][name] = f"raises {first_line(error)}"
            continue
        error = min(difference(got, truth[which]), difference(got, own[which]))
        if error <= limit:
            line["results"][name] = "ok"
            continue
        line["results"][name] = f"WRONG {error:.1e}"
        if which != "value":
            other = (jacobian_by_differences if which == "jacobian" else hessian_by_differences)(case.in_double(), 0)
            if difference(got[:1], other[None]) <= 1e-3 and difference(own[which][:1], other[None]) > 1e-3:
                line["results"][name] = "ok, and plain autograd is wrong"
    return line


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]


def worker(arguments: argparse.Namespace) -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    alarmed()
    ledger = Ledger(arguments.ledger)
    only = set(arguments.only.split(",")) if arguments.only else None
    for op in operators():
        if only and op.formatted_name not in only and op.name not in only:
            continue
        for dtype_name in arguments.dtypes.split(","):
            label = f"{op.formatted_name} {dtype_name}"
            if label in ledger.done or DTYPES[dtype_name] not in op.supported_dtypes("cpu"):
                continue
            fatal = ledger.fatal.get(label, [])
            lines = [{"case": label, "op": op.formatted_name, "skipped": f"CRASHES in {part}"} for part in fatal]
            try:
                if not {"truth", "capture"} & set(fatal):
                    signal.alarm(SECONDS)
                    for case in cases(op, DTYPES[dtype_name], arguments.seed, arguments.samples):
                        signal.alarm(SECONDS)
                        ledger.start(label, "truth")
                        start = functools.partial(ledger.start, label)
                        lines.append(run_case(case, arguments.captured, set(fatal), start))
            except TooSlow:
                lines.append({"case": label, "op": op.formatted_name, "skipped": "slow"})
            except Exception as error:
                lines.append({"case": label, "op": op.formatted_name, "skipped": f"sample: {first_line(error)}"})
            finally:
                signal.alarm(0)
            with open(arguments.out, "a") as out:
                out.writelines(json.dumps(line) + "\n" for line in lines)
            ledger.finish(label)
    ledger.finished = True
    ledger.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--captured", action="store_true", help="the residual as mslsq captures it")
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--dtypes", default="float64,complex128")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ledger", default="")
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    Path(arguments.out).unlink(missing_ok=True)
    drive(arguments.out + ".ledger", arguments.out + ".log")
    print(summary(arguments.out))


def summary(path: str) -> str:
    """Operator, outcome and the transforms with it, of all that is not right."""
    found: dict[tuple[str, str], set[str]] = {}
    for line in map(json.loads, Path(path).read_text().splitlines()):
        if "skipped" in line:
            found.setdefault((line["op"], line["skipped"]), set())
        for transform, outcome in line.get("results", {}).items():
            if outcome != "ok":
                kind = "WRONG" if outcome.startswith("WRONG") else outcome
                found.setdefault((line["op"], kind[:120]), set()).add(transform)
    return "\n".join(f"{op} | {kind} | {', '.join(sorted(names))}" for (op, kind), names in sorted(found.items()))


if __name__ == "__main__":
    main()
