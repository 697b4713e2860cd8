"""A program of a user: a residual, a start and data. Its solution must be a minimum to SciPy, and its derivative in the
data that of differences; or it is refused by name."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import scipy.optimize
import torch
from torch import Tensor

import mslsq
import mslsq.errors
from mslsq import pytree

F64 = torch.float64
T = torch.linspace(0.1, 2, 20, dtype=F64)
Y = 2 * torch.exp(-1.1 * T) + 0.3 + 0.02 * torch.sin(9 * T)
P3 = torch.tensor([1.5, -0.8, 0.1], dtype=F64)
P2 = torch.tensor([1.2, 0.7], dtype=F64)
STEP = 1e-4
REFUSALS = [kind for kind in vars(mslsq.errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
REFUSALS = [kind for kind in REFUSALS if not issubclass(kind, Warning)]


@dataclass(frozen=True)
class Program:
    residual: Callable[..., Any]
    start: Tensor
    args: tuple[Any, ...]
    has_derivative: bool
    is_scipys: bool
    solve: Callable[[], tuple[mslsq.Solution, Tensor]] | None = None
    """Another front door than `least_squares`: its solution, and where that is as `start` counts."""

    def solved(self) -> tuple[mslsq.Solution, Tensor]:
        if self.solve is not None:
            return self.solve()
        solution = mslsq.least_squares(self.residual, self.start, self.args)
        return solution, solution.value


PROGRAMS: dict[str, Program] = {}


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=F64)


def case(
    start: Tensor, *args: Any, grad: bool = True, scipy: bool = True, truth: Tensor | None = None
) -> Callable[[Any], Any]:
    """Take a residual in; are its derivative in the last real argument (`grad`) and its minimum (`scipy`) compared?

    With a `truth` the last argument, which the residual takes off, is the model there and a little noise: data that
    have nothing to do with a model often have their minimum at infinity, which proves little.
    """

    def taken(residual: Callable[..., Any]) -> Callable[..., Any]:
        given = args
        if truth is not None:
            last = args[-1]
            made = (residual(truth, *args[:-1], torch.zeros_like(last))).detach()
            assert made.shape == last.shape
            given = (*args[:-1], made + 0.01 * torch.sin(9 * torch.arange(last.numel(), dtype=F64)).view_as(last))
        PROGRAMS[residual.__name__] = Program(residual, start, given, grad, scipy)
        return residual

    return taken


def numbers_of(output: Any) -> Tensor:
    """A residual as one vector of real numbers."""
    return _graded_numbers(output).detach()


def _graded_numbers(output: Any) -> Tensor:
    parts = pytree.leaves(output)
    parts = [torch.view_as_real(part.resolve_conj()) if part.is_complex() else part for part in parts]
    return torch.cat([part.double().reshape(-1) for part in parts])


TOLD = (mslsq.errors.NotDifferentiableWarning, mslsq.NoInfluenceWarning, mslsq.errors.CutDerivativeWarning)
"""Warnings that say that there is no derivative, or that the solution need be no minimum."""
TIGHT = mslsq.LevenbergMarquardt(gtol=1e-12, xtol=1e-15, ftol=1e-16)
AS_IT_IS = mslsq.LevenbergMarquardt()
"""The first for differences, which see what is left of a gradient divided by their step."""


def judged(program: Program, said: Callable[[], bool]) -> str:
    """What is to be looked at, or what mslsq itself said, in brackets; empty where all agrees.

    Args:
        said: was there a warning by now that takes a derivative or a minimum back?
    """
    (solution, value), (again, value_again) = program.solved(), program.solved()
    same = torch.allclose(value, value_again, rtol=1e-6, atol=1e-8, equal_nan=True)
    # What runs to infinity stops where rounding has it stop; its cost is level by then, to ten times `ftol`.
    if bool(solution.converged) and not same and not torch.allclose(solution.cost, again.cost, rtol=1e-7, atol=0):
        return "a second solve differs"
    found = _judged_minimum(program, solution, value) if program.is_scipys else ""
    if found and bool(solution.converged) and said():
        return f"(told: {found})"
    if not found and program.has_derivative:
        found = _judged_derivative(program, value.detach(), said)
    if found and not found.startswith("(") and not bool(solution.converged):
        return f"(status {mslsq.Status(int(solution.status)).name}: {found})"
    return found


def _judged_minimum(program: Program, solution: mslsq.Solution, value: Tensor) -> str:
    def residual(p: Any) -> Any:
        at = torch.tensor(p, dtype=program.start.dtype).reshape(program.start.shape)
        return numbers_of(program.residual(at, *program.args)).numpy()

    own = value.detach().double().numpy().ravel()
    cost = 0.5 * float((residual(own) ** 2).sum())
    if abs(cost - float(solution.cost.detach())) > 1e-6 * (cost + 1e-9):
        return f"a cost of {float(solution.cost.detach())}, which is {cost}"
    nearby = _least_cost(residual, own)
    return f"no minimum: {cost}, SciPy's from there {nearby}" if cost > nearby * (1 + 1e-5) + 1e-10 else ""


def _least_cost(residual: Callable[[Any], Any], start: Any) -> float:
    try:
        return float(scipy.optimize.least_squares(residual, start, xtol=1e-14, ftol=1e-14, gtol=1e-14).cost)
    except ValueError:  # no number nearby
        return float("inf")


def _judged_derivative(program: Program, solved: Tensor, said: Callable[[], bool]) -> str:
    places = [n for n, x in enumerate(program.args) if isinstance(x, Tensor) and x.is_floating_point()]
    if not places:
        return ""
    place = places[-1]
    data = program.args[place]
    along = torch.cos(1.3 * torch.arange(data.numel(), dtype=data.dtype) + 0.4).reshape(data.shape)
    weights = torch.sin(0.7 * torch.arange(program.start.numel(), dtype=program.start.dtype) + 1)

    def with_data(moved: Tensor) -> tuple[Any, ...]:
        return (*program.args[:place], moved, *program.args[place + 1 :])

    def weighted(start: Tensor, data: Tensor) -> Tensor:
        return mslsq.least_squares(program.residual, start, with_data(data)).value.reshape(-1) @ weights

    def differing(data: Tensor) -> float:
        found = mslsq.least_squares(program.residual, solved, with_data(data), solver=TIGHT).value.detach()
        return float(_polished(program, found, with_data(data)).reshape(-1) @ weights)

    slope = math.nan
    for start in (program.start, solved):  # a solve that begins where another one ended is not told all that it was
        leaf = data.clone().requires_grad_()
        value = weighted(start, leaf)
        if not value.requires_grad:
            return ""  # the data have no part in the residual
        slope = float((torch.autograd.grad(value, leaf)[0] * along).sum())
        if math.isnan(slope) and said():
            return "(told: no derivative)"
    step = STEP if data.dtype == F64 else 1e3 * STEP
    difference = (differing(data + step * along) - differing(data - step * along)) / (2 * step)
    if not abs(slope - difference) <= (2e-3 if data.dtype == F64 else 5e-2) * (abs(difference) + 1e-3):
        return f"a derivative of {slope}, of differences {difference}"
    return ""


def _polished(program: Program, solved: Tensor, args: tuple[Any, ...]) -> Tensor:
    """A solution after Newton steps on the gradient of plain reverse mode, where those make it smaller: costs tell the
    solution to the root of rounding alone, and four digits of its difference. Where a step raises the cost that mode is
    wrong (`torch.ldexp` by negative integers), and the solution stays as it was."""

    def cost(x: Tensor) -> Tensor:
        return 0.5 * (_graded_numbers(program.residual(x, *args)) ** 2).sum()

    def gradient(x: Tensor, create_graph: bool = False) -> Tensor:
        return torch.autograd.grad(cost(x), x, create_graph=create_graph)[0].reshape(-1)

    def followed(x: Tensor) -> Tensor:
        return x.detach().clone().requires_grad_()

    try:
        x = followed(solved)
        for _ in range(3):
            slope = gradient(x, create_graph=True)
            hessian = torch.stack([torch.autograd.grad(one, x, retain_graph=True)[0].reshape(-1) for one in slope])
            moved = followed(x - torch.linalg.solve(hessian, slope).reshape(x.shape))
            if not (gradient(moved).norm() < slope.norm() and cost(moved) <= (1 + 1e-12) * cost(x)):
                break
            x = moved
    except RuntimeError:  # no derivative in reverse mode, or a singular Hessian
        return solved
    return x.detach()


def run(name: str) -> str:
    """Judge a program by SciPy and by differences."""
    return reported(name, lambda said: judged(PROGRAMS[name], said))


def reported(name: str, judge: Callable[[Callable[[], bool]], str]) -> str:
    """Print what is to be looked at and what was said: "agrees", "told", "refused" or "look"."""
    started, found = time.process_time(), ""
    with warnings.catch_warnings(record=True) as seen, contextlib.suppress(KeyboardInterrupt):
        warnings.simplefilter("always")
        try:
            found = judge(lambda: any(issubclass(one.category, TOLD) for one in seen))
            kind = "agrees" if not found else "told" if found.startswith("(") else "look"
        except tuple(REFUSALS) as error:
            kind, found = "refused", f"{type(error).__name__}: {error}"
        except Exception as error:
            kind, found = "look", f"{type(error).__name__}: {error}"
    print(f"{kind:7} {time.process_time() - started:5.1f} s  {name}  {found}", flush=True)
    for message in sorted({f"{one.category.__name__}: {one.message}" for one in seen}):
        print("       ", message[:300])
    return kind
