"""Scenarios: what is refused, what goes wrong on one rank, and what all of them make of it."""

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from derivatives import IN_DIMS, many_fits
from problems import PARAMETERS, PATIENCE, START, Decay, compared, fit, part_of_fit, rank, said, samples, scenario
from torch import Tensor

import mslsq
from mslsq import distributed
from mslsq.front.plans import kept_for


@scenario
def refusals() -> Any:
    problem, solve = fit(), distributed.solve
    bounded = mslsq.Variable("b", mslsq.Euclidean(1), lower=0.0)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    at = {"b": torch.ones(1, dtype=torch.float64)}
    return {
        "bounds": said(lambda: solve(mslsq.Problem(mslsq.Prior(bounded, target=zero)), at)),
        "constraints": said(
            lambda: solve(
                mslsq.Problem(
                    mslsq.Prior(mslsq.Variable("b", mslsq.Euclidean(1)), target=zero),
                    mslsq.Equality(mslsq.Prior(mslsq.Variable("b", mslsq.Euclidean(1)), target=zero, name="other")),
                ),
                at,
            )
        ),
        "rejection": said(lambda: solve(problem, START, solver=mslsq.GraduatedNonConvexity())),  # type: ignore[arg-type]
        "QR": said(lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.QR()))),
        "compile": said(lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(compile=True))),
        "early_stop": said(lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(early_stop=False))),
        "checkpoint": said(
            lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(checkpoint=mslsq.Checkpoint("x")))
        ),
        "acceleration": said(lambda: solve(problem, START, solver=mslsq.LevenbergMarquardt(acceleration=0.75))),
        "adjoint": said(lambda: solve(problem, START, adjoint=mslsq.Unrolled())),
        "transform": said(lambda: torch.func.vmap(lambda x: solve(problem, {"p": x}).cost)(START["p"].expand(2, 3))),
        "the same blocks": said(lambda: solve(problem, START, holds="part")),
        "other blocks": said(lambda: solve(part_of_fit(100 * rank(), 100 * rank() + 100), START)),
        "no batch": said(lambda: distributed.solve_batch(problem, START, in_dims=None)),
        "after all that": compared(mslsq.solve(problem, START), solve(problem, START))["difference"],
    }


@scenario
def unequal_ranks() -> Any:
    """Something that must be the same is not. All ranks say so, and can go on."""
    other = mslsq.Variable("q" if rank() == 1 else "p", mslsq.Euclidean(3))
    named = mslsq.Problem(mslsq.Prior(other, target=torch.zeros(1, 3, dtype=torch.float64)))
    shifted = {"p": START["p"] + rank()}
    steps = mslsq.LevenbergMarquardt(max_steps=5 + rank())
    only_one = mslsq.LevenbergMarquardt() if rank() else mslsq.Dogleg()
    held = [PARAMETERS.fixed(components=[0])] if rank() else []
    return {
        "variables": said(lambda: distributed.solve(named, {other.name: START["p"]})),
        "start": said(lambda: distributed.solve(fit(), shifted)),
        "options": said(lambda: distributed.solve(fit(), START, solver=steps)),
        "method": said(lambda: distributed.solve(fit(), START, solver=only_one)),
        "held": said(lambda: distributed.solve(mslsq.Problem(*fit(), *held), START)),
        "batch": said(
            lambda: distributed.solve_batch(*many_fits(3 + rank()), in_dims=IN_DIMS),
        ),
        "after all that": compared(mslsq.solve(fit(), START), distributed.solve(fit(), START))["difference"],
    }


@scenario
def failures() -> Any:
    """One rank fails, is interrupted, or has NaN; all end alike, and can go on."""
    (t, y), own = samples(200), part_of_fit(100 * rank(), 100 * rank() + 100)
    broken = y.clone()
    broken[150] = torch.nan
    with_nan = mslsq.Problem(Decay(PARAMETERS, t=t[100 * rank() :][:100], y=broken[100 * rank() :][:100]))
    nan = distributed.solve(with_nan, START, holds="part")

    def raises(info: Any) -> None:
        if rank() == 1 and int(info.step) == 1:
            raise ValueError("mine")

    def interrupts(info: Any) -> None:
        if rank() == 1 and int(info.step) == 2:
            raise KeyboardInterrupt

    def signals(info: Any) -> None:
        if rank() == 1 and int(info.step) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def stops(info: Any) -> bool:
        return rank() == 1 and int(info.step) == 2

    def solved(callback: Any, **more: Any) -> mslsq.Solution:
        return distributed.solve(own, START, holds="part", solver=mslsq.LevenbergMarquardt(callback=callback, **more))

    class Quietly(mslsq.LevenbergMarquardt):
        """SIGINT in the third step, which nothing looks at."""

        def propose(self, *args: Any, **options: Any) -> Any:
            proposed.append(None)
            if rank() == 1 and len(proposed) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return super().propose(*args, **options)

    class Planned(mslsq.CostFunction):
        """SIGINT before the first step of a plan that is known."""

        def residual(self, p: Tensor, t: Tensor, y: Tensor) -> Tensor:
            if rank() == 1 and "SIGNALS" in os.environ:
                del os.environ["SIGNALS"]
                os.kill(os.getpid(), signal.SIGINT)
            return p[0] * torch.exp(-p[1] * t) + p[2] - y

    proposed: list[None] = []
    quietly = distributed.solve(own, START, holds="part", solver=Quietly(trace="never", on_interrupt="return"))
    samples_of_rank = [x[100 * rank() : 100 * rank() + 100] for x in samples(200)]
    known = mslsq.Problem(Planned(PARAMETERS, t=samples_of_rank[0], y=samples_of_rank[1]))
    distributed.solve(known, START, holds="part")
    os.environ["SIGNALS"] = "1"
    early = said(lambda: distributed.solve(known, START, holds="part"))
    interrupted = solved(interrupts, on_interrupt="return")
    signalled = solved(signals, on_interrupt="return")
    stopped = solved(stops)
    late = solved(lambda info: time.sleep(0.3 * rank()), time_budget=0.2)
    missing = said(lambda: distributed.solve(own, START if rank() == 0 else {}, holds="part"))
    return {
        "nan": [int(nan.status), int(nan.num_steps)],
        "raises": said(lambda: solved(raises)),
        "quietly": [int(quietly.status), int(quietly.num_steps)],
        "early": early,
        "missing": missing,
        "interrupted": [int(interrupted.status), int(interrupted.num_steps), interrupted.value["p"].tolist()],
        "signalled": [int(signalled.status), int(signalled.num_steps)],
        "raised": said(lambda: solved(signals)),
        "stopped": [int(stopped.status), int(stopped.num_steps)],
        "late": [int(late.status), int(late.num_steps)],
        "after all that": compared(mslsq.solve(fit(prior=False), START), distributed.solve(own, START, holds="part"))[
            "difference"
        ],
    }


@scenario
def a_rank_that_changes_its_mind() -> Any:
    """A residual of one rank reads what no plan knows of, and its graph goes stale: all solve again."""
    os.environ["FACTOR"] = "1.0"

    class Reads(mslsq.CostFunction):
        def residual(self, p: Tensor, t: Tensor, y: Tensor) -> Tensor:
            return float(os.environ["FACTOR"]) * (p[0] * torch.exp(-p[1] * t) + p[2] - y)

    t, y = samples(200)
    share = 200 // dist.get_world_size()
    own = slice(share * rank(), share * rank() + share)
    problem = mslsq.Problem(Reads(PARAMETERS, t=t[own], y=y[own]))
    always = mslsq.LevenbergMarquardt(trace="always")
    costs = []
    for factor in (1.0, 1.0, 3.0):
        os.environ["FACTOR"] = str(factor if rank() == 1 else 1.0)
        costs.append(float(distributed.solve(problem, START, holds="part", solver=always).cost))
    weights = torch.ones(200, dtype=torch.float64)
    weights[share : 2 * share] = 3.0
    one = mslsq.solve(mslsq.Problem(Decay(PARAMETERS, t=t, y=y, weight=mslsq.Scale(weights))), START)
    plan = next(iter(kept_for(problem).plans._plans.values()))
    return {
        "again": abs(costs[1] / costs[0] - 1),
        "changed": abs(costs[2] / float(one.cost) - 1),
        "graphs": sorted(plan.execution.graphs),
    }


@scenario
def a_rank_that_dies() -> Any:
    if rank() == 1:
        distributed.solve(fit(), START)
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.solve(fit(), START)
    began = time.monotonic()
    words = said(lambda: distributed.solve(fit(), START, timeout=PATIENCE))
    return [*words, time.monotonic() - began]


@scenario
def a_rank_that_hangs() -> Any:
    def waits(info: Any) -> None:
        if rank() == 1 and int(info.step) == 1:
            time.sleep(3 * PATIENCE)

    began = time.monotonic()
    words = said(
        lambda: distributed.solve(fit(), START, solver=mslsq.LevenbergMarquardt(callback=waits), timeout=PATIENCE)
    )
    return [*words, time.monotonic() - began]
