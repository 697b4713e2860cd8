"""A thousand curve fits at once, against optimistix under `jit(vmap)`, SciPy in a loop and, where installed, Theseus.

    python benchmarks/batched_fits.py             # 1024 problems, one thread and default threads: about six minutes
    python benchmarks/batched_fits.py --size 64   # fewer problems

y = a·exp(b·t) + c at 32 points t in [0, 2], float64; a in [0.5, 2], c in [-1, 1], noise 0.01. Well-posed: b in
[-2, -0.5] from (1, -1, 0). Hard: b in [-2, 2] from (1, 0.5, 0), where about half of the fits pass the singular b = 0.
All solvers get the same data and at most 200 steps; optimistix rtol = atol = 1e-10, mslsq and SciPy their defaults.
"Solved" is a cost within 1e-6 of the best that anybody found for that problem, whatever the solver says of itself.
"""

import argparse
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares as scipy_least_squares
from timing import for_each_thread_setting, interleaved, print_machine, print_table

import mslsq

Solver = mslsq.LevenbergMarquardt | mslsq.GaussNewton | mslsq.Dogleg

MAX_STEPS = 200
STARTS = {"well-posed": (1.0, -1.0, 0.0), "hard": (1.0, 0.5, 0.0)}
MSLSQ = {
    "mslsq LM eager": mslsq.LevenbergMarquardt(max_steps=MAX_STEPS, trace="never"),
    "mslsq LM replayed": mslsq.LevenbergMarquardt(max_steps=MAX_STEPS, trace="always", native="never"),
    "mslsq LM native": mslsq.LevenbergMarquardt(max_steps=MAX_STEPS, native="wait"),
    "mslsq LM compiled": mslsq.LevenbergMarquardt(max_steps=MAX_STEPS, compile=True),
    "mslsq GN replayed": mslsq.GaussNewton(max_steps=MAX_STEPS, trace="always", native="never"),
    "mslsq GN native": mslsq.GaussNewton(max_steps=MAX_STEPS, native="wait"),
    "mslsq GN compiled": mslsq.GaussNewton(max_steps=MAX_STEPS, compile=True),
    "mslsq Dogleg replayed": mslsq.Dogleg(max_steps=MAX_STEPS, trace="always", native="never"),
    "mslsq Dogleg native": mslsq.Dogleg(max_steps=MAX_STEPS, native="wait"),
    "mslsq Dogleg compiled": mslsq.Dogleg(max_steps=MAX_STEPS, compile=True),
}


@dataclass
class Fits:
    """The data of one case: t (32,), y (problems, 32), the common start."""

    t: torch.Tensor
    y: torch.Tensor
    start: torch.Tensor


def fits(case: str, size: int) -> Fits:
    """The same random problems for every solver."""
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0, 2, 32, dtype=torch.float64)
    a, b, c = torch.rand(3, size, 1, generator=generator, dtype=torch.float64)
    a, c = 0.5 + 1.5 * a, -1 + 2 * c
    b = -2 + 4 * b if case == "hard" else -2 + 1.5 * b
    noise = torch.randn(size, 32, generator=generator, dtype=torch.float64)
    return Fits(t, a * torch.exp(b * t) + c + 0.01 * noise, torch.tensor(STARTS[case], dtype=torch.float64))


def residual(p: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of one fit."""
    return p[0] * torch.exp(p[1] * t) + p[2] - y


@dataclass
class Answer:
    """What a contestant returns: parameters (problems, 3), which it calls converged, steps (or evaluations)."""

    value: np.ndarray
    converged: np.ndarray
    steps: np.ndarray


def solve_mslsq(given: Fits, solver: Solver) -> mslsq.Solution:
    return mslsq.least_squares(residual, given.start, (given.t, given.y), in_dims=(None, None, 0), solver=solver)


def mslsq_contestants(given: Fits) -> dict[str, Callable[[], Answer]]:
    def contestant(solver: Solver) -> Callable[[], Answer]:
        def run() -> Answer:
            solution = solve_mslsq(given, solver)
            return Answer(solution.value.numpy(), solution.converged.numpy(), solution.num_steps.numpy())

        return run

    return {name: contestant(solver) for name, solver in MSLSQ.items()}


def scipy_contestant(given: Fits) -> Callable[[], Answer]:
    t, data, start = given.t.numpy(), given.y.numpy(), given.start.numpy()

    def jacobian(p: np.ndarray, y: np.ndarray) -> np.ndarray:
        exponential = np.exp(p[1] * t)
        return np.stack((exponential, p[0] * t * exponential, np.ones_like(t)), 1)

    def run() -> Answer:
        results = [
            scipy_least_squares(
                lambda p, y: p[0] * np.exp(p[1] * t) + p[2] - y,
                start,
                jac=jacobian,  # pyright: ignore[reportArgumentType]
                method="lm",
                args=(y,),
                max_nfev=MAX_STEPS,
            )
            for y in data
        ]
        return Answer(
            np.array([result.x for result in results]),
            np.array([result.success for result in results]),
            np.array([result.nfev for result in results]),
        )

    return run


def optimistix_functions(given: Fits) -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """By method y -> (values, successful, steps) of all fits, not yet compiled, and the data as JAX has them."""
    import jax
    import jax.numpy as jnp
    import optimistix as optx

    jax.config.update("jax_enable_x64", True)
    t, y, start = (jnp.asarray(x.numpy()) for x in (given.t, given.y, given.start))

    def function(solver: Any) -> Callable[[Any], Any]:
        def one(y: Any) -> Any:
            solution = optx.least_squares(
                lambda p, y: p[0] * jnp.exp(p[1] * t) + p[2] - y, solver, start, y, max_steps=MAX_STEPS, throw=False
            )
            return solution.value, solution.result == optx.RESULTS.successful, solution.stats["num_steps"]

        return jax.vmap(one)

    kinds = {"LM": optx.LevenbergMarquardt, "GN": optx.GaussNewton, "Dogleg": optx.Dogleg}
    return {f"optimistix {name}": (function(kind(rtol=1e-10, atol=1e-10)), y) for name, kind in kinds.items()}


def optimistix_contestants(given: Fits) -> dict[str, Callable[[], Answer]]:
    import jax

    def contestant(function: Callable[[Any], Any], y: Any) -> Callable[[], Answer]:
        compiled = jax.jit(function)
        return lambda: Answer(*map(np.asarray, jax.block_until_ready(compiled(y))))

    return {name: contestant(*function) for name, function in optimistix_functions(given).items()}


def theseus_contestant(given: Fits) -> Callable[[], Answer]:
    import theseus as th  # pyright: ignore[reportMissingImports]

    size = len(given.y)
    p = th.Vector(3, name="p", dtype=torch.float64)
    t = th.Variable(given.t[None], name="t")
    y = th.Variable(given.y, name="y")

    def error(optim_vars: Any, aux_vars: Any) -> torch.Tensor:
        (q,), (t, y) = optim_vars, aux_vars
        return q[:, :1] * torch.exp(q[:, 1:2] * t.tensor) + q[:, 2:] - y.tensor

    cost = th.AutoDiffCostFunction(
        [p], error, 32, aux_vars=[t, y], cost_weight=th.ScaleCostWeight(torch.ones(1, 1).double())
    )
    objective = th.Objective(dtype=torch.float64)
    objective.add(cost)
    layer = th.TheseusLayer(th.LevenbergMarquardt(objective, max_iterations=MAX_STEPS))

    def run() -> Answer:
        with torch.no_grad():
            values, info = layer.forward(
                {"p": given.start.expand(size, 3).clone(), "t": given.t[None], "y": given.y},
                optimizer_kwargs={"adaptive_damping": True, "damping": 1e-2},
            )
        converged = np.array([str(status).endswith("CONVERGED") for status in info.status])
        return Answer(values["p"].numpy(), converged, np.asarray(info.converged_iter))

    return run


def costs(given: Fits, value: np.ndarray) -> np.ndarray:
    """½‖r‖² of every fit, computed in the same way for every solver."""
    with np.errstate(all="ignore"):
        r = value[:, :1] * np.exp(value[:, 1:2] * given.t.numpy()) + value[:, 2:] - given.y.numpy()
        return 0.5 * (r * r).sum(1)


def compare(case: str, size: int, repeats: int) -> None:
    given = fits(case, size)
    contestants = mslsq_contestants(given)
    if importlib.util.find_spec("optimistix"):
        contestants.update(optimistix_contestants(given))
    if importlib.util.find_spec("theseus"):
        contestants["Theseus LM adaptive"] = theseus_contestant(given)
    contestants["SciPy lm, loop"] = scipy_contestant(given)
    answers, first, failed = {}, {}, []
    for name, contestant in list(contestants.items()):
        begin = time.perf_counter()
        try:
            answers[name] = contestant()
        except Exception as error:  # a peer that raises for one bad lane is part of the comparison
            failed.append([name, f"raised {type(error).__name__}", *["-"] * 8])
            del contestants[name]
        first[name] = time.perf_counter() - begin
    found = {name: costs(given, answer.value) for name, answer in answers.items()}
    best = np.nanmin(np.stack(list(found.values())), 0)
    times = interleaved(contestants, repeats)
    rows = []
    for name, answer in answers.items():
        cost, finite = found[name], np.isfinite(found[name])
        solved = finite & (cost <= best * (1 + 1e-6))
        rows.append(
            [
                name,
                f"{solved.sum()} of {size}",
                int(answer.converged.sum()),
                int((answer.converged & ~solved).sum()),
                int((~finite).sum()),
                f"{cost[finite].sum():.8f}",
                int(np.median(answer.steps)),
                int(answer.steps.max()),
                *times[name],
                first[name],
            ]
        )
    header = ["", "solved", "claimed", "claimed wrongly", "not finite", "total cost of the finite"]
    header += ["median steps", "max steps", "CPU ms", "wall ms", "first call s"]
    print_table(f"### {case} starts, {size} problems", header, rows + [[*row, "-"] for row in failed])


def gradients(size: int, repeats: int) -> None:
    """d(sum of all solutions)/dy at the well-posed fits: norm against finite differences, time of the whole."""
    given = fits("well-posed", size)

    def with_gradient(solver: Solver) -> torch.Tensor:
        y = given.y.clone().requires_grad_()
        solution = mslsq.least_squares(residual, given.start, (given.t, y), in_dims=(None, None, 0), solver=solver)
        return torch.autograd.grad(solution.value.sum(), y)[0]

    forward: dict[str, Callable[[], Any]] = {}
    both: dict[str, Callable[[], Any]] = {}
    for name in ("mslsq LM replayed", "mslsq LM native", "mslsq GN native", "mslsq LM compiled", "mslsq GN compiled"):
        forward[name] = lambda solver=MSLSQ[name]: solve_mslsq(given, solver)
        both[name] = lambda solver=MSLSQ[name]: with_gradient(solver)
    if importlib.util.find_spec("optimistix"):
        import jax

        for name, (function, y) in optimistix_functions(given).items():
            value = jax.jit(lambda y, function=function: function(y)[0])
            gradient = jax.jit(jax.grad(lambda y, function=function: function(y)[0].sum()))
            forward[name] = lambda value=value, y=y: jax.block_until_ready(value(y))
            both[name] = lambda gradient=gradient, y=y: np.asarray(gradient(y))
    truth = finite_differences(given)
    found = {name: np.asarray(function()) for name, function in both.items()}
    alone, joint = interleaved(forward, repeats), interleaved(both, repeats)
    rows = [
        [
            name,
            f"{np.linalg.norm(g):.7f}",
            f"{np.linalg.norm(g - truth) / np.linalg.norm(truth):.1e}",
            *alone[name],
            *joint[name],
        ]
        for name, g in found.items()
    ]
    header = ["", "norm", "relative error", "forward CPU ms", "wall ms", "forward + backward CPU ms", "wall ms"]
    print_table(f"### Gradient of the sum of {size} solutions with respect to y", header, rows)
    print(f"\nfinite differences: norm {np.linalg.norm(truth):.7f}")


def finite_differences(given: Fits) -> np.ndarray:
    """Central differences of tightly solved fits, extrapolated: the fits are independent, so 4 x 32 solves give all."""
    solver = mslsq.LevenbergMarquardt(
        max_steps=MAX_STEPS, ftol=1e-15, xtol=1e-15, gtol=1e-14, trace="always", native="never"
    )

    def slope(k: int, h: float) -> torch.Tensor:
        shift = torch.zeros_like(given.y)
        shift[:, k] = h
        above, below = (Fits(given.t, given.y + sign * shift, given.start) for sign in (1, -1))
        difference = solve_mslsq(above, solver).value - solve_mslsq(below, solver).value
        return difference.sum(1) / (2 * h)

    return torch.stack([(4 * slope(k, 5e-4) - slope(k, 1e-3)) / 3 for k in range(given.y.shape[1])], 1).numpy()


def neighbours(size: int) -> None:
    """Are the hard fits that take longest what they are without their neighbours, and with other ones?"""
    given = fits("hard", size)
    rows = []
    for name in ("mslsq LM replayed", "mslsq LM native", "mslsq GN native", "mslsq Dogleg native"):
        together = solve_mslsq(given, MSLSQ[name])
        lanes = together.num_steps.argsort(descending=True)[: min(32, size)]
        # The others without data at all (NaN): the batch is of the same size, so the arithmetic is the same too.
        ruined = torch.full_like(given.y, torch.nan)
        ruined[lanes] = given.y[lanes]
        spoiled = solve_mslsq(Fits(given.t, ruined, given.start), MSLSQ[name]).value[lanes]
        bitwise = (spoiled.view(torch.int64) == together.value[lanes].view(torch.int64)).all(1).sum()
        alone = torch.cat([solve_mslsq(Fits(given.t, y[None], given.start), MSLSQ[name]).value for y in given.y[lanes]])
        cost, cost_alone = (costs(given, x.numpy()) for x in (_placed(given, lanes, v) for v in (spoiled, alone)))
        difference = np.abs(cost[lanes] - cost_alone[lanes]) / cost[lanes]
        rows.append(
            [name, f"{int(bitwise)} of {len(lanes)}", f"{np.nanmax(difference):.1e}", int(together.num_steps.max())]
        )
    header = ["", "bitwise the same among NaN neighbours", "largest relative difference of cost, solved alone", "steps"]
    print_table("### The hard fits with the most steps, and their neighbours", header, rows)


def few_hard(size: int, repeats: int) -> None:
    """Fits of which one in a hundred takes all its steps: in one batch, and the two kinds apart, as one who knew them
    would write it."""
    names = ("mslsq LM eager", "mslsq LM replayed", "mslsq LM native")
    rows = [_few_hard(count, name, repeats) for count in (size, 2 * size, 20 * size) for name in names]
    header = ["fits", "", "one batch, CPU ms", "two batches", "ratio", "the easy ones alone", "most steps"]
    print_table("### One fit in a hundred is hard", header, rows)


def _few_hard(count: int, name: str, repeats: int) -> list[str | int | float]:
    given, solver = fits("well-posed", count), MSLSQ[name]
    hard = torch.arange(count) % 100 == 0
    given.y[hard] = 0.3 * given.t + 0.002 * given.t**3  # a straight line: b goes to zero, and a grows
    easy_ones, hard_ones = (Fits(given.t, given.y[kind].clone(), given.start) for kind in (~hard, hard))
    contestants = {
        "one batch": lambda: solve_mslsq(given, solver),
        "apart": lambda: (solve_mslsq(easy_ones, solver), solve_mslsq(hard_ones, solver)),
        "the easy ones": lambda: solve_mslsq(easy_ones, solver),
    }
    together, apart, easy = (timing.cpu for timing in interleaved(contestants, repeats).values())
    steps = int(solve_mslsq(given, solver).num_steps.max())
    return [count, name, together, apart, together / apart, easy, steps]


def _placed(given: Fits, lanes: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Values of some lanes as values of all."""
    placed = given.start.repeat(len(given.y), 1)
    placed[lanes] = value
    return placed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--here", action="store_true", help="in this process, with the threads it has")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    if not arguments.here:
        print_machine(("torch", "jax", "optimistix", "theseus-ai", "scipy"))
        return for_each_thread_setting(__file__, sys.argv[1:])
    for case in STARTS:
        compare(case, arguments.size, arguments.repeats)
    gradients(arguments.size, arguments.repeats)
    neighbours(arguments.size)
    few_hard(arguments.size, arguments.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
