"""What derivatives through a solve cost: on a thousand curve fits against optimistix, and on SE(3) pose graphs.

    python benchmarks/adjoints.py                       # one thread and default threads: about ten minutes
    python benchmarks/adjoints.py --size 64 --poses 200

The cost of an adjoint is counted as (solve that will be differentiated + backward − solve that will not), the median
of that sum over turns; "steps" is that in steps of the forward solve. The fits are the well-posed ones of
`batched_fits.py`, the gradient is that of the sum of all solutions in the data; its truth comes from the exact implicit
gradient, which the tests check against finite differences. The pose graphs are helices of SE(3) poses with a loop
closure at every second pose. Theseus takes part with its four backward modes where it is installed (theseus-ai and
scikit-sparse < 0.5 with numpy < 2).
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from batched_fits import Fits, fits, residual
from timing import for_each_thread_setting, print_machine, print_table

import mslsq

ADJOINTS = {
    "Implicit()": mslsq.Implicit(),
    "Implicit(gauss_newton)": mslsq.Implicit(hessian="gauss_newton", order=1),
    "Unrolled()": mslsq.Unrolled(),
    "Truncated(5)": mslsq.Truncated(5),
    "DirectLossMinimization()": mslsq.DirectLossMinimization(),
}


def parts(call: Callable[[bool], tuple[Any, Callable[[], Any]]], repeats: int) -> list[float]:
    """CPU milliseconds of: solve alone, solve that will be differentiated, backward, and what the derivative costs in
    all; medians of interleaved turns. The last is the median of the turns' own differences: two solves of 25 ms differ
    by a millisecond for no reason."""
    samples: list[tuple[float, ...]] = []
    for _ in range(repeats + 1):
        times = []
        begin = time.process_time()
        call(False)
        times.append(1e3 * (time.process_time() - begin))
        begin = time.process_time()
        _, backward = call(True)
        times.append(1e3 * (time.process_time() - begin))
        begin = time.process_time()
        backward()
        times.append(1e3 * (time.process_time() - begin))
        samples.append((*times, times[1] + times[2] - times[0]))
    return [statistics.median(column) for column in zip(*samples[1:], strict=True)]


def fit_rows(problem: Fits, repeats: int) -> list[list[Any]]:
    """A row per adjoint, for the batch of fits."""
    gradient: dict[str, torch.Tensor] = {}
    rows = []
    for name, adjoint, solver in contestants():
        steps: list[int] = []

        def call(
            differentiated: bool, adjoint: Any = adjoint, name: str = name, solver: Any = solver, steps: Any = steps
        ) -> tuple[Any, Callable[[], Any]]:
            y = problem.y.clone().requires_grad_(differentiated)
            solution = mslsq.least_squares(
                residual, problem.start, (problem.t, y), in_dims=(None, None, 0), solver=solver, adjoint=adjoint
            )
            steps[:] = [int(solution.num_steps.max())]

            def backward() -> None:
                solution.value.sum().backward()
                assert y.grad is not None
                gradient[name] = y.grad

            return solution, backward

        # What costs two milliseconds beside a solve of twenty-five needs more turns to be seen.
        plain, _, _, extra = parts(call, repeats if extra_is_large(adjoint) else 10 * repeats)
        rows.append([name, plain, extra, extra / plain * steps[0], *errors(gradient[name], gradient["Implicit()"])])
    truth = gradient["Implicit()"]
    return [*rows, *theseus_fit_rows(problem, repeats, truth), *optimistix_rows(problem, repeats, truth)]


def contestants() -> list[tuple[str, mslsq.Adjoint, mslsq.LevenbergMarquardt]]:
    """Every adjoint with recorded graphs, and the default one compiled."""
    replayed = mslsq.LevenbergMarquardt(max_steps=200, trace="always", native="never")
    compiled = mslsq.LevenbergMarquardt(max_steps=200, compile=True)
    return [
        *((name, adjoint, replayed) for name, adjoint in ADJOINTS.items()),
        ("Implicit(), compile=True", ADJOINTS["Implicit()"], compiled),
    ]


def extra_is_large(adjoint: mslsq.Adjoint) -> bool:
    return not isinstance(adjoint, mslsq.Implicit)


def errors(gradient: torch.Tensor, truth: torch.Tensor) -> list[str]:
    """The norm of a gradient, and how far it is from the exact one."""
    return [f"{float(gradient.norm()):.7f}", f"{float((gradient - truth).norm() / truth.norm()):.1e}"]


def theseus_fit_rows(problem: Fits, repeats: int, truth: torch.Tensor) -> list[list[Any]]:
    """The same for Theseus' four backward modes, where it is installed."""
    try:
        from peers import theseus_layers
    except ImportError:
        return []
    rows, gradient = [], {}
    for mode in theseus_layers.MODES:
        call = theseus_layers.fits(problem.t, problem.y, problem.start, mode, gradient)
        plain, _, _, extra = parts(call, repeats)
        steps = extra / plain * theseus_layers.STEPS
        rows.append([f"Theseus LM, {mode}", plain, extra, steps, *errors(gradient[mode], truth)])
    return rows


def optimistix_rows(problem: Fits, repeats: int, truth: torch.Tensor) -> list[list[Any]]:
    """The same for optimistix's implicit adjoint, where it is installed."""
    try:
        import jax
        import jax.numpy as jnp
        import optimistix
    except ImportError:
        return []
    jax.config.update("jax_enable_x64", True)
    t, start = jnp.asarray(problem.t.numpy()), jnp.asarray(problem.start.numpy())
    solver = optimistix.LevenbergMarquardt(rtol=1e-10, atol=1e-10)

    def model(p: Any, y: Any) -> Any:
        return p[0] * jnp.exp(p[1] * t) + p[2] - y

    def one(y: Any) -> Any:
        return optimistix.least_squares(model, solver, start, y, max_steps=200, throw=False).value

    forward = jax.jit(lambda y: jax.vmap(one)(y))
    both = jax.jit(jax.grad(lambda y: jax.vmap(one)(y).sum()))
    y = jnp.asarray(problem.y.numpy())
    found: list[Any] = []

    def call(differentiated: bool) -> tuple[Any, Callable[[], Any]]:
        if not differentiated:
            forward(y).block_until_ready()
        else:
            found[:] = [both(y).block_until_ready()]
        return None, lambda: None

    plain, _, _, extra = parts(call, repeats)
    gradient = torch.tensor(found[0].tolist(), dtype=torch.float64)
    return [["optimistix LM, implicit", plain, extra, "", *errors(gradient, truth)]]


class WithoutCurvature(mslsq.Between):
    """`Between` whose second derivatives come from autodiff."""

    curvature = None  # pyright: ignore[reportAssignmentType]


def helix(count: int, kind: type[mslsq.CostFunction] = mslsq.Between) -> tuple[mslsq.Problem, mslsq.SE3, torch.Tensor]:
    """A helix of poses, odometry along it and a loop closure from every second pose to the turn above."""
    generator = torch.Generator().manual_seed(0)
    t = 0.2 * torch.arange(count, dtype=torch.float64)
    zero = torch.zeros_like(t)
    truth = mslsq.SE3.exp(torch.stack([3 * torch.cos(t), 3 * torch.sin(t), 0.1 * t, zero, zero, t], -1))
    turn = 31
    i = torch.cat((torch.arange(count - 1), torch.arange(0, count - turn, 2)))
    j = torch.cat((torch.arange(1, count), torch.arange(turn, count, 2)))
    noise = 0.02 * torch.randn(len(i), 6, generator=generator, dtype=torch.float64)
    measured = (truth[i].inverse() @ truth[j]).retract(noise)
    pose = mslsq.Variable("pose", mslsq.SE3, count=count)
    problem = mslsq.Problem(kind(pose[i], pose[j], measured=measured, weight=10.0, name="between"), pose.fixed([0]))
    start = truth.retract(0.05 * torch.randn(count, 6, generator=generator, dtype=torch.float64))
    return problem, start, measured.storage


class LogMapBetween(mslsq.CostFunction):
    """A relative pose as a user writes it, its derivatives left to the library."""

    def residual(self, a: mslsq.SE3, b: mslsq.SE3, measured: mslsq.SE3) -> torch.Tensor:
        return (measured.inverse() @ (a.inverse() @ b)).log()


def call_rows(count: int, native: str, calls: int) -> list[list[Any]]:
    """A row per call of one process: a solve that will not be differentiated, one that will, and its backward pass."""
    problem, start, measured = helix(count, LogMapBetween)
    solver = mslsq.LevenbergMarquardt(max_steps=30, ftol=1e-10, native=native)  # pyright: ignore[reportArgumentType]
    rows = []
    for call in range(1, calls + 1):
        times = [time.process_time()]
        solution = mslsq.solve(problem, {"pose": start}, solver=solver)
        times.append(time.process_time())
        data = {"between": {"measured": measured.clone().requires_grad_()}}
        differentiated = mslsq.solve(problem, {"pose": start}, data, solver=solver)
        times.append(time.process_time())
        differentiated.value["pose"].storage.sum().backward()
        times.append(time.process_time())
        plain, with_gradient, backward = (1e3 * (b - a) for a, b in itertools.pairwise(times))
        step = plain / (int(solution.num_steps) + 1)
        extra = with_gradient + backward - plain
        rows.append([native, call, step, plain, with_gradient, backward, extra, extra / step])
    return rows


GRAPH_ADJOINTS = [
    ("Implicit()", mslsq.Between, mslsq.Implicit()),
    ("Implicit(), autodiff", WithoutCurvature, mslsq.Implicit()),
    ("Unrolled()", mslsq.Between, mslsq.Unrolled()),
    ("Unrolled(checkpoint)", mslsq.Between, mslsq.Unrolled(checkpoint=True)),
    ("Truncated(5)", mslsq.Between, mslsq.Truncated(5)),
]


def graph_rows(poses: list[int], repeats: int) -> list[list[Any]]:
    """A row per pose graph and adjoint: `Implicit` with `Between`'s own second derivatives, and with those of autodiff,
    the steps themselves, and Theseus' four modes, where it is installed."""
    rows = []
    solver = mslsq.LevenbergMarquardt(max_steps=30, ftol=1e-10, trace="always", native="never")
    for count in poses:
        for name, kind, adjoint in GRAPH_ADJOINTS:
            problem, start, measured = helix(count, kind)
            steps: list[int] = []

            def call(
                differentiated: bool,
                stated: Any = (problem, start, measured, adjoint),
                steps: list[int] = steps,
            ) -> Any:
                problem, start, measured, adjoint = stated
                data = {"between": {"measured": measured.clone().requires_grad_(differentiated)}}
                solution = mslsq.solve(problem, {"pose": start}, data, solver=solver, adjoint=adjoint)
                steps[:] = [int(solution.num_steps)]
                return solution, lambda: solution.value["pose"].storage.sum().backward()

            turns = parts(call, repeats)
            rows.append([count, problem["between"].num_blocks, name, steps[0], *turns])
        rows.extend(theseus_graph_rows(count, repeats))
    return rows


def theseus_graph_rows(count: int, repeats: int) -> list[list[Any]]:
    try:
        from peers import theseus_layers
    except ImportError:
        return []
    problem, start, measured = helix(count)
    edges, rows = problem["between"].references, []
    for mode in theseus_layers.MODES:
        indices = (torch.as_tensor(edges[0].index), torch.as_tensor(edges[1].index))
        call = theseus_layers.graph(indices, mslsq.SE3(measured), start, mode, 15)
        turns = parts(call, repeats if count <= 200 else 1)
        rows.append([count, problem["between"].num_blocks, f"Theseus LM, {mode}", 15, *turns])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="number of fits")
    parser.add_argument("--poses", type=int, nargs="*", default=[200, 1000], help="sizes of the pose graphs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10, help="calls with a residual of one's own, from the first on")
    parser.add_argument("--here", action="store_true", help="in this process, with its thread setting")
    options = parser.parse_args()
    if not options.here:
        print_machine(["torch", "jax", "optimistix", "theseus-ai", "scikit-sparse"])
        return for_each_thread_setting(__file__, sys.argv[1:])
    print_table(
        f"{options.size} fits, gradient of the sum of all solutions with respect to the data",
        ["adjoint", "solve CPU ms", "extra CPU ms", "steps", "norm", "relative to exact"],
        fit_rows(fits("well-posed", options.size), options.repeats),
    )
    print_table(
        "SE(3) pose graphs, gradient with respect to all measurements",
        ["poses", "edges", "adjoint", "steps", "solve CPU ms", "solve to differentiate", "backward", "extra CPU ms"],
        graph_rows(options.poses, options.repeats),
    )
    print_table(
        "SE(3) pose graph of 1,000 poses, a residual of one's own, call by call",
        [
            "native",
            "call",
            "step CPU ms",
            "solve",
            "solve to differentiate",
            "backward",
            "extra CPU ms",
            "extra in steps",
        ],
        [row for native in ("never", "wait") for row in call_rows(1000, native, options.calls)],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
