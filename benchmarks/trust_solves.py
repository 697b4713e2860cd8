"""Whole solves, chosen pairwise over front doors, methods, linear solvers, batch forms, dtypes and hidden state.

Every case is a small random problem, solved several times while what its residual reads changes. What claims to have
converged is judged by plain PyTorch, one problem at a time, without `torch.func` and without this library: the
gradient must vanish there, or the cost not be above SciPy's from the same start. Derivatives are judged by the
implicit function theorem in plain reverse mode. A point where only the `gtol` that the case gave is met, which is
SciPy's and absolute, is counted by itself: a plateau, where a column of the Jacobian has all but vanished.

Some cases have a callback, which watches the steps or stops them, a few are compiled (half a minute a graph), some wait
for native programs, in some the size of the batch changes from call to call, and some have bounds.

    python benchmarks/trust_solves.py --count 2000 --seed 0 --out solves.json
"""

import argparse
import itertools
import json
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

import mslsq

warnings.simplefilter("ignore")

LINEAR = ("auto", "Cholesky", "QR", "SparseCholesky", "Schur", "ConjugateGradient")
FAMILIES = ("exponential", "circle", "rational", "linalg_solve", "det", "cdist", "huber", "in_place", "no_grad", "norm")
AXES: dict[str, tuple[str, ...]] = {
    "front": ("least_squares", "closure", "curve_fit", "solve", "layer"),
    "method": ("LevenbergMarquardt", "GaussNewton", "Dogleg"),
    "linear": LINEAR,
    "batch": ("one", "in_dims", "vmap"),
    "dtype": ("float64", "float32"),
    "trace": ("auto", "never", "always"),
    "family": FAMILIES,
    "state": ("none", "number", "class list", "opaque", "tolist", "length", "module"),
    "derivative": ("none", "backward", "jacfwd"),
}
WEIGHTS = {"trace": {"always": 0.15, "auto": 0.5, "never": 0.35}}
RARE: dict[str, dict[str, float]] = {
    "callback": {"none": 0.5, "watch": 0.3, "stop": 0.2},
    "compile": {"no": 0.97, "yes": 0.03},
}
"""Axes that are drawn by themselves, with these weights, so that a seed keeps its cases in all others..."""
LATER: dict[str, dict[str, float]] = {
    "native": {"auto": 0.6, "wait": 0.4},
    "sizes": {"equal": 0.6, "changing": 0.4},
    "bounds": {"none": 0.6, "some": 0.4},
}
"""... as it does in those that were there before these."""
SIZES = (3, 5, 3, 1)
"""Of the batches of the calls of a case, where they change."""
CALLS = 4
LEVEL = 4096.0
"""Units in the last place by which an accepted step may raise the cost, where the gradient decides."""
PLATEAU = "plateau"
STOP_AFTER = 2
"""Steps after which a callback of kind `stop` ends the solve."""


@dataclass(frozen=True)
class Verdict:
    case: dict[str, str]
    seed: int
    outcome: str
    """right, plateau, not converged, refused, crashed, wrong."""
    detail: str = ""


class Watch:
    """A callback that keeps what it is told, and may stop the solve."""

    def __init__(self, kind: str):
        self.stops = kind == "stop"
        self.steps: list[tuple[int, Tensor]] = []

    def __call__(self, info: Any) -> bool:
        if info.step == 0:  # also where a stale graph was found, and all begins again
            self.steps.clear()
        self.steps.append((info.step, info.cost.clone()))
        return self.stops and info.step >= STOP_AFTER

    def error(self, solution: Any) -> str:
        """What it was told that is not true of the solution; empty where all is."""
        numbers, costs = [step for step, _ in self.steps], torch.stack([cost for _, cost in self.steps])
        most = int(solution.num_steps.max())
        if numbers != list(range(len(numbers))) or not most <= numbers[-1]:
            return f"callback: told of steps {numbers}, {most} were taken"
        if self.stops and most > STOP_AFTER:
            return f"callback: {most} steps after it stopped the solve"
        rounding = LEVEL * torch.finfo(costs.dtype).eps
        if bool((costs[1:] > (1 + rounding) * costs[:-1]).any()):
            return "callback: the cost rises"
        if not torch.equal(costs[-1], solution.cost.reshape(-1)):
            return f"callback: last cost {costs[-1].tolist()}, solution's {solution.cost.tolist()}"
        return ""


class Settings:
    """Read by residuals as a class attribute."""

    weights: ClassVar[list[float]] = [1.0]


class Opaque:
    """State that no key can look into: the seed of a generator."""

    def __init__(self, value: float):
        self._generator = torch.Generator()
        self.set(value)

    def set(self, value: float) -> None:
        self._generator.manual_seed(round(1e6 * value))

    def __call__(self) -> float:
        return self._generator.initial_seed() / 1e6


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class State:
    """A number near one that a residual reads in one of many ways; `set` changes it between calls."""

    def __init__(self, kind: str):
        self.kind, self._number = kind, 1.0
        self._opaque, self._module = Opaque(1.0), Scaled()

    def set(self, number: float) -> None:
        self._number = number
        self._opaque.set(number)
        self._module.factor = number
        Settings.weights[0] = number

    def reader(self) -> Callable[[Tensor], Any]:
        """`read(y)`, the factor."""
        opaque, module, knob = self._opaque, self._module, torch.tensor([self._number])
        if self.kind == "number":
            number = self._number
            return lambda y: number
        return {
            "none": lambda y: 1.0,
            "class list": lambda y: Settings.weights[0],
            "opaque": lambda y: opaque(),
            "tolist": lambda y: knob.tolist()[0],
            "length": lambda y: 1.0 + 0.1 * len(y[: 3 + int(opaque() * 2)]),
            "module": lambda y: module(torch.ones((), dtype=y.dtype)),
        }[self.kind]


T = torch.linspace(0.1, 1.5, 12, dtype=torch.float64)


def matrix(p: Tensor) -> Tensor:
    zero = 0 * p[0]
    rows = [[2 + p[0], p[1], zero + 0.3], [p[1] * 0.5, 3 + p[2], p[0]], [zero + 0.1, p[2], 1.5 + p[1] ** 2]]
    return torch.stack([torch.stack(row) for row in rows])


def prediction(family: str, p: Tensor, twice: bool = False) -> Tensor:
    """Twelve numbers of three parameters; `twice` for a form that plain PyTorch differentiates twice."""
    t = T.to(p.dtype)
    if family == "exponential":
        return p[0] * torch.exp(-p[1] * t) + p[2]
    if family == "circle":
        angle = 4 * t
        return torch.sqrt((angle.cos() - 0.2 * p[0]) ** 2 + (angle.sin() - 0.2 * p[1]) ** 2 + 0.1) * p[2]
    if family == "rational":
        return (p[0] + p[1] * t) / (1 + p[2] ** 2 * t)
    if family == "linalg_solve":
        return torch.cat([torch.linalg.solve(matrix(p), torch.stack([t[k], t[k + 1], t[k + 2]])) for k in (0, 3, 6, 9)])
    if family == "det":
        return torch.linalg.det(matrix(p) + 0.2 * t[:, None, None] * torch.eye(3, dtype=p.dtype)) * 0.2
    if family == "cdist":
        points = torch.outer(t, p[:2]) + p[2]
        others = torch.outer(t[:4], t[4:6])
        if twice:
            return torch.linalg.vector_norm(points[:3, None] - others, dim=-1).reshape(-1)
        return torch.cdist(points[:3], others).reshape(-1)
    if family == "huber":
        model = p[0] * t + p[1] * t**2 + p[2]
        return model + 0.1 * torch.nn.functional.huber_loss(model, torch.zeros_like(model), reduction="none", delta=5.0)
    if family == "in_place":
        out = torch.zeros(12, dtype=p.dtype)
        out[:6] = p[0] * t[:6] + p[1]
        out[6:] = p[2] * t[6:].sin() + p[1]
        return out
    if family == "no_grad":
        with torch.no_grad():
            scale = t.sum() / 12
        return scale * p[0] * t + p[1] * torch.cos(p[2] * t)
    model = torch.stack([p[0] * t, p[1] * t + 1, p[2] + t**2])
    return torch.linalg.vector_norm(model, dim=0)


class Fit(mslsq.CostFunction):
    """One block of many: parameters shared by all, one row of data each."""

    def __init__(self, *variables: Any, family: str, read: Any, **options: Any):
        super().__init__(*variables, **options)
        self.family, self.read = family, read

    def residual(self, p: Tensor, y: Tensor) -> Tensor:
        return self.read(y) * prediction(self.family, p) - y


def tolerances(case: dict[str, str]) -> dict[str, float]:
    double = case["dtype"] == "float64"
    return {"gtol": 1e-12, "ftol": 1e-15, "xtol": 1e-12} if double else {"gtol": 1e-5, "ftol": 1e-7, "xtol": 1e-6}


def solver_of(case: dict[str, str], callback: Watch | None) -> Any:
    linear: Any = "auto" if case["linear"] == "auto" else getattr(mslsq.linear, case["linear"])()
    return getattr(mslsq, case["method"])(
        linear_solver=linear,
        trace=case["trace"],
        compile=case.get("compile") == "yes",
        native=case.get("native", "auto"),
        callback=callback,
        max_steps=200,
        **tolerances(case),
    )


Box = tuple[Tensor, Tensor] | None
"""Lower and upper bounds, (3,) each."""


def box_around(case: dict[str, str], truth: Tensor, generator: random.Random) -> Box:
    """Bounds that may cut off the minimum."""
    if case.get("bounds", "none") == "none":
        return None
    below, above = (torch.tensor([generator.uniform(-0.1, 0.5) for _ in range(3)]).to(truth) for _ in range(2))
    return truth - below, torch.maximum(truth + above, truth - below + 0.05)


def solved(
    case: dict[str, str], read: Any, start: Tensor, y: Tensor, callback: Watch | None = None, box: Box = None
) -> Any:
    """The solution for data (12,) or (batch, 12) through the case's front door; value (3,) or (batch, 3)."""
    family, solver = case["family"], solver_of(case, callback)
    batched = y.ndim == 2
    within: dict[str, Any] = {} if box is None else {"bounds": box, "project_start": True}
    projected: dict[str, Any] = {} if box is None else {"project_start": True}

    def residual(p: Tensor, y: Tensor) -> Tensor:
        return read(y) * prediction(family, p) - y

    def one(y: Tensor, in_dims: Any = None) -> Any:
        if case["front"] == "least_squares":
            return mslsq.least_squares(residual, start, (y,), solver=solver, in_dims=in_dims, **within)
        if case["front"] == "closure":
            if in_dims is not None:
                function = lambda p, q: residual(p, q)  # noqa: E731
                return mslsq.least_squares(function, start, (y,), solver=solver, in_dims=in_dims, **within)
            return mslsq.least_squares(lambda p: residual(p, y), start, solver=solver, **within)
        if case["front"] == "curve_fit":

            def model(p: Tensor, t: Tensor) -> Tensor:
                return read(t) * prediction(family, p)

            dims = None if in_dims is None else (None, 0, None)
            return mslsq.curve_fit(model, T.to(y.dtype), y, start, solver=solver, in_dims=dims, **within)
        lower, upper = (None, None) if box is None else box
        variable = mslsq.Variable("p", mslsq.Euclidean(3), lower=lower, upper=upper)
        row = y[0] if in_dims is not None else y
        problem = mslsq.Problem(Fit(variable, family=family, read=read, y=row[None], name="fit"))
        if in_dims is not None:
            dims = ({"p": None}, {"fit": {"y": 0}})
            data = {"fit": {"y": y[:, None]}}
            return mslsq.solve(problem, {"p": start}, data, solver=solver, in_dims=dims, **projected)
        if case["front"] == "layer":
            return mslsq.LeastSquaresLayer(problem, solver=solver, **projected)({"p": start}, {"fit": {"y": y[None]}})
        return mslsq.solve(problem, {"p": start}, solver=solver, **projected)

    if case["batch"] == "vmap":
        return torch.func.vmap(one)(y)
    return one(y, (None, 0)) if batched else one(y)


def value_of(solution: Any) -> Tensor:
    return solution.value["p"] if isinstance(solution.value, dict) else solution.value


def held_by(box: Box, value: Tensor, gradient: Tensor) -> Tensor:
    """Which parameters a bound holds against the gradient."""
    if box is None:
        return torch.zeros(3, dtype=torch.bool)
    lower, upper = box
    return ((value <= lower) & (gradient >= 0)) | ((value >= upper) & (gradient <= 0))


def judged(case: dict[str, str], read: Any, start: Tensor, y: Tensor, value: Tensor, box: Box = None) -> str:
    """What plain PyTorch and SciPy say of one converged problem; empty where nothing is wrong, `PLATEAU` where only the
    case's own `gtol` is met."""
    double = case["dtype"] == "float64"
    y64, x = y.detach().double(), value.detach().double().requires_grad_()

    def residual(p: Tensor) -> Tensor:
        source = T if case["front"] == "curve_fit" else y64
        return read(source) * prediction(case["family"], p) - y64

    r = residual(x)
    rows = torch.stack([torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in r])
    gradient = rows.T @ r
    if box is not None and bool(((value < box[0]) | (value > box[1])).any()):
        return f"outside of its bounds: {value.tolist()}"
    gradient = torch.where(held_by(box, value, gradient), 0, gradient)
    cosine = (gradient.abs() / (rows.norm(dim=0) * r.norm() + 1e-30)).amax()
    level = r.norm() / (y64.norm() + 1e-30)
    if float(cosine) < (1e-4 if double else 5e-2) or float(level) < (1e-7 if double else 1e-3):
        return ""
    cost = 0.5 * float(r @ r)
    options: dict[str, Any] = {"method": "lm"}
    origin = start.double().numpy()
    if box is not None:
        lower, upper = (side.double().numpy() for side in box)
        options = {"bounds": (lower, upper), "xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}
        origin = np.clip(origin, lower, upper)
    found = scipy.optimize.least_squares(
        lambda p: residual(torch.from_numpy(p)).detach().numpy(), origin, max_nfev=5000, **options
    )
    if cost <= found.cost * (1 + (1e-6 if double else 1e-3)):
        return ""
    if float(gradient.abs().amax()) <= tolerances(case)["gtol"]:
        return PLATEAU
    return f"cosine {float(cosine):.1e}, cost {cost:.6e}, SciPy {found.cost:.6e}"


def derivative_error(case: dict[str, str], read: Any, y: Tensor, value: Tensor, found: Tensor, box: Box) -> str:
    """The relative error of ∂Σx*/∂y for one problem, by the implicit function theorem for what no bound holds; empty
    where it is small."""
    x, data = value.detach().requires_grad_(), y.detach().clone().requires_grad_()

    def cost(p: Tensor, d: Tensor) -> Tensor:
        source = T if case["front"] == "curve_fit" else d
        return 0.5 * ((read(source) * prediction(case["family"], p, twice=True) - d) ** 2).sum()

    (g,) = torch.autograd.grad(cost(x, data), x, create_graph=True)
    hessian = torch.stack([torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in g])
    free = ~held_by(box, value.detach(), g.detach())
    if not bool(free.any()):
        return "a derivative where bounds hold all" if bool(found.any()) else ""
    g, hessian = g[free], hessian[free][:, free]
    eigenvalues = torch.linalg.eigvalsh(hessian)
    if float(eigenvalues.min()) < 1e-6 * float(eigenvalues.max()):
        return ""  # badly conditioned: nothing can be told
    expected = torch.autograd.grad(g, data, -torch.linalg.solve(hessian, torch.ones_like(g)))[0]
    error = float((found - expected).abs().max() / (expected.abs().max() + 1e-30))
    return f"derivative off by {error:.1e}" if error > 1e-4 else ""


def run_case(case: dict[str, str], seed: int) -> Verdict:
    torch.manual_seed(seed)
    generator = random.Random(seed)
    dtype = getattr(torch, case["dtype"])
    state = State(case["state"])
    truth = torch.rand(3, dtype=dtype) + 0.5
    start = truth + 0.3 * torch.randn(3, dtype=dtype)
    callback = None if case.get("callback", "none") == "none" else Watch(case["callback"])
    converged = plateaus = 0
    for call in range(CALLS):
        state.set(1.0 if call == 0 else 0.6 + 0.8 * generator.random())
        read = state.reader()
        clean = prediction(case["family"], truth)
        count = SIZES[call] if case.get("sizes") == "changing" else SIZES[0]
        y = clean + 0.05 * torch.randn((12,) if case["batch"] == "one" else (count, 12), dtype=dtype)
        y = (0.8 + 0.4 * generator.random()) * y
        box = box_around(case, truth, generator)
        try:
            if case["derivative"] == "backward":
                y.requires_grad_()
            solution = solved(case, read, start, y, callback, box)
            value = value_of(solution)
            gradient = None
            if case["derivative"] == "backward" and dtype == torch.float64:
                (gradient,) = torch.autograd.grad(value.sum(), y)
            elif case["derivative"] == "jacfwd" and dtype == torch.float64 and case["batch"] == "one":
                gradient = torch.func.jacfwd(
                    lambda q, read=read, box=box: value_of(solved(case, read, start, q, None, box)).sum()
                )(y)
        except Exception as error:
            text = str(error)
            teaches = isinstance(error, (ValueError, TypeError, NotImplementedError)) or "Write instead" in text
            return Verdict(
                case, seed, "refused" if teaches else "crashed", f"call {call}: {type(error).__name__}: {text[:200]}"
            )
        finally:
            y = y.detach()
        solution = getattr(solution, "solution", solution)
        told = "" if callback is None else callback.error(solution)
        if told:
            return Verdict(case, seed, "wrong", f"call {call}: {told}")
        values, gradients = (
            (value, gradient) if y.ndim == 2 else (value[None], None if gradient is None else gradient[None])
        )
        data, done = y if y.ndim == 2 else y[None], solution.converged.reshape(-1)
        usable = solution.differentiable.reshape(-1)
        for k in range(len(data)):
            if not bool(done[k]):
                continue
            converged += 1
            wrong = judged(case, read, start, data[k], values[k], box)
            if wrong == PLATEAU:
                plateaus, wrong = plateaus + 1, ""
            if not wrong and gradients is not None and bool(usable[k]) and not gradients[k].isnan().any():
                wrong = derivative_error(case, read, data[k], values[k], gradients[k], box)
            if wrong:
                return Verdict(case, seed, "wrong", f"call {call}, problem {k}: {wrong}")
    if plateaus:
        return Verdict(case, seed, PLATEAU, f"{plateaus} of {converged} solutions")
    return Verdict(case, seed, "right" if converged else "not converged")


def pairwise(count: int, seed: int) -> list[dict[str, str]]:
    """Cases in which every pair of values of two axes stands, as early as a greedy choice among thirty gets it."""
    generator = random.Random(seed)
    drawn = [(RARE, random.Random(f"rare {seed}")), (LATER, random.Random(f"later {seed}"))]
    missing = {(a, x, b, y) for a, b in itertools.combinations(AXES, 2) for x in AXES[a] for y in AXES[b]}
    cases = []
    while len(cases) < count:
        best, most = None, -1
        for _ in range(30 if missing else 1):
            case = {
                axis: generator.choices(values, [WEIGHTS.get(axis, {}).get(v, 1.0) for v in values])[0]
                for axis, values in AXES.items()
            }
            new = sum((a, case[a], b, case[b]) in missing for a, b in itertools.combinations(AXES, 2))
            if new > most:
                best, most = case, new
        assert best is not None
        rare = {
            axis: rarely.choices(list(weights), list(weights.values()))[0]
            for axes, rarely in drawn
            for axis, weights in axes.items()
        }
        missing -= {(a, best[a], b, best[b]) for a, b in itertools.combinations(AXES, 2)}
        cases.append(best | rare)
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="skip the cases before this one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = pairwise(arguments.count, arguments.seed)
    outcomes: Counter[str] = Counter()
    verdicts = []
    begin = time.perf_counter()
    for number, case in enumerate(cases[arguments.first :], arguments.first):
        verdict = run_case(case, arguments.seed * 1_000_003 + number)
        outcomes[verdict.outcome] += 1
        verdicts.append(verdict)
        if verdict.outcome in ("wrong", "crashed"):
            print(f"{number}: {verdict.outcome} {verdict.detail} {verdict.case} seed {verdict.seed}", flush=True)
    seconds = time.perf_counter() - begin
    defects = outcomes["wrong"] + outcomes["crashed"]
    hourly, per_thousand = 3600 * len(verdicts) / seconds, 1000 * defects / len(verdicts)
    print(f"{dict(outcomes)}; {hourly:.0f} cases an hour, {per_thousand:.1f} defects per thousand")
    if arguments.out:
        summary = {"torch": torch.__version__, "numpy": np.__version__, "seed": arguments.seed, "seconds": seconds}
        arguments.out.write_text(
            json.dumps({**summary, "outcomes": outcomes, "verdicts": [asdict(v) for v in verdicts]})
        )


if __name__ == "__main__":
    main()
