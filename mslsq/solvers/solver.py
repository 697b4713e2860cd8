"""What all solvers share: options, and the three questions the loop asks of a method."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linearize.linearizer import Linearization
from mslsq.linearize.trace import Wish
from mslsq.native.choice import CHOICES, Native, choice
from mslsq.solvers.linear_choice import Automatic, Named
from mslsq.validation import boolean, instance_of, integer, number, one_of, plain_options


class SolverOptionError(ValueError):
    """An option of a solver has a value that is not valid."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a long solve keeps its state, so that it can go on in another process, after a crash or a limit of time.

    The file is written every few seconds, whole or not at all, and when a solve ends before all problems are done (by
    Ctrl-C, `time_budget`, `max_steps` or a callback). A solve with the same options, start and data that finds it goes
    on from there, with the history of the steps before; when it is done the file is removed. On one thread, with
    `native="never"` or "wait", it ends to the bit where it would have ended in one go.

    Args:
        path: of the file; its folder must exist. One file for one solve at a time.
        seconds: between two writings, at least.

    >>> solver = mslsq.LevenbergMarquardt(checkpoint=mslsq.Checkpoint("solve.checkpoint", seconds=60))
    """

    path: str | os.PathLike[str]
    seconds: float = 60.0

    def __post_init__(self) -> None:
        plain_options(self)
        if not isinstance(self.path, (str, os.PathLike)):
            raise SolverOptionError(f"Checkpoint: path must be that of a file, not {self.path!r}.")
        number("Checkpoint: seconds", self.seconds, least=0, error=SolverOptionError)

    @property
    def file(self) -> Path:
        return Path(self.path)


AROUND = frozenset(
    ("callback", "verbose", "max_steps", "early_stop", "trace", "native", "time_budget", "on_interrupt", "checkpoint")
)
"""The options that change no step."""

RESOLVED = 1e-2
"""Up to this damping (relative to the scaled diagonal) a step counts as a Gauss–Newton step when convergence is
judged: where it promises less than the rounding of the cost, 8 ε, the undamped step promises less than 1e-10 of it
unless J is conditioned worse than 1e3."""


class Proposal(NamedTuple):
    """A step that a method proposes, per problem of the batch."""

    step: Float[Tensor, "batch columns"]
    predicted: Float[Tensor, "batch"]
    """The decrease of the cost that the Gauss–Newton model promises."""
    solved: Bool[Tensor, "batch"]
    """Could the linear system be solved? Where not, the step is NaN, or one that needs no solve."""
    resolved: Bool[Tensor, "batch"]
    """Is this all but the full Gauss–Newton step, not one held back by damping or trust region?"""
    damping: Float[Tensor, "batch columns"]
    """What was added to the diagonal of JᵀJ: a column that has become short is held back by little."""
    lands: Bool[Tensor, "batch"] | None = None
    """Does it bring a variable to a bound? None where there are none. (Said by the library, not by a method.)"""
    worth: Float[Tensor, "batch"] | None = None
    """Of a step that has been bent, what that has won of the model's cost, as a share of `predicted`; of others 0. None
    where all steps are straight. (Said by the library.)"""
    beyond: Float[Tensor, "batch columns"] | None = None
    """Where the step went beyond what the columns of J tell (`Verdict.beyond`) their squared lengths at its end, else
    zero. (Said by the library.)"""


class Creep(NamedTuple):
    """How a method tells that a problem creeps."""

    place: int
    """Of a number (batch,) in the method's state..."""
    count: float
    """... that is at least this where a problem creeps."""


MethodState = Any
"""A NamedTuple of tensors (batch, ...): damping, radius, step length."""


@dataclass(frozen=True)
class Solver:
    """Base of the solvers; tolerances mean what they mean in `scipy.optimize.least_squares(method="trf")`.

    Args:
        max_steps: steps tried at most, accepted or not.
        ftol: stop when an accepted step changes the cost by less than `ftol * cost` and the model agrees with it.
        gtol: stop when no entry of the gradient (in the tangent) exceeds `gtol`, in its units. By default (None) when
            |D⁻¹g| is at most 1e-12 |r|, D the lengths of J's columns, which depends on no unit; or when the residual is
            zero to the rounding of x.
        xtol: stop when an accepted step is shorter than `xtol * (xtol + |x|)`.
        linear_solver: `"auto"` (Cholesky, dense or sparse by size, after a Schur complement where that is faster),
            `linear.Cholesky()`, `linear.SparseCholesky()`, `linear.Schur()`, `linear.ConjugateGradient()` or
            `linear.QR()`.
        compile: compile what takes the time, before the first step. The step of a small problem, and everything on
            other devices than a CPU, with PyTorch's compiler: slow the first time (about 20 s), fast after. The
            residuals of a large problem on a CPU as native programs, a second each: there it means `native="wait"`.
        early_stop: look after each step whether all problems are done. `False` takes exactly `max_steps` without
            asking the device (problems that are done do not move). On other devices than a CPU nothing is raised or
            warned of then that a number would tell: a start outside of its bounds is NaN.
        callback: called after each step with a `StepInfo`; return True to stop.
        verbose: print a table as the solve goes on.
        trace: `"auto"` records the step as a plain graph as soon as that pays, `"always"` at once, `"never"` not at
            all.
        native: `"auto"` compiles residuals beside the solve where that pays, and runs them as native programs from a
            later solve on; `"wait"` waits for the compiler, `"never"` runs none. On CUDA only `"wait"` makes any. The
            variable `MSLSQ_NATIVE` says the same for a process, the stricter word holds. See
            `docs/guide/native_programs.md`.
        time_budget: seconds after which no further step is begun; the problems that are still running end with
            `Status.TIME_BUDGET`. A step that has begun is not cut short.
        on_interrupt: what a KeyboardInterrupt (Ctrl-C) during the steps does: `"raise"` raises `SolveInterrupted`, a
            KeyboardInterrupt whose `solution` is the best point so far; `"return"` returns that solution. The problems
            that were still running have `Status.INTERRUPTED`.
        checkpoint: a `Checkpoint`: a file that keeps the state of a long solve, from which the same solve goes on.

    A step or a decrease that is small because damping or radius held it back does not end a solve: `ftol` and `xtol`
    ask for a gradient that is small as well (`solvers.stationarity`). The defaults of the two are what it takes for
    four correct digits on all of NIST's regressions (1e-8 gives three on ENSO); near a minimum they cost a step or two.
    A tolerance of zero is never met; one below the rounding of the dtype is raised to it.
    """

    max_steps: int = 1000
    ftol: float = 1e-12
    gtol: float | None = None
    xtol: float = 1e-12
    linear_solver: LinearSolver | Literal["auto"] = "auto"
    compile: bool = False
    early_stop: bool = True
    callback: Callable[[Any], bool | None] | None = None
    verbose: bool = False
    trace: Literal["auto", "always", "never"] = "auto"
    native: Native = "auto"
    time_budget: float | None = None
    on_interrupt: Literal["raise", "return"] = "raise"
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        plain_options(self)
        integer(f"{name}: max_steps", self.max_steps, error=SolverOptionError)
        for option in ("compile", "early_stop"):
            boolean(f"{name}: {option}", getattr(self, option), SolverOptionError)
        if not isinstance(self.verbose, int):  # SciPy's 2 says that something is shown, too
            boolean(f"{name}: verbose", self.verbose, SolverOptionError)
        if self.callback is not None and not callable(self.callback):
            raise SolverOptionError(f"{name}: callback must be a function of a StepInfo, not {self.callback!r}.")
        for option in ("ftol", "gtol", "xtol"):
            if option != "gtol" or self.gtol is not None:
                number(f"{name}: {option}", getattr(self, option), least=0, error=SolverOptionError)
        one_of(f"{name}: trace", self.trace, ("auto", "always", "never"), SolverOptionError)
        one_of(f"{name}: native", self.native, CHOICES, SolverOptionError)
        one_of(f"{name}: on_interrupt", self.on_interrupt, ("raise", "return"), SolverOptionError)
        if self.time_budget is not None:
            number(f"{name}: time_budget", self.time_budget, above=0, error=SolverOptionError)
        if self.checkpoint is not None:
            instance_of(f"{name}: checkpoint", self.checkpoint, Checkpoint, "Write mslsq.Checkpoint(path).")
        if self.linear_solver != "auto" and not isinstance(self.linear_solver, LinearSolver):
            raise SolverOptionError(
                f"{name}: linear_solver must be 'auto', mslsq.linear.Cholesky(), mslsq.linear.SparseCholesky(), "
                "mslsq.linear.Schur(), mslsq.linear.ConjugateGradient() or mslsq.linear.QR(), not "
                f"{self.linear_solver!r}."
            )

    @property
    def key(self) -> tuple[Any, ...]:
        """What a graph of the step depends on."""
        return (type(self), *(v for k, v in self.__dict__.items() if k not in AROUND))

    def raising(self) -> "Solver":
        """The same, which an interrupt ends with an exception."""
        return replace(self, on_interrupt="raise")

    @property
    def most_acceleration(self) -> float | None:
        """How far steps are bent by the second derivative along them (`solvers.acceleration`); None for not at all."""
        return None

    @property
    def creep(self) -> Creep | None:
        """How problems are told whose steps are bent; None where all are, or none."""
        return None

    @property
    def bends_always(self) -> bool:
        """Are all steps bent?"""
        return self.most_acceleration is not None and self.creep is None

    def creeping(self, state: MethodState) -> Bool[Tensor, "batch"]:
        """The problems whose steps are bent next, where not all are."""
        assert self.creep is not None
        return state[self.creep.place] >= self.creep.count

    def bending_always(self) -> "Solver":
        """The same, which bends all steps as it bends those of problems that creep."""
        raise NotImplementedError

    @property
    def may_get_programs(self) -> bool:
        """May native programs come by themselves (`native="auto"`)? Not where nothing of the residual is to be kept;
        nor where the device is asked nothing: the comparison of a program reads numbers, and could come in any call.
        (With "wait" it comes in the first one, where all is planned.)"""
        return self.early_stop and self.keeps_graphs

    @property
    def keeps_graphs(self) -> bool:
        """May what a residual does be written down and used again, as a graph or as a program?"""
        return self.trace != "never"

    @property
    def takes_programs(self) -> bool:
        """Would this solver's solves run native programs, if nothing outside of it forbids them?"""
        return self.keeps_graphs and self.native != "never"

    def with_programs_at_once(self) -> Self:
        """The same solver; where native programs may come by themselves they are there before the first step."""
        return replace(self, native="wait") if self.native == "auto" else self

    @property
    def native_choice(self) -> Native:
        """What holds for the native programs of this solver's solves, now and here."""
        return choice(self.native, self.may_get_programs)

    @property
    def native_choice_of_large(self) -> Native:
        """The same of problems whose residuals are compiled as programs, not in graphs: `compile` waits for them."""
        return choice("wait") if self.compile and self.native == "auto" else self.native_choice

    @property
    def execution(self) -> Wish:
        """What the options ask for, of how functions run."""
        return Wish(self.trace, self.compile, self.native_choice)

    @property
    def linear(self) -> Automatic | Named:
        """What `linear_solver` says of the systems of a solve."""
        return Automatic(self.compile) if self.linear_solver == "auto" else Named(self.linear_solver)

    # ---- a method answers these

    def start(self, model: Linearization, linear: LinearSolver, sizes: Tensor) -> MethodState:
        """The method's own state at the start."""
        raise NotImplementedError

    def propose(self, model: Linearization, state: MethodState, linear: LinearSolver) -> Proposal:
        """A step from the current point."""
        raise NotImplementedError

    def update(
        self,
        state: MethodState,
        model: Linearization,
        proposal: Proposal,
        gain: Float[Tensor, "batch"],
        accepted: Bool[Tensor, "batch"],
        linear: LinearSolver,
    ) -> MethodState:
        """The state after a step with this gain ratio; `model` is that of the point kept."""
        raise NotImplementedError

    @property
    def needs_regular(self) -> bool:
        """Does a singular linear system end the problem at once?"""
        return False

    def exhausted(self, state: MethodState) -> Bool[Tensor, "batch"]:
        """Has the method shrunk its steps as far as makes sense?"""
        raise NotImplementedError

    def damping(self, state: MethodState) -> Float[Tensor, "batch"]:
        """What the history records: damping, or radius."""
        raise NotImplementedError


def quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the denominator is not positive."""
    positive = denominator > 0
    return torch.where(positive, numerator / torch.where(positive, denominator, 1), 0)
